//! UDP sockets that send and receive trains: many datagrams of one peer in one buffer (`UDP_SEGMENT` for sending,
//! `UDP_GRO` for receiving), and several buffers in one system call.
//!
//! Every received datagram carries the local address that it was sent to, and every reply can specify its source address (`IP_PKTINFO`, RFC
//! 3542 `IPV6_PKTINFO`). A host with several addresses therefore replies from the one that the client used.

mod message;
mod path;
mod receive;
mod send;
mod steer;

pub use receive::{PeerError, Received, RecvBatch};
pub use send::{MAX_PAYLOAD, MAX_SEGMENTS, SendScratch, SendStop, Train};
pub use steer::{SenderField, steer};

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use crate::socket_opts::set_routing;

/// Whether datagrams may be fragmented on the path.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Fragmentation {
    /// Fragmented by this host and by routers: the DF bit is never set.
    #[default]
    Allowed,
    /// Fragmented by this host where the path MTU is known to be smaller, but not by routers (DF). The kernel's
    /// default.
    Local,
    /// Never fragmented: a datagram larger than the path MTU fails with `EMSGSIZE`.
    Forbidden,
}

/// The options of a socket.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Local address; with port 0 the kernel chooses a free one.
    pub bind: SocketAddr,
    /// For an IPv6 address: refuse IPv4 (otherwise `[::]` serves both).
    pub v6only: bool,
    /// Let several sockets share the port (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// The maximum number of received bytes that the kernel queues.
    pub recv_buffer: usize,
    /// The maximum number of bytes to send that the kernel queues.
    pub send_buffer: usize,
    /// Accept coalesced datagrams (`UDP_GRO`) if the kernel supports them.
    pub gro: bool,
    /// Mark on every packet (`SO_MARK`), for policy routing. Needs CAP_NET_ADMIN.
    pub fwmark: Option<u32>,
    /// Send and receive only through this interface (`SO_BINDTODEVICE`), such as a VRF device.
    pub device: Option<String>,
    /// Fragmentation of the datagrams sent.
    pub fragmentation: Fragmentation,
    /// Collect ICMP errors for [`UdpSocket::take_error`]. Until all are taken, epoll keeps reporting the socket as
    /// failed.
    pub icmp_errors: bool,
}

impl UdpOptions {
    /// Creates the default options for a local address: 8 MB to receive, 2 MB to send, GRO on.
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            v6only: false,
            reuse_port: false,
            recv_buffer: 8 << 20,
            send_buffer: 2 << 20,
            gro: true,
            fwmark: None,
            device: None,
            fragmentation: Fragmentation::default(),
            icmp_errors: false,
        }
    }
}

/// A bound, unconnected, non-blocking socket. All calls take `&self`, because the threads that send and the one that receives share it.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    local: SocketAddr,
    v6: bool,
    gro: bool,
    fragmentation: Fragmentation,
}

impl UdpSocket {
    /// Creates and binds a socket in the calling thread's network namespace. Errors are the kernel's (`EADDRINUSE`,
    /// `EADDRNOTAVAIL`, `EACCES`, `EAFNOSUPPORT`, `EPERM` for the mark).
    pub fn bind(options: &UdpOptions) -> io::Result<Self> {
        let v6 = options.bind.is_ipv6();
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        if v6 {
            socket.set_only_v6(options.v6only)?;
            send::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        } else {
            send::set_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
        if options.reuse_port {
            socket.set_reuse_port(true)?;
        }
        set_routing(&socket, options.fwmark, options.device.as_deref())?;
        if options.icmp_errors {
            send::set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
            if v6 {
                send::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
            }
        }
        set_fragmentation(&socket, v6, options)?;
        set_buffers(&socket, options)?;
        let gro = options.gro && send::set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        socket.bind(&options.bind.into())?;
        let local = socket.local_addr()?.as_socket();
        let local = local.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        Ok(Self { socket, local, v6, gro, fragmentation: options.fragmentation })
    }

    /// Takes over a socket that another process created with these options.
    ///
    /// # Errors
    /// The descriptor is not a bound UDP socket.
    pub fn from_fd(fd: OwnedFd, options: &UdpOptions) -> io::Result<Self> {
        let socket = Socket::from(fd);
        let local = socket.local_addr()?.as_socket();
        let local = local.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        if socket.r#type()? != Type::DGRAM || socket.protocol()? != Some(Protocol::UDP) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let gro = options.gro && send::set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let v6 = local.is_ipv6();
        set_fragmentation(&socket, v6, options)?;
        Ok(Self { socket, local, v6, gro, fragmentation: options.fragmentation })
    }

    /// Binds several sockets to one port, one for each receiving thread; the kernel delivers all datagrams of one
    /// sender to the same socket. Fails as [`UdpSocket::bind`] does, and if another process has the port, even one that
    /// shares it (`SO_REUSEPORT`). The first socket is bound exclusively and permits the others afterwards, so no other
    /// process can join the group, not even one that starts at the same time. `reuse_port` has no effect.
    pub fn bind_group(options: &UdpOptions, count: usize) -> io::Result<Vec<Self>> {
        let first = Self::bind(&UdpOptions { reuse_port: false, ..options.clone() })?;
        let mut bind = options.bind;
        bind.set_port(first.local.port());
        let rest = UdpOptions { bind, reuse_port: true, ..options.clone() };
        if count > 1 {
            first.socket.set_reuse_port(true)?;
        }
        let mut group = vec![first];
        while group.len() < count {
            group.push(Self::bind(&rest)?);
        }
        Ok(group)
    }

    /// Returns the bound address, with the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns whether the kernel coalesces received datagrams.
    pub fn gro_enabled(&self) -> bool {
        self.gro
    }

    /// Switches receive coalescing at run time. Coalesced datagrams in the queue may still be received.
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        send::set_option(&self.socket, libc::SOL_UDP, libc::UDP_GRO, on.into())
    }

    /// Returns the sizes that the kernel granted (receive, send), in its doubled accounting.
    pub fn buffer_sizes(&self) -> io::Result<(usize, usize)> {
        Ok((self.socket.recv_buffer_size()?, self.socket.send_buffer_size()?))
    }

    /// Sends one datagram; `from` sets the source address (with `None`, the kernel chooses it). A datagram larger than
    /// the path MTU is fragmented according to [`Fragmentation`].
    pub fn send_to(&self, to: SocketAddr, from: Option<IpAddr>, payload: &[u8]) -> io::Result<()> {
        self.send(&Train { to, from, segment: 0, tos: None, payload })
    }

    /// Sends one train. The kernel takes all of it or nothing.
    pub fn send(&self, train: &Train<'_>) -> io::Result<()> {
        send::one(&self.socket, self.v6, train)
    }

    /// Sends trains in order, as many per system call as `scratch` has space for. Stops at the first train that the
    /// kernel refuses, and reports how many were sent before it.
    pub fn send_trains(
        &self,
        trains: &[Train<'_>],
        scratch: &mut SendScratch,
    ) -> Result<(), SendStop> {
        send::many(&self.socket, self.v6, trains, scratch)
    }

    /// Receives up to as many buffers as `batch` has slots, without blocking. Returns the number of buffers filled;
    /// `WouldBlock` if there are none.
    pub fn recv_burst(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.receive(&self.socket)
    }

    /// Returns the oldest pending ICMP error if [`UdpOptions::icmp_errors`] is set. Any host on the path can forge one,
    /// so it may serve as information but must not decide anything.
    pub fn take_error(&self) -> io::Result<Option<PeerError>> {
        receive::read_error(&self.socket)
    }
}

impl From<UdpSocket> for OwnedFd {
    fn from(socket: UdpSocket) -> Self {
        socket.socket.into()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn set_fragmentation(socket: &Socket, v6: bool, options: &UdpOptions) -> io::Result<()> {
    let mode = |level| path::usual(options.fragmentation, level).0;
    let (v4_mode, v6_mode) = (mode(libc::IPPROTO_IP), mode(libc::IPPROTO_IPV6));
    if v6 {
        send::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6_mode)?;
    }
    if !v6 || !options.v6only {
        send::set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4_mode)?;
    }
    Ok(())
}

/// Sets a socket's send buffer size beyond the system's limit (CAP_NET_ADMIN).
pub(crate) fn force_send_buffer(socket: &impl AsFd, size: libc::c_int) -> io::Result<()> {
    send::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size)
}

/// Exceeds the system's limit if permitted (CAP_NET_ADMIN), otherwise stays within it, because a smaller buffer is not
/// a reason to fail.
fn set_buffers(socket: &Socket, options: &UdpOptions) -> io::Result<()> {
    if sockopt::set_socket_recv_buffer_size_force(socket, options.recv_buffer).is_err() {
        socket.set_recv_buffer_size(options.recv_buffer)?;
    }
    let size = libc::c_int::try_from(options.send_buffer).unwrap_or(libc::c_int::MAX);
    if force_send_buffer(socket, size).is_err() {
        socket.set_send_buffer_size(options.send_buffer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
