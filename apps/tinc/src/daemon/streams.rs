//! The TCP connections with neighbours.
//!
//! Each connection has a task that reads and one that writes. Readers wait when the loop does not keep up: the channel to it is bounded. What
//! waits to be written is bounded by the node, which closes a connection whose peer does not read.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use adit_linux::tcp::TcpConnectOptions;
use adit_runtime::helper::sockets;
use adit_tinc::name::NodeName;
use adit_tinc::node::ConnectionId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// The number of events that wait for the loop.
const WAITING: usize = 64;

/// The number of bytes that are read at once.
const READ: usize = 16 * 1024;

/// The longest wait for a connection to be established.
const DIAL: Duration = Duration::from_secs(20);

/// The longest time for sending what waits on a connection that is closed.
const LINGER: Duration = Duration::from_secs(2);

/// The number of refused connections that are kept open.
const MAX_TARPIT: usize = 10;

/// How long a refused connection is kept open.
const TARPIT: Duration = Duration::from_secs(60);

/// The number of addresses of a name that are used.
const MAX_ADDRESSES: usize = 16;

/// An event of a connection.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// A dialled connection is established.
    Connected(ConnectionId, TcpStream),
    /// Bytes arrived.
    Bytes(ConnectionId, Vec<u8>),
    /// The connection ended, or dialling failed.
    Closed(ConnectionId, Option<String>),
    /// A name was resolved, or not.
    Resolved(NodeName, Vec<SocketAddr>),
}

/// The options of dialled sockets.
#[derive(Clone, Debug, Default)]
pub(super) struct DialOptions {
    pub(super) mark: Option<u32>,
    pub(super) device: Option<String>,
    /// The addresses to connect from.
    pub(super) from: Vec<SocketAddr>,
}

/// A connection.
struct Open {
    /// The bytes to write; `None` while it is dialled.
    writer: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// The number of bytes that wait.
    backlog: Arc<AtomicUsize>,
    /// The task that dials or reads.
    task: AbortHandle,
}

/// The connections.
pub(super) struct Streams {
    open: HashMap<ConnectionId, Open>,
    /// The connections on which bytes waited when they were last looked at.
    waiting: BTreeSet<ConnectionId>,
    options: DialOptions,
    events: (mpsc::Sender<StreamEvent>, mpsc::Receiver<StreamEvent>),
    in_tarpit: Arc<AtomicUsize>,
}

impl Streams {
    pub(super) fn new(options: DialOptions) -> Self {
        let events = mpsc::channel(WAITING);
        Self {
            open: HashMap::new(),
            waiting: BTreeSet::new(),
            options,
            events,
            in_tarpit: Arc::default(),
        }
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> StreamEvent {
        // This has a sender itself, so the channel never ends.
        match self.events.1.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Dials an address. Returns the event of a failure at once.
    pub(super) fn dial(&mut self, id: ConnectionId, to: SocketAddr) {
        let mut options = TcpConnectOptions::new(to);
        options.fwmark = self.options.mark;
        options.device.clone_from(&self.options.device);
        options.from =
            self.options.from.iter().find(|from| from.is_ipv4() == to.is_ipv4()).copied();
        let started = sockets::connect(&options).map(OwnedFd::from);
        let tx = self.events.0.clone();
        let task = tokio::spawn(async move {
            let connected = match started {
                Ok(fd) => timeout(DIAL, established(fd))
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
                Err(error) => Err(error),
            };
            let event = match connected {
                Ok(stream) => StreamEvent::Connected(id, stream),
                Err(error) => StreamEvent::Closed(id, Some(error.to_string())),
            };
            let _ = tx.send(event).await;
        });
        let dialling = Open { writer: None, backlog: Arc::default(), task: task.abort_handle() };
        self.open.insert(id, dialling);
    }

    /// Resolves a name.
    pub(super) fn resolve(&self, node: NodeName, host: String, port: u16) {
        let tx = self.events.0.clone();
        tokio::spawn(async move {
            let found = tokio::net::lookup_host((host, port)).await;
            let found = found.map(|found| found.take(MAX_ADDRESSES).collect()).unwrap_or_default();
            let _ = tx.send(StreamEvent::Resolved(node, found)).await;
        });
    }

    /// Starts to read and write an established connection.
    pub(super) fn serve(&mut self, id: ConnectionId, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let (read, write) = stream.into_split();
        let task = tokio::spawn(reader(id, read, self.events.0.clone()));
        let (writer, lines) = mpsc::unbounded_channel();
        let backlog = Arc::new(AtomicUsize::new(0));
        tokio::spawn(write_all(write, lines, Arc::clone(&backlog)));
        self.open.insert(id, Open { writer: Some(writer), backlog, task: task.abort_handle() });
    }

    /// Sends bytes. Returns the number of bytes that wait.
    pub(super) fn send(&mut self, id: ConnectionId, bytes: Vec<u8>) -> usize {
        let Some(Open { writer: Some(writer), backlog, .. }) = self.open.get(&id) else { return 0 };
        let waiting = backlog.fetch_add(bytes.len(), Relaxed).saturating_add(bytes.len());
        // If the writer has ended, so does the reader.
        let _ = writer.send(bytes);
        self.waiting.insert(id);
        waiting
    }

    /// Returns whether bytes waited when the connections were last looked at. Their writers are other tasks, which need a turn.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Reports the number of bytes that wait on each connection on which some did.
    pub(super) fn report_backlog(&mut self, mut report: impl FnMut(ConnectionId, usize)) {
        let open = &self.open;
        self.waiting.retain(|id| {
            let bytes = open.get(id).map_or(0, |open| open.backlog.load(Relaxed));
            report(*id, bytes);
            bytes > 0
        });
    }

    /// Ends a connection, after what waits has been sent.
    pub(super) fn close(&mut self, id: ConnectionId) {
        if let Some(open) = self.open.remove(&id) {
            open.task.abort();
        }
    }

    /// Keeps a refused connection open for a while, and reads nothing from it.
    pub(super) fn tarpit(&mut self, id: ConnectionId) {
        let Some(open) = self.open.remove(&id) else { return };
        open.task.abort();
        self.keep(open.writer);
    }

    /// Does the same with a connection that was not accepted.
    pub(super) fn tarpit_stream(&self, stream: TcpStream) {
        self.keep(stream);
    }

    fn keep<T: Send + 'static>(&self, held: T) {
        if self.in_tarpit.fetch_add(1, Relaxed) >= MAX_TARPIT {
            self.in_tarpit.fetch_sub(1, Relaxed);
            return;
        }
        let count = Arc::clone(&self.in_tarpit);
        tokio::spawn(async move {
            sleep(TARPIT).await;
            drop(held);
            count.fetch_sub(1, Relaxed);
        });
    }
}

/// Waits until a socket is connected.
async fn established(fd: OwnedFd) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(std::net::TcpStream::from(fd))?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

async fn reader(id: ConnectionId, mut stream: OwnedReadHalf, tx: mpsc::Sender<StreamEvent>) {
    loop {
        let mut bytes = vec![0; READ];
        let event = match stream.read(&mut bytes).await {
            Ok(0) => StreamEvent::Closed(id, None),
            Ok(len) => {
                bytes.truncate(len);
                StreamEvent::Bytes(id, bytes)
            }
            Err(error) => StreamEvent::Closed(id, Some(error.to_string())),
        };
        let last = matches!(event, StreamEvent::Closed(..));
        if tx.send(event).await.is_err() || last {
            return;
        }
    }
}

async fn write_all(
    mut stream: OwnedWriteHalf,
    mut lines: mpsc::UnboundedReceiver<Vec<u8>>,
    backlog: Arc<AtomicUsize>,
) {
    while let Some(bytes) = lines.recv().await {
        let written = if lines.is_closed() {
            timeout(LINGER, stream.write_all(&bytes))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        } else {
            stream.write_all(&bytes).await
        };
        backlog.fetch_sub(bytes.len(), Relaxed);
        if written.is_err() {
            return;
        }
    }
}
