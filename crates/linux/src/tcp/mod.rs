//! TCP listeners and streams, all non-blocking, with the options that a tunnel needs: no delay, and a bound on the
//! unsent bytes in the kernel.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::socket_opts::set_routing;

/// The options of a listener.
#[derive(Clone, Debug)]
pub struct TcpListenOptions {
    /// Local address; with port 0 the kernel chooses a free one.
    pub bind: SocketAddr,
    /// For an IPv6 address: refuse IPv4 (otherwise `[::]` serves both).
    pub v6only: bool,
    /// Let several listeners share the port (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// Mark on every packet (`SO_MARK`), including those of accepted streams. Needs CAP_NET_ADMIN.
    pub fwmark: Option<u32>,
    /// Accept connections only through this interface (`SO_BINDTODEVICE`), such as a VRF device; accepted streams are
    /// bound to it too.
    pub device: Option<String>,
    /// Connections that may wait to be accepted.
    pub backlog: u16,
    /// The maximum number of received bytes that the kernel queues for each stream; `None` lets the kernel adapt the
    /// size.
    pub recv_buffer: Option<usize>,
    /// The maximum number of bytes to send that the kernel queues for each stream; `None` as above.
    pub send_buffer: Option<usize>,
}

impl TcpListenOptions {
    /// Creates the default options for a local address.
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            v6only: false,
            reuse_port: false,
            fwmark: None,
            device: None,
            backlog: 1024,
            recv_buffer: None,
            send_buffer: None,
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct TcpListener {
    socket: Socket,
    local: SocketAddr,
}

impl TcpListener {
    /// Binds and listens in the calling thread's network namespace. Lingering connections of an earlier process do not
    /// occupy the port (`SO_REUSEADDR`). Errors are the kernel's.
    pub fn bind(options: &TcpListenOptions) -> io::Result<Self> {
        let socket = stream_socket(options.bind, options.fwmark, options.device.as_deref())?;
        if options.bind.is_ipv6() {
            socket.set_only_v6(options.v6only)?;
        }
        socket.set_reuse_address(true)?;
        if options.reuse_port {
            socket.set_reuse_port(true)?;
        }
        set_buffers(&socket, options.recv_buffer, options.send_buffer)?;
        socket.bind(&options.bind.into())?;
        socket.listen(i32::from(options.backlog))?;
        let local = address(&socket.local_addr()?)?;
        Ok(Self { socket, local })
    }

    /// Takes over a listener that another process created.
    ///
    /// # Errors
    /// The descriptor is not a listening socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(fd);
        if !socket.is_listener()? {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let local = address(&socket.local_addr()?)?;
        Ok(Self { socket, local })
    }

    /// Returns the bound address, with the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Accepts a connection and returns it with the peer's address; `WouldBlock` if none is pending. Other errors may
    /// come from a connection that broke while it was pending, or from a lack of descriptors (`EMFILE`, `ENFILE`): the
    /// listener itself remains usable.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (fd, _) = rustix::net::acceptfrom_with(&self.socket, flags)?;
        let stream = TcpStream { fd };
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
    }
}

impl From<TcpListener> for OwnedFd {
    fn from(listener: TcpListener) -> Self {
        listener.socket.into()
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The options of a connection.
#[derive(Clone, Debug)]
pub struct TcpConnectOptions {
    /// Remote address.
    pub to: SocketAddr,
    /// Local address, of the same family as `to`; with port 0 the kernel chooses a free one.
    pub from: Option<SocketAddr>,
    /// Mark on every packet (`SO_MARK`). Needs CAP_NET_ADMIN.
    pub fwmark: Option<u32>,
    /// Connect only through this interface (`SO_BINDTODEVICE`).
    pub device: Option<String>,
    /// See [`TcpListenOptions::recv_buffer`].
    pub recv_buffer: Option<usize>,
    /// See [`TcpListenOptions::send_buffer`].
    pub send_buffer: Option<usize>,
}

impl TcpConnectOptions {
    /// Creates the default options for a remote address.
    pub fn new(to: SocketAddr) -> Self {
        Self { to, from: None, fwmark: None, device: None, recv_buffer: None, send_buffer: None }
    }
}

/// A connected or connecting stream with Nagle's algorithm disabled. All calls take `&self` and never block.
#[derive(Debug)]
pub struct TcpStream {
    fd: OwnedFd,
}

impl TcpStream {
    /// Starts to connect. When the stream becomes writable, [`TcpStream::finish_connect`] returns the result.
    pub fn connect(options: &TcpConnectOptions) -> io::Result<Self> {
        Self::connect_by(Self::prepare(options)?, options.to)
    }

    /// Creates only the socket, for [`TcpStream::connect_by`] in this process or another.
    pub fn prepare(options: &TcpConnectOptions) -> io::Result<OwnedFd> {
        let socket = stream_socket(options.to, options.fwmark, options.device.as_deref())?;
        socket.set_tcp_nodelay(true)?;
        set_buffers(&socket, options.recv_buffer, options.send_buffer)?;
        if let Some(from) = options.from {
            if from.port() != 0 {
                socket.set_reuse_address(true)?;
            }
            socket.bind(&from.into())?;
        }
        Ok(socket.into())
    }

    /// Connects as [`TcpStream::connect`] does, using a socket from [`TcpStream::prepare`].
    pub fn connect_by(socket: OwnedFd, to: SocketAddr) -> io::Result<Self> {
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(Self { fd: socket }),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes over a connected stream of another process.
    ///
    /// # Errors
    /// The descriptor is not a connected TCP socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let stream = Self { fd };
        if stream.options().protocol()? != Some(Protocol::TCP) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        stream.peer_addr()?;
        Ok(stream)
    }

    /// Returns whether the connection is established: `false` while connecting, an error if it failed.
    pub fn finish_connect(&self) -> io::Result<bool> {
        if let Some(error) = self.take_error()? {
            return Err(error);
        }
        match self.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the pending error of the socket, if any (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.options().take_error()
    }

    /// Sends small writes at once (`TCP_NODELAY`), which is the default here.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.options().set_tcp_nodelay(on)
    }

    /// Limits the bytes in the kernel that have not yet been sent for the first time (`TCP_NOTSENT_LOWAT`). At the
    /// limit, a send accepts no more bytes; the stream becomes writable again at half of it.
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.options().set_tcp_notsent_lowat(bytes)
    }

    /// Sets the sizes of the kernel's buffers; `None` leaves one unchanged.
    pub fn set_buffers(&self, recv: Option<usize>, send: Option<usize>) -> io::Result<()> {
        set_buffers(&self.options(), recv, send)
    }

    /// Returns the number of segments that have been sent but not acknowledged (`TCP_INFO`).
    #[allow(unsafe_code)]
    pub fn unacknowledged(&self) -> io::Result<u32> {
        // SAFETY: tcp_info is plain data for which all zeroes is a valid value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `info`, which lives through the call.
        let rc = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(info.tcpi_unacked) }
    }

    /// Sends as many bytes as the kernel accepts and returns their number; `WouldBlock` if it accepts none.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        retry(|| rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))
    }

    /// Sends as [`TcpStream::send`] does, from several slices in order.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        retry(|| {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            rustix::net::sendmsg(&self.fd, parts, &mut Default::default(), flags)
        })
    }

    /// Receives the available bytes, up to the length of `into`. 0 means that the peer has closed.
    pub fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        retry(|| Ok(rustix::net::recv(&self.fd, &mut *into, RecvFlags::DONTWAIT)?.0))
    }

    /// Receives as [`TcpStream::recv`] does, but leaves the bytes in the queue for the next call.
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        retry(|| Ok(rustix::net::recv(&self.fd, &mut *into, flags)?.0))
    }

    /// Ends sending. The kernel still sends what it has queued.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }

    /// Ends both directions. The peer is notified at once, and so is an epoll set that watches the stream.
    pub fn shutdown(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Both)?)
    }

    /// Returns the local address; IPv4-mapped addresses become IPv4.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address(&self.options().local_addr()?)
    }

    /// Returns the peer's address; IPv4-mapped addresses become IPv4.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address(&self.options().peer_addr()?)
    }

    fn options(&self) -> SockRef<'_> {
        SockRef::from(&self.fd)
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<TcpStream> for OwnedFd {
    fn from(stream: TcpStream) -> Self {
        stream.fd
    }
}

fn stream_socket(of: SocketAddr, fwmark: Option<u32>, device: Option<&str>) -> io::Result<Socket> {
    let domain = Domain::for_address(of);
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    set_routing(&socket, fwmark, device)?;
    Ok(socket)
}

fn set_buffers(socket: &Socket, recv: Option<usize>, send: Option<usize>) -> io::Result<()> {
    if let Some(size) = recv {
        socket.set_recv_buffer_size(size)?;
    }
    if let Some(size) = send {
        socket.set_send_buffer_size(size)?;
    }
    Ok(())
}

fn address(name: &socket2::SockAddr) -> io::Result<SocketAddr> {
    let address =
        name.as_socket().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    // Rebuild the address only if it is mapped, because a link-local address needs its scope.
    Ok(match address.ip().to_canonical() {
        std::net::IpAddr::V4(v4) => SocketAddr::from((v4, address.port())),
        std::net::IpAddr::V6(_) => address,
    })
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests;
