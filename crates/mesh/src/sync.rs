//! Synchronizes the rosters of two members over a session.
//!
//! ```text
//! digest:  version 1 | kind 16 | digest 32
//! heads:   version 1 | kind 17 | flags 1 | number of heads 2 | (signer 32, number 4, hash 32)* | missing 32*
//! changes: version 1 | kind 18 | (length 2, change)*
//! ```
//!
//! Neighbours compare digests. If these differ, they exchange the heads of their chains, and each sends the changes that the other lacks. A
//! node pushes a new change to every neighbour that is not known to have it, so the change crosses each pair of neighbours about once.
//!
//! Sans-IO: the caller passes records in, and takes the next one out when the session has room for it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use adit_engine::{Instant, Rate, TokenBucket};

use crate::roster::{
    Change, ChangeHash, Changes, Head, InsertError, Insertion, MAX_BRANCHES, MAX_CHAINS,
    MAX_CHANGES, MAX_OBJECT, MAX_WAITING,
};
use crate::session::SessionNumber;
use crate::wire::{DecodeError, open_record, put_head, put_objects};

#[cfg(test)]
mod tests;

/// The length of the longest record, in bytes.
pub const MAX_RECORD: usize = 16 * 1024;

/// The number of invalid changes after which a neighbour is refused.
pub const MAX_INVALID: u32 = 16;

/// The number of remembered changes that a neighbour has.
const MAX_REMEMBERED: usize = 4096;

/// The number of heads that a neighbour can have.
const MAX_HEADS: usize = MAX_CHAINS * MAX_BRANCHES;

/// The limit on changes that are read from one neighbour. Each costs the verification of a signature.
const CHANGES: Rate = Rate::new(MAX_CHANGES as u64, Duration::from_secs(60));

/// The limit on exchanges of heads with one neighbour. Each costs a walk over all chains.
const EXCHANGES: Rate = Rate::new(8, Duration::from_secs(16));

/// The length of an encoded head.
const HEAD_LEN: usize = 68;

/// The number of heads, or of missing changes, in one record.
const HEADS_PER_RECORD: usize = 200;

const _: () = assert!(MAX_RECORD > MAX_OBJECT + 4, "each change fits a record");
const _: () = assert!(MAX_RECORD > 5 + HEADS_PER_RECORD * HEAD_LEN, "a page fits a record");

/// A record of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The digest of all heads of the sender.
    Digest([u8; 32]),
    /// A page of the sender's heads.
    Heads(Page),
    /// Encoded changes, at least one.
    Changes(Vec<Vec<u8>>),
}

/// A page of heads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Whether no further page follows.
    pub last: bool,
    /// Whether the sender also wants the receiver's heads.
    pub wants_heads: bool,
    /// The heads of chains.
    pub heads: Vec<Head>,
    /// The changes that the sender needs for others that it has.
    pub missing: Vec<ChangeHash>,
}

impl Record {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Digest(digest) => {
                put_head(16, &mut out);
                out.extend(digest);
            }
            Self::Heads(page) => {
                put_head(17, &mut out);
                out.push(u8::from(page.last) | u8::from(page.wants_heads) << 1);
                out.extend(u16::try_from(page.heads.len()).unwrap_or(u16::MAX).to_be_bytes());
                for head in &page.heads {
                    out.extend(head.signer);
                    out.extend(head.number.to_be_bytes());
                    out.extend(head.hash);
                }
                page.missing.iter().for_each(|hash| out.extend(hash));
            }
            Self::Changes(changes) => {
                put_head(18, &mut out);
                let count = put_objects(changes.iter().cloned(), MAX_RECORD, &mut out);
                debug_assert_eq!(count, changes.len(), "more changes than fit a record");
            }
        }
        out
    }

    /// Decodes a record. Only the exact output of [`Self::encode`] is accepted.
    ///
    /// # Errors
    /// Fails with the first deviation from the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut from) = open_record(bytes, MAX_RECORD)?;
        match kind {
            16 => {
                let digest = from.array()?;
                from.end()?;
                Ok(Self::Digest(digest))
            }
            17 => {
                let flags = from.u8()?;
                if flags > 3 {
                    return Err(DecodeError::Kind(flags));
                }
                let count = from.u16()?;
                let mut heads = Vec::new();
                for _ in 0..count {
                    let (signer, number, hash) = (from.array()?, from.u32()?, from.array()?);
                    heads.push(Head { signer, number, hash });
                }
                let (missing, rest) = from.rest().as_chunks();
                if !rest.is_empty() {
                    return Err(DecodeError::Truncated);
                }
                let (last, wants_heads) = (flags & 1 != 0, flags & 2 != 0);
                Ok(Self::Heads(Page { last, wants_heads, heads, missing: missing.to_vec() }))
            }
            18 => match from.objects()? {
                changes if changes.is_empty() => Err(DecodeError::Truncated),
                changes => Ok(Self::Changes(changes)),
            },
            kind => Err(DecodeError::Kind(kind)),
        }
    }
}

/// The reason to end the session with a neighbour.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// A record is not valid.
    #[error("a record of the roster is not valid: {0}")]
    Record(#[from] DecodeError),
    /// The neighbour names more heads or missing changes than a set can have.
    #[error("the neighbour names too many heads")]
    TooManyHeads,
    /// The neighbour sent [`MAX_INVALID`] changes that are not valid.
    #[error("the neighbour sent too many invalid changes")]
    TooManyInvalid,
}

/// Counts the changes from all neighbours.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncCounters {
    /// Changes that were new.
    pub added: u64,
    /// Changes that the node already had.
    pub known: u64,
    /// Changes that were not valid.
    pub invalid: u64,
    /// Changes that were dropped because the neighbour sent too many.
    pub limited: u64,
    /// Exchanges of heads that were begun.
    pub exchanges: u64,
}

/// The exchange of changes with all neighbours of a node.
#[derive(Debug, Default)]
pub struct RosterSync {
    neighbours: BTreeMap<SessionNumber, Neighbour>,
    counters: SyncCounters,
}

/// The exchange with one neighbour.
#[derive(Debug, Default)]
struct Neighbour {
    /// Encoded pages of our heads, to be sent.
    pages: VecDeque<Vec<u8>>,
    /// Changes to be sent.
    queue: VecDeque<ChangeHash>,
    /// Whether our digest is to be sent, after everything else.
    digest_due: bool,
    /// Whether we have sent our heads and wait for the neighbour's.
    awaits_heads: bool,
    /// The pages of the neighbour's heads so far.
    heads: Page,
    /// The changes that the neighbour has or is about to get, with their order of arrival, since both had the same.
    has: BTreeSet<ChangeHash>,
    remembered: VecDeque<ChangeHash>,
    /// Our digest and the neighbour's when heads were last exchanged. The same two digests would lead to the same
    /// result.
    exchanged: Option<([u8; 32], [u8; 32])>,
    /// Whether the neighbour has everything that we have, and vice versa.
    agrees: bool,
    budget: Budget,
}

/// The remaining cost that a member may cause this node. It outlives the member's sessions, so a new session does not refill it.
#[derive(Debug, Default)]
pub struct Budget {
    exchanges: TokenBucket,
    changes: TokenBucket,
    invalid: u32,
}

#[cfg(test)]
impl Budget {
    /// Returns a budget with nothing left for changes.
    pub(crate) fn without_changes(now: Instant) -> Self {
        let budget = Self::default();
        assert!(budget.changes.take(now, MAX_CHANGES, CHANGES));
        budget
    }
}

impl RosterSync {
    /// Returns the counters.
    pub fn counters(&self) -> SyncCounters {
        self.counters
    }

    /// Begins the exchange over an established session.
    pub fn connected(&mut self, session: SessionNumber) {
        let neighbour = Neighbour { digest_due: true, ..Neighbour::default() };
        self.neighbours.insert(session, neighbour);
    }

    /// Limits a new session to the member's remaining budget.
    pub fn set_budget(&mut self, session: SessionNumber, budget: Budget) {
        if let Some(neighbour) = self.neighbours.get_mut(&session) {
            neighbour.budget = budget;
        }
    }

    /// Ends the exchange over a session. Returns the member's remaining budget, for [`Self::set_budget`].
    pub fn disconnected(&mut self, session: SessionNumber) -> Budget {
        self.neighbours.remove(&session).map(|neighbour| neighbour.budget).unwrap_or_default()
    }

    /// Returns whether a digest has shown, since the last call, that the neighbour has the same changes, or all changes
    /// that the bounds of both ends let through.
    pub fn take_agreement(&mut self, session: SessionNumber) -> bool {
        self.neighbours.get_mut(&session).is_some_and(|it| std::mem::take(&mut it.agrees))
    }

    /// Sends the digest to all neighbours again, to find changes that a bound withheld from one of the two nodes.
    pub fn compare(&mut self) {
        for neighbour in self.neighbours.values_mut() {
            neighbour.digest_due = true;
            neighbour.exchanged = None;
        }
    }

    /// Pushes changes that were not added to the set by [`Self::record`], such as one that this node has signed.
    pub fn push(&mut self, added: &[ChangeHash]) {
        for neighbour in self.neighbours.values_mut() {
            added.iter().for_each(|hash| neighbour.enqueue(*hash));
        }
    }

    /// Processes a record. Returns the hashes of changes that it added to the set, in causal order.
    ///
    /// # Errors
    /// Returns the reason to end the session.
    pub fn record(
        &mut self,
        now: Instant,
        session: SessionNumber,
        bytes: &[u8],
        changes: &mut Changes,
    ) -> Result<Vec<ChangeHash>, SyncError> {
        let Some(neighbour) = self.neighbours.get_mut(&session) else { return Ok(Vec::new()) };
        match Record::decode(bytes)? {
            Record::Digest(theirs) => {
                let both = (changes.digest(), theirs);
                if both.0 == both.1 {
                    neighbour.forget_changes();
                }
                if both.0 == both.1 || neighbour.exchanged == Some(both) {
                    // The neighbour's heads, and the changes that we lacked, have arrived before this digest.
                    neighbour.agrees |= both.0 == both.1 || !neighbour.awaits_heads;
                } else if neighbour.budget.exchanges.take(now, 1, EXCHANGES) {
                    neighbour.exchanged = Some(both);
                    self.counters.exchanges = self.counters.exchanges.saturating_add(1);
                    neighbour.send_heads(changes, true);
                }
                Ok(Vec::new())
            }
            Record::Heads(page) => {
                neighbour.take_page(now, page, changes)?;
                Ok(Vec::new())
            }
            Record::Changes(encoded) => {
                let added = self.take_changes(now, session, &encoded, changes)?;
                self.push(&added);
                Ok(added)
            }
        }
    }

    /// Returns the next record for a neighbour, if it is not longer than `room`.
    pub fn next_record(
        &mut self,
        session: SessionNumber,
        changes: &Changes,
        room: usize,
    ) -> Option<Vec<u8>> {
        let neighbour = self.neighbours.get_mut(&session)?;
        if let Some(page) = neighbour.pages.front() {
            return if page.len() <= room { neighbour.pages.pop_front() } else { None };
        }
        if !neighbour.queue.is_empty() {
            return neighbour.next_changes(changes, room.min(MAX_RECORD));
        }
        let digest = Record::Digest(changes.digest()).encode();
        (neighbour.digest_due && digest.len() <= room).then(|| {
            neighbour.digest_due = false;
            digest
        })
    }

    fn take_changes(
        &mut self,
        now: Instant,
        session: SessionNumber,
        encoded: &[Vec<u8>],
        changes: &mut Changes,
    ) -> Result<Vec<ChangeHash>, SyncError> {
        let Some(neighbour) = self.neighbours.get_mut(&session) else { return Ok(Vec::new()) };
        let (mut added, mut waits) = (Vec::new(), false);
        for bytes in encoded {
            if !neighbour.budget.changes.take(now, 1, CHANGES) {
                self.counters.limited = self.counters.limited.saturating_add(1);
                continue;
            }
            let mesh = *changes.mesh();
            let inserted = Change::decode(&mesh, bytes).map_err(|_| None).and_then(|change| {
                neighbour.remember(change.hash());
                changes.insert_into(change, &mut added).map_err(Some)
            });
            match inserted {
                Ok(Insertion::Added(_)) => {}
                Ok(Insertion::Known) => {
                    self.counters.known = self.counters.known.saturating_add(1);
                }
                Ok(Insertion::Waiting) => waits = true,
                // The set is full, which is not the neighbour's fault.
                Err(Some(InsertError::Full | InsertError::Branches | InsertError::Waiting)) => {}
                // Not a change, or one that cannot be part of the set.
                Err(_) => {
                    self.counters.invalid = self.counters.invalid.saturating_add(1);
                    let invalid = &mut neighbour.budget.invalid;
                    *invalid = invalid.saturating_add(1);
                    if *invalid >= MAX_INVALID {
                        return Err(SyncError::TooManyInvalid);
                    }
                }
            }
        }
        if waits && neighbour.pages.is_empty() && neighbour.budget.exchanges.take(now, 1, EXCHANGES)
        {
            neighbour.send_heads(changes, false);
        }
        self.counters.added = self.counters.added.saturating_add(added.len() as u64);
        Ok(added)
    }
}

impl Neighbour {
    /// Queues all pages of our heads, in place of those that were not sent yet.
    fn send_heads(&mut self, changes: &Changes, wants_heads: bool) {
        let (heads, missing) = (changes.heads(), changes.missing());
        let mut heads = heads.chunks(HEADS_PER_RECORD).peekable();
        let mut missing = missing.chunks(HEADS_PER_RECORD).peekable();
        self.pages.clear();
        self.awaits_heads |= wants_heads;
        loop {
            let mut page = Page { wants_heads, ..Page::default() };
            match heads.next() {
                Some(heads) => page.heads = heads.to_vec(),
                None => page.missing = missing.next().unwrap_or_default().to_vec(),
            }
            page.last = heads.peek().is_none() && missing.peek().is_none();
            let last = page.last;
            self.pages.push_back(Record::Heads(page).encode());
            if last {
                return;
            }
        }
    }

    /// Collects a page of the neighbour's heads. After the last one, queues the changes that it lacks.
    fn take_page(&mut self, now: Instant, page: Page, changes: &Changes) -> Result<(), SyncError> {
        let Page { last, wants_heads, heads, missing } = page;
        let counts = (self.heads.heads.len(), self.heads.missing.len());
        if counts.0.saturating_add(heads.len()) > MAX_HEADS
            || counts.1.saturating_add(missing.len()) > MAX_WAITING
        {
            return Err(SyncError::TooManyHeads);
        }
        self.heads.heads.extend(heads);
        self.heads.missing.extend(missing);
        if !last {
            return Ok(());
        }
        let Page { heads, missing, .. } = std::mem::take(&mut self.heads);
        if !self.budget.exchanges.take(now, 1, EXCHANGES) {
            return Ok(());
        }
        // If both ends ask at the same time, each already has the other's heads.
        if wants_heads && !self.awaits_heads {
            self.send_heads(changes, false);
        }
        self.awaits_heads = false;
        self.queue.clear();
        for change in changes.after(&heads, &missing) {
            // The heads are more recent than our record of the neighbour.
            self.has.remove(&change.hash());
            self.enqueue(change.hash());
        }
        self.digest_due = true;
        Ok(())
    }

    /// Queues a change, unless the neighbour has it or is about to get it.
    fn enqueue(&mut self, hash: ChangeHash) {
        if self.queue.len() < MAX_CHANGES && self.remember(hash) {
            self.queue.push_back(hash);
        }
    }

    /// Records that the neighbour has a change. Returns false if that was already known.
    fn remember(&mut self, hash: ChangeHash) -> bool {
        if !self.has.insert(hash) {
            return false;
        }
        self.remembered.push_back(hash);
        if self.remembered.len() > MAX_REMEMBERED
            && let Some(oldest) = self.remembered.pop_front()
        {
            self.has.remove(&oldest);
        }
        true
    }

    /// Forgets the changes that the neighbour has, because it has everything that is in our set. Only later ones are pushed.
    fn forget_changes(&mut self) {
        self.queue = VecDeque::new();
        self.has = BTreeSet::new();
        self.remembered = VecDeque::new();
    }

    /// Returns a record of as many queued changes as fit.
    fn next_changes(&mut self, changes: &Changes, room: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        put_head(18, &mut out);
        // All queued changes are in the set, which only grows.
        let encoded = self.queue.iter().map_while(|hash| changes.get(hash)).map(Change::encode);
        let count = put_objects(encoded, room, &mut out);
        self.queue.drain(..count);
        (count > 0).then_some(out)
    }
}
