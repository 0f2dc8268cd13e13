//! The TCP connections with neighbours.
//!
//! Each connection has a task that reads and one that writes. Readers wait when the loop does not keep up: the channel to it is bounded. What
//! waits to be written is bounded by the node, which closes a connection whose peer does not read.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use adit_tinc::name::NodeName;
use adit_tinc::node::ConnectionId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::dial::Link;

/// The number of events that wait for the loop.
const WAITING: usize = 64;

/// The number of bytes that are read at once.
const READ: usize = 16 * 1024;

/// The number of bytes from which no more are added to a write.
const WRITE: usize = 16 * 1024;

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
    Connected(ConnectionId, Link),
    /// Bytes arrived.
    Bytes(ConnectionId, Vec<u8>),
    /// The connection ended, or dialling failed.
    Closed(ConnectionId, Option<String>),
    /// A name was resolved, or not.
    Resolved(NodeName, Vec<SocketAddr>),
}

/// A connection.
struct Open {
    /// `None` while it is dialled.
    writer: Option<Writer>,
    /// The number of bytes that wait.
    backlog: Arc<AtomicUsize>,
    /// The task that dials or reads.
    task: AbortHandle,
}

/// The end of a task that writes. When it is dropped, the task writes what waits, for as long as [`LINGER`].
struct Writer {
    bytes: mpsc::UnboundedSender<Vec<u8>>,
    _open: oneshot::Sender<()>,
}

/// The connections.
pub(super) struct Streams {
    open: HashMap<ConnectionId, Open>,
    /// The connections on which bytes waited when they were last looked at.
    waiting: BTreeSet<ConnectionId>,
    events: (mpsc::Sender<StreamEvent>, mpsc::Receiver<StreamEvent>),
    in_tarpit: Arc<AtomicUsize>,
}

impl Streams {
    pub(super) fn new() -> Self {
        let events = mpsc::channel(WAITING);
        Self { open: HashMap::new(), waiting: BTreeSet::new(), events, in_tarpit: Arc::default() }
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> StreamEvent {
        // This has a sender itself, so the channel never ends.
        match self.events.1.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Opens a connection by a future, and reports it or the failure.
    pub(super) fn dial(
        &mut self,
        id: ConnectionId,
        connect: impl Future<Output = Result<Link, String>> + Send + 'static,
    ) {
        let tx = self.events.0.clone();
        let task = tokio::spawn(async move {
            let event = match connect.await {
                Ok(link) => StreamEvent::Connected(id, link),
                Err(problem) => StreamEvent::Closed(id, Some(problem)),
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

    /// Starts to read and write a dialled connection. Returns false if it was closed in the meantime.
    pub(super) fn serve_dialled(&mut self, id: ConnectionId, link: Link) -> bool {
        if !self.open.contains_key(&id) {
            return false;
        }
        match link {
            Link::Tcp(stream) => self.serve(id, stream),
            Link::Command(stream) => {
                let (read, write) = stream.into_split();
                self.serve_halves(id, read, write);
            }
        }
        true
    }

    /// Starts to read and write an accepted connection.
    pub(super) fn serve(&mut self, id: ConnectionId, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let (read, write) = stream.into_split();
        self.serve_halves(id, read, write);
    }

    fn serve_halves(
        &mut self,
        id: ConnectionId,
        read: impl AsyncRead + Unpin + Send + 'static,
        write: impl AsyncWrite + Unpin + Send + 'static,
    ) {
        let task = tokio::spawn(reader(id, read, self.events.0.clone()));
        let ((bytes, lines), (open, closed)) = (mpsc::unbounded_channel(), oneshot::channel());
        let backlog = Arc::new(AtomicUsize::new(0));
        let written = write_all(write, lines, Arc::clone(&backlog));
        tokio::spawn(async move {
            let late = async {
                let _: Result<(), _> = closed.await;
                sleep(LINGER).await;
            };
            tokio::select! {
                () = written => {}
                () = late => {}
            }
        });
        let writer = Some(Writer { bytes, _open: open });
        self.open.insert(id, Open { writer, backlog, task: task.abort_handle() });
    }

    /// Sends bytes. Returns the number of bytes that wait.
    pub(super) fn send(&mut self, id: ConnectionId, bytes: Vec<u8>) -> usize {
        let Some(Open { writer: Some(writer), backlog, .. }) = self.open.get(&id) else { return 0 };
        let waiting = backlog.fetch_add(bytes.len(), Relaxed).saturating_add(bytes.len());
        // If the writer has ended, so does the reader.
        let _ = writer.bytes.send(bytes);
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

async fn reader(
    id: ConnectionId,
    mut stream: impl AsyncRead + Unpin,
    tx: mpsc::Sender<StreamEvent>,
) {
    let mut buffer = vec![0; READ];
    loop {
        let event = match stream.read(&mut buffer).await {
            Ok(0) => StreamEvent::Closed(id, None),
            // Most messages are short, and what is freed is zeroized.
            Ok(len) => StreamEvent::Bytes(id, buffer.get(..len).unwrap_or_default().to_vec()),
            Err(error) => StreamEvent::Closed(id, Some(error.to_string())),
        };
        let last = matches!(event, StreamEvent::Closed(..));
        if tx.send(event).await.is_err() || last {
            return;
        }
    }
}

/// Writes what waits together. After the two records that end a rekey, a datagram under the new key may overtake the second one if they go one by
/// one: the peer answers the first, and tinc discards the datagram.
async fn write_all(
    mut stream: impl AsyncWrite + Unpin,
    mut lines: mpsc::UnboundedReceiver<Vec<u8>>,
    backlog: Arc<AtomicUsize>,
) {
    while let Some(mut bytes) = lines.recv().await {
        while bytes.len() < WRITE
            && let Ok(more) = lines.try_recv()
        {
            bytes.extend_from_slice(&more);
        }
        let written = stream.write_all(&bytes).await;
        backlog.fetch_sub(bytes.len(), Relaxed);
        if written.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::time::timeout;

    use super::*;

    /// Takes each write as it comes.
    struct Recorder(mpsc::UnboundedSender<Vec<u8>>);

    impl AsyncWrite for Recorder {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.send(bytes.to_vec()).unwrap();
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Section 9.5: a SIG and the ACK after it reach the peer at once.
    #[tokio::test]
    async fn what_waits_is_written_together() {
        let (tx, mut writes) = mpsc::unbounded_channel();
        let (lines, waiting) = mpsc::unbounded_channel();
        let backlog = Arc::new(AtomicUsize::new(WRITE + 9));
        for line in [b"sig\n".to_vec(), b"ack\n".to_vec(), vec![0; WRITE], vec![1]] {
            lines.send(line).unwrap();
        }
        drop(lines);
        write_all(Recorder(tx), waiting, Arc::clone(&backlog)).await;
        let first = writes.recv().await.unwrap();
        assert!(first.starts_with(b"sig\nack\n") && first.len() == WRITE + 8);
        assert_eq!(writes.recv().await.unwrap(), [1]);
        assert_eq!(backlog.load(Relaxed), 0);
    }

    /// One connection, and its other end. 16 bytes fit between them.
    fn with_a_peer() -> (Streams, tokio::io::DuplexStream) {
        let mut streams = Streams::new();
        let (ours, theirs) = tokio::io::duplex(16);
        let (read, write) = tokio::io::split(ours);
        streams.serve_halves(ConnectionId(1), read, write);
        (streams, theirs)
    }

    /// A peer must not be able to make the process keep what waits for it, by reading nothing.
    #[tokio::test]
    async fn a_peer_that_reads_nothing_gets_no_more_after_the_end() {
        let (mut streams, mut theirs) = with_a_peer();
        assert_eq!(streams.send(ConnectionId(1), vec![7; 100]), 100);
        tokio::task::yield_now().await;
        streams.close(ConnectionId(1));
        sleep(LINGER + Duration::from_millis(500)).await;
        let mut arrived = Vec::new();
        theirs.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived, [7; 16]);
    }

    /// A refused peer learns nothing for a while.
    #[tokio::test]
    async fn a_bounded_number_of_refused_connections_is_held_unread() {
        let (mut streams, mut first) = with_a_peer();
        streams.tarpit(ConnectionId(1));
        let held = || {
            let (ours, theirs) = tokio::io::duplex(16);
            streams.keep(ours);
            theirs
        };
        let _others: Vec<_> = (1..MAX_TARPIT).map(|_| held()).collect();
        let mut arrived = Vec::new();
        held().read_to_end(&mut arrived).await.unwrap();
        assert!(arrived.is_empty(), "it has no place, and is closed");
        let soon = Duration::from_millis(50);
        let written = timeout(soon, first.write_all(&[0; 17])).await;
        assert!(written.is_err(), "nothing reads");
        assert!(timeout(soon, first.read_u8()).await.is_err(), "still open");
    }

    #[tokio::test]
    async fn what_waits_at_the_end_is_sent() {
        let (mut streams, mut theirs) = with_a_peer();
        streams.send(ConnectionId(1), vec![7; 100]);
        streams.close(ConnectionId(1));
        let mut arrived = Vec::new();
        theirs.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived, [7; 100]);
    }
}
