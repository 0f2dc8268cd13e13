//! Tests of nodes that get no answer over UDP.

use adit_mesh::node::{NodeEvent, RouteKind};
use adit_mesh::token::Terms;
use adit_sim::NatBehaviour;

use crate::world::{MS, SECOND, World};

/// Returns a public hub that accepts streams, and members behind NATs, some without UDP.
fn mesh(without_udp: &[bool]) -> World {
    let mut w = World::new(1);
    let hub = w.machine("198.51.100.1", None);
    w.machines[hub].accepts_streams = true;
    w.found(hub);
    for (blocked, n) in without_udp.iter().zip(7..) {
        let site = w.site(&format!("203.0.113.{n}"), NatBehaviour::SYMMETRIC_RANDOM);
        let machine = w.machine("10.0.0.2", Some(site));
        w.machines[machine].no_udp = *blocked;
    }
    let others: Vec<usize> = (1..w.machines.len()).collect();
    w.join_all(hub, &others);
    w
}

fn is_on_stream(w: &World, from: usize, to: usize) -> bool {
    w.node(from).peer(w.now, &w.machines[to].key).stream
}

/// Returns the number of times that a session between two nodes has begun.
fn sessions(w: &World, of: usize, with: usize) -> usize {
    let key = w.machines[with].key;
    let begins =
        |event: &&NodeEvent| matches!(event, NodeEvent::Connected { peer, .. } if *peer == key);
    w.machines[of].events.iter().filter(begins).count()
}

#[test]
fn a_node_without_udp_joins_and_reaches_the_hub_over_tcp() {
    let mut w = mesh(&[true]);
    let first = w.ping(1, 0, SECOND * 20).expect("no packet arrives");
    assert!(first < SECOND * 8, "{first:?}");
    assert!(w.ping(0, 1, SECOND * 5).is_some());
    assert!(is_on_stream(&w, 1, 0) && is_on_stream(&w, 0, 1));
    assert!(matches!(w.route(1, 0), RouteKind::Direct(to) if to.port() == 443));
    w.run_for(SECOND * 600);
    assert!(is_on_stream(&w, 1, 0), "it stays");
    assert_eq!(sessions(&w, 1, 0), 1);
    let report = w.node(1).path(w.now, &w.machines[0].key).unwrap().to_string();
    assert!(report.contains("current      TCP to 198.51.100.1:443"), "{report}");
    assert!(report.contains("UDP gets no answer from any relay"), "{report}");
}

#[test]
fn nodes_of_which_one_or_both_have_no_udp_talk_through_the_relay() {
    for blocked in [[true, false], [true, true]] {
        let mut w = mesh(&blocked);
        assert!(w.ping(1, 2, SECOND * 20).is_some(), "{blocked:?}");
        assert!(w.talk(1, 2, SECOND * 20) < SECOND, "{blocked:?}");
        assert!(w.is_relayed(1, 2));
        assert_eq!([is_on_stream(&w, 1, 2), is_on_stream(&w, 2, 1)], blocked);
        assert!(w.machines[0].relayed > 500 && w.machines[0].received.is_empty());
        let report = w.node(2).path(w.now, &w.machines[1].key).unwrap().to_string();
        let reason = if blocked[1] { "UDP gets no answer from" } else { "the peer gets no answer" };
        assert!(report.contains(reason), "{report}");
    }
}

#[test]
fn a_node_whose_udp_works_opens_no_stream() {
    let mut w = mesh(&[false, false]);
    assert!(w.ping(1, 2, SECOND * 20).is_some());
    w.talk(1, 2, SECOND * 60);
    w.run_for(SECOND * 600);
    assert!(w.machines.iter().all(|machine| machine.stream_packets == 0));
}

#[test]
fn when_udp_is_lost_and_comes_back_the_session_with_a_relayed_member_goes_on() {
    let mut w = mesh(&[false, false]);
    assert!(w.ping(1, 2, SECOND * 20).is_some());
    w.talk(1, 2, SECOND * 5);
    let before = [sessions(&w, 1, 2), sessions(&w, 2, 1)];
    w.machines[1].no_udp = true;
    let lost = w.talk(1, 2, SECOND * 30);
    assert!(lost < SECOND * 10, "{lost:?}");
    assert!(is_on_stream(&w, 1, 2) && !is_on_stream(&w, 2, 1));
    w.machines[1].no_udp = false;
    let moved = w.talk(1, 2, SECOND * 45);
    assert!(moved < SECOND, "{moved:?}");
    assert!(!is_on_stream(&w, 1, 2) && !is_on_stream(&w, 1, 0));
    assert_eq!([sessions(&w, 1, 2), sessions(&w, 2, 1)], before, "a session ended");
    let report = w.node(1).path(w.now, &w.machines[2].key).unwrap().to_string();
    assert!(!report.contains("no answer over UDP") && !report.contains("over TCP"), "{report}");
}

#[test]
fn when_udp_comes_back_at_both_ends_their_session_goes_on() {
    for seconds in [10, 40, 100] {
        let mut w = mesh(&[true, true]);
        assert!(w.ping(1, 2, SECOND * 20).is_some());
        w.talk(1, 2, SECOND * seconds);
        let before = [sessions(&w, 1, 2), sessions(&w, 2, 1)];
        for at in [1, 2] {
            w.machines[at].no_udp = false;
        }
        let moved = w.talk(1, 2, SECOND * 45);
        assert!(moved < SECOND, "{moved:?}");
        for (from, to) in [(1, 0), (2, 0), (1, 2), (2, 1)] {
            assert!(!is_on_stream(&w, from, to), "{from} {to}");
        }
        assert_eq!([sessions(&w, 1, 2), sessions(&w, 2, 1)], before, "a session ended");
    }
}

#[test]
fn a_connection_that_breaks_is_opened_again() {
    let mut w = mesh(&[true, false]);
    assert!(w.ping(1, 2, SECOND * 20).is_some());
    let before = sessions(&w, 2, 1);
    w.cut_streams(1);
    let longest = w.talk(1, 2, SECOND * 20);
    assert!(longest < SECOND * 8, "{longest:?}");
    assert_eq!(sessions(&w, 2, 1), before, "the session with the member ended");
    let changes = w.kill(0);
    w.run_for(SECOND * 20);
    w.start(0, changes);
    assert!(w.ping(1, 2, SECOND * 90).is_some());
}

#[test]
fn with_two_relays_the_one_that_udp_reaches_is_used() {
    let mut w = mesh(&[false, false]);
    let second = w.machine("198.51.100.2", None);
    w.machines[second].accepts_streams = true;
    let token = w.invite(0, Terms { relay: true, ..Terms::default() }, 1);
    w.join(second, token, "second");
    w.run_for(SECOND * 30);
    assert!(w.ping(1, 2, SECOND * 5).is_some());
    w.talk(1, 2, SECOND * 5);
    // Only the hub is lost, not all of UDP.
    w.kill(0);
    let longest = w.talk(1, 2, SECOND * 30);
    assert!(longest < SECOND * 3, "{longest:?}");
    assert_eq!(w.machines[1].stream_packets, 0);
}

#[test]
fn without_a_port_for_streams_a_node_without_udp_does_not_join_and_says_why() {
    let mut w = World::new(1);
    let (hub, laptop) = (w.machine("198.51.100.1", None), w.machine("198.51.100.2", None));
    w.found(hub);
    w.machines[laptop].no_udp = true;
    let token = w.invite(hub, Terms::default(), 1);
    assert!(token.tcp_addresses().is_empty());
    w.join(laptop, token, "laptop");
    w.run_for(SECOND * 30 + MS);
    let refused = w.machines[laptop].join_result.clone().unwrap().unwrap_err();
    assert!(refused.contains("UDP or TCP passes"), "{refused}");
}
