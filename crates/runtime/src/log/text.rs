use std::fmt::{self, Write};

use time::OffsetDateTime;
use tracing::field::{Field, Visit};

/// The maximum length of a line in bytes. A longer line is truncated with a marker.
pub const LINE_LIMIT: usize = 4096;

/// Turns any text into one printable line. Control characters and the Unicode characters that reorder or end lines are
/// escaped, and text beyond [`LINE_LIMIT`] is cut.
pub fn clean(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    push_clean(&mut line, text);
    line
}

/// Appends the result of [`clean`] for a text.
pub(super) fn push_clean(line: &mut String, text: &str) {
    // Most lines need no change.
    if text.len() <= LINE_LIMIT && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return line.push_str(text);
    }
    let start = line.len();
    for c in text.chars() {
        if line.len().saturating_sub(start) > LINE_LIMIT {
            line.push_str(" [cut]");
            break;
        }
        match c {
            '\t' => line.push(' '),
            c => push_printable(line, c),
        }
    }
}

fn push_printable(text: &mut String, c: char) {
    match c {
        c if c.is_ascii_control() => {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{:02x}", u32::from(c));
        }
        c if c.is_control() || is_invisible(c) => {
            let _ = write!(text, "\\u{{{:x}}}", u32::from(c));
        }
        c => text.push(c),
    }
}

/// Makes a text of several lines printable, like [`clean`], but keeps line feeds and tabs and cuts nothing.
pub fn clean_lines(text: &mut String) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t')) {
        return;
    }
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => printable.push(c),
            c => push_printable(&mut printable, c),
        }
    }
    *text = printable;
}

/// Returns whether a character can reorder, hide or break text on a terminal.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Formats seconds since 1970 as `YYYY-MM-DD HH:MM:SS` in the host's time zone.
pub fn stamp(unix: u64) -> String {
    // Tests expect dates in a fixed zone, whatever the host's zone is.
    let offset = if cfg!(test) { 0 } else { adit_linux::clock::local_offset(unix) };
    date(unix, offset)
}

/// A cache for [`stamp`]. It formats the time once for all lines of a second.
#[derive(Debug, Default)]
pub(super) struct TimestampCache {
    of: u64,
    text: String,
}

impl TimestampCache {
    pub(super) fn at(&mut self, unix: u64) -> &str {
        if self.of != unix || self.text.is_empty() {
            (self.of, self.text) = (unix, stamp(unix));
        }
        &self.text
    }
}

fn date(unix: u64, offset: i64) -> String {
    let time = i64::try_from(unix)
        .ok()
        .map(|seconds| seconds.saturating_add(offset))
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// The fields of a `tracing` event.
#[derive(Default)]
pub(super) struct Fields {
    text: String,
    rest: String,
    pub(super) verb: Option<u64>,
}

impl Fields {
    /// Formats the message, followed by the other fields as `name=value`.
    pub(super) fn message(self) -> String {
        if self.rest.is_empty() { self.text } else { format!("{}{}", self.text, self.rest) }
    }

    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = if field.name() == "message" {
            self.text.write_fmt(value)
        } else {
            write!(self.rest, " {}={value}", field.name())
        };
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "verb" {
            self.verb = Some(value);
        } else {
            self.add(field, format_args!("{value}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

/// Formats a number of bytes, such as `1.5 GB`, in powers of a thousand as is usual for networks.
pub fn bytes(count: u64) -> String {
    scaled(count, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// Formats a rate, such as `1.5 Gb/s`.
pub fn rate(bits_per_second: u64) -> String {
    scaled(bits_per_second, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"])
}

fn scaled(count: u64, units: &[&str]) -> String {
    let mut value = count as f64;
    let mut unit = units.iter();
    let mut name = unit.next().unwrap_or(&"");
    while value >= 999.5 {
        let Some(next) = unit.next() else { break };
        value /= 1000.0;
        name = next;
    }
    if value >= 99.95 || value.fract() == 0.0 {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_has_the_form_that_log_readers_parse() {
        assert_eq!(date(1_795_166_363, 0), "2026-11-20 09:19:23");
        assert_eq!(date(1_795_166_363, 3600), "2026-11-20 10:19:23");
        assert_eq!(date(0, 0), "1970-01-01 00:00:00");
    }

    #[test]
    fn a_stamp_is_made_again_when_the_second_is_another() {
        let mut stamps = TimestampCache::default();
        for unix in [0, 0, 1_795_166_363, 1_795_166_364, 1_795_166_364, 7, 0] {
            assert_eq!(stamps.at(unix), stamp(unix));
        }
    }

    #[test]
    fn what_is_printable_stays_as_it_is_and_the_rest_is_found_anywhere() {
        let printable: String = (' '..='~').collect();
        assert_eq!(clean(&printable), printable);
        for (text, cleaned) in [("a\x7f", "a\\x7f"), ("\x1fa", "\\x1fa"), ("ü", "ü"), ("\t", " ")]
        {
            assert_eq!(clean(text), cleaned);
        }
        let mut line = "x".repeat(LINE_LIMIT);
        push_clean(&mut line, "a\n");
        assert!(line.ends_with("xa\\x0a"), "what stands before does not count");
    }

    #[test]
    fn lines_are_capped() {
        let line = clean(&"x".repeat(LINE_LIMIT * 2));
        assert!(line.len() <= LINE_LIMIT + 16, "{}", line.len());
        assert!(line.ends_with(" [cut]"));
    }
}
