//! Relays sealed packets between two peers that have a session with each other.
//!
//! The relay cannot open these packets, and never changes them, because their headers are authenticated. It looks up
//! the receiver by the peer whose address a packet came from and by the bytes in the header that tell its session from others.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use adit_engine::command::{Splice, SpliceId};
use adit_engine::{Instant, PeerId, Rate, TokenBucket};
use adit_linux::udp::{MAX_PAYLOAD, MAX_SEGMENTS};

use crate::stats::DropReason;

/// The maximum number of splices of a plane.
pub const MAX_SPLICES: usize = 65_536;

/// All splices, and their common limit.
#[derive(Debug, Default)]
pub(crate) struct Splices {
    table: RwLock<Table>,
    bucket: TokenBucket,
}

#[derive(Debug, Default)]
struct Table {
    splices: HashMap<SpliceId, LiveSplice>,
    limit: Option<Rate>,
}

/// A splice, and its use so far.
#[derive(Debug)]
struct LiveSplice {
    settings: Splice,
    bucket: TokenBucket,
    /// The number of packets since they were last taken.
    packets: AtomicU64,
}

/// The sizes of received packets.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Sizes {
    /// The number of packets.
    pub count: usize,
    /// Their bytes.
    pub bytes: usize,
    /// The length of the shortest, and of the longest.
    pub lengths: (usize, usize),
}

impl Sizes {
    /// Returns the sizes of packets in trains: the length of each packet in a train except the last, and the train.
    pub(crate) fn of<'t>(trains: impl Iterator<Item = (usize, &'t mut [u8])>) -> Self {
        let none = Self { lengths: (usize::MAX, 0), ..Self::default() };
        trains.fold(none, |sum, (segment, train)| {
            let segment = segment.clamp(1, train.len().max(1));
            let last = match train.chunks_exact(segment).remainder().len() {
                0 => segment,
                rest => rest,
            };
            let (shortest, longest) = sum.lengths;
            Self {
                count: sum.count.saturating_add(train.len().div_ceil(segment)),
                bytes: sum.bytes.saturating_add(train.len()),
                lengths: (shortest.min(last), longest.max(segment)),
            }
        })
    }
}

/// Sealed packets of one train that go to another peer.
#[derive(Debug)]
pub(crate) struct Spliced<'a> {
    pub to: PeerId,
    /// The length of each packet except the last, which may be shorter.
    pub segment: usize,
    pub packets: &'a [u8],
}

impl Spliced<'_> {
    /// Returns the number of packets.
    pub(crate) fn count(&self) -> usize {
        self.packets.len().div_ceil(self.segment.max(1))
    }

    /// Returns whether the train can continue: its last packet is as long as the others.
    fn is_even(&self) -> bool {
        self.packets.len().is_multiple_of(self.segment.max(1))
    }
}

/// Returns how many trains, counted from the first, can be sent as one.
pub(crate) fn joinable(trains: &[Spliced<'_>]) -> usize {
    let Some(first) = trains.first() else { return 0 };
    let (mut segments, mut bytes) = (first.count(), first.packets.len());
    let joins = |pair: &&[Spliced<'_>]| {
        let [last, next] = pair else { return false };
        segments = segments.saturating_add(next.count());
        bytes = bytes.saturating_add(next.packets.len());
        last.is_even()
            && last.segment == first.segment
            && (next.segment == first.segment || next.count() == 1 && next.segment < first.segment)
            && segments <= MAX_SEGMENTS
            && bytes <= MAX_PAYLOAD
    };
    trains.windows(2).take_while(joins).count().saturating_add(1)
}

impl Splices {
    /// Adds a splice, or replaces the one with the same id. Returns whether there was room.
    pub(crate) fn add(&self, settings: Splice) -> bool {
        let mut table = self.write();
        let former = table.splices.remove(&settings.id);
        let fits = table.splices.len() < MAX_SPLICES;
        if fits {
            let packets = former.map(|former| former.packets).unwrap_or_default();
            let live = LiveSplice { settings, bucket: TokenBucket::new(), packets };
            table.splices.insert(settings.id, live);
        }
        fits
    }

    pub(crate) fn remove(&self, id: SpliceId) {
        self.write().splices.remove(&id);
    }

    /// Removes the splices from and to a peer.
    pub(crate) fn remove_peer(&self, peer: PeerId) {
        let mut table = self.write();
        table.splices.retain(|id, live| id.from != peer && live.settings.to != peer);
        table.splices.shrink_to_fit();
    }

    /// Limits the bytes of all splices together.
    pub(crate) fn set_limit(&self, limit: Option<Rate>) {
        self.write().limit = limit;
    }

    /// Returns the receiver of a train, and whether it is opened here; `None` without a splice for it. Takes a lock, once per train.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub(crate) fn receiver(
        &self,
        id: SpliceId,
        now: Instant,
        sizes: impl FnOnce() -> Sizes,
    ) -> Option<Result<(PeerId, bool), DropReason>> {
        let table = self.read();
        let live = table.splices.get(&id)?;
        let Sizes { count, bytes, lengths: (shortest, longest) } = sizes();
        if !live.settings.lengths.contain(shortest, longest) {
            return None;
        }
        let within = |bucket: &TokenBucket, limit: Option<Rate>| {
            limit.is_none_or(|limit| bucket.take(now, bytes, limit))
        };
        let admitted =
            within(&live.bucket, live.settings.limit) && within(&self.bucket, table.limit);
        if !admitted {
            return Some(Err(DropReason::RelayLimited));
        }
        live.packets.fetch_add(count as u64, Relaxed);
        Some(Ok((live.settings.to, live.settings.ends_here)))
    }

    /// Passes on the splices that had packets since the last call, and how many.
    pub(crate) fn take_packets(&self, mut take: impl FnMut(SpliceId, u64)) {
        for (id, live) in &self.read().splices {
            // Only a splice that is in use has its counter written to.
            if live.packets.load(Relaxed) > 0 {
                take(*id, live.packets.swap(0, Relaxed));
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of the trains with these segments and lengths are sent as one.
    fn joined(trains: &[(usize, usize)]) -> usize {
        let bytes = vec![0; 70_000];
        let train = |&(segment, len)| Spliced { to: PeerId(1), segment, packets: &bytes[..len] };
        joinable(&trains.iter().map(train).collect::<Vec<_>>())
    }

    #[test]
    fn packets_of_equal_length_become_one_train() {
        assert_eq!(joined(&[]), 0);
        assert_eq!(joined(&[(1300, 1300)]), 1);
        assert_eq!(joined(&[(1300, 1300), (1300, 1300), (1300, 2600)]), 3);
    }

    #[test]
    fn a_shorter_packet_is_the_last_of_its_train() {
        assert_eq!(joined(&[(1300, 1300), (100, 100), (1300, 1300)]), 2);
        assert_eq!(joined(&[(1300, 1300), (100, 100), (100, 100)]), 2);
        assert_eq!(joined(&[(1300, 1400), (1300, 1300)]), 1, "its last packet is shorter");
        assert_eq!(joined(&[(1300, 1300), (1300, 1400), (1300, 1300)]), 2);
    }

    #[test]
    fn longer_packets_and_trains_of_another_length_are_not_joined() {
        assert_eq!(joined(&[(100, 100), (1300, 1300)]), 1);
        assert_eq!(joined(&[(1300, 1300), (1000, 2000)]), 1);
    }

    #[test]
    fn a_train_has_no_more_segments_and_bytes_than_the_kernel_accepts() {
        assert_eq!(joined(&[(100, 100); 70]), MAX_SEGMENTS);
        assert_eq!(joined(&[(100, 6_300), (100, 100), (100, 100)]), 2);
        assert_eq!(joined(&[(1300, 1300); 60]), MAX_PAYLOAD / 1300);
        assert_eq!(joined(&[(1300, 65_000), (1300, 1300)]), 1);
    }
}
