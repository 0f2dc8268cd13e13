use std::fmt;

/// The number of errors that are reported at once; further ones are only counted.
pub const MAX_DIAGNOSTICS: usize = 10;

/// The number of characters of a source line that a diagnostic shows.
const MAX_SHOWN: usize = 160;

/// A mistake at one position in a rule file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Diagnostic {
    /// The file's name, as it was given or included.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// The length of the marked text in characters; at least 1.
    pub length: u32,
    /// The mistake.
    pub message: String,
    /// The replacement.
    pub hint: Option<String>,
    /// The line itself.
    pub source: String,
}

/// All mistakes, in the order of the text.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Diagnostics {
    /// At most [`MAX_DIAGNOSTICS`].
    pub list: Vec<Diagnostic>,
    /// The number of further errors.
    pub more: usize,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        let column = self.column.saturating_sub(1) as usize;
        // A long line is shown from a little before the mistake.
        let from = if column > MAX_SHOWN / 2 { column.saturating_sub(MAX_SHOWN / 4) } else { 0 };
        let shown: String = self.source.chars().skip(from).take(MAX_SHOWN).map(printable).collect();
        let before = if from > 0 { "..." } else { "" };
        writeln!(f, "    {before}{shown}")?;
        let blank = column.saturating_sub(from).saturating_add(before.len());
        let marks = (self.length.max(1) as usize).min(MAX_SHOWN);
        write!(f, "    {:blank$}{}", "", "^".repeat(marks))?;
        match &self.hint {
            Some(hint) => write!(f, "\n    instead: {hint}"),
            None => Ok(()),
        }
    }
}

fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, one) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{one}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for Diagnostics {}

/// Returns the word of `known` that was probably meant by `word`.
pub(super) fn similar<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = match word.len() {
        0..=2 => return None,
        3..=5 => 1,
        6..=32 => 2,
        _ => return None,
    };
    known
        .filter(|k| k.len().abs_diff(word.len()) <= most)
        .map(|k| (distance(word.as_bytes(), k.as_bytes()), k))
        .filter(|&(d, _)| d <= most)
        .min_by_key(|&(d, _)| d)
        .map(|(_, k)| k)
}

/// Returns the number of insertions, deletions, substitutions and swaps of adjacent characters
/// between two short words.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut left = None;
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i.saturating_add(1)];
        let mut up = None;
        for (j, &y) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let next = j.saturating_add(1);
            let swap = match j.checked_sub(1) {
                Some(k) if left == Some(y) && up == Some(x) => at(&before, k).saturating_add(1),
                _ => usize::MAX,
            };
            let change = at(&last, j).saturating_add(usize::from(x != y));
            let grow = at(&last, next).min(at(&row, j)).saturating_add(1);
            row.push(change.min(grow).min(swap));
            up = Some(y);
        }
        before = std::mem::replace(&mut last, row);
        left = Some(x);
    }
    last.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_one_step() {
        assert_eq!(distance(b"dport", b"dprot"), 1);
        assert_eq!(distance(b"accept", b"acept"), 1);
        assert_eq!(distance(b"drop", b"drop"), 0);
        assert_eq!(similar("acept", ["drop", "accept"].into_iter()), Some("accept"));
        assert_eq!(similar("xy", ["xz"].into_iter()), None);
    }
}
