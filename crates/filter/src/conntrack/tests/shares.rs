//! Tests that one source cannot use up the table, whatever state its flows are in.

use super::*;

const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

fn source(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    IpAddr::from([172, 16, high, low])
}

/// Opens a connection completely; returns whether the table had room.
fn open(world: &World, from: IpAddr, port: u16) -> bool {
    let (a, b) = ((from, port), (SERVER, 80));
    world.enter(&seg(SYN, 1000, 0).between(a, b)).1
        && world.enter(&seg(SYN | ACK, 5000, 1001).between(b, a)) == (COMES, true)
        && world.enter(&seg(ACK, 1001, 5001).between(a, b)) == (GOES, true)
}

/// Returns whether the connection is still known.
fn is_open(world: &World, from: IpAddr, port: u16) -> bool {
    world.look(&seg(ACK, 5001, 1001).between((SERVER, 80), (from, port))).state
        == CtState::ESTABLISHED
}

fn small(flows: usize) -> World {
    World::with(Limits { flows, ..Limits::default() })
}

#[test]
fn a_source_that_fills_the_table_with_established_flows_makes_room_itself() {
    let mut world = small(10);
    for port in 1..=10 {
        assert!(open(&world, source(1), port));
        world.wait(Duration::from_secs(1));
    }
    // The flow that has been silent longest is evicted, not the first one, which is in use.
    assert!(is_open(&world, source(1), 1));
    for other in 2..=6 {
        assert!(open(&world, source(other), 1), "{other}");
    }
    assert!((2..=6).all(|other| is_open(&world, source(other), 1)), "others keep theirs");
    let kept: Vec<_> = (1..=10).filter(|port| is_open(&world, source(1), *port)).collect();
    assert_eq!(kept, [1, 7, 8, 9, 10]);
    let stats = world.tracker.stats();
    assert_eq!((stats.flows, stats.evicted_share, stats.refused_full), (10, 5, 0));
}

#[test]
fn a_source_beyond_its_share_takes_the_place_of_its_own_flows_only() {
    let limits = Limits { flows: 1000, flows_per_source: Some(100), ..Limits::default() };
    let mut world = World::with(limits);
    for number in 0..300 {
        assert!(open(&world, source(number + 1000), 1));
    }
    for port in 1..5000 {
        open(&world, source(1), port);
        world.wait(Duration::from_millis(10));
    }
    for number in 0..300 {
        assert!(is_open(&world, source(number + 1000), 1), "{number}");
    }
    // A new source is admitted until all sources have their share.
    for number in 0..500 {
        assert!(open(&world, source(number + 3000), 1));
    }
    let of = |from| world.flows().iter().filter(|flow| flow.source.0 == from).count();
    assert_eq!((of(source(1)), world.flows().len()), (200, 1000));
    // A source within its share keeps its flows: a table full of such sources refuses others.
    for number in 0..100 {
        assert!(open(&world, source(number + 4000), 1));
    }
    let refused = (0..100).filter(|number| !open(&world, source(number + 5000), 1)).count();
    assert!((90..=100).contains(&refused), "{refused}: the share is an estimate");
    assert_eq!(world.tracker.stats().refused_full, refused as u64);
}

#[test]
fn of_ipv6_a_64_is_one_source() {
    let world = small(20);
    let at = |net: u16, host: u16| IpAddr::from([0xfd00, 0, 0, net, 0, 0, 0, host]);
    let server = at(99, 1);
    let pass = |from: IpAddr, port: u16| {
        let (a, b) = ((from, port), (server, 53));
        world.enter(&udp(a, b)).1 && world.enter(&udp(b, a)).1
    };
    for host in 1..=20 {
        assert!(pass(at(1, host), 7));
    }
    for net in 2..=11 {
        assert!(pass(at(net, 1), 7));
    }
    let nets =
        |net| world.flows().iter().filter(|f| (1..50).any(|h| f.source.0 == at(net, h))).count();
    assert_eq!((nets(1), nets(2), nets(11)), (10, 1, 1));
}

#[test]
fn a_client_is_one_source_with_all_its_addresses() {
    let limits = Limits { flows: 20, flows_per_source: Some(10), ..Limits::default() };
    let mut world = World::with(limits);
    let network = |number| IpAddr::from([172, 16, number, 0]);
    world.tracker.set_network(network(1), 24, Some("alice"));
    world.tracker.set_network(IpAddr::from([10, 8, 0, 2]), 32, Some("alice"));
    world.tracker.set_network(network(2), 24, Some("bob"));
    for host in 0..20 {
        assert!(open(&world, IpAddr::from([172, 16, 1, host]), 1));
        world.wait(Duration::from_secs(1));
    }
    // Alice's flows are evicted to make room for flows of others, and afterwards only for her own.
    for host in 0..9 {
        assert!(open(&world, IpAddr::from([172, 16, 2, host]), 1));
    }
    assert!(open(&world, IpAddr::from([10, 8, 0, 2]), 1));
    for host in 0..9 {
        assert!(is_open(&world, IpAddr::from([172, 16, 2, host]), 1), "{host}");
    }
    let of_alice = |flow: &&FlowInfo| flow.source.0.to_string().starts_with("172.16.1.");
    assert_eq!(world.flows().iter().filter(of_alice).count(), 10);
    // A flow stays charged to the client that started it, even if another client now has the address.
    world.tracker.set_network(network(1), 24, None);
    world.tracker.flush(|_| true);
    assert_eq!(world.flows(), []);
    world.tracker.set_network(network(1), 24, Some("alice"));
    for host in 0..20 {
        assert!(open(&world, IpAddr::from([172, 16, 1, host]), 1));
    }
    assert_eq!(world.tracker.stats().evicted, 10);
}

#[test]
fn a_flood_without_answers_leaves_a_source_with_many_connections_alone() {
    let world = small(1000);
    for port in 0..500 {
        assert!(open(&world, source(1), port + 1));
    }
    for number in 0..20_000u16 {
        let from = (source(number + 1000), 9);
        assert!(world.enter(&seg(SYN, 1, 0).between(from, (SERVER, 80))).1);
    }
    assert!((0..500).all(|port| is_open(&world, source(1), port + 1)));
    assert_eq!(world.tracker.stats().evicted_share, 0);
}

#[test]
fn what_a_source_waits_for_is_counted_right_when_a_connection_starts_over() {
    let limits = Limits { unanswered_per_source: 3, ..Limits::default() };
    let mut world = World::with(limits);
    // Both ends of an established connection start again, so it is unanswered once more.
    world.connect();
    for _ in 0..5 {
        assert_eq!(world.tcp(seg(SYN, 700_000, 0)), GOES);
        assert_eq!(world.tcp(seg(SYN | ACK, 800_000, 700_001).back()), COMES);
        assert_eq!(world.only().state, FlowState::SynRecv);
        assert_eq!(world.tcp(seg(ACK, 700_001, 800_001)), GOES);
    }
    assert_eq!(world.tcp(seg(SYN, 900_000, 0)), GOES);
    assert_eq!(world.tcp(seg(SYN | ACK, 910_000, 900_001).back()), COMES);
    world.wait(Duration::from_secs(3600));
    world.tracker.sweep(world.now);
    assert_eq!(world.flows(), []);
    let (a, b) = (host(false, A), (host(false, B), 53));
    let entered = (1..=9).filter(|port| world.enter(&udp((a, *port), b)).1).count();
    assert_eq!(entered, 3, "neither less nor more than there are");
}
