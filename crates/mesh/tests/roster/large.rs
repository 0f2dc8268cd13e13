//! Tests of a thousand nodes.

use std::time::Duration;

use adit_mesh::roster::Changes;

use crate::number;
use crate::signers::{Signers, revoke};
use crate::world::{Conduct, MS, RELAYS, SECOND, World, node_key, pick, seeded};

const NODES: usize = 1000;

/// The number of changes that a node may lack at its start, if all files are of about the same age.
const YOUNG: usize = 16;

/// The node that continues after its removal.
const DEFIANT: usize = 321;

/// The measurements of a run.
struct Figures {
    cold_start: Duration,
    most: Duration,
    all: Duration,
    change: u64,
    idle: f64,
}

/// Returns the changes that each node has on disk. The first one has all. The others lack up to [`YOUNG`] changes, or all changes after
/// they joined.
fn sets(signers: &Signers, seed: u64) -> Vec<Changes> {
    let mut random = seeded(!seed);
    let founding: Vec<_> = signers.founding(NODES).collect();
    let len = |at: usize, lacks: usize| {
        let own = founding.len() - NODES + at + 1;
        own.max(founding.len() - lacks)
    };
    let lens: Vec<usize> = (0..NODES)
        .map(|at| match seed % 10 {
            _ if at == 0 => founding.len(),
            1 => len(at, founding.len()),
            _ => len(at, pick(&mut random, YOUNG)),
        })
        .collect();
    let mut set = signers.empty();
    let mut sets: Vec<Option<Changes>> = vec![None; NODES];
    for (written, action) in (1..).zip(&founding) {
        signers.first.write(&mut set, action.clone()).unwrap();
        for (at, _) in lens.iter().enumerate().filter(|(_, len)| **len == written) {
            sets[at] = Some(set.clone());
        }
    }
    sets.into_iter().map(Option::unwrap).collect()
}

/// Both halves of a divided network make changes, and one node does not accept its removal.
fn divide_and_heal(w: &mut World, signers: &Signers) {
    w.set_conduct(DEFIANT, Conduct::Defiant);
    w.part();
    assert!(w.write(0, &signers.first, revoke(node_key(DEFIANT))));
    for (at, signer) in [(0, &signers.first), (1, &signers.second)] {
        w.write(at, signer, revoke(node_key(500 + at)));
        w.admit(at, signer, true);
    }
    (RELAYS..NODES).step_by(50).for_each(|at| w.stop(at));
    w.run(SECOND * 60);
    (RELAYS..NODES).step_by(50).for_each(|at| w.start(at));
    w.heal();
    assert!(w.settle(300), "the halves do not agree");
    assert!((0..NODES).step_by(40).all(|to| {
        w.packet(DEFIANT, to);
        !w.is_good(to) || !w.is_member(to, &node_key(DEFIANT))
    }));
}

fn run(seed: u64) -> Figures {
    let signers = Signers::new();
    let mut w = World::new(sets(&signers, seed), seed);
    // No node is removed before this, and evaluating each of the many different sets would be slow.
    w.is_checked = false;
    w.start_all();
    assert!(w.settle(60), "seed {seed}: a cold start takes more than a minute");
    let cold_start = w.settled_after();
    w.is_checked = true;
    divide_and_heal(&mut w, &signers);

    let (began, bytes) = (w.now, w.bytes);
    assert!(w.write(600, &signers.first, revoke(node_key(7))));
    let honest: Vec<usize> = (0..w.nodes.len()).filter(|at| w.is_good(*at)).collect();
    let len = w.nodes[600].changes.len();
    let know = |w: &World| honest.iter().filter(|at| w.nodes[**at].changes.len() == len).count();
    let of_100 = honest.len() * 99 / 100;
    // The removed node itself may not learn of it.
    let [most, all] = [of_100, honest.len() - 1].map(|enough| {
        while know(&w) < enough {
            w.run(MS);
            let took = w.now.since(began);
            assert!(took < SECOND * 2 || know(&w) >= of_100, "seed {seed}: {}", know(&w));
            assert!(took < SECOND * 10, "seed {seed}: {}", know(&w));
        }
        w.now.since(began)
    });
    w.run(SECOND * 10);
    let change = (w.bytes - bytes) / NODES as u64;
    assert!(change < 3000, "seed {seed}: {change} bytes for a change of some 200");
    assert!(honest.iter().step_by(50).all(|at| !w.is_member(*at, &node_key(7))));

    // Without changes, nodes compare digests every five minutes.
    let bytes = w.bytes;
    w.run(SECOND * 600);
    let idle = (w.bytes - bytes) as f64 / NODES as f64 / 600.0;
    assert!(idle < 20.0, "seed {seed}: {idle}");
    assert!(w.is_settled());
    for at in [0, 600, 999] {
        w.assert_model(at, "at the end");
    }
    Figures { cold_start, most, all, change, idle }
}

#[test]
fn a_thousand_nodes_agree_after_a_cold_start_and_a_partition_and_99_of_100_know_a_revocation_in_2_s()
 {
    for seed in 0..number("ADIT_LARGE_SEEDS", 1) {
        let Figures { cold_start, most, all, change, idle } = run(seed);
        println!(
            "seed {seed}: equal {cold_start:?} after a cold start; 99 % know a revocation after {most:?}, all after {all:?}; \
             {change} bytes of each node for it, {idle:.1} bytes a second of an idle one"
        );
    }
}
