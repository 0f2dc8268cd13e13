//! Determines the process and network namespace to which a file in /run/adit belongs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adit_linux::netns;

/// A file that a process keeps in the directory.
pub(super) struct StateFile {
    pub(super) path: PathBuf,
    pub(super) pid: u32,
}

/// Returns the files in a directory whose names are PID-NUMBER-NAMESPACE and `suffix`, for one namespace. Includes
/// those without a namespace in their names.
pub(super) fn files(
    folder: &Path,
    suffix: &'static str,
    namespace: u64,
) -> impl Iterator<Item = StateFile> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(move |entry| {
        let name = entry.file_name();
        let mut parts = name.to_str()?.strip_suffix(suffix)?.split('-');
        let pid = parts.next()?.parse().ok()?;
        let other = parts.nth(1).is_some_and(|part| part.parse() != Ok(namespace));
        (!other).then(|| StateFile { path: entry.path(), pid })
    })
}

/// Returns an id of the calling thread's network namespace, which is the one that netlink uses. It is the cookie,
/// because a new namespace may reuse the inode of an old one and would inherit its kill switch. On Linux before 5.14 it
/// is the inode.
pub(super) fn namespace() -> u64 {
    netns::cookie()
        .unwrap_or_else(|_| fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.ino()))
}

/// Returns the start time of a process in clock ticks since boot (field 22 of /proc/PID/stat). Returns `None` for a
/// process that has ended, even if its parent has not noticed.
pub(super) fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if fields.next().is_none_or(|state| matches!(state, "Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ended_and_was_not_waited_for_is_gone() {
        use std::process::{Command, Stdio};
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        assert!(began(child.id()).is_some());
        drop(child.stdin.take());
        // The end of the process closes the pipe, shortly before the process is a zombie.
        std::io::Read::read_to_end(&mut child.stdout.take().unwrap(), &mut Vec::new()).unwrap();
        while began(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
