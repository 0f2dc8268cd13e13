use std::fmt;

/// The reason why a configuration is refused, with its location and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, or `command line`.
    pub file: String,
    /// The line in the file, or the argument's position on the command line, counted from 1. It is 0 if the error
    /// concerns the whole configuration.
    pub line: usize,
    /// The directive; empty if the error concerns none in particular.
    pub directive: String,
    /// The problem.
    pub problem: String,
    /// The remedy; empty if the problem makes it clear.
    pub remedy: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        f.write_str(": ")?;
        if !self.directive.is_empty() {
            write!(f, "{}: ", self.directive)?;
        }
        f.write_str(&self.problem)?;
        if !self.remedy.is_empty() {
            write!(f, "\n  {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
