//! What workers tell the control thread: three bounded queues behind one eventfd.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_engine::{Link, Notice};
use adit_linux::poll::EventFd;

use crate::stats::{DropReason, Stats};
use crate::stream::StreamEnd;

/// Control packets of known peers that may wait.
const MAX_FRAMES: usize = 2048;
/// How many of these may be of links that only have a handshake: whoever can begin one must not
/// crowd out those with a session.
const MAX_HANDSHAKE_FRAMES: usize = MAX_FRAMES / 2;
/// Control packets of one known peer that may wait: several windows full of unacknowledged ones.
const MAX_FRAMES_OF_LINK: usize = 128;
/// Control packets of strangers that may wait.
const MAX_STRANGERS: usize = 512;
/// As many more may wait of strangers on streams, who have proved their address: a flood of forged
/// datagrams must not end their streams.
const MAX_STREAM_STRANGERS: usize = 2 * MAX_STRANGERS;
/// Of one such stream: it has nothing to say before its first packet is answered.
const MAX_STRANGERS_OF_STREAM: usize = 8;
/// Notices that may wait where a peer causes another one.
const MAX_NOTICES: usize = 16384;
/// In-band messages among them: peers cause them at will, so they must not crowd out the rest.
const MAX_IN_BAND: usize = 1024;
/// Strangers handed over per drain; the rest waits for the next, behind news of known peers.
const STRANGERS_PER_DRAIN: usize = 64;
/// Longest control packet taken: stock's control messages stay below 2 KiB.
pub(crate) const MAX_CONTROL: usize = 4096;

/// Something for the control thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upcall {
    /// A control packet of an admitted link or of a known peer's address.
    Frame(Link, Vec<u8>),
    /// A control packet of somebody who has not proved his address.
    Stranger(Link, Vec<u8>),
    /// News of a peer.
    Notice(Notice),
    /// A stream is at its end, after all its packets. Nothing is sent on it any more.
    StreamEnded(Link, StreamEnd),
}

/// The receiving end. Its descriptor (see [`AsFd`]) is written to when something waits, and never read: it is for
/// whoever watches it edge-triggered, and sleeps only after [`Upcalls::drain`].
#[derive(Debug)]
pub struct Upcalls(Arc<Queues>);

/// The sending end.
#[derive(Clone, Debug)]
pub(crate) struct UpcallSender(Arc<Queues>);

/// What came on a link. An end follows the packets before it, hence one queue for both.
#[derive(Debug)]
enum Item {
    Packet(Vec<u8>),
    Ended(StreamEnd),
}

#[derive(Debug)]
struct Queues {
    notices: Mutex<VecDeque<Notice>>,
    frames: Mutex<Frames>,
    strangers: Mutex<Frames>,
    /// Whether `event` is signalled: saves a system call per upcall.
    raised: AtomicBool,
    event: EventFd,
}

/// Items in the order in which they came, and how many packets of each link there are.
#[derive(Debug, Default)]
struct Frames {
    items: VecDeque<(Link, Item)>,
    waiting: HashMap<Link, usize>,
}

impl Frames {
    /// `false` if so many wait in all, or so many of this link.
    fn push(&mut self, link: Link, packet: &[u8], bound: usize, of_link: usize) -> bool {
        let full = self.items.len() >= bound;
        if full || self.waiting.get(&link).is_some_and(|waiting| *waiting >= of_link) {
            return false;
        }
        let waiting = self.waiting.entry(link).or_default();
        *waiting = waiting.saturating_add(1);
        self.items.push_back((link, Item::Packet(packet.to_vec())));
        true
    }

    /// Takes the oldest.
    fn take(&mut self, count: usize) -> Vec<(Link, Item)> {
        let taken: Vec<_> = self.items.drain(..count.min(self.items.len())).collect();
        for (link, item) in &taken {
            if let (Item::Packet(_), Some(waiting)) = (item, self.waiting.get_mut(link)) {
                *waiting = waiting.saturating_sub(1);
                if *waiting == 0 {
                    self.waiting.remove(link);
                }
            }
        }
        taken
    }
}

/// A queue is consistent at every moment, so a panic elsewhere need not spread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn channel() -> io::Result<(UpcallSender, Upcalls)> {
    let queues = Arc::new(Queues {
        notices: Mutex::default(),
        frames: Mutex::default(),
        strangers: Mutex::default(),
        raised: AtomicBool::new(false),
        event: EventFd::new()?,
    });
    Ok((UpcallSender(Arc::clone(&queues)), Upcalls(queues)))
}

impl UpcallSender {
    pub fn notice(&self, stats: &Stats, notice: Notice) {
        let bound = match notice {
            // Those that strangers can cause, too.
            Notice::InBand(..) | Notice::Unreachable(..) => MAX_IN_BAND,
            Notice::Floated(..) => MAX_NOTICES,
            // Said once per peer, key or question, whose numbers bound them; nobody repeats what is lost here.
            Notice::PeerGone(..)
            | Notice::PeerSilent(_)
            | Notice::PeerHeard(_)
            | Notice::KeyFirstUse(..)
            | Notice::KeyNearLimit(..)
            | Notice::Misframed(..)
            | Notice::Probed(..)
            | Notice::Traffic(..) => usize::MAX,
        };
        let mut notices = lock(&self.0.notices);
        if notices.len() >= bound {
            return stats.drop(DropReason::NoticesFull);
        }
        notices.push_back(notice);
        drop(notices);
        self.0.raise();
    }

    /// A control packet of a known peer; `session`: it has more than a handshake. `false` if there
    /// was no room.
    pub fn frame(&self, stats: &Stats, link: Link, packet: &[u8], session: bool) -> bool {
        let bound = if session { MAX_FRAMES } else { MAX_HANDSHAKE_FRAMES };
        let taken = lock(&self.0.frames).push(link, packet, bound, MAX_FRAMES_OF_LINK);
        self.taken(taken, stats, DropReason::FramesFull)
    }

    /// `false` if there was no room.
    pub fn stranger(&self, stats: &Stats, link: Link, packet: &[u8]) -> bool {
        let (bound, of_link) = match link.is_stream() {
            true => (MAX_STREAM_STRANGERS, MAX_STRANGERS_OF_STREAM),
            false => (MAX_STRANGERS, MAX_STRANGERS),
        };
        let taken = lock(&self.0.strangers).push(link, packet, bound, of_link);
        self.taken(taken, stats, DropReason::StrangersFull)
    }

    /// A stream's end: said once per stream, whose number bounds them.
    pub fn stream_ended(&self, link: Link, why: StreamEnd, known: bool) {
        let queue = if known { &self.0.frames } else { &self.0.strangers };
        lock(queue).items.push_back((link, Item::Ended(why)));
        self.0.raise();
    }

    /// Gives back what the queues take that hold nothing.
    pub fn rest(&self) {
        self.0.rest();
    }

    /// Makes the receiving end look, though nothing was queued.
    pub fn raise(&self) {
        self.0.raise();
    }

    fn taken(&self, taken: bool, stats: &Stats, full: DropReason) -> bool {
        match taken {
            true => self.0.raise(),
            false => stats.drop(full),
        }
        taken
    }
}

impl Queues {
    /// Makes the queues as small as what waits in them.
    fn rest(&self) {
        lock(&self.notices).shrink_to_fit();
        for queue in [&self.frames, &self.strangers] {
            let mut queue = lock(queue);
            queue.items.shrink_to_fit();
            queue.waiting.shrink_to_fit();
        }
    }

    fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }
}

impl Upcalls {
    /// Hands over what waits: notices, then frames of known peers, then some of the strangers. If any
    /// are left, the descriptor is written to again.
    pub fn drain(&mut self, take: impl FnMut(Upcall)) {
        // The flag goes down before the queues are looked at, so that nothing is missed. The swap reads what was
        // queued before the flag went up.
        self.0.raised.swap(false, Ordering::AcqRel);
        if self.look(take) {
            self.0.raise();
        }
    }

    /// As [`Upcalls::drain`], but whoever queues more does not write to the descriptor: for one who will look again
    /// before he waits. `true` if strangers are left.
    pub fn look(&mut self, mut take: impl FnMut(Upcall)) -> bool {
        let notices = std::mem::take(&mut *lock(&self.0.notices));
        notices.into_iter().for_each(|notice| take(Upcall::Notice(notice)));
        let frames = std::mem::take(&mut *lock(&self.0.frames));
        frames.items.into_iter().for_each(|(link, item)| match item {
            Item::Packet(packet) => take(Upcall::Frame(link, packet)),
            Item::Ended(why) => take(Upcall::StreamEnded(link, why)),
        });
        let (strangers, left) = {
            let mut queue = lock(&self.0.strangers);
            (queue.take(STRANGERS_PER_DRAIN), !queue.items.is_empty())
        };
        strangers.into_iter().for_each(|(link, item)| match item {
            Item::Packet(packet) => take(Upcall::Stranger(link, packet)),
            Item::Ended(why) => take(Upcall::StreamEnded(link, why)),
        });
        left
    }
}

impl AsFd for Upcalls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Offloads;
    use adit_engine::{PeerId, SocketId};

    fn link(port: u16) -> Link {
        Link::datagram(SocketId(0), None, ([192, 0, 2, 1], port).into())
    }

    fn drain(upcalls: &mut Upcalls) -> Vec<Upcall> {
        let mut out = Vec::new();
        upcalls.drain(|upcall| out.push(upcall));
        out
    }

    #[test]
    fn a_flood_of_strangers_neither_hides_nor_delays_known_peers() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        for port in 0..2000 {
            sender.stranger(&stats, link(port), &[7]);
        }
        assert!(sender.frame(&stats, link(5000), &[8], true));
        sender.notice(&stats, Notice::PeerSilent(PeerId(1)));
        assert_eq!(stats.totals().dropped(DropReason::StrangersFull), 2000 - MAX_STRANGERS as u64);
        let first = drain(&mut upcalls);
        assert_eq!(first[0], Upcall::Notice(Notice::PeerSilent(PeerId(1))));
        assert_eq!(first[1], Upcall::Frame(link(5000), vec![8]));
        assert_eq!(first.len(), 2 + STRANGERS_PER_DRAIN);
        assert!(upcalls.0.raised.load(Ordering::Relaxed), "the rest still calls");
        let rest: usize = (0..20).map(|_| drain(&mut upcalls).len()).sum();
        assert_eq!(rest, MAX_STRANGERS - STRANGERS_PER_DRAIN);
        assert!(!upcalls.0.raised.load(Ordering::Relaxed));
    }

    #[test]
    fn who_looks_again_before_he_waits_is_called_once() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        let send = |id| sender.notice(&stats, Notice::PeerSilent(PeerId(id)));
        let signalled = |upcalls: &Upcalls| upcalls.0.event.drain();
        let mut seen = Vec::new();
        send(1);
        assert!(signalled(&upcalls));
        assert!(!upcalls.look(|upcall| seen.push(upcall)));
        send(2);
        assert!(!signalled(&upcalls), "he is awake");
        upcalls.look(|upcall| seen.push(upcall));
        send(3);
        upcalls.drain(|upcall| seen.push(upcall));
        assert_eq!(seen.len(), 3);
        send(4);
        assert!(signalled(&upcalls), "he may sleep");
    }

    #[test]
    fn nobody_has_more_than_a_share_of_the_queue_of_known_peers() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        let send = |port, session| sender.frame(&stats, link(port), &[4], session);
        assert_eq!((0..1000).filter(|_| send(1, true)).count(), MAX_FRAMES_OF_LINK);
        // Handshakes of a whole network, each with its share, leave the sessions' half alone.
        let taken = (0..9000u16).filter(|n| send(100 + n / 200, false)).count();
        assert_eq!(taken, MAX_HANDSHAKE_FRAMES - MAX_FRAMES_OF_LINK);
        assert!(send(2, true));
        assert_eq!(
            stats.totals().dropped(DropReason::FramesFull),
            10_000 - MAX_HANDSHAKE_FRAMES as u64
        );
        assert_eq!(drain(&mut upcalls).len(), MAX_HANDSHAKE_FRAMES + 1);
        assert!(send(1, true) && send(100, false), "what was taken out counts no more");
    }

    #[test]
    fn forged_datagrams_leave_room_for_strangers_on_streams_and_these_for_each_other() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        let datagrams = (0..2000).filter(|port| sender.stranger(&stats, link(*port), &[7]));
        assert_eq!(datagrams.count(), MAX_STRANGERS);
        let stream = |id| Link::stream(id, ([192, 0, 2, 1], 1).into());
        let send = |id| sender.stranger(&stats, stream(id), &[7]);
        assert_eq!((0..100).filter(|_| send(1)).count(), MAX_STRANGERS_OF_STREAM);
        assert!(send(2));
        assert!((0..2000).filter(|n| send(3 + n)).count() < MAX_STRANGERS);
        for _ in 0..20 {
            drain(&mut upcalls);
        }
        assert!(send(1), "what was taken out counts no more");
    }

    #[test]
    fn in_band_messages_leave_room_for_notices() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        for _ in 0..=MAX_IN_BAND {
            sender.notice(&stats, Notice::InBand(PeerId(1), vec![6]));
        }
        sender.notice(&stats, Notice::KeyNearLimit(PeerId(2), 0));
        assert_eq!(drain(&mut upcalls).len(), MAX_IN_BAND + 1);
        assert_eq!(stats.totals().dropped(DropReason::NoticesFull), 1);
    }

    #[test]
    fn what_is_said_once_is_never_lost() {
        let stats = Stats::new(Offloads::ALL, 1);
        let (sender, mut upcalls) = channel().unwrap();
        for port in 0..=MAX_NOTICES {
            let link = link(u16::try_from(port % 60_000).unwrap());
            sender.notice(&stats, Notice::Floated(PeerId(1), link));
        }
        assert_eq!(stats.totals().dropped(DropReason::NoticesFull), 1);
        let once = [
            Notice::PeerGone(PeerId(2), Default::default()),
            Notice::PeerSilent(PeerId(3)),
            Notice::KeyNearLimit(PeerId(4), 0),
        ];
        once.iter().for_each(|notice| sender.notice(&stats, notice.clone()));
        let drained = drain(&mut upcalls);
        for notice in once {
            assert!(drained.contains(&Upcall::Notice(notice)));
        }
    }
}
