//! Messages between two processes of one program, which may carry descriptors (`SOCK_SEQPACKET`, `SCM_RIGHTS`).
//!
//! Messages arrive in order, each of them complete or not at all. The channel ends when the other process ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};

/// The maximum number of descriptors in one message: 64 queues of a device, plus a reserve. The kernel's own limit is
/// 253.
pub const MAX_DESCRIPTORS: usize = 128;

/// One end of a channel. All calls take `&self`, and none blocks except [`Channel::wait`].
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

/// The result of receiving.
#[derive(Debug)]
pub enum Received {
    /// A message with its descriptors. They are closed when another program is executed.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// The other end is closed.
    End,
}

impl Channel {
    /// Creates both ends, each with buffers for messages of `size` bytes where the system allows it.
    ///
    /// # Errors
    /// The process has no free descriptors.
    pub fn pair(size: usize) -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for fd in [&a, &b] {
            // Exceeding the system's limit needs CAP_NET_ADMIN. Twice the size, because the kernel counts its own
            // overhead too.
            let twice = size.saturating_mul(2);
            let number = libc::c_int::try_from(twice).unwrap_or(libc::c_int::MAX);
            if crate::udp::force_send_buffer(fd, number).is_err() {
                sockopt::set_socket_send_buffer_size(fd, twice)?;
            }
        }
        Ok((Self { fd: a }, Self { fd: b }))
    }

    /// Takes over a descriptor that is one end of a channel.
    ///
    /// # Errors
    /// The descriptor is not an end of a channel.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let is_end = sockopt::socket_domain(&fd)? == AddressFamily::UNIX
            && sockopt::socket_type(&fd)? == SocketType::SEQPACKET;
        if !is_end {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a channel of messages"));
        }
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd })
    }

    /// Sends one message, which must not be empty. `WouldBlock` if the other end reads too slowly.
    ///
    /// # Errors
    /// The message is too large (`EMSGSIZE`), or the other end is closed (`EPIPE`).
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.is_empty() || descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the next message; `WouldBlock` if none is pending. A message of more than `limit` bytes is removed from
    /// the queue and dropped.
    ///
    /// # Errors
    /// `InvalidData`: the message was too large or had too many descriptors.
    pub fn receive(&self, limit: usize) -> io::Result<Received> {
        let peek = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        let length = loop {
            match rustix::net::recv(&self.fd, &mut [0_u8; 1], peek) {
                Ok((_, length)) => break length,
                Err(Errno::INTR) => {}
                // The other process was killed before it read all messages.
                Err(Errno::CONNRESET) => return Ok(Received::End),
                Err(error) => return Err(error.into()),
            }
        };
        if length == 0 {
            return Ok(Received::End);
        }
        let mut bytes = vec![0; length.min(limit)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let result = rustix::net::recvmsg(
            &self.fd,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        )?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        if result.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too large"));
        }
        bytes.truncate(result.bytes);
        Ok(Received::Message(bytes, descriptors))
    }

    /// Ends sending; messages in transit still arrive.
    ///
    /// # Errors
    /// The other end is already closed.
    pub fn finish(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write)?)
    }

    /// Waits until a message may be available (or, with `writable`, space for one), but no longer than `patience`.
    ///
    /// # Errors
    /// `TimedOut` if that time passes first.
    pub fn wait(&self, writable: bool, patience: Duration) -> io::Result<()> {
        let flags = if writable { PollFlags::OUT } else { PollFlags::IN };
        let limit = Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: patience.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.fd, flags)], Some(&limit)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            // After a signal the caller checks again.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.fd
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    fn message(channel: &Channel) -> (Vec<u8>, Vec<OwnedFd>) {
        match channel.receive(1 << 20).unwrap() {
            Received::Message(bytes, descriptors) => (bytes, descriptors),
            Received::End => panic!("the end"),
        }
    }

    #[test]
    fn messages_keep_their_bounds_and_descriptors_arrive_open() {
        let (a, b) = Channel::pair(1 << 20).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        file.rewind().unwrap();
        a.send(b"one", &[file.as_fd()]).unwrap();
        a.send(&vec![7; 500_000], &[]).unwrap();
        let (bytes, descriptors) = message(&b);
        assert_eq!(bytes, b"one");
        let mut text = String::new();
        let mut same = File::from(descriptors.into_iter().next().unwrap());
        same.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        let flags = rustix::io::fcntl_getfd(&same).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let (bytes, descriptors) = message(&b);
        assert_eq!((bytes.len(), descriptors.len()), (500_000, 0));
        assert_eq!(b.receive(10).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_message_beyond_the_limit_is_dropped_and_the_next_arrives() {
        let (a, b) = Channel::pair(1 << 20).unwrap();
        a.send(&[1; 11], &[]).unwrap();
        a.send(&[2; 10], &[]).unwrap();
        assert_eq!(b.receive(10).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(message(&b).0, [2; 10]);
    }

    #[test]
    fn many_descriptors_arrive_and_too_many_are_refused() {
        let (a, b) = Channel::pair(1 << 16).unwrap();
        let file = tempfile::tempfile().unwrap();
        let many = vec![file.as_fd(); MAX_DESCRIPTORS];
        a.send(b"x", &many).unwrap();
        assert_eq!(message(&b).1.len(), MAX_DESCRIPTORS);
        let more = vec![file.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(a.send(b"x", &more).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(a.send(b"", &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn the_end_of_one_process_is_seen_by_the_other_after_its_last_message() {
        let (a, b) = Channel::pair(1 << 16).unwrap();
        a.send(b"last", &[]).unwrap();
        drop(a);
        assert_eq!(message(&b).0, b"last");
        // A process that another test has just started has the other end as well, until it runs its program.
        b.wait(false, Duration::from_secs(60)).unwrap();
        assert!(matches!(b.receive(10).unwrap(), Received::End));
        assert!(b.send(b"x", &[]).is_err());
    }

    #[test]
    fn one_side_can_end_while_the_other_still_sends() {
        let (a, b) = Channel::pair(1 << 16).unwrap();
        a.finish().unwrap();
        assert!(matches!(b.receive(10).unwrap(), Received::End));
        b.send(b"answer", &[]).unwrap();
        assert_eq!(message(&a).0, b"answer");
    }

    #[test]
    fn waiting_has_an_end() {
        let (a, b) = Channel::pair(1 << 16).unwrap();
        let soon = Duration::from_millis(5);
        assert_eq!(b.wait(false, soon).unwrap_err().kind(), io::ErrorKind::TimedOut);
        a.wait(true, Duration::from_secs(60)).unwrap();
        a.send(b"x", &[]).unwrap();
        b.wait(false, Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn other_descriptors_are_refused() {
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(Channel::from_fd(stream.into()).is_err());
        assert!(Channel::from_fd(tempfile::tempfile().unwrap().into()).is_err());
        let (a, b) = Channel::pair(1 << 16).unwrap();
        let again = Channel::from_fd(a.into()).unwrap();
        again.send(b"x", &[]).unwrap();
        assert_eq!(message(&b).0, b"x");
    }
}
