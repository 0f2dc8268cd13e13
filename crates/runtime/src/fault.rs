//! Errors that end the program, with the party at fault.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// The party that can fix a [`Fault`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Blame {
    /// The operator, for usage, configuration and files: exit code 2.
    Operator,
    /// The host or the network: exit code 1.
    Environment,
    /// The far end: exit code 1.
    Peer,
    /// A mistake of ours: exit code 1.
    Ours,
}

/// An error that ends the program. It is one sentence with the cause and, if there is one, the
/// remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    blame: Blame,
    message: String,
}

impl Fault {
    /// Blames the operator, because the configuration or a file that it names is wrong.
    pub fn operator(message: impl Into<String>) -> Self {
        Self { blame: Blame::Operator, message: message.into() }
    }

    /// Blames the environment, because of an error of the host or the network.
    pub fn environment(message: impl Into<String>) -> Self {
        Self { blame: Blame::Environment, message: message.into() }
    }

    /// Blames the peer, which ended the connection.
    pub fn peer(message: impl Into<String>) -> Self {
        Self { blame: Blame::Peer, message: message.into() }
    }

    /// Creates the fault for a bug in this program.
    pub fn ours(message: impl Into<String>) -> Self {
        Self { blame: Blame::Ours, message: message.into() }
    }

    /// Returns the fault for a settings file that is not TOML or lacks required keys, with the
    /// line.
    pub fn in_toml(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |text| text.matches('\n').count().saturating_add(1));
        Self::in_line(path, line, error.message())
    }

    /// Returns the fault for a wrong line in a file.
    pub fn in_line(path: &Path, line: usize, message: &str) -> Self {
        Self::operator(format!("{} line {line}: {}", path.display(), message.trim()))
    }

    /// Returns the party to blame.
    pub fn blame(&self) -> Blame {
        self.blame
    }

    /// Returns 2 for usage and configuration, 1 for everything else.
    pub fn exit_code(&self) -> ExitCode {
        match self.blame {
            Blame::Operator => ExitCode::from(2),
            Blame::Environment | Blame::Peer | Blame::Ours => ExitCode::from(1),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

/// Returns the fault for a failed file operation. `doing` is a phrase such as "cannot write".
pub fn file_fault(doing: &str, path: &Path, error: &io::Error) -> Fault {
    let what = format!("{doing} {}: {error}", path.display());
    Fault::environment(match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{what}; run it as root: sudo adit ..."),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("{what}; free some space on that file system")
        }
        io::ErrorKind::ReadOnlyFilesystem => format!("{what}; make that file system writable"),
        _ => what,
    })
}
