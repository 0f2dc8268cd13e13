//! Tests of a shared directory that loses entries, with nodes that have sessions.

use std::collections::BTreeSet;

use adit_mesh::directory::DirectorySync;
use adit_mesh::node::NodeEvent;
use adit_mesh::roster::MemoryDirectory;
use adit_mesh::session::KeyHash;
use adit_mesh::token::Terms;

use crate::world::{SECOND, World};

/// The directory, and each machine's exchange with it.
struct Shared {
    directory: MemoryDirectory,
    syncs: Vec<DirectorySync>,
}

impl Shared {
    fn new(w: &World) -> Self {
        let sync = |machine: usize| {
            let node = w.node(machine);
            let mut sync = DirectorySync::new(w.now, &node.key_hash(), node.changes());
            sync.connected(w.now);
            sync
        };
        let syncs = (0..w.machines.len()).map(sync).collect();
        Self { directory: MemoryDirectory::default(), syncs }
    }

    fn run_for(&mut self, w: &mut World, seconds: u32) {
        for _ in 0..seconds {
            w.run_for(SECOND);
            (0..self.syncs.len()).for_each(|machine| self.pump(w, machine));
        }
    }

    fn pump(&mut self, w: &mut World, machine: usize) {
        let sync = &mut self.syncs[machine];
        loop {
            for event in std::mem::take(&mut w.machines[machine].events) {
                if let NodeEvent::Added(hashes) = event {
                    sync.added(w.now, &hashes, w.node(machine).changes());
                }
            }
            let node = w.node(machine);
            let signers: BTreeSet<KeyHash> =
                [Some(node.key_hash()), node.admin_key()].into_iter().flatten().collect();
            let Some(request) = sync.request(w.now, node.changes(), &signers) else { return };
            let Ok(answer) = request.perform(&mut self.directory);
            let changes = sync.answer(w.now, answer, node.changes());
            w.act(machine, |node, now, out| node.receive(now, changes, out));
        }
    }
}

#[test]
fn a_directory_that_loses_an_entry_is_noticed_by_a_neighbour_and_healed_by_the_signer() {
    let mut w = World::new(8);
    let hub = w.machine("198.51.100.1", None);
    w.found(hub);
    let other = w.machine("198.51.100.2", None);
    let token = w.invite(hub, Terms::default(), 1);
    w.join(other, token, "other");
    w.run_for(SECOND * 20);
    let mut shared = Shared::new(&w);
    shared.run_for(&mut w, 60);
    let admin = w.node(hub).signer();
    let last = w.node(hub).changes().len() as u32;
    shared.directory.remove(&admin, last).expect("the last change");
    // The other node has it from its neighbour, and cannot append it.
    let is_noticed = |w: &World, shared: &Shared| {
        shared.syncs[other].lacks(w.now, w.node(other).changes()) == Some(1)
    };
    for _ in 0..80 {
        w.run_for(SECOND);
        shared.pump(&mut w, other);
        if is_noticed(&w, &shared) {
            break;
        }
    }
    assert!(is_noticed(&w, &shared));
    let counters = shared.syncs[other].counters();
    assert_eq!((counters.mismatches, counters.withheld, counters.appended), (1, 1, 0));
    shared.run_for(&mut w, 150);
    for machine in [hub, other] {
        let changes = w.node(machine).changes();
        assert_eq!(shared.syncs[machine].lacks(w.now, changes), Some(0), "{machine}");
    }
    assert!(shared.directory.remove(&admin, last).is_some(), "it is there again");
}
