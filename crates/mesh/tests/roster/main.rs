//! Tests of the rosters of many nodes in virtual time, compared with a naive model.
//!
//! `ADIT_SEEDS=1000 cargo test -p adit-mesh --test roster` runs more than the default of 50 seeds with 20 nodes, and
//! `ADIT_LARGE_SEEDS=20` more than the default of one with 1,000 nodes.

mod directory;
mod large;
mod model;
mod signers;
mod world;

use adit_engine::Random;
use adit_mesh::roster::Changes;

use self::signers::{Signers, revoke};
use self::world::{Conduct, MS, RELAYS, SECOND, World, node_key, pick, seeded};

/// The nodes at the beginning of a run. Others join them.
const NODES: usize = 20;

/// What happens to the second admin's key.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fate {
    Honest,
    /// The first admin revokes it, but it continues to sign.
    Revoked,
    /// A thief signs with it on another node.
    Stolen,
}

/// The misbehaviour of some nodes. Each seed combines it differently with [`Fate`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Attack {
    None,
    /// Nodes send changes that no signer has signed.
    Forge,
    /// Nodes forward nothing. One of them is a relay, unless the thief has it.
    Withhold,
    /// A node continues after its removal.
    Defy,
}

struct Run {
    signers: Signers,
    random: Random,
    fate: Fate,
    attack: Attack,
    what: String,
    w: World,
}

impl Run {
    fn new(seed: u64) -> Self {
        let fate = [Fate::Honest, Fate::Revoked, Fate::Stolen][(seed % 3) as usize];
        let attacks = [Attack::None, Attack::Forge, Attack::Withhold, Attack::Defy];
        let attack = attacks[(seed % 4) as usize];
        let signers = Signers::new();
        let mut random = seeded(!seed);
        // Files of different ages: the set as of some changes ago, but always with the node itself.
        let mut set = signers.empty();
        let mut sets: Vec<Option<Changes>> = vec![None; NODES];
        let founding: Vec<_> = signers.founding(NODES).collect();
        let ages: Vec<usize> = (0..NODES).map(|_| pick(&mut random, NODES)).collect();
        for (written, action) in (1..).zip(&founding) {
            signers.first.write(&mut set, action.clone()).unwrap();
            for (at, age) in ages.iter().enumerate() {
                let age = if at < RELAYS { 0 } else { *age };
                let own = founding.len() - NODES + at + 1;
                if written == own.max(founding.len() - age) {
                    sets[at] = Some(set.clone());
                }
            }
        }
        let sets = sets.into_iter().map(Option::unwrap).collect();
        let what = format!("seed {seed}, {fate:?}, {attack:?}");
        Self { signers, random, fate, attack, what, w: World::new(sets, seed) }
    }

    fn cold_start(&mut self) {
        if self.attack == Attack::Withhold {
            let relay = (self.fate != Fate::Stolen).then_some(RELAYS - 1);
            for at in relay.into_iter().chain([7, 12]) {
                self.w.set_conduct(at, Conduct::Withholds);
            }
        }
        self.w.start_all();
        assert!(self.w.settle(60), "{}: a cold start takes more than a minute", self.what);
    }

    fn round(&mut self, round: u32) {
        for _ in 0..=self.random.below(4) {
            self.signers.act(&mut self.w, &mut self.random);
        }
        let at = RELAYS + pick(&mut self.random, self.w.nodes.len() - RELAYS);
        if self.w.is_running(at) {
            self.w.stop(at);
        } else if at < NODES {
            self.w.start(at);
        }
        match (round, self.fate) {
            (3, _) => self.w.part(),
            (7, _) => self.w.heal(),
            (5, Fate::Revoked) => self.signers.revoke_second(&mut self.w),
            // Both sign a change with the same number, and neither knows of the other's.
            (5, Fate::Stolen) => self.w.admit(3, &self.signers.second, true),
            _ => {}
        }
        match (round, self.attack) {
            (_, Attack::Forge) => {
                let from = RELAYS + pick(&mut self.random, NODES - RELAYS);
                (0..self.random.below(8)).for_each(|_| self.w.send_forged(from));
            }
            (2, Attack::Defy) => {
                self.w.start(10);
                self.w.set_conduct(10, Conduct::Defiant);
                self.w.write(0, &self.signers.first, revoke(node_key(10)));
            }
            (3.., Attack::Defy) => self.w.packet(10, pick(&mut self.random, NODES)),
            _ => {}
        }
        for _ in 0..5 {
            let nodes = self.w.nodes.len();
            let (from, to) = (pick(&mut self.random, nodes), pick(&mut self.random, nodes));
            self.w.packet(from, to);
            self.w.run(MS * self.random.below(600));
        }
        let at = pick(&mut self.random, self.w.nodes.len());
        self.w.assert_model(at, &self.what);
    }

    fn all_agree(&mut self) {
        let stopped: Vec<usize> = (0..NODES).filter(|at| !self.w.is_running(*at)).collect();
        stopped.into_iter().for_each(|at| self.w.start(at));
        self.w.heal();
        assert!(self.w.settle(600), "{}: the nodes do not agree", self.what);
        for at in (0..self.w.nodes.len()).collect::<Vec<_>>() {
            if self.w.is_good(at) {
                self.w.assert_model(at, &self.what);
            }
        }
    }
}

#[test]
fn nodes_that_come_and_go_agree_with_the_model_whatever_bad_signers_and_nodes_do() {
    let (mut packets, mut invalid, mut forks) = (0, 0, 0);
    for seed in 0..number("ADIT_SEEDS", 50) {
        let mut run = Run::new(seed);
        run.cold_start();
        (0..12).for_each(|round| run.round(round));
        run.all_agree();
        packets += run.w.packets;
        invalid += run.w.invalid();
        forks += run.w.nodes[0].changes.forks().count();
    }
    println!(
        "{packets} packets arrived, {invalid} forged changes were refused, {forks} chains forked"
    );
    assert!(packets > 0 && invalid > 0 && forks > 0);
}

#[test]
fn bytes_that_are_no_change_are_counted_and_change_nothing() {
    let signers = Signers::new();
    let mut w = World::new(vec![signers.mesh(5); 5], 1);
    w.start_all();
    w.run(SECOND * 10);
    let before = w.nodes[0].changes.digest();
    w.send_forged(2);
    w.run(SECOND * 10);
    assert!(w.invalid() > 0);
    assert!(w.nodes.iter().all(|node| node.changes.digest() == before));
}

/// Returns a number that an environment variable sets.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
