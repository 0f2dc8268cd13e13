//! The files of a store, and the store's lock.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use adit_linux::file;
use rustix::fs::FlockOperation;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::PkiError;

/// The maximum size of a store's file that is read, in bytes.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// Replaces `path` with `content` and mode 0600. After a crash, the file holds either the old or the new content.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Several processes may write files outside a store at the same time.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    write_by(path, content, 0o600, &format!(".{}-{count}.new", std::process::id()))
}

/// Replaces a file of a store whose lock the caller holds. A file left by a killed process is overwritten by the next
/// attempt.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), PkiError> {
    write_by(path, content, mode, ".new")
}

fn write_by(path: &Path, content: &[u8], mode: u32, suffix: &str) -> Result<(), PkiError> {
    file::replace(path, content, mode, suffix).map_err(|error| PkiError::io(path, "write", error))
}

pub(crate) fn make_directory(path: &Path, mode: u32) -> Result<(), PkiError> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| PkiError::io(path, "create", error))
}

/// A function that opens a file for reading. A caller may pass one that has privileges which this process lacks.
pub type OpenFile = fn(&Path) -> std::io::Result<File>;

/// Opens a file with this process's own privileges.
pub(crate) fn open_file(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

pub(crate) fn read(path: &Path, open: OpenFile) -> Result<Zeroizing<Vec<u8>>, PkiError> {
    let fail = |error| PkiError::io(path, "read", error);
    let mut content = Zeroizing::new(Vec::new());
    let mut file = open(path).map_err(fail)?.take(MAX_FILE + 1);
    file.read_to_end(&mut content).map_err(fail)?;
    if content.len() as u64 > MAX_FILE {
        return Err(PkiError::Damaged(path.to_owned(), "it is too large".into()));
    }
    Ok(content)
}

/// Refuses a file whose layout is newer than the version `known`. The rest of such a file may have another form, so this comes first.
pub(crate) fn check_layout(path: &Path, content: &[u8], known: u32) -> Result<(), PkiError> {
    #[derive(Deserialize)]
    struct Layout {
        version: u32,
    }
    match serde_json::from_slice(content) {
        Ok(Layout { version }) if version > known => {
            Err(PkiError::Newer(path.to_owned(), version, known))
        }
        _ => Ok(()),
    }
}

pub(crate) fn read_text(path: &Path, open: OpenFile) -> Result<Zeroizing<String>, PkiError> {
    let content = read(path, open)?;
    std::str::from_utf8(&content)
        .map(|text| Zeroizing::new(text.to_owned()))
        .map_err(|_| PkiError::Damaged(path.to_owned(), "it is not text".into()))
}

/// The lock that is held while files are changed; released on drop, and by the kernel when the process dies.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code)] File);

impl Lock {
    pub(crate) fn take(path: &Path) -> Result<Self, PkiError> {
        let fail = |error| PkiError::io(path, "lock", error);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(fail)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| PkiError::io(path, "lock", error))?;
        Ok(Self(file))
    }
}
