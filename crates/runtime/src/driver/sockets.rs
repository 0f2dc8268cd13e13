use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Link, SocketId, Transport};
use adit_linux::tcp::{TcpConnectOptions, TcpListener};
use adit_linux::udp::{UdpOptions, UdpSocket};
use nix::errno::Errno;

use super::{Backend, FIRST_DIALLED, ResolveRetry};
use crate::helper;
use crate::port_share::PortShare;
use crate::proxy::{Association, Proxy};
use adit_dataplane::StreamOptions;

/// The options of a client's sockets.
#[derive(Clone, Debug)]
pub struct DialSettings {
    /// `local`.
    pub local: Option<IpAddr>,
    /// `lport`; 0 with `nobind`.
    pub port: u16,
    /// `mark`.
    pub mark: Option<u32>,
    /// `bind-dev`.
    pub device: Option<String>,
    /// `remote-random-hostname`.
    pub random_hostname: bool,
    /// `rcvbuf`, bytes; `None`: ours.
    pub receive_buffer: Option<usize>,
    /// `sndbuf`, bytes; `None`: ours.
    pub send_buffer: Option<usize>,
    /// Receive trains in one call.
    pub gro: bool,
    /// `resolv-retry`.
    pub resolve_retry: ResolveRetry,
    /// Whether streams leave from `local` and `lport` too.
    pub bind_streams: bool,
    /// `connect-timeout`, `server-poll-timeout`: how long a TCP connection may take.
    pub connect_timeout: Duration,
    /// The options of streams.
    pub streams: StreamOptions,
    /// The proxies, indexed by [`adit_engine::Target::proxy`].
    pub proxies: Vec<Arc<Proxy>>,
}

impl Default for DialSettings {
    fn default() -> Self {
        Self {
            local: None,
            port: 0,
            mark: None,
            device: None,
            random_hostname: false,
            receive_buffer: None,
            send_buffer: None,
            gro: true,
            resolve_retry: ResolveRetry::Forever,
            bind_streams: false,
            connect_timeout: Duration::from_secs(120),
            streams: StreamOptions::default(),
            proxies: Vec::new(),
        }
    }
}

/// A socket towards a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialled {
    /// The path that the engine got.
    pub link: Link,
    /// The first hop of the packets: the server, or the proxy before it.
    pub hop: SocketAddr,
    /// Our end.
    pub local: SocketAddr,
    /// The local address of the connection that the path depends on: the stream, or the connection to a proxy that
    /// relays datagrams.
    pub connection: Option<SocketAddr>,
    /// Whether the operator chose our end (`local`, `lport`).
    pub bound: bool,
    /// The socket's number in this process, for the log.
    pub descriptor: i32,
    /// The sizes of the receive and send buffers in bytes, if the kernel reports them.
    pub buffers: Option<(usize, usize)>,
}

/// The UDP sockets of a process by their ids.
#[derive(Debug, Default)]
pub struct Sockets {
    /// At least one socket for each id; the others share its port, for further workers.
    open: BTreeMap<SocketId, Vec<Arc<UdpSocket>>>,
    settings: DialSettings,
    dialled: u16,
    /// The relays of sockets that were dialled through a proxy.
    relays: BTreeMap<SocketId, Association>,
    listeners: Vec<TcpListener>,
    share: Option<PortShare>,
}

/// A place where a server listens.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// UDP or TCP.
    pub transport: Transport,
    /// Address and port.
    pub address: SocketAddr,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        write!(f, "{transport} {}", self.address)
    }
}

impl Sockets {
    /// Creates a client's set of sockets, which is empty.
    pub fn client(settings: DialSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Creates a server's sockets with ids from 0; of each listener as many as share its port.
    pub fn server(listeners: impl IntoIterator<Item = Vec<UdpSocket>>) -> Self {
        let ids = (0..FIRST_DIALLED.0).map(SocketId);
        let listeners = listeners.into_iter().filter(|group| !group.is_empty());
        let groups = listeners.map(|group| group.into_iter().map(Arc::new).collect());
        Self { open: ids.zip(groups).collect(), ..Self::default() }
    }

    /// Adds streams by these listeners.
    #[must_use]
    pub fn with_streams(mut self, listeners: Vec<TcpListener>) -> Self {
        self.listeners = listeners;
        self
    }

    /// Shares the streams' ports with another service.
    #[must_use]
    pub fn with_share(mut self, share: Option<PortShare>) -> Self {
        self.share = share;
        self
    }

    pub(super) fn take_share(&mut self) -> Option<PortShare> {
        self.share.take()
    }

    pub(super) fn take_listeners(&mut self) -> Vec<TcpListener> {
        std::mem::take(&mut self.listeners)
    }

    /// Returns all sockets; those that share a port have one id.
    pub fn all(&self) -> Vec<(SocketId, Arc<UdpSocket>)> {
        let all = self.open.iter();
        all.flat_map(|(id, group)| group.iter().map(|socket| (*id, Arc::clone(socket)))).collect()
    }

    /// Returns the endpoints that the sockets are bound to, each once.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let first = self.open.values().filter_map(|group| group.first());
        let datagrams = first.map(|socket| (Transport::Udp, socket.local_addr()));
        let streams = self.listeners.iter().map(|listener| (Transport::Tcp, listener.local_addr()));
        let all = datagrams.chain(streams);
        all.map(|(transport, address)| Endpoint { transport, address }).collect()
    }

    /// Returns the socket to send by: a peer cannot distinguish sockets that share a port.
    pub(super) fn get(&self, id: SocketId) -> Option<&UdpSocket> {
        self.open.get(&id)?.first().map(|socket| &**socket)
    }

    pub(super) fn dial_settings(&self) -> &DialSettings {
        &self.settings
    }

    /// Does the same as [`Sockets::dial`], through a proxy.
    pub(super) fn dial_by(
        &mut self,
        relay: Association,
        backend: &impl Backend,
    ) -> Result<Dialled, String> {
        // The way to the relay leads over the loopback; the relay's own socket has the device.
        let mut dialled = self.dial_from(None, relay.near(), backend)?;
        relay.serve(dialled.local);
        dialled.hop = relay.relay();
        dialled.connection = Some(relay.control());
        if let Some(id) = dialled.link.socket() {
            self.relays.insert(id, relay);
        }
        Ok(dialled)
    }

    /// Opens a socket towards `remote` and gives it to the data plane.
    pub(super) fn dial(
        &mut self,
        remote: SocketAddr,
        backend: &impl Backend,
    ) -> Result<Dialled, String> {
        self.dial_from(self.settings.device.clone(), remote, backend)
    }

    fn dial_from(
        &mut self,
        device: Option<String>,
        remote: SocketAddr,
        backend: &impl Backend,
    ) -> Result<Dialled, String> {
        let local = self.local_for(remote)?;
        let mut options = UdpOptions::new(local);
        options.fwmark = self.settings.mark;
        options.device = device;
        options.gro = self.settings.gro;
        options.icmp_errors = true;
        options.recv_buffer = self.settings.receive_buffer.unwrap_or(options.recv_buffer);
        options.send_buffer = self.settings.send_buffer.unwrap_or(options.send_buffer);
        if local.port() != 0 {
            // The former socket has the port that the operator asked for.
            let former: Vec<SocketId> = self.open.keys().copied().collect();
            former.into_iter().for_each(|id| self.hang_up(id, backend));
        }
        let device = options.device.as_deref();
        let socket = helper::sockets::udp(&options)
            .map_err(|e| bind_problem(Transport::Udp, local, device, &e))?;
        let id = SocketId(FIRST_DIALLED.0 | (self.dialled & !FIRST_DIALLED.0));
        self.dialled = self.dialled.wrapping_add(1);
        let dialled = Dialled {
            link: Link::datagram(id, None, remote),
            hop: remote,
            local: socket.local_addr(),
            connection: None,
            bound: self.settings.local.is_some() || self.settings.port != 0,
            descriptor: socket.as_fd().as_raw_fd(),
            buffers: socket.buffer_sizes().ok(),
        };
        let socket = Arc::new(socket);
        backend.add_socket(id, Arc::clone(&socket)).map_err(|e| e.to_string())?;
        self.open.insert(id, vec![socket]);
        Ok(dialled)
    }

    /// Returns the options for a stream to `remote`.
    pub(super) fn connect_options(&self, remote: SocketAddr) -> Result<TcpConnectOptions, String> {
        let mut options = TcpConnectOptions::new(remote);
        if self.settings.bind_streams {
            options.from = Some(self.local_for(remote)?);
        }
        options.fwmark = self.settings.mark;
        options.device.clone_from(&self.settings.device);
        options.recv_buffer = self.settings.receive_buffer;
        options.send_buffer = self.settings.send_buffer;
        Ok(options)
    }

    /// Closes a dialled socket. A listening socket stays open, because it does not end with one peer.
    pub(super) fn hang_up(&mut self, id: SocketId, backend: &impl Backend) {
        if id >= FIRST_DIALLED && self.open.remove(&id).is_some() {
            backend.remove_socket(id);
            self.relays.remove(&id);
        }
    }

    fn local_for(&self, remote: SocketAddr) -> Result<SocketAddr, String> {
        let ip = match (self.settings.local, remote) {
            (Some(local), _) if local.is_ipv4() != remote.is_ipv4() => {
                return Err(format!(
                    "the server {remote} and 'local {local}' are of different address families"
                ));
            }
            (Some(local), _) => local,
            (None, SocketAddr::V4(_)) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            (None, SocketAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Ok(SocketAddr::new(ip, self.settings.port))
    }
}

/// Returns the error, with a remedy, for an address or device (`bind-dev`) that a socket cannot be bound to.
pub fn bind_problem(
    transport: Transport,
    address: SocketAddr,
    device: Option<&str>,
    e: &io::Error,
) -> String {
    if let (Some(device), Some(Errno::ENODEV | Errno::EPERM)) =
        (device, e.raw_os_error().map(Errno::from_raw))
    {
        return format!(
            "bind-dev: a socket cannot be bound to the device {device}: {e}: `ip link` lists the \
             devices; the right to bind is CAP_NET_RAW on kernels before 5.7"
        );
    }
    let port = address.port();
    let (name, letter) = match transport {
        Transport::Udp => ("UDP", 'u'),
        Transport::Tcp => ("TCP", 't'),
    };
    match e.kind() {
        io::ErrorKind::AddrInUse => format!(
            "{name} port {port} on {} is in use by another program: stop that (`ss -{letter}lpn \
             'sport = :{port}'` names it) or choose another port",
            address.ip()
        ),
        io::ErrorKind::AddrNotAvailable => format!(
            "{} is not an address of this machine: `ip addr` lists them; leave 'local' out to use \
             all",
            address.ip()
        ),
        io::ErrorKind::PermissionDenied => format!(
            "no right to bind {name} port {port} ({e}): run as root, or choose a port above 1023"
        ),
        _ => format!("cannot bind {address}: {e}"),
    }
}
