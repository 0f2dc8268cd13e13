//! Upcalls from the workers to the control thread: three bounded queues behind one eventfd.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_engine::{DataFormat, Link, Network, Notice, PeerId};
use adit_linux::poll::EventFd;

use crate::stats::{DropReason, Stats};
use crate::stream::StreamEnd;

/// The maximum number of queued control packets of known peers.
const MAX_FRAMES: usize = 2048;
/// The share of that queue for links without a session, so hosts that only begin a handshake cannot crowd out hosts with a session.
const MAX_HANDSHAKE_FRAMES: usize = MAX_FRAMES / 2;
/// The maximum number of queued control packets of one known peer: several full windows of unacknowledged packets.
const MAX_FRAMES_OF_LINK: usize = 128;
/// The maximum number of queued unauthenticated control packets.
const MAX_UNAUTHENTICATED: usize = 512;
/// The bound for unauthenticated packets on streams, whose senders have proved their address. It is higher so that a
/// flood of forged datagrams does not end their streams.
const MAX_UNAUTHENTICATED_STREAMS: usize = 2 * MAX_UNAUTHENTICATED;
/// The bound for one such stream. Its peer has nothing more to send until its first packet is answered.
const MAX_UNAUTHENTICATED_OF_STREAM: usize = 8;
/// The maximum number of queued in-band messages. A peer with none queued may always queue one.
const MAX_IN_BAND: usize = 1024;
/// The maximum number of queued in-band messages of one peer. A peer can send any number of them.
const MAX_IN_BAND_OF_PEER: usize = 16;
/// The maximum number of queued socket errors: anyone on the path can cause them.
const MAX_UNREACHABLE: usize = 256;
/// The maximum number of queued reports of destinations without a route.
const MAX_UNROUTED: usize = 16;
/// The number of notices delivered per drain; the others follow in the next, after control packets.
const NOTICES_PER_DRAIN: usize = 256;
/// The number of unauthenticated packets delivered per drain; the others follow in the next, after those of known
/// peers.
const UNAUTHENTICATED_PER_DRAIN: usize = 64;

/// The share of a queue that one source may use: one link, one /32 or /64, one /48, and all of IPv6.
#[derive(Copy, Clone, Debug)]
struct QueueLimits {
    whole: usize,
    link: usize,
    network: usize,
    site: usize,
    ipv6: usize,
}

/// The limits for control packets of links with a session: many clients may share an address.
const SESSION_LIMITS: QueueLimits = QueueLimits {
    whole: MAX_FRAMES,
    link: MAX_FRAMES_OF_LINK,
    network: MAX_FRAMES,
    site: MAX_FRAMES,
    ipv6: MAX_FRAMES,
};
/// The limits for control packets of links with only a handshake. One host may begin many, each from a different port.
const HANDSHAKE_LIMITS: QueueLimits = QueueLimits {
    whole: MAX_HANDSHAKE_FRAMES,
    link: MAX_FRAMES_OF_LINK,
    network: MAX_HANDSHAKE_FRAMES / 4,
    site: MAX_HANDSHAKE_FRAMES / 2,
    ipv6: MAX_HANDSHAKE_FRAMES / 4 * 3,
};
/// The limits for unauthenticated datagrams.
const UNAUTHENTICATED_LIMITS: QueueLimits = QueueLimits {
    whole: MAX_UNAUTHENTICATED,
    link: MAX_UNAUTHENTICATED / 8,
    network: MAX_UNAUTHENTICATED / 8,
    site: MAX_UNAUTHENTICATED / 4,
    ipv6: MAX_UNAUTHENTICATED / 4 * 3,
};
/// The limits for unauthenticated packets on streams, in the same queue.
const UNAUTHENTICATED_STREAM_LIMITS: QueueLimits = QueueLimits {
    whole: MAX_UNAUTHENTICATED_STREAMS,
    link: MAX_UNAUTHENTICATED_OF_STREAM,
    network: MAX_UNAUTHENTICATED_STREAMS / 8,
    site: MAX_UNAUTHENTICATED_STREAMS / 4,
    ipv6: MAX_UNAUTHENTICATED_STREAMS / 4 * 3,
};
/// The longest control packet accepted: twice the longest that any protocol sends.
pub(crate) const MAX_CONTROL: usize = 4096;

/// An event for the control thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upcall<T: DataFormat> {
    /// A control packet of an admitted link or of a known peer's address.
    ControlPacket(Link, Vec<u8>),
    /// A control packet whose sender has not proved its address.
    Unauthenticated(Link, Vec<u8>),
    /// A notice about a peer.
    Notice(Notice<T>),
    /// A stream ended, after all its packets. Nothing is sent on it any more.
    StreamEnded(Link, StreamEnd),
}

/// The receiving end. Its descriptor (see [`AsFd`]) is written to when upcalls are queued, and never read: it is meant
/// for a reader that watches it edge-triggered and sleeps only after [`Upcalls::drain`].
#[derive(Debug)]
pub struct Upcalls<T: DataFormat>(Arc<Queues<T>>);

/// The sending end.
#[derive(Clone, Debug)]
pub(crate) struct UpcallSender<T: DataFormat>(Arc<Queues<T>>);

/// An input on a link. The end of a stream follows the packets before it, so both use one queue.
#[derive(Debug)]
enum LinkInput {
    Packet(Vec<u8>),
    Ended(StreamEnd),
}

#[derive(Debug)]
struct Queues<T: DataFormat> {
    notices: Mutex<Notices<T>>,
    frames: Mutex<Frames>,
    unauthenticated: Mutex<Frames>,
    /// Whether `event` is signalled, which saves a system call per upcall.
    raised: AtomicBool,
    event: EventFd,
}

/// Items in order of arrival, and the number of packets from each source.
#[derive(Debug, Default)]
struct Frames {
    items: VecDeque<(Link, LinkInput)>,
    waiting: ItemCounts<Source>,
}

/// The source that a packet is charged to.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    Link(Link),
    /// A /32, /64 or /48.
    Network(Network),
    Ipv6,
}

impl Source {
    /// Returns the sources that a packet is charged to, with their shares.
    fn all(link: Link, limits: &QueueLimits) -> [Option<(Self, usize)>; 4] {
        let network = Network::of(link.remote().ip());
        let site = network.is_ipv6().then(|| (Self::Network(network.site()), limits.site));
        let ipv6 = network.is_ipv6().then_some((Self::Ipv6, limits.ipv6));
        [
            Some((Self::Link(link), limits.link)),
            Some((Self::Network(network), limits.network)),
            site,
            ipv6,
        ]
    }
}

impl Frames {
    /// Queues a packet; returns `false` if a share is used up.
    fn push(&mut self, link: Link, packet: &[u8], limits: &QueueLimits) -> bool {
        let sources = Source::all(link, limits);
        let mut counted = sources.iter().flatten();
        if self.items.len() >= limits.whole
            || counted.any(|(source, share)| self.waiting.of(source) >= *share)
        {
            return false;
        }
        sources.iter().flatten().for_each(|(source, _)| self.waiting.add(*source));
        self.items.push_back((link, LinkInput::Packet(packet.to_vec())));
        true
    }

    /// Takes the oldest `count` items.
    fn take(&mut self, count: usize) -> Vec<(Link, LinkInput)> {
        let taken: Vec<_> = self.items.drain(..count.min(self.items.len())).collect();
        for (link, item) in &taken {
            if let LinkInput::Packet(_) = item {
                let sources = Source::all(*link, &SESSION_LIMITS);
                sources.iter().flatten().for_each(|(source, _)| self.waiting.subtract(source));
            }
        }
        taken
    }
}

/// The number of queued items of each kind. A kind with none takes no memory.
#[derive(Debug)]
struct ItemCounts<K>(HashMap<K, usize>);

impl<K> Default for ItemCounts<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> ItemCounts<K> {
    fn of(&self, kind: &K) -> usize {
        self.0.get(kind).copied().unwrap_or(0)
    }

    fn add(&mut self, kind: K) {
        let waiting = self.0.entry(kind).or_default();
        *waiting = waiting.saturating_add(1);
    }

    fn subtract(&mut self, kind: &K) {
        if let Some(waiting) = self.0.get_mut(kind) {
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.0.remove(kind);
            }
        }
    }
}

/// Notices in order. Of each peer's moves, only the last stays queued.
#[derive(Debug)]
struct Notices<T: DataFormat> {
    items: VecDeque<Notice<T>>,
    /// The number of notices taken so far, and thereby the number of the first item.
    taken: u64,
    /// The number of the queued move of each peer.
    moves: HashMap<PeerId, u64>,
    in_band: ItemCounts<PeerId>,
    in_band_total: usize,
    unreachable: usize,
    unrouted: usize,
}

impl<T: DataFormat> Notices<T> {
    /// Queues a notice; returns `false` if a share is used up.
    fn push(&mut self, notice: Notice<T>) -> bool {
        match notice {
            Notice::Floated(peer, _) => {
                let number = self.taken.saturating_add(self.items.len() as u64);
                let waiting = *self.moves.entry(peer).or_insert(number);
                let at = usize::try_from(waiting.saturating_sub(self.taken)).ok();
                if let Some(former) = at.and_then(|at| self.items.get_mut(at)) {
                    *former = notice;
                    return true;
                }
            }
            // Later notices concern another peer with the same number.
            Notice::PeerGone(peer, _) => drop(self.moves.remove(&peer)),
            Notice::InBand(peer, _) => {
                let waiting = self.in_band.of(&peer);
                let full = waiting >= MAX_IN_BAND_OF_PEER || self.in_band_total >= MAX_IN_BAND;
                if waiting > 0 && full {
                    return false;
                }
                self.in_band.add(peer);
                self.in_band_total = self.in_band_total.saturating_add(1);
            }
            Notice::Unreachable(..) if self.unreachable >= MAX_UNREACHABLE => return false,
            Notice::Unreachable(..) => self.unreachable = self.unreachable.saturating_add(1),
            Notice::Unrouted(_) if self.unrouted >= MAX_UNROUTED => return false,
            Notice::Unrouted(_) => self.unrouted = self.unrouted.saturating_add(1),
            // Each is sent once per peer, key, station or request, so their number is bounded; a lost one is not repeated.
            Notice::PeerSilent(_)
            | Notice::PeerActive(_)
            | Notice::KeyFirstUse(..)
            | Notice::KeyNearLimit(..)
            | Notice::Violation(..)
            | Notice::ProbeResult(..)
            | Notice::Traffic(..)
            | Notice::StationHeard(..)
            | Notice::StationForgotten(..) => {}
        }
        self.items.push_back(notice);
        true
    }

    /// Takes the oldest `count` notices.
    fn take(&mut self, count: usize) -> Vec<Notice<T>> {
        let taken: Vec<_> = self.items.drain(..count.min(self.items.len())).collect();
        for notice in &taken {
            match notice {
                Notice::Floated(peer, _) if self.moves.get(peer) == Some(&self.taken) => {
                    self.moves.remove(peer);
                }
                Notice::InBand(peer, _) => {
                    self.in_band.subtract(peer);
                    self.in_band_total = self.in_band_total.saturating_sub(1);
                }
                Notice::Unreachable(..) => self.unreachable = self.unreachable.saturating_sub(1),
                Notice::Unrouted(_) => self.unrouted = self.unrouted.saturating_sub(1),
                _ => {}
            }
            self.taken = self.taken.saturating_add(1);
        }
        taken
    }
}

/// Locks a queue. A queue is always consistent, so a panic in another thread need not spread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn channel<T: DataFormat>() -> io::Result<(UpcallSender<T>, Upcalls<T>)> {
    let queues = Arc::new(Queues {
        notices: Mutex::new(Notices {
            items: VecDeque::new(),
            taken: 0,
            moves: HashMap::new(),
            in_band: ItemCounts::default(),
            in_band_total: 0,
            unreachable: 0,
            unrouted: 0,
        }),
        frames: Mutex::default(),
        unauthenticated: Mutex::default(),
        raised: AtomicBool::new(false),
        event: EventFd::new()?,
    });
    Ok((UpcallSender(Arc::clone(&queues)), Upcalls(queues)))
}

impl<T: DataFormat> UpcallSender<T> {
    pub(crate) fn notice(&self, stats: &Stats, notice: Notice<T>) {
        let taken = lock(&self.0.notices).push(notice);
        self.taken(taken, stats, DropReason::NoticesFull);
    }

    /// Queues a control packet of a known peer; `session`: it has more than a handshake. Returns `false` if there was
    /// no room.
    pub(crate) fn frame(&self, stats: &Stats, link: Link, packet: &[u8], session: bool) -> bool {
        let limits = if session { &SESSION_LIMITS } else { &HANDSHAKE_LIMITS };
        let taken = lock(&self.0.frames).push(link, packet, limits);
        self.taken(taken, stats, DropReason::ControlQueueFull)
    }

    /// Queues a packet of an unauthenticated sender; returns `false` if there was no room.
    pub(crate) fn unauthenticated(&self, stats: &Stats, link: Link, packet: &[u8]) -> bool {
        let limits =
            if link.is_stream() { &UNAUTHENTICATED_STREAM_LIMITS } else { &UNAUTHENTICATED_LIMITS };
        let taken = lock(&self.0.unauthenticated).push(link, packet, limits);
        self.taken(taken, stats, DropReason::UnauthenticatedQueueFull)
    }

    /// Reports the end of a stream. This happens once per stream, and the number of streams bounds the queue.
    pub(crate) fn stream_ended(&self, link: Link, why: StreamEnd, known: bool) {
        let queue = if known { &self.0.frames } else { &self.0.unauthenticated };
        lock(queue).items.push_back((link, LinkInput::Ended(why)));
        self.0.raise();
    }

    /// Shrinks the queues to their contents.
    pub(crate) fn release_memory(&self) {
        self.0.release_memory();
    }

    /// Wakes the receiving end although nothing was queued.
    pub(crate) fn raise(&self) {
        self.0.raise();
    }

    fn taken(&self, taken: bool, stats: &Stats, full: DropReason) -> bool {
        if taken {
            self.0.raise();
        } else {
            stats.drop(full);
        }
        taken
    }
}

impl<T: DataFormat> Queues<T> {
    /// Shrinks the queues to their contents.
    fn release_memory(&self) {
        {
            let mut notices = lock(&self.notices);
            notices.items.shrink_to_fit();
            notices.moves.shrink_to_fit();
            notices.in_band.0.shrink_to_fit();
        }
        for queue in [&self.frames, &self.unauthenticated] {
            let mut queue = lock(queue);
            queue.items.shrink_to_fit();
            queue.waiting.0.shrink_to_fit();
        }
    }

    fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }
}

impl<T: DataFormat> Upcalls<T> {
    /// Returns the name, length and limit of each queue. That of notices has limits for each kind only; its limit here is
    /// that of the most frequent kind.
    pub fn lengths(&self) -> [(&'static str, usize, usize); 3] {
        [
            ("notices", lock(&self.0.notices).items.len(), MAX_IN_BAND),
            ("control-packets", lock(&self.0.frames).items.len(), MAX_FRAMES),
            ("unauthenticated", lock(&self.0.unauthenticated).items.len(), MAX_UNAUTHENTICATED),
        ]
    }

    /// Delivers queued upcalls: a batch of notices, then control packets of known peers, then a batch of
    /// unauthenticated ones. If any are left, the descriptor is signalled again.
    pub fn drain(&mut self, take: impl FnMut(Upcall<T>)) {
        // The flag is cleared before the queues are read, so no upcall is missed. The swap synchronizes with the one
        // that set the flag, so the upcalls queued before it are visible.
        self.0.raised.swap(false, Ordering::AcqRel);
        if self.drain_silently(take) {
            self.0.raise();
        }
    }

    /// Does the same as [`Upcalls::drain`], but upcalls that are queued afterwards do not signal the descriptor: for a
    /// caller that drains again before it waits. Returns `true` if notices or unauthenticated packets are left.
    pub fn drain_silently(&mut self, mut take: impl FnMut(Upcall<T>)) -> bool {
        let (notices, more) = {
            let mut queue = lock(&self.0.notices);
            (queue.take(NOTICES_PER_DRAIN), !queue.items.is_empty())
        };
        notices.into_iter().for_each(|notice| take(Upcall::Notice(notice)));
        let frames = std::mem::take(&mut *lock(&self.0.frames));
        frames.items.into_iter().for_each(|(link, item)| match item {
            LinkInput::Packet(packet) => take(Upcall::ControlPacket(link, packet)),
            LinkInput::Ended(why) => take(Upcall::StreamEnded(link, why)),
        });
        let (unauthenticated, left) = {
            let mut queue = lock(&self.0.unauthenticated);
            (queue.take(UNAUTHENTICATED_PER_DRAIN), more || !queue.items.is_empty())
        };
        unauthenticated.into_iter().for_each(|(link, item)| match item {
            LinkInput::Packet(packet) => take(Upcall::Unauthenticated(link, packet)),
            LinkInput::Ended(why) => take(Upcall::StreamEnded(link, why)),
        });
        left
    }
}

impl<T: DataFormat> AsFd for Upcalls<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Offloads;
    use crate::trivial::Trivial;
    use adit_engine::{PeerId, SocketId};

    fn link(port: u16) -> Link {
        Link::datagram(SocketId(0), None, ([192, 0, 2, 1], port).into())
    }

    fn from(address: &str, port: u16) -> Link {
        Link::datagram(
            SocketId(0),
            None,
            (address.parse::<std::net::IpAddr>().unwrap(), port).into(),
        )
    }

    /// Returns a link in another network for each `n`.
    fn other(n: u16) -> Link {
        let [a, b] = n.to_be_bytes();
        Link::datagram(SocketId(0), None, ([10, a, b, 1], 1194).into())
    }

    fn drain(upcalls: &mut Upcalls<Trivial>) -> Vec<Upcall<Trivial>> {
        let mut out = Vec::new();
        upcalls.drain(|upcall| out.push(upcall));
        out
    }

    #[test]
    fn a_flood_of_strangers_neither_hides_nor_delays_known_peers() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        for n in 0..2000 {
            sender.unauthenticated(&stats, other(n), &[7]);
        }
        assert!(sender.frame(&stats, link(5000), &[8], true));
        sender.notice(&stats, Notice::PeerSilent(PeerId(1)));
        assert_eq!(
            stats.totals().dropped(DropReason::UnauthenticatedQueueFull),
            2000 - MAX_UNAUTHENTICATED as u64
        );
        let first = drain(&mut upcalls);
        assert_eq!(first[0], Upcall::Notice(Notice::PeerSilent(PeerId(1))));
        assert_eq!(first[1], Upcall::ControlPacket(link(5000), vec![8]));
        assert_eq!(first.len(), 2 + UNAUTHENTICATED_PER_DRAIN);
        assert!(upcalls.0.raised.load(Ordering::Relaxed), "the rest still calls");
        let rest: usize = (0..20).map(|_| drain(&mut upcalls).len()).sum();
        assert_eq!(rest, MAX_UNAUTHENTICATED - UNAUTHENTICATED_PER_DRAIN);
        assert!(!upcalls.0.raised.load(Ordering::Relaxed));
    }

    #[test]
    fn who_looks_again_before_he_waits_is_called_once() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        let send = |id| sender.notice(&stats, Notice::PeerSilent(PeerId(id)));
        let signalled = |upcalls: &Upcalls<Trivial>| upcalls.0.event.drain();
        let mut seen = Vec::new();
        send(1);
        assert!(signalled(&upcalls));
        assert!(!upcalls.drain_silently(|upcall| seen.push(upcall)));
        send(2);
        assert!(!signalled(&upcalls), "he is awake");
        upcalls.drain_silently(|upcall| seen.push(upcall));
        send(3);
        upcalls.drain(|upcall| seen.push(upcall));
        assert_eq!(seen.len(), 3);
        send(4);
        assert!(signalled(&upcalls), "he may sleep");
    }

    #[test]
    fn no_peer_has_more_than_a_share_of_the_queue_of_known_peers() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        let send = |port, session| sender.frame(&stats, link(port), &[4], session);
        assert_eq!((0..1000).filter(|_| send(1, true)).count(), MAX_FRAMES_OF_LINK);
        // Handshakes from many networks, each with its share, do not use the sessions' half.
        let handshake = |n: u16| sender.frame(&stats, other(n / 200), &[4], false);
        let taken = (0..9000u16).filter(|n| handshake(*n)).count();
        assert_eq!(taken, MAX_HANDSHAKE_FRAMES - MAX_FRAMES_OF_LINK);
        assert!(send(2, true));
        assert_eq!(
            stats.totals().dropped(DropReason::ControlQueueFull),
            10_000 - MAX_HANDSHAKE_FRAMES as u64
        );
        assert_eq!(drain(&mut upcalls).len(), MAX_HANDSHAKE_FRAMES + 1);
        assert!(send(1, true) && handshake(0), "what was taken out counts no more");
    }

    #[test]
    fn forged_datagrams_leave_room_for_strangers_on_streams_and_these_for_each_other() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        let datagrams = (0..2000).filter(|n| sender.unauthenticated(&stats, other(*n), &[7]));
        assert_eq!(datagrams.count(), MAX_UNAUTHENTICATED);
        let stream = |id: u64| Link::stream(id, ([192, 0, (id % 250) as u8, 1], 1).into());
        let send = |id| sender.unauthenticated(&stats, stream(id), &[7]);
        assert_eq!((0..100).filter(|_| send(1)).count(), MAX_UNAUTHENTICATED_OF_STREAM);
        assert!(send(2));
        assert!((0..2000).filter(|n| send(3 + n)).count() < MAX_UNAUTHENTICATED);
        for _ in 0..20 {
            drain(&mut upcalls);
        }
        assert!(send(1), "what was taken out counts no more");
    }

    #[test]
    fn in_band_messages_leave_room_for_notices() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        for _ in 0..10_000 {
            sender.notice(&stats, Notice::InBand(PeerId(1), vec![6]));
        }
        sender.notice(&stats, Notice::KeyNearLimit(PeerId(2), 0));
        assert_eq!(drain(&mut upcalls).len(), MAX_IN_BAND_OF_PEER + 1);
        let lost = 10_000 - MAX_IN_BAND_OF_PEER as u64;
        assert_eq!(stats.totals().dropped(DropReason::NoticesFull), lost);
    }

    #[test]
    fn a_peer_that_floods_in_band_messages_leaves_room_for_those_of_others() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel::<Trivial>().unwrap();
        // Hostile peers fill the whole queue; then each honest peer sends one message.
        for n in 0..10_000 {
            sender.notice(&stats, Notice::InBand(PeerId(n % 500), vec![6]));
        }
        let honest = |n: u32| Notice::InBand(PeerId(n), vec![7]);
        (1000..1400).for_each(|n| sender.notice(&stats, honest(n)));
        let mut seen = Vec::new();
        while upcalls.drain_silently(|upcall| seen.push(upcall)) {}
        assert!((1000..1400).all(|n| seen.contains(&Upcall::Notice(honest(n)))));
        assert_eq!(seen.len(), MAX_IN_BAND + 400);
    }

    #[test]
    fn of_a_peer_s_moves_the_last_one_is_told_and_in_its_place() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        let send = |notice: Notice<Trivial>| sender.notice(&stats, notice);
        send(Notice::Floated(PeerId(1), link(1)));
        send(Notice::PeerSilent(PeerId(3)));
        (0..60_000).for_each(|port| send(Notice::Floated(PeerId(1), link(port))));
        send(Notice::Floated(PeerId(2), link(7)));
        let expected = [
            Notice::Floated(PeerId(1), link(59_999)),
            Notice::PeerSilent(PeerId(3)),
            Notice::Floated(PeerId(2), link(7)),
        ];
        assert_eq!(drain(&mut upcalls), expected.map(Upcall::Notice));
        // A notice is reported again after the first was taken, and later notices about a peer with the same number
        // follow the end of the previous peer.
        let gone = || Notice::PeerGone(PeerId(1), Default::default());
        let lives =
            [Notice::Floated(PeerId(1), link(1)), gone(), Notice::Floated(PeerId(1), link(2))];
        lives.iter().for_each(|notice| send(notice.clone()));
        assert_eq!(drain(&mut upcalls), lives.map(Upcall::Notice));
        assert_eq!(stats.totals().dropped(DropReason::NoticesFull), 0, "no move is lost");
    }

    #[test]
    fn notices_do_not_keep_control_packets_waiting() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        (0..5000).for_each(|n| sender.notice(&stats, Notice::Floated(PeerId(n), link(1))));
        assert!(sender.frame(&stats, link(2), &[8], true));
        let first = drain(&mut upcalls);
        assert_eq!(first.len(), NOTICES_PER_DRAIN + 1);
        assert_eq!(first.last(), Some(&Upcall::ControlPacket(link(2), vec![8])));
        assert!(upcalls.0.raised.load(Ordering::Relaxed), "the rest still calls");
        let rest: usize = (0..20).map(|_| drain(&mut upcalls).len()).sum();
        assert_eq!(rest, 5000 - NOTICES_PER_DRAIN);
        assert!(!upcalls.0.raised.load(Ordering::Relaxed));
    }

    /// While one source floods, another one still gets through: in each queue, at each size of a source.
    #[test]
    fn a_source_that_floods_a_queue_leaves_room_for_others() {
        let floods: [fn(u16) -> Link; 4] = [
            |n| from("192.0.2.1", n),
            |n| from(&format!("2001:db8:1:2::{n:x}"), n),
            |n| from(&format!("2001:db8:1:{n:x}::1"), n),
            |n| from(&format!("2001:db8:{n:x}::1"), n),
        ];
        let others = ["198.51.100.1", "2001:db9::1"];
        for (which, flood) in floods.into_iter().enumerate() {
            let stats = Stats::new(Offloads::ALL, 1);
            let (sender, _upcalls) = channel::<Trivial>().unwrap();
            for n in 0..5000 {
                sender.unauthenticated(&stats, flood(n), &[7]);
                sender.frame(&stats, flood(n), &[7], false);
            }
            // Packets from all over IPv6. The remaining room is for IPv4.
            for other in others.into_iter().take(if which == 3 { 1 } else { 2 }) {
                assert!(sender.unauthenticated(&stats, from(other, 9), &[7]), "{which}: {other}");
                assert!(sender.frame(&stats, from(other, 9), &[7], false), "{which}: {other}");
            }
        }
    }

    #[test]
    fn what_is_said_once_is_never_lost() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        for n in 0..1000 {
            sender.notice(&stats, Notice::InBand(PeerId(1), vec![6]));
            sender.notice(&stats, Notice::Unreachable(link(n), 111));
        }
        assert!(stats.totals().dropped(DropReason::NoticesFull) > 0);
        let once = [
            Notice::PeerGone(PeerId(2), Default::default()),
            Notice::PeerSilent(PeerId(3)),
            Notice::KeyNearLimit(PeerId(4), 0),
        ];
        once.iter().for_each(|notice| sender.notice(&stats, notice.clone()));
        let drained = [drain(&mut upcalls), drain(&mut upcalls)].concat();
        for notice in once {
            assert!(drained.contains(&Upcall::Notice(notice)));
        }
    }
}
