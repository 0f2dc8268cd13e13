//! Keeps a node's changes and a shared [`Directory`] in sync.
//!
//! ```text
//!   connected ─► read from the last place ─► append what the node signed ─► read ... ─► news, or an interval: read
//!                                                                                └─► at longer intervals: summarize
//! ```
//!
//! The node's own file remains authoritative. A directory is not trusted: each entry is verified like a change from a neighbour. A
//! directory that withholds entries lacks changes that the node has from elsewhere; if it removed, replaced or replayed entries, its
//! summary does not match the entries that it showed, and everything is read again. In both cases the node appends its own changes again;
//! other nodes do the same for theirs.
//!
//! Sans-IO: [`DirectorySync::request`] returns one request at a time, and the caller passes the answer in.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use adit_crypto::sha256;
use adit_engine::Instant;

use crate::roster::{
    Append, ChainSummary, Change, ChangeHash, Changes, Directory, Entry, MAX_CHAINS, MAX_CHANGES,
    MAX_READ,
};
use crate::session::KeyHash;

#[cfg(test)]
mod tests;

/// The interval between reads, in case a notification was lost.
pub const READ_INTERVAL: Duration = Duration::from_secs(15);

/// The minimum time between a read and one that a notification triggers.
const NEWS_INTERVAL: Duration = Duration::from_millis(100);

/// The interval between comparisons of summaries.
pub const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// The time after which a change that the directory does not show counts as lacking.
pub const GRACE: Duration = Duration::from_secs(30);

/// The number of a directory's entries that a node remembers. Further entries are used but not remembered.
pub const MAX_ROWS: usize = MAX_CHANGES;

/// The minimum time between two full reads.
const REREAD_INTERVAL: Duration = Duration::from_secs(30);

/// The minimum time between two full reads that are needed because the node's set had no room for some entries.
const MISSED_INTERVAL: Duration = Duration::from_secs(300);

/// The time after which a change is appended again if the directory accepted it but does not show it, or refused it.
const RETRY: Duration = Duration::from_secs(60);

/// The pause after a page with invalid entries, each of which costs the verification of a signature.
const INVALID_PAUSE: Duration = Duration::from_secs(1);

/// The minimum time between two summaries that an operator requests.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A request to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`Directory::read`].
    Read {
        /// The last known place.
        after: u64,
    },
    /// [`Directory::summarize`].
    Summarize {
        /// The last known place.
        upto: u64,
    },
    /// [`Directory::append`].
    Append {
        /// The hash of the signer's key.
        signer: KeyHash,
        /// The number of the change.
        number: u32,
        /// The hash of the change.
        change: ChangeHash,
        /// The encoded change.
        bytes: Vec<u8>,
    },
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Read`].
    Entries(Vec<Entry>),
    /// To [`Request::Summarize`].
    Summary(Vec<ChainSummary>),
    /// To [`Request::Append`].
    Appended(Append),
    /// The directory refused this request, but can still be used.
    Refused,
}

impl Request {
    /// Asks a directory.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn perform<D: Directory>(&self, directory: &mut D) -> Result<Answer, D::Error> {
        Ok(match self {
            Self::Read { after } => Answer::Entries(directory.read(*after)?),
            Self::Summarize { upto } => Answer::Summary(directory.summarize(*upto)?),
            Self::Append { signer, number, bytes, .. } => {
                Answer::Appended(directory.append(signer, *number, bytes)?)
            }
        })
    }
}

/// Counts a directory's entries, summaries and refusals.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryCounters {
    /// Changes that were new to the node.
    pub received: u64,
    /// Changes that the node appended.
    pub appended: u64,
    /// Entries that are no valid change of their signer and number, or out of order.
    pub invalid: u64,
    /// Changes that the directory lacked.
    pub withheld: u64,
    /// Summaries that differed from what the directory had shown.
    pub mismatches: u64,
    /// Appends that the directory refused.
    pub refused: u64,
    /// Entries that were not remembered: see [`MAX_ROWS`].
    pub full: u64,
}

/// An entry as the directory showed it.
#[derive(Copy, Clone, Debug)]
struct Row {
    /// The SHA-256 of its bytes.
    hash: [u8; 32],
    /// The change, if it is a valid one.
    change: Option<ChangeHash>,
}

/// A change that the directory has not shown.
#[derive(Copy, Clone, Debug)]
struct Lacking {
    /// Since when this is the directory's fault.
    due: Instant,
    /// Whether it was counted.
    is_counted: bool,
    /// The time when it may be appended.
    append_at: Instant,
}

/// The exchange with a directory. See [the module](self).
#[derive(Debug)]
pub struct DirectorySync {
    rows: BTreeMap<(KeyHash, u32), Row>,
    /// The place of the last entry.
    after: u64,
    lacking: BTreeMap<(KeyHash, u32, ChangeHash), Lacking>,
    is_connected: bool,
    /// Whether everything up to the end was read since the connection began.
    is_complete: bool,
    asked: Option<Request>,
    /// Whether to read before the interval ends.
    read_due: bool,
    /// No read starts before this time.
    read_from: Instant,
    next_read: Instant,
    last_read: Option<Instant>,
    next_summary: Instant,
    last_summary: Option<Instant>,
    reread_from: Instant,
    missed_from: Instant,
    /// An addition to the intervals that differs from node to node.
    phase: Duration,
    counters: DirectoryCounters,
}

impl DirectorySync {
    /// Creates the exchange for a node with these changes, without a connection yet.
    pub fn new(now: Instant, own: &KeyHash, changes: &Changes) -> Self {
        let phase = Duration::from_millis(u64::from(own.first().copied().unwrap_or_default()) * 40);
        let mut this = Self {
            rows: BTreeMap::new(),
            after: 0,
            lacking: BTreeMap::new(),
            is_connected: false,
            is_complete: false,
            asked: None,
            read_due: false,
            read_from: now,
            next_read: now,
            last_read: None,
            next_summary: now,
            last_summary: None,
            reread_from: now,
            missed_from: now,
            phase,
            counters: DirectoryCounters::default(),
        };
        this.expect_all(now + GRACE, now, changes);
        this
    }

    /// Returns the counters.
    pub fn counters(&self) -> DirectoryCounters {
        self.counters
    }

    /// Returns the number of entries that the directory has shown.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Begins to use a new connection.
    pub fn connected(&mut self, now: Instant) {
        self.is_connected = true;
        (self.read_due, self.next_summary) = (true, now);
        // Changes that arrived while there was no directory do not count as withheld.
        for lacking in self.lacking.values_mut() {
            lacking.due = lacking.due.max(now + GRACE);
            lacking.append_at = now;
        }
    }

    /// Handles the end of the connection. The last request gets no answer.
    pub fn disconnected(&mut self) {
        self.is_connected = false;
        self.is_complete = false;
        self.asked = None;
    }

    /// Reads at once, because the directory reports a new entry. Anyone with access to it can send such a report, so the reads have a
    /// minimum interval.
    pub fn news(&mut self, now: Instant) {
        match self.last_read {
            Some(last) if now.since(last) < NEWS_INTERVAL => {
                self.next_read = self.next_read.min(last + NEWS_INTERVAL);
            }
            _ => self.read_due = true,
        }
    }

    /// Compares summaries soon, because an operator asks.
    pub fn check(&mut self, now: Instant) {
        let earliest = self.last_summary.map_or(now, |last| now.max(last + CHECK_INTERVAL));
        self.next_summary = self.next_summary.min(earliest);
    }

    /// Expects the directory to show changes that are new in the node's set.
    pub fn added(&mut self, now: Instant, added: &[ChangeHash], changes: &Changes) {
        added.iter().filter_map(|hash| changes.get(hash)).for_each(|change| {
            self.expect(now + GRACE, now, change);
        });
    }

    fn expect_all(&mut self, due: Instant, append_at: Instant, changes: &Changes) {
        for change in changes.in_causal_order() {
            self.expect(due, append_at, change);
        }
    }

    fn expect(&mut self, due: Instant, append_at: Instant, change: &Change) {
        let (signer, number, hash) = (change.signer(), change.body().number, change.hash());
        if self.rows.get(&(signer, number)).and_then(|row| row.change) != Some(hash) {
            let lacking = Lacking { due, is_counted: false, append_at };
            self.lacking.entry((signer, number, hash)).or_insert(lacking);
        }
    }

    /// Returns the next request, if one is due and none is outstanding. `signers` are the keys whose chains this node appends.
    pub fn request(
        &mut self,
        now: Instant,
        changes: &Changes,
        signers: &BTreeSet<KeyHash>,
    ) -> Option<Request> {
        if !self.is_connected || self.asked.is_some() {
            return None;
        }
        let request = if (self.read_due || self.next_read <= now) && self.read_from <= now {
            // Entries reported before the answer arrives are read afterwards.
            self.read_due = false;
            self.last_read = Some(now);
            self.next_read = now + READ_INTERVAL + self.phase;
            Some(Request::Read { after: self.after })
        } else if self.is_complete && self.next_summary <= now {
            Some(Request::Summarize { upto: self.after })
        } else if self.is_complete {
            self.next_append(now, changes, signers)
        } else {
            None
        };
        self.asked.clone_from(&request);
        request
    }

    fn next_append(
        &mut self,
        now: Instant,
        changes: &Changes,
        signers: &BTreeSet<KeyHash>,
    ) -> Option<Request> {
        for signer in signers {
            let own = (*signer, 0, [0; 32])..=(*signer, u32::MAX, [0xff; 32]);
            for ((_, number, hash), lacking) in self.lacking.range(own) {
                let follows = match number.checked_sub(1) {
                    None | Some(0) => true,
                    Some(before) => {
                        let row = self.rows.get(&(*signer, before));
                        let previous = changes.get(hash).map(|change| change.body().previous);
                        row.is_some_and(|row| row.change == previous)
                    }
                };
                if !follows
                    || lacking.append_at > now
                    || self.rows.contains_key(&(*signer, *number))
                {
                    continue;
                }
                let bytes = changes.get(hash)?.encode();
                let (number, change) = (*number, *hash);
                return Some(Request::Append { signer: *signer, number, change, bytes });
            }
        }
        None
    }

    /// Processes the answer to the last request. Returns changes for the node's set, whose signatures are verified.
    pub fn answer(&mut self, now: Instant, answer: Answer, changes: &Changes) -> Vec<Change> {
        match (self.asked.take(), answer) {
            (Some(Request::Read { .. }), Answer::Entries(entries)) => {
                self.take_entries(now, entries, changes)
            }
            (Some(Request::Summarize { .. }), Answer::Summary(chains)) => {
                self.take_summary(now, &chains, changes);
                Vec::new()
            }
            (Some(Request::Append { signer, number, change, .. }), answer) => {
                if let Some(lacking) = self.lacking.get_mut(&(signer, number, change)) {
                    lacking.append_at = now + RETRY;
                }
                self.take_appended(now, answer, changes)
            }
            // The answer belongs to an earlier connection, or to another kind of request.
            _ => Vec::new(),
        }
    }

    fn take_appended(&mut self, now: Instant, answer: Answer, changes: &Changes) -> Vec<Change> {
        // Either way, a later read shows whether the directory keeps the entry.
        self.read_due = true;
        match answer {
            Answer::Appended(Append::Added) => {
                self.counters.appended = self.counters.appended.saturating_add(1);
            }
            Answer::Appended(Append::Conflict(bytes)) => {
                let other = Change::decode(changes.mesh(), &bytes).ok();
                return other.into_iter().filter(|it| changes.get(&it.hash()).is_none()).collect();
            }
            Answer::Appended(Append::Gap) => self.reread(now, changes),
            Answer::Appended(Append::Known) => {}
            _ => self.counters.refused = self.counters.refused.saturating_add(1),
        }
        Vec::new()
    }

    fn take_entries(
        &mut self,
        now: Instant,
        entries: Vec<Entry>,
        changes: &Changes,
    ) -> Vec<Change> {
        let is_last = entries.len() < MAX_READ;
        let invalid = self.counters.invalid;
        let mut new = Vec::new();
        for entry in entries.into_iter().take(MAX_READ) {
            if entry.place <= self.after {
                self.counters.invalid = self.counters.invalid.saturating_add(1);
                continue;
            }
            self.after = entry.place;
            let change = self.verify(&entry, changes);
            if change.is_none() {
                self.counters.invalid = self.counters.invalid.saturating_add(1);
            }
            let hash = change.as_ref().map(Verified::hash);
            self.remember(&entry, hash);
            if let Some(hash) = hash {
                self.lacking.remove(&(entry.signer, entry.number, hash));
            }
            if let Some(Verified::New(change)) = change {
                self.counters.received = self.counters.received.saturating_add(1);
                new.push(*change);
            }
        }
        self.read_due |= !is_last;
        if self.counters.invalid != invalid {
            self.read_from = now + INVALID_PAUSE;
        }
        if is_last {
            self.is_complete = true;
            self.count_withheld(now, changes);
        }
        new
    }

    /// Verifies that an entry is a change with its signer and number. If the node already has the change, comparing the two is enough.
    fn verify(&self, entry: &Entry, changes: &Changes) -> Option<Verified> {
        let (signer, number) = (entry.signer, entry.number);
        let lacking = (signer, number, [0; 32])..=(signer, number, [0xff; 32]);
        let known =
            self.lacking.range(lacking).map(|((_, _, hash), _)| hash).find(|hash| {
                changes.get(hash).is_some_and(|change| change.encode() == entry.bytes)
            });
        if let Some(hash) = known {
            return Some(Verified::Known(*hash));
        }
        let change = Change::decode(changes.mesh(), &entry.bytes).ok()?;
        if change.signer() != signer || change.body().number != number {
            return None;
        }
        let hash = change.hash();
        let is_new = changes.get(&hash).is_none();
        Some(if is_new { Verified::New(Box::new(change)) } else { Verified::Known(hash) })
    }

    fn remember(&mut self, entry: &Entry, change: Option<ChangeHash>) {
        let key = (entry.signer, entry.number);
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
            self.counters.full = self.counters.full.saturating_add(1);
            return;
        }
        self.rows.insert(key, Row { hash: sha256(&[&entry.bytes]), change });
    }

    fn take_summary(&mut self, now: Instant, chains: &[ChainSummary], changes: &Changes) {
        self.last_summary = Some(now);
        self.next_summary = now + SUMMARY_INTERVAL + self.phase;
        let mut own = BTreeMap::<KeyHash, Vec<[u8; 32]>>::new();
        for ((signer, _), row) in &self.rows {
            own.entry(*signer).or_default().push(row.hash);
        }
        let own: BTreeMap<_, _> = own
            .into_iter()
            .map(|(signer, hashes)| (signer, ChainSummary::new(signer, hashes.iter())))
            .collect();
        let same = chains.len() == own.len()
            && chains.iter().all(|chain| own.get(&chain.signer) == Some(chain));
        // A directory with more chains than a mesh can have cannot match.
        if !same && own.len() <= MAX_CHAINS && self.counters.full == 0 {
            if self.reread_from <= now {
                self.counters.mismatches = self.counters.mismatches.saturating_add(1);
            }
            return self.reread(now, changes);
        }
        let missed = |row: &Row| row.change.is_some_and(|hash| changes.get(&hash).is_none());
        let missed = self.rows.values().filter(|row| missed(row)).count();
        if missed > changes.waiting() && self.missed_from <= now {
            self.missed_from = now + MISSED_INTERVAL;
            return self.reread(now, changes);
        }
        self.count_withheld(now, changes);
    }

    /// Forgets what the directory has shown, and reads all of it.
    fn reread(&mut self, now: Instant, changes: &Changes) {
        if self.reread_from > now {
            self.next_summary = self.reread_from;
            return;
        }
        self.reread_from = now + REREAD_INTERVAL;
        self.rows.clear();
        self.after = 0;
        (self.is_complete, self.read_due) = (false, true);
        // A change that it does not show now was shown before, or has been missing for longer than the grace period.
        let waits = std::mem::take(&mut self.lacking);
        self.expect_all(now, now, changes);
        for (key, lacking) in waits {
            self.lacking.insert(key, Lacking { append_at: now, ..lacking });
        }
    }

    /// Returns the number of changes that the node has but the directory lacks, or `None` while that is unknown.
    pub fn lacks(&self, now: Instant, changes: &Changes) -> Option<usize> {
        self.is_complete.then(|| self.withheld(changes).filter(|(_, it)| it.due <= now).count())
    }

    /// Returns the number of changes that the directory cannot store, because another entry has their number, or the number of an earlier
    /// change in their chain.
    pub fn conflicts(&self, changes: &Changes) -> usize {
        self.lacking.len().saturating_sub(self.withheld(changes).count())
    }

    /// Returns the number of entries that are not valid changes.
    pub fn invalid_rows(&self) -> usize {
        self.rows.values().filter(|row| row.change.is_none()).count()
    }

    /// Returns the changes that the directory could store but has not shown.
    fn withheld<'a>(
        &'a self,
        changes: &'a Changes,
    ) -> impl Iterator<Item = (&'a (KeyHash, u32, ChangeHash), &'a Lacking)> {
        let mut possible = BTreeSet::new();
        self.lacking.iter().filter(move |((signer, number, hash), _)| {
            let previous = changes.get(hash).map(|change| change.body().previous);
            let before = number.checked_sub(1).and_then(|n| self.rows.get(&(*signer, n)));
            let follows = *number == 1
                || before.is_some_and(|row| row.change == previous)
                || previous.is_some_and(|previous| possible.contains(&previous));
            let is_free = !self.rows.contains_key(&(*signer, *number));
            follows && is_free && possible.insert(*hash)
        })
    }

    fn count_withheld(&mut self, now: Instant, changes: &Changes) {
        let due: Vec<_> = self
            .withheld(changes)
            .filter(|(_, lacking)| lacking.due <= now && !lacking.is_counted)
            .map(|(key, _)| *key)
            .collect();
        for key in due {
            self.counters.withheld = self.counters.withheld.saturating_add(1);
            if let Some(lacking) = self.lacking.get_mut(&key) {
                lacking.is_counted = true;
            }
        }
    }
}

/// An entry that is a change.
enum Verified {
    /// The node has it.
    Known(ChangeHash),
    /// The node does not have it.
    New(Box<Change>),
}

impl Verified {
    fn hash(&self) -> ChangeHash {
        match self {
            Self::Known(hash) => *hash,
            Self::New(change) => change.hash(),
        }
    }
}
