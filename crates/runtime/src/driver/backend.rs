use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use adit_engine::{Command, DataFormat, Link, Notice, SocketId};
use adit_linux::tcp::TcpStream;
use adit_linux::udp::UdpSocket;

use crate::fault::Fault;

/// A data plane as the driver sees it: ours, a test's, or one day a kernel module.
pub trait Backend {
    /// The data format of its packets.
    type Format: DataFormat;

    /// Performs a verb. Never blocks.
    fn apply(&self, op: Command<Self::Format>);

    /// Receives from a further socket from now on.
    ///
    /// # Errors
    /// The plane has no room for another, or has ended.
    fn add_socket(&self, id: SocketId, socket: Arc<UdpSocket>) -> io::Result<()>;

    /// Forgets a socket.
    fn remove_socket(&self, id: SocketId);

    /// Serves another stream.
    ///
    /// # Errors
    /// The plane has no room for it, or has ended.
    fn add_stream(&self, link: Link, stream: TcpStream) -> io::Result<()>;

    /// Closes a stream, after sending the packets of earlier calls of [`Self::send_control`].
    fn remove_stream(&self, link: Link);

    /// Sends a control packet on a stream. False if there is no room, or no such stream.
    fn send_control(&self, link: Link, frame: &[u8]) -> bool;

    /// Returns the reason why it will move no more packets, if there is one; the descriptor has become readable then.
    fn failure(&self) -> Option<Fault>;

    /// Returns a descriptor that becomes readable, or readable again, when [`Self::drain`] has something to deliver. It
    /// is watched edge-triggered.
    ///
    /// # Errors
    /// No descriptor is available.
    fn wakeup(&self) -> io::Result<OwnedFd>;

    /// Gives everything that waits: notices and packets of known peers first.
    fn drain(&mut self, sink: &mut dyn FnMut(Upcall<Self::Format>));

    /// Does the same as [`Self::drain`], but items that arrive before the next drain need not make the descriptor
    /// readable again.
    fn drain_silently(&mut self, sink: &mut dyn FnMut(Upcall<Self::Format>));
}

/// A packet or notice that the data plane passes up.
#[derive(Debug)]
pub enum Upcall<F: DataFormat> {
    /// A control packet.
    ControlPacket(Link, Vec<u8>),
    /// A notice.
    Notice(Notice<F>),
    /// A stream ended by itself, with the reason for the log.
    StreamEnded(Link, String),
}
