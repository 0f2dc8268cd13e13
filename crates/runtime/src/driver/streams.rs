//! Listens for, accepts and dials streams, before the data plane takes them over.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adit_engine::{Instant, Link};
use adit_linux::tcp::{TcpConnectOptions, TcpListener, TcpStream};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;

use super::watch;
use crate::clock::now;
use crate::port_share::{Kind, PortShare};
use crate::proxy::{Association, Proxy};

/// The pause before the next accept after the host had no resources for a connection.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);
/// The minimum interval between log lines about this.
const SHORTAGE_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum number of connections on a shared port that were identified as the tunnel's and wait
/// for the driver.
const SORTED: usize = 64;

/// An event of a stream.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// A client's connection, with its address.
    Accepted(TcpStream, SocketAddr),
    /// The connection to the dialled server, or the reason why there is none.
    Connected(Result<Connection, String>),
    /// The proxy no longer relays this link's datagrams.
    RelayEnded(Link),
    /// The stream of [`Streams::open`] to this address, or the reason why there is none.
    Opened(SocketAddr, Result<TcpStream, String>),
}

/// A connection to a server, direct or through a relay.
#[derive(Debug)]
pub(super) enum Connection {
    /// A stream.
    Stream(TcpStream),
    /// An association with a proxy, for datagrams.
    Relay(Association),
}

/// A server behind a proxy, with its name and port as sent to the proxy.
#[derive(Clone, Debug)]
pub(super) struct ProxyTarget {
    pub(super) proxy: std::sync::Arc<Proxy>,
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether the tunnel's packets are datagrams.
    pub(super) datagrams: bool,
}

/// A connection and its address.
type AcceptedStream = (TcpStream, SocketAddr);

/// A shared port, whose connections are classified before they become events.
struct Classifier {
    share: PortShare,
    sorted: (mpsc::Sender<AcceptedStream>, mpsc::Receiver<AcceptedStream>),
}

/// A stream to another node that is being opened, with its address.
type Opening = (SocketAddr, Pin<Box<dyn Future<Output = Result<TcpStream, String>> + Send>>);

/// The maximum number of streams to other nodes that are being opened at the same time.
const MAX_OPENING: usize = 64;

type Connecting = Pin<Box<dyn Future<Output = Result<Connection, String>> + Send>>;

/// The listeners, the connection to a server that is being opened, and those to other nodes.
#[derive(Default)]
pub(super) struct Streams {
    listeners: Vec<Listening>,
    /// The listener from which to accept next, so that a flood at one does not delay the others.
    turn: usize,
    pause: Option<Pin<Box<Sleep>>>,
    shortages: u64,
    said: Option<Instant>,
    connecting: Option<Connecting>,
    opening: Vec<Opening>,
    /// The relay on which the current session depends.
    relay: Option<(Link, oneshot::Receiver<()>)>,
    classifier: Option<Classifier>,
}

struct Listening {
    listener: TcpListener,
    ready: AsyncFd<OwnedFd>,
}

impl Streams {
    pub(super) fn listen(listeners: Vec<TcpListener>) -> io::Result<Self> {
        let listen = |listener: TcpListener| {
            let ready = watch(listener.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
            Ok(Listening { listener, ready })
        };
        let listeners = listeners.into_iter().map(listen).collect::<io::Result<_>>()?;
        Ok(Self { listeners, ..Self::default() })
    }

    /// Accepts connections of another listener as well.
    pub(super) fn add_listener(&mut self, listener: TcpListener) -> io::Result<()> {
        let mut added = Self::listen(vec![listener])?;
        self.listeners.append(&mut added.listeners);
        Ok(())
    }

    /// Opens a stream to another node, in addition to others, and reports it.
    pub(super) fn open(&mut self, options: TcpConnectOptions, limit: Duration) {
        let to = options.to;
        let full = self.opening.len() >= MAX_OPENING;
        let opened = async move {
            if full {
                return Err(format!("{to}: too many connections are being opened"));
            }
            connect(&options, limit).await
        };
        self.opening.push((to, Box::pin(opened)));
    }

    /// Shares the listeners' ports with another service.
    pub(super) fn share(&mut self, share: PortShare) {
        self.classifier = Some(Classifier { share, sorted: mpsc::channel(SORTED) });
    }

    /// Connects to a server or to the proxy in front of it, and abandons an earlier attempt.
    pub(super) fn connect(
        &mut self,
        options: TcpConnectOptions,
        limit: Duration,
        proxy_target: Option<ProxyTarget>,
    ) {
        self.connecting = Some(Box::pin(async move {
            let stream = connect(&options, limit).await?;
            match proxy_target {
                Some(ProxyTarget { proxy, host, port, datagrams: true }) => {
                    let (mark, device) = (options.fwmark, options.device);
                    let relay = proxy.associate(stream, (&host, port), limit, mark, device);
                    return Ok(Connection::Relay(relay.await?));
                }
                Some(ProxyTarget { proxy, host, port, .. }) => {
                    let to = (host.as_str(), port);
                    let Some(challenge) = proxy.pass(&stream, to, None, limit).await? else {
                        return Ok(Connection::Stream(stream));
                    };
                    // The answer uses a separate connection, because this one may be ending.
                    drop(stream);
                    let stream = connect(&options, limit).await?;
                    proxy.pass(&stream, to, Some(&challenge), limit).await?;
                    return Ok(Connection::Stream(stream));
                }
                None => {}
            }
            Ok(Connection::Stream(stream))
        }));
    }

    /// Reports the end of the proxy's relay that this link uses.
    pub(super) fn watch_relay(&mut self, link: Link, ended: oneshot::Receiver<()>) {
        self.relay = Some((link, ended));
    }

    /// Abandons a connection that is being opened.
    pub(super) fn forget(&mut self) {
        self.connecting = None;
    }

    /// Returns the number of times that the host had no resources for a connection.
    pub(super) fn accept_failures(&self) -> u64 {
        self.shortages
    }

    /// Waits for the next event, or forever if there is no listener and no connection attempt.
    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> StreamEvent {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<StreamEvent> {
        if let Some(connecting) = &mut self.connecting
            && let Poll::Ready(result) = connecting.as_mut().poll(cx)
        {
            self.connecting = None;
            return Poll::Ready(StreamEvent::Connected(result));
        }
        for at in 0..self.opening.len() {
            if let Some((to, opening)) = self.opening.get_mut(at)
                && let Poll::Ready(result) = opening.as_mut().poll(cx)
            {
                let to = *to;
                drop(self.opening.swap_remove(at));
                return Poll::Ready(StreamEvent::Opened(to, result));
            }
        }
        if let Some((link, ended)) = &mut self.relay
            && let Poll::Ready(ended) = Pin::new(ended).poll(cx)
        {
            let link = *link;
            self.relay = None;
            // A relay that this end closed causes no event.
            if ended.is_ok() {
                return Poll::Ready(StreamEvent::RelayEnded(link));
            }
        }
        loop {
            if let Some(classifier) = &mut self.classifier
                && let Poll::Ready(Some((stream, peer))) = classifier.sorted.1.poll_recv(cx)
            {
                return Poll::Ready(StreamEvent::Accepted(stream, peer));
            }
            let (stream, peer) = ready!(self.poll_accept(cx));
            match &self.classifier {
                None => return Poll::Ready(StreamEvent::Accepted(stream, peer)),
                Some(classifier) => classifier.sort(stream, peer),
            }
        }
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<(TcpStream, SocketAddr)> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let count = self.listeners.len();
            let turns = (self.turn..count).chain(0..self.turn.min(count));
            let found = turns
                .filter_map(|at| self.listeners.get(at).map(|listening| (at, listening)))
                .find_map(|(at, listening)| listening.poll_accept(cx).map(|result| (at, result)));
            match found {
                None => return Poll::Pending,
                Some((at, Ok(accepted))) => {
                    self.turn = at.wrapping_add(1);
                    return Poll::Ready(accepted);
                }
                Some((_, Err(e))) => self.wait_for_resources(&e),
            }
        }
    }

    /// Pauses after a lack of descriptors or memory, because trying again at once would be a busy
    /// loop.
    fn wait_for_resources(&mut self, e: &io::Error) {
        self.shortages = self.shortages.saturating_add(1);
        self.pause = Some(Box::pin(tokio::time::sleep(SHORTAGE_PAUSE)));
        if self.said.is_none_or(|said| now().since(said) >= SHORTAGE_LOG_INTERVAL) {
            self.said = Some(now());
            tracing::warn!(
                "cannot accept TCP connections: {e}; retrying every second. More descriptors: \
                 LimitNOFILE= in the service, or ulimit -n"
            );
        }
    }
}

impl Classifier {
    /// Inspects a connection in a separate task, which returns it to the driver if it is the
    /// tunnel's.
    fn sort(&self, stream: TcpStream, peer: SocketAddr) {
        let (share, sorted) = (self.share.clone(), self.sorted.0.clone());
        tokio::spawn(async move {
            match share.sort(&stream, peer).await {
                // Fails only if the driver no longer exists.
                Kind::Tunnel => drop(sorted.send((stream, peer)).await),
                Kind::Foreign => share.carry(stream, peer).await,
                Kind::Mute => {}
            }
        });
    }
}

impl Listening {
    /// Accepts a connection. Returns `None` if none waits, or after an error that the next call
    /// would get too.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Option<io::Result<(TcpStream, SocketAddr)>> {
        loop {
            let mut ready = match self.ready.poll_read_ready(cx) {
                Poll::Ready(Ok(ready)) => ready,
                Poll::Ready(Err(e)) => return Some(Err(e)),
                Poll::Pending => return None,
            };
            match self.listener.accept() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(e) if is_of_one_connection(&e) => {}
                other => return Some(other),
            }
        }
    }
}

/// Returns whether an error of `accept` concerns only a connection that broke while it waited.
/// Other errors concern the listener or the host, and the next call gets them too.
fn is_of_one_connection(e: &io::Error) -> bool {
    use nix::errno::Errno;
    matches!(
        Errno::from_raw(e.raw_os_error().unwrap_or(0)),
        Errno::ECONNABORTED
            | Errno::ECONNRESET
            | Errno::ENOTCONN
            | Errno::EPROTO
            | Errno::EPERM
            | Errno::EINTR
            | Errno::ETIMEDOUT
            | Errno::ENETDOWN
            | Errno::ENETUNREACH
            | Errno::EHOSTDOWN
            | Errno::EHOSTUNREACH
            | Errno::ENOPROTOOPT
            | Errno::EOPNOTSUPP
    )
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams")
            .field("listeners", &self.listeners.len())
            .field("connecting", &self.connecting.is_some())
            .finish_non_exhaustive()
    }
}

/// Connects to a server. The tunnel's first byte may be sent on the resulting stream.
///
/// # Errors
/// Returns OpenVPN's message for the failure, including when connecting takes longer than `limit`.
async fn connect(options: &TcpConnectOptions, limit: Duration) -> Result<TcpStream, String> {
    let made = async {
        let stream = crate::helper::sockets::connect(options)?;
        let ready = watch(stream.as_fd().try_clone_to_owned()?, Interest::WRITABLE)?;
        loop {
            let mut guard = ready.writable().await?;
            if stream.finish_connect()? {
                return Ok(stream);
            }
            guard.clear_ready();
        }
    };
    let made = tokio::time::timeout(limit, made);
    let late = || io::Error::from_raw_os_error(nix::errno::Errno::ETIMEDOUT as i32);
    let made = made.await.unwrap_or_else(|_| Err(late()));
    made.map_err(|e: io::Error| {
        let to = options.to;
        let family = if to.is_ipv4() { "AF_INET" } else { "AF_INET6" };
        let words = match e.raw_os_error() {
            Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_owned(),
            None => e.to_string(),
        };
        format!("TCP: connect to [{family}]{}:{} failed: {words}", to.ip(), to.port())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream as StdStream;

    use adit_linux::tcp::TcpListenOptions;

    use super::*;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener =
            TcpListener::bind(&TcpListenOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = listener.local_addr();
        (listener, address)
    }

    async fn within<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(10), future).await.expect("it takes too long")
    }

    #[tokio::test]
    async fn connections_are_accepted_by_turns() {
        let ((first, one), (second, two)) = (listener(), listener());
        let mut streams = Streams::listen(vec![first, second]).unwrap();
        let _flood: Vec<_> = (0..20).map(|_| StdStream::connect(one).unwrap()).collect();
        let other = StdStream::connect(two).unwrap();
        let wanted = other.local_addr().unwrap();
        let mut peers = Vec::new();
        for _ in 0..3 {
            let StreamEvent::Accepted(_, peer) = within(streams.next()).await else {
                panic!("nothing was dialled")
            };
            peers.push(peer);
        }
        assert!(peers.contains(&wanted), "{wanted} waits behind the flood: {peers:?}");
    }

    #[tokio::test]
    async fn several_streams_are_opened_at_a_time_and_each_is_reported() {
        let ((first, one), (second, two), (third, closed)) = (listener(), listener(), listener());
        drop(third);
        let mut streams = Streams::default();
        for to in [one, two, closed] {
            streams.open(TcpConnectOptions::new(to), Duration::from_secs(5));
        }
        let mut opened = Vec::new();
        for _ in 0..3 {
            let StreamEvent::Opened(to, result) = within(streams.next()).await else {
                panic!("nothing else was asked for")
            };
            assert_eq!(result.is_ok(), to != closed, "{result:?}");
            opened.push(to);
        }
        assert!([one, two, closed].iter().all(|to| opened.contains(to)));
        let mut accepting = Streams::listen(vec![first]).unwrap();
        accepting.add_listener(second).unwrap();
        for _ in 0..2 {
            assert!(matches!(within(accepting.next()).await, StreamEvent::Accepted(..)));
        }
    }

    #[tokio::test]
    async fn a_dialled_stream_is_connected_when_its_event_is_returned() {
        let (listener, address) = listener();
        let mut streams = Streams::default();
        streams.connect(TcpConnectOptions::new(address), Duration::from_secs(5), None);
        let StreamEvent::Connected(Ok(Connection::Stream(stream))) = within(streams.next()).await
        else {
            panic!("it connects")
        };
        let mut accepting = Streams::listen(vec![listener]).unwrap();
        let StreamEvent::Accepted(_, peer) = within(accepting.next()).await else {
            panic!("it is accepted")
        };
        assert_eq!(stream.local_addr().unwrap(), peer);
    }

    /// Accepts the next connection, sends `answer` and returns the request.
    fn proxy_says(proxy: &std::net::TcpListener, answer: &str) -> (String, StdStream) {
        let (mut stream, _) = proxy.accept().unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            io::Read::read_exact(&mut stream, &mut byte).unwrap();
            asked.extend(byte);
        }
        stream.write_all(answer.as_bytes()).unwrap();
        (String::from_utf8(asked).unwrap(), stream)
    }

    #[tokio::test]
    async fn a_proxys_question_is_answered_on_another_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = std::thread::spawn(move || {
            let digest =
                "HTTP/1.0 407 x\r\nProxy-Authenticate: Digest realm=\"r\", nonce=\"n\"\r\n\r\n";
            let (first, _) = proxy_says(&listener, digest);
            let (second, stream) = proxy_says(&listener, "HTTP/1.0 200 OK\r\n\r\n");
            (first, second, stream.peer_addr().unwrap())
        });
        let login = crate::proxy::Login {
            username: "ann".into(),
            password: zeroize::Zeroizing::new("secret".into()),
        };
        let http = crate::proxy::HttpProxy {
            host: "127.0.0.1".into(),
            port: address.port(),
            login: Some(login),
            scheme: crate::proxy::Scheme::Auto,
            version: "1.0".into(),
            agent: None,
            headers: Vec::new(),
        };
        let proxy_target = ProxyTarget {
            proxy: std::sync::Arc::new(Proxy::Http(http)),
            host: "vpn.example".into(),
            port: 443,
            datagrams: false,
        };
        let mut streams = Streams::default();
        let limit = Duration::from_secs(5);
        streams.connect(TcpConnectOptions::new(address), limit, Some(proxy_target));
        let StreamEvent::Connected(Ok(Connection::Stream(stream))) = within(streams.next()).await
        else {
            panic!("the proxy lets it through")
        };
        let (first, second, peer) = proxy.join().unwrap();
        assert!(!first.contains("Proxy-Authorization"), "{first}");
        assert!(second.contains("Proxy-Authorization: Digest username=\"ann\""), "{second}");
        assert_eq!(stream.local_addr().unwrap(), peer, "the connection that was let through");
    }

    #[tokio::test]
    async fn a_port_without_a_listener_is_openvpns_sentence() {
        let (listener, address) = listener();
        drop(listener);
        let mut streams = Streams::default();
        streams.connect(TcpConnectOptions::new(address), Duration::from_secs(5), None);
        let StreamEvent::Connected(Err(why)) = within(streams.next()).await else {
            panic!("nobody listens")
        };
        let expected = format!("TCP: connect to [AF_INET]{address} failed: Connection refused");
        assert_eq!(why, expected);
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_given_up() {
        // The listener's queue is full, so the kernel no longer answers.
        let mut options = TcpListenOptions::new("127.0.0.1:0".parse().unwrap());
        options.backlog = 0;
        let listener = TcpListener::bind(&options).unwrap();
        let address = listener.local_addr();
        let _fill: Vec<_> =
            (0..4).map(|_| TcpStream::connect(&TcpConnectOptions::new(address)).unwrap()).collect();
        let mut streams = Streams::default();
        streams.connect(TcpConnectOptions::new(address), Duration::from_millis(50), None);
        let StreamEvent::Connected(Err(why)) = within(streams.next()).await else {
            panic!("nobody answers")
        };
        assert!(why.ends_with("failed: Connection timed out"), "{why}");
    }

    #[tokio::test]
    async fn a_lack_of_descriptors_pauses_and_does_not_spin() {
        let (listener, address) = listener();
        let mut streams = Streams::listen(vec![listener]).unwrap();
        let mut peer = StdStream::connect(address).unwrap();
        streams.wait_for_resources(&io::Error::from_raw_os_error(nix::errno::Errno::EMFILE as i32));
        let began = now();
        let StreamEvent::Accepted(..) = within(streams.next()).await else { panic!("it goes on") };
        assert!(now().since(began) >= SHORTAGE_PAUSE);
        assert_eq!(streams.accept_failures(), 1);
        peer.write_all(b"x").unwrap();
    }

    #[test]
    fn only_a_lack_is_the_listeners_own() {
        use nix::errno::Errno;
        let of_one =
            |errno: Errno| is_of_one_connection(&io::Error::from_raw_os_error(errno as i32));
        assert!(of_one(Errno::ECONNABORTED) && of_one(Errno::EPROTO) && of_one(Errno::EPERM));
        assert!(!of_one(Errno::EMFILE) && !of_one(Errno::ENFILE) && !of_one(Errno::ENOBUFS));
    }
}
