use proptest::prelude::*;

use super::*;

const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);

const NO_DROPS: CodelParams =
    CodelParams { target: Duration::from_secs(60), interval: Duration::from_secs(60) };

fn ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn queues() -> Queues {
    let mut queues = Queues::new();
    queues.add(A);
    queues.add(B);
    queues
}

/// Returns the first four bytes of each packet that is not dropped.
fn take(queues: &mut Queues, now: Instant, stream: StreamId, params: CodelParams) -> Option<u32> {
    queues.drop_expired(now, stream, params)?;
    let waiting = queues.pop(stream).unwrap();
    let id = u32::from_be_bytes(waiting.bytes[..4].try_into().unwrap());
    queues.recycle(waiting);
    Some(id)
}

fn put(queues: &mut Queues, now: Instant, stream: StreamId, id: u32, len: usize) {
    let mut packet = vec![0; len];
    packet[..4].copy_from_slice(&id.to_be_bytes());
    queues.push(now, stream, VnetHeader::default(), &packet);
}

#[test]
fn a_full_queue_loses_its_oldest_and_takes_nothing_from_a_shorter_one() {
    let mut queues = queues();
    (0..10).for_each(|id| put(&mut queues, ms(0), B, id, 1000));
    (0..1000).for_each(|id| put(&mut queues, ms(1), A, id, 60_000));
    assert!(queues.memory() <= QUEUE_BYTES);
    let kept = std::iter::from_fn(|| take(&mut queues, ms(1), A, NO_DROPS)).collect::<Vec<_>>();
    assert_eq!(kept.len() as u64 + queues.dropped.full, 1000);
    assert!(kept.len() > 100);
    assert_eq!(kept, (1000 - kept.len() as u32..1000).collect::<Vec<_>>(), "the newest are kept");
    let others = std::iter::from_fn(|| take(&mut queues, ms(1), B, NO_DROPS)).collect::<Vec<_>>();
    assert_eq!(others, (0..10).collect::<Vec<_>>());
}

#[test]
fn small_packets_take_little_and_give_way_to_large_ones() {
    let mut queues = queues();
    (0..30_000).for_each(|id| put(&mut queues, ms(0), A, id, 60));
    assert_eq!(queues.dropped.full, 0);
    for id in 0..200 {
        put(&mut queues, ms(0), B, id, 60_000);
        assert!(queues.memory() <= QUEUE_BYTES);
    }
    assert!(queues.dropped.full > 10_000);
    assert!(take(&mut queues, ms(0), A, NO_DROPS).is_some(), "neither has all of it");
}

#[test]
fn a_warm_queue_allocates_nothing() {
    let mut queues = queues();
    let round = |queues: &mut Queues| {
        (0..50).for_each(|id| put(queues, ms(0), A, id, 20_000));
        let first = queues.flows[&A].waiting[0].bytes.as_ptr();
        while take(queues, ms(0), A, NO_DROPS).is_some() {}
        first
    };
    let pointers: std::collections::BTreeSet<_> = (0..100).map(|_| round(&mut queues)).collect();
    assert!(pointers.len() <= 50, "the same buffers again");
    assert_eq!(queues.memory(), 50 * CLASSES[3]);
}

#[test]
fn packets_that_waited_longer_than_anybody_would_deliver_them_go() {
    let mut queues = queues();
    put(&mut queues, ms(0), A, 1, 100);
    put(&mut queues, ms(1), A, 2, 100);
    // Both a caller that takes packets and one that only checks the queue drop them.
    let mut other = queues_with_two();
    assert_eq!(take(&mut queues, ms(EXPIRED_MS + 1), A, NO_DROPS), Some(2));
    assert_eq!(queues.dropped.old, 1);
    other.age(ms(EXPIRED_MS + 2));
    assert_eq!(other.dropped.old, 2);
    assert!(!other.is_waiting(A));
}

fn queues_with_two() -> Queues {
    let mut queues = queues();
    put(&mut queues, ms(0), A, 1, 100);
    put(&mut queues, ms(1), A, 2, 100);
    queues
}

#[test]
fn what_no_super_packet_is_and_what_has_no_queue_is_counted() {
    let mut queues = queues();
    put(&mut queues, ms(0), A, 1, SUPER_PACKET + 1);
    put(&mut queues, ms(0), A, 1, SUPER_PACKET);
    put(&mut queues, ms(0), StreamId(9), 1, 100);
    queues.remove(A);
    queues.remove(A);
    let expected = DropCounts { malformed: 1, no_route: 1, closed: 1, ..DropCounts::default() };
    assert_eq!(queues.dropped, expected);
    assert_eq!(queues.memory(), CLASSES[3], "kept for the next");
}

/// Sends and receives one packet each millisecond through a queue of `standing` ms.
fn standing(
    queues: &mut Queues,
    from: u64,
    to: u64,
    standing: u64,
    params: CodelParams,
) -> Vec<u64> {
    let mut dropped = Vec::new();
    for now in from..to {
        put(queues, ms(now), A, now as u32, 60_000);
        // Except for drops, as many packets leave as arrive.
        if now >= from + standing {
            let before = queues.dropped.codel;
            take(queues, ms(now), A, params);
            dropped.extend((before..queues.dropped.codel).map(|_| now));
        }
    }
    dropped
}

#[test]
fn a_queue_that_stands_is_shortened_faster_and_faster_until_it_is_short() {
    let params = CodelParams::for_commits_of(Duration::from_millis(1));
    assert_eq!(
        params,
        CodelParams { target: Duration::from_millis(5), interval: Duration::from_millis(100) }
    );
    let mut queues = queues();
    let dropped = standing(&mut queues, 0, 1000, 30, params);
    // The first drop is after an interval above target. The next ones follow the square root law.
    assert_eq!(dropped[0], 30 + 100);
    assert_eq!(dropped[1] - dropped[0], 100);
    assert!((70..=71).contains(&(dropped[2] - dropped[1])), "{dropped:?}");
    assert!((57..=58).contains(&(dropped[3] - dropped[2])), "{dropped:?}");
    assert!(queues.flows[&A].waiting.len() < 30);
}

#[test]
fn a_short_wait_or_a_last_packet_is_never_shortened() {
    let params = CodelParams::for_commits_of(Duration::ZERO);
    let mut short = queues();
    assert!(standing(&mut short, 0, 3000, 4, params).is_empty());
    // A single super-packet with no packets behind it is not dropped, however late it is.
    let mut last = queues();
    for now in (0..100).map(|n| n * 1000) {
        put(&mut last, ms(now), A, 1, 60_000);
        assert!(take(&mut last, ms(now + 900), A, params).is_some());
    }
}

#[test]
fn slow_commits_are_waited_for() {
    let params = CodelParams::for_commits_of(Duration::from_millis(40));
    assert_eq!(params.target, Duration::from_millis(80));
    assert!(standing(&mut queues(), 0, 1000, 70, params).is_empty());
    assert!(!standing(&mut queues(), 0, 1000, 90, params).is_empty());
}

#[test]
fn a_packet_that_did_not_fit_is_not_judged_again() {
    let params = CodelParams::for_commits_of(Duration::ZERO);
    let mut queues = queues();
    (0..50).for_each(|id| put(&mut queues, ms(0), A, id, 60_000));
    queues.drop_expired(ms(50), A, params).unwrap();
    // Checking repeatedly while the batch is in flight has the same effect as checking once.
    (50..1000).for_each(|now| _ = queues.drop_expired(ms(now), A, params).unwrap());
    assert_eq!(queues.dropped.codel, 0);
}

proptest! {
    #[test]
    fn every_packet_is_taken_or_counted_and_memory_is_bounded(
        steps in proptest::collection::vec((0..3_u8, 4..SUPER_PACKET, 0..40_u64), 1..600),
    ) {
        let mut queues = queues();
        let (mut now, mut pushed, mut taken) = (0, 0, 0);
        for (what, len, later) in steps {
            now += later;
            let stream = if len % 3 == 0 { B } else { A };
            if what == 0 {
                let params = CodelParams::for_commits_of(Duration::from_millis(3));
                taken += u64::from(take(&mut queues, ms(now), stream, params).is_some());
            } else {
                put(&mut queues, ms(now), stream, 0, len);
                pushed += 1;
            }
            prop_assert!(queues.memory() <= QUEUE_BYTES);
        }
        let waiting = queues.flows.values().map(|flow| flow.waiting.len() as u64).sum::<u64>();
        let DropCounts { full, codel, old, .. } = queues.dropped;
        prop_assert_eq!(pushed, taken + waiting + full + codel + old);
        let lent: usize = queues.flows.values().map(|flow| flow.memory).sum();
        let free: usize = queues.pool.free.iter().zip(CLASSES).map(|(free, size)| free.len() * size).sum();
        prop_assert_eq!(queues.memory(), lent + free);
    }
}
