//! Where one stream stands.

use std::time::Duration;

use adit_engine::{Instant, UnixTime};

use super::{Config, Opening, Previous, Resumed};
use crate::queue::later;
use crate::seal::Sealer;
use crate::{EpochNo, LeafNo, NodeId, Seq, StreamId};

/// Epochs are numbered by the clock from here, 2026-01-01, if that is more than the next number: a database that was
/// restored from a backup, and a sender that was started again, know nothing of the numbers used since. (That
/// helps while fewer than one epoch begins in a second; a sender that kept its numbers needs no clock.)
const CLOCK_ZERO: u64 = 1_767_225_600;

/// But a clock that is wrong leaves half of the numbers over.
const CLOCK_MAX: u64 = 1 << 30;

/// Pauses after a refusal, the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) receiver: NodeId,
    pub(super) state: State,
    /// The highest epoch and number that were ever given out; no others are given but higher ones.
    pub(super) given: (EpochNo, Seq),
    /// The last that this process knows to be committed.
    pub(super) committed: Option<Previous>,
    pub(super) leaf: Option<Leaf>,
    /// Refusals one after the other.
    pub(super) failures: u32,
    /// Bytes that it may still have in this batch, and the part that it has; both count only while one is built.
    pub(super) credit: usize,
    pub(super) part: Option<usize>,
}

#[derive(Debug)]
pub(super) enum State {
    /// Nothing is known of what the database has.
    Down,
    /// [`Want::Resume`] was given.
    Resuming,
    /// As the database says.
    Known(Resumed),
    /// [`Want::Open`] was given.
    Opening(Opening),
    Open {
        seal: Sealer,
        next: Seq,
        used_up: bool,
    },
    /// The database refused; try again then.
    Refused(Instant),
}

/// The newest leaf that this process has opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct Leaf {
    pub(super) no: LeafNo,
    pub(super) bytes: u64,
    pub(super) opened: Instant,
    /// The database refused to go on in it.
    pub(super) unfit: bool,
}

impl Stream {
    /// The epoch after the one that is open, or after what the database says.
    pub(super) fn opening(
        &self,
        now: Instant,
        unix: UnixTime,
        stream: StreamId,
        config: &Config,
        found: &Resumed,
    ) -> Option<Opening> {
        let Seq(given) = self.given.1;
        let first_seq = found.last_seq.max(given).max(0).checked_add(1)?;
        let clock = unix.0.saturating_sub(CLOCK_ZERO).min(CLOCK_MAX);
        let after = found.last_epoch.max(self.given.0.0).max(0).checked_add(1)?;
        let epoch = after.max(i32::try_from(clock).ok()?);
        let newest = found.last_leaf.max(0);
        let leaf = match self.leaf {
            Some(leaf) if leaf.no.0 == newest && !leaf.is_full(now, config) => newest,
            _ => newest.checked_add(1)?,
        };
        let previous = self.committed.or_else(|| {
            (found.last_epoch > 0).then_some(Previous {
                epoch: EpochNo(found.last_epoch),
                last_seq: Seq(found.last_seq),
                chain: found.last_chain,
            })
        });
        Some(Opening {
            stream,
            receiver: self.receiver,
            epoch: EpochNo(epoch),
            leaf: LeafNo(leaf),
            first_seq: Seq(first_seq),
            previous,
        })
    }

    pub(super) fn is_sealing(&self) -> bool {
        matches!(self.state, State::Open { used_up: false, .. })
    }

    /// Whether the open epoch is to be followed by another.
    pub(super) fn is_due(&self, now: Instant, config: &Config) -> bool {
        match self.state {
            State::Open { used_up, .. } => {
                used_up || self.leaf.is_none_or(|leaf| leaf.is_full(now, config))
            }
            _ => false,
        }
    }

    /// What `resume` would say, were it asked: this process knows.
    pub(super) fn own_knowledge(&self) -> Resumed {
        Resumed {
            last_seq: self.given.1.0,
            last_epoch: self.given.0.0,
            last_leaf: self.leaf.map_or(0, |leaf| leaf.no.0),
            last_chain: None,
        }
    }
}

impl Leaf {
    pub(super) fn is_full(&self, now: Instant, config: &Config) -> bool {
        let old = now.since(self.opened) >= config.leaf_age;
        self.unfit || (self.bytes > 0 && (self.bytes >= config.leaf_bytes || old))
    }
}

impl Stream {
    /// To be tried again later, in a new leaf: the refusal may be about this one.
    pub(super) fn refuse(&mut self, now: Instant) {
        let doubled = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let pause = RETRY.0.saturating_mul(doubled).min(RETRY.1);
        self.failures = self.failures.saturating_add(1).min(16);
        if let Some(leaf) = &mut self.leaf {
            leaf.unfit = true;
        }
        self.state = State::Refused(later(now, pause));
    }
}
