//! Descriptors that the service manager keeps for the next process of a service (`FileDescriptorStoreMax=`), and those
//! that it passes to this one (sd_listen_fds(3)).
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;

/// The first descriptor that the service manager passes.
const FIRST: RawFd = 3;

/// The maximum number of descriptors that are taken; further ones stay open and unused.
const LIMIT: RawFd = 4096;

/// Takes the descriptors that the service manager passed to this process, with their names. They are closed when
/// another program is executed. A second call returns none.
pub fn inherited() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok()?.parse::<RawFd>().ok();
    let ours = number("LISTEN_PID").and_then(|pid| u32::try_from(pid).ok());
    if ours != Some(std::process::id()) || TAKEN.swap(true, Relaxed) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or_default().clamp(0, LIMIT);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut taken = Vec::new();
    for number in FIRST..FIRST.saturating_add(count) {
        let name = names.next().unwrap_or_default().to_owned();
        // SAFETY: The descriptor is only borrowed for this call, which fails if it is not open.
        let is_open = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_setfd(is_open, FdFlags::CLOEXEC).is_ok() {
            // SAFETY: The descriptor is open, as the call above has shown. The service manager passed it to this
            // process, and `TAKEN` ensures that it gets only one owner.
            taken.push((name, unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    taken
}

/// Creates a file that exists only in memory, and disappears with its last descriptor.
///
/// # Errors
/// The process has no free descriptors.
pub fn memory_file(name: &str) -> io::Result<File> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

/// Returns a pipe's reading and writing end.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}
