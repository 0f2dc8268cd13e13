//! The two ends of a bridge.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::sync::Arc;

use adit_linux::packet::{FrameBatch, PacketError, PacketSocket};
use adit_linux::tun::{
    NAME_MAX, TunDevice, TunError, TunMode, TunOffloads, TunOptions, TunQueue, VNET_LEN,
};

/// The prefix of a TAP device that the bridge creates.
const TAP: &str = "tap:";

/// One of the two ports.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first port.
    A,
    /// The second port.
    B,
}

impl Side {
    /// Both ports.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Returns 0 or 1.
    pub fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }

    /// Returns the opposite side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// The description of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// An existing interface.
    Existing(String),
    /// A TAP device, created by the bridge and removed with it.
    Tap(String),
}

impl PortSpec {
    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Existing(name) | Self::Tap(name) => name,
        }
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Existing(name) => f.write_str(name),
            Self::Tap(name) => write!(f, "{TAP}{name}"),
        }
    }
}

impl FromStr for PortSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, tap) = match text.strip_prefix(TAP) {
            Some(name) => (name, true),
            None => (text, false),
        };
        let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'%' | b'\\');
        let fits = (1..=NAME_MAX).contains(&name.len()) && name != "." && name != "..";
        if !fits || !name.bytes().all(plain) {
            return Err(format!(
                "{name:?} cannot be an interface name; write eth1 for an interface that exists, or \
                 tap:private for a TAP to be made (1 to {NAME_MAX} letters, digits, '-', '_', '.')"
            ));
        }
        let name = name.to_owned();
        Ok(if tap { Self::Tap(name) } else { Self::Existing(name) })
    }
}

/// The reason why a port could not be opened.
#[derive(Debug)]
pub enum PortError {
    /// The TAP device could not be opened.
    Tap(TunError),
    /// The packet socket could not be opened.
    Packet(PacketError),
}

impl PortError {
    /// Returns whether the port's interface does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Packet(PacketError::NoInterface(_)))
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(e) => e.fmt(f),
            Self::Packet(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for PortError {}

/// An open port: one queue for each worker.
#[derive(Debug)]
pub struct Port {
    /// The interface's name.
    pub name: String,
    /// The interface's index.
    pub index: u32,
    /// The work that the kernel leaves undone in the frames of a TAP device. For a packet socket this is all of it,
    /// because the socket gets frames in the form in which the interface has them.
    pub offloads: TunOffloads,
    /// The queues.
    pub queues: Vec<Arc<Queue>>,
}

impl Port {
    /// Creates a TAP device that is down.
    ///
    /// # Errors
    /// The same as [`TunDevice::open`].
    pub fn tap(name: &str, queues: usize, offloads: TunOffloads) -> Result<Self, PortError> {
        let options = TunOptions {
            name: Some(name.to_owned()),
            queues,
            flow_queues: 1,
            offloads,
            mode: TunMode::Tap,
        };
        TunDevice::open(&options).map(Self::from).map_err(PortError::Tap)
    }

    /// Opens packet sockets on an interface.
    ///
    /// # Errors
    /// The same as [`PacketSocket::open`].
    pub fn existing(name: &str, index: u32, queues: usize) -> Result<Self, PortError> {
        let sockets = PacketSocket::open(index, queues).map_err(PortError::Packet)?;
        Ok(Self::of_sockets(name.to_owned(), index, sockets))
    }

    /// Creates a port from open packet sockets.
    pub fn of_sockets(name: String, index: u32, sockets: Vec<PacketSocket>) -> Self {
        let queues = sockets.into_iter().map(|socket| Arc::new(Queue::Packet(socket))).collect();
        Self { name, index, offloads: TunOffloads::ALL, queues }
    }
}

/// Creates a port from an open TAP device.
impl From<TunDevice> for Port {
    fn from(device: TunDevice) -> Self {
        Self {
            name: device.name,
            index: device.ifindex,
            offloads: device.offloads,
            queues: device.queues.into_iter().map(|queue| Arc::new(Queue::Tap(queue))).collect(),
        }
    }
}

/// One worker's queue of a port.
#[derive(Debug)]
pub enum Queue {
    /// A queue of a TAP device.
    Tap(TunQueue),
    /// A packet socket.
    Packet(PacketSocket),
}

/// The meaning of an error of a queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueError {
    /// No frame is available, or there is no space.
    WouldBlock,
    /// One frame could not be received or sent; the next one may be.
    Frame(FrameError),
    /// The interface is switched off.
    Down,
    /// The queue is no longer usable.
    Lost,
}

/// The reason why the kernel did not accept a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// The kernel cannot describe the frame, or refuses its header.
    Refused,
    /// The frame is longer than the interface's MTU.
    TooLong,
    /// The interface's own queue is full, or memory is short.
    Full,
}

impl Queue {
    /// Receives a burst: from a TAP device, up to `most` frames or until they have this many bytes; from a socket, as
    /// many frames as the batch has room for.
    pub(crate) fn receive(
        &self,
        batch: &mut FrameBatch,
        most: usize,
        bytes: usize,
    ) -> Result<usize, QueueError> {
        let received = match self {
            Self::Tap(queue) => batch.receive_from_tap(queue, most, bytes),
            Self::Packet(socket) => socket.receive(batch),
        };
        received.map_err(|error| self.queue_error(&error))
    }

    /// Sends the kept frames of a part of a burst; returns how many frames of the part are finished, and why it
    /// stopped.
    pub(crate) fn send(
        &self,
        batch: &mut FrameBatch,
        from: usize,
        to: usize,
    ) -> (usize, Option<QueueError>) {
        let (done, stopped) = match self {
            Self::Tap(queue) => batch.send_to_tap(queue, from, to),
            Self::Packet(socket) => batch.send_to_socket(socket, from, to),
        };
        (done, stopped.map(|error| self.queue_error(&error)))
    }

    /// Sends one frame that is not part of a burst.
    pub(crate) fn send_one(&self, vnet: &[u8; VNET_LEN], frame: &[u8]) -> Result<(), QueueError> {
        let sent = match self {
            Self::Tap(queue) => {
                queue.write(&[io::IoSlice::new(vnet), io::IoSlice::new(frame)]).map(drop)
            }
            Self::Packet(socket) => socket.send(vnet, frame),
        };
        sent.map_err(|error| self.queue_error(&error))
    }

    /// Returns the number of frames that the kernel dropped since the last call because this queue was not read in
    /// time. A TAP device counts them itself, in its interface's statistics.
    pub fn overrun(&self) -> u64 {
        match self {
            Self::Tap(_) => 0,
            Self::Packet(socket) => {
                socket.statistics().map_or(0, |statistics| u64::from(statistics.dropped))
            }
        }
    }

    fn queue_error(&self, error: &io::Error) -> QueueError {
        match error.raw_os_error() {
            Some(errno::EAGAIN) => QueueError::WouldBlock,
            Some(errno::EINVAL) => QueueError::Frame(FrameError::Refused),
            Some(errno::EMSGSIZE) => QueueError::Frame(FrameError::TooLong),
            Some(errno::ENOBUFS | errno::ENOMEM) => QueueError::Frame(FrameError::Full),
            // A TAP device that is down accepts no frames.
            Some(errno::EIO) => QueueError::Down,
            Some(errno::ENETDOWN | errno::ENXIO) => match self {
                Self::Packet(socket) if !socket.is_lost() => QueueError::Down,
                _ => QueueError::Lost,
            },
            _ => QueueError::Lost,
        }
    }
}

/// Linux's error numbers for ports (asm-generic/errno.h), the same on every architecture that adit supports.
mod errno {
    pub(super) const EIO: i32 = 5;
    pub(super) const ENXIO: i32 = 6;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EMSGSIZE: i32 = 90;
    pub(super) const ENETDOWN: i32 = 100;
    pub(super) const ENOBUFS: i32 = 105;
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(queue) => queue.as_fd(),
            Self::Packet(socket) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_they_are_written() {
        for (text, spec) in [
            ("eth1", PortSpec::Existing("eth1".into())),
            ("tap:private", PortSpec::Tap("private".into())),
            ("eth0.100", PortSpec::Existing("eth0.100".into())),
        ] {
            assert_eq!(text.parse(), Ok(spec.clone()));
            assert_eq!(spec.to_string(), text);
        }
        for text in ["", "tap:", "tun:x", "tap:a/b", "averylonginterface", "a b", "..", "%d"] {
            let said = text.parse::<PortSpec>().unwrap_err();
            assert!(said.contains("tap:private"), "{text}: {said}");
        }
    }
}
