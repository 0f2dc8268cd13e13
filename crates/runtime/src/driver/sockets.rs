use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Link, SocketId, Transport};
use adit_linux::tcp::{TcpConnectOptions, TcpListener};
use adit_linux::udp::{Fragmentation, UdpOptions, UdpSocket};
use nix::errno::Errno;

use super::{Backend, FIRST_DIALLED, ResolveRetry};
use crate::helper;
use crate::port_share::PortShare;
use crate::proxy::{Association, Proxy};
use adit_dataplane::StreamOptions;

/// The maximum number of sockets dialled at once: the number of ids from [`FIRST_DIALLED`] up to, but excluding, the highest, which no
/// socket has.
const MAX_DIALLED: u16 = 0x7fff;

fn id_of(number: u16) -> SocketId {
    SocketId(FIRST_DIALLED.0 | number)
}

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
    /// `rcvbuf` in bytes; `None` for our default.
    pub receive_buffer: Option<usize>,
    /// `sndbuf` in bytes; `None` for our default.
    pub send_buffer: Option<usize>,
    /// Whether to receive trains in one call.
    pub gro: bool,
    /// `mtu-disc`: fragmentation of the datagrams sent.
    pub fragmentation: Fragmentation,
    /// `persist-remote-ip`: dial the address that worked before its name is looked up again.
    pub persist_remote: bool,
    /// `resolv-retry`.
    pub resolve_retry: ResolveRetry,
    /// Whether streams are bound to `local` and `lport` too.
    pub bind_streams: bool,
    /// `connect-timeout`, `server-poll-timeout`: the time limit for opening a TCP connection.
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
            fragmentation: Fragmentation::default(),
            persist_remote: false,
            resolve_retry: ResolveRetry::Forever,
            bind_streams: false,
            connect_timeout: Duration::from_secs(120),
            streams: StreamOptions::default(),
            proxies: Vec::new(),
        }
    }
}

/// A socket for a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialled {
    /// The link that the engine got.
    pub link: Link,
    /// The first hop of the packets: the server, or the proxy in front of it.
    pub hop: SocketAddr,
    /// The local address.
    pub local: SocketAddr,
    /// The local address of the connection on which the link depends: the stream, or the connection to a proxy that relays datagrams.
    pub connection: Option<SocketAddr>,
    /// Whether the operator chose the local address or port (`local`, `lport`).
    pub bound: bool,
    /// The socket's number in this process, for the log.
    pub descriptor: i32,
    /// The sizes of the receive and send buffers in bytes, if the kernel reports them.
    pub buffers: Option<(usize, usize)>,
}

/// The sockets of a process by their ids.
#[derive(Debug, Default)]
pub struct Sockets {
    /// At least one socket for each id. Further ones share its port, for more workers.
    open: BTreeMap<SocketId, Vec<Arc<UdpSocket>>>,
    settings: DialSettings,
    dialled: u16,
    /// The relays of sockets that were dialled through a proxy.
    relays: BTreeMap<SocketId, Association>,
    listeners: Vec<TcpListener>,
    share: Option<PortShare>,
}

/// An endpoint on which a server listens.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// UDP or TCP.
    pub transport: Transport,
    /// The address and port.
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
    /// Creates a client's empty set of sockets.
    pub fn client(settings: DialSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Creates a server's sockets with ids from 0. Each listener consists of the sockets that share its port.
    pub fn server(listeners: impl IntoIterator<Item = Vec<UdpSocket>>) -> Self {
        let ids = (0..FIRST_DIALLED.0).map(SocketId);
        let listeners = listeners.into_iter().filter(|group| !group.is_empty());
        let groups = listeners.map(|group| group.into_iter().map(Arc::new).collect());
        Self { open: ids.zip(groups).collect(), ..Self::default() }
    }

    /// Returns duplicates of the listening sockets' descriptors, with names that tell them apart, for a process that
    /// continues with them.
    ///
    /// # Errors
    /// The process has no free descriptors.
    pub fn duplicate(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let mut all = Vec::new();
        for (id, group) in &self.open {
            for (member, socket) in group.iter().enumerate() {
                let fd = socket.as_fd().try_clone_to_owned()?;
                all.push((format!("udp-{}-{member}", id.0), fd));
            }
        }
        for (number, listener) in self.listeners.iter().enumerate() {
            all.push((format!("tcp-{number}"), listener.as_fd().try_clone_to_owned()?));
        }
        Ok(all)
    }

    /// Adds these listeners for streams.
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

    /// Returns the endpoints to which the sockets are bound, each once.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let first = self.open.values().filter_map(|group| group.first());
        let datagrams = first.map(|socket| (Transport::Udp, socket.local_addr()));
        let streams = self.listeners.iter().map(|listener| (Transport::Tcp, listener.local_addr()));
        let all = datagrams.chain(streams);
        all.map(|(transport, address)| Endpoint { transport, address }).collect()
    }

    /// Returns the socket for sending. A peer cannot distinguish sockets that share a port.
    pub(super) fn get(&self, id: SocketId) -> Option<&UdpSocket> {
        self.open.get(&id)?.first().map(|socket| &**socket)
    }

    pub(super) fn dial_settings(&self) -> &DialSettings {
        &self.settings
    }

    /// Does the same as [`Sockets::dial`], but through a proxy.
    pub(super) fn dial_by(
        &mut self,
        relay: Association,
        backend: &impl Backend,
    ) -> Result<Dialled, String> {
        // The relay is reached over the loopback device. The relay's own socket is bound to the configured device.
        let mut dialled = self.dial_from(None, relay.near(), backend)?;
        relay.serve(dialled.local);
        dialled.hop = relay.relay();
        dialled.connection = Some(relay.control());
        if let Some(id) = dialled.link.socket() {
            self.relays.insert(id, relay);
        }
        Ok(dialled)
    }

    /// Opens a socket for `remote` and gives it to the data plane.
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
        options.fragmentation = self.settings.fragmentation;
        options.recv_buffer = self.settings.receive_buffer.unwrap_or(options.recv_buffer);
        options.send_buffer = self.settings.send_buffer.unwrap_or(options.send_buffer);
        if local.port() != 0 {
            // The previous socket has the port that the operator configured.
            let former: Vec<SocketId> = self.open.keys().copied().collect();
            former.into_iter().for_each(|id| self.hang_up(id, backend));
        }
        let device = options.device.as_deref();
        let socket = helper::sockets::udp(&options)
            .map_err(|e| bind_problem(Transport::Udp, local, device, &e))?;
        let socket = Arc::new(socket);
        let id = self.add(Arc::clone(&socket), backend)?;
        Ok(Dialled {
            link: Link::datagram(id, None, remote),
            hop: remote,
            local: socket.local_addr(),
            connection: None,
            bound: self.settings.local.is_some() || self.settings.port != 0,
            descriptor: socket.as_fd().as_raw_fd(),
            buffers: socket.buffer_sizes().ok(),
        })
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

    /// Opens sockets, each with its own port, and gives them to the data plane. Returns those that could be opened.
    pub(super) fn open(
        &mut self,
        options: &UdpOptions,
        count: usize,
        backend: &impl Backend,
    ) -> Vec<SocketId> {
        let open = |this: &mut Self| -> Result<SocketId, String> {
            let socket = helper::sockets::udp(options).map_err(|error| error.to_string())?;
            this.add(Arc::new(socket), backend)
        };
        let mut opened = Vec::new();
        for _ in 0..count {
            match open(self) {
                Ok(id) => opened.push(id),
                Err(problem) => {
                    tracing::debug!(
                        "{} of {count} sockets could be opened: {problem}",
                        opened.len()
                    );
                    break;
                }
            }
        }
        opened
    }

    /// Gives a socket to the data plane, with an id that no open socket has.
    fn add(&mut self, socket: Arc<UdpSocket>, backend: &impl Backend) -> Result<SocketId, String> {
        let free = |number: &u16| !self.open.contains_key(&id_of(*number));
        let number =
            (0..MAX_DIALLED).map(|n| self.dialled.wrapping_add(n) % MAX_DIALLED).find(free);
        let number = number.ok_or("too many sockets are open")?;
        let id = id_of(number);
        self.dialled = number.wrapping_add(1);
        backend.add_socket(id, Arc::clone(&socket)).map_err(|error| error.to_string())?;
        self.open.insert(id, vec![socket]);
        Ok(id)
    }

    #[cfg(test)]
    pub(super) fn skip_to(&mut self, number: u16) {
        self.dialled = number;
    }

    /// Closes a dialled socket. A listening socket stays open, because other peers use it too.
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

/// Returns the error, with a remedy, for an address or device (`bind-dev`) to which a socket cannot be bound.
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
