//! What workers tell the control thread: three bounded queues behind one eventfd.

use std::collections::VecDeque;
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
/// Control packets of strangers that may wait.
const MAX_STRANGERS: usize = 512;
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

/// The receiving end. Readable (see [`AsFd`]) when something waits.
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
    frames: Mutex<VecDeque<(Link, Item)>>,
    strangers: Mutex<VecDeque<(Link, Item)>>,
    /// Whether `event` is signalled: saves a system call per upcall.
    raised: AtomicBool,
    event: EventFd,
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
            | Notice::Probed(..) => usize::MAX,
        };
        self.push(&self.0.notices, notice, bound, stats, DropReason::NoticesFull);
    }

    pub fn frame(&self, stats: &Stats, link: Link, packet: &[u8]) {
        let item = (link, Item::Packet(packet.to_vec()));
        self.push(&self.0.frames, item, MAX_FRAMES, stats, DropReason::FramesFull);
    }

    /// `false` if there was no room.
    pub fn stranger(&self, stats: &Stats, link: Link, packet: &[u8]) -> bool {
        let item = (link, Item::Packet(packet.to_vec()));
        self.push(&self.0.strangers, item, MAX_STRANGERS, stats, DropReason::StrangersFull)
    }

    /// A stream's end: said once per stream, whose number bounds them.
    pub fn stream_ended(&self, stats: &Stats, link: Link, why: StreamEnd, known: bool) {
        let queue = if known { &self.0.frames } else { &self.0.strangers };
        self.push(queue, (link, Item::Ended(why)), usize::MAX, stats, DropReason::FramesFull);
    }

    /// Makes the receiving end look, though nothing was queued.
    pub fn raise(&self) {
        self.0.raise();
    }

    fn push<T>(
        &self,
        queue: &Mutex<VecDeque<T>>,
        item: T,
        bound: usize,
        stats: &Stats,
        full: DropReason,
    ) -> bool {
        {
            let mut queue = lock(queue);
            if queue.len() >= bound {
                stats.drop(full);
                return false;
            }
            queue.push_back(item);
        }
        self.0.raise();
        true
    }
}

impl Queues {
    fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }
}

impl Upcalls {
    /// Hands over what waits: notices, then frames of known peers, then some of the strangers. What
    /// is left keeps the descriptor readable.
    pub fn drain(&mut self, mut take: impl FnMut(Upcall)) {
        // The flag goes down before the queues are looked at, so that nothing is missed.
        self.0.event.drain();
        self.0.raised.store(false, Ordering::Release);
        let notices = std::mem::take(&mut *lock(&self.0.notices));
        notices.into_iter().for_each(|notice| take(Upcall::Notice(notice)));
        let frames = std::mem::take(&mut *lock(&self.0.frames));
        frames.into_iter().for_each(|(link, item)| match item {
            Item::Packet(packet) => take(Upcall::Frame(link, packet)),
            Item::Ended(why) => take(Upcall::StreamEnded(link, why)),
        });
        let (strangers, left) = {
            let mut queue = lock(&self.0.strangers);
            let count = queue.len().min(STRANGERS_PER_DRAIN);
            (queue.drain(..count).collect::<Vec<_>>(), !queue.is_empty())
        };
        strangers.into_iter().for_each(|(link, item)| match item {
            Item::Packet(packet) => take(Upcall::Stranger(link, packet)),
            Item::Ended(why) => take(Upcall::StreamEnded(link, why)),
        });
        if left {
            self.0.raise();
        }
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
        let stats = Stats::new(Offloads::ALL);
        let (sender, mut upcalls) = channel().unwrap();
        for port in 0..2000 {
            sender.stranger(&stats, link(port), &[7]);
        }
        sender.frame(&stats, link(5000), &[8]);
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
    fn in_band_messages_leave_room_for_notices() {
        let stats = Stats::new(Offloads::ALL);
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
        let stats = Stats::new(Offloads::ALL);
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
