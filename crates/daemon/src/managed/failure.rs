use std::io;
use std::path::Path;

use crate::fault::Fault;

/// The result of everything a command does.
pub type Outcome<T> = Result<T, Fault>;

/// A file operation failed. `doing` reads like "cannot write".
pub(super) fn file_fault(doing: &str, path: &Path, error: &io::Error) -> Fault {
    let what = format!("{doing} {}: {error}", path.display());
    Fault::environment(match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{what}; run it as root: sudo adit ..."),
        io::ErrorKind::StorageFull => format!("{what}; free some space on that file system"),
        _ => what,
    })
}
