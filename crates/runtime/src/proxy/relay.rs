//! Datagrams through a SOCKS 5 proxy (RFC 1928, section 7).
//!
//! Each datagram to and from the proxy begins with the address of its other end. The data plane does not handle these
//! headers. It sends to our socket on the loopback interface, and a separate thread adds and removes the headers, one
//! train at a time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use adit_linux::poll::{EventFd, Events, Interest, Poller};
use adit_linux::tcp::TcpStream;
use adit_linux::udp::{
    MAX_PAYLOAD, MAX_SEGMENTS, RecvBatch, SendScratch, Train, UdpOptions, UdpSocket,
};
use tokio::sync::oneshot;

use super::socks::{IPV4, IPV6, NAME};

/// The number of trains received at once.
const SLOTS: usize = 16;

/// A proxy's agreement to relay datagrams. It ends with its TCP connection, or when it is dropped.
#[derive(Debug)]
pub struct Association {
    near: SocketAddr,
    relay: SocketAddr,
    /// The local address of the connection that keeps the association alive.
    control: SocketAddr,
    client: Arc<OnceLock<SocketAddr>>,
    ended: Option<oneshot::Receiver<()>>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// The state of the relay thread.
struct RelayThread {
    control: TcpStream,
    near: UdpSocket,
    far: UdpSocket,
    relay: SocketAddr,
    /// The address of the data plane's socket. Nothing is relayed until it is set.
    client: Arc<OnceLock<SocketAddr>>,
    /// The header before each datagram to the proxy.
    header: Vec<u8>,
    batch: RecvBatch,
    scratch: SendScratch,
    train: Vec<u8>,
    stop: Arc<EventFd>,
}

const NEAR: u64 = 0;
const FAR: u64 = 1;
const CONTROL: u64 = 2;
const STOP: u64 = 3;

impl Association {
    /// Starts relaying datagrams through `relay` to the server in `header`, while `control` is open.
    pub(super) fn start(
        control: TcpStream,
        relay: SocketAddr,
        header: Vec<u8>,
        mark: Option<u32>,
        device: Option<String>,
    ) -> io::Result<Self> {
        let loopback: IpAddr = match relay {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let any: IpAddr = match relay {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let near = crate::helper::sockets::udp(&UdpOptions::new(SocketAddr::new(loopback, 0)))?;
        let mut options = UdpOptions::new(SocketAddr::new(any, 0));
        options.fwmark = mark;
        options.device = device;
        let far = crate::helper::sockets::udp(&options)?;
        let stop = Arc::new(EventFd::new()?);
        let near_at = near.local_addr();
        let control_at = control.local_addr()?;
        let client = Arc::new(OnceLock::new());
        let pump = RelayThread {
            control,
            near,
            far,
            relay,
            client: Arc::clone(&client),
            header,
            batch: RecvBatch::new(SLOTS),
            scratch: SendScratch::new(1),
            train: Vec::with_capacity(MAX_PAYLOAD),
            stop: Arc::clone(&stop),
        };
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("socks-udp".into()).spawn(move || {
            if let Err(e) = pump.run() {
                tracing::warn!("proxy: relay for datagrams ended: {e}");
                // This fails only if the client is gone.
                let _ = end.send(());
            }
        })?;
        Ok(Self {
            near: near_at,
            relay,
            control: control_at,
            client,
            ended: Some(ended),
            stop,
            thread: Some(thread),
        })
    }

    /// Returns a receiver that resolves when the proxy ends the association, and fails when the association is dropped.
    /// Only the first call returns it.
    pub fn ended(&mut self) -> Option<oneshot::Receiver<()>> {
        self.ended.take()
    }

    /// Returns the local address of the connection to the proxy. The proxy relays only while that connection exists.
    pub fn control(&self) -> SocketAddr {
        self.control
    }

    /// Sets the local address of the data plane's socket. Datagrams from other sockets on this host are not relayed.
    pub fn serve(&self, socket: SocketAddr) {
        // A socket without a bound address sends from the loopback address.
        let ip = if socket.ip().is_unspecified() { self.near.ip() } else { socket.ip() };
        // This is set once, when the socket is opened.
        let _ = self.client.set(SocketAddr::new(ip, socket.port()));
    }

    /// Returns the address to which the data plane sends.
    pub fn near(&self) -> SocketAddr {
        self.near
    }

    /// Returns the first hop of the datagrams: the proxy's relay.
    pub fn relay(&self) -> SocketAddr {
        self.relay
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl RelayThread {
    fn run(mut self) -> io::Result<()> {
        let (poller, mut events) = (Poller::new()?, Events::new());
        poller.add(&self.near, NEAR, Interest::READ)?;
        poller.add(&self.far, FAR, Interest::READ)?;
        poller.add(&self.control, CONTROL, Interest::READ)?;
        poller.add(&*self.stop, STOP, Interest::READ)?;
        loop {
            poller.wait(&mut events, None)?;
            for event in events.iter() {
                match event.token {
                    NEAR => self.outward(),
                    FAR => self.inward(),
                    CONTROL => match self.control.recv(&mut [0; 64]) {
                        // The proxy sends only the end of the stream here.
                        Ok(0) => return Err(io::ErrorKind::ConnectionAborted.into()),
                        Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                        Ok(_) | Err(_) => {}
                    },
                    _ => return Ok(()),
                }
            }
        }
    }

    /// Relays packets from the data plane to the proxy. Packets that the sockets do not accept are lost, as on any
    /// path.
    fn outward(&mut self) {
        let Self { near, far, relay, client, header, batch, scratch, train, .. } = self;
        let Ok(_) = near.recv_burst(batch) else { return };
        for received in batch.datagrams_mut() {
            if client.get() != Some(&received.remote) {
                continue;
            }
            let longer = received.segment.saturating_add(header.len());
            let fit = (MAX_PAYLOAD / longer.max(1)).clamp(1, MAX_SEGMENTS);
            for some in received.data.chunks(received.segment.max(1).saturating_mul(fit)) {
                train.clear();
                for datagram in some.chunks(received.segment.max(1)) {
                    train.extend_from_slice(header);
                    train.extend_from_slice(datagram);
                }
                send(far, *relay, longer, train, scratch);
            }
        }
    }

    /// Relays packets from the proxy to the data plane.
    fn inward(&mut self) {
        let Self { near, far, relay, client, batch, scratch, train, .. } = self;
        let (Ok(_), Some(&client)) = (far.recv_burst(batch), client.get()) else { return };
        for received in batch.datagrams_mut().filter(|received| received.remote == *relay) {
            train.clear();
            let mut segment = 0;
            for datagram in received.data.chunks(received.segment.max(1)) {
                let Some(inner) = payload(datagram) else { continue };
                // All datagrams of a train are as long as the first, except that the last may be shorter.
                if segment != 0 && inner.len() > segment {
                    send(near, client, segment, train, scratch);
                    train.clear();
                    segment = 0;
                }
                if segment == 0 {
                    segment = inner.len();
                }
                let last = inner.len() < segment;
                train.extend_from_slice(inner);
                if last {
                    send(near, client, segment, train, scratch);
                    train.clear();
                    segment = 0;
                }
            }
            send(near, client, segment, train, scratch);
        }
    }
}

fn send(
    socket: &UdpSocket,
    to: SocketAddr,
    segment: usize,
    payload: &[u8],
    scratch: &mut SendScratch,
) {
    if payload.is_empty() {
        return;
    }
    let Ok(segment) = u16::try_from(segment) else { return };
    let train = Train { to, from: None, segment, tos: None, payload };
    if socket.send_trains(&[train], scratch).is_err() && usize::from(segment) < payload.len() {
        // The device may not support segmentation, or the segments may exceed the path MTU.
        for datagram in payload.chunks(segment.into()) {
            let _ = socket.send_to(to, None, datagram);
        }
    }
}

/// Returns the payload of a datagram from the proxy. Returns `None` if the header is incomplete, or if the datagram is
/// a fragment. Fragments are optional, and no proxy sends them.
fn payload(datagram: &[u8]) -> Option<&[u8]> {
    let (head, rest) = datagram.split_first_chunk::<4>()?;
    let [0, 0, 0, kind] = *head else { return None };
    let address = match kind {
        IPV4 => 4,
        IPV6 => 16,
        NAME => usize::from(*rest.first()?).checked_add(1)?,
        _ => return None,
    };
    let payload = rest.get(address.checked_add(2)?..)?;
    (!payload.is_empty()).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a program on the same host finds the port first and keeps sending, still only the data plane's datagrams are
    /// relayed.
    #[test]
    fn only_the_data_planes_socket_is_served() {
        use std::net::{TcpListener, UdpSocket as StdUdp};
        use std::time::Duration;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = adit_linux::tcp::TcpConnectOptions::new(listener.local_addr().unwrap());
        let control = TcpStream::connect(&options).unwrap();
        let _far_end = listener.accept().unwrap();
        let proxy = StdUdp::bind("127.0.0.1:0").unwrap();
        proxy.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let header = [&[0, 0, 0, 1, 192, 0, 2, 1, 4, 210][..]].concat();
        let relay = proxy.local_addr().unwrap();
        let association = Association::start(control, relay, header.clone(), None, None).unwrap();
        let stranger = StdUdp::bind("127.0.0.1:0").unwrap();
        let plane = StdUdp::bind("0.0.0.0:0").unwrap();
        plane.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        for _ in 0..10 {
            stranger.send_to(b"mine", association.near()).unwrap();
        }
        association.serve(plane.local_addr().unwrap());
        stranger.send_to(b"mine", association.near()).unwrap();
        plane.send_to(b"the tunnel's", association.near()).unwrap();
        let mut buffer = [0; 100];
        let (len, from) = proxy.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..len], [&header[..], b"the tunnel's"].concat());
        proxy.send_to(&[&header[..], b"answer"].concat(), from).unwrap();
        let (len, _) = plane.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"answer");
    }

    #[test]
    fn the_end_of_the_proxys_connection_is_told_and_an_end_on_this_side_is_not() {
        use std::net::TcpListener;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let start = || {
            let options = adit_linux::tcp::TcpConnectOptions::new(listener.local_addr().unwrap());
            let control = TcpStream::connect(&options).unwrap();
            let (far_end, client) = listener.accept().unwrap();
            let relay = "127.0.0.1:9".parse().unwrap();
            let association = Association::start(control, relay, vec![0; 10], None, None).unwrap();
            assert_eq!(association.control(), client);
            (association, far_end)
        };
        let (mut association, far_end) = start();
        let ended = association.ended().unwrap();
        assert!(association.ended().is_none(), "told once");
        drop(far_end);
        assert_eq!(ended.blocking_recv(), Ok(()));
        let (mut association, _far_end) = start();
        let ended = association.ended().unwrap();
        drop(association);
        assert!(ended.blocking_recv().is_err());
    }

    #[test]
    fn only_whole_headers_of_whole_datagrams_are_taken_off() {
        let v4 = [&[0, 0, 0, 1, 192, 0, 2, 1, 4, 210][..], b"data"].concat();
        assert_eq!(payload(&v4), Some(&b"data"[..]));
        let v6 = [&[0, 0, 0, 4][..], &[1; 18], b"x"].concat();
        assert_eq!(payload(&v6), Some(&b"x"[..]));
        let name = [&[0, 0, 0, 3, 2][..], b"ab", &[0, 1], b"y"].concat();
        assert_eq!(payload(&name), Some(&b"y"[..]));
        for len in 0..=10 {
            assert_eq!(payload(&v4[..len]), None, "{len}");
        }
        let mut piece = v4.clone();
        piece[2] = 1;
        assert_eq!(payload(&piece), None, "a fragment");
        piece[2..4].copy_from_slice(&[0, 9]);
        assert_eq!(payload(&piece), None, "an address of no known kind");
    }
}
