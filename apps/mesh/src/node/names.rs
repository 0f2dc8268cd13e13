//! A DNS server on the node's own addresses. It resolves the mesh's names for programs on this machine.
//!
//! It answers for `NAME.MESH.internal` and for the addresses of the mesh. If the machine cannot send it only queries for these names, it
//! receives all queries and forwards the others to the machine's previous servers. It forwards only for this machine and the OpenVPN apps
//! that are its leaves.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_dns::Dnssec;
use adit_dns::zone::{Over, Range, Reply, Zone, refused};
use adit_mesh::roster::{Changes, Roster, ipv6_net};
use adit_runtime::host::dns::resolv_conf;
use adit_runtime::host::{DnsPlan, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The port of DNS.
const PORT: u16 = 53;

/// The parent domain of each mesh's domain (reserved for private use by ICANN in 2024).
const DOMAIN: &str = "internal";

/// The maximum number of simultaneous forwarded queries, and of TCP connections of this machine and its apps.
const MAX_PENDING: usize = 64;

/// The maximum number of TCP connections of other members. They cannot take the places of this machine.
const MAX_FOREIGN: usize = 16;

/// The time limit for another server's answer, and for an idle TCP connection.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest UDP message that is read.
const MAX_DATAGRAM: usize = 4096;

/// The maximum number of servers to which queries for other names are forwarded.
const MAX_SERVERS: usize = 3;

/// The zone, and the servers for other names.
#[derive(Debug)]
struct Resolver {
    zone: Mutex<Arc<Zone>>,
    own: Vec<IpAddr>,
    /// The addresses of the OpenVPN apps that are leaves of this node, which have no other server.
    apps: Mutex<Arc<BTreeSet<IpAddr>>>,
    servers: Vec<SocketAddr>,
    /// The places for queries that are forwarded, and for TCP connections of this machine and its apps.
    pending: Arc<Semaphore>,
    /// The places for TCP connections of other members.
    foreign: Arc<Semaphore>,
}

/// The running server. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Names {
    resolver: Arc<Resolver>,
    _tasks: JoinSet<()>,
}

/// Returns the domain of a mesh.
pub(super) fn domain(changes: &Changes) -> String {
    format!("{}.{DOMAIN}", changes.genesis().name)
}

/// Returns the machine's DNS settings while the node has these addresses.
pub(super) fn plan(changes: &Changes, own: &[IpAddr]) -> Option<DnsPlan> {
    let servers: Vec<SocketAddr> = own.iter().map(|ip| SocketAddr::new(*ip, PORT)).collect();
    (!servers.is_empty()).then(|| DnsPlan {
        servers,
        search: Vec::new(),
        domains: vec![domain(changes)],
        dnssec: Some(Dnssec::Off),
        transport: Transport::Plain,
    })
}

/// Returns the zone of a roster.
pub(super) fn zone(roster: &Roster, changes: &Changes, has_ipv4: bool) -> Zone {
    let hosts = roster.members().filter_map(|member| {
        let ipv4 = member.ipv4.filter(|_| has_ipv4).map(IpAddr::from);
        let addresses = ipv4.into_iter().chain([member.ipv6.into()]);
        Some((member.name.as_ref()?.to_string(), addresses.collect()))
    });
    let v4 = changes
        .genesis()
        .ranges
        .iter()
        .filter(|_| has_ipv4)
        .map(|range| Range { address: range.network().into(), prefix_len: range.prefix_len() });
    let v6 = ipv6_net(changes.mesh());
    let v6 = Range { address: v6.network().into(), prefix_len: v6.prefix_len() };
    Zone::new(&domain(changes), hosts, v4.chain([v6]).collect())
}

impl Names {
    /// Starts to answer on these addresses of this machine. Call this before changing the machine's DNS settings.
    ///
    /// # Errors
    /// No socket could be opened.
    pub(super) async fn start(zone: Zone, own: &[IpAddr]) -> io::Result<Self> {
        let text = std::fs::read("/etc/resolv.conf").unwrap_or_default();
        let mut servers = resolv_conf::addresses(&text);
        servers.retain(|server| !own.contains(server));
        servers.truncate(MAX_SERVERS);
        let resolver = Arc::new(Resolver {
            zone: Mutex::new(Arc::new(zone)),
            own: own.to_vec(),
            apps: Mutex::default(),
            servers: servers.into_iter().map(|ip| SocketAddr::new(ip, PORT)).collect(),
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
            foreign: Arc::new(Semaphore::new(MAX_FOREIGN)),
        });
        let mut tasks = JoinSet::new();
        for ip in own {
            let datagrams = Arc::new(UdpSocket::bind((*ip, PORT)).await?);
            let streams = TcpListener::bind((*ip, PORT)).await?;
            tasks.spawn(serve_datagrams(Arc::clone(&resolver), datagrams));
            tasks.spawn(serve_streams(Arc::clone(&resolver), streams));
        }
        Ok(Self { resolver, _tasks: tasks })
    }

    /// Sets the OpenVPN apps whose queries are forwarded like those of this machine.
    pub(super) fn set_apps(&self, apps: BTreeSet<IpAddr>) {
        *self.resolver.apps.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(apps);
    }

    /// Replaces the zone.
    pub(super) fn set_zone(&self, zone: Zone) {
        *self.resolver.zone.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(zone);
    }
}

impl Resolver {
    fn answer(&self, query: &[u8], over: Over) -> Reply {
        let zone = Arc::clone(&self.zone.lock().unwrap_or_else(PoisonError::into_inner));
        zone.answer(query, over)
    }

    /// Returns whether a query comes from this machine, or from an OpenVPN app that is a leaf of it.
    fn is_own(&self, from: IpAddr) -> bool {
        let is_app = || {
            self.apps.lock().unwrap_or_else(PoisonError::into_inner).contains(&from.to_canonical())
        };
        from.is_loopback() || self.own.contains(&from) || is_app()
    }

    /// Returns a place for a TCP connection from an address, if there is one.
    fn place(&self, from: IpAddr) -> Option<OwnedSemaphorePermit> {
        let places = if self.is_own(from) { &self.pending } else { &self.foreign };
        Arc::clone(places).try_acquire_owned().ok()
    }
}

async fn serve_datagrams(resolver: Arc<Resolver>, socket: Arc<UdpSocket>) {
    let mut query = [0; MAX_DATAGRAM];
    loop {
        // An error belongs to an earlier answer.
        let Ok((len, from)) = socket.recv_from(&mut query).await else { continue };
        let query = query.get(..len).unwrap_or_default();
        match resolver.answer(query, Over::Udp) {
            Reply::Answer(answer) => drop(socket.send_to(&answer, from).await),
            Reply::Ignore => {}
            Reply::Forward => {
                let place = Arc::clone(&resolver.pending).try_acquire_owned();
                let (true, Ok(place)) = (resolver.is_own(from.ip()), place) else {
                    if let Some(answer) = refused(query) {
                        drop(socket.send_to(&answer, from).await);
                    }
                    continue;
                };
                let (resolver, socket) = (Arc::clone(&resolver), Arc::clone(&socket));
                let query = query.to_vec();
                tokio::spawn(async move {
                    for server in &resolver.servers {
                        if let Some(answer) = ask(*server, &query).await {
                            drop(socket.send_to(&answer, from).await);
                            break;
                        }
                    }
                    drop(place);
                });
            }
        }
    }
}

/// Queries another server from a separate port, with a random id.
async fn ask(server: SocketAddr, query: &[u8]) -> Option<Vec<u8>> {
    let any: IpAddr = match server.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(server).await.ok()?;
    let id = adit_runtime::random::bytes::<2>().ok()?;
    let mut asked = query.to_vec();
    asked.get_mut(..2)?.copy_from_slice(&id);
    socket.send(&asked).await.ok()?;
    let mut answer = vec![0; MAX_DATAGRAM];
    let len = timeout(PATIENCE, async {
        loop {
            let len = socket.recv(&mut answer).await.ok()?;
            let same = answer.get(..2) == Some(&id[..]);
            if same && answer.get(2).is_some_and(|flags| flags & 0x80 != 0) {
                return Some(len);
            }
        }
    });
    let len = len.await.ok().flatten()?;
    answer.truncate(len);
    answer.get_mut(..2)?.copy_from_slice(query.get(..2)?);
    Some(answer)
}

async fn serve_streams(resolver: Arc<Resolver>, listener: TcpListener) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors, for example: wait rather than spin.
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let Some(place) = resolver.place(from.ip()) else { continue };
        let resolver = Arc::clone(&resolver);
        tokio::spawn(async move {
            // End the connection of a client that violates the protocol or disconnects.
            let _ = serve_stream(&resolver, stream, from).await;
            drop(place);
        });
    }
}

async fn serve_stream(
    resolver: &Resolver,
    mut stream: TcpStream,
    from: SocketAddr,
) -> io::Result<()> {
    while let Ok(query) = timeout(PATIENCE, read_message(&mut stream)).await {
        let query = query?;
        let answer = match resolver.answer(&query, Over::Tcp) {
            Reply::Answer(answer) => Some(answer),
            Reply::Ignore => None,
            Reply::Forward if resolver.is_own(from.ip()) => ask_over_tcp(resolver, &query).await,
            Reply::Forward => refused(&query),
        };
        let Some(answer) = answer else { break };
        write_message(&mut stream, &answer).await?;
    }
    Ok(())
}

async fn ask_over_tcp(resolver: &Resolver, query: &[u8]) -> Option<Vec<u8>> {
    for server in &resolver.servers {
        let asked = timeout(PATIENCE, async {
            let mut stream = TcpStream::connect(*server).await?;
            write_message(&mut stream, query).await?;
            read_message(&mut stream).await
        });
        if let Ok(Ok(answer)) = asked.await {
            return Some(answer);
        }
    }
    None
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let len = stream.read_u16().await?;
    let mut message = vec![0; len.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let len = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes()[..], message].concat()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An A query for `example.org`, and one for `hub.home.internal`.
    const OTHER: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
    const HUB: &[u8] = b"\x56\x78\x01\0\0\x01\0\0\0\0\0\0\x03hub\x04home\x08internal\0\0\x01\0\x01";

    fn local() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    /// Starts a resolver. Returns its addresses for datagrams and for streams.
    async fn start(servers: Vec<SocketAddr>, own: &[IpAddr]) -> [SocketAddr; 2] {
        let hub = ("hub".to_owned(), vec![IpAddr::from([100, 87, 0, 1])]);
        let zone = Zone::new("home.internal", [hub], Vec::new());
        let resolver = Arc::new(Resolver {
            zone: Mutex::new(Arc::new(zone)),
            own: own.to_vec(),
            apps: Mutex::default(),
            servers,
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
            foreign: Arc::new(Semaphore::new(MAX_FOREIGN)),
        });
        let datagrams = Arc::new(UdpSocket::bind(local()).await.unwrap());
        let streams = TcpListener::bind(local()).await.unwrap();
        let at = [datagrams.local_addr().unwrap(), streams.local_addr().unwrap()];
        tokio::spawn(serve_datagrams(Arc::clone(&resolver), datagrams));
        tokio::spawn(serve_streams(resolver, streams));
        at
    }

    async fn query(at: SocketAddr, query: &[u8]) -> Vec<u8> {
        let socket = UdpSocket::bind(local()).await.unwrap();
        socket.send_to(query, at).await.unwrap();
        let mut answer = vec![0; 512];
        let len = timeout(PATIENCE, socket.recv(&mut answer)).await.unwrap().unwrap();
        answer.truncate(len);
        answer
    }

    #[tokio::test]
    async fn names_of_the_mesh_are_answered_and_others_passed_on_under_another_id() {
        let upstream = UdpSocket::bind(local()).await.unwrap();
        let [datagrams, streams] = start(vec![upstream.local_addr().unwrap()], &[]).await;
        let answer = query(datagrams, HUB).await;
        assert_eq!((&answer[..2], answer[3] & 15), (&HUB[..2], 0));
        assert!(answer.ends_with(&[100, 87, 0, 1]) || answer.contains(&87), "{answer:?}");
        let server = tokio::spawn(async move {
            let mut asked = [0; 512];
            let (len, from) = upstream.recv_from(&mut asked).await.unwrap();
            let asked = &mut asked[..len];
            // An answer with a wrong id was not sent by the other server.
            let mut forged = asked.to_vec();
            forged[1] ^= 1;
            forged[2] |= 0x80;
            forged.push(1);
            upstream.send_to(&forged, from).await.unwrap();
            asked[2] |= 0x80;
            upstream.send_to(asked, from).await.unwrap();
            asked.to_vec()
        });
        let answer = query(datagrams, OTHER).await;
        let asked = server.await.unwrap();
        assert_eq!((&answer[..2], &answer[2..]), (&OTHER[..2], &asked[2..]));
        let mut stream = TcpStream::connect(streams).await.unwrap();
        write_message(&mut stream, HUB).await.unwrap();
        let answer = read_message(&mut stream).await.unwrap();
        assert_eq!((&answer[..2], answer[3] & 15), (&HUB[..2], 0));
    }

    #[test]
    fn this_machine_and_its_apps_have_places_of_their_own() {
        let own: IpAddr = [100, 87, 0, 1].into();
        let resolver = Resolver {
            zone: Mutex::default(),
            own: vec![own],
            apps: Mutex::default(),
            servers: Vec::new(),
            pending: Arc::new(Semaphore::new(1)),
            foreign: Arc::new(Semaphore::new(2)),
        };
        assert!(resolver.is_own(own) && resolver.is_own(Ipv4Addr::LOCALHOST.into()));
        let app: IpAddr = [100, 87, 0, 2].into();
        assert!(!resolver.is_own(app));
        *resolver.apps.lock().unwrap() = Arc::new([app].into());
        let other: IpAddr = [100, 87, 0, 3].into();
        assert!(resolver.is_own(app) && !resolver.is_own(other));
        let [_first, _second] = [other; 2].map(|ip| resolver.place(ip).unwrap());
        assert!(resolver.place(other).is_none(), "all places of other members are taken");
        let _own = resolver.place(app).unwrap();
        assert!(resolver.place(own).is_none(), "this machine has one place");
    }
}
