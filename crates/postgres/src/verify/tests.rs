//! Tests that make one change to a log and check the findings.

use std::rc::Rc;

use adit_engine::{Random, UnixTime};

use super::*;
use crate::key::epoch::{Epoch, OpenedEpoch, Wrap, open};
use crate::key::settings::{History, NetworkSettings, SignedSettings};
use crate::key::{AuditorKey, Members, NetworkKey, NodeKeys, SealPublic, rekey::Renewal};
use crate::row::copy::split_row;
use crate::seal::{EpochSecret, Sealer, collision};
use crate::{Audit, LeafNo, StreamId, row::Columns};

const DAY: u64 = 86_400;
const NOW: UnixTime = UnixTime(1_795_000_000);
const STREAM: StreamId = StreamId(3);
const SENDER: NodeId = NodeId(7);
const RECEIVER: NodeId = NodeId(8);

/// A change to a valid value.
type Edit<T> = fn(&mut T);

fn random(seed: u8) -> Random {
    Random::new([seed; 32])
}

fn network() -> NetworkKey {
    NetworkKey::generate(&mut random(1))
}

fn keys(seed: u8) -> NodeKeys {
    NodeKeys::generate(&mut random(seed)).unwrap()
}

fn auditor() -> AuditorKey {
    AuditorKey::generate(&network(), &mut random(9))
}

/// Returns limits that came into force this many days after 1970.
fn period(since: u64, days: u64, bytes: u64) -> RetentionPeriod {
    RetentionPeriod { since: UnixTime(since * DAY), age: Duration::from_secs(days * DAY), bytes }
}

/// Creates settings from tuples of their age in seconds, the audit policy and the auditor's key.
fn history(all: &[(u64, Audit, Option<&AuditorKey>)]) -> History {
    let owner = keys(4);
    let mut rows: Vec<SignedSettings> = Vec::new();
    for (ago, audit, auditor) in all {
        let made = UnixTime(NOW.0 - ago);
        let settings = NetworkSettings {
            serial: 1,
            made,
            packet_size: 7900,
            audit: *audit,
            durability: Durability::Strict,
            retention_bytes: 1 << 30,
            retention_age: Duration::from_secs(30 * DAY),
            auditor_key: auditor.map(|key| key.public().unwrap().as_bytes().to_vec()),
            previous: [0; 32],
        };
        let row = if rows.is_empty() {
            settings.sign("t1", &owner).unwrap()
        } else {
            history_of(&rows).next("t1", &owner, made, settings).unwrap()
        };
        rows.push(row);
    }
    history_of(&rows)
}

fn history_of(rows: &[SignedSettings]) -> History {
    History::verify("t1", &keys(4).public(NodeId::OWNER).unwrap(), rows, None).unwrap()
}

/// A row as the database stores it.
#[derive(Clone)]
struct Stored {
    seq: i64,
    epoch: i32,
    stream: i32,
    columns: Columns,
    tag: Vec<u8>,
    chain: Option<Vec<u8>>,
    payload: Vec<u8>,
}

#[derive(Clone)]
struct StoredEpoch {
    no: i32,
    leaf: i32,
    first_seq: i64,
    record: Vec<u8>,
    signature: Vec<u8>,
    wrap: Option<Wrap>,
    checkpoint: Option<(Checkpoint, Vec<u8>)>,
    expired: Option<UnixTime>,
}

/// The log of a stream, as written by its sender.
struct Log {
    audit: Audit,
    epochs: Vec<StoredEpoch>,
    rows: Vec<Stored>,
    random: Random,
    next: i64,
    previous: Option<PreviousEpoch>,
    packet: fn(i64) -> Vec<u8>,
    durability: Durability,
    opened: UnixTime,
    retention: Option<Retention>,
    /// The network's key under which epochs are opened.
    key: NetworkKey,
    /// The auditor's keys.
    ring: KeyRing,
    /// The network's settings, and the number of those under which epochs are opened.
    settings: Option<History>,
    serial: i64,
    /// The auditor. Epochs are wrapped to its key.
    auditor: AuditorKey,
}

impl Log {
    fn new(audit: Audit) -> Self {
        Self {
            audit,
            epochs: Vec::new(),
            rows: Vec::new(),
            random: random(5),
            next: 1,
            previous: None,
            packet,
            durability: Durability::Strict,
            opened: NOW,
            retention: Some(Retention {
                now: NOW,
                kept: vec![period(0, 30, 1 << 30)],
                used: 1 << 20,
            }),
            key: network(),
            ring: network().into(),
            settings: None,
            serial: 1,
            auditor: auditor(),
        }
    }

    fn opened(&mut self, no: i32) -> OpenedEpoch {
        let epoch = Epoch {
            network: "t1".into(),
            stream: STREAM,
            sender: SENDER,
            receiver: RECEIVER,
            no: EpochNo(no),
            leaf: LeafNo(1),
            first_seq: Seq(self.next),
            audit: self.audit,
            durability: self.durability,
            opened: self.opened,
            settings: self.serial,
            previous: self.previous,
            generation: self.key.generation(),
        };
        let auditor = self.auditor.public().unwrap();
        let readers: [(NodeId, &SealPublic); 1] = [(NodeId::AUDITOR, &auditor)];
        open(epoch, &keys(2), &self.key, &readers, &mut self.random).unwrap()
    }

    /// Adds an epoch with batches of this many rows, the last `doubtful` of which were never acknowledged.
    fn epoch(mut self, no: i32, batches: &[usize], doubtful: usize) -> Self {
        let opened = self.opened(no);
        self.epochs.push(StoredEpoch {
            no,
            leaf: 1,
            first_seq: self.next,
            record: opened.record.clone(),
            signature: opened.signature.to_vec(),
            wrap: Some(opened.wraps[0].clone()),
            checkpoint: None,
            expired: None,
        });
        let mut sealer =
            Sealer::new(&opened.secret, self.audit, STREAM, EpochNo(no), opened.hash).unwrap();
        self.previous = Some(PreviousEpoch {
            no: EpochNo(no),
            last_seq: Seq(self.next - 1),
            chain: Some(opened.hash),
            opened: Some(self.opened),
        });
        for (at, count) in batches.iter().enumerate() {
            let mut bytes = Vec::new();
            for _ in 0..*count {
                sealer.seal_into(Seq(self.next), &(self.packet)(self.next), &mut bytes).unwrap();
                self.next += 1;
            }
            let chain = sealer.end_batch(&mut bytes).unwrap();
            self.store(&bytes);
            if at + doubtful < batches.len() {
                let previous = self.previous.as_mut().unwrap();
                (previous.last_seq, previous.chain) = (Seq(self.next - 1), Some(chain));
            }
        }
        self
    }

    /// Signs the acknowledged part of the last epoch.
    fn signed(mut self) -> Self {
        let PreviousEpoch { last_seq: seq, chain, .. } = self.previous.unwrap();
        let checkpoint = Checkpoint { seq, chain: chain.unwrap() };
        let epoch = self.epochs.last_mut().unwrap();
        let hash = EpochRecord::hash(&epoch.record, &epoch.signature);
        let signature = checkpoint.sign(&keys(2), &hash).unwrap().to_vec();
        epoch.checkpoint = Some((checkpoint, signature));
        self
    }

    /// Returns an auditor's keys for an epoch.
    fn secret(&self, at: usize) -> (EpochSecret, [u8; 32]) {
        let (auditor, sender) = (auditor(), keys(2).public(SENDER).unwrap());
        let expected =
            Expected { network: "t1", stream: STREAM, sender: &sender, receiver: RECEIVER };
        let StoredEpoch { record, signature, wrap, .. } = &self.epochs[at];
        let wrap = wrap.as_ref().unwrap();
        let reader = auditor.reader();
        let (_, secret) = accept(reader, &self.ring, &expected, record, signature, wrap).unwrap();
        (secret, EpochRecord::hash(record, signature))
    }

    /// Writes chain values for the current rows, as a reader of the first epoch can compute them.
    fn chain_again(&mut self) {
        let (secret, hash) = self.secret(0);
        let mut chain = Chain::new(&secret, self.audit, STREAM, EpochNo(1), hash).unwrap();
        for row in self.rows.iter_mut().filter(|row| row.epoch == 1) {
            let tag = row.tag.as_slice().try_into().unwrap();
            chain.add(Seq(row.seq), &row.columns, &row.payload, tag);
            row.chain = row.chain.as_ref().and_then(|_| chain.close()).map(Vec::from);
        }
    }

    fn store(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (fields, rest) = split_row(bytes).unwrap();
            let row = decode::row(fields).unwrap();
            self.rows.push(Stored {
                seq: row.seq.0,
                epoch: row.epoch.0,
                stream: row.stream.0,
                columns: row.columns,
                tag: row.tag.to_vec(),
                chain: row.chain.map(<[u8]>::to_vec),
                payload: row.payload.to_vec(),
            });
            bytes = rest;
        }
    }

    fn at(&mut self, seq: i64) -> &mut Stored {
        self.rows.iter_mut().find(|row| row.seq == seq).unwrap()
    }

    fn remove(&mut self, seqs: std::ops::RangeInclusive<i64>) {
        self.rows.retain(|row| !seqs.contains(&row.seq));
    }

    /// Returns the findings and the summary.
    fn verified(&self, with_key: bool) -> (Vec<String>, Summary) {
        let auditor = auditor();
        let stream = Stream {
            network: "t1".into(),
            id: STREAM,
            sender: Some(keys(2).public(SENDER).unwrap()),
            receiver: RECEIVER,
            retention: self.retention.clone().map(Rc::new),
            settings: self.settings.clone().map(Rc::new),
        };
        let key = with_key.then(|| (auditor.reader(), &self.ring));
        let mut verifier = Verifier::new(stream, key);
        let mut rows = self.rows.clone();
        rows.sort_by_key(|row| row.seq);
        let mut rows = rows.iter().peekable();
        for (at, epoch) in self.epochs.iter().enumerate() {
            let end = self.epochs.get(at + 1).map_or(i64::MAX, |next| next.first_seq);
            verifier.epoch(&EpochRow {
                no: EpochNo(epoch.no),
                leaf: LeafNo(epoch.leaf),
                first_seq: Seq(epoch.first_seq),
                record: &epoch.record,
                signature: &epoch.signature,
                wrap: epoch.wrap.as_ref(),
                checkpoint: epoch.checkpoint.as_ref().map(|(checkpoint, signature)| {
                    CheckpointRow { seq: checkpoint.seq, chain: &checkpoint.chain, signature }
                }),
                next: self.epochs.get(at + 1).map(|next| next.record.as_slice()),
                expired: epoch.expired,
            });
            while let Some(row) = rows.next_if(|row| row.seq < end) {
                verifier.row(&Row {
                    seq: Seq(row.seq),
                    epoch: EpochNo(row.epoch),
                    stream: StreamId(row.stream),
                    columns: row.columns,
                    tag: &row.tag,
                    chain: row.chain.as_deref(),
                    payload: &row.payload,
                });
            }
        }
        verifier.finish();
        let findings = verifier.take_findings();
        assert_eq!(verifier.summary().findings, findings.len() as u64);
        (findings.iter().map(ToString::to_string).collect(), verifier.summary())
    }

    fn findings(&self) -> Vec<String> {
        self.verified(true).0
    }
}

/// Builds a UDP packet from port 53.
fn packet(number: i64) -> Vec<u8> {
    let mut packet = vec![
        0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 7, 10, 9, 0, 8, 0, 53, 1, 187, 0, 10,
        0, 0,
    ];
    packet.extend_from_slice(&(number as u16).to_be_bytes());
    packet
}

/// Creates a log with three epochs. Rows 1 to 5 are in two batches, rows 6 to 10 in two batches, the second of which is
/// in doubt, and rows 11 to 13 in one.
fn log() -> Log {
    Log::new(Audit::Headers).epoch(1, &[3, 2], 0).epoch(2, &[3, 2], 1).epoch(3, &[3], 0)
}

#[test]
fn what_the_sender_wrote_is_no_finding_under_any_policy() {
    for audit in Audit::ALL {
        let log = Log::new(*audit)
            .epoch(1, &[3, 2], 0)
            .epoch(2, &[1, 2], 1)
            .epoch(3, &[], 0)
            .epoch(4, &[1], 0);
        let (findings, summary) = log.verified(true);
        assert_eq!(findings, [""; 0], "{audit}");
        // No signature covers the rows in doubt or the last epoch yet.
        assert_eq!((summary.epochs, summary.rows), (4, 9), "{audit}");
        assert_eq!((summary.proven, summary.unsigned), (6, 3), "{audit}");
        let (findings, summary) = log.verified(false);
        assert_eq!(findings, [""; 0], "{audit} without a key");
        assert_eq!((summary.rows, summary.proven), (9, 0), "{audit} without a key");
    }
}

#[test]
fn a_batch_in_doubt_may_be_there_or_not() {
    let mut log = log();
    log.remove(9..=10);
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn an_epoch_whose_opening_was_in_doubt_may_lie_between() {
    let mut log = Log::new(Audit::Headers).epoch(1, &[2], 0);
    let acknowledged = log.previous;
    log = log.epoch(2, &[], 0);
    log.previous = acknowledged;
    log = log.epoch(3, &[2], 0);
    assert_eq!(log.findings(), [""; 0]);
    log.epochs.remove(1);
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn an_epoch_without_rows_has_no_other_chain_value_than_its_records() {
    let mut log = Log::new(Audit::Headers).epoch(1, &[2], 0).epoch(2, &[], 0);
    log.previous.as_mut().unwrap().chain = Some([1; 32]);
    let log = log.epoch(3, &[1], 0);
    assert_eq!(
        log.findings(),
        ["epoch 2: the chain at row 2 is not what the next epoch's record says"]
    );
}

#[test]
fn missing_rows_are_named_with_their_place() {
    let cases = [
        (2..=2, "epoch 1: row 2 is missing (inside a batch)"),
        (2..=3, "epoch 1: rows 2 to 3 are missing (inside a batch)"),
        (4..=4, "epoch 1: row 4 is missing (between batches)"),
        (6..=7, "epoch 2: rows 6 to 7 are missing (the first of the epoch)"),
        (6..=8, "epoch 2: rows 6 to 8 are missing (the first of the epoch)"),
        (
            5..=5,
            "epoch 1: row 5 is missing (the last of the epoch, as the next epoch's record says)",
        ),
        (
            4..=5,
            "epoch 1: rows 4 to 5 are missing (the last of the epoch, as the next epoch's record says)",
        ),
        (
            1..=5,
            "epoch 1: rows 1 to 5 are missing (the last of the epoch, as the next epoch's record says)",
        ),
        (10..=10, "epoch 2: the end of the batch that begins with row 9 is missing"),
        (12..=13, "epoch 3: the end of the batch that begins with row 11 is missing"),
    ];
    for (rows, said) in cases {
        for with_key in [true, false] {
            let mut log = log();
            log.remove(rows.clone());
            assert_eq!(log.verified(with_key).0, [said], "{rows:?}, key: {with_key}");
        }
    }
}

#[test]
fn an_altered_column_is_named_with_what_was_there() {
    let edits: [(Edit<Stored>, &str); 9] = [
        (|r| r.columns.len = Some(31), "column len says 31, the sender wrote 30"),
        (|r| r.columns.sport = None, "column sport says nothing, the sender wrote 53"),
        (|r| r.columns.dport = Some(80), "column dport says 80, the sender wrote 443"),
        (|r| r.columns.proto = Some(6), "column proto says 6, the sender wrote 17"),
        (|r| r.columns.flags = Some(2), "column flags says 2, the sender wrote nothing"),
        (
            |r| r.columns.src = "1.2.3.4".parse().ok(),
            "column src says 1.2.3.4, the sender wrote 10.9.0.7",
        ),
        (|r| r.columns.dst = None, "column dst says nothing, the sender wrote 10.9.0.8"),
        (|r| r.epoch = 2, "column epoch says 2, the sender wrote 1"),
        (|r| r.stream = 9, "column stream says 9, the sender wrote 3"),
    ];
    for audit in [Audit::Headers, Audit::Full] {
        for (edit, said) in edits {
            let mut log = Log::new(audit).epoch(1, &[3], 0);
            edit(log.at(2));
            assert_eq!(log.findings(), [format!("epoch 1: row 2 was altered: {said}")], "{audit}");
        }
    }
    let mut log = log();
    (log.at(2).columns.sport, log.at(2).columns.dport) = (Some(1), Some(2));
    assert_eq!(
        log.findings(),
        [
            "epoch 1: row 2 was altered: column sport says 1, the sender wrote 53, column dport says 2, the sender wrote 443"
        ]
    );
}

#[test]
fn an_altered_packet_or_tag_is_named() {
    let altered = |seq| format!("epoch 1: row {seq} was altered: it is not what the sender wrote");
    let edits: [fn(&mut Stored); 4] = [
        |r| r.payload[29] ^= 1,
        |r| r.payload.truncate(20),
        |r| r.tag[0] ^= 1,
        |r| r.tag.truncate(15),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let mut log = log();
        edit(log.at(2));
        assert_eq!(log.findings(), [altered(2)], "edit {number}");
    }
    // Without a key this is not noticed, but the summary reports that nothing was proven.
    let mut log = log();
    log.at(2).payload[0] ^= 1;
    assert_eq!(log.verified(false).0, [""; 0]);
    // Two rows are exchanged.
    let mut log = self::log();
    (log.at(1).seq, log.at(2).seq) = (-2, -1);
    (log.at(-2).seq, log.at(-1).seq) = (2, 1);
    assert_eq!(log.findings(), [altered(1), altered(2)]);
}

#[test]
fn an_added_row_is_named() {
    let mut log = log();
    let copy = log.at(2).clone();
    log.rows.push(copy);
    assert_eq!(log.findings(), ["epoch 1: row 2 exists more than once"]);
    // Forged rows at the end of the log.
    let mut log = self::log();
    let made_up = Stored { seq: 14, ..log.at(13).clone() };
    log.rows.push(made_up);
    assert_eq!(log.findings(), ["epoch 3: row 14 was altered: it is not what the sender wrote"]);
    // A row before the first epoch.
    let mut log = self::log();
    let made_up = Stored { seq: 0, ..log.at(1).clone() };
    log.rows.push(made_up);
    assert_eq!(log.findings(), ["row 0 belongs to no epoch of this stream"]);
}

#[test]
fn a_broken_chain_is_named() {
    let mut log = log();
    log.at(3).chain.as_mut().unwrap()[0] ^= 1;
    // The next batch begins with the correct value, which is not the one in the log.
    assert_eq!(
        log.findings(),
        [
            "epoch 1: the chain is broken at the batch of rows 1 to 3",
            "epoch 1: the chain is broken at the batch of rows 4 to 5",
        ]
    );
    let mut log = self::log();
    log.at(3).chain = None;
    assert_eq!(log.findings(), ["epoch 1: the chain is broken at the batch of rows 1 to 5"]);
    let mut log = self::log();
    log.at(2).chain = log.at(3).chain.clone();
    assert_eq!(log.findings()[0], "epoch 1: the chain is broken at the batch of rows 1 to 2");
    let mut log = self::log();
    log.at(13).chain.as_mut().unwrap().push(0);
    assert_eq!(log.findings(), ["epoch 3: the chain is broken at the batch of rows 11 to 13"]);
}

/// Builds a longer packet to the given port.
fn long_packet(dport: u16, text: &[u8]) -> Vec<u8> {
    let mut packet = packet(0);
    packet.truncate(28);
    packet[22..24].copy_from_slice(&dport.to_be_bytes());
    packet.extend_from_slice(text);
    packet.resize(96, 0);
    packet[3] = 96;
    packet
}

/// Adds a row to the log that opens and has the sender's tag, but was not written by the sender.
fn with_a_collision() -> Log {
    let mut log = Log::new(Audit::Headers);
    log.packet = |_| long_packet(53, b"query: example.org");
    let mut log = log.epoch(1, &[3, 2], 0).signed();
    let (secret, hash) = log.secret(0);
    let row = log.at(2).clone();
    let fake = long_packet(4444, b"exfiltrated secrets!");
    let name = (STREAM, EpochNo(1), Seq(2));
    let (columns, payload) =
        collision::collide((&secret, &hash), name, (&row.columns, &row.payload), &fake, 4);
    assert_eq!((row.columns.dport, columns.dport), (Some(53), Some(4444)));
    let forged = Stored { columns, payload, ..row };
    let opener = Opener::new(&secret, Audit::Headers, STREAM, EpochNo(1), hash).unwrap();
    let mut packet = Vec::new();
    let row = Row {
        seq: Seq(2),
        epoch: EpochNo(1),
        stream: STREAM,
        columns,
        tag: &forged.tag,
        chain: None,
        payload: &forged.payload,
    };
    opener.open(&row, &mut packet).expect("the tag is right");
    assert_eq!((&packet[..64], &packet[80..]), (&fake[..64], &fake[80..]));
    *log.at(2) = forged;
    log
}

/// AES-GCM's tag does not commit to the row for a holder of its key, such as a reader of the epoch, the sender or the
/// auditor. The chain does.
#[test]
fn another_row_under_the_same_tag_breaks_the_chain() {
    let log = with_a_collision();
    let (findings, summary) = log.verified(true);
    assert_eq!(findings, ["epoch 1: the chain is broken at the batch of rows 1 to 3"]);
    assert_eq!((summary.proven, summary.unsigned), (2, 0));
}

/// The forger has the epoch's secret and rewrites the chain too, but this contradicts the sender's signature.
#[test]
fn a_chain_that_a_reader_wrote_is_not_what_the_sender_signed() {
    let mut log = with_a_collision();
    log.chain_again();
    let (findings, summary) = log.verified(true);
    assert_eq!(findings, ["epoch 1: the chain at row 5 is not what the sender's checkpoint says"]);
    assert_eq!((summary.proven, summary.unsigned), (0, 5));
    // Without the checkpoint nothing is signed yet, so `verify` only reports that.
    log.epochs[0].checkpoint = None;
    let (findings, summary) = log.verified(true);
    assert_eq!((findings, summary.proven, summary.unsigned), (vec![], 0, 5));
    // The next epoch's record reveals the forgery.
    let log = log.epoch(2, &[1], 0);
    let (findings, summary) = log.verified(true);
    assert_eq!(findings, ["epoch 1: the chain at row 5 is not what the next epoch's record says"]);
    assert_eq!((summary.proven, summary.unsigned), (0, 6));
}

#[test]
fn a_checkpoint_vouches_for_what_is_before_it() {
    let log = Log::new(Audit::Headers).epoch(1, &[3, 2], 1).signed();
    let (findings, summary) = log.verified(true);
    assert_eq!(findings, [""; 0]);
    assert_eq!((summary.proven, summary.unsigned), (3, 2));
    for (rows, said) in [
        (4..=5, None),
        (
            3..=5,
            Some(
                "epoch 1: row 3 is missing (the last of the epoch, as the sender's checkpoint says)",
            ),
        ),
        (
            1..=5,
            Some(
                "epoch 1: rows 1 to 3 are missing (the last of the epoch, as the sender's checkpoint says)",
            ),
        ),
        (1..=3, Some("epoch 1: rows 1 to 3 are missing (the first of the epoch)")),
    ] {
        let mut log = Log::new(Audit::Headers).epoch(1, &[3, 2], 1).signed();
        log.remove(rows.clone());
        assert_eq!(log.findings(), said.into_iter().collect::<Vec<_>>(), "{rows:?}");
    }
    let edits: [Edit<(Checkpoint, Vec<u8>)>; 4] = [
        |(_, signature)| signature[0] ^= 1,
        |(_, signature)| signature.truncate(63),
        |(checkpoint, _)| checkpoint.seq = Seq(5),
        |(checkpoint, _)| checkpoint.chain[0] ^= 1,
    ];
    for edit in edits {
        let mut log = Log::new(Audit::Headers).epoch(1, &[3, 2], 1).signed();
        edit(log.epochs[0].checkpoint.as_mut().unwrap());
        assert_eq!(log.findings(), ["epoch 1: the sender has not signed the checkpoint"]);
    }
    // The checkpoint of another epoch is refused.
    let mut log = Log::new(Audit::Headers).epoch(1, &[2], 0).signed().epoch(2, &[2], 0);
    log.epochs[1].checkpoint = log.epochs[0].checkpoint.take();
    assert_eq!(log.findings(), ["epoch 2: the sender has not signed the checkpoint"]);
}

/// A checkpoint may be far behind the end, and so may the saved state of a restarted sender.
#[test]
fn what_was_signed_many_batches_before_the_end_is_found() {
    let mut log = Log::new(Audit::Headers).epoch(1, &[1; 40], 39).signed();
    let (findings, summary) = log.verified(true);
    assert_eq!((findings, summary.proven, summary.unsigned), (vec![], 1, 39));
    log.epochs[0].checkpoint = None;
    let log = log.epoch(2, &[1], 0);
    let (findings, summary) = log.verified(true);
    assert_eq!((findings, summary.proven, summary.unsigned), (vec![], 1, 40));
    let mut log = Log::new(Audit::Headers).epoch(1, &[1; 40], 39).epoch(2, &[1], 0);
    log.at(1).chain = Some(vec![7; 32]);
    assert_eq!(
        log.findings().last().unwrap(),
        "epoch 1: the chain at row 1 is not what the next epoch's record says"
    );
}

/// All numbers that the sender has used are in the log, except for one batch.
#[test]
fn what_was_cut_off_before_a_restart_is_noticed_by_the_numbers() {
    let restarted = |lost: i64| {
        let mut log = Log::new(Audit::Headers).epoch(1, &[3, 2], 0);
        // The sender was restarted, had signed nothing, and trusted the database.
        let previous = log.previous.as_mut().unwrap();
        (previous.chain, previous.opened) = (None, None);
        log.next += lost;
        log.epoch(2, &[1], 0)
    };
    assert_eq!(restarted(BATCH_ROWS).findings(), [""; 0]);
    assert_eq!(
        restarted(BATCH_ROWS + 1).findings(),
        [
            "epoch 1: rows 6 to 16390 are missing (before the next epoch: more than were in flight when it began)"
        ]
    );
    // Missing rows are not reported twice.
    let mut log = Log::new(Audit::Headers).epoch(1, &[3, 2], 0);
    log.next += BATCH_ROWS;
    let mut log = log.epoch(2, &[1], 0);
    log.remove(5..=5);
    assert_eq!(
        log.findings(),
        ["epoch 1: row 5 is missing (the last of the epoch, as the next epoch's record says)"]
    );
}

#[test]
fn a_crash_empties_a_volatile_epoch_and_no_other() {
    for (durability, rows, findings, emptied) in [
        (Durability::Volatile, 1..=5, 0, 1),
        (Durability::Volatile, 4..=5, 1, 0),
        (Durability::Relaxed, 1..=5, 2, 0),
    ] {
        let mut log = Log::new(Audit::Headers);
        log.durability = durability;
        let mut log = log.epoch(1, &[3, 2], 0).signed();
        log.next += 1 << 40;
        let mut log = log.epoch(2, &[1], 0);
        log.remove(rows);
        let (found, summary) = log.verified(true);
        // The numbers after a crash begin much higher, so the gap is found too if a row is left.
        let expected =
            if durability == Durability::Volatile && findings == 1 { 2 } else { findings };
        assert_eq!((found.len(), summary.emptied), (expected, emptied), "{durability}: {found:?}");
    }
}

#[test]
fn an_epoch_that_is_not_the_senders_is_named() {
    let cases: [(Edit<Log>, &[&str]); 8] = [
        (|l| l.epochs[1].signature[0] ^= 1, &["epoch 2: the sender has not signed the record"]),
        (|l| l.epochs[1].record[50] ^= 1, &["epoch 2: the sender has not signed the record"]),
        (|l| l.epochs[1].no = 9, &["epoch 9: column no is not what its signed record says"]),
        (|l| l.epochs[1].leaf = 2, &["epoch 2: column leaf is not what its signed record says"]),
        (
            |l| l.epochs[2].first_seq = 12,
            &["epoch 3: column first_seq is not what its signed record says"],
        ),
        (|l| l.epochs[1].wrap = None, &["epoch 2: the wrapped secret for this reader is missing"]),
        (
            |l| l.epochs[1].wrap.as_mut().unwrap().sealed[0] ^= 1,
            &["epoch 2: the wrapped secret is not the one that was signed"],
        ),
        (
            |l| l.epochs[1].wrap = l.epochs[0].wrap.clone(),
            &["epoch 2: the wrapped secret is not the one that was signed"],
        ),
    ];
    for (number, (edit, said)) in cases.into_iter().enumerate() {
        let mut log = log();
        edit(&mut log);
        let findings = log.findings();
        assert!(
            findings.iter().any(|finding| said.contains(&finding.as_str())),
            "case {number}: {findings:?}"
        );
    }
}

#[test]
fn epochs_out_of_their_order_are_named() {
    let mut log = log();
    log.epochs.remove(1);
    log.remove(6..=10);
    assert_eq!(log.findings(), ["epoch 3: it follows epoch 2, which is missing"]);
    // The sender's record skips an epoch with rows.
    let mut log = Log::new(Audit::Headers).epoch(1, &[1], 0);
    let first = log.previous;
    log = log.epoch(2, &[1], 0);
    log.previous = first;
    log = log.epoch(3, &[1], 0);
    assert_eq!(
        log.findings(),
        ["epoch 3: it claims to follow epoch 1, but epoch 2 with rows is between them"]
    );
    let mut log = Log::new(Audit::Headers).epoch(1, &[1], 0);
    log.previous = None;
    log = log.epoch(2, &[1], 0);
    assert_eq!(log.findings(), ["epoch 2: it claims to be the first, but epoch 1 precedes it"]);
}

/// Creates a log whose first leaf was opened this long ago and has been dropped.
fn expired(ago: u64, since: u64) -> Log {
    let mut log = Log::new(Audit::Headers);
    log.opened = UnixTime(NOW.0 - ago);
    let mut log = log.epoch(1, &[3, 2], 0);
    log.opened = NOW;
    let mut log = log.epoch(2, &[3, 2], 1).epoch(3, &[3], 0);
    (log.epochs[0].expired, log.epochs[0].wrap) = (Some(UnixTime(NOW.0 - since)), None);
    log.remove(1..=5);
    log
}

#[test]
fn what_has_expired_is_no_finding() {
    let mut log = expired(31 * DAY, 60);
    let (findings, summary) = log.verified(true);
    assert_eq!(findings, [""; 0]);
    assert_eq!((summary.expired, summary.epochs, summary.rows), (1, 2, 8));
    // A day later its record is dropped as well.
    log.epochs.remove(0);
    for with_key in [true, false] {
        let (findings, summary) = log.verified(with_key);
        assert_eq!(findings, [""; 0]);
        assert_eq!((summary.expired, summary.epochs, summary.rows), (0, 2, 8));
    }
}

#[test]
fn what_has_expired_for_its_size_is_no_finding() {
    let mut log = expired(DAY, 60);
    log.retention.as_mut().unwrap().used = 1 << 27;
    assert_eq!(log.findings(), [""; 0]);
    log.epochs.remove(0);
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn what_cannot_have_expired_yet_is_named() {
    let mut log = expired(DAY, 60);
    let opened = NOW.0 - DAY;
    assert_eq!(
        log.findings(),
        [format!(
            "epoch 1 was dropped early: it was opened at {opened} (Unix time), within the retention, and the log is far from full"
        )]
    );
    log.epochs.remove(0);
    assert_eq!(
        log.findings(),
        [format!(
            "epoch 1, which epoch 2 follows, was dropped early: it was opened at {opened} (Unix time), within the retention, and \
             the log is far from full"
        )]
    );
    // Without the network's row, the retention is unknown.
    log.retention = None;
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn what_has_expired_is_judged_by_all_bounds_since_it_was_opened() {
    let today = NOW.0 / DAY;
    let cases = [
        // The retention was shortened a week ago, and rows older than a day expired at once.
        (vec![period(0, 30, 1 << 30), period(today - 7, 1, 1 << 30)], 0),
        // The retention was extended a week ago, when rows older than a day had already expired.
        (vec![period(0, 1, 1 << 30), period(today - 7, 30, 1 << 30)], 0),
        // The retention was short for a time, which ended before the epoch was opened.
        (vec![period(0, 1, 1 << 30), period(today - 12, 30, 1 << 30)], 1),
        // The size limit was small for a time since then.
        (
            vec![
                period(0, 30, 1 << 30),
                period(today - 7, 30, 1 << 23),
                period(today - 6, 30, 1 << 30),
            ],
            0,
        ),
        (vec![period(0, 30, 1 << 30), period(today - 7, 60, 1 << 31)], 1),
    ];
    for (kept, findings) in cases {
        let mut log = expired(10 * DAY, 60);
        log.retention.as_mut().unwrap().kept = kept.clone();
        assert_eq!(log.findings().len(), findings, "{kept:?}");
        log.epochs.remove(0);
        assert_eq!(log.findings().len(), findings, "{kept:?}");
    }
}

#[test]
fn an_epoch_keeps_to_the_settings_that_it_names() {
    let auditor = auditor();
    let own = Some(&auditor);
    let audited = [(9 * DAY, Audit::Full, own), (DAY, Audit::Headers, own)];
    let old = |audit, serial, ago| {
        let mut log = Log::new(audit);
        (log.settings, log.serial) = (Some(history(&audited)), serial);
        log.opened = UnixTime(NOW.0 - ago);
        log.epoch(1, &[3], 0)
    };
    let with = |findings: &[&str], log: Log| assert_eq!(log.findings(), findings);
    let mut log = old(Audit::Full, 1, 2 * DAY);
    (log.audit, log.serial, log.opened) = (Audit::Headers, 2, NOW);
    with(&[], log.epoch(2, &[2], 0));
    with(&[], old(Audit::Full, 1, DAY - 1800));
    with(
        &[
            "epoch 1: it was opened under settings 1 more than an hour after the owner had signed newer ones",
        ],
        old(Audit::Full, 1, 3600),
    );
    with(
        &[
            "epoch 1: it was opened under settings 2, whose audit policy is headers, and its own is full",
        ],
        old(Audit::Full, 2, 3600),
    );
    with(
        &["epoch 1: it was opened under settings 3, which the network has never had"],
        old(Audit::Full, 3, 3600),
    );
    let mut log = old(Audit::Headers, 2, DAY);
    (log.audit, log.serial) = (Audit::Full, 1);
    with(
        &["epoch 2: it was opened under settings 1, and the epoch before it under settings 2"],
        log.epoch(2, &[2], 0),
    );
    // Without trusted settings there is nothing to compare with.
    let mut log = old(Audit::Full, 3, 3600);
    log.settings = None;
    with(&[], log);
}

#[test]
fn an_auditor_reads_from_when_it_was_added_until_it_was_removed() {
    let (first, own) = (AuditorKey::generate(&network(), &mut random(8)), auditor());
    let changes = [
        (9 * DAY, Audit::Headers, Some(&first)),
        (6 * DAY, Audit::Headers, None),
        (3 * DAY, Audit::Headers, Some(&own)),
    ];
    let mut log = Log::new(Audit::Headers);
    log.settings = Some(history(&changes));
    (log.auditor, log.opened) = (first.clone(), UnixTime(NOW.0 - 8 * DAY));
    let mut log = log.epoch(1, &[3], 0);
    (log.auditor, log.opened, log.serial) = (own.clone(), NOW, 3);
    let log = log.epoch(2, &[2], 0).signed();
    // The previous auditor's epoch is not checked for this auditor.
    let (findings, summary) = log.verified(true);
    assert_eq!(findings, [""; 0]);
    assert_eq!((summary.rows, summary.proven), (5, 2));
    // The sender wraps to an auditor that is not in the settings.
    let mut log = Log::new(Audit::Headers);
    log.settings = Some(history(&changes[..2]));
    (log.opened, log.serial) = (UnixTime(NOW.0 - 5 * DAY), 2);
    assert_eq!(
        log.epoch(1, &[1], 0).findings(),
        [
            "epoch 1: it was opened under settings 2, which name no auditor, and its key is wrapped to one"
        ]
    );
}

#[test]
fn an_epoch_dropped_before_an_older_one_is_named_unless_that_was_just_now() {
    for (since, findings) in [(60, 0), (4 * 3600, 1)] {
        let mut log = Log::new(Audit::Headers);
        log.opened = UnixTime(NOW.0 - 31 * DAY);
        let mut log = log.epoch(1, &[2], 0).epoch(2, &[2], 0).epoch(3, &[1], 0);
        log.epochs[1].expired = Some(UnixTime(NOW.0 - since));
        log.remove(3..=4);
        let expected =
            ["epoch 2 was dropped, and an older one was not: the oldest expire first"; 1];
        assert_eq!(log.findings(), expected[..findings], "{since} s ago");
    }
}

#[test]
fn an_address_that_is_a_network_is_an_altered_column() {
    let mut log = Log::new(Audit::Headers).epoch(1, &[1], 0);
    let row = log.at(1).clone();
    let epoch = log.epochs[0].clone();
    let (auditor, ring) = (auditor(), KeyRing::from(network()));
    let stream = Stream {
        network: "t1".into(),
        id: STREAM,
        sender: Some(keys(2).public(SENDER).unwrap()),
        receiver: RECEIVER,
        retention: None,
        settings: None,
    };
    let mut verifier = Verifier::new(stream, Some((auditor.reader(), &ring)));
    verifier.epoch(&EpochRow {
        no: EpochNo(1),
        leaf: LeafNo(1),
        first_seq: Seq(1),
        record: &epoch.record,
        signature: &epoch.signature,
        wrap: epoch.wrap.as_ref(),
        checkpoint: None,
        next: None,
        expired: None,
    });
    let (seq, stream, no) = (1i64.to_be_bytes(), 3i32.to_be_bytes(), 1i32.to_be_bytes());
    let (len, sport, dport) = (30i32.to_be_bytes(), 53i32.to_be_bytes(), 443i32.to_be_bytes());
    let proto = 17i16.to_be_bytes();
    let src = [2, 8, 0, 4, 10, 0, 0, 0];
    let dst = [2, 32, 0, 4, 10, 9, 0, 8];
    verifier.values([
        Some(&seq),
        Some(&stream),
        Some(&no),
        Some(&len),
        Some(&sport),
        Some(&dport),
        Some(&proto),
        None,
        Some(&src),
        Some(&dst),
        Some(&row.tag),
        row.chain.as_deref(),
        Some(&row.payload),
    ]);
    let said: Vec<String> = verifier.take_findings().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "epoch 1: row 1 was altered: column src says nothing, the sender wrote 10.9.0.7, column dst says nothing, the sender wrote 10.9.0.8"
        ]
    );
    verifier.values([None; 13]);
    assert_eq!(verifier.take_findings(), [Finding::Stray { seq: Seq(0) }]);
}

/// The network received a new key between two epochs. With the ring both are proven, and with only the first key the second one is
/// reported.
#[test]
fn a_log_across_a_rekey_is_proven_with_both_keys() {
    let mut log = Log::new(Audit::Headers).epoch(1, &[2, 3], 0).signed();
    let key = log.key.successor(&mut random(8)).unwrap();
    let members = Members::new(RECEIVER, [SENDER, RECEIVER]);
    let renewal = Renewal { key: key.clone(), members, made: NOW };
    log.ring.take(adit_engine::Instant::default(), NOW, renewal);
    log.key = key;
    let mut log = log.epoch(2, &[4], 0).signed();
    let (said, summary) = log.verified(true);
    assert_eq!((said, summary.rows, summary.proven), (vec![], 9, 9));
    log.ring = network().into();
    let (said, summary) = log.verified(true);
    assert_eq!(summary.proven, 5);
    let words = "uses a key of the network that this reader does not have";
    assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
}
