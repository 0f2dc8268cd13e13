//! A log, one thing done to it, and what is said.

use adit_engine::{Random, UnixTime};

use super::*;
use crate::key::epoch::{Epoch, OpenedEpoch, open};
use crate::key::{AuditorKey, NodeKeys, SealPublic};
use crate::row::copy::split_row;
use crate::seal::Sealer;
use crate::{Audit, row::Columns};

const STREAM: StreamId = StreamId(3);
const SENDER: NodeId = NodeId(7);
const RECEIVER: NodeId = NodeId(8);

/// One thing done to a good one.
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

/// A row as the database keeps it.
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
    expired: bool,
}

/// The log of a stream, as its sender writes it.
struct Log {
    audit: Audit,
    epochs: Vec<StoredEpoch>,
    rows: Vec<Stored>,
    random: Random,
    next: i64,
    previous: Option<Previous>,
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
            opened: UnixTime(1),
            previous: self.previous,
        };
        let readers: [(NodeId, &SealPublic); 1] = [(NodeId::AUDITOR, &auditor().public().unwrap())];
        open(epoch, &keys(2), &network(), &readers, &mut self.random).unwrap()
    }

    /// One epoch with batches of so many rows, the last `doubtful` of which were never acknowledged.
    fn epoch(mut self, no: i32, batches: &[usize], doubtful: usize) -> Self {
        let opened = self.opened(no);
        self.epochs.push(StoredEpoch {
            no,
            leaf: 1,
            first_seq: self.next,
            record: opened.record.clone(),
            signature: opened.signature.to_vec(),
            wrap: Some(opened.wraps[0].clone()),
            expired: false,
        });
        let mut sealer =
            Sealer::new(&opened.secret, self.audit, STREAM, EpochNo(no), opened.hash).unwrap();
        self.previous = Some(Previous {
            no: EpochNo(no),
            last_seq: Seq(self.next - 1),
            chain: Some(opened.hash),
        });
        for (at, count) in batches.iter().enumerate() {
            let mut bytes = Vec::new();
            for _ in 0..*count {
                sealer.seal_into(Seq(self.next), &packet(self.next), &mut bytes).unwrap();
                self.next += 1;
            }
            let chain = sealer.end_batch(&mut bytes).unwrap();
            self.store(&bytes);
            if at + doubtful < batches.len() {
                let last_seq = Seq(self.next - 1);
                self.previous = Some(Previous { no: EpochNo(no), last_seq, chain: Some(chain) });
            }
        }
        self
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

    /// What is said, and what was looked at.
    fn verified(&self, with_key: bool) -> (Vec<String>, Summary) {
        let (auditor, network) = (auditor(), network());
        let stream = Stream {
            network: "t1".into(),
            id: STREAM,
            sender: Some(keys(2).public(SENDER).unwrap()),
            receiver: RECEIVER,
        };
        let key = with_key.then(|| (auditor.reader(), &network));
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

/// An UDP packet from port 53.
fn packet(number: i64) -> Vec<u8> {
    let mut packet = vec![
        0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 7, 10, 9, 0, 8, 0, 53, 1, 187, 0, 10,
        0, 0,
    ];
    packet.extend_from_slice(&(number as u16).to_be_bytes());
    packet
}

/// Rows 1 to 5 in two batches; 6 to 10 in two, the second of which is in doubt; 11 to 13 in one.
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
        assert_eq!((summary.epochs, summary.rows, summary.proven), (4, 9, 9), "{audit}");
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

/// A sender that begins again asks the database, which gives the newest chain value though it is of the epoch before.
#[test]
fn a_chain_value_from_the_epoch_before_an_empty_one_is_right() {
    let mut log = Log::new(Audit::Headers).epoch(1, &[2], 0);
    let older = log.previous.unwrap().chain;
    log = log.epoch(2, &[], 0);
    log.previous.as_mut().unwrap().chain = older;
    log = log.epoch(3, &[1], 0);
    assert_eq!(log.findings(), [""; 0]);
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
    // Without a key no one sees that: the summary says that nothing was proven.
    let mut log = log();
    log.at(2).payload[0] ^= 1;
    assert_eq!(log.verified(false).0, [""; 0]);
    // Two rows that change places.
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
    assert_eq!(log.findings(), ["epoch 1: row 2 stands there more than once"]);
    // At the end of the log, made up.
    let mut log = self::log();
    let made_up = Stored { seq: 14, ..log.at(13).clone() };
    log.rows.push(made_up);
    assert_eq!(log.findings(), ["epoch 3: row 14 was altered: it is not what the sender wrote"]);
    // Before the first epoch.
    let mut log = self::log();
    let made_up = Stored { seq: 0, ..log.at(1).clone() };
    log.rows.push(made_up);
    assert_eq!(log.findings(), ["row 0 belongs to no epoch of this stream"]);
}

#[test]
fn a_broken_chain_is_named() {
    let mut log = log();
    log.at(3).chain.as_mut().unwrap()[0] ^= 1;
    // The next batch begins with the right value, which is not the one that stands there.
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

/// Anyone who can read an epoch has its secret, and could write it again: the sender's next record stands against that.
#[test]
fn a_batch_written_anew_by_a_reader_is_noticed_by_the_next_epochs_record() {
    let mut log = Log::new(Audit::Headers);
    let opened = log.opened(1);
    log = log.epoch(1, &[2], 0);
    // The generator was moved on by `opened`: the secret is that of the stored record.
    drop(opened);
    let accepted = {
        let (auditor, network, sender) = (auditor(), network(), keys(2).public(SENDER).unwrap());
        let expected =
            Expected { network: "t1", stream: STREAM, sender: &sender, receiver: RECEIVER };
        let epoch = &log.epochs[0];
        accept(
            auditor.reader(),
            &network,
            &expected,
            &epoch.record,
            &epoch.signature,
            epoch.wrap.as_ref().unwrap(),
        )
        .unwrap()
    };
    let hash = EpochRecord::hash(&log.epochs[0].record, &log.epochs[0].signature);
    let mut forger = Sealer::new(&accepted.1, Audit::Headers, STREAM, EpochNo(1), hash).unwrap();
    let mut bytes = Vec::new();
    for seq in 1..=2 {
        forger.seal_into(Seq(seq), &packet(99), &mut bytes).unwrap();
    }
    forger.end_batch(&mut bytes).unwrap();
    log.rows.clear();
    log.store(&bytes);
    assert_eq!(log.findings(), [""; 0], "nothing vouches for it yet");
    let log = log.epoch(2, &[1], 0);
    assert_eq!(
        log.findings(),
        ["epoch 1: the chain at row 2 is not what the next epoch's record says"]
    );
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
    let mut log = self::log();
    log.epochs.remove(0);
    log.remove(1..=5);
    assert_eq!(log.findings(), ["epoch 2: it follows epoch 1, which is missing"]);
    // The sender leaves out an epoch with rows.
    let mut log = Log::new(Audit::Headers).epoch(1, &[1], 0);
    let first = log.previous;
    log = log.epoch(2, &[1], 0);
    log.previous = first;
    log = log.epoch(3, &[1], 0);
    assert_eq!(
        log.findings(),
        ["epoch 3: it says that it follows epoch 1, and epoch 2 with rows lies between"]
    );
    let mut log = Log::new(Audit::Headers).epoch(1, &[1], 0);
    log.previous = None;
    log = log.epoch(2, &[1], 0);
    assert_eq!(
        log.findings(),
        ["epoch 2: it says that it is the first, and epoch 1 stands before it"]
    );
}

#[test]
fn what_has_expired_is_no_finding() {
    let mut log = log();
    (log.epochs[0].expired, log.epochs[0].wrap) = (true, None);
    log.remove(1..=5);
    let (findings, summary) = log.verified(true);
    assert_eq!(findings, [""; 0]);
    assert_eq!((summary.expired, summary.epochs, summary.rows), (1, 2, 8));
}

#[test]
fn an_address_that_is_a_network_is_an_altered_column() {
    let mut log = Log::new(Audit::Headers).epoch(1, &[1], 0);
    let row = log.at(1).clone();
    let epoch = log.epochs[0].clone();
    let (auditor, network) = (auditor(), network());
    let stream = Stream {
        network: "t1".into(),
        id: STREAM,
        sender: Some(keys(2).public(SENDER).unwrap()),
        receiver: RECEIVER,
    };
    let mut verifier = Verifier::new(stream, Some((auditor.reader(), &network)));
    verifier.epoch(&EpochRow {
        no: EpochNo(1),
        leaf: LeafNo(1),
        first_seq: Seq(1),
        record: &epoch.record,
        signature: &epoch.signature,
        wrap: epoch.wrap.as_ref(),
        expired: false,
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
