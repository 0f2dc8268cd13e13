//! Temporary files that are exchanged with programs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::libc;
use zeroize::Zeroizing;

use super::MAX_FILE;
use super::child::Identity;
use super::protocol::{Base64, FileContent};
use crate::random;

/// The mode of the files: their owner's alone.
const MODE: u32 = 0o600;

/// The time and size of a file, which change with its content.
type Stamp = (i64, i64, u64);

/// A temporary file. It is removed when it is dropped.
#[derive(Debug)]
pub(super) struct TemporaryFile {
    path: PathBuf,
    seen: Stamp,
    /// The user to whom the file belongs, if it is another one than that of this process.
    owner: Option<u32>,
}

impl TemporaryFile {
    /// Creates a file with a name that cannot be guessed, for a program with this identity.
    pub(super) fn create(
        folder: &Path,
        content: &[u8],
        identity: Option<Identity>,
    ) -> io::Result<Self> {
        let random: [u8; 16] = random::bytes().map_err(|e| io::Error::other(e.to_string()))?;
        let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = folder.join(format!("openvpn_{random}.tmp"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path)?;
        // From here on, an error removes the file.
        let owner = identity.map(Identity::user);
        let mut this = Self { path, seen: (0, 0, 0), owner };
        file.write_all(content)?;
        if let Some(identity) = identity {
            fchown(&file, Some(identity.user()), identity.group())?;
        }
        this.seen = stamp(&file);
        Ok(this)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file. A file that the program has removed is empty.
    pub(super) fn read(&mut self) -> FileContent {
        let path = self.path.clone();
        let Ok(file) = self.open() else { return FileContent { path, ..FileContent::default() } };
        self.seen = stamp(&file);
        let mut bytes = Zeroizing::new(Vec::new());
        // Keep what could be read.
        let _ = file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes);
        let truncated = bytes.len() > MAX_FILE;
        bytes.truncate(MAX_FILE);
        FileContent { path, bytes: Base64(bytes), truncated }
    }

    /// Reads the file if it has changed since the last time.
    pub(super) fn changed(&mut self) -> Option<FileContent> {
        let now = self.open().map(|file| stamp(&file)).ok()?;
        (now != self.seen).then(|| self.read())
    }

    /// Opens the file, but neither the target of a link nor a pipe that would block.
    fn open(&self) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        let data = file.metadata()?;
        // In a directory of that user, it could be a hard link to a file of another one.
        let own = self.owner.is_none_or(|owner| data.uid() == owner);
        if data.is_file() && own { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // The program may have removed it.
        let _ = fs::remove_file(&self.path);
    }
}

fn stamp(file: &File) -> Stamp {
    let data = file.metadata();
    data.map_or((0, 0, 0), |data| (data.mtime(), data.mtime_nsec(), data.size()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_its_owners_alone_and_goes_with_its_value() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = TemporaryFile::create(folder.path(), b"secret", None).unwrap();
        let path = file.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(*file.read().bytes.0, b"secret");
        drop(file);
        assert!(!path.exists());
        assert!(TemporaryFile::create(&folder.path().join("none"), b"", None).is_err());
    }

    #[test]
    fn a_change_is_seen_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = TemporaryFile::create(folder.path(), b"", None).unwrap();
        assert_eq!(file.changed(), None);
        fs::write(file.path(), "1").unwrap();
        assert_eq!(*file.changed().unwrap().bytes.0, b"1");
        assert_eq!(file.changed(), None);
        fs::remove_file(file.path()).unwrap();
        assert_eq!(file.changed(), None);
        assert!(file.read().bytes.0.is_empty());
    }

    #[test]
    fn a_long_file_is_cut_and_links_and_pipes_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut file =
            TemporaryFile::create(folder.path(), &vec![b'x'; MAX_FILE + 1], None).unwrap();
        let content = file.read();
        assert_eq!((content.bytes.0.len(), content.truncated), (MAX_FILE, true));
        fs::remove_file(file.path()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", file.path()).unwrap();
        assert!(file.read().bytes.0.is_empty());
        fs::remove_file(file.path()).unwrap();
        nix::unistd::mkfifo(file.path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(file.read().bytes.0.is_empty());
    }

    #[test]
    fn another_users_file_in_its_place_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = TemporaryFile::create(folder.path(), b"own", None).unwrap();
        file.owner = Some(nix::unistd::geteuid().as_raw());
        assert_eq!(*file.read().bytes.0, b"own");
        file.owner = Some(nix::unistd::geteuid().as_raw() + 1);
        assert!(file.read().bytes.0.is_empty());
    }
}
