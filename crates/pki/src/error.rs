use std::path::{Path, PathBuf};

use ipnet::IpNet;

/// An error of a store. Each text names the fault and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// There is no store in this directory.
    #[error("{0}: no server was set up here; run `adit server init` first")]
    NotInitialised(PathBuf),
    /// A store already exists.
    #[error(
        "{0}: a server was set up here before; remove that directory to start over (every client needs a new profile then)"
    )]
    AlreadyInitialised(PathBuf),
    /// A store exists, but one of its files is missing.
    #[error(
        "{0} is missing, although a server was set up here: restore the whole folder from a backup, or remove it to start over (every client needs a new profile then)"
    )]
    Incomplete(PathBuf),
    /// A later version of this program has written a file in a layout that this one does not know.
    #[error(
        "{0}: written by a newer version of adit (layout {1}, and this version knows {2}): run that version again; nothing was changed"
    )]
    Newer(PathBuf, u32, u32),
    /// A client's name has a character that is not allowed, or is too long or too short.
    #[error(
        "client name {0:?}: {1}; use 1 to 64 of A-Z a-z 0-9 . _ @ - and begin with a letter or digit"
    )]
    BadName(String, &'static str),
    /// A server's name, host or lifetime cannot be used in a certificate or a profile.
    #[error("{0}: {1}")]
    BadSetting(&'static str, String),
    /// A client with that name already exists.
    #[error("there is a client {0} already; `adit server client renew {0}` gives it a new profile")]
    Exists(String),
    /// No client has that name.
    #[error("there is no client {0}; list them with: adit server client list")]
    Unknown(String),
    /// The client was revoked permanently.
    #[error(
        "client {0} was revoked, which cannot be undone; `adit server client add {0}` makes a new one"
    )]
    Revoked(String),
    /// The address belongs to another client.
    #[error("address {0} already belongs to client {1}; choose another")]
    AddressTaken(std::net::IpAddr, String),
    /// A network overlaps one that is behind another client.
    #[error("network {0} overlaps {1}, which is behind client {2}; choose another")]
    NetworkTaken(IpNet, IpNet, String),
    /// The certificates of a client that was renamed have this name.
    #[error("client {1} was added as {0}, and its certificates keep that name; choose another")]
    NameReserved(String, String),
    /// A user may log in with this client only.
    #[error(
        "user {1} may log in only with client {0}; bind the user to another client first (adit server user bind {1} CLIENT), or delete the user"
    )]
    OnlyClientOf(String, String),
    /// There are as many revoked certificates of deleted clients as the registry keeps.
    #[error(
        "{0} certificates of deleted clients are the most that one server keeps; revoke the client instead"
    )]
    DeletedFull(usize),
    /// The registry is full.
    #[error("{0} clients are the most that one server keeps")]
    Full(usize),
    /// A user's name has a character that is not allowed, or is too long or too short.
    #[error(
        "user name {0:?}: {1}; use 1 to 64 of A-Z a-z 0-9 . _ @ - and begin with a letter or digit"
    )]
    BadUserName(String, &'static str),
    /// A password cannot be used.
    #[error("the password cannot be used: {0}; choose another")]
    BadPassword(&'static str),
    /// A user with that name already exists.
    #[error("there is a user {0} already; change the password with: adit server user passwd {0}")]
    UserExists(String),
    /// No user has that name.
    #[error("there is no user {0}; list them with: adit server user list")]
    UnknownUser(String),
    /// The file of users is full.
    #[error("{0} users are the most that one server keeps")]
    UsersFull(usize),
    /// A file could not be read or written.
    #[error("{path}: cannot {action}: {error}{}", hint(action, error))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed: `read`, `write`, `lock`.
        action: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
    /// A file of the store does not have the format that this program writes.
    #[error("{0}: damaged or written by another program ({1}); restore it from a backup")]
    Damaged(PathBuf, String),
    /// The cryptographic library failed.
    #[error("cannot make a certificate: {0}")]
    Crypto(String),
}

impl PkiError {
    pub(crate) fn io(path: &Path, action: &'static str, error: impl Into<std::io::Error>) -> Self {
        Self::Io { path: path.to_owned(), action, error: error.into() }
    }
}

fn hint(action: &str, error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::PermissionDenied => " (run it as root)",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => " (make room on that file system)",
        ErrorKind::ReadOnlyFilesystem => " (make that file system writable)",
        ErrorKind::NotFound if ["read", "lock"].contains(&action) => {
            " (restore the whole folder of the server from a backup)"
        }
        _ => "",
    }
}
