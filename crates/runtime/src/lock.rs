//! Lock files (flock), which contain the id of the process that holds them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

/// How often, and for how long at a time, [`take`] waits for [`holder`], which locks the file for a moment.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// A lock that is held. It is released on drop, and by the kernel when the process ends.
#[derive(Debug)]
pub struct LockFile(#[expect(dead_code, reason = "it holds the lock")] Flock<File>);

/// The result of [`take`].
#[derive(Debug)]
pub enum Taken {
    /// The lock is ours.
    Ours(LockFile),
    /// Another process holds it. This is its id, as the file names it.
    Held(String),
}

/// Takes a lock for the process `holder`, unless another process has it.
///
/// # Errors
/// The file cannot be opened or written.
pub fn take(path: &Path, holder: u32) -> io::Result<Taken> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)?;
    let mut other = String::new();
    let _ = file.read_to_string(&mut other);
    let mut tries = 0;
    let mut lock = loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => break lock,
            Err((unlocked, _)) if tries < TRIES => file = unlocked,
            Err(_) => return Ok(Taken::Held(other.trim().to_owned())),
        }
        tries += 1;
        thread::sleep(PAUSE);
    };
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{holder}")?;
    Ok(Taken::Ours(LockFile(lock)))
}

/// Returns the process that holds a lock, if one does.
pub fn holder(path: &Path) -> Option<u32> {
    let mut file = File::open(path).ok()?;
    let mut holder = String::new();
    file.read_to_string(&mut holder).ok()?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => None,
        Err(_) => holder.trim().parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_a_lock_and_the_file_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(holder(&path), None);
        let Taken::Ours(lock) = take(&path, 123_456).unwrap() else { panic!("held") };
        assert_eq!(holder(&path), Some(123_456));
        let Taken::Held(other) = take(&path, 7).unwrap() else { panic!("taken twice") };
        assert_eq!(other, "123456");
        drop(lock);
        assert_eq!(holder(&path), None);
        // The next number is shorter.
        let Taken::Ours(_lock) = take(&path, 7).unwrap() else { panic!("held") };
        assert_eq!(holder(&path), Some(7));
    }
}
