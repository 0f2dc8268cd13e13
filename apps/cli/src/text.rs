//! Formatting of figures and tables.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::macros::format_description;

pub(crate) use adit_runtime::log::{WIDTH, bytes, rate, wrapped};

/// Formats a table. Columns are as wide as their widest cell, with two spaces between them, and the
/// last one is not padded.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The minimum width of a name, however wide the other columns are.
const LEAST_NAME: usize = 8;

/// Formats a table with names in the first column, which are truncated so that the lines fit a
/// terminal.
pub(crate) fn table_of_names(mut rows: Vec<Vec<String>>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let others: usize = (1..columns).map(|column| width(column).unwrap_or(0) + 2).sum();
    let room = WIDTH.saturating_sub(others).max(LEAST_NAME);
    rows.iter_mut().filter_map(|row| row.first_mut()).for_each(|name| *name = cut(name, room));
    table(&rows)
}

/// Formats a count, such as `1 session` or `3 sessions`.
pub(crate) fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// Truncates to `width` characters; a `~` marks the truncation.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() > width {
        text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
    } else {
        text.to_owned()
    }
}

/// Creates a row of a table.
pub(crate) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

/// Formats a row with two columns, and wraps the second if it is too long.
pub(crate) fn pair(row: &[String]) -> String {
    let [name, value] = row else { return String::new() };
    wrapped(&format!("{name:<15}"), value)
}

/// Formats a duration in its two largest units, such as `3 d 4 h` or `12 min 5 s`.
pub(crate) fn span(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (size, name) in units {
        if left >= size || !parts.is_empty() {
            parts.push(format!("{} {name}", left / size));
            left %= size;
        }
        if parts.len() == 2 {
            break;
        }
    }
    parts.retain(|part| !part.starts_with("0 "));
    if parts.is_empty() { "0 s".into() } else { parts.join(" ") }
}

/// Formats a date, such as `2027-03-01`.
pub(crate) fn date(unix: u64) -> String {
    i64::try_from(unix)
        .ok()
        .and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok())
        .and_then(|time| time.format(format_description!("[year]-[month]-[day]")).ok())
        .unwrap_or_else(|| "-".into())
}

/// Formats a date and its distance, such as `2027-03-01 (in 35 d)` or `2026-01-01 (35 d ago)`.
pub(crate) fn date_from_now(unix: u64) -> String {
    let now = now();
    let days = |from: u64, to: u64| to.saturating_sub(from) / 86_400;
    if unix >= now {
        format!("{} (in {} d)", date(unix), days(now, unix))
    } else {
        format!("{} ({} d ago)", date(unix), days(unix, now))
    }
}

/// Returns the seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (count, said) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 kB"),
            (1536, "1.5 kB"),
            (999_499, "999 kB"),
            (999_999, "1.0 MB"),
            (12_345_678_901, "12.3 GB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(bytes(count), said, "{count}");
        }
        assert_eq!(rate(9_420_000_000), "9.4 Gb/s");
    }

    #[test]
    fn spans_have_two_units() {
        for (seconds, said) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3725, "1 h 2 min"),
            (86_400, "1 d"),
            (90_061, "1 d 1 h"),
        ] {
            assert_eq!(span(seconds), said);
        }
    }

    #[test]
    fn long_sentences_are_broken_between_words() {
        let text = wrapped("ok  ", &"word ".repeat(40));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("    w")), "{text}");
        assert_eq!(wrapped("-> ", "short"), "-> short\n");
        let long = "x".repeat(100);
        assert_eq!(wrapped("-> ", &long), format!("-> {long}\n"));
    }

    #[test]
    fn names_are_cut_where_a_line_would_be_too_long() {
        let text =
            table_of_names(vec![row(["NAME", "FROM"]), row([&"n".repeat(60), &"f".repeat(30)])]);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("n~  f"), "{text}");
        // A few letters remain, regardless of the other columns' widths.
        let text = table_of_names(vec![row([&"n".repeat(60), &"f".repeat(90)])]);
        assert!(text.starts_with("nnnnnnn~  f"), "{text}");
    }

    #[test]
    fn tables_align() {
        let rows = [row(["a", "bb"]), row(["long", "c"])];
        assert_eq!(table(&rows), "a     bb\nlong  c\n");
    }

    #[test]
    fn the_second_column_of_a_pair_is_broken() {
        let text = pair(&row(["protected by", &"word ".repeat(40)]));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("               w")), "{text}");
    }

    #[test]
    fn dates_are_iso() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(u64::MAX), "-");
    }
}
