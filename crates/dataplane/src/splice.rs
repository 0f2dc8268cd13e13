//! Relays sealed packets between two peers that have a session with each other.
//!
//! The relay cannot open these packets, and never changes them, because their headers are authenticated. It looks up
//! the receiver by the peer whose address a packet came from and by the peer-id in the header, which the receiving end
//! chose.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use adit_engine::command::{Splice, SpliceId};
use adit_engine::{Instant, PeerId, Rate, TokenBucket};

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
}

impl Splices {
    /// Adds a splice, or replaces the one with the same id. Returns whether there was room.
    pub(crate) fn add(&self, settings: Splice) -> bool {
        let mut table = self.write();
        let fits = table.splices.len() < MAX_SPLICES || table.splices.contains_key(&settings.id);
        if fits {
            let live = LiveSplice { settings, bucket: TokenBucket::new() };
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

    /// Returns the receiver of a train; `None` without a splice for it. Takes a lock, once per train.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub(crate) fn receiver(
        &self,
        id: SpliceId,
        now: Instant,
        bytes: usize,
    ) -> Option<Result<PeerId, DropReason>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let live = table.splices.get(&id)?;
        let within = |bucket: &TokenBucket, limit: Option<Rate>| {
            limit.is_none_or(|limit| bucket.take(now, bytes, limit))
        };
        let admitted =
            within(&live.bucket, live.settings.limit) && within(&self.bucket, table.limit);
        Some(if admitted { Ok(live.settings.to) } else { Err(DropReason::RelayLimited) })
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}
