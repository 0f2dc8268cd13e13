//! Tests of twenty nodes that come and go.

use adit_engine::Random;
use adit_mesh::node::RouteKind;
use adit_mesh::roster::{Action, Revocation};
use adit_mesh::token::Terms;
use adit_sim::NatBehaviour;

use crate::world::{SECOND, World};

const NODES: usize = 20;

const BEHAVIOURS: [NatBehaviour; 5] = [
    NatBehaviour::FULL_CONE,
    NatBehaviour::ADDRESS_RESTRICTED,
    NatBehaviour::PORT_RESTRICTED,
    NatBehaviour::SYMMETRIC_RANDOM,
    NatBehaviour::SYMMETRIC_SEQUENTIAL,
];

/// Creates a mesh of a hub, a second relay, and nodes behind NATs of all kinds.
fn mesh(seed: u8, nodes: usize) -> World {
    let mut w = World::new(seed);
    let hub = w.machine("198.51.100.1", None);
    w.found(hub);
    let second = w.machine("198.51.100.2", None);
    let token = w.invite(hub, Terms { relay: true, ..Terms::default() }, 1);
    w.join(second, token, "second");
    w.run_for(SECOND);
    let mut others = Vec::new();
    for n in 2..nodes {
        let behaviour = BEHAVIOURS[n % BEHAVIOURS.len()];
        let site = w.site(&format!("203.0.113.{n}"), behaviour);
        others.push(w.machine("10.0.0.2", Some(site)));
    }
    w.join_all(hub, &others);
    w.run_for(SECOND * 20);
    w
}

/// Asserts that all running nodes have the same changes.
fn assert_agreed(w: &World) {
    let running = || w.machines.iter().filter_map(|it| it.node.as_ref());
    let digest = running().next().expect("a node").changes().digest();
    assert!(running().all(|node| node.changes().digest() == digest), "rosters differ");
}

#[test]
fn all_have_the_same_roster_and_reach_each_other() {
    let mut w = mesh(1, NODES);
    assert_agreed(&w);
    let mut random = Random::new([1; 32]);
    for _ in 0..60 {
        let from = random.below(NODES as u32) as usize;
        let to = (from + 1 + random.below(NODES as u32 - 1) as usize) % NODES;
        let took = w.ping(from, to, SECOND * 5);
        if took.is_none() {
            w.explain(from, to);
        }
        assert!(took.is_some(), "{from} -> {to}: {:?}", w.route(from, to));
    }
}

#[test]
fn a_member_with_an_old_session_reaches_a_restarted_node_soon() {
    let mut w = mesh(1, NODES);
    w.pings = true;
    for (from, to) in (2..10).map(|from| (from, 2 + (from + 5) % (NODES - 2))) {
        assert!(w.ping(from, to, SECOND * 5).is_some(), "{from} -> {to}");
        let changes = w.kill(to);
        w.run_for(SECOND);
        w.start(to, changes);
        assert_ne!(w.route(from, to), RouteKind::None, "the session outlives the restart");
        let again = w.ping(from, to, SECOND * 60).expect("no packet arrives");
        assert!(again < SECOND * 6, "{from} -> {to}: {again:?}");
    }
}

#[test]
fn nodes_that_come_and_go_agree_in_the_end_and_a_removed_one_stays_out() {
    for seed in 0..seeds() {
        let mut w = mesh(seed, NODES);
        let mut random = Random::new([seed ^ 0x77; 32]);
        let mut stopped = Vec::new();
        for _ in 0..6 {
            let machine = 2 + random.below(NODES as u32 - 2) as usize;
            if w.machines[machine].node.is_some() {
                stopped.push((machine, w.kill(machine)));
            }
            w.run_for(SECOND * u64::from(random.below(20)) as u32);
        }
        let (removed, _) = stopped[0];
        let key = w.machines[removed].key;
        let revocation = Revocation { key, last: None, with_invited: false };
        w.act(0, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap();
        w.run_for(SECOND * 2);
        for (machine, changes) in stopped {
            w.start(machine, changes);
        }
        w.run_for(SECOND * 120);
        for machine in (0..NODES).filter(|machine| *machine != removed) {
            if w.node(machine).roster().member(&key).is_some() {
                w.explain_peers(machine);
            }
            assert!(w.node(machine).roster().member(&key).is_none(), "{seed}: {machine}");
            assert_eq!(w.ping(removed, machine, SECOND), None, "{seed}: {machine}");
        }
        let running = (0..NODES).filter(|machine| *machine != removed);
        for (from, to) in running.clone().zip(running.skip(1)) {
            let took = w.ping(from, to, SECOND * 5);
            if took.is_none() {
                w.explain(from, to);
            }
            assert!(took.is_some(), "{seed}: {from} -> {to}");
        }
    }
}

/// Returns the number of seeds, which `ADIT_SEEDS` sets.
fn seeds() -> u8 {
    std::env::var("ADIT_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2)
}

/// All bytes count: pings, probes, comparisons of rosters, one renewal of each session's keys, and the hourly change of one
/// neighbour. None of them depends on the number of members, except at relays.
#[test]
fn an_idle_node_sends_less_than_200_bytes_a_second() {
    const FEW: usize = 12;
    const TIME: u32 = 3600;
    let mut w = mesh(1, FEW);
    w.pings = true;
    w.run_for(SECOND * 900);
    let before: Vec<u64> = (0..FEW).map(|at| w.sent_bytes(at)).collect();
    let sessions: Vec<usize> = (0..FEW).map(|at| w.node(at).connections()).collect();
    w.run_for(SECOND * TIME);
    let each = |at: usize| (w.sent_bytes(at) - before[at]) / u64::from(TIME);
    let rates: Vec<u64> = (0..FEW).map(each).collect();
    println!("bytes a second: {rates:?}; sessions: {sessions:?}");
    let (relays, others) = (&rates[..2], &rates[2..]);
    // Each has two relays, two neighbours of its own choice, and some that have chosen it.
    let held: usize = sessions[2..].iter().sum();
    assert!(held >= 5 * others.len(), "{sessions:?}");
    let mean = others.iter().sum::<u64>() / others.len() as u64;
    assert!(mean < 150 && others.iter().all(|rate| *rate < 200), "{others:?}");
    assert!(relays.iter().all(|rate| *rate < 50 * FEW as u64), "{relays:?}");
}
