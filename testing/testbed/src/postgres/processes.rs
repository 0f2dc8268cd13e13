//! A server's processes. Each of its children is the leader of a separate session, so no group contains them all.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::{Result, ensure};
use crate::wait::ScaledInstant;

/// Returns the process and its children, itself first.
pub(super) fn tree(parent: u32) -> Vec<u32> {
    let mut found = vec![parent];
    found.extend(all().filter(|pid| parent_of(*pid) == Some(parent)));
    found
}

/// Signals a process and its children; the process comes first, so that it cannot start others meanwhile. Processes
/// that no longer exist are ignored.
pub(super) fn signal_tree(parent: u32, signal: Signal) {
    let send = |pid: u32, signal| {
        let _ = i32::try_from(pid).map(|pid| kill(Pid::from_raw(pid), signal));
    };
    // Stopped first, even before a kill, because its children can be found only while it exists.
    send(parent, Signal::SIGSTOP);
    for child in tree(parent).into_iter().skip(1) {
        send(child, signal);
    }
    send(parent, signal);
}

/// Waits until no process of an ended server remains; they are recognized by the data directory as their working
/// directory.
///
/// # Errors
/// Some are still running after `limit`.
pub(super) fn wait_without(data: &Path, limit: Duration) -> Result<()> {
    // Compared by device and inode number, because a server in a separate root has a different path to it.
    let place = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let folder = place(data)?;
    let begun = ScaledInstant::now();
    loop {
        let left: Vec<u32> = all()
            .filter(|pid| {
                place(Path::new(&format!("/proc/{pid}/cwd"))).is_ok_and(|cwd| cwd == folder)
            })
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        ensure(begun.elapsed() < limit, || {
            format!("processes {left:?} of the server in {} do not end", data.display())
        })?;
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the fourth field of `stat`; the second is a name in parentheses that may contain anything.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}
