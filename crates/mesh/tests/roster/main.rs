//! Rosters of many nodes on virtual time, compared with a naive model.
//!
//! `ADIT_SEEDS=1000 cargo test -p adit-mesh --release --test roster` runs more than the default of 50, and
//! `ADIT_NODES=1000` makes a larger mesh start at once.

mod directory;
mod model;
mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use adit_engine::Random;
use adit_mesh::roster::{Action, Changes, Inviter, Revocation, Right};
use adit_mesh::session::KeyHash;

use self::world::{MS, SECOND, Signer, World, admit, mesh, node_key, pick};

/// The nodes in a run of the model.
const NODES: usize = 20;

/// What happens to the second admin's key.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fate {
    Honest,
    /// The first admin revokes it, and it goes on signing.
    Revoked,
    /// A thief signs with it at another node.
    Stolen,
}

/// Two admins, an inviter, and a mesh that they write at nodes 0, 1 and 2.
struct Signers {
    first: Signer,
    second: Signer,
    inviter: Signer,
}

impl Signers {
    fn new() -> Self {
        Self { first: Signer::new(1), second: Signer::new(2), inviter: Signer::new(3) }
    }

    /// Returns the set in which all have their rights, and the first `count` nodes are members.
    fn mesh(&self, count: usize) -> Changes {
        let mut changes = mesh(&[&self.first]);
        let admin = Action::Grant { key: self.second.hash, right: Right::Admin };
        let limits = Inviter {
            groups: BTreeSet::new(),
            range: None,
            subnets: BTreeSet::new(),
            relay: false,
            gateway: false,
            leaves: false,
            count: 10_000,
            until: None,
        };
        let inviter = Action::Grant { key: self.inviter.hash, right: Right::Inviter(limits) };
        for action in [admin, inviter].into_iter().chain((0..count).map(admit)) {
            self.first.write(&mut changes, action).unwrap();
        }
        changes
    }

    /// Lets one of them admit or remove a node at its own node.
    fn act(&self, w: &mut World, random: &mut Random, next: &mut usize) {
        let (at, signer) =
            [(0, &self.first), (1, &self.second), (2, &self.inviter)][pick(random, 3)];
        if at < 2 && random.below(4) == 0 {
            let key = node_key(pick(random, *next));
            let revocation = Revocation { key, last: None, with_invited: false };
            w.write(at, signer, Action::Revoke(revocation));
        } else {
            w.write(at, signer, admit(*next));
            *next += 1;
        }
    }
}

fn members(w: &World, at: usize) -> BTreeSet<KeyHash> {
    w.roster(at).members().map(|member| member.key).collect()
}

fn assert_model(w: &World, at: usize, signers: &Signers, what: &str) {
    let expected = model::members(&w.nodes[at].changes, signers.first.hash);
    assert_eq!(members(w, at), expected, "{what}: node {at}");
}

/// What the first admin does when it learns of it: the second admin's changes that it knows remain.
fn revoke_second(w: &mut World, signers: &Signers) {
    let heads = w.nodes[0].changes.heads();
    let head = heads.iter().find(|head| head.signer == signers.second.hash);
    let revocation = Revocation {
        key: signers.second.hash,
        last: head.map(|head| head.hash),
        with_invited: false,
    };
    assert!(w.write(0, &signers.first, Action::Revoke(revocation)));
}

fn churn(seed: u64) {
    let signers = Signers::new();
    let mut random = Random::new([u8::try_from(seed % 251).unwrap(); 32]);
    let fate = [Fate::Honest, Fate::Revoked, Fate::Stolen][(seed % 3) as usize];
    let what = format!("seed {seed}, {fate:?}");
    let mut w = World::new(vec![signers.mesh(NODES); NODES], seed);
    let mut next = NODES;
    for round in 0..12 {
        for _ in 0..=random.below(4) {
            signers.act(&mut w, &mut random, &mut next);
        }
        let at = 4 + pick(&mut random, NODES - 4);
        if w.is_running(at) {
            w.stop(at);
        } else {
            w.start(at);
        }
        match (round, fate) {
            (3, _) => w.part(),
            (7, _) => w.heal(),
            (5, Fate::Revoked) => revoke_second(&mut w, &signers),
            (5, Fate::Stolen) => {
                // Both sign the same number, which neither knows of the other.
                w.write(3, &signers.second, admit(next));
                next += 1;
            }
            _ => {}
        }
        if random.below(3) == 0 {
            let forged = random.bytes::<200>();
            w.send_forged(pick(&mut random, NODES), &forged);
        }
        w.run(MS * random.below(3000));
        assert_model(&w, pick(&mut random, NODES), &signers, &what);
    }
    (0..NODES)
        .filter(|at| !w.is_running(*at))
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|at| w.start(at));
    w.heal();
    w.run(SECOND * 60);
    w.compare();
    assert!(w.run(SECOND * 600), "{what}: the nodes never stop sending");
    let digest = w.nodes[0].changes.digest();
    for at in 0..NODES {
        assert_eq!(w.nodes[at].changes.digest(), digest, "{what}: node {at}");
        assert_model(&w, at, &signers, &what);
        let roster = w.roster(at);
        assert!(roster.members().all(|member| !roster.revoked().contains(&member.key)), "{what}");
    }
}

#[test]
fn nodes_that_come_and_go_agree_with_the_model_whatever_a_bad_signer_does() {
    (0..seeds()).for_each(churn);
}

#[test]
fn bytes_that_are_no_change_are_counted_and_change_nothing() {
    let signers = Signers::new();
    let mut w = World::new(vec![signers.mesh(5); 5], 1);
    w.run(SECOND * 10);
    let before = w.nodes[0].changes.digest();
    w.send_forged(2, &[7; 300]);
    w.run(SECOND * 10);
    assert_eq!(w.invalid(), 1);
    assert!(w.nodes.iter().all(|node| node.changes.digest() == before));
}

#[test]
fn of_a_thousand_nodes_99_of_100_know_a_revocation_within_two_seconds() {
    const COUNT: usize = 1000;
    let signers = Signers::new();
    let mut w = World::new(vec![signers.mesh(30); COUNT], 1);
    w.run(SECOND * 30);
    let (began, bytes) = (w.now, w.bytes);
    let key = node_key(7);
    let revocation = Revocation { key, last: None, with_invited: false };
    assert!(w.write(500, &signers.first, Action::Revoke(revocation)));
    let len = w.nodes[500].changes.len();
    let know = |w: &World| w.nodes.iter().filter(|node| node.changes.len() == len).count();
    assert!(w.run_until(SECOND * 2, |w| know(w) >= COUNT * 99 / 100), "{}", know(&w));
    let took = w.now.since(began);
    assert!(w.run_until(SECOND * 10, |w| know(w) == COUNT));
    let all = w.now.since(began);
    w.run(SECOND * 10);
    let each = (w.bytes - bytes) / COUNT as u64;
    println!("99 % after {took:?}, all after {all:?}, {each} bytes sent by each node");
    assert!(each < 2000, "{each} bytes for a change of some 200");
    assert!((0..COUNT).step_by(50).all(|at| w.roster(at).member(&key).is_none()));
    // Without news, nodes compare digests every five minutes.
    let bytes = w.bytes;
    w.compare();
    w.run(SECOND * 300);
    let idle = (w.bytes - bytes) as f64 / COUNT as f64 / 300.0;
    println!("{idle:.1} bytes a second for each idle node");
    assert!(idle < 20.0, "{idle}");
}

#[test]
fn nodes_that_start_at_once_with_rosters_of_different_age_are_equal_within_a_minute() {
    let count = number("ADIT_NODES", 200);
    let signers = Signers::new();
    // Each has what there was when it joined.
    let mut set = signers.mesh(0);
    let sets: Vec<Changes> = (0..count)
        .map(|at| {
            signers.first.write(&mut set, admit(at)).unwrap();
            set.clone()
        })
        .collect();
    let mut w = World::new(sets, 1);
    let began = w.now;
    let digest = set.digest();
    let equal = |w: &World| w.nodes.iter().all(|node| node.changes.digest() == digest);
    while !equal(&w) {
        w.run(MS * 20);
        assert!(w.now.since(began) < Duration::from_secs(60));
    }
    println!("{count} nodes are equal after {:?}", w.now.since(began));
}

/// Returns the number of seeds, which `ADIT_SEEDS` sets.
fn seeds() -> u64 {
    number("ADIT_SEEDS", 50) as u64
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
