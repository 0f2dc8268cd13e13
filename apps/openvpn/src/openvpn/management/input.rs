//! The lines that a management client sends.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

use adit_openvpn::config::split_words;

/// The maximum length of a line in bytes.
pub(super) const MAX_LINE: usize = 8192;

/// Splits a stream of bytes into lines.
#[derive(Debug, Default)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    /// Whether the current line is too long, so that its end is being skipped.
    too_long: bool,
}

/// A line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Its printable characters.
    Text(String),
    /// The line was longer than [`MAX_LINE`].
    TooLong,
}

impl LineBuffer {
    /// Takes bytes up to the end of a line. Returns the number of bytes taken, and the line if it is complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> (usize, Option<Line>) {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        if self.bytes.len().saturating_add(part.len()) > MAX_LINE {
            self.too_long = true;
            self.bytes = Vec::new();
        }
        if !self.too_long {
            self.bytes.extend_from_slice(part);
        }
        let taken = part.len().saturating_add(usize::from(end.is_some()));
        if end.is_none() {
            return (taken, None);
        }
        let bytes = std::mem::take(&mut self.bytes);
        if std::mem::take(&mut self.too_long) {
            return (taken, Some(Line::TooLong));
        }
        (taken, Some(Line::Text(printable(&bytes))))
    }
}

/// Returns the text without control characters, which openvpn ignores too.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| *c == '\t' || !c.is_control()).collect()
}

/// A command and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) name: String,
    parameters: Vec<String>,
}

impl Command {
    /// Splits a line; `None` if it has no words.
    ///
    /// # Errors
    /// Says why the line cannot be split.
    pub(super) fn parse(line: &str) -> Result<Option<Self>, String> {
        let mut words = split_words(line)?.into_iter();
        Ok(words.next().map(|name| Self { name, parameters: words.collect() }))
    }

    /// Returns a parameter.
    pub(super) fn get(&self, index: usize) -> Option<&str> {
        self.parameters.get(index).map(String::as_str)
    }

    /// Returns a parameter, or the empty string.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.get(index).unwrap_or_default()
    }

    /// Checks the number of parameters.
    ///
    /// # Errors
    /// Returns openvpn's reply to a wrong number.
    pub(super) fn need(&self, count: usize, or_more: bool) -> Result<(), String> {
        let has = self.parameters.len();
        if has == count || (or_more && has > count) {
            return Ok(());
        }
        let least = if or_more { "at least " } else { "" };
        let plural = if count == 1 { "" } else { "s" };
        Err(format!("ERROR: the '{}' command requires {least}{count} parameter{plural}", self.name))
    }

    /// Returns the text to log. The parameters of `password` and the lines of others that have secrets are left out.
    pub(super) fn shown<'a>(&self, line: &'a str) -> std::borrow::Cow<'a, str> {
        match self.name.as_str() {
            "password" => "password [...]".into(),
            _ => line.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<Line> {
        let mut buffer = LineBuffer::default();
        let mut rest = bytes;
        let mut lines = Vec::new();
        while !rest.is_empty() {
            let (taken, line) = buffer.take(rest);
            lines.extend(line);
            rest = &rest[taken..];
        }
        lines
    }

    fn text(text: &str) -> Line {
        Line::Text(text.into())
    }

    #[test]
    fn lines_end_in_lf_or_crlf_and_the_last_waits_for_its_end() {
        assert_eq!(lines(b"pid\r\nhelp\n\nstat"), [text("pid"), text("help"), text("")]);
        assert_eq!(lines(b"a\0b\x1bc\td\n"), [text("abc\td")]);
        assert_eq!(lines(b"a\xffb\n"), [text("a\u{fffd}b")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_counts() {
        let most = "x".repeat(MAX_LINE);
        assert_eq!(lines(format!("{most}\npid\n").as_bytes()), [text(&most), text("pid")]);
        assert_eq!(lines(format!("{most}x\npid\n").as_bytes()), [Line::TooLong, text("pid")]);
        let mut buffer = LineBuffer::default();
        for _ in 0..1000 {
            assert_eq!(buffer.take(most.as_bytes()), (MAX_LINE, None));
        }
        assert!(buffer.bytes.len() <= MAX_LINE);
        assert_eq!(buffer.take(b"\n"), (1, Some(Line::TooLong)));
    }

    #[test]
    fn words_are_quoted_as_in_a_config_file() {
        let command = Command::parse(r#"password "Private Key" "foo\"bar""#).unwrap().unwrap();
        assert_eq!((command.arg(0), command.arg(1)), ("Private Key", "foo\"bar"));
        assert_eq!(command.shown("password x y"), "password [...]");
        assert_eq!(Command::parse("  ").unwrap(), None);
        assert!(Command::parse("username Auth \"a").is_err());
    }

    #[test]
    fn a_wrong_number_of_parameters_is_answered_in_openvpns_words() {
        let command = Command::parse("kill").unwrap().unwrap();
        let error = command.need(1, false).unwrap_err();
        assert_eq!(error, "ERROR: the 'kill' command requires 1 parameter");
        let command = Command::parse("client-deny 1").unwrap().unwrap();
        let error = command.need(3, true).unwrap_err();
        assert_eq!(error, "ERROR: the 'client-deny' command requires at least 3 parameters");
        assert!(Command::parse("log on all").unwrap().unwrap().need(1, true).is_ok());
    }
}
