//! Tests of joining, reaching and losing members.

use adit_engine::UnixTime;
use adit_mesh::node::{NodeEvent, RouteKind};
use adit_mesh::roster::{Action, Label, Layer, Revocation};
use adit_mesh::session::Policy;
use adit_mesh::token::Terms;
use adit_sim::NatBehaviour;

use crate::world::{MS, PORT, SECOND, UNIX, World, ip};

/// Returns a public hub, and members behind one NAT each.
fn behind(behaviours: &[NatBehaviour]) -> World {
    behind_seeded(1, behaviours)
}

fn behind_seeded(seed: u8, behaviours: &[NatBehaviour]) -> World {
    members_of(World::new(seed), behaviours)
}

fn members_of(mut w: World, behaviours: &[NatBehaviour]) -> World {
    let hub = w.machine("198.51.100.1", None);
    w.found(hub);
    for (behaviour, n) in behaviours.iter().zip(7..) {
        let site = w.site(&format!("203.0.113.{n}"), *behaviour);
        w.machine("10.0.0.2", Some(site));
    }
    let others: Vec<usize> = (1..w.machines.len()).collect();
    w.join_all(hub, &others);
    w
}

#[test]
fn a_node_joins_with_a_token_and_both_reach_each_other() {
    let mut w = World::new(1);
    let (hub, laptop) = (w.machine("198.51.100.1", None), w.machine("198.51.100.2", None));
    w.found(hub);
    w.join_all(hub, &[laptop]);
    assert!(w.ping(laptop, hub, SECOND * 2).is_some());
    assert!(w.ping(hub, laptop, SECOND * 2).is_some());
    assert!(w.is_direct(hub, laptop));
    let member = |w: &World, of: usize| {
        w.node(of).roster().members().map(|member| member.key).collect::<Vec<_>>()
    };
    assert_eq!(member(&w, hub), member(&w, laptop));
}

#[test]
fn pings_are_seldom_but_to_and_from_relays() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    assert!(w.ping(1, 2, SECOND * 5).is_some());
    for (from, to, seconds) in [(1, 0, 5), (0, 1, 5), (1, 2, 15), (2, 1, 15)] {
        assert_eq!(w.ping_interval(from, to), Some(SECOND * seconds), "{from} -> {to}");
    }
}

#[test]
fn a_used_token_admits_no_second_node() {
    let mut w = World::new(1);
    let hub = w.machine("198.51.100.1", None);
    w.found(hub);
    let (one, other) = (w.machine("198.51.100.2", None), w.machine("198.51.100.3", None));
    let token = w.invite(hub, Terms::default(), 1);
    w.join(one, token.clone(), "one");
    w.run_for(SECOND * 2);
    w.join(other, token, "other");
    w.run_for(SECOND * 2);
    assert_eq!(w.machines[one].join_result, Some(Ok(())));
    let refused = w.machines[other].join_result.clone().unwrap().unwrap_err();
    assert!(refused.contains("does not accept this invitation"), "{refused}");
    assert_eq!(w.node(hub).roster().members().count(), 2);
}

#[test]
fn an_expired_token_and_a_name_that_is_taken_admit_no_node() {
    let mut w = World::new(1);
    let hub = w.machine("198.51.100.1", None);
    w.found(hub);
    let (late, same) = (w.machine("198.51.100.2", None), w.machine("198.51.100.3", None));
    let until = UnixTime(w.unix().0 + 5);
    let token = w.act(hub, |node, now, out| node.invite(now, Terms::default(), 1, until, out));
    w.run_for(SECOND * 10);
    w.join(late, token.unwrap(), "late");
    w.run_for(SECOND * 2);
    let refused = w.machines[late].join_result.clone().unwrap().unwrap_err();
    assert!(refused.contains("too old"), "{refused}");
    let token = w.invite(hub, Terms::default(), 1);
    w.join(same, token, "hub");
    w.run_for(SECOND * 2);
    let refused = w.machines[same].join_result.clone().unwrap().unwrap_err();
    assert!(refused.contains("--name"), "{refused}");
    let taken = Terms { name: Label::new("hub"), ..Terms::default() };
    let refused = w.act(hub, |node, now, out| node.invite(now, taken, 1, until, out)).unwrap_err();
    assert!(refused.to_string().contains("has the name hub"), "{refused}");
    assert_eq!(w.node(hub).roster().members().count(), 1);
}

#[test]
fn a_node_whose_clock_is_a_year_ahead_joins_and_is_reached_when_it_is_set_right() {
    const YEAR: u64 = 365 * 86_400;
    let mut w = World::new(1);
    for n in 1..=2 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    w.machines[1].clock = YEAR;
    w.join_all(0, &[1]);
    assert!(w.ping(0, 1, SECOND * 5).is_some());
    w.run_for(SECOND * 20);
    let changes = w.kill(1);
    w.machines[1].clock = 0;
    w.start(1, changes);
    assert!(w.ping(1, 0, SECOND * 60).is_some());
    assert!(w.ping(0, 1, SECOND * 60).is_some());
}

#[test]
fn a_clock_that_is_a_year_ahead_is_named_where_it_matters() {
    let mut w = World::new(1);
    for n in 1..=2 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    w.machines[1].clock = 365 * 86_400;
    let not_after = Some(UnixTime(w.unix().0 + 86_400));
    let token = w.invite(0, Terms { not_after, ..Terms::default() }, 1);
    w.join(1, token, "laptop");
    w.run_for(SECOND * 2);
    let refused = w.machines[1].join_result.clone().unwrap().unwrap_err();
    assert!(refused.contains("check this machine's clock"), "{refused}");
}

#[test]
fn nodes_behind_nat_talk_through_the_relay_at_once_and_directly_soon() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.run_for(SECOND * 3);
    let first = w.ping(1, 2, SECOND * 5).expect("no packet arrives");
    assert!(first < SECOND, "{first:?}");
    w.talk(1, 2, SECOND * 5);
    assert!(w.is_direct(1, 2), "{:?} {:?}", w.route(1, 2), w.route(2, 1));
}

#[test]
fn nodes_behind_symmetric_nat_stay_relayed_and_the_relay_does_not_open_their_packets() {
    let mut w = behind(&[NatBehaviour::SYMMETRIC_RANDOM, NatBehaviour::SYMMETRIC_RANDOM]);
    // Two observers can recognise a symmetric NAT.
    let second = w.machine("198.51.100.2", None);
    let token = w.invite(0, Terms { relay: true, ..Terms::default() }, 1);
    w.join(second, token, "second");
    w.run_for(SECOND * 20);
    assert!(w.ping(1, 2, SECOND * 5).is_some());
    w.talk(1, 2, SECOND * 20);
    assert!(w.is_relayed(1, 2), "{:?} {:?}", w.route(1, 2), w.route(2, 1));
    assert!(w.machines[0].relayed + w.machines[second].relayed > 500);
    assert!(w.machines[0].received.is_empty() && w.machines[second].received.is_empty());
    let report = w.node(1).path(w.now, &w.machines[2].key).unwrap().to_string();
    assert!(report.contains("symmetric"), "{report}");
}

#[test]
fn a_node_behind_a_symmetric_nat_finds_a_direct_path_to_one_behind_another_nat() {
    let nats = [NatBehaviour::SYMMETRIC_RANDOM, NatBehaviour::PORT_RESTRICTED];
    let mut by_search_socket = 0;
    for seed in 1..=4 {
        let mut w = behind_seeded(seed, &nats);
        let second = w.machine("198.51.100.2", None);
        let token = w.invite(0, Terms { relay: true, ..Terms::default() }, 1);
        w.join(second, token, "second");
        w.run_for(SECOND * 20);
        assert!(w.ping(1, 2, SECOND * 5).is_some());
        w.talk(1, 2, SECOND * 20);
        assert!(w.is_direct(1, 2), "{seed}: {:?} {:?}", w.route(1, 2), w.route(2, 1));
        // The socket that found the path stays open. Occasionally it is the main one.
        let ports = [1, 2].map(|machine| w.machines[machine].ports.len());
        assert!(ports[0] <= 2 && ports[1] == 1, "{seed}: {ports:?}");
        by_search_socket += u32::from(ports[0] == 2);
        assert!(w.talk(1, 2, SECOND * 60) < SECOND, "{seed}");

        let key = w.machines[2].key;
        let revocation = Revocation { key, last: None, with_invited: false };
        w.act(0, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap();
        w.run_for(SECOND * 5);
        assert_eq!(w.machines[1].ports.len(), 1, "{seed}: nothing is open for a removed node");
    }
    assert!(by_search_socket >= 2, "{by_search_socket}");
}

#[test]
fn the_loss_of_the_relay_does_not_end_a_direct_session() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.run_for(SECOND * 3);
    w.ping(1, 2, SECOND * 5).unwrap();
    w.talk(1, 2, SECOND * 5);
    assert!(w.is_direct(1, 2));
    w.kill(0);
    let longest = w.talk(1, 2, SECOND * 120);
    assert!(longest < SECOND, "{longest:?}");
    assert!(w.is_direct(1, 2));
}

#[test]
fn a_node_that_restarts_at_once_is_reached_again_soon() {
    // The first node to restart begins the session. If both do at once, the session of the node with the smaller key remains.
    for (first, second) in [(1, 2), (2, 1)] {
        let mut w = behind(&[NatBehaviour::FULL_CONE, NatBehaviour::FULL_CONE]);
        w.run_for(SECOND * 3);
        for (restarted, other) in [(first, second), (second, first)] {
            let changes = w.kill(restarted);
            w.run_for(MS * 300);
            w.start(restarted, changes);
            let again = w.ping(other, restarted, SECOND * 60).expect("no packet arrives");
            assert!(again < SECOND * 3, "{restarted}: {again:?}");
            w.run_for(SECOND * 2);
        }
    }
}

#[test]
fn a_node_that_restarts_finds_the_others_again() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.run_for(SECOND * 3);
    w.ping(1, 2, SECOND * 5).unwrap();
    let changes = w.kill(2);
    w.run_for(SECOND * 5);
    w.start(2, changes);
    let again = w.ping(1, 2, SECOND * 60).expect("no packet arrives");
    assert!(again < SECOND * 12, "{again:?}");
    assert!(w.ping(2, 1, SECOND * 5).is_some());
}

#[test]
fn a_node_that_was_down_for_long_is_reached_within_seconds() {
    for tried in [false, true] {
        let mut w = behind(&[NatBehaviour::FULL_CONE, NatBehaviour::FULL_CONE]);
        w.run_for(SECOND * 3);
        w.ping(1, 2, SECOND * 5).unwrap();
        let changes = w.kill(2);
        let before = w.sent_bytes(1);
        if tried {
            assert_eq!(w.ping(1, 2, SECOND * 100), None);
        } else {
            w.run_for(SECOND * 100);
        }
        // Its relay answers at once that it is away. It is dialled again after a pause all the same.
        let sent = w.sent_bytes(1) - before;
        assert!(sent < 100_000, "{sent} bytes in 100 s");
        w.start(2, changes);
        let again = w.ping(1, 2, SECOND * 60).expect("no packet arrives");
        assert!(again < SECOND * 7, "{again:?}");
    }
}

#[test]
fn destinations_of_no_member_go_to_the_exit_alone() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    let subnets = ["192.168.77.0/24".parse().unwrap()].into();
    let token = w.invite(0, Terms { subnets, ..Terms::default() }, 1);
    let site = w.machine("198.51.100.3", None);
    w.join(site, token, "site");
    w.run_for(SECOND * 3);
    w.kill(site);
    w.run_for(SECOND * 60);
    let outside = ip("198.51.100.99");
    let exit = w.machines[2].key;
    w.ping(1, 2, SECOND * 5).unwrap();
    assert!(!w.has_way(1, outside));
    w.act(1, |node, _, out| node.set_exit(Some(exit), out));
    assert!(w.has_way(1, outside) && w.has_way(1, ip("2001:db8::1")));
    assert!(!w.has_way(2, outside));
    // Packets for addresses of the mesh never go to the exit, whether or not their member has a session.
    assert!(!w.has_way(1, ip("100.87.99.99")) && !w.has_way(1, ip("192.168.77.5")));
    w.act(1, |node, _, out| node.set_exit(None, out));
    assert!(!w.has_way(1, outside));
    assert_ne!(w.route(1, 2), RouteKind::None, "the session remains");
}

#[test]
fn a_removed_node_is_cut_off_by_all() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.run_for(SECOND * 3);
    w.ping(1, 2, SECOND * 5).unwrap();
    w.talk(1, 2, SECOND * 5);
    let key = w.machines[2].key;
    let revocation = Revocation { key, last: None, with_invited: false };
    w.act(0, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap();
    w.run_for(SECOND * 2);
    for of in [0, 1] {
        assert!(w.node(of).roster().member(&key).is_none(), "{of}");
        assert_eq!(w.route(of, 2), RouteKind::None, "{of}");
    }
    let before = w.machines[1].received.len();
    w.talk(2, 1, SECOND * 10);
    assert_eq!(w.machines[1].received.len(), before, "packets of a removed node");
    let heard = w.machines[2].events.iter().any(|event| matches!(event, NodeEvent::Removed));
    assert!(heard, "the node itself has heard of it");
}

/// All others refuse its handshakes at once.
#[test]
fn a_node_that_was_removed_while_it_was_down_dials_the_others_with_pauses() {
    let mut w = behind(&[NatBehaviour::FULL_CONE, NatBehaviour::FULL_CONE]);
    w.run_for(SECOND * 3);
    let changes = w.kill(2);
    let key = w.machines[2].key;
    let revocation = Revocation { key, last: None, with_invited: false };
    w.act(0, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap();
    w.run_for(SECOND * 2);
    w.start(2, changes);
    let before = w.sent_bytes(2);
    w.run_for(SECOND * 100);
    let sent = w.sent_bytes(2) - before;
    assert!(sent > 0 && sent < 100_000, "{sent} bytes in 100 s");
}

#[test]
fn an_ordinary_node_cannot_remove_a_member() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED]);
    let key = w.machines[0].key;
    let revocation = Revocation { key, last: None, with_invited: false };
    let refused =
        w.act(1, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap_err();
    assert!(refused.to_string().contains("no right"), "{refused}");
}

#[test]
fn a_node_that_moves_is_reached_again() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.run_for(SECOND * 3);
    w.ping(1, 2, SECOND * 5).unwrap();
    w.talk(1, 2, SECOND * 5);
    let site = w.site("203.0.113.77", NatBehaviour::PORT_RESTRICTED);
    w.move_to(2, "192.168.5.9", Some(site));
    let longest = w.talk(1, 2, SECOND * 30);
    assert!(longest < SECOND * 5, "{longest:?}");
    assert!(w.is_direct(1, 2), "{:?} {:?}", w.route(1, 2), w.route(2, 1));
}

/// Machines with public addresses in a mesh without a relay.
fn without_a_relay(count: u8) -> World {
    let mut w = World::new(1);
    for n in 1..=count {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found_as(0, false);
    let others: Vec<usize> = (1..w.machines.len()).collect();
    w.join_all(0, &others);
    w.run_for(SECOND * 20);
    w
}

#[test]
fn a_public_node_that_moves_is_reached_again_without_a_relay() {
    for idle in [0, 300] {
        let mut w = without_a_relay(3);
        w.ping(1, 2, SECOND * 5).unwrap();
        w.talk(1, 2, SECOND * 5);
        w.run_for(SECOND * idle);
        w.move_to(2, "198.51.100.77", None);
        let longest = w.talk(1, 2, SECOND * 30);
        assert!(longest < SECOND * 4, "idle for {idle} s: {longest:?}");
        assert_eq!(w.route(1, 2), RouteKind::Direct("198.51.100.77:1194".parse().unwrap()));
        // A third node, which has no packets for it, has followed as well.
        assert!(w.ping(0, 2, SECOND * 5).is_some(), "idle for {idle} s");
    }
}

#[test]
fn a_public_node_that_moves_is_reached_again_in_a_mesh_of_two() {
    for idle in [0, 300] {
        for moves in [0, 1] {
            let mut w = without_a_relay(2);
            w.ping(0, 1, SECOND * 5).unwrap();
            w.talk(0, 1, SECOND * 5);
            w.run_for(SECOND * idle);
            w.move_to(moves, "198.51.100.77", None);
            let other = 1 - moves;
            let again = w.ping(other, moves, SECOND * 60);
            assert!(again.is_some_and(|it| it < SECOND * 4), "{moves}, {idle} s: {again:?}");
            assert!(w.ping(moves, other, SECOND).is_some(), "{moves}, {idle} s");
        }
    }
}

#[test]
fn the_only_relay_moves_and_its_peers_follow() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED]);
    let public = w.machine("198.51.100.2", None);
    w.join_all(0, &[public]);
    w.run_for(SECOND * 20);
    w.ping(public, 0, SECOND * 5).unwrap();
    w.move_to(0, "198.51.100.77", None);
    let again = w.ping(public, 0, SECOND * 60);
    assert!(again.is_some_and(|it| it < SECOND * 4), "{again:?}");
    // The NAT in front of this node drops all packets from the new address, so the node asks another peer where the
    // relay is.
    let again = w.ping(1, 0, SECOND * 60);
    assert!(again.is_some_and(|it| it < SECOND * 20), "{again:?}");
}

#[test]
fn a_lost_direct_path_is_replaced_by_the_relay_and_no_session_ends() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.run_for(SECOND * 3);
    w.ping(1, 2, SECOND * 5).unwrap();
    w.talk(1, 2, SECOND * 5);
    assert!(w.is_direct(1, 2));
    let sessions = w.connections(1);
    w.lose(1, "203.0.113.8");
    w.lose(2, "203.0.113.7");
    let longest = w.talk(1, 2, SECOND * 20);
    assert!(longest < SECOND * 3, "{longest:?}");
    assert!(w.is_relayed(1, 2), "{:?} {:?}", w.route(1, 2), w.route(2, 1));
    assert_eq!(w.connections(1), sessions, "a session ended");
}

#[test]
fn a_wall_clock_that_jumps_ends_no_session_and_no_membership() {
    let mut w = behind(&[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.run_for(SECOND * 3);
    w.ping(1, 2, SECOND * 5).unwrap();
    w.talk(1, 2, SECOND * 5);
    let (members, connections) = (w.node(2).roster().members().count(), w.connections(1));
    const YEAR: u64 = 365 * 86_400;
    for unix in [UNIX.0 + YEAR, UNIX.0 - 10 * YEAR, 0, u64::MAX, UNIX.0] {
        w.act(1, |node, now, _| node.set_unix_time(now, UnixTime(unix)));
        // Meanwhile, nodes check times, compare rosters and choose neighbours.
        let longest = w.talk(1, 2, SECOND * 320);
        assert!(longest < SECOND, "{unix}: {longest:?}");
        assert!(w.is_direct(1, 2), "{unix}");
        assert_eq!(w.node(2).roster().members().count(), members, "{unix}");
    }
    assert_eq!(w.connections(1), connections);
    let key = w.machines[2].key;
    let revocation = Revocation { key, last: None, with_invited: false };
    w.act(0, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap();
    w.run_for(SECOND * 2);
    assert_eq!(w.ping(2, 1, SECOND * 5), None);
}

#[test]
fn all_channels_of_a_session_follow_its_path() {
    let mut w = World::new(1);
    w.policy = Policy { channels: 3, workers: 3, ..Policy::default() };
    let mut w = members_of(w, &[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.run_for(SECOND * 3);
    // Each channel carries a third of the packets.
    let all_carry = |w: &mut World, relayed: bool| {
        let before = [w.received_by_channel(1, 2), w.received_by_channel(2, 1)];
        let through_hub = w.machines[0].relayed;
        let gap = w.talk(1, 2, SECOND * 3);
        assert!(gap < SECOND / 2, "{gap:?}");
        let after = [w.received_by_channel(1, 2), w.received_by_channel(2, 1)];
        for (before, after) in before.into_iter().zip(after) {
            assert_eq!((before.len(), after.len()), (3, 3));
            let grown = before.iter().zip(&after).all(|(before, after)| *after >= before + 18);
            assert!(grown, "{before:?} {after:?}");
        }
        assert_eq!(w.machines[0].relayed > through_hub, relayed);
    };
    w.ping(1, 2, SECOND * 5).unwrap();
    assert!(w.run_until(SECOND * 10, |w| w.is_direct(1, 2)));
    w.talk(1, 2, SECOND * 2);
    all_carry(&mut w, false);
    let begun = [1, 2].map(|machine| w.connections(machine));
    w.lose(1, "203.0.113.8");
    w.lose(2, "203.0.113.7");
    let gap = w.talk(1, 2, SECOND * 10);
    assert!(gap < SECOND * 3, "{gap:?}");
    assert!(w.is_relayed(1, 2));
    all_carry(&mut w, true);
    assert_eq!([1, 2].map(|machine| w.connections(machine)), begun, "no session was lost");
    // The relay has a splice for each channel and direction.
    assert_eq!(w.plane_len(0).1, 2 * 3);
    let key = w.machines[2].key;
    let revocation = Revocation { key, last: None, with_invited: false };
    w.act(0, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap();
    w.run_for(SECOND * 5);
    // The hub's session with the other machine remains.
    assert_eq!((w.plane_len(0), w.plane_len(1)), ((3, 0), (3, 0)));
}

#[test]
fn all_members_of_a_small_mesh_of_frames_keep_sessions_so_that_a_broadcast_reaches_all() {
    const MEMBERS: usize = 9;
    for layer in [Layer::Ip, Layer::Ethernet] {
        let mut w = World::new(1);
        w.layer = layer;
        let w = &mut members_of(w, &[NatBehaviour::PORT_RESTRICTED; MEMBERS - 1]);
        let all = |w: &World| (0..MEMBERS).all(|at| w.node(at).connections() == MEMBERS - 1);
        assert_eq!(w.run_until(SECOND * 60, all), layer == Layer::Ethernet);
        // Sessions without packets end after ten minutes, unless they are standing ones.
        w.run_for(SECOND * 1_500);
        assert_eq!(all(w), layer == Layer::Ethernet);
        // A member that was away gets its sessions again even without a packet for it.
        let changes = w.kill(3);
        w.run_for(SECOND * 120);
        w.start(3, changes);
        assert_eq!(w.run_until(SECOND * 120, all), layer == Layer::Ethernet);
    }
}

#[test]
fn each_channel_is_sent_from_a_port_of_its_own_while_probes_from_there_are_answered() {
    let mut w = World::new(1);
    w.policy = Policy { channels: 3, workers: 3, ..Policy::default() };
    let (hub, a, b) = (
        w.machine("198.51.100.1", None),
        w.machine("198.51.100.2", None),
        w.machine("198.51.100.3", None),
    );
    w.found(hub);
    w.join_all(hub, &[a, b]);
    // The firewall of one end lets only the first port pass, so the other end uses no other.
    w.machines[b].one_source_port = true;
    let sources = |w: &mut World| {
        [a, b].into_iter().for_each(|to| w.machines[to].sources.clear());
        let gap = w.talk(a, b, SECOND * 4);
        assert!(gap < SECOND / 2, "{gap:?}");
        [a, b].map(|to| w.machines[to].sources.iter().map(|it| it.port()).collect::<Vec<_>>())
    };
    w.ping(a, b, SECOND * 5).unwrap();
    assert!(w.run_until(SECOND * 10, |w| w.is_direct(a, b)));
    sources(&mut w);
    let all = vec![PORT, PORT + 1001, PORT + 1002];
    assert_eq!(sources(&mut w), [all.clone(), vec![PORT]]);
    // A minute later, the other ports are tried again.
    w.machines[b].one_source_port = false;
    w.talk(a, b, SECOND * 61);
    assert_eq!(sources(&mut w), [all.clone(), all.clone()]);
    // Packets from the other ports are lost until probes from there are given up, and no others.
    w.machines[b].one_source_port = true;
    let connections = [a, b].map(|machine| w.connections(machine));
    w.talk(a, b, SECOND * 3);
    w.run_for(SECOND);
    let before = w.machines[b].received.len();
    w.talk(a, b, SECOND * 4);
    assert!(w.machines[b].received.len() >= before + 79, "a packet every 50 ms, all of them");
    assert_eq!(sources(&mut w), [all, vec![PORT]]);
    assert!(w.is_direct(a, b));
    assert_eq!([a, b].map(|machine| w.connections(machine)), connections, "no session was lost");
}

#[test]
fn a_session_through_a_relay_uses_one_port() {
    let mut w = World::new(1);
    w.policy = Policy { channels: 3, workers: 3, ..Policy::default() };
    let mut w = members_of(w, &[NatBehaviour::PORT_RESTRICTED, NatBehaviour::PORT_RESTRICTED]);
    w.ping(1, 2, SECOND * 5).unwrap();
    assert!(w.run_until(SECOND * 10, |w| w.is_direct(1, 2)));
    w.lose(1, "203.0.113.8");
    w.lose(2, "203.0.113.7");
    w.talk(1, 2, SECOND * 10);
    assert!(w.is_relayed(1, 2));
    w.machines[2].sources.clear();
    let gap = w.talk(1, 2, SECOND * 4);
    assert!(gap < SECOND / 2, "{gap:?}");
    assert_eq!(w.machines[2].sources.len(), 1, "{:?}", w.machines[2].sources);
}

#[test]
fn no_session_begins_at_a_port_from_which_a_channel_is_sent() {
    for (port, reached) in [(PORT + 1001, false), (PORT, true)] {
        let mut w = World::new(1);
        w.policy = Policy { channels: 3, workers: 3, ..Policy::default() };
        let (hub, a) = (w.machine("198.51.100.1", None), w.machine("198.51.100.2", None));
        w.found(hub);
        w.join_all(hub, &[a]);
        let changes = [hub, a].map(|machine| w.kill(machine));
        w.hint_port(a, hub, port);
        for (machine, changes) in [hub, a].into_iter().zip(changes) {
            w.start(machine, changes);
        }
        assert_eq!(w.run_until(SECOND * 20, |w| w.node(a).connections() == 1), reached);
    }
}
