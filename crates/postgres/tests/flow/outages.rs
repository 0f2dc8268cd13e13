//! Failures without an attacker.

use crate::world::{CommitOutcome, World};

#[test]
fn everything_arrives_in_order_when_nothing_fails() {
    let mut world = World::new();
    world.traffic(3000, 1);
    world.pass(1000);
    world.check();
    assert_eq!(world.came, (1..=3000).collect::<Vec<_>>());
    let stats = world.sender.stats();
    assert_eq!(
        (stats.packets, stats.dropped.full + stats.dropped.codel + stats.dropped.old),
        (3000, 0)
    );
    assert!(stats.epochs > 3, "leaves are followed by others when they are full");
    assert_eq!(world.receiver.stats().packets, 3000);
    assert_eq!(world.receiver.stats().missing, 0);
    assert!(world.receiver.stats().lag_ms.unwrap() <= 10, "{:?}", world.receiver.stats());
    // A packet waits for at most two commits, the one in flight and its own.
    assert!(world.waits.iter().all(|wait| *wait <= 10), "{:?}", world.waits.iter().max());
}

#[test]
fn a_lost_notification_costs_a_poll_and_no_packet() {
    let mut world = World::new();
    world.check_it_works();
    world.lose_notifications = true;
    world.waits.clear();
    world.traffic(2000, 1);
    world.pass(1500);
    world.check();
    assert_eq!(world.came.len(), 2050);
    assert!(world.waits.iter().all(|wait| *wait <= 140), "{:?}", world.waits.iter().max());
    // After a pause, in which the count is queried once a second, packets in a new leaf are found
    // too.
    world.pass(70_000);
    world.waits.clear();
    world.traffic(20, 5);
    world.pass(2000);
    assert_eq!(world.came.len(), 2070);
    assert!(world.waits.iter().all(|wait| *wait <= 1260), "{:?}", world.waits.iter().max());
}

#[test]
fn an_idle_stream_is_not_asked_for_and_its_node_asks_one_question_a_second() {
    let mut world = World::new();
    world.check_it_works();
    world.pass(5000);
    world.queries = 0;
    world.pass(100_000);
    // The count is queried every 0.75 s to 1.25 s.
    assert!((80..=135).contains(&world.queries), "{}", world.queries);
}

#[test]
fn a_batch_in_doubt_is_neither_repeated_nor_sent_again() {
    for outcome in [CommitOutcome::Present, CommitOutcome::Absent] {
        let mut world = World::new();
        world.check_it_works();
        world.traffic(5, 0);
        world.pass(1);
        world.cut_sender(outcome);
        world.pass(100);
        world.connect_sender();
        world.pass(200);
        // The first packet was in flight, and the others were waiting.
        let expected = if outcome == CommitOutcome::Present { 55 } else { 54 };
        assert_eq!(world.came.len(), expected, "{outcome:?}");
        assert_eq!(world.sender.stats().in_doubt, 1);
        world.check_it_works();
    }
}

#[test]
fn ten_minutes_without_a_database_cost_memory_within_bounds_and_resume_at_once() {
    let mut world = World::new();
    world.check_it_works();
    world.cut_sender(CommitOutcome::Absent);
    world.cut_receiver();
    for _ in 0..600 {
        world.traffic(100, 10);
        world.check();
    }
    let dropped = world.sender.stats().dropped;
    assert!(dropped.full + dropped.old + dropped.codel > 0);
    world.connect_sender();
    world.connect_receiver();
    world.waits.clear();
    world.check_it_works_after_backlog();
}

#[test]
fn a_reader_that_was_away_skips_what_is_too_old_without_reading_it() {
    let mut world = World::new();
    world.check_it_works();
    world.cut_receiver();
    world.traffic(20_000, 10);
    world.connect_receiver();
    world.queries = 0;
    let before = world.came.len();
    world.pass(50);
    world.check();
    assert!(world.queries < 40, "{} queries for a backlog", world.queries);
    // The packets younger than two seconds arrived.
    assert!((190..=210).contains(&(world.came.len() - before)), "{}", world.came.len() - before);
    world.check_it_works();
    // Each row was delivered or counted, including the rows of epochs that were skipped entirely.
    let stats = world.receiver.stats();
    let accounted = stats.packets + stats.expired + stats.skipped;
    assert_eq!(accounted, world.sender.stats().packets, "{stats:?}");
    assert!(stats.skipped > 19_000, "{stats:?}");
}

#[test]
fn a_backlog_within_one_leaf_is_skipped_too() {
    let mut world = World::with_leaves_of(100 << 20);
    world.check_it_works();
    world.cut_receiver();
    world.traffic(2500, 4);
    world.connect_receiver();
    let before = world.came.len();
    let mut lag = 0;
    for _ in 0..100 {
        world.pass(1);
        lag = lag.max(world.receiver.stats().lag_ms.unwrap_or(0));
    }
    assert!(lag > 1000, "{lag}");
    world.check();
    assert!(world.came.len() - before > 450);
    let stats = world.receiver.stats();
    assert!(stats.skipped > 1000, "{stats:?}");
    world.check_it_works();
}

#[test]
fn restarts_of_either_process_repeat_nothing() {
    for kept in [false, true] {
        for outcome in [CommitOutcome::Present, CommitOutcome::Absent] {
            let mut world = World::new();
            world.check_it_works();
            for round in 0..5 {
                world.traffic(20, 1);
                if round % 2 == 0 {
                    world.restart_sender(outcome, kept);
                } else {
                    world.restart_receiver(kept);
                }
                world.pass(300);
                world.check();
                world.check_it_works();
            }
        }
    }
}

#[test]
fn a_starting_reader_delivers_nothing_that_was_there_before() {
    let mut world = World::new();
    world.check_it_works();
    world.cut_receiver();
    world.traffic(50, 2);
    world.pass(20);
    let before = world.came.len();
    world.restart_receiver(false);
    world.pass(100);
    assert_eq!(world.came.len(), before);
    world.check_it_works();
}

#[test]
fn a_database_restored_from_a_backup_goes_on_with_new_numbers() {
    for (sender_restarts, receiver_restarts, kept) in [
        (false, false, true),
        (true, false, true),
        (true, false, false),
        (false, true, true),
        (true, true, true),
    ] {
        // Less than one leaf fills per second, so epoch numbers do not run ahead of the clock.
        let mut world = World::with_leaves_of(2_000_000);
        world.check_it_works();
        let backup = world.db.clone();
        world.traffic(2000, 2);
        world.pass(100);
        world.cut_sender(CommitOutcome::Absent);
        world.cut_receiver();
        world.db = backup;
        world.pass(500);
        if sender_restarts {
            world.restart_sender(CommitOutcome::Absent, kept);
        }
        world.connect_sender();
        world.connect_receiver();
        if receiver_restarts {
            world.restart_receiver(true);
        }
        world.traffic(20, 2);
        world.pass(1500);
        world.check();
        world.check_it_works();
    }
}

#[test]
fn a_leaf_dropped_under_the_reader_ends_nothing() {
    let mut world = World::new();
    world.check_it_works();
    world.cut_receiver();
    world.traffic(1000, 1);
    let newest = *world.db.leaves.last_key_value().unwrap().0;
    assert!(newest > 2);
    (1..newest).for_each(|no| world.db.drop_leaf(no));
    world.connect_receiver();
    world.pass(300);
    world.check();
    world.check_it_works();
}

#[test]
fn a_newest_leaf_that_was_dropped_is_followed_by_another() {
    let mut world = World::new();
    world.check_it_works();
    world.cut_sender(CommitOutcome::Absent);
    let newest = *world.db.leaves.last_key_value().unwrap().0;
    world.db.drop_leaf(newest);
    world.pass(3000);
    world.connect_sender();
    world.send();
    world.pass(3000);
    world.check_it_works();
    assert_eq!(world.db.leaves.last_key_value().unwrap().0, &(newest + 1));
}

#[test]
fn a_crash_that_empties_an_unlogged_leaf_gives_no_number_twice() {
    let mut world = World::new();
    world.check_it_works();
    world.cut_sender(CommitOutcome::Absent);
    world.cut_receiver();
    world.db.leaves.values_mut().flatten().for_each(Vec::clear);
    world.connect_sender();
    world.connect_receiver();
    world.check_it_works();
    world.restart_sender(CommitOutcome::Absent, false);
    world.db.leaves.values_mut().flatten().for_each(Vec::clear);
    world.check_it_works();
}

#[test]
fn a_sender_whose_clock_is_wrong_is_still_heard() {
    let mut world = World::new();
    world.check_it_works();
    for wrong_by in [-1_000_000_000, 3_000_000_000, 0] {
        world.wrong_by = wrong_by;
        world.restart_sender(CommitOutcome::Absent, false);
        world.check_it_works();
    }
}

#[test]
fn a_slow_commit_gathers_more_and_a_silence_leaves_a_leaf_behind_only_once() {
    let mut world = World::new();
    world.latency = 60;
    world.traffic(1000, 1);
    world.pass(1000);
    assert_eq!(world.came.len(), 1000);
    assert!(world.sender.stats().batches < 30, "{}", world.sender.stats().batches);
    world.pass(100_000);
    let leaves = world.db.leaves.len();
    world.pass(600_000);
    assert_eq!(world.db.leaves.len(), leaves, "an empty leaf has no age");
}

#[test]
fn a_reader_that_starts_at_a_leaf_that_is_gone_misses_nothing_of_the_next() {
    let mut world = World::new();
    world.check_it_works();
    world.cut_sender(CommitOutcome::Present);
    world.db.drop_leaf(1);
    world.restart_receiver(true);
    world.pass(3000);
    world.connect_sender();
    world.check_it_works();
}

#[test]
fn the_first_packet_of_a_stream_that_never_was_arrives() {
    let mut world = World::new();
    world.pass(3000);
    world.lose_notifications = true;
    world.send();
    world.pass(1300);
    assert_eq!(world.came, [1]);
}

#[test]
fn an_ended_leaf_is_read_to_its_end_before_the_next() {
    let mut world = World::with_leaves_of(1_000_000);
    world.check_it_works();
    world.cut_receiver();
    // These rows are young enough to be delivered, and they fill several leaves with several pages
    // each.
    for _ in 0..900 {
        world.send();
        world.send();
        world.send();
        world.pass(2);
    }
    assert!(world.db.leaves.len() > 1);
    world.connect_receiver();
    world.pass(150);
    world.check();
    assert_eq!(world.came.len() as u64, world.next_id - 1);
}

#[test]
fn a_change_of_settings_ends_the_epochs_and_loses_no_packet() {
    let mut world = World::with_leaves_of(100_000_000);
    world.traffic(50, 1);
    let before = world.records.len();
    // This works while a batch is in flight, too.
    world.renew(false);
    world.traffic(50, 1);
    world.pass(200);
    let records = &world.records;
    assert_eq!(records.len(), before + 1);
    assert_eq!(records.last().unwrap().leaf, records[before - 1].leaf);
    world.renew(true);
    world.traffic(50, 1);
    world.pass(200);
    let records = &world.records;
    assert_eq!(records.len(), before + 2);
    assert_eq!(records.last().unwrap().leaf.0, records[before].leaf.0 + 1);
    assert_eq!(world.came, (1..world.next_id).collect::<Vec<_>>());
    // A silent stream opens no epoch, except for a new leaf.
    world.renew(false);
    world.pass(2000);
    assert_eq!(world.records.len(), before + 2);
    world.renew(true);
    world.pass(2000);
    assert_eq!(world.records.len(), before + 3);
}
