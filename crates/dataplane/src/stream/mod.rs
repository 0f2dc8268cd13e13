//! Streams: peers over TCP. Each packet is preceded by its length, `u16` big-endian.

pub mod frames;
mod pending;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use adit_engine::{Link, SecretBytes};
use adit_linux::poll::{Interest, Poller};
use adit_linux::tcp::TcpStream;

use crossbeam_utils::CachePadded;
use pending::Pending;
use serde::{Deserialize, Serialize};

/// The longest packet accepted from a stream unless [`StreamOptions::max_frame`] sets another limit: a jumbo frame of
/// 9000 bytes plus what any data format adds. A peer may derive its own bound from its MTU and therefore refuse smaller
/// packets.
pub const MAX_FRAME: u16 = 9_600;

/// The maximum size added to an inner packet: an Ethernet header, framings, and the longest data format.
const FRAME_ADDED: u16 = 256;

/// The options of a stream.
#[derive(Copy, Clone, Debug)]
pub struct StreamOptions {
    /// The maximum number of data packets queued while the socket is full (`tcp-queue-limit`).
    pub queue_limit: u32,
    /// The longest packet accepted; a longer one ends the stream.
    pub max_frame: u16,
}

impl StreamOptions {
    /// Raises the limit so that packets of up to `mtu` bytes fit.
    #[must_use]
    pub fn of_mtu(self, mtu: u16) -> Self {
        Self { max_frame: self.max_frame.max(mtu.saturating_add(FRAME_ADDED)), ..self }
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { queue_limit: 64, max_frame: MAX_FRAME }
    }
}

/// The reason why a stream ended.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum StreamEnd {
    /// The peer closed it.
    Closed,
    /// A length of 0 or above the maximum: the ends no longer agree where packets begin.
    BadLength,
    /// A data packet that is not authentic, or a repeated one.
    BadPacket,
    /// More control packets than an unauthenticated peer may send, or than the queue can hold.
    Flood,
    /// The kernel's error, by number.
    Failed(i32),
}

impl std::fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the connection"),
            Self::BadLength => f.write_str("a packet's length makes no sense"),
            Self::BadPacket => f.write_str("a packet failed authentication or came twice"),
            Self::Flood => f.write_str("too many control packets"),
            Self::Failed(errno) => io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}

/// The maximum number of bytes that the kernel queues and has not yet sent once (`TCP_NOTSENT_LOWAT`). More would only
/// delay later packets, such as a ping in the tunnel, or the signal to TCP in the tunnel that the path is full.
const NOTSENT: u32 = 64 << 10;

/// Packets of up to this many bytes (pings, names, acknowledgements) may use a reserve beyond the queue's limit. Bulk
/// traffic fills the queue with every super-packet, and they would otherwise be dropped with it.
const SMALL: usize = 576;
/// The number of packets in the reserve: more than a super-packet is split into.
pub(crate) const RESERVE: usize = 128;

/// The maximum number of control packets from an unauthenticated peer: far more than a TLS handshake needs.
pub(crate) const MAX_UNAUTHENTICATED_FRAMES: u32 = 64;

/// Marks a poller token as belonging to a stream; the other bits are the stream's id.
pub(crate) const TOKEN: u64 = 1 << 62;

/// The number of parts of the stream table: the maximum number of workers. Workers look up streams with each burst,
/// mostly their own, whose parts no other worker uses if the number of workers divides this one.
const PARTS: usize = 64;

type StreamShard = RwLock<HashMap<u64, Arc<Stream>>>;

/// The streams of the plane, by id.
#[derive(Debug)]
pub(crate) struct Streams(Box<[CachePadded<StreamShard>]>);

impl Default for Streams {
    fn default() -> Self {
        Self((0..PARTS).map(|_| CachePadded::default()).collect())
    }
}

impl Streams {
    pub(crate) fn insert(&self, stream: Arc<Stream>) {
        let Some(part) = self.part(stream.id) else { return };
        part.write().unwrap_or_else(PoisonError::into_inner).insert(stream.id, stream);
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Stream>> {
        self.part(id)?.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Returns the stream of a link, if it is one.
    pub(crate) fn of(&self, link: &Link) -> Option<Arc<Stream>> {
        self.get(link.stream_id()?)
    }

    /// Shrinks the table to its contents.
    pub(crate) fn release_memory(&self) {
        for part in &self.0 {
            part.write().unwrap_or_else(PoisonError::into_inner).shrink_to_fit();
        }
    }

    /// Removes a stream from the table. The caller that receives the stream ends it.
    pub(crate) fn remove(&self, id: u64) -> Option<Arc<Stream>> {
        self.part(id)?.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    /// Returns the state of all streams, with their sockets.
    pub(crate) fn save(&self) -> Vec<(SavedStream, OwnedFd)> {
        let mut all = Vec::new();
        for part in &self.0 {
            let part = part.read().unwrap_or_else(PoisonError::into_inner);
            all.extend(part.values().filter_map(|stream| stream.save()));
        }
        all
    }

    fn part(&self, id: u64) -> Option<&StreamShard> {
        self.0.get(id as usize % PARTS).map(|part| &**part)
    }
}

/// The bytes of a stream that are on their way, for another process. Its socket passes separately.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedStream {
    /// The stream.
    pub link: Link,
    /// The start of a packet that has not arrived completely.
    partial: SecretBytes,
    /// The packets that the socket has not accepted, beginning with the rest of one that is partly sent.
    pending: SecretBytes,
}

/// One stream. It is read by one worker, its owner, and written by any thread that has a packet for it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub id: u64,
    pub link: Link,
    pub options: StreamOptions,
    socket: TcpStream,
    /// The owner's poller.
    poller: Arc<Poller>,
    tx: Mutex<Tx>,
    /// Packets queued because the socket is full: a copy of [`Pending::packets`].
    backlog: AtomicUsize,
    ended: AtomicBool,
    /// The receiving side. Only the owner locks it.
    pub rx: Mutex<Rx>,
}

#[derive(Debug, Default)]
struct Tx {
    pending: Pending,
    /// Workers that stopped reading the TUN device must be woken when the queue is empty.
    held: bool,
}

/// The receiving side.
#[derive(Debug, Default)]
pub(crate) struct Rx {
    /// The start of a packet that has not arrived completely.
    pub partial: Vec<u8>,
    /// The peer has a session, or control admitted it.
    pub known: bool,
    /// The number of control packets received before that.
    pub unauthenticated: u32,
}

impl Rx {
    /// Keeps the start of an incomplete packet. Its memory is freed once the packet is complete.
    pub(crate) fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            self.partial = Vec::new();
        } else {
            self.partial.clear();
            self.partial.extend_from_slice(rest);
        }
    }
}

/// The part of the queue that was sent.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum DrainResult {
    /// The whole queue. If `held`, workers wait for this.
    All { held: bool },
    /// A part, because the socket is full again, or broken, which the poller reports to the owner.
    Partly,
}

impl Stream {
    /// Takes ownership of a socket and registers it with the owner's poller.
    pub(crate) fn open(
        link: Link,
        socket: TcpStream,
        options: StreamOptions,
        poller: Arc<Poller>,
    ) -> io::Result<Arc<Self>> {
        let id = link.stream_id().filter(|id| *id < TOKEN);
        let id = id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        // This only bounds the delay: a kernel without the option serves the stream nevertheless.
        let _ = socket.set_notsent_lowat(NOTSENT);
        Ok(Arc::new(Self {
            id,
            link,
            options,
            socket,
            poller,
            tx: Mutex::default(),
            backlog: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            rx: Mutex::default(),
        }))
    }

    /// Returns the state and a duplicate of the socket, for another process; `None` if the stream has ended.
    pub(crate) fn save(&self) -> Option<(SavedStream, OwnedFd)> {
        let (tx, rx) = (self.lock(), self.rx.lock().unwrap_or_else(PoisonError::into_inner));
        let fd = self.socket.as_fd().try_clone_to_owned().ok().filter(|_| !self.is_ended())?;
        let saved = SavedStream {
            link: self.link,
            partial: SecretBytes::of(&rx.partial),
            pending: SecretBytes::of(tx.pending.bytes()),
        };
        Some((saved, fd))
    }

    /// Continues with the state of another process, before the stream is watched.
    pub(crate) fn resume(&self, saved: &SavedStream) {
        let mut rx = self.rx.lock().unwrap_or_else(PoisonError::into_inner);
        rx.partial = saved.partial.0.to_vec();
        rx.known = true;
        drop(rx);
        let mut tx = self.lock();
        tx.pending = Pending::resumed(&saved.pending.0);
        self.backlog.store(tx.pending.packets(), Relaxed);
    }

    /// Watches a resumed stream for space, if it has queued packets.
    pub(crate) fn watch_if_full(&self) {
        let tx = self.lock();
        if !tx.pending.is_empty() {
            self.watch_for_room(true);
        }
    }

    /// Starts watching the socket for input. The stream must already be in the table.
    pub(crate) fn watch(&self) -> io::Result<()> {
        self.poller.add(&self.socket, TOKEN | self.id, Interest::READ)
    }

    /// Returns whether a data packet of `len` bytes may be sealed for the stream. Once it has a packet id it must be
    /// sent, or the peer sees a gap, which some protocols treat as an attack.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let reserve = if len <= SMALL { RESERVE } else { 0 };
        self.backlog.load(Relaxed) < (self.options.queue_limit as usize).saturating_add(reserve)
    }

    /// Returns whether packets are queued because the socket is full.
    pub(crate) fn is_full(&self) -> bool {
        self.backlog.load(Relaxed) > 0
    }

    /// Returns the number of queued packets.
    pub(crate) fn backlog(&self) -> usize {
        self.backlog.load(Relaxed)
    }

    /// Returns whether the peer has yet to acknowledge some of the sent data.
    pub(crate) fn is_unacknowledged(&self) -> bool {
        self.socket.unacknowledged().is_ok_and(|segments| segments > 0)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Receives into `buffer` after the kept start of an incomplete packet; returns the number of bytes then in the
    /// buffer.
    pub(crate) fn receive(&self, rx: &Rx, buffer: &mut [u8]) -> io::Result<usize> {
        let kept = rx.partial.len();
        let (start, rest) = buffer
            .split_at_mut_checked(kept)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        match self.socket.recv(rest)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            received => {
                start.copy_from_slice(&rx.partial);
                Ok(kept.saturating_add(received))
            }
        }
    }

    /// Sends `count` sealed packets back to back, each preceded by its length, and queues what the socket does not
    /// accept. With `hold`, remembers that a worker must be woken when the queue is empty.
    pub(crate) fn send_data(&self, packets: &[u8], count: usize, hold: bool) {
        let mut tx = self.lock();
        if tx.pending.is_empty() {
            let Some(sent) = self.try_send(packets) else { return };
            if sent == packets.len() {
                return;
            }
            tx.pending.append(packets, count, sent);
            self.watch_for_room(true);
        } else {
            tx.pending.append(packets, count, 0);
        }
        tx.held |= hold;
        self.backlog.store(tx.pending.packets(), Relaxed);
    }

    /// Sends a control packet ahead of all data that is not yet partly sent. Returns `false` if the queue is full.
    pub(crate) fn send_control(&self, packet: &[u8]) -> bool {
        let mut tx = self.lock();
        let idle = tx.pending.is_empty();
        if !tx.pending.insert_control(packet) {
            return false;
        }
        if idle {
            let Some(sent) = self.try_send(tx.pending.bytes()) else { return true };
            tx.pending.advance(sent);
            if !tx.pending.is_empty() {
                self.watch_for_room(true);
            }
        }
        self.backlog.store(tx.pending.packets(), Relaxed);
        true
    }

    /// Sends the queued bytes.
    pub(crate) fn drain(&self) -> DrainResult {
        let mut tx = self.lock();
        if tx.pending.is_empty() {
            return DrainResult::All { held: std::mem::take(&mut tx.held) };
        }
        if let Some(sent) = self.try_send(tx.pending.bytes()) {
            tx.pending.advance(sent);
        }
        self.backlog.store(tx.pending.packets(), Relaxed);
        if !tx.pending.is_empty() {
            return DrainResult::Partly;
        }
        self.watch_for_room(false);
        DrainResult::All { held: std::mem::take(&mut tx.held) }
    }

    /// Ends the stream. Nothing is sent or received any more, and its memory is freed.
    pub(crate) fn end(&self) {
        let mut tx = self.lock();
        self.ended.store(true, Relaxed);
        let _ = self.poller.remove(&self.socket);
        tx.pending.clear();
        self.backlog.store(0, Relaxed);
        // After a shutdown of both directions, the peer receives an end of stream instead of a reset for the data it
        // has sent by now.
        let _ = self.socket.shutdown();
    }

    /// Returns the number of bytes that the socket took; `None` if it is broken, which the poller reports to its
    /// owner.
    fn try_send(&self, bytes: &[u8]) -> Option<usize> {
        if self.is_ended() {
            return None;
        }
        match self.socket.send(bytes) {
            Ok(sent) => Some(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(0),
            Err(_) => None,
        }
    }

    /// Watches for space in the socket. Called only under the lock, so that the poller's interest and the queue agree.
    fn watch_for_room(&self, watch: bool) {
        let interest = if watch { Interest::BOTH } else { Interest::READ };
        // Fails only when the stream has ended.
        let _ = self.poller.modify(&self.socket, TOKEN | self.id, interest);
    }

    /// Locks the sending side. The lock is held for at most one send, which never blocks.
    fn lock(&self) -> MutexGuard<'_, Tx> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_may_be_as_long_as_the_tunnels_packets() {
        let max = |mtu| StreamOptions::default().of_mtu(mtu).max_frame;
        assert_eq!([max(1500), max(9000)], [MAX_FRAME; 2]);
        assert_eq!([max(20_000), max(65_535)], [20_256, 65_535]);
    }

    #[test]
    fn an_idle_stream_costs_little() {
        assert!(size_of::<Stream>() <= 512, "{}", size_of::<Stream>());
        let mut rx = Rx::default();
        rx.keep(&[0; 1000]);
        rx.keep(&[]);
        assert_eq!(rx.partial.capacity(), 0);
    }
}
