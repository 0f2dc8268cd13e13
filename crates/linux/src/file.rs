//! Atomic replacement of files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

/// How often a temporary file is opened again because another writer has renamed or removed it in the meantime. Each time, one of them has
/// succeeded.
const ATTEMPTS: usize = 1000;

/// Replaces `path` with `content` and exactly this mode, through a file next to it whose name has `suffix` appended. Several processes
/// may do so at once; the last one determines the content.
///
/// # Errors
/// The file or its directory cannot be written; `path` is then unchanged.
pub fn replace(path: &Path, content: &[u8], mode: u32, suffix: &str) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(suffix);
    let temporary = PathBuf::from(temporary);
    let mut file = lock(&temporary)?;
    let written = (|| {
        file.set_len(0)?;
        file.write_all(content)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    if let Err(error) = written {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory(directory)
}

/// Opens a temporary file that no other process is writing, and locks it until it is closed. A file that another process has left
/// behind is used again if it belongs to this user alone, and removed otherwise.
fn lock(temporary: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // No other program can open it, and hold the lock, before it is complete.
    options.write(true).mode(0o600);
    for _ in 0..ATTEMPTS {
        let opened = match options.clone().create_new(true).open(temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Neither follows a link nor waits for the reader of a pipe.
                let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
                options.clone().custom_flags(flags.cast_signed()).open(temporary)
            }
            created => Ok(created?),
        };
        let file = match opened {
            Ok(file) => file,
            // Another writer has renamed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => {
                remove(temporary)?;
                continue;
            }
        };
        let data = file.metadata()?;
        if !data.is_file() || data.uid() != rustix::process::geteuid().as_raw() || data.nlink() > 1
        {
            remove(temporary)?;
            continue;
        }
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        // The previous holder of the lock has renamed or removed it.
        let still = std::fs::symlink_metadata(temporary);
        if still.is_ok_and(|still| (still.dev(), still.ino()) == (data.dev(), data.ino())) {
            return Ok(file);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "other processes keep replacing it"))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes renames in `directory` survive a power failure.
///
/// # Errors
/// The directory cannot be opened or synchronised.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn several_writers_at_once_all_succeed_and_one_content_stays_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for letter in *b"abcd" {
                let (path, start) = (&path, &start);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..50 {
                        replace(path, &vec![letter; 10_000 + usize::from(letter)], 0o640, ".new")
                            .unwrap();
                    }
                });
            }
        });
        let content = std::fs::read(&path).unwrap();
        assert!(content.iter().all(|byte| *byte == content[0]));
        assert_eq!(content.len(), 10_000 + usize::from(content[0]));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_left_behind_neither_stops_a_writer_nor_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (path, left) = (folder.path().join("file"), folder.path().join("file.new"));
        let other = folder.path().join("other");
        std::fs::write(&other, "other").unwrap();
        let leave: [&dyn Fn(); 4] = [
            &|| std::fs::write(&left, "longer than the content").unwrap(),
            &|| std::os::unix::fs::symlink(&other, &left).unwrap(),
            &|| std::fs::hard_link(&other, &left).unwrap(),
            &|| nix::unistd::mkfifo(&left, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        ];
        for leave in leave {
            leave();
            replace(&path, b"content", 0o600, ".new").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"content");
            assert_eq!(std::fs::read(&other).unwrap(), b"other");
            assert!(!left.exists());
            std::fs::remove_file(&path).unwrap();
        }
    }
}
