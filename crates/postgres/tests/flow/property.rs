//! Random sequences of faults and forgeries.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::model::{Db, EpochRow, Stored};
use crate::world::{CommitOutcome, World};

#[derive(Copy, Clone, Debug)]
enum Event {
    Send { count: usize, every: u64 },
    Pass(u64),
    Latency(u64),
    LoseNotifications(bool),
    CutSender(CommitOutcome),
    ConnectSender,
    CutReceiver,
    ConnectReceiver,
    RestartSender(CommitOutcome),
    RestartReceiver,
    Backup,
    Restore,
    DropOldestLeaf,
    DatabaseClock(i64),
    SenderClock(i64),
}

#[derive(Copy, Clone, Debug)]
enum Lie {
    /// Adds rows with numbers and an epoch that the liar chooses.
    Forge {
        like: usize,
        count: i64,
        offset: i64,
        epoch: i32,
    },
    /// Repeats a row, as if it were new, in any leaf.
    Repeat {
        which: usize,
        leaf: usize,
    },
    /// Repeats all rows, as if they were new.
    RepeatAll {
        leaf: usize,
    },
    /// Swaps the numbers, or the epochs, of two rows.
    Swap {
        one: usize,
        other: usize,
        epochs: bool,
    },
    Alter {
        which: usize,
        byte: usize,
    },
    Delete {
        which: usize,
        count: usize,
    },
    /// Repeats an epoch's record under another number, possibly as if it were new.
    ReplayEpoch {
        record: usize,
        no: i32,
        young: bool,
    },
    DeleteEpoch(usize),
    ReversePages(bool),
    Restore,
}

fn event() -> impl Strategy<Value = Event> {
    let outcome = prop_oneof![Just(CommitOutcome::Present), Just(CommitOutcome::Absent)];
    prop_oneof![
        8 => (1..80_usize, 0..12_u64).prop_map(|(count, every)| Event::Send { count, every }),
        4 => (1..400_u64).prop_map(Event::Pass),
        1 => (400..4000_u64).prop_map(Event::Pass),
        1 => (1..300_u64).prop_map(Event::Latency),
        1 => any::<bool>().prop_map(Event::LoseNotifications),
        2 => outcome.clone().prop_map(Event::CutSender),
        2 => Just(Event::ConnectSender),
        1 => Just(Event::CutReceiver),
        2 => Just(Event::ConnectReceiver),
        1 => outcome.prop_map(Event::RestartSender),
        1 => Just(Event::RestartReceiver),
        1 => Just(Event::Backup),
        1 => Just(Event::Restore),
        1 => Just(Event::DropOldestLeaf),
        1 => (-10_000_000..10_000_000_i64).prop_map(Event::DatabaseClock),
        1 => (-10_000_000..10_000_000_i64).prop_map(Event::SenderClock),
    ]
}

fn lie() -> impl Strategy<Value = Lie> {
    let place = 0..10_000_usize;
    prop_oneof![
        (place.clone(), 1..300_i64, -50..100_i64, -2..3_i32)
            .prop_map(|(like, count, offset, epoch)| Lie::Forge { like, count, offset, epoch }),
        (place.clone(), place.clone()).prop_map(|(which, leaf)| Lie::Repeat { which, leaf }),
        place.clone().prop_map(|leaf| Lie::RepeatAll { leaf }),
        (place.clone(), place.clone(), any::<bool>()).prop_map(|(one, other, epochs)| Lie::Swap {
            one,
            other,
            epochs
        }),
        (place.clone(), place.clone()).prop_map(|(which, byte)| Lie::Alter { which, byte }),
        (place.clone(), 1..30_usize).prop_map(|(which, count)| Lie::Delete { which, count }),
        (place.clone(), any::<i32>(), any::<bool>())
            .prop_map(|(record, no, young)| Lie::ReplayEpoch { record, no, young }),
        place.prop_map(Lie::DeleteEpoch),
        any::<bool>().prop_map(Lie::ReversePages),
        Just(Lie::Restore),
    ]
}

struct Play {
    world: World,
    backup: Db,
    sender_up: bool,
}

impl Play {
    fn new() -> Self {
        let mut world = World::new();
        world.check_it_works();
        Self { backup: world.db.clone(), world, sender_up: true }
    }

    fn happen(&mut self, event: Event) {
        let world = &mut self.world;
        match event {
            Event::Send { count, every } => world.traffic(count, every),
            Event::Pass(ms) => world.pass(ms),
            Event::Latency(ms) => world.latency = ms,
            Event::LoseNotifications(lose) => world.lose_notifications = lose,
            Event::CutSender(outcome) => world.cut_sender(outcome),
            Event::ConnectSender => world.connect_sender(),
            Event::CutReceiver => world.cut_receiver(),
            Event::ConnectReceiver => world.connect_receiver(),
            Event::RestartSender(outcome) => world.restart_sender(outcome, true),
            Event::RestartReceiver => world.restart_receiver(true),
            Event::Backup => self.backup = world.db.clone(),
            Event::Restore => {
                world.cut_sender(CommitOutcome::Absent);
                world.db = self.backup.clone();
                world.connect_sender();
                world.connect_receiver();
            }
            Event::DropOldestLeaf => {
                let oldest =
                    world.db.leaves.iter().find(|(_, rows)| rows.is_some()).map(|(no, _)| *no);
                let newest = world.db.leaves.last_key_value().map(|(no, _)| *no);
                // Never drop the leaf that is being written.
                if let Some(no) = oldest.filter(|no| !self.sender_up || Some(*no) != newest) {
                    world.db.drop_leaf(no);
                }
            }
            Event::DatabaseClock(ahead) => world.clock_ahead = ahead,
            Event::SenderClock(wrong_by) => world.wrong_by = wrong_by,
        }
        match event {
            Event::CutSender(_) => self.sender_up = false,
            Event::ConnectSender | Event::RestartSender(_) | Event::Restore => {
                self.sender_up = true;
            }
            _ => {}
        }
        self.world.check();
    }

    fn tell(&mut self, lie: Lie) {
        let now = self.world.db_now();
        let position = self.world.receiver.position();
        let db = &mut self.world.db;
        match lie {
            Lie::Forge { like, count, offset, epoch } => {
                let Some(like) = pick(db, like).map(|row| row.clone()) else { return };
                let made = (0..count).map(|n| Stored {
                    seq: position.seq.0 + offset + n,
                    epoch: position.epoch.0 + epoch,
                    ts: now,
                    ..like.clone()
                });
                put(db, usize::MAX, made.collect());
            }
            Lie::Repeat { which, leaf } => {
                let row = pick(db, which).map(|row| Stored { ts: now, ..row.clone() });
                put(db, leaf, row.into_iter().collect());
            }
            Lie::RepeatAll { leaf } => {
                let all = db.leaves.values().flatten().flatten();
                let all = all.map(|row| Stored { ts: now, ..row.clone() }).take(3000).collect();
                put(db, leaf, all);
            }
            Lie::Swap { one, other, epochs } => {
                let Some(first) = pick(db, one).map(|row| (row.seq, row.epoch)) else { return };
                let Some(second) = pick(db, other) else { return };
                let was = (second.seq, second.epoch);
                if epochs {
                    second.epoch = first.1;
                } else {
                    second.seq = first.0;
                }
                if let Some(row) = pick(db, one) {
                    if epochs { row.epoch = was.1 } else { row.seq = was.0 }
                }
            }
            Lie::Alter { which, byte } => {
                if let Some(row) = pick(db, which) {
                    let at = byte % row.payload.len();
                    row.payload[at] ^= 1 << (byte % 8);
                }
            }
            Lie::Delete { which, count } => {
                let mut left = count;
                let mut index = 0;
                for rows in db.leaves.values_mut().flatten() {
                    rows.retain(|_| {
                        index += 1;
                        let delete = index > which && left > 0;
                        left -= usize::from(delete);
                        !delete
                    });
                }
            }
            Lie::ReplayEpoch { record, no, young } => {
                let record = record % self.world.records.len();
                db.epochs.push(EpochRow {
                    no,
                    record,
                    opened: if young { now } else { now - 5000 },
                });
            }
            Lie::DeleteEpoch(which) => {
                if !db.epochs.is_empty() {
                    db.epochs.swap_remove(which % db.epochs.len());
                }
            }
            Lie::ReversePages(reverse) => {
                self.world.liar =
                    reverse.then(|| Box::new(|rows: &mut Vec<Stored>| rows.reverse()) as _);
            }
            // Restore the backup while the nodes stay connected.
            Lie::Restore => *db = self.backup.clone(),
        }
    }
}

fn pick(db: &mut Db, which: usize) -> Option<&mut Stored> {
    let count = db.leaves.values().flatten().map(Vec::len).sum::<usize>().max(1);
    db.leaves.values_mut().flatten().flatten().nth(which % count)
}

fn put(db: &mut Db, leaf: usize, rows: Vec<Stored>) {
    let count = db.leaves.values().flatten().count().max(1);
    let index = if leaf == usize::MAX { count - 1 } else { leaf % count };
    if let Some(leaf) = db.leaves.values_mut().flatten().nth(index) {
        leaf.extend(rows);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn after_any_misfortunes_nothing_came_twice_and_everything_comes_again(events in vec(event(), 1..40)) {
        let mut play = Play::new();
        for event in events {
            play.happen(event);
        }
        let Play { mut world, .. } = play;
        (world.latency, world.lose_notifications) = (4, false);
        world.connect_sender();
        world.connect_receiver();
        // Covers the time in the queue, and the longest pause after a refusal.
        world.pass(3500);
        world.check_it_works();
    }

    #[test]
    fn no_lies_bring_a_packet_twice_or_one_that_was_not_sent(
        steps in vec((event(), proptest::option::of(lie())), 1..40),
    ) {
        let mut play = Play::new();
        for (event, lie) in steps {
            play.happen(event);
            if let Some(lie) = lie {
                play.tell(lie);
            }
        }
        play.world.connect_receiver();
        play.world.pass(2500);
        play.world.check();
    }
}
