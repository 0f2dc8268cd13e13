//! Two nodes with the model between them, and the invariants that must always hold.

use std::time::Duration;

use adit_engine::{Instant, Random, UnixTime};
use adit_postgres::key::Checkpoint;
use adit_postgres::receiver::{
    AgedRow, Delivery, Epoch, Position, Query, QueryScope, Receiver, WakeUpMonitor,
};
use adit_postgres::routes::{Peer, Routes};
use adit_postgres::seal::{EpochSecret, Opener, Sealer};
use adit_postgres::sender::{Action, Batch, Config, NewEpoch, SavedState, Sender};
use adit_postgres::{Audit, EpochNo, Generation, LeafNo, NodeId, Seq, StreamId};
use adit_wire::VnetHeader;

use crate::model::{Db, Stored};

pub(crate) const STREAM: StreamId = StreamId(7);
const RECEIVER: NodeId = NodeId(2);
const WATCH_SEED: [u8; 32] = [8; 32];
/// 2026-11-20.
const UNIX: u64 = 1_795_000_000;

/// A signed epoch record, and the secret that only the two nodes know.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub no: EpochNo,
    pub leaf: LeafNo,
    pub first_seq: Seq,
    pub generation: Generation,
    secret: EpochSecret,
    hash: [u8; 32],
}

/// The outcome of a batch in flight when its connection is lost.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommitOutcome {
    Present,
    Absent,
}

#[derive(Debug)]
struct Flight {
    until: u64,
    batch: Batch,
}

/// A function with which a lying database alters a page before returning it.
pub(crate) type Liar = Box<dyn FnMut(&mut Vec<Stored>)>;

pub(crate) struct World {
    /// The current time in milliseconds.
    pub now: u64,
    /// The lead of the database's clock, in milliseconds.
    pub clock_ahead: i64,
    pub db: Db,
    leaf_bytes: u64,
    pub sender: Sender,
    pub receiver: Receiver,
    watch: WakeUpMonitor,
    /// The number of wake-ups that the database has counted.
    rung: i64,
    pub records: Vec<Record>,
    /// The duration of a commit in milliseconds.
    pub latency: u64,
    pub lose_notifications: bool,
    sender_up: bool,
    receiver_up: bool,
    flight: Option<Flight>,
    pub next_id: u64,
    /// The numbers of the packets that arrived, in order.
    pub came: Vec<u64>,
    /// The time when each of those arrived, in milliseconds after it was sent.
    pub waits: Vec<u64>,
    pub liar: Option<Liar>,
    random: Random,
    routes: Routes,
    /// The error of the sender's wall clock in seconds.
    pub wrong_by: i64,
    /// The last checkpoint.
    pub signed: Option<(EpochNo, Checkpoint)>,
    pub queries: u64,
    /// The network's key that epochs open under.
    pub key: Generation,
}

fn config(leaf_bytes: u64) -> Config {
    Config { packet_size: 1400, leaf_bytes, leaf_age: Duration::from_secs(60) }
}

fn instant(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

pub(crate) fn routes() -> Routes {
    let peer = Peer {
        node: NodeId(1),
        outgoing: StreamId(8),
        incoming: STREAM,
        addresses: vec!["10.9.0.1".parse().unwrap()],
        subnets: vec![],
    };
    Routes::new(&["10.9.0.2".parse().unwrap()], &[], &[peer])
}

/// Builds an IPv4 packet from node 1 to node 2 that contains its number and the time.
pub(crate) fn packet(id: u64, now: u64) -> Vec<u8> {
    packet_between([10, 9, 0, 1], [10, 9, 0, 2], id, now)
}

pub(crate) fn packet_between(from: [u8; 4], to: [u8; 4], id: u64, now: u64) -> Vec<u8> {
    let len = 64 + (id % 13) as usize * 90;
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[8] = 64;
    packet[9] = 253;
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    packet[20..28].copy_from_slice(&id.to_be_bytes());
    packet[28..36].copy_from_slice(&now.to_be_bytes());
    let rest = (id as u8, 36..len);
    packet[rest.1].fill(rest.0);
    packet
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_leaves_of(200_000)
    }

    pub(crate) fn with_leaves_of(leaf_bytes: u64) -> Self {
        let now = 1_000_000;
        let mut world = Self {
            now,
            clock_ahead: 5_000_000,
            db: Db::default(),
            sender: Sender::new(config(leaf_bytes)),
            leaf_bytes,
            receiver: Receiver::new(instant(now), STREAM, Position::default(), [7; 32]),
            watch: WakeUpMonitor::new(instant(now), WATCH_SEED),
            rung: 0,
            records: Vec::new(),
            latency: 4,
            lose_notifications: false,
            sender_up: true,
            receiver_up: true,
            flight: None,
            next_id: 1,
            came: Vec::new(),
            waits: Vec::new(),
            liar: None,
            random: Random::new([1; 32]),
            routes: routes(),
            wrong_by: 0,
            key: Generation::FIRST,
            queries: 0,
            signed: None,
        };
        world.sender.add(STREAM, RECEIVER, SavedState::default());
        world
    }

    /// Changes the network's settings. New epochs use them and, with `new_leaf`, begin a new leaf.
    pub(crate) fn renew(&mut self, new_leaf: bool) {
        self.sender.reconfigure(config(self.leaf_bytes), new_leaf);
    }

    pub(crate) fn db_now(&self) -> i64 {
        self.now as i64 + self.clock_ahead
    }

    /// Sends a packet from the device.
    pub(crate) fn send(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let packet = packet(id, self.now);
        self.sender.push(instant(self.now), Some(STREAM), VnetHeader::default(), &packet);
        id
    }

    /// Sends `count` packets, one each `every` milliseconds, and lets time pass.
    pub(crate) fn traffic(&mut self, count: usize, every: u64) {
        for _ in 0..count {
            self.send();
            self.pass(every);
        }
    }

    /// Advances the time, in steps of 1 ms, or of 50 ms if there are many.
    pub(crate) fn pass(&mut self, ms: u64) {
        let step = if ms > 5000 { 50 } else { 1 };
        let end = self.now + ms;
        self.turn();
        while self.now < end {
            self.now += step.min(end - self.now);
            self.turn();
        }
    }

    fn turn(&mut self) {
        if self.flight.as_ref().is_some_and(|flight| flight.until <= self.now) {
            self.commit();
        }
        if self.sender_up {
            self.write();
        }
        if self.receiver_up {
            self.read();
        }
    }

    fn commit(&mut self) {
        let Some(Flight { batch, .. }) = self.flight.take() else { return };
        let now = self.db_now();
        for part in &batch.parts {
            self.db.write(part, now);
            self.ring(part.leaf);
        }
        self.sender.committed(instant(self.now), batch);
    }

    /// Sends a wake-up, which the database counts and the reader may or may not receive.
    pub(crate) fn ring(&mut self, leaf: LeafNo) {
        self.rung += 1;
        if !self.lose_notifications && self.receiver_up {
            self.receiver.wake(leaf);
            self.watch.received(instant(self.now), 1);
        }
    }

    fn write(&mut self) {
        let at = instant(self.now);
        for _ in 0..100 {
            let unix = UnixTime((UNIX as i64 + self.wrong_by + (self.now / 1000) as i64) as u64);
            match self.sender.next_action(at, unix) {
                Action::Resume { stream, receiver } => {
                    assert_eq!((stream, receiver), (STREAM, RECEIVER));
                    self.sender.resumed(stream, self.db.resume());
                }
                Action::Open(opening) => self.open(&opening),
                Action::Batch => match self.sender.batch(at) {
                    Some(batch) => self.take_off(batch),
                    None => return,
                },
                Action::Sign(unsigned) => {
                    for one in &unsigned {
                        self.signed = Some((one.epoch, one.checkpoint));
                    }
                    self.sender.signed(at, &unsigned);
                }
                Action::Wait(_) => return,
            }
        }
        panic!("the sender never stops wanting");
    }

    fn take_off(&mut self, batch: Batch) {
        let bytes: usize = batch.parts.iter().map(|part| part.bytes.len()).sum();
        assert!(bytes <= adit_postgres::limits::BATCH_BYTES);
        assert!(self.flight.is_none());
        self.flight = Some(Flight { until: self.now + self.latency, batch });
    }

    fn open(&mut self, opening: &NewEpoch) {
        let secret = EpochSecret::new(self.random.bytes());
        let hash = self.random.bytes();
        let record = self.records.len();
        let at = instant(self.now);
        let now = self.db_now();
        // Invariant: an epoch number is never signed twice.
        assert!(self.records.iter().all(|record| record.no != opening.epoch));
        self.records.push(Record {
            no: opening.epoch,
            leaf: opening.leaf,
            first_seq: opening.first_seq,
            generation: self.key,
            secret: secret.clone(),
            hash,
        });
        match self.db.open_epoch(opening, record, now) {
            Ok(()) => {
                let seal = Sealer::new(&secret, Audit::Headers, STREAM, opening.epoch, hash);
                self.sender.opened(at, STREAM, seal.unwrap());
            }
            Err(_) => self.sender.failed(at, STREAM),
        }
    }

    fn read(&mut self) {
        let at = instant(self.now);
        if self.watch.ask(at) {
            self.queries += 1;
            let active = self.receiver.is_active(at);
            match self.watch.answer(at, self.rung, active) {
                QueryScope::All => self.receiver.recheck(at),
                QueryScope::Active if active => self.receiver.recheck(at),
                QueryScope::Active | QueryScope::None => {}
            }
        }
        assert!(self.watch.deadline().is_some_and(|deadline| deadline > at));
        for _ in 0..200 {
            let Some(query) = self.receiver.query(at) else {
                // A caller that sleeps until the deadline misses nothing.
                assert!(self.receiver.deadline().is_some_and(|deadline| deadline > at));
                return;
            };
            self.queries += 1;
            match query {
                Query::Epochs { after, limit } => {
                    let mut rows = self.db.epochs.clone();
                    rows.retain(|row| row.no > after.0);
                    rows.sort_by_key(|row| std::cmp::Reverse(row.no));
                    rows.truncate(limit as usize);
                    let found: Vec<Epoch> = rows
                        .iter()
                        .filter(|row| row.record < self.records.len())
                        .map(|row| self.accept(row.record, self.db_now() - row.opened))
                        .collect();
                    let refused = rows.len() - found.len();
                    self.receiver.epochs(at, found, refused as u64);
                }
                Query::Page { .. } => match self.db.page(query) {
                    Some(mut rows) => {
                        if let Some(liar) = &mut self.liar {
                            liar(&mut rows);
                        }
                        self.page(&rows);
                    }
                    None => self.receiver.gone(),
                },
                Query::Skip { leaf, after } => match self.db.skip(leaf, after, self.db_now()) {
                    Some(newest) => self.receiver.skipped(newest),
                    None => self.receiver.gone(),
                },
            }
        }
        panic!("the receiver asks without end");
    }

    /// Acts in place of the keys. All values come from the record that the sender signed.
    pub(crate) fn accept(&self, record: usize, age_ms: i64) -> Epoch {
        let record = &self.records[record];
        Epoch {
            no: record.no,
            leaf: record.leaf,
            first_seq: record.first_seq,
            generation: record.generation,
            age_ms: u64::try_from(age_ms).unwrap_or(0),
            open: Opener::new(&record.secret, Audit::Headers, STREAM, record.no, record.hash)
                .unwrap(),
        }
    }

    /// Seals rows in an epoch as the sender, to model a sender that breaks the rules.
    pub(crate) fn sealed(&self, record: usize, first: i64, packets: &[Vec<u8>]) -> Vec<Stored> {
        let record = &self.records[record];
        let mut seal =
            Sealer::new(&record.secret, Audit::Headers, STREAM, record.no, record.hash).unwrap();
        let mut bytes = Vec::new();
        for (seq, packet) in (first..).zip(packets) {
            seal.seal_into(Seq(seq), packet, &mut bytes).unwrap();
        }
        seal.end_batch(&mut bytes);
        let mut db = Db::default();
        db.leaves.insert(1, Some(Vec::new()));
        let part =
            adit_postgres::sender::BatchPart { leaf: LeafNo(1), bytes, ..Default::default() };
        db.write(&part, self.db_now());
        db.leaves.remove(&1).flatten().unwrap()
    }

    fn page(&mut self, rows: &[Stored]) {
        let now = self.db_now();
        let dated = rows.iter().map(|row| AgedRow { row: row.row(), age_ms: now - row.ts });
        let mut out = Delivery::default();
        self.receiver.page(instant(self.now), dated, &self.routes, &mut out);
        for bytes in out.packets() {
            let id = u64::from_be_bytes(bytes[20..28].try_into().unwrap());
            let sent = u64::from_be_bytes(bytes[28..36].try_into().unwrap());
            assert_eq!(bytes, packet(id, sent), "a forged packet was delivered");
            assert!(id < self.next_id, "a packet that was never sent");
            self.came.push(id);
            self.waits.push(self.now - sent);
        }
    }

    /// Cuts the sender's connection; packets in flight may or may not be stored.
    pub(crate) fn cut_sender(&mut self, outcome: CommitOutcome) {
        if let Some(Flight { batch, .. }) = self.flight.take()
            && outcome == CommitOutcome::Present
        {
            let now = self.db_now();
            for part in &batch.parts {
                self.db.write(part, now);
                self.ring(part.leaf);
            }
        }
        self.sender.lost();
        self.sender_up = false;
    }

    pub(crate) fn connect_sender(&mut self) {
        self.sender_up = true;
    }

    pub(crate) fn cut_receiver(&mut self) {
        self.receiver_up = false;
    }

    pub(crate) fn connect_receiver(&mut self) {
        self.receiver_up = true;
        self.receiver.lost();
        self.watch = WakeUpMonitor::new(instant(self.now), WATCH_SEED);
    }

    /// Ends the sending process and starts another, which knows nothing but the database and, possibly, the saved
    /// state.
    pub(crate) fn restart_sender(&mut self, outcome: CommitOutcome, kept: bool) {
        self.cut_sender(outcome);
        let given = self.sender.given(STREAM).filter(|_| kept).unwrap_or_default();
        // Restart within a different second of the clock.
        self.now += 1000;
        self.sender = Sender::new(config(self.leaf_bytes));
        let signed = self.signed.filter(|_| kept);
        self.sender.add(STREAM, RECEIVER, SavedState { given, signed });
        self.sender_up = true;
    }

    pub(crate) fn restart_receiver(&mut self, kept: bool) {
        let position = if kept { self.receiver.position() } else { Position::default() };
        let seed = self.random.bytes();
        self.receiver = Receiver::new(instant(self.now), STREAM, position, seed);
        self.watch = WakeUpMonitor::new(instant(self.now), WATCH_SEED);
        self.receiver_up = true;
    }

    /// Checks that each packet arrives at most once, and in the order in which they were sent.
    pub(crate) fn check(&self) {
        assert!(
            self.came.windows(2).all(|pair| pair[0] < pair[1]),
            "repeated or reordered: {:?}",
            self.came
        );
        assert!(self.sender.stats().queued <= adit_postgres::limits::QUEUE_BYTES);
    }

    /// Checks that all packets that are sent from now on arrive.
    pub(crate) fn check_it_works(&mut self) {
        let first = self.next_id;
        let before = self.came.len();
        self.traffic(50, 7);
        self.pass(1500);
        self.check();
        let expected: Vec<u64> = (first..first + 50).collect();
        assert_eq!(self.came.get(before..), Some(&expected[..]), "sent {first}..{}", first + 50);
    }

    /// Does the same as [`Self::check_it_works`], once the waiting packets have been sent.
    pub(crate) fn check_it_works_after_backlog(&mut self) {
        self.pass(1500);
        self.check();
        assert!(self.waits.iter().all(|wait| *wait <= 2000 + 1500));
        self.check_it_works();
    }
}
