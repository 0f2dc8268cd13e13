//! Reads the values of variables.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;

use super::Reason;
use super::variables::Value;

/// The value of a variable in the form in which it is set.
pub(super) struct Read<'a> {
    pub(super) value: Cow<'a, str>,
    /// The number that replaces one out of range.
    pub(super) limited: Option<i64>,
}

impl Value {
    /// Reads a value as tinc does: what follows a number has no effect.
    pub(super) fn read(self, text: &str) -> Result<Read<'_>, Reason> {
        let as_it_is = Read { value: Cow::Borrowed(text), limited: None };
        match self {
            Self::Text | Self::Optional => Ok(as_it_is),
            Self::Flag => yes_or_no(text).map(|_| as_it_is),
            Self::Number { min, max } => {
                let found = leading_number(text).ok_or_else(|| refused(text, "a number"))?;
                let used = found.clamp(min, max);
                let limited = Some(used).filter(|used| *used != found);
                Ok(Read { value: Cow::Owned(used.to_string()), limited })
            }
        }
    }
}

/// Returns the number that a text begins with; one that is too large becomes the largest.
fn leading_number(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1_i64, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let digits = digits.get(..end).filter(|digits| !digits.is_empty())?;
    Some(digits.parse::<i64>().unwrap_or(i64::MAX).saturating_mul(sign))
}

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

/// Splits a value into a host and a port of at least `min`.
pub(super) fn host_and_port(value: &str, min: u16) -> Result<(&str, Option<u16>), Reason> {
    let allowed = "HOST or HOST PORT";
    let mut words = value.split_whitespace();
    let (Some(host), port, None) = (words.next(), words.next(), words.next()) else {
        return Err(refused(value, allowed));
    };
    let port = port.map(|port| number(port, min..=u16::MAX, "a port up to 65535")).transpose()?;
    Ok((host, port))
}
