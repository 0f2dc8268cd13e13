//! Tests of nodes that were away, and of isolated pairs.

use std::net::IpAddr;

use adit_engine::UnixTime;
use adit_mesh::node::{NodeEvent, RouteKind};
use adit_mesh::roster::{Action, Revocation};
use adit_mesh::token::Terms;

use crate::world::{SECOND, World};

const HOUR: u64 = 3600;

/// Returns a hub and three other members. The hub removed the second one after it was killed. The first one was also killed, and does not
/// know of the removal. Eleven minutes have passed.
fn with_a_removed_node() -> World {
    let mut w = World::new(1);
    for n in 1..=4 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    w.join_all(0, &[1, 2, 3]);
    w.run_for(SECOND * 5);
    let changes = [1, 2].map(|machine| w.kill(machine));
    let key = w.machines[2].key;
    let revocation = Revocation { key, last: None, with_invited: false };
    w.act(0, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap();
    w.run_for(SECOND * 660);
    w.hint(1, 2);
    w.hint(2, 1);
    // Only the other member can reach the removed node.
    for machine in [0, 3] {
        w.lose(2, &format!("198.51.100.{}", machine + 1));
    }
    let [one, removed] = changes;
    w.start(2, removed);
    w.run_for(SECOND);
    w.start(1, one);
    w
}

fn address(w: &World, of: usize) -> IpAddr {
    w.node(of).roster().member(&w.machines[of].key).unwrap().ipv6.into()
}

fn report(w: &World, from: usize, to: usize) -> adit_mesh::node::PeerReport {
    w.node(from).peer(w.now, &w.machines[to].key)
}

#[test]
fn a_node_that_was_away_installs_no_route_to_a_node_that_was_removed_meanwhile() {
    let mut w = with_a_removed_node();
    let removed = address(&w, 2);
    let mut connected = false;
    for _ in 0..600 {
        w.run_for(SECOND / 100);
        connected |= report(&w, 1, 2).connected_for.is_some();
        assert!(!w.has_way(1, removed), "a route to a removed node");
    }
    assert!(connected, "the removed node was the first to connect");
    assert!(w.node(1).roster().member(&w.machines[2].key).is_none());
    let others = [0, 3].map(|of| (address(&w, of), report(&w, 1, of)));
    for (address, report) in others {
        assert!(w.has_way(1, address) && !report.is_stale, "{report:?}");
    }
}

#[test]
fn without_others_a_node_that_was_away_goes_on_after_two_seconds_and_shows_that_it_is_stale() {
    let mut w = with_a_removed_node();
    w.kill(0);
    w.kill(3);
    let removed = address(&w, 2);
    let is_connected = |w: &World| report(w, 1, 2).connected_for.is_some();
    assert!(w.run_until(SECOND * 60, is_connected));
    assert!(!w.has_way(1, removed));
    w.run_for(SECOND * 19 / 10);
    assert!(!w.has_way(1, removed));
    w.run_for(SECOND / 5);
    assert!(w.has_way(1, removed));
    assert!(report(&w, 1, 2).is_stale);
}

#[test]
fn a_node_that_was_away_for_a_moment_needs_no_others() {
    let mut w = World::new(1);
    for n in 1..=4 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    w.join_all(0, &[1, 2, 3]);
    w.run_for(SECOND * 5);
    let changes = w.kill(1);
    for machine in [2, 3] {
        w.kill(machine);
    }
    w.run_for(SECOND * 300);
    w.start(1, changes);
    let hub = address(&w, 0);
    let is_connected = |w: &World| report(w, 1, 0).connected_for.is_some();
    assert!(w.run_until(SECOND * 60, is_connected));
    assert!(w.has_way(1, hub) && !report(&w, 1, 0).is_stale);
}

#[test]
fn a_pair_in_isolation_ends_its_routes_after_the_greatest_age() {
    let mut w = with_a_removed_node();
    w.machines[1].max_age = Some(SECOND * HOUR as u32);
    let (changes, removed) = (w.kill(1), address(&w, 2));
    let hub = w.kill(0);
    w.kill(3);
    w.start(1, changes);
    assert!(w.run_until(SECOND * 60, |w| w.has_way(1, removed)));
    // Both compare their rosters all the time, but with no other member.
    let mut lasted = 0;
    while w.has_way(1, removed) {
        w.send(1, 2, 1);
        w.run_for(SECOND * 10);
        lasted += 10;
        assert!(lasted < HOUR, "the pair trusts each other for longer than an hour");
    }
    assert!(lasted > HOUR - 900, "after {lasted} s");
    let cut = report(&w, 1, 2);
    assert!(cut.is_expired && cut.connected_for.is_some(), "{cut:?}");
    w.start(0, hub);
    let has_hub = |w: &World| w.has_way(1, address(w, 0));
    assert!(w.run_until(SECOND * 180, has_hub));
    w.run_for(SECOND);
    assert!(w.node(1).roster().member(&w.machines[2].key).is_none());
    assert!(!w.has_way(1, removed));
}

#[test]
fn a_member_that_was_cut_off_by_age_has_its_routes_again_when_another_one_confirms_it() {
    let mut w = World::new(1);
    for n in 1..=3 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    w.machines[1].max_age = Some(SECOND * HOUR as u32);
    w.join_all(0, &[1, 2]);
    w.ping(1, 2, SECOND * 5).expect("no packet arrives");
    let hub = w.kill(0);
    let other = address(&w, 2);
    for _ in 0..HOUR / 10 + 60 {
        w.send(1, 2, 1);
        w.run_for(SECOND * 10);
    }
    assert!(!w.has_way(1, other) && report(&w, 1, 2).is_expired);
    w.start(0, hub);
    assert!(w.run_until(SECOND * 180, |w| w.has_way(1, other)));
}

/// A hub, a guest whose membership ends at the returned time, and another member with a session with both.
fn with_a_guest() -> (World, UnixTime) {
    let mut w = World::new(1);
    for n in 1..=3 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    let end = UnixTime(w.unix().0 + 100);
    let token = w.invite(0, Terms { not_after: Some(end), ..Terms::default() }, 1);
    w.join(1, token, "guest");
    w.join_all(0, &[2]);
    w.run_for(SECOND * 20);
    w.ping(2, 1, SECOND * 5).unwrap();
    (w, end)
}

#[test]
fn a_membership_that_is_over_ends_its_sessions_within_three_seconds() {
    let (mut w, end) = with_a_guest();
    let left = (end.0 - w.unix().0) as u32;
    w.run_for(SECOND * left);
    assert!([0, 2].iter().all(|of| w.route(*of, 1) != RouteKind::None), "a member until then");
    w.run_for(SECOND * 3);
    for of in [0, 2] {
        assert_eq!(w.route(of, 1), RouteKind::None, "{of}");
        assert!(!w.has_way(of, address(&w, 1)), "{of}");
    }
    let removed = |event: &NodeEvent| matches!(event, NodeEvent::Removed);
    assert!(w.machines[1].events.iter().any(removed), "the guest itself knows it");
    assert!(!w.machines[2].events.iter().any(removed));
}

#[test]
fn a_clock_that_is_set_ahead_ends_a_membership_until_it_is_set_back() {
    let (mut w, end) = with_a_guest();
    let late = UnixTime(end.0 + 1);
    w.act(0, |node, now, _| node.set_unix_time(now, late));
    w.run_for(SECOND * 2);
    assert_eq!(w.route(0, 1), RouteKind::None);
    let right = w.unix();
    w.act(0, |node, now, _| node.set_unix_time(now, right));
    assert!(w.ping(1, 0, SECOND * 30).is_some() && w.ping(0, 1, SECOND * 30).is_some());
}
