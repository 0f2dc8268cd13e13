use super::*;

/// Checks that a flow exists until just before the end of its time, and not after it.
fn lives(world: &mut World, seconds: u64) {
    assert_eq!(world.only().left, Duration::from_secs(seconds));
    world.wait(Duration::from_nanos(seconds * 1_000_000_000 - 1));
    assert_eq!(world.flows().len(), 1);
    world.wait(Duration::from_nanos(1));
    assert_eq!(world.flows(), []);
    let entered = world.tracker.stats().flows;
    assert_eq!(entered, 1, "not swept yet");
    world.wait(Duration::from_secs(600));
    while world.tracker.sweep(world.now) {}
    let stats = world.tracker.stats();
    assert_eq!((stats.flows, stats.expired), (0, 1));
}

#[test]
fn each_state_of_tcp_has_its_time() {
    let cases: [(u64, FlowState, &[Seg]); 9] = [
        (120, FlowState::SynSent, &[seg(SYN, 1000, 0)]),
        (60, FlowState::SynRecv, &[seg(SYN, 1000, 0), seg(SYN | ACK, 5000, 1001).back()]),
        (300, FlowState::PickedUp, &[seg(ACK, 1000, 5000)]),
        (432_000, FlowState::Established, &[]),
        (120, FlowState::FinWait, &[seg(FIN | ACK, 1001, 5001)]),
        (60, FlowState::CloseWait, &[seg(FIN | ACK, 1001, 5001), seg(ACK, 5001, 1002).back()]),
        (30, FlowState::LastAck, &[seg(FIN | ACK, 1001, 5001), seg(FIN | ACK, 5001, 1002).back()]),
        (
            120,
            FlowState::TimeWait,
            &[seg(FIN | ACK, 1001, 5001), seg(FIN | ACK, 5001, 1002).back(), seg(ACK, 1002, 5002)],
        ),
        (10, FlowState::Close, &[seg(RST, 1001, 5001)]),
    ];
    for (seconds, state, segments) in cases {
        let first = segments.first().map_or(FIN, |first| first.flags);
        let mut world = if first & SYN != 0 || state == FlowState::PickedUp {
            World::new()
        } else {
            World::connected()
        };
        for segment in segments {
            world.tcp(segment.clone());
        }
        assert_eq!(world.only().state, state);
        lives(&mut world, seconds);
    }
}

#[test]
fn a_connection_that_may_be_dead_is_not_waited_for_for_days() {
    let mut world = World::connected();
    world.tcp(seg(ACK, 1001, 5001).len(10));
    assert_eq!(world.only().left, Duration::from_secs(300), "not acknowledged");
    world.tcp(seg(ACK, 5001, 1011).back());
    assert_eq!(world.only().left, Duration::from_secs(432_000));
    for copy in 1..=3 {
        world.tcp(seg(ACK, 5001, 1011).back());
        let left = if copy < 3 { 432_000 } else { 300 };
        assert_eq!(world.only().left, Duration::from_secs(left), "copy {copy}");
    }
    world.tcp(seg(ACK, 1011, 5001));
    assert_eq!(world.only().left, Duration::from_secs(432_000));
    world.tcp(seg(ACK, 5001, 1011).back().window(0));
    lives(&mut world, 300);
}

#[test]
fn a_syn_without_an_answer_does_not_keep_its_place_by_repetition() {
    let mut world = World::new();
    world.tcp(seg(SYN, 1000, 0));
    for _ in 0..2 {
        world.wait(Duration::from_secs(50));
        world.tcp(seg(SYN, 1000, 0));
    }
    assert_eq!(world.only().left, Duration::from_secs(20));
}

#[test]
fn udp_lives_longer_once_both_have_talked_for_a_while() {
    let (a, b) = ((host(false, A), 1000), (host(false, B), 53));
    let mut world = World::new();
    assert_eq!(world.pass(&udp(a, b)), NEW);
    assert_eq!(world.pass(&udp(a, b)), NEW);
    assert_eq!(world.only().state, FlowState::Unanswered);
    assert_eq!(world.pass(&udp(b, a)), COMES);
    assert_eq!(world.pass(&udp(a, b)), GOES);
    assert_eq!((world.only().state, world.only().assured), (FlowState::Answered, false));
    assert_eq!(world.only().left, Duration::from_secs(30));
    world.wait(Duration::from_secs(3));
    world.pass(&udp(a, b));
    assert_eq!((world.only().state, world.only().assured), (FlowState::Stream, true));
    lives(&mut world, 120);
}

#[test]
fn udp_without_an_answer_icmp_and_all_else_have_their_times() {
    let (a, b) = (host(true, A), host(true, B));
    let mut world = World::new();
    world.pass(&udp((a, 1000), (b, 53)));
    lives(&mut world, 30);
    let mut world = World::new();
    world.pass(&icmp(a, b, (128, 0), 7 << 16, b"ping"));
    lives(&mut world, 30);
    let mut world = World::new();
    world.pass(&packet(a, b, 47, vec![0; 8], None));
    lives(&mut world, 600);
}

#[test]
fn a_packet_of_a_flow_whose_time_is_over_starts_a_new_one() {
    let (a, b) = ((host(false, A), 1000), (host(false, B), 53));
    let mut world = World::new();
    world.pass(&udp(a, b));
    world.wait(Duration::from_secs(30));
    assert_eq!(world.pass(&udp(b, a)), NEW);
    assert_eq!(world.only().source, b);
    assert_eq!(world.tracker.stats().expired, 1);
}

#[test]
fn bursts_sweep_without_being_told() {
    let mut world = World::new();
    for port in 0..200 {
        world.pass(&udp((host(false, A), port), (host(false, B), 53)));
    }
    for _ in 0..10 {
        world.wait(Duration::from_secs(40));
        world.pass(&udp((host(false, C), 1), (host(false, B), 53)));
    }
    assert_eq!(world.tracker.stats().flows, 1);
}
