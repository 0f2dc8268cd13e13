//! Datagrams between other nodes that another layer relays.

use std::time::Duration;

use super::bench::{Bench, address, name};
use super::packets::confirm;
use crate::meta::Options;
use crate::name::NodeId;
use crate::node::mtu::PathMtu;
use crate::node::{Output, Transit, TransitPath};

/// Neighbours bob and carol with confirmed addresses. carol is a neighbour with these options.
fn with_neighbours(carol: &str) -> Bench {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.join_with("carol", carol);
    let [mut bob, mut carol] = ["bob", "carol"].map(|who| bench.session(who, who));
    confirm(&mut bench, &mut [("bob", &mut bob), ("carol", &mut carol)], 1000);
    bench.node.take_changed_paths();
    bench
}

fn transit(hop: &str, from: &str, to: &str) -> Transit {
    let mut ids = [0; 12];
    ids[..6].copy_from_slice(&name(to).id().0);
    ids[6..].copy_from_slice(&name(from).id().0);
    Transit { hop: name(hop), ids }
}

/// A datagram of a kind arrives. Returns the kinds that the node reports.
fn relay(bench: &mut Bench, transit: &Transit, len: usize) -> Vec<Transit> {
    let mut datagram = transit.ids.to_vec();
    datagram.resize(len, 7);
    bench.send_datagram(address(transit.hop.as_str()), &mut datagram);
    bench.node.take_changed_paths().transits
}

#[test]
fn what_the_node_relays_by_udp_is_reported_once() {
    let mut bench = with_neighbours(super::bench::ACK);
    let there = transit("bob", "bob", "carol");
    let back = transit("carol", "carol", "bob");
    let mtu = bench.info("carol").mtu.1;
    let longest = usize::from(mtu) + 33;
    assert_eq!(relay(&mut bench, &there, longest), std::slice::from_ref(&there));
    assert_eq!(bench.node.transit_path(&there), Some(TransitPath::To { node: name("carol"), mtu }));
    assert_eq!(relay(&mut bench, &there, longest + 1), [], "over TCP");
    assert_eq!(relay(&mut bench, &there, 32), [], "not at all");
    assert_eq!(relay(&mut bench, &transit("bob", "bob", "bob"), 200), [], "a loop");
    assert_eq!(relay(&mut bench, &transit("bob", "bob", "alice"), 200), [], "for this node");
    for hop in ["bob", "carol", "bob"] {
        let sent = if hop == "bob" { &there } else { &back };
        let mut datagram = [&sent.ids[..], &[7; 50]].concat();
        bench.send_datagram(address(hop), &mut datagram);
    }
    assert_eq!(bench.node.take_changed_paths().transits, [there, back]);
}

#[test]
fn a_bounded_number_of_kinds_is_reported() {
    let mut bench = with_neighbours(super::bench::ACK);
    for number in 0..100_u8 {
        bench.node.changed_paths.add_transit(&name("bob"), [number; 12]);
    }
    assert_eq!(bench.node.take_changed_paths().transits.len(), 64);
    assert!(bench.node.take_changed_paths().transits.is_empty());
}

#[test]
fn a_way_leads_from_a_known_node_to_another_one() {
    let mut bench = with_neighbours(super::bench::ACK);
    bench.edges("bob", &[("bob", "dave")]);
    let found = |transit: &Transit| bench.node.transit_path(transit).is_some();
    assert!(found(&transit("bob", "bob", "carol")));
    assert!(found(&transit("bob", "dave", "carol")), "a relay relays to another one");
    assert!(!found(&transit("bob", "erin", "carol")), "a source that is not reachable");
    assert!(!found(&transit("bob", "bob", "erin")), "a destination that is not reachable");
    assert!(!found(&transit("bob", "alice", "carol")), "this node as the source");
    let here = bench.node.transit_path(&transit("bob", "dave", "alice"));
    assert_eq!(here, Some(TransitPath::Here { from: name("dave") }));
    assert!(!found(&transit("bob", "erin", "alice")));
    assert!(!found(&transit("erin", "bob", "alice")), "an address that no node has");
    assert!(!found(&transit("carol", "bob", "carol")), "a loop");
    assert!(!found(&transit("dave", "bob", "carol")), "an address that is not confirmed");
    let mut direct = transit("bob", "bob", "carol");
    direct.ids[..6].copy_from_slice(&NodeId::DIRECT.0);
    assert!(!found(&direct));
    let mut unknown = transit("bob", "bob", "carol");
    unknown.ids[0] ^= 1;
    assert!(!found(&unknown));
}

#[test]
fn a_way_needs_all_that_datagrams_need() {
    let mut bench = with_neighbours(super::bench::ACK);
    let kind = transit("bob", "bob", "carol");
    let found = |bench: &Bench| bench.node.transit_path(&kind).is_some();
    assert!(found(&bench));
    bench.node.config.own.tcp_only = true;
    assert!(!found(&bench));
    bench.node.config.own.tcp_only = false;
    for who in ["bob", "carol"] {
        bench.node.peers.get_mut(&name(who)).unwrap().udp.confirmed = false;
        assert!(!found(&bench), "{who}");
        bench.node.peers.get_mut(&name(who)).unwrap().udp.confirmed = true;
        assert!(found(&bench));
    }
    let other = bench.node.by_address.insert(address("bob"), name("carol"));
    assert!(!found(&bench), "the address of another node");
    bench.node.by_address.insert(address("bob"), other.unwrap());
    assert!(found(&bench));
    let known = bench.node.peers[&name("carol")].mtu.clone();
    let mut with_mtu = |mtu: PathMtu| {
        bench.node.peers.get_mut(&name("carol")).unwrap().mtu = mtu;
        found(&bench)
    };
    let mut unknown = PathMtu::new(None, adit_engine::Instant::from_nanos(1_000_000_000_000));
    unknown.min = known.min;
    assert!(!with_mtu(unknown), "not known yet");
    let mut useless = known.clone();
    useless.min = 0;
    assert!(!with_mtu(useless));
    assert!(with_mtu(known));
}

#[test]
fn the_options_of_the_edges_decide_about_a_way() {
    let mut bench = with_neighbours(super::bench::ACK);
    let kind = transit("bob", "bob", "carol");
    for (who, change, expected) in [
        ("carol", 0, true),
        ("carol", Options::TCP_ONLY, false),
        ("bob", Options::TCP_ONLY, true),
        ("carol", Options::PMTU_DISCOVERY, false),
        ("bob", Options::PMTU_DISCOVERY, true),
        ("carol", 7 << 24, false),
        ("bob", 7 << 24, false),
    ] {
        let (alice, who) = (name("alice"), name(who));
        let edge = bench.node.graph.edge(&alice, &who).unwrap().clone();
        let mut changed = edge.clone();
        changed.options = Options(edge.options.0 ^ change);
        bench.node.graph.add_edge(&alice, &who, changed).unwrap();
        bench.node.graph.compute();
        assert_eq!(bench.node.transit_path(&kind).is_some(), expected, "{who}: {change:x}");
        bench.node.graph.add_edge(&alice, &who, edge).unwrap();
        bench.node.graph.compute();
    }
}

/// dave can be reached through carol only.
#[test]
fn the_way_to_a_node_behind_a_relay_is_that_of_the_relay() {
    let mut bench = with_neighbours(super::bench::ACK);
    bench.say("carol", "12 1 carol dave 192.0.2.99 655 7000001 5");
    bench.say("carol", "12 2 dave carol 192.0.2.98 655 7000001 5");
    let path = bench.node.transit_path(&transit("bob", "bob", "dave")).unwrap();
    let mtu = bench.info("carol").mtu.1;
    assert_eq!(path, TransitPath::To { node: name("carol"), mtu });
    assert_eq!(bench.node.transit_path(&transit("carol", "bob", "dave")), None, "a loop");
}

#[test]
fn changes_of_a_hop_and_of_a_receiver_are_reported() {
    let mut bench = with_neighbours(super::bench::ACK);
    let reported = |bench: &mut Bench, who: &str| {
        let changes = bench.node.take_changed_paths();
        changes.all || changes.nodes.contains(&name(who))
    };
    let mtu = bench.info("carol").mtu.1;
    bench.node.too_big(bench.now, address("carol"), usize::from(mtu) + 33);
    assert!(reported(&mut bench, "carol"));
    for who in ["bob", "carol"] {
        assert!(!reported(&mut bench, who));
        bench.node.unconfirm(&name(who));
        assert!(reported(&mut bench, who));
    }
    bench.say("bob", "13 1 bob alice");
    bench.say("bob", "12 2 bob dave 192.0.2.99 655 700000c 5");
    bench.say("bob", "12 3 dave bob 192.0.2.98 655 700000c 5");
    assert!(bench.node.take_changed_paths().all);
}

#[test]
fn relayed_traffic_counts_and_keeps_the_path() {
    let mut bench = with_neighbours(super::bench::ACK);
    let kind = transit("bob", "bob", "carol");
    let traffic = |bench: &mut Bench, packets| {
        bench.now = bench.now + Duration::from_secs(20);
        bench.node.relayed_traffic(bench.now, &kind, packets);
        bench.pump();
        let sent = bench.outputs();
        sent.iter().any(|it| matches!(it, Output::Datagram { to, .. } if *to == address("carol")))
    };
    assert!(traffic(&mut bench, 900), "a probe");
    assert_eq!(bench.node.counters().relayed, 900);
    bench.node.peers.remove(&name("bob"));
    assert!(!traffic(&mut bench, 1), "the source has left the net");
    assert_eq!(bench.node.counters().relayed, 901);
}

/// Section 11.4: carol is reached by this node only, which tells dave where to send to.
#[test]
fn relayed_traffic_from_an_unexpected_hop_is_answered_with_the_address() {
    let mut bench = with_neighbours("4 655 10 700000d");
    bench.edges("bob", &[("bob", "dave")]);
    let kind = transit("bob", "dave", "carol");
    let informed = |bench: &mut Bench, kind: &Transit, seconds| {
        bench.now = bench.now + Duration::from_secs(seconds);
        bench.node.relayed_traffic(bench.now, kind, 1);
        bench.pump();
        bench.take("bob").iter().any(|line| line.starts_with("22 alice dave "))
    };
    assert!(informed(&mut bench, &kind, 10));
    assert!(!informed(&mut bench, &kind, 1), "not more often than every few seconds");
    assert!(informed(&mut bench, &kind, 10));
    assert!(!informed(&mut bench, &transit("bob", "dave", "erin"), 10), "no such node");
    assert!(!informed(&mut bench, &transit("bob", "bob", "carol"), 10), "it comes from bob");
}
