//! Formats figures for human readers.

use crate::stats::Interval;

/// Formats a figure with thousands separators: `20,141`. Small figures get more than `digits` decimals, so that two
/// digits are significant.
pub(crate) fn number(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let mut digits = digits;
    // 31.101 is no more informative than 31.10, so four digits are enough if there is a decimal point among them.
    while digits > 0 && value.abs() >= 10_f64.powi(4 - i32::try_from(digits).unwrap_or(4)) {
        digits -= 1;
    }
    if value.fract() != 0.0 {
        while digits < 4 && value.abs() < 10_f64.powi(1 - i32::try_from(digits).unwrap_or(0)) {
            digits += 1;
        }
    }
    let plain = format!("{:.digits$}", value.abs());
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut text = String::new();
    if value < 0.0 && plain.chars().any(|c| ('1'..='9').contains(&c)) {
        text.push('−');
    }
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// Formats a figure on an axis: `20k`, `1.5M`.
pub(super) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        x if x >= 1e9 => (value / 1e9, "G"),
        x if x >= 1e6 => (value / 1e6, "M"),
        x if x >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if unit.is_empty() && value.abs() >= 1000.0 {
        return number(value, 0);
    }
    format!("{text}{unit}")
}

/// Formats a percentage: `3 %`, `0.4 %`.
pub(super) fn percent(value: f64) -> String {
    let digits = usize::from(value.abs() < 9.95 && value.abs() >= 0.05);
    format!("{value:.digits$} %")
}

/// Formats a median with its interval: `20,141 ±3 %`, or with both bounds if these are far away: `310 [120, 505]`.
pub(crate) fn with_interval(median: f64, interval: Option<Interval>, digits: usize) -> String {
    let text = number(median, digits);
    match interval {
        // A figure that repeats exactly needs no interval.
        Some(Interval { low, high }) if high - low > 0.0005 * median.abs() => {
            format!("{text} {}", spread(median, low, high, digits))
        }
        _ => text,
    }
}

fn spread(median: f64, low: f64, high: f64, digits: usize) -> String {
    let side = (high - median).max(median - low);
    let share = side / median.abs();
    if share <= 0.25 {
        format!("±{}", percent(100.0 * share))
    } else {
        format!("[{}, {}]", number(low, digits), number(high, digits))
    }
}

/// Formats a ratio: `12.4×`, `1.03×`.
pub(super) fn times(ratio: f64) -> String {
    format!("{}×", bare_times(ratio))
}

fn bare_times(ratio: f64) -> String {
    match ratio.abs() {
        x if x >= 99.5 => number(ratio, 0),
        x if x >= 9.95 => number(ratio, 1),
        x if x >= 0.095 => number(ratio, 2),
        _ => number(ratio, 3),
    }
}

/// Formats a ratio with its interval: `12.4× [12.0, 12.9]`.
pub(crate) fn times_with_interval(ratio: f64, interval: Option<Interval>) -> String {
    match interval {
        Some(i) => format!("{} [{}, {}]", times(ratio), bare_times(i.low), bare_times(i.high)),
        None => times(ratio),
    }
}

/// Formats memory: `7.7 GiB`.
pub(crate) fn kib(kib: u64) -> String {
    match kib as f64 {
        x if x >= 1024.0 * 1024.0 => format!("{:.1} GiB", x / 1024.0 / 1024.0),
        x if x >= 1024.0 => format!("{:.1} MiB", x / 1024.0),
        x => format!("{x:.0} KiB"),
    }
}

/// Formats a duration: `18 min 20 s`.
pub(super) fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

/// Formats Unix milliseconds as `2026-03-01 14:05 UTC`, by the calendar algorithm of H. Hinnant (`civil_from_days`).
pub(crate) fn date(ms: u64) -> String {
    let format = time::macros::format_description!("[year]-[month]-[day] [hour]:[minute] UTC");
    let seconds = i64::try_from(ms / 1000).unwrap_or_default();
    let at = time::OffsetDateTime::from_unix_timestamp(seconds)
        .unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    at.format(format).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_thousands_apart_and_two_digits_that_say_something() {
        assert_eq!(number(20_141.4, 0), "20,141");
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
        assert_eq!(number(999.0, 0), "999");
        assert_eq!(number(3.42, 0), "3.4");
        assert_eq!(number(0.0342, 0), "0.034");
        assert_eq!(number(3.0, 0), "3");
        assert_eq!(
            [number(8.8254, 3), number(31.1014, 3), number(1234.5, 3)],
            ["8.825", "31.10", "1,234"]
        );
        assert_eq!(number(0.0, 3), "0.000");
        assert_eq!(number(-12.34, 1), "−12.3");
        assert_eq!(number(-0.0, 1), "0.0");
        assert_eq!(number(f64::NAN, 1), "–");
    }

    #[test]
    fn intervals_are_percentages_until_they_are_wide() {
        let interval = |low, high| Some(Interval { low, high });
        assert_eq!(with_interval(20_141.0, interval(19_600.0, 20_500.0), 0), "20,141 ±2.7 %");
        assert_eq!(with_interval(100.0, interval(88.0, 101.0), 0), "100 ±12 %");
        assert_eq!(with_interval(310.0, interval(120.0, 505.0), 0), "310 [120, 505]");
        assert_eq!(with_interval(7.0, interval(7.0, 7.0), 0), "7");
        assert_eq!(with_interval(0.0, interval(0.0, 0.0), 0), "0");
        assert_eq!(with_interval(7.0, None, 0), "7");
        assert_eq!(times_with_interval(12.38, interval(11.96, 12.93)), "12.4× [12.0, 12.9]");
        assert_eq!(times_with_interval(0.987, interval(0.961, 1.02)), "0.99× [0.96, 1.02]");
        assert_eq!(times(0.0123), "0.012×");
    }

    #[test]
    fn axes_are_short() {
        let shown = [0.0, 0.5, 250.0, 2500.0, 20_000.0, 1_500_000.0].map(short);
        assert_eq!(shown, ["0", "0.5", "250", "2,500", "20k", "1.5M"]);
    }

    #[test]
    fn dates_and_lengths_of_time() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_599_000), "2024-12-31 23:59 UTC");
        assert_eq!(
            [duration(7), duration(1100), duration(7260)],
            ["7 s", "18 min 20 s", "2 h 1 min"]
        );
        assert_eq!([kib(8_039_312), kib(2450), kib(12)], ["7.7 GiB", "2.4 MiB", "12 KiB"]);
    }
}
