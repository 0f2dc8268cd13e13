//! The results for packets. Each worker keeps its own counts and adds them up at the end of a burst.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::conntrack::TrackStats;
use crate::fragment::FragmentStats;
use crate::packet::Malformed;

/// The reason why a packet was dropped.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Drop {
    /// A rule, or a chain's policy.
    Rules,
    /// No rule accepted it, and a policy is not enough.
    Unasked,
    /// The table had no room for its connection.
    TableFull,
    /// A fragment that cannot be part of a packet; [`FragmentStats`] has the reasons.
    Fragment,
    /// It could not be evaluated.
    Malformed(Malformed),
}

impl Drop {
    /// All reasons.
    pub const ALL: [Self; 12] = [
        Self::Rules,
        Self::Unasked,
        Self::TableFull,
        Self::Fragment,
        Self::Malformed(Malformed::Link),
        Self::Malformed(Malformed::Network),
        Self::Malformed(Malformed::Extensions),
        Self::Malformed(Malformed::Transport),
        Self::Malformed(Malformed::TinyFragment),
        Self::Malformed(Malformed::Hidden),
        Self::Malformed(Malformed::Offload),
        Self::Malformed(Malformed::SourceRoute),
    ];

    /// Returns one word for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::Unasked => "no-rule",
            Self::TableFull => "flow-table-full",
            Self::Fragment => "fragment",
            Self::Malformed(Malformed::Link) => "malformed-link",
            Self::Malformed(Malformed::Network) => "malformed-network",
            Self::Malformed(Malformed::Extensions) => "malformed-extensions",
            Self::Malformed(Malformed::Transport) => "malformed-transport",
            Self::Malformed(Malformed::TinyFragment) => "tiny-fragment",
            Self::Malformed(Malformed::Hidden) => "hidden",
            Self::Malformed(Malformed::Offload) => "malformed-offload",
            Self::Malformed(Malformed::SourceRoute) => "source-route",
        }
    }

    const fn number(self) -> usize {
        match self {
            Self::Rules => 0,
            Self::Unasked => 1,
            Self::TableFull => 2,
            Self::Fragment => 3,
            Self::Malformed(Malformed::Link) => 4,
            Self::Malformed(Malformed::Network) => 5,
            Self::Malformed(Malformed::Extensions) => 6,
            Self::Malformed(Malformed::Transport) => 7,
            Self::Malformed(Malformed::TinyFragment) => 8,
            Self::Malformed(Malformed::Hidden) => 9,
            Self::Malformed(Malformed::Offload) => 10,
            Self::Malformed(Malformed::SourceRoute) => 11,
        }
    }
}

/// The results for all packets so far. Super-packets count once here.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Packets that passed; a fragmented packet counts once.
    pub passed: u64,
    /// Their bytes from the network header on.
    pub passed_bytes: u64,
    /// Dropped packets by reason, without zeros.
    pub dropped: Vec<(Drop, u64)>,
    /// Replies sent to notify the senders of packets.
    pub answers: u64,
    /// Replies that the rate limit prevented.
    pub answers_suppressed: u64,
    /// Records of `log` that no reader took in time.
    pub logs_lost: u64,
    /// Connections.
    pub track: TrackStats,
    /// Fragments.
    pub fragments: FragmentStats,
}

const PASSED: usize = Drop::ALL.len();
const BYTES: usize = PASSED + 1;
const ANSWERS: usize = PASSED + 2;
const SUPPRESSED: usize = PASSED + 3;
const COUNTERS: usize = PASSED + 4;

/// The number of separate parts in which workers count, because all of them write with each burst. If there are more
/// workers, they share parts.
const PARTS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Totals {
    parts: [CounterShard; PARTS],
    /// The number of workers so far.
    workers: AtomicUsize,
}

/// One part of the counters. It has its own cache lines, which processors fetch in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterShard([AtomicU64; COUNTERS]);

#[derive(Debug)]
pub(super) struct Pending {
    /// The part to which the counts are added at the end.
    part: usize,
    counts: [u64; COUNTERS],
}

impl Pending {
    #[inline]
    fn add(&mut self, counter: usize, count: u64) {
        if let Some(pending) = self.counts.get_mut(counter) {
            *pending = pending.wrapping_add(count);
        }
    }

    #[inline]
    pub(super) fn pass(&mut self, bytes: usize) {
        self.add(PASSED, 1);
        self.add(BYTES, bytes as u64);
    }

    pub(super) fn drop(&mut self, why: Drop) {
        self.add(why.number(), 1);
    }

    pub(super) fn malformed(&mut self, why: Malformed) {
        self.drop(Drop::Malformed(why));
    }

    pub(super) fn answered(&mut self) {
        self.add(ANSWERS, 1);
    }

    pub(super) fn suppressed(&mut self) {
        self.add(SUPPRESSED, 1);
    }
}

impl Totals {
    /// Returns the counters for one more worker.
    pub(super) fn pending(&self) -> Pending {
        let part = self.workers.fetch_add(1, Relaxed) % PARTS;
        Pending { part, counts: [0; COUNTERS] }
    }

    pub(super) fn add(&self, pending: &mut Pending) {
        let Some(CounterShard(totals)) = self.parts.get(pending.part) else { return };
        for (total, pending) in totals.iter().zip(&mut pending.counts) {
            if *pending != 0 {
                total.fetch_add(std::mem::take(pending), Relaxed);
            }
        }
    }

    pub(super) fn read(
        &self,
        track: TrackStats,
        fragments: FragmentStats,
        logs_lost: u64,
    ) -> Stats {
        let get = |counter: usize| {
            let each = self.parts.iter().filter_map(|CounterShard(totals)| totals.get(counter));
            each.fold(0u64, |sum, total| sum.wrapping_add(total.load(Relaxed)))
        };
        let dropped = Drop::ALL.into_iter().map(|why| (why, get(why.number())));
        Stats {
            passed: get(PASSED),
            passed_bytes: get(BYTES),
            dropped: dropped.filter(|(_, count)| *count > 0).collect(),
            answers: get(ANSWERS),
            answers_suppressed: get(SUPPRESSED),
            logs_lost,
            track,
            fragments,
        }
    }
}
