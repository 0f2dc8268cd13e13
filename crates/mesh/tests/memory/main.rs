//! The memory that a node keeps for members that have come and gone. This test runs alone in its process, because it
//! measures the memory of all threads.

#[expect(dead_code, reason = "a small part of it is used here")]
#[path = "../node/world.rs"]
mod world;

use adit_linux::memory::in_use;
use adit_mesh::roster::{Action, Revocation};
use adit_mesh::token::Terms;

use crate::world::{SECOND, World};

/// The nodes that run the whole time. The first one signs all changes.
const NODES: usize = 3;

/// The machine that joins and is removed, each time with a new key.
const GUEST: usize = NODES;

/// The bytes that a change takes: the change itself, its places in the set's tables, and the hash of the removed key. The node records
/// which neighbours have it until both compare their rosters.
const PER_CHANGE: usize = 1024;

/// Lets guests come and go. Returns the bytes of memory of each node.
fn sizes(guests: u8) -> Vec<usize> {
    let mut w = World::new(1);
    for n in 1..=NODES + 1 {
        w.machine(&format!("198.51.100.{n}"), None);
    }
    w.found(0);
    w.join_all(0, &[1, 2]);
    for guest in 0..guests {
        w.renew(GUEST, 100 + guest);
        let token = w.invite(0, Terms::default(), 1);
        w.join(GUEST, token, "guest");
        assert!(w.run_until(SECOND * 10, |w| w.machines[GUEST].node.is_some()), "{guest}");
        for from in 0..NODES {
            w.ping(from, GUEST, SECOND * 10).unwrap();
        }
        let key = w.machines[GUEST].key;
        let revocation = Revocation { key, last: None, with_invited: false };
        w.act(0, |node, now, out| node.sign(now, Action::Revoke(revocation), out)).unwrap();
        w.run_for(SECOND * 3);
        drop(w.kill(GUEST));
    }
    // All budgets are full again, and rosters were compared.
    w.run_for(SECOND * 700);
    let changes = w.node(0).changes().len();
    assert_eq!(changes, NODES + 2 * usize::from(guests));
    let size = |w: &mut World, of: usize| {
        assert_eq!(w.node(of).changes().len(), changes);
        w.act(of, |node, now, _| node.release_memory(now));
        let before = in_use().expect("the C library reports it");
        drop(w.machines[of].node.take());
        before.saturating_sub(in_use().expect("it was reported before"))
    };
    (0..NODES).map(|of| size(&mut w, of)).collect()
}

#[test]
fn a_node_keeps_nothing_but_the_signed_changes_of_members_that_have_gone() {
    if in_use().is_none() {
        return;
    }
    const FEW: u8 = 10;
    const MANY: u8 = 50;
    let (few, many) = (sizes(FEW), sizes(MANY));
    let changes = 2 * usize::from(MANY - FEW);
    let per_change: Vec<usize> =
        few.iter().zip(&many).map(|(few, many)| many.saturating_sub(*few) / changes).collect();
    println!("bytes of each node: {few:?}, {many:?}; for each change: {per_change:?}");
    assert!(per_change.iter().all(|bytes| (200..PER_CHANGE).contains(bytes)), "{per_change:?}");
}
