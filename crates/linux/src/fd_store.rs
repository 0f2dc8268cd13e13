//! Descriptors that the service manager keeps for the next process of a service (`FileDescriptorStoreMax=`), and those
//! that it passes to this one (sd_listen_fds(3)).
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Resource, getrlimit};

/// The first descriptor that the service manager passes.
const FIRST: RawFd = 3;

/// The maximum number of descriptors that are taken; further ones stay open and unused.
const LIMIT: RawFd = 4096;

/// The maximum number of descriptors in a queue, whose messages fit the smallest buffer that Linux gives a socket.
pub const MAX_QUEUED: usize = 32_768;

/// The number of descriptors that a process keeps for everything else when it takes queued ones.
pub const RESERVED: usize = 256;

/// The maximum number of descriptors in one message (SCM_MAX_FD).
const PER_MESSAGE: usize = 253;

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

/// Returns how many queued descriptors a process with this one's limit of open files can take, at most [`MAX_QUEUED`].
pub fn room() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(RESERVED).min(MAX_QUEUED)
}

/// Puts descriptors into a queue in the kernel, which is a descriptor itself and keeps them open. The service manager would
/// compare each of thousands with all others, and pass their names in an environment variable of limited length.
///
/// If they do not all fit, the last ones are left out.
///
/// # Errors
/// The process has no free descriptors.
pub fn queue(descriptors: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (from, to) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The kernel lowers it to what the machine allows.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&to, 1 << 20);
    for some in descriptors.get(..MAX_QUEUED).unwrap_or(descriptors).chunks(PER_MESSAGE) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(some));
        let sent =
            rustix::net::sendmsg(&to, &[IoSlice::new(b"+")], &mut control, SendFlags::NOSIGNAL);
        if sent.is_err() {
            break;
        }
    }
    Ok(from)
}

/// Takes the descriptors of a queue, in order, and closes those beyond `most`.
pub fn take_queued(queue: &OwnedFd, most: usize) -> Vec<OwnedFd> {
    let mut taken = Vec::new();
    while taken.len() < most {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let parts = &mut [IoSliceMut::new(&mut byte)];
        let received = rustix::net::recvmsg(queue, parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        if !received.is_ok_and(|received| received.bytes > 0) {
            break;
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                taken.extend(some);
            }
        }
    }
    taken.truncate(most);
    taken
}

/// Returns a pipe's reading and writing end.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Returns the inode of an open file.
    fn inode(fd: &OwnedFd) -> u64 {
        File::from(fd.try_clone().unwrap()).metadata().unwrap().ino()
    }

    fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
        fds.iter().map(AsFd::as_fd).collect()
    }

    #[test]
    fn queued_descriptors_stay_open_and_keep_their_order() {
        let files: Vec<OwnedFd> = (0..300).map(|_| memory_file("queued").unwrap().into()).collect();
        let inodes: Vec<u64> = files.iter().map(inode).collect();
        let queue = queue(&borrowed(&files)).unwrap();
        drop(files);
        let taken = take_queued(&queue, 400);
        assert_eq!(taken.iter().map(inode).collect::<Vec<_>>(), inodes);
        assert!(take_queued(&queue, 1).is_empty());
    }

    #[test]
    fn descriptors_beyond_the_room_are_closed_from_the_end() {
        let (read, write) = pipe().unwrap();
        let files = [memory_file("queued").unwrap().into(), write];
        let first = inode(&files[0]);
        let queue = queue(&borrowed(&files)).unwrap();
        drop(files);
        let taken = take_queued(&queue, 1);
        assert_eq!(taken.iter().map(inode).collect::<Vec<_>>(), [first]);
        // The writing end of the pipe is closed.
        assert_eq!(rustix::io::read(&read, &mut [0; 1][..]).unwrap(), 0);
    }

    #[test]
    fn a_queue_holds_as_many_as_a_process_can_take() {
        let file: OwnedFd = memory_file("queued").unwrap().into();
        let most = room();
        assert!(most > PER_MESSAGE && most <= MAX_QUEUED);
        let queue = queue(&vec![file.as_fd(); most]).unwrap();
        let mut count = 0;
        loop {
            match take_queued(&queue, PER_MESSAGE).len() {
                0 => break,
                some => count += some,
            }
        }
        assert_eq!(count, most);
    }
}
