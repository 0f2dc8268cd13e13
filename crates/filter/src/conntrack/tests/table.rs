use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn small(flows: usize) -> World {
    World::with(Limits { flows, ..Limits::default() })
}

/// Returns a source address and port for each number.
fn client(number: u32) -> (IpAddr, u16) {
    let [_, a, b, c] = (number / 50_000).to_be_bytes();
    (IpAddr::from([172, a + 16, b, c]), (number % 50_000) as u16 + 1000)
}

const SERVER: (IpAddr, u16) = (IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 80);

fn syn(number: u32) -> Vec<u8> {
    seg(SYN, number, 0).between(client(number), SERVER)
}

/// Opens a connection completely.
fn open(world: &World, number: u32) {
    let (from, to) = (client(number), SERVER);
    assert!(world.enter(&seg(SYN, 1000, 0).between(from, to)).1);
    assert_eq!(world.pass(&seg(SYN | ACK, 5000, 1001).between(to, from)), COMES);
    assert_eq!(world.pass(&seg(ACK, 1001, 5001).between(from, to)), GOES);
}

#[test]
fn a_record_is_three_cache_lines() {
    assert_eq!(size_of::<flow::Flow>(), 192);
}

#[test]
fn a_flood_of_syns_does_not_end_what_is_established() {
    let mut world = small(1000);
    for number in 0..500 {
        open(&world, number);
    }
    for number in 10_000..15_000 {
        assert!(world.enter(&syn(number)).1, "the flood fits by giving up the flood's oldest");
        if number % 100 == 0 {
            world.wait(Duration::from_millis(10));
        }
    }
    let stats = world.tracker.stats();
    assert_eq!((stats.flows, stats.evicted, stats.refused_full), (1000, 4500, 0));
    for number in 0..500 {
        let ack = seg(ACK, 1001, 5001).between(client(number), SERVER);
        assert_eq!(world.pass(&ack), GOES);
    }
    // A client that answers in time succeeds in the middle of the flood.
    world.enter(&syn(20_000));
    for number in 30_000..30_400 {
        world.enter(&syn(number));
    }
    let answer = seg(SYN | ACK, 5000, 20_001).between(SERVER, client(20_000));
    assert_eq!(world.pass(&answer), COMES);
}

#[test]
fn a_table_full_of_established_flows_refuses_and_counts() {
    let mut world = small(10);
    // Each flow has its own source: none exceeds its share.
    let at = |number: u8| (IpAddr::from([172, 17, 0, number]), 1000);
    let open = |world: &World, number| {
        let (from, to) = (at(number), SERVER);
        assert!(world.enter(&seg(SYN, 1000, 0).between(from, to)).1);
        assert_eq!(world.pass(&seg(SYN | ACK, 5000, 1001).between(to, from)), COMES);
        assert_eq!(world.pass(&seg(ACK, 1001, 5001).between(from, to)), GOES);
    };
    let syn = |number| seg(SYN, 1000, 0).between(at(number), SERVER);
    let ack = |number| seg(ACK, 1001, 5001).between(at(number), SERVER);
    for number in 0..10 {
        open(&world, number);
    }
    assert_eq!(world.enter(&syn(50)), (NEW, false));
    assert_eq!(world.enter(&syn(51)), (NEW, false));
    let stats = world.tracker.stats();
    assert_eq!((stats.flows, stats.refused_full, stats.evicted), (10, 2, 0));
    assert_eq!(world.pass(&ack(3)), GOES);
    // Flows that were silent for hours are evicted; the active one stays.
    world.wait(Timeouts::IDLE - Duration::from_secs(1));
    world.pass(&ack(0));
    assert_eq!(world.enter(&syn(52)), (NEW, false));
    world.wait(Duration::from_secs(1));
    for number in 60..69 {
        open(&world, number);
    }
    assert_eq!(world.enter(&syn(53)), (NEW, false));
    assert_eq!(world.pass(&ack(0)), GOES);
    assert_eq!(world.tracker.stats().evicted, 9);
}

#[test]
fn what_is_over_goes_before_what_waits_for_an_answer() {
    let world = small(3);
    open(&world, 1);
    world.pass(&seg(RST, 1001, 5001).between(client(1), SERVER));
    world.enter(&syn(2));
    open(&world, 3);
    world.enter(&syn(4));
    let mut states: Vec<_> = world.flows().iter().map(|flow| flow.state).collect();
    states.sort_by_key(|state| *state as u8);
    assert_eq!(states, [FlowState::SynSent, FlowState::SynSent, FlowState::Established]);
    world.enter(&syn(5));
    assert_eq!(world.tracker.stats().evicted, 2);
    let left: Vec<_> = world.flows().iter().map(|flow| flow.source).collect();
    assert!(!left.contains(&client(2)), "the oldest of those without an answer");
}

#[test]
fn the_kind_that_there_is_most_of_makes_room() {
    let world = small(100);
    for number in 0..10 {
        world.enter(&syn(number));
    }
    for number in 0..1000 {
        world.enter(&udp(client(number), SERVER));
    }
    let states = world.tracker.stats().states;
    assert_eq!(states, [(FlowState::SynSent, 10), (FlowState::Unanswered, 90)]);
}

#[test]
fn a_source_has_a_bound_of_unanswered_flows_of_its_own() {
    let world = World::with(Limits { unanswered_per_source: 5, ..Limits::default() });
    let v6 = |low: u16, port| (IpAddr::from([0xfd00, 0, 0, 9, 0, 0, 0, low]), port);
    let (a, b) = (host(false, A), (host(false, B), 53));
    for port in 1..=5 {
        assert!(world.enter(&udp((a, port), b)).1);
        assert!(world.enter(&udp(v6(port, port), (host(true, B), 53))).1);
    }
    assert!(!world.enter(&udp((a, 6), b)).1);
    assert!(!world.enter(&udp(v6(6, 6), (host(true, B), 53))).1, "a /64 is one source");
    assert_eq!(world.tracker.stats().refused_source, 2);
    assert!(world.enter(&udp((host(false, C), 6), b)).1, "another one");
    // An answer makes room; so does the end of a flow.
    world.pass(&udp(b, (a, 1)));
    assert!(world.enter(&udp((a, 6), b)).1);
    assert!(!world.enter(&udp((a, 7), b)).1);
    let mut world = world;
    world.wait(Duration::from_secs(60));
    world.tracker.sweep(world.now);
    for port in 10..15 {
        assert!(world.enter(&udp((a, port), b)).1);
    }
    assert!(!world.enter(&udp((a, 15), b)).1);
}

#[test]
fn a_flood_from_forged_addresses_does_not_use_up_everybodys_bound() {
    let limits = Limits { unanswered_per_source: 4, flows: 50_000, ..Limits::default() };
    let world = World::with(limits);
    let mut refused = 0;
    for number in 0..50_000u32 {
        let [_, a, b, c] = number.to_be_bytes();
        let forged = (IpAddr::from([100, a, b, c]), 1000);
        refused += u32::from(!world.enter(&udp(forged, SERVER)).1);
    }
    assert!(refused < 500, "{refused} of 50,000 sources with one flow each");
}

#[test]
fn memos_are_kept_per_direction_and_go_with_the_flow() {
    let world = World::connected();
    let bytes = [seg(ACK, 1001, 5001).bytes(), seg(ACK, 5001, 1001).back().bytes()];
    let verdict_cache = |which: usize, set: Option<u32>| {
        let bytes = &bytes[which];
        let packet = Packet::parse(bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
        let mut burst = world.tracker.burst(world.now);
        let tracked = burst.look(&packet, Crossing::Nowhere.into());
        let verdict_cache = burst.verdict_cache(&tracked).unwrap();
        verdict_cache.generation = set.unwrap_or(verdict_cache.generation);
        verdict_cache.generation
    };
    verdict_cache(0, Some(1));
    verdict_cache(1, Some(2));
    assert_eq!((verdict_cache(0, None), verdict_cache(1, None)), (1, 2));

    let packet = Packet::parse(&bytes[0], Layer::Ip, None, &VnetHeader::default()).unwrap();
    let mut burst = world.tracker.burst(world.now);
    let stale = burst.look(&packet, Crossing::Nowhere.into());
    drop(burst);
    world.tcp(seg(RST, 1001, 5001));
    world.tcp(seg(SYN, 9_000_000, 0));
    let other = world.look(&seg(SYN, 9_000_000, 0).bytes());
    let mut burst = world.tracker.burst(world.now);
    let generation = burst.verdict_cache(&other).unwrap().generation;
    assert_eq!(generation, 0, "a new flow has none");
    drop(burst);
    world.tcp(seg(RST | ACK, 0, 9_000_001).back());
    assert_eq!(world.flows(), []);
    assert!(world.tracker.burst(world.now).verdict_cache(&stale).is_none());
}

#[test]
fn shards_share_flows_and_bounds() {
    let world = World::with(Limits { flows: 4000, shards: 4, ..Limits::default() });
    for number in 0..2000 {
        open(&world, number);
    }
    assert_eq!(world.flows().len(), 2000);
    let packet_of = |number| seg(ACK, 5001, 1001).between(SERVER, client(number));
    let mut burst = world.tracker.burst(world.now);
    for number in 0..2000 {
        let bytes = packet_of(number);
        let packet = Packet::parse(&bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
        assert_eq!(burst.look(&packet, Crossing::Nowhere.into()).state, CtState::ESTABLISHED);
    }
    drop(burst);
    let mut refused = 0;
    for number in 2000..6000 {
        refused += u32::from(!world.enter(&syn(number)).1);
    }
    assert_eq!(refused, 0);
    assert_eq!(world.tracker.stats().flows, 4000);
}

#[test]
fn a_hundred_thousand_flows_take_what_was_promised_and_all_are_found() {
    const FLOWS: u32 = 100_000;
    let world = World::with(Limits {
        flows: FLOWS as usize,
        unanswered_per_source: usize::MAX,
        ..Limits::default()
    });
    let empty = world.tracker.stats().bytes;
    assert!(empty < 80 << 10, "{empty} bytes before the first flow");
    let mut bytes = udp(client(0), SERVER);
    let mut burst = world.tracker.burst(world.now);
    let mut view = |number: u32, confirm: bool| {
        // Only the address and port change; the device guarantees the checksum.
        bytes[12..16].copy_from_slice(&(0x0b00_0000 + number).to_be_bytes());
        crate::testing::fix_v4(&mut bytes);
        bytes[26..28].fill(0);
        let packet = Packet::parse(&bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
        let tracked = burst.look(&packet, Crossing::Nowhere.into());
        assert!(!confirm || burst.confirm(&tracked, &packet));
        tracked
    };
    for number in 0..FLOWS {
        view(number, true);
    }
    for number in 0..FLOWS {
        let tracked = view(number, false);
        assert!(matches!(tracked.place, Place::Known { .. }), "{number}");
    }
    drop(burst);
    let stats = world.tracker.stats();
    assert_eq!(stats.flows, u64::from(FLOWS));
    let each = stats.bytes / u64::from(FLOWS);
    assert!(each <= 210, "{each} bytes for each flow");
}

#[derive(Clone, Debug)]
enum Step {
    Udp { from: u8, to: u8, port: u8 },
    Wait(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6u8, 0..6u8, 0..4u8).prop_map(|(from, to, port)| Step::Udp { from, to, port }),
        1 => (0..40u8).prop_map(Step::Wait),
    ]
}

proptest! {
    /// The table behaves like a map with keys in both directions: growth, removal and sweeping neither lose flows nor
    /// mix them up.
    #[test]
    fn it_is_a_map(steps in prop::collection::vec(step(), 1..300), v6: bool, seed: [u8; 16]) {
        type Ends = [(u8, u8); 2];
        let mut world = World { tracker: Tracker::new(Limits::default(), seed), ..World::new() };
        let mut naive: HashMap<Ends, (bool, Nanos, Nanos, bool)> = HashMap::new();
        for step in steps {
            let (from, to, port) = match step {
                Step::Wait(seconds) => {
                    world.wait(Duration::from_secs(seconds.into()));
                    world.tracker.sweep(world.now);
                    continue;
                }
                Step::Udp { from, to, port } => (from, to, port),
            };
            // Some to themselves, some with equal ports.
            let ends = [(from, port), (to, 1)];
            let bytes =
                udp((host(v6, from), port.into()), (host(v6, to), 1));
            let back = [ends[1], ends[0]];
            let (now, view) = (world.now, world.pass(&bytes));
            naive.retain(|_, (_, _, until, _)| *until > now);
            let (key, expected) = if naive.contains_key(&ends) || !naive.contains_key(&back) {
                let answered = naive.get(&ends).is_some_and(|(answered, ..)| *answered);
                (ends, if answered { GOES } else { NEW })
            } else {
                (back, COMES)
            };
            prop_assert_eq!(view, expected);
            let flow = naive.entry(key).or_insert((false, now, now, false));
            flow.3 |= flow.0 && now.since(flow.1) > Duration::from_secs(2);
            flow.0 |= expected == COMES;
            flow.2 = now.after(Duration::from_secs(if flow.3 { 120 } else { 30 }));
        }
        naive.retain(|_, (_, _, until, _)| *until > world.now);
        prop_assert_eq!(world.flows().len(), naive.len());
    }
}

#[test]
fn threads_share_flows_whichever_way_their_packets_come() {
    let world = World::with(Limits { shards: 3, ..Limits::default() });
    for number in 0..300 {
        open(&world, number);
    }
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let world = &world;
            scope.spawn(move || {
                for round in 0..5u32 {
                    let mut burst = world.tracker.burst(world.now);
                    for number in 0..300u32 {
                        let number = (number * 7 + thread * 50 + round) % 300;
                        let (a, b) = (client(number), SERVER);
                        let bytes = if thread % 2 == 0 {
                            seg(ACK, 1001, 5001).between(a, b)
                        } else {
                            seg(ACK, 5001, 1001).between(b, a)
                        };
                        let vnet = VnetHeader::default();
                        let packet = Packet::parse(&bytes, Layer::Ip, None, &vnet).unwrap();
                        assert_eq!(
                            burst.look(&packet, Crossing::Nowhere.into()).state,
                            CtState::ESTABLISHED
                        );
                    }
                }
            });
        }
    });
    let packets: u64 = world.flows().iter().flat_map(|flow| flow.packets).sum();
    assert_eq!(packets, 300 * 3 + 4 * 5 * 300);
    assert_eq!(world.tracker.stats().invalid, []);
}
