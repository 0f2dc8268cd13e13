//! The state of one stream.

use std::time::Duration;

use adit_engine::{Instant, UnixTime};

use super::{Config, NewEpoch, OpenLeaf, PreviousEpoch, ResumeRow, UnsignedCheckpoint};
use crate::key::Checkpoint;
use crate::queue::later;
use crate::seal::Sealer;
use crate::{EpochNo, LeafNo, NodeId, Seq, StreamId};

/// The time 2026-01-01. An epoch's number is the number of seconds since then if that is higher than the next number,
/// because neither a database that was restored from a backup nor a sender that was restarted knows which numbers have
/// been used. (This helps while fewer than one epoch begins per second. A sender that saved its numbers needs no
/// clock.)
const CLOCK_ZERO: u64 = 1_767_225_600;

/// The maximum number from the clock, so that a wrong clock leaves half of the numbers unused.
const CLOCK_MAX: u64 = 1 << 30;

/// The highest numbers from a database that are trusted. They leave as many numbers unused. Otherwise a forged row with
/// the highest possible number would end the stream permanently, because no number is used twice.
const MOST: ResumeRow = ResumeRow {
    last_seq: 1 << 62,
    last_epoch: (1 << 30) + (1 << 24),
    last_leaf: 1 << 30,
    open_leaf: None,
};

/// The first and the longest pause after a refusal.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) receiver: NodeId,
    pub(super) state: State,
    /// The highest epoch and packet number that were ever used. Only higher ones are used from now on.
    pub(super) given: (EpochNo, Seq),
    /// The last epoch with rows from before this process started.
    pub(super) written: EpochNo,
    /// The last checkpoint of earlier processes.
    pub(super) kept: Option<(EpochNo, Checkpoint)>,
    /// The last epoch and packet that this process knows to be committed.
    pub(super) committed: Option<PreviousEpoch>,
    /// The hash of the record of the epoch in `committed`.
    pub(super) record_hash: [u8; 32],
    /// The time since which there are committed rows without a signature.
    pub(super) unsigned: Option<Instant>,
    /// The number of consecutive refusals.
    pub(super) failures: u32,
    /// The number of bytes that the stream may still add to the current batch, and the index of its part. Both are used
    /// only while a batch is built.
    pub(super) credit: usize,
    pub(super) part: Option<usize>,
}

#[derive(Debug)]
pub(super) enum State {
    /// The database's state is unknown.
    Down,
    /// [`Action::Resume`] was returned.
    Resuming,
    /// The state that the database reports.
    Known(ResumeRow),
    /// [`Action::Open`] was returned, for this leaf.
    Opening(NewEpoch, Option<Leaf>),
    Open {
        seal: Sealer,
        next: Seq,
        used_up: bool,
        leaf: LeafNo,
    },
    /// The database refused. The stream is tried again at this time.
    Refused(Instant),
}

/// The newest leaf of all streams that this process writes to.
#[derive(Copy, Clone, Debug)]
pub(super) struct Leaf {
    pub(super) no: LeafNo,
    pub(super) bytes: u64,
    /// The time when the leaf is too old.
    pub(super) due: Instant,
    /// Whether the database refused further rows in the leaf.
    pub(super) unfit: bool,
}

impl Stream {
    /// Returns the epoch after the open one, or after the state that the database reports, and the leaf in which it
    /// continues.
    pub(super) fn opening(
        &self,
        now: Instant,
        unix: UnixTime,
        stream: StreamId,
        leaves: &Leaves,
        found: &ResumeRow,
    ) -> Option<(NewEpoch, Option<Leaf>)> {
        let found = &self.plausible_state(leaves, found)?;
        let Seq(given) = self.given.1;
        let first_seq = found.last_seq.max(given).max(0).checked_add(1)?;
        let clock = unix.0.saturating_sub(CLOCK_ZERO).min(CLOCK_MAX);
        let after = found.last_epoch.max(self.given.0.0).max(0).checked_add(1)?;
        let epoch = after.max(i32::try_from(clock).ok()?);
        let newest = found.last_leaf.max(0);
        let continued = leaves.continued(now, LeafNo(newest), found.open_leaf);
        let leaf = match continued {
            Some(_) => newest,
            None => newest.checked_add(1)?,
        };
        let previous = self.committed.or_else(|| self.before_the_start(found));
        let opening = NewEpoch {
            stream,
            receiver: self.receiver,
            epoch: EpochNo(epoch),
            leaf: LeafNo(leaf),
            first_seq: Seq(first_seq),
            opened: unix,
            previous,
        };
        Some((opening, continued))
    }

    /// Returns `found` with implausibly high packet and epoch numbers replaced by this process's own numbers. Returns
    /// `None` if there are no own numbers, or if the leaf's number is too high. A leaf's number cannot be replaced,
    /// because the next leaf must follow the one in the database.
    pub(super) fn plausible_state(&self, leaves: &Leaves, found: &ResumeRow) -> Option<ResumeRow> {
        let own = self.own_knowledge(leaves);
        if found.last_leaf > MOST.last_leaf.max(own.last_leaf) {
            return None;
        }
        let mut believed = *found;
        if found.last_seq > MOST.last_seq.max(own.last_seq) {
            believed.last_seq = Some(own.last_seq).filter(|seq| *seq > 0)?;
        }
        if found.last_epoch > MOST.last_epoch.max(own.last_epoch) {
            believed.last_epoch = Some(own.last_epoch).filter(|epoch| *epoch > 0)?;
        }
        Some(believed)
    }

    /// Returns the end of the last epoch before this process. It comes from an earlier process's signature, if that is
    /// known, or else from the database, but is not before the last epoch with rows.
    fn before_the_start(&self, found: &ResumeRow) -> Option<PreviousEpoch> {
        if let Some((epoch, Checkpoint { seq, chain })) = self.kept
            && epoch == self.written
            && seq <= self.given.1
        {
            return Some(PreviousEpoch { epoch, last_seq: seq, chain: Some(chain), opened: None });
        }
        let epoch = EpochNo(found.last_epoch).max(self.written);
        let last_seq = Seq(found.last_seq.max(0));
        (epoch.0 > 0).then_some(PreviousEpoch { epoch, last_seq, chain: None, opened: None })
    }

    /// Returns the checkpoint to sign now.
    pub(super) fn to_sign(&self, stream: StreamId) -> Option<UnsignedCheckpoint> {
        self.unsigned?;
        let PreviousEpoch { epoch, last_seq: seq, chain, .. } = self.committed?;
        let checkpoint = Checkpoint { seq, chain: chain? };
        Some(UnsignedCheckpoint { stream, epoch, record_hash: self.record_hash, checkpoint })
    }

    /// Returns whether packets can be sealed for the current leaf.
    pub(super) fn is_sealing(&self, leaves: &Leaves) -> bool {
        let State::Open { used_up, leaf, .. } = &self.state else { return false };
        !*used_up && leaves.newest.is_some_and(|newest| newest.no == *leaf)
    }

    /// Returns the result that `resume` would give according to this process's own numbers.
    pub(super) fn own_knowledge(&self, leaves: &Leaves) -> ResumeRow {
        ResumeRow {
            last_seq: self.given.1.0,
            last_epoch: self.given.0.0,
            last_leaf: leaves.newest.map_or(0, |leaf| leaf.no.0),
            ..ResumeRow::default()
        }
    }
}

/// The state of the leaves, which all streams of a sender share.
#[derive(Copy, Clone, Debug)]
pub(super) struct Leaves {
    pub(super) config: Config,
    pub(super) newest: Option<Leaf>,
    /// A leaf of an earlier process in which an epoch was refused.
    pub(super) refused: Option<LeafNo>,
}

impl Leaves {
    /// Returns the leaf with this number, of this process or an earlier one, if an epoch may be opened in it.
    fn continued(&self, now: Instant, no: LeafNo, found: Option<OpenLeaf>) -> Option<Leaf> {
        let leaf = match self.newest {
            Some(leaf) if leaf.no == no => leaf,
            Some(leaf) if leaf.no > no => return None,
            _ if self.refused == Some(no) => return None,
            _ => {
                let OpenLeaf { bytes, age } = found?;
                let due = later(now, self.config.leaf_age.saturating_sub(age));
                Leaf { no, bytes, due, unfit: false }
            }
        };
        (!leaf.is_full(now, self.config.leaf_bytes)).then_some(leaf)
    }

    /// Records that the database refused an epoch in this leaf, so that the next one is in another leaf. `continued` is
    /// true if the leaf existed before.
    pub(super) fn refuse(&mut self, no: LeafNo, continued: bool) {
        match &mut self.newest {
            Some(leaf) if leaf.no == no => leaf.unfit = true,
            _ if continued => self.refused = Some(no),
            _ => {}
        }
    }

    /// Records that an epoch was opened in this leaf.
    pub(super) fn opened(&mut self, now: Instant, no: LeafNo, continued: Option<Leaf>) {
        if self.newest.is_none_or(|leaf| leaf.no < no) {
            let due = later(now, self.config.leaf_age);
            let new = Leaf { no, bytes: 0, due, unfit: false };
            self.newest = Some(continued.filter(|leaf| leaf.no == no).unwrap_or(new));
        }
    }

    /// Returns whether a new leaf must follow the newest one.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.newest.is_none_or(|leaf| leaf.is_full(now, self.config.leaf_bytes))
    }
}

impl Leaf {
    fn is_full(&self, now: Instant, most: u64) -> bool {
        self.unfit || (self.bytes > 0 && (self.bytes >= most || now >= self.due))
    }
}

impl Stream {
    /// Postpones the next attempt.
    pub(super) fn refuse(&mut self, now: Instant) {
        let doubled = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let pause = RETRY.0.saturating_mul(doubled).min(RETRY.1);
        self.failures = self.failures.saturating_add(1).min(16);
        self.state = State::Refused(later(now, pause));
    }
}
