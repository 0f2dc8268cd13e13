//! `port-share`: the tunnel shares a TCP port with another service, usually a web server.
//!
//! The first bytes of a connection identify it. If they are not a client's reset, the connection is forwarded to the
//! other service.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_engine::{AddressQuota, Instant};
use adit_linux::tcp::TcpStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clock::now;

/// The maximum number of concurrent foreign connections. Further ones are closed.
const MAX_FOREIGN: usize = 512;
/// The maximum number of connections that are not identified yet. Further ones are closed.
const MAX_LOOKING: usize = 1024;
/// The number of free places required for each connection that a network already has.
const FREE_PER_CONNECTION: usize = 7;
/// The time limit for the first bytes of a connection.
const FIRST_BYTES: Duration = Duration::from_secs(10);
/// The time after which a foreign connection that is silent in both directions is closed.
const IDLE: Duration = Duration::from_secs(600);
/// The number of bytes of a foreign connection that are copied at once.
const BUFFER: usize = 8 * 1024;
/// The time limit for the other service to accept.
const CONNECT: Duration = Duration::from_secs(5);
/// The minimum interval between log lines about failures to reach the other service.
const COMPLAINTS: Duration = Duration::from_secs(60);
/// The number of bytes that identify a client: the length of its first frame, and the opcode.
const LEAD: usize = 3;
/// The length of the shortest reset: opcode, session id, acknowledgement count and message id.
const SHORTEST_RESET: u16 = 14;
/// HARD_RESET_CLIENT_V2 and _V3 with key id 0.
const RESETS: [u8; 2] = [7 << 3, 10 << 3];

/// The destination of connections that are not the tunnel's.
#[derive(Clone, Debug)]
pub struct PortShare {
    host: String,
    port: u16,
    room: Arc<Slots>,
    looking: Arc<Slots>,
    complained: Arc<Mutex<Option<Instant>>>,
    idle: Duration,
}

/// The concurrent connections, in total and per network.
#[derive(Debug)]
struct Slots(Mutex<AddressQuota>);

/// A slot. It is returned when it is dropped.
struct Slot<'a>(&'a Slots, IpAddr);

impl Slots {
    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(AddressQuota::new(most, FREE_PER_CONNECTION))))
    }

    fn shares(&self) -> MutexGuard<'_, AddressQuota> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, address: IpAddr) -> Option<Slot<'_>> {
        let taken = self.shares().take(address);
        taken.then_some(Slot(self, address))
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.shares().release(self.1);
    }
}

/// The kind of a connection.
#[derive(Debug)]
pub enum Kind {
    /// The tunnel's. Nothing was read from it.
    Tunnel,
    /// Another protocol's.
    Foreign,
    /// A connection that ended, or was silent for too long.
    Mute,
}

impl PortShare {
    /// Creates the configuration of `port-share HOST PORT`.
    pub fn new(host: String, port: u16) -> Self {
        let (room, looking) = (Slots::new(MAX_FOREIGN), Slots::new(MAX_LOOKING));
        Self { host, port, room, looking, complained: Arc::default(), idle: IDLE }
    }

    /// Inspects a connection's first bytes without consuming them.
    pub async fn sort(&self, stream: &TcpStream, remote: SocketAddr) -> Kind {
        let Some(_place) = self.looking.take(remote.ip()) else { return Kind::Mute };
        let looked = async {
            let watched = tokio_copy(stream)?;
            let mut lead = [0; LEAD];
            loop {
                watched.readable().await?;
                match watched.try_io(tokio::io::Interest::READABLE, || stream.peek(&mut lead)) {
                    Ok(count) => match sort_lead(lead.get(..count).unwrap_or(&[])) {
                        Some(kind) => return Ok(kind),
                        // The socket stays readable, so wait a moment before the next look.
                        None => tokio::time::sleep(Duration::from_millis(20)).await,
                    },
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
            }
        };
        match tokio::time::timeout(FIRST_BYTES, looked).await {
            Ok(Ok(kind)) => kind,
            Ok(Err::<_, io::Error>(_)) | Err(_) => Kind::Mute,
        }
    }

    /// Carries a foreign connection to the other service until either end closes.
    pub async fn carry(&self, stream: TcpStream, remote: SocketAddr) {
        let Some(_place) = self.room.take(remote.ip()) else {
            // Unauthenticated senders can cause this at will.
            tracing::debug!(
                "port-share: too many foreign connections, in all or from this network; {remote} is \
                 closed"
            );
            return;
        };
        let service = (self.host.as_str(), self.port);
        let connect = tokio::time::timeout(CONNECT, tokio::net::TcpStream::connect(service));
        let (mut near, mut far) = match (tokio_copy(&stream), connect.await) {
            (Ok(near), Ok(Ok(far))) => (near, far),
            (_, Ok(Err(e))) => {
                if self.may_complain(now()) {
                    let Self { host, port, .. } = self;
                    tracing::warn!("port-share: {host}:{port}: {e}; {remote} is closed");
                }
                return;
            }
            _ => return,
        };
        drop(stream);
        let active = LastActivity::new(self.idle);
        let (near_reads, near_writes) = near.split();
        let (far_reads, far_writes) = far.split();
        let both = async {
            tokio::try_join!(
                pass(near_reads, far_writes, &active),
                pass(far_reads, near_writes, &active)
            )
        };
        // The two ends decide when the connection ends, unless both are silent.
        tokio::select! {
            _ = both => {}
            () = active.has_ended() => {
                tracing::debug!("port-share: {remote} is closed: silent for {:?}", self.idle);
            }
        }
    }
}

/// The time of the last traffic on a connection.
struct LastActivity {
    since: Mutex<tokio::time::Instant>,
    idle: Duration,
}

impl LastActivity {
    fn new(idle: Duration) -> Self {
        Self { since: Mutex::new(tokio::time::Instant::now()), idle }
    }

    fn now(&self) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = tokio::time::Instant::now();
    }

    fn until(&self) -> tokio::time::Instant {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) + self.idle
    }

    /// Completes once there has been no traffic for too long.
    async fn has_ended(&self) {
        while self.until() > tokio::time::Instant::now() {
            tokio::time::sleep_until(self.until()).await;
        }
    }
}

/// Copies one direction of a connection.
async fn pass(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    active: &LastActivity,
) -> io::Result<()> {
    let mut bytes = vec![0; BUFFER];
    loop {
        let count = from.read(&mut bytes).await?;
        active.now();
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(bytes.get(..count).unwrap_or_default()).await?;
        active.now();
    }
}

impl PortShare {
    /// Limits warnings that unauthenticated senders can cause at will to one a minute.
    fn may_complain(&self, now: Instant) -> bool {
        let mut last = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.since(last) >= COMPLAINTS);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// Duplicates the descriptor of a connection for tokio.
fn tokio_copy(stream: &TcpStream) -> io::Result<tokio::net::TcpStream> {
    tokio::net::TcpStream::from_std(stream.as_fd().try_clone_to_owned()?.into())
}

/// Detects the protocol. Returns `None` while the bytes so far could belong to either.
fn sort_lead(bytes: &[u8]) -> Option<Kind> {
    match *bytes {
        [] => Some(Kind::Mute),
        [high] => (high > MAX_LEAD_HIGH).then_some(Kind::Foreign),
        [high, low] => {
            let length = u16::from_be_bytes([high, low]);
            (high > MAX_LEAD_HIGH || length < SHORTEST_RESET).then_some(Kind::Foreign)
        }
        [high, low, first, ..] => {
            let length = u16::from_be_bytes([high, low]);
            let tunnel =
                high <= MAX_LEAD_HIGH && length >= SHORTEST_RESET && RESETS.contains(&first);
            Some(if tunnel { Kind::Tunnel } else { Kind::Foreign })
        }
    }
}

/// The maximum high byte of the length of a first packet. Even with a wrapped key of 1024 bytes, the packet is shorter
/// than 2 KiB. Text begins with higher bytes.
const MAX_LEAD_HIGH: u8 = 0x07;

#[cfg(test)]
mod tests {
    use super::*;
    use adit_linux::tcp::{TcpListenOptions, TcpListener};

    #[test]
    fn a_reset_is_the_tunnels_and_everything_else_is_not() {
        let kind = |bytes: &[u8]| format!("{:?}", sort_lead(bytes));
        assert_eq!(kind(&[0, 14, 7 << 3, 1]), "Some(Tunnel)");
        assert_eq!(kind(&[1, 100, 10 << 3]), "Some(Tunnel)");
        assert_eq!(kind(&[0, 13, 7 << 3]), "Some(Foreign)");
        assert_eq!(kind(&[0, 14, 8 << 3]), "Some(Foreign)");
        assert_eq!(kind(b"GET / HTTP/1.1"), "Some(Foreign)");
        assert_eq!(kind(&[0x16, 3, 1]), "Some(Foreign)");
        assert_eq!(kind(b"S"), "Some(Foreign)");
        assert_eq!(kind(&[0]), "None");
        assert_eq!(kind(&[0, 54]), "None");
        assert_eq!(kind(&[0, 3]), "Some(Foreign)");
        assert_eq!(kind(&[]), "Some(Mute)");
    }

    #[test]
    fn a_dead_service_is_complained_about_once_a_minute() {
        let share = PortShare::new("127.0.0.1".into(), 1);
        let said = (0..200).filter(|s| share.may_complain(now() + Duration::from_secs(*s))).count();
        assert_eq!(said, 4);
    }

    async fn accepted(first: &[u8]) -> (tokio::net::TcpStream, TcpStream, SocketAddr) {
        let listener =
            TcpListener::bind(&TcpListenOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        let mut client = tokio::net::TcpStream::connect(listener.local_addr()).await.unwrap();
        client.write_all(first).await.unwrap();
        loop {
            match listener.accept() {
                Ok((stream, remote)) => return (client, stream, remote),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[test]
    fn silent_connections_of_a_few_networks_keep_no_other_network_out() {
        let slots = Slots::new(MAX_LOOKING);
        let of = |n: u8| IpAddr::from([192, 0, 2, n]);
        let mut held = Vec::new();
        for network in 0..12 {
            held.extend((0..2000).map_while(|_| slots.take(of(network))));
        }
        assert!((500..MAX_LOOKING - 50).contains(&held.len()), "{}", held.len());
        assert!((20..200).all(|n| match slots.take(of(n)) {
            Some(slot) if n < 60 => {
                held.push(slot);
                true
            }
            slot => slot.is_some(),
        }));
        let v6 = |host| IpAddr::from([0x2001, 0xdb8, 0, 0, host, 0, 0, 1]);
        let one_64: Vec<_> = (0..2000).map_while(|host| slots.take(v6(host))).collect();
        assert!(one_64.len() < 100, "{}", one_64.len());
        drop((one_64, held));
        assert_eq!(slots.shares().total(), 0);
    }

    #[tokio::test]
    async fn a_foreign_connection_reaches_the_other_service_with_every_byte() {
        let service = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = service.local_addr().unwrap().port();
        let share = PortShare::new("127.0.0.1".into(), port);
        let (mut client, stream, remote) = accepted(b"GET / HTTP/1.0\r\n\r\n").await;
        assert!(matches!(share.sort(&stream, remote).await, Kind::Foreign));
        let serve = async {
            let (mut connection, _) = service.accept().await.unwrap();
            let mut asked = [0; 18];
            connection.read_exact(&mut asked).await.unwrap();
            connection.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello").await.unwrap();
            asked
        };
        let ask = async {
            let mut told = String::new();
            client.read_to_string(&mut told).await.unwrap();
            client.shutdown().await.unwrap();
            told
        };
        let ((), asked, told) = tokio::join!(share.carry(stream, remote), serve, ask);
        assert_eq!(asked, *b"GET / HTTP/1.0\r\n\r\n");
        assert!(told.ends_with("hello"));
    }

    /// Traffic in either direction keeps a connection open.
    #[tokio::test]
    async fn a_foreign_connection_that_is_silent_for_too_long_is_closed() {
        let service = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = service.local_addr().unwrap().port();
        let share = PortShare::new("127.0.0.1".into(), port);
        let share = PortShare { idle: Duration::from_millis(100), ..share };
        let (mut client, stream, remote) = accepted(b"GET").await;
        let serve = async {
            let (mut connection, _) = service.accept().await.unwrap();
            let mut asked = Vec::new();
            // Neither end closes.
            connection.read_to_end(&mut asked).await.unwrap();
            asked
        };
        let hear = async {
            let mut told = Vec::new();
            client.read_to_end(&mut told).await.unwrap();
            told
        };
        let ((), asked, told) = tokio::join!(share.carry(stream, remote), serve, hear);
        assert_eq!((&asked[..], &told[..]), (&b"GET"[..], &b""[..]));
        assert_eq!(share.room.shares().total(), 0, "its place is free");
    }

    #[tokio::test]
    async fn what_passes_puts_the_end_off() {
        let active = LastActivity::new(Duration::from_secs(600));
        let before = active.until();
        let mut told = Vec::new();
        tokio::time::sleep(Duration::from_millis(5)).await;
        pass(&b"hello"[..], &mut told, &active).await.unwrap();
        assert_eq!(told, b"hello");
        assert!(active.until() > before);
    }

    #[test]
    fn one_site_of_ipv6_leaves_room_for_others() {
        for most in [MAX_FOREIGN, MAX_LOOKING] {
            let slots = Slots::new(most);
            let of = |site: u16, link: u16| IpAddr::from([0x2001, 0xdb8, site, link, 0, 0, 0, 1]);
            let held: Vec<_> = (0..4096).filter_map(|link| slots.take(of(0, link))).collect();
            assert!(held.len() < most / 3, "{}", held.len());
            assert!(slots.take(IpAddr::from([192, 0, 2, 1])).is_some());
            assert!(slots.take(of(1, 0)).is_some());
        }
    }

    #[tokio::test]
    async fn the_tunnels_first_bytes_are_looked_at_and_left() {
        let share = PortShare::new("127.0.0.1".into(), 1);
        let (mut client, stream, remote) = accepted(&[0]).await;
        let (kind, ()) = tokio::join!(share.sort(&stream, remote), async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            client.write_all(&[14, 7 << 3, 9]).await.unwrap();
        });
        assert!(matches!(kind, Kind::Tunnel));
        let mut bytes = [0; 8];
        let mut count = 0;
        while count < 4 {
            count += stream.recv(&mut bytes[count..]).unwrap_or(0);
        }
        assert_eq!(bytes[..4], [0, 14, 7 << 3, 9]);
    }
}
