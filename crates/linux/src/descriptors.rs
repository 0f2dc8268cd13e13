//! The descriptors that other programs inherit.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

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

/// Makes a program inherit these descriptors under the numbers from `first` on.
///
/// # Errors
/// The process has no free descriptors.
pub fn inherit_from(command: &mut Command, first: RawFd, fds: Vec<OwnedFd>) -> io::Result<()> {
    let count = RawFd::try_from(fds.len()).map_err(io::Error::other)?;
    let end = first.saturating_add(count);
    // Beyond the numbers that are assigned below, so that none is overwritten before it is used.
    let moved: Vec<OwnedFd> = fds
        .into_iter()
        .map(|fd| Ok(rustix::io::fcntl_dupfd_cloexec(fd, end)?))
        .collect::<io::Result<_>>()?;
    // SAFETY: between fork and exec the closure makes system calls on descriptors that it owns; it allocates nothing
    // and takes no lock.
    unsafe {
        command.pre_exec(move || {
            for (number, fd) in (first..).zip(&moved) {
                // A duplicate is not closed at exec.
                if libc::dup2(fd.as_raw_fd(), number) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_program_inherits_descriptors_in_order() {
        let file = |text: &str| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            OwnedFd::from(file)
        };
        let mut command = Command::new("cat");
        command.args(["/proc/self/fd/3", "/proc/self/fd/4", "/proc/self/fd/5"]);
        inherit_from(&mut command, 3, ["a", "b", "c"].map(file).into()).unwrap();
        assert_eq!(command.output().unwrap().stdout, b"abc");
    }
}
