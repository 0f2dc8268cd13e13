//! Tests of a mesh in two places without sessions between them, whose nodes share only a directory.

use std::collections::BTreeSet;

use adit_engine::Random;
use adit_mesh::directory::DirectorySync;
use adit_mesh::roster::{ChangeHash, MemoryDirectory};
use adit_mesh::session::KeyHash;

use crate::NODES;
use crate::signers::{Signers, revoke};
use crate::world::{SECOND, World, admit, node_key, pick};

/// How long until all nodes agree once the directory is back: a read by each node, and two more while changes are appended.
const CATCH_UP: u32 = 120;

/// The directory, and each node's exchange with it.
struct Shared {
    directory: MemoryDirectory,
    syncs: Vec<DirectorySync>,
    /// The number of changes that each exchange knows of.
    seen: Vec<usize>,
    /// The keys that each node signs with.
    signers: Vec<BTreeSet<KeyHash>>,
}

impl Shared {
    fn new(w: &World, signers: &Signers) -> Self {
        let keys = [signers.first.hash, signers.second.hash, signers.inviter.hash];
        let own = |at: usize| keys.get(at).into_iter().copied().collect();
        let sync = |at: usize| DirectorySync::new(w.now, &node_key(at), &w.nodes[at].changes);
        Self {
            directory: MemoryDirectory::default(),
            syncs: (0..NODES).map(sync).collect(),
            seen: vec![0; NODES],
            signers: (0..NODES).map(own).collect(),
        }
    }

    fn set_up(&mut self, w: &World, is_up: bool) {
        for sync in &mut self.syncs {
            if is_up {
                sync.connected(w.now);
            } else {
                sync.disconnected();
            }
        }
    }

    fn run_for(&mut self, w: &mut World, seconds: u32) {
        for _ in 0..seconds {
            w.run(SECOND);
            for at in 0..NODES {
                if w.is_running(at) {
                    self.pump(w, at);
                }
            }
        }
    }

    /// Passes a node's requests to the directory until there are none left.
    fn pump(&mut self, w: &mut World, at: usize) {
        let sync = &mut self.syncs[at];
        loop {
            let changes = &w.nodes[at].changes;
            if std::mem::replace(&mut self.seen[at], changes.len()) != changes.len() {
                let all: Vec<ChangeHash> =
                    changes.in_causal_order().into_iter().map(|change| change.hash()).collect();
                sync.added(w.now, &all, changes);
            }
            let Some(request) = sync.request(w.now, changes, &self.signers[at]) else { return };
            let Ok(answer) = request.perform(&mut self.directory);
            let received = sync.answer(w.now, answer, changes);
            w.receive(at, received);
        }
    }

    /// Restarts a stopped node in a new process, with only its own file.
    fn restart(&mut self, w: &mut World, at: usize) {
        w.start(at);
        self.syncs[at] = DirectorySync::new(w.now, &node_key(at), &w.nodes[at].changes);
    }
}

/// Makes a signer admit a node that never runs, or remove one, at its own node.
fn act(w: &mut World, signers: &Signers, random: &mut Random, next: &mut usize) {
    let by = [(0, &signers.first), (1, &signers.second), (2, &signers.inviter)];
    let (at, signer) = by[pick(random, by.len())];
    if at < 2 && *next > NODES && random.below(4) == 0 {
        w.write(at, signer, revoke(node_key(NODES + pick(random, *next - NODES))));
    } else {
        w.write(at, signer, admit(*next));
        *next += 1;
    }
}

fn digests(w: &World) -> BTreeSet<[u8; 32]> {
    w.nodes.iter().map(|node| node.changes.digest()).collect()
}

#[test]
fn two_places_agree_after_an_hour_of_churn_without_the_directory() {
    for seed in 0..3 {
        let signers = Signers::new();
        let mut random = Random::new([seed; 32]);
        let mut w = World::new(vec![signers.mesh(NODES); NODES], seed.into());
        let mut shared = Shared::new(&w, &signers);
        let mut next = NODES;
        w.divide(|at| at % 2);
        w.start_all();
        shared.set_up(&w, true);
        shared.run_for(&mut w, CATCH_UP);
        act(&mut w, &signers, &mut random, &mut next);
        shared.run_for(&mut w, CATCH_UP);
        assert_eq!(digests(&w).len(), 1, "seed {seed}: through the directory");
        shared.set_up(&w, false);
        for _ in 0..60 {
            act(&mut w, &signers, &mut random, &mut next);
            let at = 3 + pick(&mut random, NODES - 3);
            if w.is_running(at) {
                w.stop(at);
            } else {
                shared.restart(&mut w, at);
            }
            shared.run_for(&mut w, 60);
        }
        for at in (0..NODES).filter(|at| !w.is_running(*at)).collect::<Vec<_>>() {
            shared.restart(&mut w, at);
        }
        shared.run_for(&mut w, 60);
        assert!(digests(&w).len() > 1, "seed {seed}: each place has its own changes");
        let mut all = w.nodes[0].changes.clone();
        w.nodes.iter().for_each(|node| all.merge(&node.changes));
        assert!(all.len() > shared.directory.len() + 50, "seed {seed}");
        shared.set_up(&w, true);
        shared.run_for(&mut w, CATCH_UP);
        assert_eq!(digests(&w).len(), 1, "seed {seed}: rosters differ");
        assert_eq!(w.nodes[0].changes.digest(), all.digest(), "seed {seed}: changes are lost");
        assert_eq!(shared.directory.len(), all.len(), "seed {seed}");
        for (at, sync) in shared.syncs.iter().enumerate() {
            let what = format!("seed {seed}, node {at}");
            assert_eq!(sync.lacks(w.now, &w.nodes[at].changes), Some(0), "{what}");
            let counters = sync.counters();
            let faults = (counters.invalid, counters.withheld, counters.mismatches);
            assert_eq!(faults, (0, 0, 0), "{what}");
        }
    }
}
