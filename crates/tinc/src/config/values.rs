//! Reads the values of variables.

use std::str::FromStr;
use std::time::Duration;

use super::Reason;

pub(super) fn refused(value: &str, allowed: &'static str) -> Reason {
    Reason::Value { value: value.to_owned(), allowed }
}

/// Reads `yes` or `no`, in any case.
pub(super) fn yes_or_no(value: &str) -> Result<bool, Reason> {
    choice(value, &[("yes", true), ("no", false)], "yes or no")
}

/// Reads one of several words, in any case.
pub(super) fn choice<T: Copy>(
    value: &str,
    choices: &[(&str, T)],
    allowed: &'static str,
) -> Result<T, Reason> {
    let found = choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(value));
    found.map(|(_, choice)| *choice).ok_or_else(|| refused(value, allowed))
}

/// Reads a number within a range.
pub(super) fn number<T: FromStr + PartialOrd>(
    value: &str,
    range: std::ops::RangeInclusive<T>,
    allowed: &'static str,
) -> Result<T, Reason> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| refused(value, allowed))
}

/// Reads a number of seconds, at least one.
pub(super) fn seconds(value: &str) -> Result<Duration, Reason> {
    number(value, 1..=i32::MAX.unsigned_abs(), "a number of seconds from 1")
        .map(|seconds| Duration::from_secs(u64::from(seconds)))
}

/// Splits a value into a host and a port.
pub(super) fn host_and_port(value: &str) -> Result<(&str, Option<u16>), Reason> {
    let allowed = "HOST or HOST PORT";
    let mut words = value.split_whitespace();
    let (Some(host), port, None) = (words.next(), words.next(), words.next()) else {
        return Err(refused(value, allowed));
    };
    let port = port.map(|port| number(port, 1..=u16::MAX, "a port from 1 to 65535")).transpose()?;
    Ok((host, port))
}
