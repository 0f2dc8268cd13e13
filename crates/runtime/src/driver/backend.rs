use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use adit_engine::{Command, DataFormat, Link, Notice, SocketId};
use adit_linux::tcp::TcpStream;
use adit_linux::udp::UdpSocket;

use crate::fault::Fault;

/// The driver's interface to a data plane: ours, a test's, or one day a kernel module.
pub trait Backend {
    /// The data format of its packets.
    type Format: DataFormat;

    /// Executes a command. Never blocks.
    fn apply(&self, op: Command<Self::Format>);

    /// Starts to receive from another socket.
    ///
    /// # Errors
    /// Fails if the data plane has no room for another socket, or has ended.
    fn add_socket(&self, id: SocketId, socket: Arc<UdpSocket>) -> io::Result<()>;

    /// Removes a socket.
    fn remove_socket(&self, id: SocketId);

    /// Serves another stream.
    ///
    /// # Errors
    /// Fails if the data plane has no room for it, or has ended.
    fn add_stream(&self, link: Link, stream: TcpStream) -> io::Result<()>;

    /// Closes a stream, after sending the packets of earlier calls of [`Self::send_control`].
    fn remove_stream(&self, link: Link);

    /// Sends a control packet on a stream. Returns false if there is no room or no such stream.
    fn send_control(&self, link: Link, frame: &[u8]) -> bool;

    /// Returns the reason why the data plane will move no more packets, if it has failed. The descriptor becomes
    /// readable in this case.
    fn failure(&self) -> Option<Fault>;

    /// Returns a descriptor that becomes readable, or readable again, when [`Self::drain`] has something to deliver. It
    /// is watched edge-triggered.
    ///
    /// # Errors
    /// Fails if no descriptor is available.
    fn wakeup(&self) -> io::Result<OwnedFd>;

    /// Delivers all waiting items, starting with notices and packets from known peers.
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
    /// A stream ended that the driver did not close. Contains the reason for the log.
    StreamEnded(Link, String),
}
