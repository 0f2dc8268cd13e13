//! The descriptors that other programs inherit.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

/// Closes all descriptors from `first` on when another program is executed. Those that this process was started with
/// would otherwise pass to every program that it starts.
///
/// # Errors
/// Fails on Linux before 5.11.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    let first = libc::c_uint::try_from(first).map_err(io::Error::other)?;
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_uint;
    // SAFETY: the call changes only a flag of descriptors, and closes none. It reads no memory.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
