//! Tests that flows continue in another process.

use super::*;

/// Returns the world of the next process, which has another seed.
fn next_process(world: &World, limits: Limits) -> (World, Resumed) {
    let text = serde_json::to_vec(&world.tracker.save(world.now)).unwrap();
    let tracker = Tracker::new(limits, [9; 16]);
    let resumed = tracker.resume(serde_json::from_slice(&text).unwrap(), world.now);
    (World { tracker, now: world.now }, resumed)
}

/// Limits with which no connection is picked up in the middle.
fn strict(shards: usize) -> Limits {
    Limits { loose: false, shards, ..Limits::default() }
}

fn query(port: u16) -> Vec<u8> {
    udp((host(false, A), port), (host(false, B), 53))
}

#[test]
fn a_connection_continues_where_none_is_picked_up_in_the_middle() {
    let world = World::with(strict(1));
    world.connect();
    world.pass(&query(9));
    let (next, resumed) = next_process(&world, strict(3));
    assert_eq!(resumed, Resumed { continued: 2, left_out: 0 });
    assert_eq!(next.tcp(seg(ACK, 1001, 5001).len(50)), GOES);
    assert_eq!(next.tcp(seg(ACK, 5001, 1051).back().len(50)), COMES);
    // The windows continue as well.
    assert_eq!(next.tcp(seg(ACK, 900_000, 5051)), BAD);
    assert_eq!(next.pass(&udp((host(false, B), 53), (host(false, A), 9))), COMES);
    // Without the flow, the same segment is invalid.
    assert_eq!(World::with(strict(3)).tcp(seg(ACK, 1001, 5001).len(50)), BAD);
}

#[test]
fn states_ages_and_counts_continue_and_expired_flows_do_not() {
    let mut world = World::with(strict(1));
    world.connect();
    assert_eq!(world.tcp(seg(FIN | ACK, 1001, 5001)), GOES);
    world.pass(&query(9));
    world.wait(Duration::from_secs(40));
    let (next, resumed) = next_process(&world, strict(1));
    assert_eq!(resumed, Resumed { continued: 1, left_out: 0 }, "the query has expired");
    let flow = next.only();
    assert_eq!((flow.state, flow.packets), (FlowState::FinWait, [3, 1]));
    assert_eq!((flow.age.as_secs(), flow.left.as_secs()), (40, 80));
}

#[test]
fn flows_keep_their_clients_by_name() {
    let world = World::with(strict(1));
    for (peer, client) in [(1, "other"), (7, "alice")] {
        world.tracker.set_peer(peer, Some(client));
    }
    let number = |world: &World| world.tracker.clients().number("alice").unwrap();
    let from = |world: &World| Path { clients: [number(world), 0], ..Path::default() };
    let to = |world: &World| Path { clients: [0, number(world)], ..Path::default() };
    assert_eq!(world.enter_by(&query(9), from(&world)), (NEW, true));
    let (next, resumed) = next_process(&world, strict(1));
    assert_eq!(resumed, Resumed { continued: 1, left_out: 0 });
    assert_ne!(number(&next), number(&world), "each process numbers its clients itself");
    let answer = udp((host(false, B), 53), (host(false, A), 9));
    assert_eq!(next.look_by(&answer, Path::default()), NEW, "another client's flow");
    assert_eq!(next.look_by(&answer, to(&next)), COMES);
}

#[test]
fn flows_beyond_the_limit_are_left_out_and_counted() {
    let world = World::with(strict(1));
    for port in 1..=8 {
        world.pass(&query(port));
    }
    let few = Limits { flows: 5, ..strict(1) };
    let (next, resumed) = next_process(&world, few);
    assert_eq!(resumed, Resumed { continued: 5, left_out: 3 });
    assert_eq!(next.flows().len(), 5);
    // Flows that exist are not replaced.
    let again = next.tracker.resume(world.tracker.save(world.now), world.now);
    assert_eq!(again, Resumed { continued: 0, left_out: 8 });
}

#[test]
fn records_that_make_no_sense_are_left_out() {
    let world = World::connected();
    let text = serde_json::to_string(&world.tracker.save(world.now)).unwrap();
    let resumed = |text: &str| {
        let saved = serde_json::from_str(text).ok()?;
        Some(Tracker::new(strict(1), [9; 16]).resume(saved, world.now))
    };
    assert_eq!(resumed(&text), Some(Resumed { continued: 1, left_out: 0 }));
    for (from, to) in [
        (r#""class":"Established""#, r#""class":"Free""#),
        (r#""class":"Established""#, r#""class":"UdpStream""#),
        (r#""clients":[0,0]"#, r#""clients":[1,0]"#),
        (r#""owner":0"#, r#""owner":9"#),
    ] {
        assert!(text.contains(from), "{from}: {text}");
        let result = resumed(&text.replacen(from, to, 1));
        assert_eq!(result, Some(Resumed { continued: 0, left_out: 1 }), "{to}");
    }
    for (from, to) in [(r#""left_out":0"#, r#""more":0"#), ("Established", "Open")] {
        assert_eq!(resumed(&text.replacen(from, to, 1)), None, "{to}");
    }
}
