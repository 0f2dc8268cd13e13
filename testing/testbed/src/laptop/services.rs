//! Services of the laptop's surroundings: resolvers that log each query, and hosts that answer with a request's source
//! address.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Access, PUBLIC_RESOLVER, VPN_NAME, VPN_NAME6, VPN_RESOLVER, VPS, VPS6, WEB, WEB6};
use crate::failure::{Context, Result};
use crate::net::Namespace;

/// The port at which a host answers `you are ADDRESS`, over UDP and TCP.
pub(super) const PORT: u16 = 8007;
const DNS: u16 = 53;
/// How often a service checks whether it must end.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest DNS message over UDP that is read.
const LONGEST: usize = 1232;

/// The transport of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// One datagram.
    Udp,
    /// A connection.
    Tcp,
}

/// A request that reached the host outside, or a router's local address.
#[derive(Debug, Clone)]
pub struct Visit {
    /// The source address, as the service sees it.
    pub from: IpAddr,
    /// The destination address.
    pub to: IpAddr,
    /// Its transport.
    pub transport: Transport,
    /// Its time.
    pub at: Instant,
}

/// A query that reached a resolver outside.
#[derive(Debug, Clone)]
pub struct Query {
    /// The source address, as the service sees it.
    pub from: IpAddr,
    /// The destination address.
    pub to: IpAddr,
    /// The queried name.
    pub name: String,
}

/// All requests and queries so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    visits: Vec<Visit>,
    queries: Vec<Query>,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn visits(&self) -> Vec<Visit> {
        self.lock().visits.clone()
    }

    pub(super) fn queries(&self) -> Vec<Query> {
        self.lock().queries.clone()
    }

    fn visit(&self, from: IpAddr, to: IpAddr, transport: Transport) {
        self.lock().visits.push(Visit { from, to, transport, at: Instant::now() });
    }
}

/// A thread in a namespace that serves one socket until it is dropped.
#[derive(Debug)]
pub(super) struct Service {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Service {
    /// Opens a socket inside and serves it. Returns when the socket is open.
    fn start<S: Send + 'static>(
        inside: &Namespace,
        open: impl FnOnce() -> Result<S> + Send + 'static,
        serve: impl Fn(&S) + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (ready, opened) = mpsc::channel();
        let thread = inside.thread(move || {
            let socket = match open() {
                Ok(socket) => socket,
                Err(failure) => {
                    let _ = ready.send(Err(failure));
                    return Ok(());
                }
            };
            let _ = ready.send(Ok(()));
            while !stopped.load(Ordering::Relaxed) {
                serve(&socket);
            }
            Ok(())
        })?;
        let service = Self { stop, thread: Some(thread) };
        opened.recv_timeout(Duration::from_secs(10)).context("a service did not start")??;
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts all services.
pub(super) fn start(
    outside: &Namespace,
    home: &Namespace,
    cafe: &Namespace,
    log: &Log,
) -> Result<Vec<Service>> {
    let mut services = Vec::new();
    for address in [IpAddr::V4(WEB), IpAddr::V6(WEB6)] {
        services.push(udp_mirror(outside, address, log)?);
        services.push(tcp_mirror(outside, address, log)?);
    }
    for address in [PUBLIC_RESOLVER, VPN_RESOLVER] {
        services.push(resolver(outside, address.into(), log)?);
    }
    for (router, access) in [(home, Access::Home), (cafe, Access::Cafe)] {
        services.push(udp_mirror(router, access.router().into(), log)?);
        services.push(forwarder(router, access.router().into())?);
    }
    Ok(services)
}

fn udp(address: IpAddr, port: u16) -> Result<UdpSocket> {
    let at = SocketAddr::new(address, port);
    let socket = UdpSocket::bind(at).context(at)?;
    socket.set_read_timeout(Some(PAUSE))?;
    Ok(socket)
}

fn udp_mirror(inside: &Namespace, address: IpAddr, log: &Log) -> Result<Service> {
    let log = log.clone();
    let serve = move |socket: &UdpSocket| {
        let mut buffer = [0; 64];
        let Ok((_, from)) = socket.recv_from(&mut buffer) else { return };
        log.visit(from.ip(), address, Transport::Udp);
        // The reply is lost if the sender no longer exists.
        let _ = socket.send_to(format!("you are {}", from.ip()).as_bytes(), from);
    };
    Service::start(inside, move || udp(address, PORT), serve)
}

fn tcp_mirror(inside: &Namespace, address: IpAddr, log: &Log) -> Result<Service> {
    let log = log.clone();
    let open = move || {
        let listener = TcpListener::bind((address, PORT)).context(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let serve = move |listener: &TcpListener| {
        let Ok((mut stream, from)) = listener.accept() else {
            std::thread::sleep(PAUSE / 10);
            return;
        };
        log.visit(from.ip(), address, Transport::Tcp);
        let _ = stream.write_all(format!("you are {}", from.ip()).as_bytes());
    };
    Service::start(inside, open, serve)
}

fn resolver(inside: &Namespace, address: IpAddr, log: &Log) -> Result<Service> {
    let log = log.clone();
    let serve = move |socket: &UdpSocket| {
        let mut buffer = [0; LONGEST];
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { return };
        let Some((name, reply)) = buffer.get(..length).and_then(answer) else { return };
        log.lock().queries.push(Query { from: from.ip(), to: address, name });
        let _ = socket.send_to(&reply, from);
    };
    Service::start(inside, move || udp(address, DNS), serve)
}

/// Starts a home router's resolver, which forwards to [`PUBLIC_RESOLVER`].
fn forwarder(inside: &Namespace, address: IpAddr) -> Result<Service> {
    let open = move || {
        let upstream = UdpSocket::bind("0.0.0.0:0")?;
        upstream.set_read_timeout(Some(PAUSE))?;
        Ok((udp(address, DNS)?, upstream))
    };
    let serve = |(socket, upstream): &(UdpSocket, UdpSocket)| {
        let mut buffer = [0; LONGEST];
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { return };
        let question = buffer.get(..length).unwrap_or_default().to_vec();
        if upstream.send_to(&question, (PUBLIC_RESOLVER, DNS)).is_err() {
            return;
        }
        // A late answer to the previous query has another number.
        while let Ok((length, _)) = upstream.recv_from(&mut buffer) {
            let reply = buffer.get(..length).unwrap_or_default();
            if reply.get(..2) == question.get(..2) {
                let _ = socket.send_to(reply, from);
                return;
            }
        }
    };
    Service::start(inside, open, serve)
}

/// Returns the name that a DNS query asks for, and the reply.
fn answer(question: &[u8]) -> Option<(String, Vec<u8>)> {
    let mut at = 12;
    let mut labels: Vec<String> = Vec::new();
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        let label = question.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes([*question.get(at)?, *question.get(at + 1)?]);
    let end = at + 4;
    let name = labels.join(".");
    let known = name.ends_with("example");
    let (v4, v6) = match name.as_str() {
        VPN_NAME => (VPS, None),
        VPN_NAME6 => (VPS, Some(VPS6)),
        _ => (WEB, Some(WEB6)),
    };
    let data: Option<Vec<u8>> = match kind {
        1 if known => Some(v4.octets().to_vec()),
        28 if known => v6.map(|address| address.octets().to_vec()),
        _ => None,
    };
    let code = if known { 0 } else { 3 };
    let mut reply = question.get(..2)?.to_vec();
    // A response, with recursion desired and available; one question and at most one record.
    reply.extend([0x81, 0x80 | code, 0, 1, 0, u8::from(data.is_some()), 0, 0, 0, 0]);
    reply.extend(question.get(12..end)?);
    if let Some(data) = data {
        // The name of the question again; class IN; a TTL of one minute is long enough to be cached.
        reply.extend([0xc0, 12]);
        reply.extend(kind.to_be_bytes());
        reply.extend([0, 1, 0, 0, 0, 60]);
        reply.extend(u16::try_from(data.len()).ok()?.to_be_bytes());
        reply.extend(data);
    }
    Some((name, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str, kind: u8) -> Vec<u8> {
        let mut text = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            text.push(u8::try_from(label.len()).unwrap());
            text.extend(label.bytes());
        }
        text.extend([0, 0, kind, 0, 1]);
        text
    }

    #[test]
    fn answers_with_the_address_of_the_name() {
        let (name, reply) = answer(&question("VPN.example", 1)).unwrap();
        assert_eq!(name, "vpn.example");
        assert!(reply.starts_with(&[0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1]));
        assert!(reply.ends_with(&VPS.octets()));
        let (_, reply) = answer(&question("a.web.example", 28)).unwrap();
        assert!(reply.ends_with(&WEB6.octets()));
        let (_, reply) = answer(&question("vpn6.example", 28)).unwrap();
        assert!(reply.ends_with(&VPS6.octets()));
        let (_, reply) = answer(&question("vpn.example", 28)).unwrap();
        assert!(reply.starts_with(&[0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 0]));
    }

    #[test]
    fn other_names_do_not_exist_and_cut_questions_get_no_answer() {
        let whole = question("host.invalid", 1);
        let (_, reply) = answer(&whole).unwrap();
        assert_eq!(reply.get(3).map(|flags| flags & 0xf), Some(3));
        for length in 0..whole.len() - 2 {
            assert!(whole.get(..length).and_then(answer).is_none(), "{length}");
        }
    }
}
