//! A malicious database, and a writer that has a node's password but not its keys. In each test a single check keeps
//! the forgery from the device.

use adit_engine::Instant;
use adit_postgres::receiver::{AgedRow, Delivery, Epoch, Position, Query, Receiver};
use adit_postgres::{LeafNo, Seq, limits};

use crate::model::{EpochRow, Stored};
use crate::world::{CommitOutcome, STREAM, World, packet, packet_between, routes};

/// Returns all rows of the leaves that still exist.
fn all_rows(world: &World) -> Vec<Stored> {
    world.db.leaves.values().flatten().flatten().cloned().collect()
}

fn newest_leaf(world: &mut World) -> &mut Vec<Stored> {
    world.db.leaves.values_mut().next_back().unwrap().as_mut().unwrap()
}

/// Creates a working stream that has already used several epochs.
fn settled() -> World {
    let mut world = World::new();
    world.check_it_works();
    world.cut_sender(CommitOutcome::Present);
    world.connect_sender();
    world.check_it_works();
    assert!(world.records.len() >= 2);
    world
}

#[test]
fn a_row_twice_in_a_page_is_delivered_once() {
    let mut world = settled();
    world.liar = Some(Box::new(|rows| {
        let twice = rows.iter().flat_map(|row| [row.clone(), row.clone()]);
        *rows = twice.collect();
    }));
    world.check_it_works();
    assert!(world.receiver.stats().repeated >= 50);
    assert_eq!(world.receiver.stats().forged, 0);
}

#[test]
fn rows_that_were_delivered_are_not_delivered_again_whatever_page_they_come_in() {
    let mut world = settled();
    let mut before: Vec<Stored> = all_rows(&world);
    let newest = before.last().unwrap().epoch;
    // Leave out the rows of older epochs, which another check refuses.
    before.retain(|row| row.epoch == newest);
    assert!(before.len() >= 50);
    world.liar = Some(Box::new(move |rows| {
        let new = std::mem::replace(rows, before.clone());
        rows.extend(new);
    }));
    world.check_it_works();
    assert_eq!(world.receiver.stats().forged, 0);
}

#[test]
fn rows_in_another_order_lose_but_never_reorder() {
    let mut world = settled();
    world.latency = 20;
    world.liar = Some(Box::new(|rows| rows.reverse()));
    let before = world.came.len();
    world.traffic(200, 1);
    world.pass(100);
    world.check();
    assert!(world.came.len() > before && world.came.len() < before + 100);
    world.liar = None;
    world.check_it_works();
}

#[test]
fn a_row_of_an_epoch_that_has_ended_comes_too_late() {
    let mut world = settled();
    let position = world.receiver.position();
    let first = world.records[0].clone();
    assert!(first.no < position.epoch);
    // The row is authentic, and its number is new.
    let late = world.sealed(0, position.seq.0 + 1, &[packet(1, world.now)]);
    newest_leaf(&mut world).extend(late);
    let before = world.receiver.stats();
    world.receiver.wake(first.leaf);
    world.check_it_works();
    assert!(world.receiver.stats().repeated > before.repeated);
    assert_eq!(world.receiver.stats().forged, before.forged);
}

#[test]
fn an_older_epoch_shown_as_a_new_one_is_refused() {
    let mut world = settled();
    let old = all_rows(&world);
    let (oldest, leaf) = (old[0].epoch, world.records[0].leaf);
    let high = world.receiver.position().epoch.0 + 1_000_000;
    let opened = world.db_now();
    world.db.epochs.push(EpochRow { no: high, record: 0, opened });
    // Add its rows, as if they were new.
    let young = old
        .iter()
        .filter(|row| row.epoch == oldest)
        .map(|row| Stored { ts: opened, ..row.clone() });
    world.db.leaves.insert(leaf.0, Some(young.collect()));
    let before = world.came.len();
    world.receiver.lost();
    world.pass(3000);
    world.check();
    assert_eq!(world.came.len(), before);
    assert!(world.receiver.stats().epochs_refused > 0);

    // A reader that has just started refuses it too, because it saved its position.
    world.db.epochs.retain(|epoch| epoch.no == high);
    world.restart_receiver(true);
    world.pass(3000);
    assert_eq!(world.came.len(), before);
    assert_eq!(world.receiver.stats().epochs, 0);
}

#[test]
fn a_position_that_was_kept_outweighs_a_database_that_forgot_rows_and_found_them_again() {
    let mut world = settled();
    let newest = newest_leaf(&mut world);
    let hidden = newest.split_off(newest.len() - 10);
    let before = world.came.len();
    world.restart_receiver(true);
    world.pass(100);
    let now = world.db_now();
    newest_leaf(&mut world).extend(hidden.into_iter().map(|row| Stored { ts: now, ..row }));
    world.pass(2000);
    assert_eq!(world.came.len(), before);
    world.check_it_works();
}

#[test]
fn altered_rows_are_dropped() {
    let alter: [fn(&mut Stored); 8] = [
        |row| row.payload[0] ^= 1,
        |row| row.tag[15] ^= 1,
        |row| _ = row.tag.pop(),
        |row| row.columns.len = None,
        |row| row.columns.src = row.columns.dst,
        |row| row.seq += 1,
        |row| row.stream += 1,
        |row| row.payload.push(0),
    ];
    for alter in alter {
        let mut world = settled();
        let before = world.came.len();
        world.liar = Some(Box::new(move |rows| rows.iter_mut().for_each(alter)));
        world.traffic(10, 5);
        world.pass(20);
        assert_eq!(world.came.len(), before);
        assert!(world.receiver.stats().forged > 0);
        // A row that was altered only in transit is read again.
        world.liar = None;
        world.pass(1500);
        assert_eq!(world.came.len(), before + 10);
    }
}

#[test]
fn a_row_under_the_next_epoch_is_not_taken_for_it() {
    let mut world = settled();
    world.cut_receiver();
    world.cut_sender(CommitOutcome::Present);
    world.connect_sender();
    world.traffic(5, 5);
    world.pass(20);
    let before = world.came.len();
    let epoch = world.records.last().unwrap().no;
    world.liar = Some(Box::new(move |rows| {
        rows.iter_mut().filter(|row| row.epoch == epoch.0).for_each(|row| row.payload[1] ^= 1);
    }));
    world.connect_receiver();
    world.pass(500);
    assert_eq!(world.came.len(), before);
    world.liar = None;
    world.send();
    world.pass(100);
    assert_eq!(world.came.len(), before + 6);
}

#[test]
fn a_later_epochs_row_put_into_an_earlier_leaf_hides_nothing() {
    let mut world = World::new();
    world.check_it_works();
    world.cut_receiver();
    world.traffic(900, 1);
    world.pass(100);
    let leaves: Vec<i32> = world.db.leaves.keys().copied().collect();
    let reading =
        world.records.iter().find(|r| r.no == world.receiver.position().epoch).unwrap().leaf;
    let next = leaves.iter().copied().find(|no| *no > reading.0).unwrap();
    assert!(leaves.last().unwrap() > &next);
    // The last row of the next leaf.
    let moved = world.db.leaves[&next].as_ref().unwrap().last().unwrap().clone();
    world.db.leaves.get_mut(&reading.0).unwrap().as_mut().unwrap().push(moved);
    world.connect_receiver();
    world.pass(200);
    assert_eq!(world.came.len() as u64, world.next_id - 1);
    world.check();
}

#[test]
fn deleted_rows_are_missing_and_counted_and_the_rest_comes() {
    let mut world = settled();
    world.latency = 20;
    world.liar = Some(Box::new(|rows| rows.retain(|row| row.seq % 5 != 0)));
    let before = world.came.len();
    world.traffic(100, 1);
    world.pass(200);
    world.check();
    assert!((before + 75..before + 95).contains(&world.came.len()));
    assert!(world.receiver.stats().missing >= 10);
}

/// Returns a row that a writer without keys can make.
fn forged(like: &Stored, seq: i64, epoch: i32, ts: i64) -> Stored {
    Stored { seq, epoch, ts, payload: vec![0x45; 100], ..like.clone() }
}

#[test]
fn floods_of_forged_rows_hold_no_reader_up_for_ever() {
    let mut world = settled();
    let like = newest_leaf(&mut world)[0].clone();
    let (now, epoch) = (world.db_now(), world.receiver.position().epoch.0);
    let next = world.receiver.position().seq.0 + 1;
    // First add many rows with the next number, then one row for each later number.
    newest_leaf(&mut world).extend((0..700).map(|_| forged(&like, next, epoch, now)));
    newest_leaf(&mut world).extend((1..6_000).map(|n| forged(&like, next + 100 + n, epoch, now)));
    // A page that a notification requested never contains these rows, because they are beyond the window.
    newest_leaf(&mut world).extend((1..5000).map(|n| forged(&like, i64::MAX - n, epoch, now)));
    world.check_it_works();
    assert!(world.receiver.stats().forged > 700);
}

#[test]
fn genuine_rows_behind_a_flood_are_found() {
    let mut world = settled();
    let like = newest_leaf(&mut world)[0].clone();
    let (now, epoch) = (world.db_now(), world.receiver.position().epoch.0);
    world.cut_receiver();
    world.traffic(10, 3);
    world.pass(20);
    let before = world.came.len();
    // The genuine rows follow tens of thousands of forged rows with the same or the preceding number.
    let leaf = newest_leaf(&mut world);
    let genuine = leaf.split_off(leaf.len() - 10);
    leaf.extend((0..60_000).map(|n| forged(&like, genuine[0].seq - 1 + n % 2, epoch, now)));
    leaf.extend(genuine);
    world.connect_receiver();
    world.queries = 0;
    world.pass(1);
    assert!(world.queries < 40, "{} pages at once: nobody else's turn", world.queries);
    world.pass(1900);
    // This many forged rows with its number may hide the first row, but not the others.
    assert!(world.came.len() >= before + 9, "{}", world.came.len() - before);
    world.check_it_works();
}

#[test]
fn rows_of_unsigned_epochs_are_forged() {
    let mut world = settled();
    let like = newest_leaf(&mut world)[0].clone();
    let now = world.db_now();
    let next = world.receiver.position().seq.0 + 1;
    let opened = now;
    // The record is not the sender's.
    world.db.epochs.push(EpochRow { no: i32::MAX - 1, record: usize::MAX, opened });
    newest_leaf(&mut world).extend((0..50).map(|n| forged(&like, next + n, i32::MAX - 1, now)));
    newest_leaf(&mut world).extend((0..50).map(|n| forged(&like, next + n, i32::MAX, now)));
    world.ring(LeafNo(i32::MAX));
    world.queries = 0;
    world.pass(1200);
    assert!(world.queries < 60, "{}", world.queries);
    assert!(world.receiver.stats().forged >= 100);
    world.db.epochs.retain(|epoch| epoch.no != i32::MAX - 1);
    world.check_it_works();
}

#[test]
fn a_starting_reader_is_not_led_astray_by_forged_rows() {
    let mut world = settled();
    let like = newest_leaf(&mut world)[0].clone();
    let (now, epoch) = (world.db_now(), world.receiver.position().epoch.0);
    newest_leaf(&mut world)
        .extend((0..2000).map(|n| forged(&like, i64::MAX - n % 1000, epoch, now)));
    let before = world.came.len();
    world.restart_receiver(false);
    world.pass(5000);
    assert_eq!(world.came.len(), before, "it starts behind the newest authentic row");
    world.check_it_works();
}

#[test]
fn an_old_forged_row_far_ahead_does_not_hide_the_backlog() {
    let mut world = World::with_leaves_of(100 << 20);
    world.check_it_works();
    let like = newest_leaf(&mut world)[0].clone();
    let (old, epoch) = (world.db_now() - 10_000, world.receiver.position().epoch.0);
    newest_leaf(&mut world).push(forged(&like, i64::MAX - 5, epoch, old));
    world.cut_receiver();
    world.traffic(2000, 2);
    world.connect_receiver();
    world.pass(300);
    world.check_it_works();
}

#[test]
fn authentic_packets_from_or_to_others_are_not_delivered() {
    let mut world = settled();
    let position = world.receiver.position();
    let record = world.records.iter().position(|record| record.no == position.epoch).unwrap();
    let odd = [
        packet_between([10, 9, 0, 3], [10, 9, 0, 2], 1, 0),
        packet_between([10, 9, 0, 1], [10, 9, 0, 9], 1, 0),
        vec![0; 40],
    ];
    let rows = world.sealed(record, position.seq.0 + 1, &odd);
    newest_leaf(&mut world).extend(rows);
    let leaf = world.records[record].leaf;
    world.receiver.wake(leaf);
    let before = world.came.len();
    world.pass(10);
    assert_eq!(world.came.len(), before);
    let stats = world.receiver.stats();
    assert_eq!((stats.wrong_source, stats.wrong_destination, stats.forged), (1, 1, 1));
    assert_eq!(stats.repeated, 0);
}

#[test]
fn rows_are_too_old_by_the_databases_clock_alone() {
    let mut world = settled();
    let before = world.came.len();
    // According to both nodes' clocks, the row has just been sent.
    world.liar = Some(Box::new(|rows| rows.iter_mut().for_each(|row| row.ts -= 2001)));
    world.traffic(10, 5);
    world.pass(100);
    assert_eq!(world.came.len(), before);
    assert_eq!(world.receiver.stats().expired, 10);
    // A clock that is years off, and rows from the future, change nothing.
    world.clock_ahead = -900_000_000_000;
    world.liar = Some(Box::new(|rows| rows.iter_mut().for_each(|row| row.ts += 500_000)));
    world.check_it_works();
}

#[test]
fn notifications_of_leaves_that_are_not_there_cost_few_questions() {
    let mut world = settled();
    world.queries = 0;
    for no in 0..1000 {
        (0..50).for_each(|n| world.receiver.wake(LeafNo(1_000_000 + no * 50 + n)));
        world.pass(1);
    }
    // Each notification causes a query for a page, but epochs are queried only every few milliseconds.
    assert!(world.queries <= 1000 + 1000 / 5 + 20, "{}", world.queries);
    world.check_it_works();
}

#[test]
fn answers_without_a_question_change_nothing() {
    let world = settled();
    let now = Instant::from_nanos(0);
    let mut receiver = Receiver::new(now, STREAM, Position::default(), [0; 32]);
    let row = all_rows(&world).pop().unwrap();
    let mut out = Delivery::default();
    receiver.epochs(now, [world.accept(0, 0)], 3);
    receiver.page(now, [AgedRow { row: row.row(), age_ms: 0 }], &routes(), &mut out);
    receiver.skipped(Some(Seq(i64::MAX)));
    receiver.gone();
    assert_eq!(receiver.stats(), Default::default());
    assert_eq!(receiver.position(), Position::default());
    assert!(out.is_empty());
}

#[test]
fn more_epochs_than_are_kept_are_refused_and_counted() {
    let mut world = World::new();
    world.traffic(10_000, 1);
    assert!(world.records.len() > limits::EPOCHS_AHEAD + 3);
    let now = Instant::from_nanos(0);
    let mut receiver = Receiver::new(now, STREAM, Position::default(), [0; 32]);
    let all =
        || (0..world.records.len()).map(|record| world.accept(record, 0)).collect::<Vec<Epoch>>();
    // A starting reader accepts the first epoch and begins to read.
    let Some(Query::Epochs { limit, .. }) = receiver.query(now) else { panic!() };
    assert!(limit as usize <= limits::EPOCHS_AHEAD);
    receiver.epochs(now, [world.accept(0, 0)], 0);
    assert!(matches!(receiver.query(now), Some(Query::Page { newest_first: true, .. })));
    receiver.page(now, [], &routes(), &mut Delivery::default());
    receiver.lost();
    assert!(matches!(receiver.query(now), Some(Query::Epochs { .. })));
    receiver.epochs(now, all(), 0);
    let more = (world.records.len() - 1 - limits::EPOCHS_AHEAD) as u64;
    // The reader also refuses the epoch that it already has.
    assert_eq!(receiver.stats().epochs_refused, more + 1);
}

#[test]
fn the_genuine_row_of_a_number_that_a_page_ends_in_is_read_with_the_next_page() {
    let mut world = World::with_leaves_of(100 << 20);
    world.check_it_works();
    world.cut_receiver();
    world.traffic(310, 1);
    world.pass(20);
    let (now, position) = (world.db_now(), world.receiver.position());
    let leaf = newest_leaf(&mut world);
    let genuine = leaf.split_off(leaf.len() - 10);
    leaf.retain(|row| row.seq <= position.seq.0);
    let like = genuine[0].clone();
    let before_it = *limits::PAGE_ROWS.end() as usize - 2;
    leaf.extend((0..before_it).map(|_| forged(&like, position.seq.0 + 1, position.epoch.0, now)));
    leaf.extend((0..4).map(|_| forged(&like, like.seq, position.epoch.0, now)));
    leaf.extend(genuine);
    let before = world.came.len();
    world.connect_receiver();
    world.pass(50);
    assert_eq!(world.came.len(), before + 10);
}

#[test]
fn a_starting_reader_finds_the_newest_row_behind_forged_ones_of_its_number() {
    let mut world = settled();
    let newest = newest_leaf(&mut world).last().unwrap().clone();
    let now = world.db_now();
    newest_leaf(&mut world).extend((0..4).map(|_| forged(&newest, newest.seq, newest.epoch, now)));
    newest_leaf(&mut world).extend((0..62).map(|_| forged(&newest, i64::MAX, newest.epoch, now)));
    let before = world.came.len();
    world.restart_receiver(false);
    world.pass(100);
    assert_eq!(world.came.len(), before);
    assert_eq!(world.receiver.position().seq.0, newest.seq);
}

#[test]
fn a_gap_wider_than_the_window_is_passed_when_nothing_else_comes() {
    let mut world = settled();
    let position = world.receiver.position();
    let record = world.records.iter().position(|record| record.no == position.epoch).unwrap();
    let far = position.seq.0 + limits::SEQ_WINDOW + 10;
    let rows = world.sealed(record, far, &[packet(1, world.now)]);
    newest_leaf(&mut world).extend(rows);
    let leaf = world.records[record].leaf;
    world.receiver.wake(leaf);
    world.pass(20);
    assert_eq!(world.receiver.position(), position);
    world.pass(4500);
    assert_eq!(world.receiver.position().seq.0, far);
}
