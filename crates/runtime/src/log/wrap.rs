//! Formats lines for a terminal.

/// The number of columns that any terminal has.
pub const WIDTH: usize = 80;

/// Formats a log line with the date `head` before it. Quoted lines of a file, which are indented, and the carets
/// beneath them are not wrapped.
pub(super) fn log_line(head: &str, text: &str) -> String {
    if text.starts_with(' ') || text.contains("  ") {
        format!("{head}{text}\n")
    } else {
        wrapped(head, text)
    }
}

/// Wraps a text into lines of at most 80 columns. The first begins with `head`, the others with as many spaces.
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

/// Formats a fault, wrapped between words for people, or on a single line for programs. The carets beneath an error in
/// a file keep their position.
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
    fn a_log_line_is_wrapped_beneath_its_date_and_a_rule_with_its_caret_is_not() {
        let date = "2026-11-22 09:30:21 ";
        let text = "warning: connected: 10.73.0.2/24 and fd73::1000/64 on vpn0, AES-256-GCM, all \
                    traffic goes through it";
        assert_eq!(
            log_line(date, text),
            "2026-11-22 09:30:21 warning: connected: 10.73.0.2/24 and fd73::1000/64 on vpn0,\n                    \
             AES-256-GCM, all traffic goes through it\n"
        );
        let rule = "        tcp dport 22 accept  # and a comment that is longer than the terminal is wide, by far";
        assert_eq!(log_line("", rule), format!("{rule}\n"));
        // A word longer than a line, such as a path, is not broken.
        let path = "x".repeat(100);
        assert_eq!(log_line("", &path), format!("{path}\n"));
    }

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
