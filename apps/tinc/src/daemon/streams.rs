//! The TCP connections with neighbours.
//!
//! The loop itself dials, reads and writes, because a task for that would have to be woken for each message. It writes what it has for a connection
//! at once. What waits to be written is bounded by the node, which closes a connection whose peer does not read.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use adit_engine::Instant;
use adit_runtime::clock::now;
use adit_tinc::name::NodeName;
use adit_tinc::node::ConnectionId;
use futures_util::Stream;
use futures_util::stream::{AbortHandle, Abortable, SelectAll, StreamExt, once, unfold};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::dial::Link;

/// The number of bytes that are read at once.
const READ: usize = 16 * 1024;

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
    /// Ends dialling or reading.
    source: AbortHandle,
    pause: Pause,
}

/// When a connection may be read again, on the node's clock.
#[derive(Clone, Default)]
struct Pause(Arc<AtomicU64>);

impl Pause {
    fn set(&self, until: Instant) {
        self.0.store(until.as_nanos(), Relaxed);
    }

    async fn end(&self) {
        let left = Instant::from_nanos(self.0.load(Relaxed)).since(now());
        if !left.is_zero() {
            sleep(left).await;
        }
    }
}

/// The end of a connection for writing.
struct Writer {
    stream: Pin<Box<dyn AsyncWrite + Send>>,
    waiting: VecDeque<u8>,
}

impl Writer {
    /// Writes what waits, as far as the kernel takes it. Otherwise the context is woken when it takes more.
    fn write(&mut self, context: &mut Context<'_>) {
        while !self.waiting.is_empty() {
            match self.stream.as_mut().poll_write(context, self.waiting.as_slices().0) {
                Poll::Ready(Ok(len)) if len > 0 => drop(self.waiting.drain(..len)),
                Poll::Pending => break,
                // The reader notices it as well.
                Poll::Ready(_) => self.waiting.clear(),
            }
        }
        if self.waiting.is_empty() {
            // A peer that did not read for a while must not occupy memory for good.
            self.waiting = VecDeque::new();
        }
    }

    /// Writes what waits, as far as the kernel takes it now.
    fn write_now(&mut self) {
        self.write(&mut Context::from_waker(Waker::noop()));
    }

    /// Writes all that waits.
    async fn finish(mut self) {
        let _ = self.stream.write_all(self.waiting.make_contiguous()).await;
    }
}

/// The connections.
pub(super) struct Streams {
    open: HashMap<ConnectionId, Open>,
    /// The connections on which bytes wait.
    waiting: BTreeSet<ConnectionId>,
    /// What dials, reads and resolves.
    sources: SelectAll<Abortable<Pin<Box<dyn Stream<Item = StreamEvent> + Send>>>>,
    in_tarpit: Arc<AtomicUsize>,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            open: HashMap::new(),
            waiting: BTreeSet::new(),
            sources: SelectAll::new(),
            in_tarpit: Arc::default(),
        }
    }

    fn add_source(
        &mut self,
        source: impl Stream<Item = StreamEvent> + Send + 'static,
    ) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        self.sources.push(Abortable::new(Box::pin(source), registration));
        handle
    }

    /// Waits for the next event, and writes what waits meanwhile. Cancel-safe.
    pub(super) async fn next(&mut self) -> StreamEvent {
        poll_fn(|context| {
            for id in &self.waiting {
                if let Some(Open { writer: Some(writer), .. }) = self.open.get_mut(id) {
                    writer.write(context);
                }
            }
            match self.sources.poll_next_unpin(context) {
                Poll::Ready(Some(event)) => Poll::Ready(event),
                // Without connections there is nothing to wait for.
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Opens a connection by a future, and reports it or the failure.
    pub(super) fn dial(
        &mut self,
        id: ConnectionId,
        connect: impl Future<Output = Result<Link, String>> + Send + 'static,
    ) {
        let source = self.add_source(once(async move {
            match connect.await {
                Ok(link) => StreamEvent::Connected(id, link),
                Err(problem) => StreamEvent::Closed(id, Some(problem)),
            }
        }));
        self.open.insert(id, Open { writer: None, source, pause: Pause::default() });
    }

    /// Resolves a name.
    pub(super) fn resolve(&mut self, node: NodeName, host: String, port: u16) {
        self.add_source(once(async move {
            let found = tokio::net::lookup_host((host, port)).await;
            let found = found.map(|found| found.take(MAX_ADDRESSES).collect()).unwrap_or_default();
            StreamEvent::Resolved(node, found)
        }));
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
        let pause = Pause::default();
        let reader = Reader {
            id,
            stream: read,
            buffer: vec![0; READ],
            pause: pause.clone(),
            was_full: false,
        };
        let reads = unfold(Some(reader), |reader| async { Some(reader?.next().await) });
        let source = self.add_source(reads);
        let writer = Some(Writer { stream: Box::pin(write), waiting: VecDeque::new() });
        self.open.insert(id, Open { writer, source, pause });
    }

    /// Reads no more of a connection until a time, unless the last read may have left something.
    pub(super) fn pause(&self, id: ConnectionId, until: Instant) {
        if let Some(open) = self.open.get(&id) {
            open.pause.set(until);
        }
    }

    /// Appends bytes to what [`Streams::flush`] writes. Returns the number of bytes that wait.
    pub(super) fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        let Some(Open { writer: Some(writer), .. }) = self.open.get_mut(&id) else { return 0 };
        writer.waiting.extend(bytes);
        self.waiting.insert(id);
        writer.waiting.len()
    }

    /// Writes what waits, as far as the kernel takes it, and reports how much waits then on each connection on which something did.
    ///
    /// The bytes of one turn go together. After the two records that end a rekey, a datagram under the new key may overtake the second one if they
    /// go one by one: the peer answers the first, and tinc discards the datagram.
    pub(super) fn flush(&mut self, mut report: impl FnMut(ConnectionId, usize)) {
        let open = &mut self.open;
        self.waiting.retain(|id| {
            let Some(Open { writer: Some(writer), .. }) = open.get_mut(id) else { return false };
            writer.write_now();
            report(*id, writer.waiting.len());
            !writer.waiting.is_empty()
        });
    }

    /// Returns whether the kernel did not take everything.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Ends a connection, after what waits has been sent.
    pub(super) fn close(&mut self, id: ConnectionId) {
        let Some(open) = self.open.remove(&id) else { return };
        open.source.abort();
        let Some(mut writer) = open.writer else { return };
        writer.write_now();
        if !writer.waiting.is_empty() {
            tokio::spawn(timeout(LINGER, writer.finish()));
        }
    }

    /// Keeps a refused connection open for a while, and reads nothing from it.
    pub(super) fn tarpit(&mut self, id: ConnectionId) {
        let Some(open) = self.open.remove(&id) else { return };
        open.source.abort();
        let stream = open.writer.map(|mut writer| {
            writer.write_now();
            writer.stream
        });
        self.keep(stream);
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

/// The end of a connection for reading.
struct Reader<R> {
    id: ConnectionId,
    stream: R,
    buffer: Vec<u8>,
    pause: Pause,
    /// The buffer was filled, so more may wait.
    was_full: bool,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Waits for the next bytes, or for the end, after which nothing is read.
    async fn next(mut self) -> (StreamEvent, Option<Self>) {
        if !self.was_full {
            self.pause.end().await;
        }
        match self.stream.read(&mut self.buffer).await {
            Ok(0) => (StreamEvent::Closed(self.id, None), None),
            Ok(len) => {
                self.was_full = len == self.buffer.len();
                // Most messages are short, and what is freed is zeroized.
                let bytes = self.buffer.get(..len).unwrap_or_default().to_vec();
                (StreamEvent::Bytes(self.id, bytes), Some(self))
            }
            Err(error) => (StreamEvent::Closed(self.id, Some(error.to_string())), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    /// Section 9.5: a SIG and the ACK after it reach the peer at once.
    #[tokio::test]
    async fn what_one_turn_has_is_written_together() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut streams = Streams::new();
        let (read, write) = ours.into_split();
        streams.serve_halves(ConnectionId(1), read, write);
        assert_eq!(streams.send(ConnectionId(1), b"sig\n"), 4);
        assert_eq!(streams.send(ConnectionId(1), b"ack\n"), 8);
        let nothing = timeout(Duration::from_millis(20), theirs.read_u8()).await;
        assert!(nothing.is_err(), "before the end of the turn");
        let mut waiting = Vec::new();
        streams.flush(|id, bytes| waiting.push((id, bytes)));
        assert_eq!(waiting, [(ConnectionId(1), 0)]);
        let mut arrived = [0; 16];
        assert_eq!(theirs.read(&mut arrived).await.unwrap(), 8);
        assert_eq!(arrived.get(..8), Some(&b"sig\nack\n"[..]));
    }

    /// What the kernel does not take at once goes out while the loop waits, and is reported.
    #[tokio::test]
    async fn what_waits_is_written_while_nothing_else_happens() {
        let (mut streams, mut theirs) = with_a_peer();
        streams.send(ConnectionId(1), &[7; 100]);
        let mut waiting = 0;
        streams.flush(|_, bytes| waiting = bytes);
        assert!(waiting == 84 && streams.has_waiting());
        let mut arrived = [0; 100];
        tokio::select! {
            event = streams.next() => panic!("{event:?}"),
            read = theirs.read_exact(&mut arrived) => assert_eq!(read.unwrap(), 100),
        }
        streams.flush(|_, bytes| waiting = bytes);
        assert!(waiting == 0 && !streams.has_waiting());
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
        assert_eq!(streams.send(ConnectionId(1), &[7; 100]), 100);
        streams.close(ConnectionId(1));
        let later = timeout(LINGER + Duration::from_millis(500), streams.next()).await;
        assert!(later.is_err(), "{later:?}");
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

    /// Returns the number of bytes of the next read.
    async fn next_read(streams: &mut Streams) -> usize {
        match timeout(Duration::from_secs(60), streams.next()).await {
            Ok(StreamEvent::Bytes(_, bytes)) => bytes.len(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_pause_delays_all_but_what_did_not_fit_into_a_read() {
        let (ours, mut theirs) = tokio::io::duplex(4 * READ);
        let (read, write) = tokio::io::split(ours);
        let (mut streams, id) = (Streams::new(), ConnectionId(1));
        streams.serve_halves(id, read, write);
        theirs.write_all(&[7; READ + 10]).await.unwrap();
        assert_eq!(next_read(&mut streams).await, READ);
        streams.pause(id, now() + Duration::from_secs(3600));
        assert_eq!(next_read(&mut streams).await, 10);
        let until = now() + Duration::from_millis(200);
        streams.pause(id, until);
        theirs.write_all(&[7; 20]).await.unwrap();
        assert_eq!(next_read(&mut streams).await, 20);
        assert!(now() >= until);
        theirs.write_all(&[7; 30]).await.unwrap();
        assert_eq!(next_read(&mut streams).await, 30);
    }

    #[tokio::test]
    async fn what_waits_at_the_end_is_sent() {
        let (mut streams, mut theirs) = with_a_peer();
        streams.send(ConnectionId(1), &[7; 100]);
        streams.close(ConnectionId(1));
        let mut arrived = Vec::new();
        tokio::select! {
            event = streams.next() => panic!("{event:?}"),
            read = theirs.read_to_end(&mut arrived) => assert_eq!(read.unwrap(), 100),
        }
        assert_eq!(arrived, [7; 100]);
    }
}
