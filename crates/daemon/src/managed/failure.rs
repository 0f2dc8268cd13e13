use std::fmt;
use std::io;
use std::path::Path;

/// Whose fault it is that something could not be done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Something was asked for, or written in a file, that cannot be.
    Operator,
    /// The machine lacks something: rights, a device, a program, a free port.
    Environment,
    /// A mistake of ours.
    Ours,
}

/// Why a command failed, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whose fault.
    pub fault: Fault,
    /// What failed, as a sentence without a full stop.
    pub what: String,
    /// What to do, where we know.
    pub remedy: Option<String>,
}

/// The result of everything a command does.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// The operator asked for what cannot be.
    pub fn operator(what: impl Into<String>) -> Self {
        Self { fault: Fault::Operator, what: what.into(), remedy: None }
    }

    /// The machine lacks something.
    pub fn environment(what: impl Into<String>) -> Self {
        Self { fault: Fault::Environment, what: what.into(), remedy: None }
    }

    /// A mistake of ours.
    pub fn ours(what: impl Into<String>) -> Self {
        Self { fault: Fault::Ours, what: what.into(), remedy: None }
    }

    /// A file operation failed. `doing` reads like "cannot write".
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let failure = Self::environment(format!("{doing} {}: {error}", path.display()));
        match error.kind() {
            io::ErrorKind::PermissionDenied => failure.remedy("run it as root: sudo adit ..."),
            io::ErrorKind::StorageFull => failure.remedy("free some space on that file system"),
            _ => failure,
        }
    }

    /// Adds what to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The exit code: 2 for usage and configuration, else 1.
    pub fn exit_code(&self) -> u8 {
        match self.fault {
            Fault::Operator => 2,
            Fault::Environment | Fault::Ours => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fault == Fault::Ours {
            f.write_str("a mistake in adit: ")?;
        }
        f.write_str(&self.what)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n  remedy: {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}
