//! Whether a stream's log is what its sender wrote: epochs and rows go in, in order; findings come out.
//!
//! A sender numbers rows one after the other within an epoch and seals each; it chains its batches; and its next epoch's
//! record says how far the one before was acknowledged, and with which value of the chain. So, with a key, no one can alter,
//! add or remove a row unnoticed, but for the last ones of an epoch that no other follows yet. What was in flight when a
//! connection was lost may be there or not: either is as it should be.
//!
//! Without a key only the numbers, the signatures and the records' order are looked at.

mod finding;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use finding::{Finding, Place};

use crate::key::epoch::{EpochRecord, Expected, Previous, Refused, Wrap, accept, check};
use crate::key::{NetworkKey, NodePublic, Reader};
use crate::row::copy::Fields;
use crate::row::{Row, TAG_LEN, decode};
use crate::seal::{self, Chain, ChainValue, Opener};
use crate::{EpochNo, LeafNo, NodeId, Seq, StreamId};

/// Ends of batches that are remembered for what the next epoch's record says of them. One commit is in flight at a time.
const ENDS: usize = 8;

/// Which stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The network's tag.
    pub network: String,
    /// Its number.
    pub id: StreamId,
    /// The sender's keys; `None`: they are not believed, and signatures are not looked at.
    pub sender: Option<NodePublic>,
    /// Who receives.
    pub receiver: NodeId,
}

/// A row of the table `epoch`, with the wrap for this reader.
#[derive(Copy, Clone, Debug)]
pub struct EpochRow<'a> {
    /// Column `no`.
    pub no: EpochNo,
    /// Column `leaf`.
    pub leaf: LeafNo,
    /// Column `first_seq`.
    pub first_seq: Seq,
    /// Column `record`.
    pub record: &'a [u8],
    /// Column `signature`.
    pub signature: &'a [u8],
    /// What this reader opens.
    pub wrap: Option<&'a Wrap>,
    /// Its leaf was dropped as the retention wants: no rows, no wraps.
    pub expired: bool,
}

/// What was looked at.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Epochs whose rows are there.
    pub epochs: u64,
    /// Epochs whose rows have expired.
    pub expired: u64,
    /// Rows.
    pub rows: u64,
    /// Rows that were opened and found to be the sender's.
    pub proven: u64,
    /// Findings.
    pub findings: u64,
}

/// Looks at one stream.
#[derive(Debug)]
pub struct Verifier<'k> {
    stream: Stream,
    key: Option<(Reader<'k>, &'k NetworkKey)>,
    current: Option<Current>,
    /// The newest epoch that has rows, or had.
    with_rows: Option<EpochNo>,
    /// The chain's last value in the epochs before.
    before: Option<ChainValue>,
    findings: Vec<Finding>,
    summary: Summary,
    scratch: Vec<u8>,
}

/// The epoch whose rows come.
#[derive(Debug)]
struct Current {
    no: EpochNo,
    first_seq: Seq,
    hash: ChainValue,
    expired: bool,
    /// Number of the next row.
    next: Seq,
    keys: Option<(Opener, Chain)>,
    /// First row of the batch that is not ended yet.
    batch: Option<Seq>,
    /// Something of this batch was found already: its chain cannot be right.
    damaged: bool,
    ends: VecDeque<(Seq, ChainValue)>,
    /// The last rows that are missing: of them nothing more is said.
    gap: Option<(Seq, Seq)>,
}

impl<'k> Verifier<'k> {
    /// Begins with a stream; without a `key` less is looked at.
    pub fn new(stream: Stream, key: Option<(Reader<'k>, &'k NetworkKey)>) -> Self {
        Self {
            stream,
            key,
            current: None,
            with_rows: None,
            before: None,
            findings: Vec::new(),
            summary: Summary::default(),
            scratch: Vec::new(),
        }
    }

    /// What was found since it was last asked for. A row or an epoch adds a few at most.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    /// What was looked at until now.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    fn find(&mut self, finding: Finding) {
        self.summary.findings = self.summary.findings.saturating_add(1);
        self.findings.push(finding);
    }

    /// The next epoch, in the order of their numbers; its rows follow.
    pub fn epoch(&mut self, row: &EpochRow<'_>) {
        let record = match self.believed(row) {
            Ok(record) => Some(record),
            Err(why) => {
                self.find(Finding::Epoch { epoch: row.no, why });
                None
            }
        };
        let previous = record.as_ref().and_then(|record| record.epoch.previous);
        self.close(previous.as_ref());
        if let Some(record) = &record {
            self.compare(row, record);
            self.follows(row.no, previous.as_ref());
        }
        let count = if row.expired { &mut self.summary.expired } else { &mut self.summary.epochs };
        *count = count.saturating_add(1);
        let first_seq = record.as_ref().map_or(row.first_seq, |record| record.epoch.first_seq);
        let keys = record.filter(|_| !row.expired).and_then(|record| self.keys(row, &record));
        self.current = Some(Current {
            no: row.no,
            first_seq,
            hash: EpochRecord::hash(row.record, row.signature),
            expired: row.expired,
            next: first_seq,
            keys,
            batch: None,
            damaged: false,
            ends: VecDeque::with_capacity(ENDS),
            gap: None,
        });
        if row.expired {
            self.with_rows = Some(row.no);
            self.before = None;
        }
    }

    fn believed(&self, row: &EpochRow<'_>) -> Result<EpochRecord, Refused> {
        match &self.stream.sender {
            None => EpochRecord::parse(row.record),
            Some(sender) => {
                let expected = Expected {
                    network: &self.stream.network,
                    stream: self.stream.id,
                    sender,
                    receiver: self.stream.receiver,
                };
                check(&expected, row.record, row.signature)
            }
        }
    }

    fn compare(&mut self, row: &EpochRow<'_>, record: &EpochRecord) {
        let epoch = &record.epoch;
        for (column, same) in [
            ("no", row.no == epoch.no),
            ("leaf", row.leaf == epoch.leaf),
            ("first_seq", row.first_seq == epoch.first_seq),
        ] {
            if !same {
                self.find(Finding::Columns { epoch: row.no, column });
            }
        }
    }

    /// Whether the epoch stands behind the one that its record names. Epochs without rows may lie between: their opening was
    /// in doubt.
    fn follows(&mut self, epoch: EpochNo, previous: Option<&Previous>) {
        let last = self.current.as_ref().map(|current| current.no);
        match (previous, last) {
            (None, Some(found)) => {
                let found = self.with_rows.unwrap_or(found);
                self.find(Finding::Predecessor { epoch, named: None, found });
            }
            (Some(previous), last) if last.is_none_or(|last| previous.no > last) => {
                self.find(Finding::EpochsMissing { epoch, named: previous.no });
            }
            (Some(previous), _) => {
                if let Some(found) = self.with_rows.filter(|rows| *rows > previous.no) {
                    let named = Some(previous.no);
                    self.find(Finding::Predecessor { epoch, named, found });
                }
            }
            (None, None) => {}
        }
    }

    fn keys(&mut self, row: &EpochRow<'_>, record: &EpochRecord) -> Option<(Opener, Chain)> {
        let (reader, network) = self.key?;
        if !record.readers.iter().any(|(id, _)| *id == reader.id()) {
            return None;
        }
        let sender = self.stream.sender.as_ref()?;
        let expected = Expected {
            network: &self.stream.network,
            stream: self.stream.id,
            sender,
            receiver: self.stream.receiver,
        };
        let Some(wrap) = row.wrap else {
            self.find(Finding::Secret { epoch: row.no, why: None });
            return None;
        };
        let accepted = accept(reader, network, &expected, row.record, row.signature, wrap);
        let (record, secret) = match accepted {
            Ok(accepted) => accepted,
            Err(why) => {
                self.find(Finding::Secret { epoch: row.no, why: Some(why) });
                return None;
            }
        };
        let epoch = &record.epoch;
        let hash = EpochRecord::hash(row.record, row.signature);
        let opener = Opener::new(&secret, epoch.audit, epoch.stream, epoch.no, hash).ok()?;
        Some((opener, Chain::new(&secret, hash).ok()?))
    }

    /// The next row from the values of its columns. What is no host's address counts as none: the row is then explained as
    /// altered.
    pub fn values(&mut self, mut values: Fields<'_>) {
        let seq = values.first().copied().flatten().and_then(|seq| seq.try_into().ok());
        let parsed = decode::row(values).or_else(|_| {
            let [.., src, dst, _, _, _] = &mut values;
            (*src, *dst) = (None, None);
            decode::row(values)
        });
        match parsed {
            Ok(row) => self.row(&row),
            Err(_) => {
                self.summary.rows = self.summary.rows.saturating_add(1);
                self.find(Finding::Stray { seq: Seq(seq.map_or(0, i64::from_be_bytes)) });
            }
        }
    }

    /// The next row, in the order of their numbers.
    pub fn row(&mut self, row: &Row<'_>) {
        self.summary.rows = self.summary.rows.saturating_add(1);
        let Some(mut current) = self.current.take() else {
            return self.find(Finding::Stray { seq: row.seq });
        };
        self.row_of(&mut current, row);
        self.current = Some(current);
    }

    fn row_of(&mut self, current: &mut Current, row: &Row<'_>) {
        let epoch = current.no;
        if row.seq < current.first_seq {
            return self.find(Finding::Stray { seq: row.seq });
        }
        if row.seq < current.next {
            return self.find(Finding::Twice { epoch, seq: row.seq });
        }
        self.with_rows = Some(epoch);
        if row.seq > current.next {
            let place = match current.batch {
                Some(_) => Place::Batch,
                None if current.next == current.first_seq => Place::Start,
                None => Place::Between,
            };
            let to = Seq(row.seq.0.saturating_sub(1));
            self.find(Finding::Missing { epoch, from: current.next, to, place });
            current.gap = Some((current.next, to));
            current.damaged = true;
        }
        current.next = Seq(row.seq.0.saturating_add(1));
        let from = *current.batch.get_or_insert(row.seq);
        self.genuine(current, row);
        let Some(claimed) = row.chain else { return };
        let value = claimed.try_into().ok();
        let right = match &mut current.keys {
            Some((_, chain)) => chain.check(claimed),
            None => value.is_some(),
        };
        if !right && !current.damaged {
            self.find(Finding::Chain { epoch, from, to: row.seq });
        }
        if let Some(value) = value {
            if current.ends.len() >= ENDS {
                current.ends.pop_front();
            }
            current.ends.push_back((row.seq, value));
        }
        (current.batch, current.damaged) = (None, false);
    }

    /// Opens a row, and says what of it was altered if it does not open.
    fn genuine(&mut self, current: &mut Current, row: &Row<'_>) {
        let epoch = current.no;
        let Some((opener, chain)) = &mut current.keys else {
            if (row.stream, row.epoch) != (self.stream.id, epoch) {
                self.find(Finding::Stray { seq: row.seq });
            }
            return;
        };
        match <&[u8; TAG_LEN]>::try_from(row.tag) {
            Ok(tag) => chain.add(row.seq, tag),
            Err(_) => current.damaged = true,
        }
        self.scratch.clear();
        let finding = match opener.open(row, &mut self.scratch) {
            Ok(_) => {
                self.summary.proven = self.summary.proven.saturating_add(1);
                return;
            }
            Err(seal::Refused::Untrue) => Finding::Untrue { epoch, seq: row.seq },
            Err(_) => match opener.told(&Row { stream: self.stream.id, epoch, ..*row }) {
                Some(was) => {
                    let mut columns = finding::differences(&row.columns, &was);
                    if row.epoch != epoch {
                        columns.push(("epoch", row.epoch.to_string(), epoch.to_string()));
                    }
                    if row.stream != self.stream.id {
                        let is = self.stream.id.to_string();
                        columns.push(("stream", row.stream.to_string(), is));
                    }
                    Finding::Column { epoch, seq: row.seq, columns }
                }
                None => {
                    // Whether the tag is the sender's only the chain knows: it may be broken by this.
                    current.damaged = true;
                    Finding::Altered { epoch, seq: row.seq }
                }
            },
        };
        self.find(finding);
    }

    /// There are no more epochs.
    pub fn finish(&mut self) {
        self.close(None);
    }

    /// Ends an epoch, with what the next one's record says of it.
    fn close(&mut self, said: Option<&Previous>) {
        let Some(current) = self.current.as_ref().filter(|current| !current.expired) else {
            return;
        };
        let epoch = current.no;
        let last = Seq(current.next.0.saturating_sub(1));
        let said = said.filter(|said| said.no == epoch);
        let mut findings = Vec::new();
        match said {
            Some(said) if said.last_seq > last => findings.push(Finding::Missing {
                epoch,
                from: current.next,
                to: said.last_seq,
                place: Place::End,
            }),
            _ => {
                findings.extend(current.batch.map(|from| Finding::Unfinished {
                    epoch,
                    from,
                    to: last,
                }));
                let vouched = said.and_then(|said| Some((said.last_seq, said.chain?)));
                if let Some((seq, chain)) = vouched
                    && !self.vouched(current, seq, chain)
                {
                    findings.push(Finding::Vouched { epoch, seq });
                }
            }
        }
        self.before = current.ends.back().map(|(_, value)| *value).or(self.before);
        for finding in findings {
            self.find(finding);
        }
    }

    /// Whether the chain had that value at that row.
    fn vouched(&self, current: &Current, seq: Seq, chain: ChainValue) -> bool {
        if seq < current.first_seq {
            // A sender that has begun again asks the database, which knows the epoch before only.
            return chain == current.hash || self.before.is_none_or(|before| before == chain);
        }
        current.gap.is_some_and(|(from, to)| (from..=to).contains(&seq))
            || current.ends.iter().any(|end| *end == (seq, chain))
    }
}
