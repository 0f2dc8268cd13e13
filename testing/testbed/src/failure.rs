//! The error of all tests: a sentence, followed by logs if there are any.

use std::fmt;

/// A failed expectation or preparation, as text for a human reader.
#[derive(Debug, Clone)]
pub struct Failure(pub String);

/// The result of every fallible function in this crate.
pub type Result<T> = std::result::Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<nix::Error> for Failure {
    fn from(error: nix::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Adds the attempted operation to an error.
pub trait Context<T> {
    /// Returns `what: reason`, or only `what` for a missing value.
    ///
    /// # Errors
    /// The same failure with the added text.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| Failure(what.to_string()))
    }
}

/// Fails with `text` unless `condition` holds.
///
/// # Errors
/// The condition does not hold.
pub fn ensure(condition: bool, text: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(Failure(text())) }
}
