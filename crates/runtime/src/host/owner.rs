//! The process and network namespace that a file of /run/adit belongs to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adit_linux::netns;

/// A file that a process keeps in the folder.
pub(super) struct StateFile {
    pub(super) path: PathBuf,
    pub(super) pid: u32,
}

/// Returns the files of a folder that are named PID-NUMBER-NAMESPACE and `suffix`, for one namespace, including those
/// without a namespace in their names.
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

/// Identifies the network namespace of the calling thread, which is what counts for netlink: by its cookie, since a new
/// namespace may have the inode of one that is gone, and would inherit its kill switch. By the inode on Linux before 5.14.
pub(super) fn namespace() -> u64 {
    netns::cookie()
        .unwrap_or_else(|_| fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.ino()))
}

/// Returns when a process began, in clock ticks since boot (field 22 of /proc/PID/stat); `None` for a process that is
/// gone, even if its parent has not noticed.
pub(super) fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
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
        // Its end closes the pipe, a moment before it is a zombie.
        std::io::Read::read_to_end(&mut child.stdout.take().unwrap(), &mut Vec::new()).unwrap();
        while began(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
