//! Verifies that a stream's log is what its sender wrote. The caller passes epochs and rows in order, and receives findings.
//!
//! Within an epoch, a sender numbers rows consecutively, seals each row and chains its batches. Within a second it
//! signs a checkpoint of the chain. The record of its next epoch states how far the previous epoch was acknowledged,
//! and the chain's value there. So with a key, the verifier notices every altered, added or removed row, except those
//! after the last signature, which are counted as unsigned. Rows that were in flight when a connection was lost may
//! exist or not, and both cases are correct. The verifier cannot notice a database that withholds the newest rows
//! together with their signatures. It checks dropped rows against the network's retention, as far as the sender signed
//! their times.
//!
//! Each epoch's record contains the number of the network's settings at its opening. The epoch's audit policy and
//! readers are compared with these settings, and its expiry with all settings that have been in force since then.
//!
//! Without a key, only the numbers, the signatures and the order of the records are checked.

mod finding;
mod retention;
mod types;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

pub use finding::{Finding, GapPosition, SettingsConflict, Signed};
pub use retention::{Retention, RetentionPeriod};
pub use types::{CheckpointRow, EpochRow, Stream, Summary};

use crate::key::epoch::{Epoch, EpochError, EpochRecord, Expected, PreviousEpoch, accept, check};
use crate::key::{Checkpoint, KeyRing, Reader};
use crate::limits::BATCH_ROWS;
use crate::row::copy::Fields;
use crate::row::{Row, TAG_LEN, decode};
use crate::seal::{self, Chain, ChainValue, Opener};
use crate::{Durability, EpochNo, NodeId, Seq};

/// The number of recent batch ends that are kept, because the next epoch's record refers to one of them. One commit is
/// in flight at a time.
const ENDS: usize = 8;

/// How long a younger leaf may have been dropped although an older one exists, because the older one was being read.
const OUT_OF_TURN: Duration = Duration::from_secs(3 * 3600);

/// The maximum delay before a node applies new settings. While it is connected, it reads them within a minute.
const LATE: Duration = Duration::from_secs(3600);

/// The verifier of one stream.
#[derive(Debug)]
pub struct Verifier<'k> {
    stream: Stream,
    key: Option<(Reader<'k>, &'k KeyRing)>,
    /// The auditor's key in the settings, if the reader is an auditor.
    auditor: Option<Vec<u8>>,
    /// The serial number of the previous epoch's settings.
    settings: i64,
    current: Option<CurrentEpoch>,
    /// The newest epoch that has or had rows.
    with_rows: Option<EpochNo>,
    /// Whether there was an epoch that has not expired.
    kept: bool,
    /// The highest number in a row or a record.
    highest: Seq,
    findings: Vec<Finding>,
    summary: Summary,
    scratch: Vec<u8>,
}

/// The epoch whose rows are being read.
#[derive(Debug)]
struct CurrentEpoch {
    no: EpochNo,
    first_seq: Seq,
    hash: ChainValue,
    expired: bool,
    durability: Durability,
    /// The number of the next row.
    next: Seq,
    keys: Option<(Opener, Chain)>,
    /// The first row of the current batch.
    batch: Option<Seq>,
    /// Whether there was already a finding about the current batch, so that its chain cannot be correct.
    damaged: bool,
    /// The number of opened rows in complete batches with a correct chain, and in the current batch.
    opened: u64,
    opened_in_batch: u64,
    /// The number of rows of any kind.
    rows: u64,
    ends: VecDeque<BatchEnd>,
    /// The rows whose batch ends are kept, however many batches follow.
    asked: [Option<Seq>; 2],
    remembered: Vec<BatchEnd>,
    checkpoint: Option<Checkpoint>,
    /// The last missing rows, so they are reported only once.
    gap: Option<(Seq, Seq)>,
}

/// The end of a batch, with its last row, the chain's value there, and the number of rows opened up to it.
#[derive(Copy, Clone, Debug)]
struct BatchEnd {
    seq: Seq,
    value: ChainValue,
    opened: u64,
}

impl<'k> Verifier<'k> {
    /// Creates the verifier of a stream. Without a `key`, fewer checks are possible.
    pub fn new(stream: Stream, key: Option<(Reader<'k>, &'k KeyRing)>) -> Self {
        let auditor = key.filter(|(reader, _)| reader.id() == NodeId::AUDITOR);
        Self {
            stream,
            key,
            auditor: auditor.and_then(|(reader, _)| reader.public()),
            settings: 0,
            current: None,
            with_rows: None,
            kept: false,
            highest: Seq(0),
            findings: Vec::new(),
            summary: Summary::default(),
            scratch: Vec::new(),
        }
    }

    /// Returns the findings since the last call. A row or an epoch adds at most a few.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    /// Returns the counts of what has been checked so far.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Returns the highest number in a row, or stated as used in a record; zero if there is none. Returns `None` if the
    /// end has expired or may have been lost in a crash, so that it is unknown.
    pub fn highest(&self) -> Option<Seq> {
        let known = self.current.as_ref().is_none_or(|current| {
            let emptied = current.durability == Durability::Volatile && current.rows == 0;
            !current.expired && !emptied
        });
        known.then_some(self.highest)
    }

    fn find(&mut self, finding: Finding) {
        self.summary.findings = self.summary.findings.saturating_add(1);
        self.findings.push(finding);
    }

    /// Processes the next epoch. Epochs must be in the order of their numbers, each followed by its rows.
    pub fn epoch(&mut self, row: &EpochRow<'_>) {
        let record = match self.accepted_record(row) {
            Ok(record) => Some(record),
            Err(why) => {
                self.find(Finding::Epoch { epoch: row.no, why });
                None
            }
        };
        let said = record.as_ref().map(|record| &record.epoch);
        self.close(said);
        if let Some(record) = &record {
            self.compare(row, record);
            self.follows(row.no, record.epoch.previous.as_ref());
            self.check_settings_of(row.no, record);
        }
        self.check_settings(row, said);
        let count = match row.expired {
            Some(_) => &mut self.summary.expired,
            None => &mut self.summary.epochs,
        };
        *count = count.saturating_add(1);
        let first_seq = said.map_or(row.first_seq, |epoch| epoch.first_seq);
        let durability = said.map_or_else(Durability::default, |epoch| epoch.durability);
        self.highest = self.highest.max(Seq(first_seq.0.saturating_sub(1)));
        let hash = EpochRecord::hash(row.record, row.signature);
        let checkpoint = row.checkpoint.and_then(|found| self.checkpoint(row.no, &hash, &found));
        let next = row.next.and_then(|next| EpochRecord::parse(next).ok()?.epoch.previous);
        let next = next.filter(|previous| previous.no == row.no);
        let keys = record
            .filter(|_| row.expired.is_none())
            .and_then(|record| self.keys(row, &record, hash));
        self.current = Some(CurrentEpoch {
            no: row.no,
            first_seq,
            hash,
            expired: row.expired.is_some(),
            durability,
            next: first_seq,
            keys,
            batch: None,
            damaged: false,
            opened: 0,
            opened_in_batch: 0,
            rows: 0,
            ends: VecDeque::with_capacity(ENDS),
            asked: [checkpoint.map(|checkpoint| checkpoint.seq), next.map(|next| next.last_seq)],
            remembered: Vec::new(),
            checkpoint,
            gap: None,
        });
        if row.expired.is_some() {
            self.with_rows = Some(row.no);
        }
        self.kept |= row.expired.is_none();
    }

    /// Returns the checkpoint if its sender signed it.
    fn checkpoint(
        &mut self,
        epoch: EpochNo,
        hash: &[u8; 32],
        found: &CheckpointRow<'_>,
    ) -> Option<Checkpoint> {
        let sender = self.stream.sender.as_ref()?;
        let chain = found.chain.try_into().ok();
        let checkpoint = chain.map(|chain| Checkpoint { seq: found.seq, chain });
        let signed = checkpoint.filter(|one| one.is_signed(sender, hash, found.signature));
        if signed.is_none() {
            self.find(Finding::Checkpoint { epoch });
        }
        signed
    }

    /// Checks whether the dropped rows may have expired.
    fn check_settings(&mut self, row: &EpochRow<'_>, said: Option<&Epoch>) {
        let Some(retention) = self.stream.retention.clone() else { return };
        let (Some(dropped), Some(said)) = (row.expired, said) else { return };
        if retention.rules_out_expiry(said.opened) {
            self.find(Finding::Early { epoch: row.no, named: None, opened: said.opened });
        } else if self.kept && dropped.0.saturating_add(OUT_OF_TURN.as_secs()) < retention.now.0 {
            self.find(Finding::OutOfTurn { epoch: row.no });
        }
    }

    fn accepted_record(&self, row: &EpochRow<'_>) -> Result<EpochRecord, EpochError> {
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

    /// Checks that the epoch follows the one in its record. Epochs without rows may be in between, because their
    /// opening was in doubt. The first existing one may follow others that have expired, if the retention allows it.
    fn follows(&mut self, epoch: EpochNo, previous: Option<&PreviousEpoch>) {
        let last = self.current.as_ref().map(|current| current.no);
        match (previous, last) {
            (None, Some(found)) => {
                let found = self.with_rows.unwrap_or(found);
                self.find(Finding::Predecessor { epoch, named: None, found });
            }
            (Some(previous), Some(last)) if previous.no > last => {
                self.find(Finding::EpochsMissing { epoch, named: previous.no });
            }
            (Some(previous), Some(_)) => {
                if let Some(found) = self.with_rows.filter(|rows| *rows > previous.no) {
                    let named = Some(previous.no);
                    self.find(Finding::Predecessor { epoch, named, found });
                }
            }
            (Some(previous), None) => {
                let retention = self.stream.retention.as_ref();
                let forbidden = previous
                    .opened
                    .filter(|opened| retention.is_some_and(|r| r.rules_out_expiry(*opened)));
                if let Some(opened) = forbidden {
                    self.find(Finding::Early { epoch, named: Some(previous.no), opened });
                }
            }
            (None, None) => {}
        }
    }

    /// Checks that the epoch conforms to the settings in its record, and that these were valid at its time.
    fn check_settings_of(&mut self, epoch: EpochNo, record: &EpochRecord) {
        let Some(history) = self.stream.settings.clone() else { return };
        let (serial, opened) = (record.epoch.settings, record.epoch.opened);
        let mut found = Vec::new();
        if serial < self.settings {
            found.push(SettingsConflict::Back { before: self.settings });
        }
        self.settings = self.settings.max(serial);
        match history.at(serial) {
            None => found.push(SettingsConflict::Unknown),
            Some(settings) => {
                if settings.audit != record.epoch.audit {
                    found.push(SettingsConflict::Audit {
                        is: record.epoch.audit,
                        said: settings.audit,
                    });
                }
                let read = record.readers.iter().any(|(reader, _)| *reader == NodeId::AUDITOR);
                if read != settings.auditor_key.is_some() {
                    found.push(SettingsConflict::Auditor { read });
                }
            }
        }
        let next = history.at(serial.saturating_add(1));
        if next.is_some_and(|next| next.made.0.saturating_add(LATE.as_secs()) < opened.0) {
            found.push(SettingsConflict::Late);
        }
        for why in found {
            self.find(Finding::Settings { epoch, serial, why });
        }
    }

    /// Returns whether the epoch belongs to another auditor, with the same reader number but a different key.
    fn is_anothers(&self, record: &EpochRecord) -> bool {
        let Some((own, history)) = self.auditor.as_ref().zip(self.stream.settings.as_ref()) else {
            return false;
        };
        let settings = history.at(record.epoch.settings);
        settings.is_some_and(|settings| settings.auditor_key.as_ref() != Some(own))
    }

    /// Returns the opener and the chain of an epoch. `hash` is the hash of its record and signature.
    fn keys(
        &mut self,
        row: &EpochRow<'_>,
        record: &EpochRecord,
        hash: ChainValue,
    ) -> Option<(Opener, Chain)> {
        let (reader, network) = self.key?;
        let is_reader = record.readers.iter().any(|(id, _)| *id == reader.id());
        if !is_reader || self.is_anothers(record) {
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
        let opener = Opener::new(&secret, epoch.audit, epoch.stream, epoch.no, hash).ok()?;
        Some((opener, Chain::new(&secret, epoch.audit, epoch.stream, epoch.no, hash).ok()?))
    }

    /// Processes the next row from the values of its columns. A value that is not a host's address counts as null, so
    /// the row is reported as altered.
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

    /// Processes the next row. Rows must be in the order of their numbers.
    pub fn row(&mut self, row: &Row<'_>) {
        self.summary.rows = self.summary.rows.saturating_add(1);
        let Some(mut current) = self.current.take() else {
            return self.find(Finding::Stray { seq: row.seq });
        };
        self.row_of(&mut current, row);
        self.current = Some(current);
    }

    fn row_of(&mut self, current: &mut CurrentEpoch, row: &Row<'_>) {
        let epoch = current.no;
        if row.seq < current.first_seq {
            return self.find(Finding::Stray { seq: row.seq });
        }
        if row.seq < current.next {
            return self.find(Finding::Twice { epoch, seq: row.seq });
        }
        self.with_rows = Some(epoch);
        self.highest = self.highest.max(row.seq);
        current.rows = current.rows.saturating_add(1);
        if row.seq > current.next {
            let place = match current.batch {
                Some(_) => GapPosition::Batch,
                None if current.next == current.first_seq => GapPosition::Start,
                None => GapPosition::Between,
            };
            let to = Seq(row.seq.0.saturating_sub(1));
            self.find(Finding::Missing { epoch, from: current.next, to, place });
            current.gap = Some((current.next, to));
            current.damaged = true;
        }
        current.next = Seq(row.seq.0.saturating_add(1));
        let from = *current.batch.get_or_insert(row.seq);
        self.check_authenticity(current, row);
        let Some(claimed) = row.chain else { return };
        let value = claimed.try_into().ok();
        let right = match &mut current.keys {
            Some((_, chain)) => chain.check(claimed),
            None => value.is_some(),
        };
        if !right && !current.damaged {
            self.find(Finding::Chain { epoch, from, to: row.seq });
        }
        if right && !current.damaged {
            current.opened = current.opened.saturating_add(current.opened_in_batch);
        }
        if let Some(value) = value {
            let end = BatchEnd { seq: row.seq, value, opened: current.opened };
            if current.asked.contains(&Some(row.seq)) {
                current.remembered.push(end);
            }
            if current.ends.len() >= ENDS {
                current.ends.pop_front();
            }
            current.ends.push_back(end);
        }
        (current.batch, current.damaged, current.opened_in_batch) = (None, false, 0);
    }

    /// Opens a row. If it does not open, reports what was altered.
    fn check_authenticity(&mut self, current: &mut CurrentEpoch, row: &Row<'_>) {
        let epoch = current.no;
        let Some((opener, chain)) = &mut current.keys else {
            if (row.stream, row.epoch) != (self.stream.id, epoch) {
                self.find(Finding::Stray { seq: row.seq });
            }
            return;
        };
        self.scratch.clear();
        let mut sent = row.columns;
        let finding = match opener.open(row, &mut self.scratch) {
            Ok(_) => None,
            Err(seal::OpenError::Untrue) => Some(Finding::Untrue { epoch, seq: row.seq }),
            Err(_) => {
                match opener.authentic_columns(&Row { stream: self.stream.id, epoch, ..*row }) {
                    Some(was) => {
                        sent = was;
                        let mut columns = finding::differences(&row.columns, &was);
                        if row.epoch != epoch {
                            columns.push(("epoch", row.epoch.to_string(), epoch.to_string()));
                        }
                        if row.stream != self.stream.id {
                            let is = self.stream.id.to_string();
                            columns.push(("stream", row.stream.to_string(), is));
                        }
                        Some(Finding::Column { epoch, seq: row.seq, columns })
                    }
                    None => {
                        // The chain cannot be correct if the sender did not write the row.
                        current.damaged = true;
                        Some(Finding::Altered { epoch, seq: row.seq })
                    }
                }
            }
        };
        match <&[u8; TAG_LEN]>::try_from(row.tag) {
            Ok(tag) => chain.add(row.seq, &sent, row.payload, tag),
            Err(_) => current.damaged = true,
        }
        match finding {
            None => current.opened_in_batch = current.opened_in_batch.saturating_add(1),
            Some(finding) => self.find(finding),
        }
    }

    /// Ends the verification after the last epoch.
    pub fn finish(&mut self) {
        self.close(None);
    }

    /// Ends an epoch, using the previous-epoch fields in the next epoch's record.
    fn close(&mut self, next: Option<&Epoch>) {
        let Some(current) = self.current.take() else { return };
        if !current.expired {
            let findings = self.closed(&current, next);
            findings.into_iter().for_each(|finding| self.find(finding));
        }
        self.current = Some(current);
    }

    fn closed(&mut self, current: &CurrentEpoch, next: Option<&Epoch>) -> Vec<Finding> {
        let epoch = current.no;
        let last = Seq(current.next.0.saturating_sub(1));
        let said = next.and_then(|next| next.previous).filter(|said| said.no == epoch);
        let checkpoint = current.checkpoint.map(|one| (one.seq, Some(one.chain)));
        let vouchers = [
            (Signed::Checkpoint, checkpoint),
            (Signed::Record, said.map(|said| (said.last_seq, said.chain))),
        ];
        let vouchers = vouchers.into_iter().filter_map(|(by, said)| Some((by, said?)));
        let mut findings = Vec::new();
        let crashed = current.durability == Durability::Volatile && current.rows == 0;
        // The highest number that the sender reported.
        let most = vouchers.clone().max_by_key(|(_, (seq, _))| *seq);
        let lost = most.filter(|(_, (seq, _))| *seq > last);
        match lost {
            Some(_) if crashed => {
                self.summary.emptied = self.summary.emptied.saturating_add(1);
            }
            Some((by, (to, _))) => {
                let place = GapPosition::End(by);
                findings.push(Finding::Missing { epoch, from: current.next, to, place });
            }
            None => findings.extend(current.batch.map(|from| Finding::Unfinished {
                epoch,
                from,
                to: last,
            })),
        }
        let mut covered = 0;
        for (by, (seq, chain)) in vouchers {
            let Some(chain) = chain.filter(|_| seq <= last || seq < current.first_seq) else {
                continue;
            };
            match rows_vouched_for(current, seq, chain) {
                Some(opened) => covered = opened.max(covered),
                None => findings.push(Finding::Vouched { epoch, seq, by }),
            }
        }
        let opened = current.opened;
        self.summary.proven = self.summary.proven.saturating_add(covered);
        self.summary.unsigned =
            self.summary.unsigned.saturating_add(opened.saturating_sub(covered));
        if let Some(next) = next.filter(|_| !crashed) {
            let from = lost.map_or(current.next, |(_, (seq, _))| Seq(seq.0.saturating_add(1)));
            let to = Seq(next.first_seq.0.saturating_sub(1));
            let given = to.0.saturating_sub(from.0).saturating_add(1);
            // Another check reports an epoch that is missing between them.
            if given > BATCH_ROWS && next.previous.is_some_and(|previous| previous.no <= epoch) {
                findings.push(Finding::Missing { epoch, from, to, place: GapPosition::Given });
            }
        }
        findings
    }
}

/// Returns the number of rows that a signature of this chain value at this row authenticates. Returns `None` if the
/// chain had a different value there.
fn rows_vouched_for(current: &CurrentEpoch, seq: Seq, chain: ChainValue) -> Option<u64> {
    if seq < current.first_seq {
        return (chain == current.hash).then_some(0);
    }
    if current.gap.is_some_and(|(from, to)| (from..=to).contains(&seq)) {
        return Some(0);
    }
    let ends = current.ends.iter().chain(&current.remembered);
    let mut ends = ends.filter(|end| (end.seq, end.value) == (seq, chain));
    ends.next().map(|end| end.opened)
}
