use std::fmt;

/// Why a configuration is refused. Always the operator's: it names the place and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, or `command line`.
    pub file: String,
    /// The line in it, from 1; for the command line the number of the argument; 0 where the whole
    /// configuration is meant.
    pub line: usize,
    /// The directive; empty where none can be named.
    pub directive: String,
    /// The problem.
    pub problem: String,
    /// The remedy; empty if the problem says it.
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
