//! Lines for a terminal.

/// Columns that any terminal has.
pub const WIDTH: usize = 80;

/// Words in lines of at most 80 columns: the first begins with `head`, the others with as many
/// spaces.
#[must_use]
pub fn wrapped(head: &str, words: &str) -> String {
    let indent = head.chars().count();
    let mut text = head.to_owned();
    let mut column = indent;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}

/// A fault as it is printed: wrapped between words for people, a line of its own for programs. An error in a file comes
/// with carets beneath, which must stay where they are.
#[must_use]
pub fn fault_line(fault: &str, terminal: bool) -> String {
    if !terminal || fault.contains("\n") && fault.contains('^') {
        return format!("adit: {fault}\n");
    }
    let mut lines = fault.lines();
    let first = wrapped("adit: ", lines.next().unwrap_or_default());
    lines.fold(first, |text, line| {
        let words = line.trim_start();
        let indent = line.len().saturating_sub(words.len());
        text + &wrapped(&" ".repeat(indent), words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_wrapped_for_people_alone() {
        let fault = ["word"; 32].join(" ");
        assert!(fault_line(&fault, true).lines().all(|line| line.chars().count() <= 80));
        assert_eq!(fault_line(&fault, false), format!("adit: {fault}\n"));
        let remedy = format!("{fault}\n  {fault}");
        let shown = fault_line(&remedy, true);
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert!(shown.contains("\n  word word") && shown.ends_with("\n  word word\n"), "{shown}");
        let carets = format!("{fault}\n    ^^^^");
        assert_eq!(fault_line(&carets, true), format!("adit: {carets}\n"));
    }
}
