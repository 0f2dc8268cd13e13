//! Nets of nodes in virtual time: whatever happens, they agree on the topology and exchange packets once it is over.
//!
//! `ADIT_SEEDS=1000` runs more seeds than usual.

mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use adit_engine::Random;
use adit_sim::{Impairment, Loss};
use adit_tinc::aead::Cipher;
use adit_tinc::name::NodeName;
use adit_tinc::node::Output;

use crate::world::{World, name};

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let seeds = std::env::var("ADIT_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    0..seeds.unwrap_or(usual)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lossy() -> Impairment {
    Impairment {
        loss: Loss::Random(0.02),
        reorder: 0.05,
        reorder_by: Duration::from_millis(30),
        delay: Duration::from_millis(5),
        jitter: Duration::from_millis(10),
        ..Impairment::default()
    }
}

/// Chooses nodes to connect to, so that all are connected: some by one side, some by both.
fn connections(random: &mut Random, count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(); count];
    for node in 1..count {
        let other = random.below(u32::try_from(node).unwrap()) as usize;
        all[node].push(other);
        if random.below(3) == 0 {
            all[other].push(node);
        }
    }
    for _ in 0..random.below(u32::try_from(count).unwrap()) {
        let [from, to] = [0, 1].map(|_| random.below(u32::try_from(count).unwrap()) as usize);
        if from != to && !all[from].contains(&to) {
            all[from].push(to);
        }
    }
    all
}

/// Sections 6 to 11: with loss, reordering, restarts and partitions that heal, all nodes finally reach each other, and control traffic is
/// bounded.
#[test]
fn nets_recover_from_whatever_happens() {
    for seed in seeds(50) {
        let mut random = Random::new([u8::try_from(seed % 251).unwrap(); 32]);
        let count = 2 + (seed % 4) as usize;
        let connect_to = connections(&mut random, count);
        let mut world = World::new(seed, &connect_to, &lossy());
        world.run(secs(10));
        for _ in 0..3 {
            match world.below(3) {
                0 => {
                    let host = world.below(count);
                    world.restart(host);
                }
                1 => {
                    let side: BTreeSet<usize> =
                        (0..count).filter(|_| world.below(2) == 0).collect();
                    world.partition(&side);
                }
                _ => {
                    for _ in 0..5 {
                        let (from, to) = (world.below(count), world.below(count));
                        let len = 24 + world.below(1400);
                        world.send(from, to, 0, len);
                    }
                }
            }
            let pause = 1 + world.below(20);
            world.run(secs(pause as u64));
        }
        world.partition(&BTreeSet::new());
        world.run(secs(60));
        let context = format!("seed {seed}: {connect_to:?}");
        world.assert_all_reachable(&context);
        world.assert_all_exchange(40, 100, &context);
        let before = world.sends;
        world.run(secs(60));
        let quiet = world.sends - before;
        let edges: usize = connect_to.iter().map(Vec::len).sum();
        // A PING and a PONG of each side in a minute, and handshakes that the last packets began.
        assert!(quiet <= 8 * edges as u64 + 8 * (count * count) as u64, "{context}: {quiet} sends");
    }
}

/// Sections 5.7 and 9.3: two nodes that connect to each other and send to each other at once.
#[test]
fn two_nodes_that_start_at_once_find_each_other() {
    for seed in seeds(100) {
        let mut world = World::new(seed, &[vec![1], vec![0]], &Impairment::default());
        world.run(Duration::from_millis(500));
        for _ in 0..2 {
            world.send(0, 1, 0, 100);
            world.send(1, 0, 0, 100);
            world.run(secs(2));
        }
        world.run(secs(6));
        world.assert_all_reachable(&format!("seed {seed}"));
        world.assert_all_exchange(15, 100, &format!("seed {seed}"));
        assert_eq!(world.hosts[0].node.neighbours().count(), 1);
    }
}

/// Section 5.7: nodes that connect to each other at once keep one connection, and dial no second time.
#[test]
fn of_two_connections_at_once_one_remains() {
    for seed in seeds(20) {
        let mut world = World::new(seed, &[vec![1], vec![0]], &Impairment::default());
        world.run(secs(4));
        let neighbours = [0, 1].map(|host: usize| world.hosts[host].node.neighbours().count());
        assert_eq!((world.dials, neighbours), (2, [1, 1]), "seed {seed}");
    }
}

/// Sections 10.3 and 11: two nodes without a direct connection find a direct UDP path.
#[test]
fn nodes_without_a_connection_reach_each_other_directly_by_udp() {
    let mut world = World::new(1, &[vec![], vec![0], vec![0]], &lossy());
    world.run(secs(5));
    for number in 0..30 {
        world.send(1, 2, number, 500);
        world.send(2, 1, number, 500);
        world.run(secs(1));
    }
    assert!(world.is_direct(1, 2) && world.is_direct(2, 1));
    let relayed = world.hosts[0].node.counters().relayed;
    for number in 100..200 {
        world.send(1, 2, number, 1400);
        world.run(Duration::from_millis(350));
    }
    let mtu = world.hosts[1].node.mtu(&name(2));
    assert!((1400..=1472 - 33).contains(&mtu), "{mtu}");
    world.send(1, 2, 1000, usize::from(mtu));
    world.run(secs(1));
    let arrived =
        world.hosts[2].delivered.iter().filter(|(_, number)| (190..=1000).contains(number));
    assert!(arrived.count() >= 9);
    let later = world.hosts[0].node.counters().relayed;
    assert!(later - relayed < 100, "the path is direct: {relayed} {later}");
}

/// Section 10.3: without a direct path, packets go over the node that both have a connection with.
#[test]
fn nodes_without_a_path_use_the_one_between_them() {
    let mut world = World::new(2, &[vec![], vec![0], vec![0]], &lossy());
    world.no_udp.insert((1, 2));
    world.run(secs(5));
    for number in 0..30 {
        world.send(1, 2, number, 500);
        world.run(secs(1));
    }
    assert!(!world.is_direct(1, 2) && world.is_direct(1, 0));
    let got = world.hosts[2].delivered.len();
    assert!(got >= 25, "{got} of 30");
    assert!(world.hosts[0].node.counters().relayed >= 25);
}

/// Section 10.3: with TCP alone everything arrives, also through a chain.
#[test]
fn a_net_without_udp_works_over_tcp() {
    let mut world = World::new(3, &[vec![], vec![0], vec![1], vec![2]], &lossy());
    world.no_udp = (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b))).collect();
    world.run(secs(10));
    world.assert_all_reachable("without UDP");
    world.assert_all_exchange(20, 1400, "without UDP");
    assert!(!world.is_direct(0, 1));
}

/// Section 4.6: keys are renewed every hour, and no packet is lost. Section 9.5.
#[test]
fn rekeys_lose_no_packets() {
    let mut world = World::new(4, &[vec![], vec![0], vec![0]], &Impairment::default());
    world.run(secs(5));
    world.assert_all_exchange(20, 100, "before");
    for number in 0..30 {
        world.send(1, 2, number, 100);
        world.run(secs(1));
    }
    world.hosts[2].delivered.clear();
    world.run(secs(3500));
    let mut sent = 0;
    for number in 0..6000 {
        world.send(1, 2, number, 100);
        sent += 1;
        world.run(Duration::from_millis(100));
    }
    assert_eq!(world.hosts[2].delivered.len(), sent);
}

/// Section 4.6: packets flow all the time while keys are renewed, both between two nodes of adit and with tinc's cipher. Datagrams overtake the
/// handshake by tens of milliseconds.
#[test]
fn rekeys_under_bulk_lose_no_packets() {
    for old in [false, true] {
        let mut world = World::new(8, &[vec![], vec![0], vec![1]], &Impairment::default());
        world.key_expire = secs(40);
        world.old.extend(old.then_some(1));
        (0..3).for_each(|host| world.restart(host));
        world.run(secs(5));
        for number in 0..30 {
            world.send(1, 2, number, 100);
            world.send(2, 1, number, 100);
            world.run(secs(1));
        }
        assert!(world.is_direct(1, 2) && world.is_direct(2, 1));
        world.hosts.iter_mut().for_each(|host| host.delivered.clear());
        let (mut sent, before) = (0, world.rekeys);
        while world.rekeys < before + 2 {
            // The first message after a silence begins a rekey, or it is a PING.
            let silence = world.sends;
            while world.sends == silence {
                world.run(Duration::from_millis(1));
            }
            for _ in 0..1000 {
                world.send(1, 2, sent, 100);
                world.send(2, 1, sent, 100);
                sent += 1;
                world.run(Duration::from_micros(200));
            }
            assert!(sent < 10_000, "no rekey");
        }
        world.run(secs(1));
        let lost = [1, 2].map(|host: usize| sent as usize - world.hosts[host].delivered.len());
        assert_eq!(lost, [0, 0], "of {sent}, with an old node: {old}");
    }
}

/// Section 8.5: nodes without a ConnectTo line choose connections, and keep them.
#[test]
fn nodes_choose_their_connections() {
    let count = 7;
    let mut world = World::new(6, &vec![Vec::new(); count], &Impairment::default());
    world.run(secs(60));
    world.assert_all_reachable("chosen connections");
    let neighbours = |world: &World| -> Vec<usize> {
        world.hosts.iter().map(|host| host.node.neighbours().count()).collect()
    };
    let before = neighbours(&world);
    assert!(before.iter().all(|count| (3..=6).contains(count)), "{before:?}");
    world.partition(&BTreeSet::from([0, 1]));
    world.run(secs(120));
    world.partition(&BTreeSet::new());
    world.run(secs(120));
    world.assert_all_reachable("after a partition");
    let sends = world.sends;
    world.run(secs(60));
    assert!(world.sends - sends < 60 * count as u64, "few changes: {}", world.sends - sends);
}

/// Section 8.5: a node with more than three connections closes those that it opened itself, unless the other end needs them.
#[test]
fn surplus_connections_are_closed() {
    let count = 10;
    let mut world = World::new(7, &vec![Vec::new(); count], &Impairment::default());
    let surplus = |world: &World| -> usize {
        let has_enough = |name: &NodeName| {
            let mut hosts = world.hosts.iter();
            hosts.any(|host| host.node.name() == name && host.node.neighbours().count() > 3)
        };
        let hosts = world.hosts.iter().filter(|host| has_enough(host.node.name()));
        let opened = hosts.flat_map(|host| host.node.connection_infos());
        let opened = opened.filter(|info| info.outgoing && info.active);
        opened.filter(|info| info.node.as_ref().is_some_and(has_enough)).count()
    };
    world.run(secs(15));
    assert!(surplus(&world) > 0, "all nodes open three at once");
    world.run(secs(600));
    assert_eq!(surplus(&world), 0);
    world.assert_all_reachable("with fewer connections");
    assert!(world.hosts.iter().all(|host| host.node.neighbours().count() >= 3));
}

/// Section 7.5: a restart in a net with many connections costs a bounded number of messages.
#[test]
fn a_restart_costs_a_bounded_number_of_messages() {
    let count = 8_usize;
    let all: Vec<Vec<usize>> = (0..count).map(|node| (0..node).collect()).collect();
    let mut world = World::new(5, &all, &Impairment::default());
    world.run(secs(30));
    world.assert_all_reachable("at first");
    let before = world.sends;
    world.restart(3);
    world.run(secs(30));
    world.assert_all_reachable("after a restart");
    let sends = world.sends - before;
    // About n connections come and go, and each change is flooded over all of n² / 2.
    assert!(sends < 16 * (count * count * count) as u64, "{sends}");
    while let Some(output) = world.hosts[0].node.pop() {
        assert!(!matches!(output, Output::Send { .. }));
    }
}

/// Section 18.2 and 9.3: all pairs agree on AES-256-GCM, also if both ask at once. It survives rekeys, and ends with a restart as an old version.
#[test]
fn nodes_agree_on_aes_until_one_is_old() {
    for seed in seeds(10) {
        let mut world = World::new(seed, &[vec![1], vec![], vec![1]], &Impairment::default());
        let assert_ciphers = |world: &World, old: Option<usize>, context: &str| {
            for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                let is_old = old.is_some_and(|old| old == from || old == to);
                let wanted = if is_old { Cipher::ChaCha20Poly1305 } else { Cipher::Aes256Gcm };
                let cipher = world.cipher(from, to);
                assert_eq!(cipher, Some(wanted), "seed {seed}, {context}: {from} to {to}");
            }
        };
        world.run(secs(5));
        world.assert_all_exchange(20, 100, &format!("seed {seed}"));
        assert_ciphers(&world, None, "at the start");
        // Keys are renewed every hour.
        world.run(secs(2 * 3600));
        world.assert_all_exchange(20, 100, &format!("seed {seed}, after rekeys"));
        assert_ciphers(&world, None, "after rekeys");
        world.old.insert(2);
        world.restart(2);
        world.run(secs(30));
        world.assert_all_exchange(20, 100, &format!("seed {seed}, with an old node"));
        assert_ciphers(&world, Some(2), "with an old node");
        world.old.clear();
        world.restart(2);
        world.run(secs(30));
        world.assert_all_exchange(20, 100, &format!("seed {seed}, with a new one"));
        assert_ciphers(&world, None, "with a new one");
    }
}
