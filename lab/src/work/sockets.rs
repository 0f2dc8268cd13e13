//! Sockets in other namespaces, connected within a time limit.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use adit_linux::clock::boottime;
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::net::Namespace;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use super::Route;
use super::run::LOOK;

/// The time limit for all connections together.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Runs a function on a thread inside the namespace and waits for it.
pub(super) fn inside<T: Send + 'static>(
    namespace: &Namespace,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let thread = namespace.thread(work)?;
    thread.join().unwrap_or_else(|_| Err("a thread in a namespace panicked".into()))
}

/// The number of files opened and closed meanwhile, such as those of sampling.
pub(super) const SPARE_FILES: usize = 100;

/// The two ends of a flow over TCP, both non-blocking. Closing one discards its unsent data, so that a slow tunnel does
/// not carry it into the next trial.
#[derive(Debug)]
pub(super) struct TcpPair {
    /// The connecting end, in the sender's host.
    pub near: TcpStream,
    /// The accepting end, in the receiver's host.
    pub far: TcpStream,
}

struct Opening {
    listener: TcpListener,
    target: SocketAddr,
    near: Option<Socket>,
    connected: bool,
    far: Option<TcpStream>,
}

/// Connects a flow for each route, all at the same time.
///
/// # Errors
/// A flow is not connected within 10 s, or cannot be; the error names it.
pub(super) fn connect(routes: &[Route<'_>]) -> Result<Vec<TcpPair>> {
    allow_files(3 * routes.len() + SPARE_FILES)?;
    let poller = Poller::new()?;
    let mut openings = Vec::with_capacity(routes.len());
    for (token, route) in (0..).zip(routes) {
        let opening = open(route).context(format!("flow {}", route.name))?;
        poller.add(&opening.listener, token, Interest::READ)?;
        if let Some(near) = &opening.near {
            poller.add(near, NEAR | token, Interest::WRITE)?;
        }
        openings.push(opening);
    }
    let end = boottime() + nanos(CONNECT_LIMIT);
    let mut events = Events::new();
    while let Some((route, missing)) = routes.iter().zip(&openings).find(|(_, o)| !o.complete()) {
        if boottime() >= end {
            let (name, target) = (&route.name, missing.target);
            let limit = CONNECT_LIMIT.as_secs();
            return Err(Failure(format!("flow {name}: no connection to {target} in {limit} s")));
        }
        poller.wait(&mut events, Some(LOOK))?;
        for event in events.iter() {
            let index = usize::try_from(event.token & !NEAR).unwrap_or(usize::MAX);
            if let Some((opening, route)) = openings.get_mut(index).zip(routes.get(index)) {
                opening
                    .advance(&poller, event.token & NEAR != 0)
                    .context(format!("flow {}: connecting to {}", route.name, opening.target))?;
            }
        }
    }
    openings.into_iter().map(Opening::finish).collect()
}

/// Raises the limit of open files by this many, as far as the administrator allows, because hundreds of flows need more
/// than the usual 1024.
///
/// # Errors
/// The kernel does not report how many are open.
pub(super) fn allow_files(more: usize) -> Result<()> {
    let open = std::fs::read_dir("/proc/self/fd").context("/proc/self/fd")?.count();
    let needed = (open + more) as u64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard)
            .context(format!("raising the limit of open files to {needed}"))?;
    }
    Ok(())
}

/// Marks the token of the end that connects.
const NEAR: u64 = 1 << 32;

fn open(route: &Route<'_>) -> Result<Opening> {
    let address = SocketAddr::new(route.to_address, 0);
    let listener = inside(route.to, move || TcpListener::bind(address).context(address))?;
    listener.set_nonblocking(true)?;
    let target = listener.local_addr()?;
    let near = inside(route.from, move || {
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))?;
        match socket.connect(&target.into()) {
            Err(error) if error.raw_os_error() != Some(nix::libc::EINPROGRESS) => {
                Err(error).context(target)
            }
            _ => Ok(socket),
        }
    })?;
    Ok(Opening { listener, target, near: Some(near), connected: false, far: None })
}

impl Opening {
    fn complete(&self) -> bool {
        self.connected && self.far.is_some()
    }

    fn advance(&mut self, poller: &Poller, near: bool) -> io::Result<()> {
        if !near {
            match self.listener.accept() {
                Ok((far, _)) => self.far = Some(far),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            return poller.remove(&self.listener);
        }
        let Some(socket) = &self.near else { return Ok(()) };
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        self.connected = true;
        poller.remove(socket)
    }

    fn finish(self) -> Result<TcpPair> {
        let near: TcpStream = self.near.context("no socket")?.into();
        let far = self.far.context("no connection")?;
        far.set_nonblocking(true)?;
        for stream in [&near, &far] {
            stream.set_nodelay(true)?;
            socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
        }
        Ok(TcpPair { near, far })
    }
}

/// The two ends of a flow over UDP.
#[derive(Debug)]
pub(super) struct UdpPair {
    /// The end in the sender's host.
    pub near: UdpSocket,
    /// The end in the receiver's host.
    pub far: UdpSocket,
    /// The address of the receiver.
    pub target: SocketAddr,
}

/// Makes the sockets of a flow over UDP. They receive single datagrams only (no `UDP_GRO`), as most programs' sockets
/// do.
///
/// # Errors
/// The address does not belong to the receiver's host.
pub(super) fn datagrams(from: &Namespace, to: &Namespace, address: IpAddr) -> Result<UdpPair> {
    let far = inside(to, move || bind(address))?;
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let near = inside(from, move || bind(any))?;
    let target = far.local_addr();
    Ok(UdpPair { near, far, target })
}

fn bind(address: IpAddr) -> Result<UdpSocket> {
    let options = UdpOptions { gro: false, ..UdpOptions::new(SocketAddr::new(address, 0)) };
    UdpSocket::bind(&options).context(address)
}

/// Returns a duration in nanoseconds, the unit of the boot clock.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
