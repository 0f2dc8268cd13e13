//! Overwrites secrets on the command line. Every user on the host can read it (`ps`).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The maximum length of a command line that is examined, in bytes.
const MOST: u64 = 1 << 20;

/// Overwrites passwords and tokens in this process's command line. Call it immediately after the command line has been
/// read.
///
/// # Errors
/// Fails if the kernel refuses. The secrets remain visible.
pub fn mask_secrets() -> io::Result<()> {
    let Some((start, end)) = place(&fs::read_to_string("/proc/self/stat")?) else {
        return Err(io::Error::other("/proc/self/stat does not say where the command line is"));
    };
    let line = fs::read("/proc/self/cmdline")?;
    let len = end.saturating_sub(start).min(MOST);
    if u64::try_from(line.len()).unwrap_or(u64::MAX) < len {
        return Err(io::Error::other("the command line is not where /proc/self/stat says"));
    }
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    let mut at = start;
    for word in line.split(|byte| *byte == 0) {
        if let Some(masked) = masked(word) {
            memory.write_all_at(&masked, at)?;
        }
        at = at.saturating_add(u64::try_from(word.len()).unwrap_or(u64::MAX)).saturating_add(1);
        if at >= end {
            break;
        }
    }
    Ok(())
}

/// Parses fields 48 and 49, counted from the end of the program's name, which may itself contain spaces and
/// parentheses.
fn place(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(45);
    let mut field = || fields.next()?.parse::<u64>().ok();
    let place = (field()?, field()?);
    (place.0 != 0 && place.0 < place.1).then_some(place)
}

/// Replaces each byte of a secret in the word with an `x`. Returns `None` if it contains no secret.
fn masked(word: &[u8]) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(word);
    let mut out = word.to_vec();
    let mut cover = |from: usize, to: usize| {
        out.iter_mut().take(to).skip(from).for_each(|byte| *byte = b'x');
    };
    let find = |needle: &str, from: usize| text.get(from..)?.find(needle)?.checked_add(from);
    let mut any = false;
    if text.len() == word.len() {
        let scheme = ["postgres://", "postgresql://"].iter().find(|s| text.starts_with(**s));
        if let Some(scheme) = scheme {
            // The password ends at the last @ before the token, so a password that contains a slash by mistake is also
            // masked.
            let end = find("#adit1-", 0).unwrap_or(word.len());
            let at = text.get(..end)?.rfind('@');
            if let (Some(colon), Some(at)) = (find(":", scheme.len()), at)
                && colon < at
            {
                cover(colon.saturating_add(1), at);
                any = true;
            }
        }
        if let Some(token) = find("#", 0).or_else(|| find("adit1-", 0)) {
            cover(token.saturating_add(1), word.len());
            any = true;
        }
        if let Some(password) = find("password", 0) {
            let value = find("=", password).unwrap_or(password).saturating_add(1);
            let end = if scheme.is_some() { find("&", value) } else { None };
            cover(value, end.unwrap_or(word.len()));
            any = true;
        }
    } else {
        // The word is not text, so it cannot be one of our URLs.
        cover(0, word.len());
        any = true;
    }
    any.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(word: &str) -> String {
        masked(word.as_bytes()).map_or(word.to_owned(), |word| String::from_utf8(word).unwrap())
    }

    #[test]
    fn what_is_secret_is_covered_and_nothing_else() {
        for (word, left) in [
            ("postgres://u:geheim@h/d", "postgres://u:xxxxxx@h/d"),
            ("postgresql://u:g@e@h:1/d?x=y", "postgresql://u:xxx@h:1/d?x=y"),
            ("postgres://u:g/e@h/d", "postgres://u:xxx@h/d"),
            ("postgres://u:g#e@h/d#adit1-A", "postgres://u:xxxxxxxxxxxxxxx"),
            ("postgres://h:5432/d", "postgres://h:5432/d"),
            ("postgres://u@h:5432/d", "postgres://u@h:5432/d"),
            ("postgres://h:1/d#adit1-AbC", "postgres://h:1/d#xxxxxxxxx"),
            (
                "postgres://h/d?password=ab&sslmode=require",
                "postgres://h/d?password=xx&sslmode=require",
            ),
            ("host=h password='a b' user=u", "host=h password=xxxxxxxxxxxx"),
            ("adit1-AbC", "axxxxxxxx"),
            ("--network", "--network"),
            ("postgres", "postgres"),
        ] {
            assert_eq!(shown(word), left, "{word}");
        }
        assert_eq!(masked(b"postgres://u:\xff@h").unwrap(), [b'x'; 16]);
    }

    #[test]
    fn a_programs_name_does_not_shift_the_fields() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        let stat = |name: &str| format!("1 ({name}) {}", fields.join(" "));
        assert_eq!(place(&stat("adit")), Some((48, 49)));
        assert_eq!(place(&stat("a) 1 2 (b")), Some((48, 49)));
        assert_eq!(place("1 (adit) 2 3"), None);
    }
}
