//! Opens files as root, with explicit modes and without following other users' links.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

use super::protocol::WriteMode;

/// The maximum total length of the names in a listed directory, in bytes.
const NAMES_LIMIT: usize = 512 << 10;

/// The mode of files that contain clients, addresses or keys.
pub(super) const PRIVATE: u32 = 0o600;

/// The mode of a file that contains only a number.
pub(super) const PUBLIC: u32 = 0o644;

/// Opens a file for reading. Neither opening nor reading waits for the other end of a pipe.
pub(super) fn read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// Returns the names in a directory.
pub(super) fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut size = 0_usize;
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        size = size.saturating_add(name.len());
        if size > NAMES_LIMIT {
            return Err(io::Error::other("there are too many files in it"));
        }
        names.push(name);
    }
    Ok(names)
}

/// Opens a file for writing, and creates it with this mode if it does not exist.
pub(super) fn write(path: &Path, begin: WriteMode, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(mode).append(begin.appends());
    let file = open_careful(&options, path)?;
    // Rust does not allow `O_TRUNC` together with appending. A device or pipe need not be
    // truncated.
    if begin.empties() && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a file and follows only links that root itself has created, such as /dev/stdout or a log
/// in another place. In a directory that other users can write to, their links could make root
/// write anywhere.
fn open_careful(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NOCTTY;
    match options.clone().custom_flags(flags).open(path) {
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            let link = fs::symlink_metadata(path)?;
            let own = [0, nix::unistd::geteuid().as_raw()];
            if !own.contains(&link.uid()) {
                return Err(io::Error::other(format!(
                    "a symbolic link of another user (uid {}) is not followed",
                    link.uid()
                )));
            }
            options.clone().custom_flags(libc::O_NOCTTY).open(path)
        }
        opened => opened,
    }
}

/// Creates a file next to the one that it will replace, with the same mode and owner.
pub(super) fn fresh(path: &Path) -> io::Result<File> {
    let fresh = fresh_name(path);
    // Remove the file that a killed process left.
    let _ = fs::remove_file(&fresh);
    let former = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    let mode = former.as_ref().map_or(PRIVATE, |data| data.mode() & 0o777);
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(fresh)?;
    if let Some(former) = former {
        // The umask does not apply to the mode of an existing file.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        // The file keeps its owner, which may not be root.
        let _ = std::os::unix::fs::fchown(&file, Some(former.uid()), Some(former.gid()));
    }
    Ok(file)
}

/// Renames the file of [`fresh`] to its final name.
pub(super) fn commit(path: &Path) -> io::Result<()> {
    fs::rename(fresh_name(path), path)
}

fn fresh_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Creates an unnamed file with this content.
pub(super) fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("adit", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

impl WriteMode {
    fn appends(self) -> bool {
        matches!(self, Self::Append | Self::EmptyAppend)
    }

    fn empties(self) -> bool {
        matches!(self, Self::Empty | Self::EmptyAppend)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn files_are_made_for_their_owner_and_keep_what_they_should() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        write(&path, WriteMode::Append, PRIVATE).unwrap().write_all(b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        write(&path, WriteMode::Append, PRIVATE).unwrap().write_all(b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"onetwo");
        write(&path, WriteMode::Keep, PRIVATE).unwrap().write_all(b"TWO").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"TWOtwo");
        write(&path, WriteMode::EmptyAppend, PRIVATE).unwrap().write_all(b"x").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"x");
        write(&path, WriteMode::Empty, PRIVATE).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_link_of_another_user_is_not_followed_and_our_own_is() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "kept").unwrap();
        symlink(&target, &link).unwrap();
        write(&link, WriteMode::Empty, PRIVATE).unwrap().write_all(b"ours").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"ours");
        if nix::unistd::geteuid().is_root() {
            lchown(&link, Some(65534), None).unwrap();
            let error = write(&link, WriteMode::Empty, PRIVATE).unwrap_err();
            assert!(error.to_string().contains("symbolic link"), "{error}");
            assert_eq!(fs::read(&target).unwrap(), b"ours");
        }
    }

    #[test]
    fn a_replaced_file_keeps_mode_and_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipp.txt");
        fresh(&path).unwrap().write_all(b"one").unwrap();
        commit(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let root = nix::unistd::geteuid().is_root();
        if root {
            std::os::unix::fs::chown(&path, Some(12345), Some(12346)).unwrap();
        }
        fresh(&path).unwrap().write_all(b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one", "not yet");
        commit(&path).unwrap();
        let data = fs::metadata(&path).unwrap();
        assert_eq!((fs::read(&path).unwrap(), data.mode() & 0o777), (b"two".to_vec(), 0o640));
        assert!(!root || (data.uid(), data.gid()) == (12345, 12346));
    }

    #[test]
    fn reading_never_waits_for_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        read(&pipe).unwrap();
    }
}
