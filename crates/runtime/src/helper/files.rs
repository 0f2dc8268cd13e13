//! Opens the files of the configuration, in this process or, if it lacks the permission, in the helper.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub use super::protocol::WriteMode;
use super::protocol::{Answer, Problem, Request};
use super::{current, root_files};
use crate::fault::Fault;

/// Whether this process has another root directory than its helper, so that paths mean other files in it.
static IN_ROOT: AtomicBool = AtomicBool::new(false);

/// Leaves all files to the helper from now on, because this process has changed its root directory.
pub(crate) fn leave_to_helper() {
    IN_ROOT.store(true, Ordering::Relaxed);
}

/// Opens something in this process, which may lack the permission.
fn here<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if IN_ROOT.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    open()
}

/// Opens a file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    match here(|| File::open(path)) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => match current() {
            Some(helper) => one(helper.call(Request::Read(path.to_owned()), &[])),
            None => Err(e),
        },
        opened => opened,
    }
}

/// Reads a file.
pub fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Does the same as [`open`], but without waiting for the other end of a pipe.
pub fn open_at_once(path: &Path) -> io::Result<File> {
    match here(|| root_files::read(path)) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => match current() {
            Some(helper) => one(helper.call(Request::Read(path.to_owned()), &[])),
            None => Err(e),
        },
        opened => opened,
    }
}

/// Returns the size, times and inode of a file.
pub fn metadata(path: &Path) -> io::Result<fs::Metadata> {
    match here(|| fs::metadata(path)) {
        // The file is in a directory that this user cannot access.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => open(path)?.metadata(),
        data => data,
    }
}

/// Returns the names in a directory.
pub fn list(path: &Path) -> io::Result<Vec<String>> {
    match here(|| root_files::list(path)) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => match current() {
            Some(helper) => match helper.call(Request::List(path.to_owned()), &[])?.0 {
                Answer::Names(names) => Ok(names),
                _ => Err(unexpected()),
            },
            None => Err(e),
        },
        listed => listed,
    }
}

/// Opens a file for writing. If there is a helper, it opens the file, so that no file is owned by the user of the
/// network process.
pub fn write(path: &Path, begin: WriteMode) -> io::Result<File> {
    match current() {
        Some(helper) => one(helper.call(Request::Write { path: path.to_owned(), begin }, &[])),
        None => root_files::write(path, begin, root_files::PRIVATE),
    }
}

/// Opens and empties a world-readable file, before the helper exists.
pub fn write_public(path: &Path) -> io::Result<File> {
    root_files::write(path, WriteMode::Empty, root_files::PUBLIC)
}

/// Replaces a file atomically.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    match current() {
        Some(helper) => {
            let mut file: File = one(helper.call(Request::Replace(path.to_owned()), &[]))?;
            file.write_all(bytes)?;
            file.sync_all()?;
            Ok(helper.call(Request::Commit(path.to_owned()), &[]).map(drop)?)
        }
        None => {
            let mut file = root_files::fresh(path)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            root_files::commit(path)
        }
    }
}

/// Removes a file that this process has created.
pub fn remove(path: &Path) -> io::Result<()> {
    match current() {
        Some(helper) => Ok(helper.call(Request::Remove(path.to_owned()), &[]).map(drop)?),
        None => fs::remove_file(path),
    }
}

/// Opens the control socket, whose directory belongs to root.
pub fn control(path: &Path) -> Result<UnixListener, Fault> {
    match current() {
        Some(helper) => {
            let outcome = helper.call(Request::Control(path.to_owned()), &[])?;
            let descriptor = outcome.1.into_iter().next();
            descriptor.map(UnixListener::from).ok_or_else(|| Fault::ours(unexpected().to_string()))
        }
        None => crate::control::bind(path),
    }
}

fn one(outcome: Result<(Answer, Vec<OwnedFd>), Problem>) -> io::Result<File> {
    let (_, descriptors) = outcome?;
    descriptors.into_iter().next().map(File::from).ok_or_else(unexpected)
}

fn unexpected() -> io::Error {
    io::Error::other("helper: invalid answer")
}
