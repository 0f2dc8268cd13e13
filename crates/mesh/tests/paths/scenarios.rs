//! Tests of path selection, loss and repair.

use adit_mesh::path::{MAIN_SOCKET, RelayReason, Route};
use adit_sim::{Impairment, Loss, NatBehaviour};

use crate::nat_matrix::Behaviour::{
    self, FullCone, PortRestricted, SymmetricRandom, SymmetricSequential,
};
use crate::nat_matrix::world;
use crate::world::{DIRECT_DELAY, MS, Place, REPAIRED_WITHIN, SECOND, World, ip};

/// Returns a world whose nodes have a direct path.
fn direct_world(behaviours: [Behaviour; 2]) -> World {
    let mut world = world(behaviours, 1);
    world.connect();
    world.run_for(SECOND * 5);
    assert!(world.is_direct());
    world.reset_gaps();
    world
}

/// Drops everything that the nodes send to each other directly.
fn set_direct_loss(world: &mut World, loss: Loss) {
    let impairment = Impairment { delay: DIRECT_DELAY, loss, ..Impairment::default() };
    for index in 0..2 {
        let host = world.nodes[index].host;
        let Some((_, Route::Direct { to, .. })) = world.nodes[index]
            .switches
            .iter()
            .rfind(|(_, route)| matches!(route, Route::Direct { .. }))
            .copied()
        else {
            panic!("node {index} had no direct path");
        };
        world.net.set_impairment(host, to.ip(), impairment.clone());
    }
}

#[test]
fn data_flows_through_the_relay_at_once() {
    let mut world = world([SymmetricRandom, SymmetricSequential], 1);
    world.connect();
    world.run_for(MS * 120);
    assert!(world.nodes.iter().all(|node| node.received > 0));
    world.run_for(SECOND * 5);
    let report = world.nodes[0].finder.report(world.now).to_string();
    assert!(
        report.contains("both ends are behind symmetric NAT: here 203.0.113.7 maps ports"),
        "{report}"
    );
}

#[test]
fn a_lost_direct_path_is_repaired_by_the_relay_and_returns_when_it_works_again() {
    let mut world = direct_world([PortRestricted, PortRestricted]);
    set_direct_loss(&mut world, Loss::Random(1.0));
    world.run_for(SECOND * 10);
    assert!(!world.is_direct());
    assert!(world.longest_gap() < REPAIRED_WITHIN, "{:?}", world.longest_gap());
    let report = world.nodes[0].finder.report(world.now);
    assert_eq!(report.relayed_because, Some(RelayReason::NoAnswer));
    assert_eq!(report.lost.unwrap().seconds_ago, 7);
    set_direct_loss(&mut world, Loss::None);
    world.run_for(SECOND * 120);
    assert!(world.is_direct());
    assert!(world.longest_gap() < REPAIRED_WITHIN);
}

#[test]
fn a_path_that_is_lost_in_one_direction_is_repaired() {
    let mut world = direct_world([PortRestricted, FullCone]);
    let host = world.nodes[0].host;
    let Some(Route::Direct { to, .. }) = world.nodes[0].finder.current() else { panic!() };
    let lost = Impairment { loss: Loss::Random(1.0), ..Impairment::default() };
    world.net.set_impairment(host, to.ip(), lost);
    world.run_for(SECOND * 10);
    assert!(world.longest_gap() < REPAIRED_WITHIN, "{:?}", world.longest_gap());
}

#[test]
fn a_lost_relay_is_repaired_by_the_other_one() {
    let mut world = world([SymmetricRandom, SymmetricRandom], 1);
    world.connect();
    world.run_for(SECOND * 5);
    let Some(Route::Relay(first)) = world.nodes[0].finder.current() else { panic!("no relay") };
    world.reset_gaps();
    world.set_relay(0, false);
    world.run_for(SECOND * 10);
    assert!(world.longest_gap() < REPAIRED_WITHIN, "{:?}", world.longest_gap());
    assert_ne!(world.nodes[0].finder.current(), Some(Route::Relay(first)));
}

#[test]
fn a_relay_that_is_lost_before_the_first_answer_is_replaced() {
    let mut world = world([PortRestricted, PortRestricted], 1);
    world.set_relay(0, false);
    world.connect();
    world.run_for(SECOND * 5);
    assert!(world.longest_gap() < REPAIRED_WITHIN, "{:?}", world.longest_gap());
    assert!(world.is_direct(), "{}", world.nodes[0].finder.report(world.now));
}

#[test]
fn an_idle_path_that_was_lost_is_repaired_when_data_flows_again() {
    let mut world = direct_world([PortRestricted, PortRestricted]);
    world.pause_data();
    world.run_for(SECOND * 100);
    assert!(world.is_direct(), "keepalive holds the mappings");
    set_direct_loss(&mut world, Loss::Random(1.0));
    world.run_for(SECOND);
    world.resume_data();
    world.run_for(SECOND * 10);
    assert!(world.longest_gap() < REPAIRED_WITHIN, "{:?}", world.longest_gap());
}

#[test]
fn jitter_and_some_loss_cause_no_flapping() {
    // Two paths with nearly the same delay, one over IPv4 and one over IPv6.
    let mut world = World::new(3);
    let places = [["192.0.2.1", "2001:db8:a::1"], ["192.0.2.2", "2001:db8:b::1"]];
    world.add_nodes(places.map(|own| Place::public(&own)), 3);
    for (from, to) in
        [(0, "192.0.2.2"), (0, "2001:db8:b::1"), (1, "192.0.2.1"), (1, "2001:db8:a::1")]
    {
        let jitter = Impairment {
            delay: MS * 15,
            jitter: MS * 15,
            loss: Loss::Random(0.02),
            ..Impairment::default()
        };
        let host = world.nodes[from].host;
        world.net.set_impairment(host, ip(to), jitter);
    }
    world.connect();
    world.run_for(SECOND * 600);
    assert!(world.is_direct());
    for node in &world.nodes {
        // The relay, the first path that answers, and perhaps the better one.
        assert!(node.switches.len() <= 4, "{:?}", node.switches);
    }
}

#[test]
fn a_clearly_faster_path_takes_over_once_after_the_hysteresis() {
    let mut world = World::new(4);
    let places = [Place::public(&["192.0.2.1"]), Place::public(&["192.0.2.2", "192.0.2.3"])];
    world.add_nodes(places, 4);
    world.connect();
    world.run_for(SECOND * 20);
    let Some(Route::Direct { to, .. }) = world.nodes[0].finder.current() else { panic!() };
    let slower = Impairment { delay: MS * 60, ..Impairment::default() };
    let host = world.nodes[0].host;
    world.net.set_impairment(host, to.ip(), slower);
    let before = world.nodes[0].switches.len();
    world.run_for(SECOND * 29);
    assert_eq!(world.nodes[0].switches.len(), before, "within the hysteresis");
    world.run_for(SECOND * 60);
    let switches = &world.nodes[0].switches[before..];
    assert!(
        matches!(switches, [(_, Route::Direct { to: other, .. })] if *other != to),
        "{switches:?}"
    );
}

#[test]
fn hosts_of_one_site_prefer_their_private_addresses() {
    let mut world = World::new(5);
    let behaviour = NatBehaviour { hairpin: true, ..NatBehaviour::FULL_CONE };
    let site = world.add_box("203.0.113.7", behaviour);
    world.add_nodes([Place::behind("10.0.0.2", site), Place::behind("10.0.0.3", site)], 5);
    world.connect();
    world.run_for(SECOND * 5);
    for node in &world.nodes {
        let Some(Route::Direct { to, .. }) = node.finder.current() else { panic!() };
        assert!(to.to_string().starts_with("10.0.0."), "{to}");
    }
}

#[test]
fn a_node_that_changes_its_network_is_direct_again() {
    let mut world = direct_world([PortRestricted, FullCone]);
    let site = world.add_box("203.0.113.99", NatBehaviour::PORT_RESTRICTED);
    world.move_node(0, Place::behind("172.16.0.2", site));
    world.run_for(SECOND * 60);
    assert!(world.longest_gap() < REPAIRED_WITHIN, "{:?}", world.longest_gap());
    assert!(world.is_direct(), "{}", world.nodes[1].finder.report(world.now));
    let Some(Route::Direct { to, .. }) = world.nodes[1].finder.current() else { panic!() };
    assert_eq!(to.ip(), ip("203.0.113.99"));
}

#[test]
fn the_mtu_of_the_path_is_found() {
    for (mtu, found) in [(1500, 1500), (1492, 1492), (1425, 1420), (1300, 1280)] {
        let mut world = World::new(6);
        world.add_nodes([Place::public(&["192.0.2.1"]), Place::public(&["192.0.2.2"])], 6);
        let host = world.nodes[0].host;
        world.net.set_mtu(host, ip("192.0.2.2"), mtu);
        world.connect();
        world.run_for(SECOND * 5);
        assert!(world.is_direct());
        assert_eq!(world.nodes[0].mtu.get(&MAIN_SOCKET), Some(&found), "{mtu}");
    }
}

#[test]
fn a_search_closes_its_sockets_but_the_one_that_is_used() {
    let mut world = world([SymmetricRandom, PortRestricted], 2);
    world.connect();
    while !world.is_direct() {
        world.run_for(MS * 10);
    }
    assert!(world.now < world.started() + SECOND * 12, "before the search would have ended");
    assert_eq!(world.nodes[0].most_sockets, 257);
    assert_eq!(world.nodes[0].open_sockets(), 2);
    assert_eq!(world.nodes[1].open_sockets(), 1);
}

#[test]
fn paths_that_are_lost_together_are_not_tried_one_after_the_other() {
    let mut world = World::new(8);
    let places = [["192.0.2.1", "2001:db8:a::1"], ["192.0.2.2", "2001:db8:b::1"]];
    world.add_nodes(places.map(|own| Place::public(&own)), 8);
    world.connect();
    world.run_for(SECOND * 20);
    world.reset_gaps();
    for (node, peer) in [(0, places[1]), (1, places[0])] {
        for to in peer {
            let lost = Impairment { loss: Loss::Random(1.0), ..Impairment::default() };
            let host = world.nodes[node].host;
            world.net.set_impairment(host, ip(to), lost);
        }
    }
    world.run_for(SECOND * 20);
    assert!(world.longest_gap() < REPAIRED_WITHIN, "{:?}", world.longest_gap());
}
