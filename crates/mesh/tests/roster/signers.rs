//! The signers in the scenarios: two admins and an inviter, each at its own node.

use std::collections::BTreeSet;

use adit_engine::Random;
use adit_mesh::roster::{Action, Changes, Inviter, Revocation, Right};

use crate::world::{RELAYS, Signer, World, admit, mesh, node_key, pick};

/// Two admins and an inviter, who sign at nodes 0, 1 and 2, and their mesh.
pub(crate) struct Signers {
    pub(crate) first: Signer,
    pub(crate) second: Signer,
    pub(crate) inviter: Signer,
}

impl Signers {
    pub(crate) fn new() -> Self {
        Self { first: Signer::new(1), second: Signer::new(2), inviter: Signer::new(3) }
    }

    /// Returns an empty set.
    pub(crate) fn empty(&self) -> Changes {
        mesh(&[&self.first])
    }

    /// Returns the first admin's changes that give all signers their rights and make the first `count` nodes members.
    pub(crate) fn founding(&self, count: usize) -> impl Iterator<Item = Action> {
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
        [admin, inviter].into_iter().chain((0..count).map(admit))
    }

    /// Returns the set in which all signers have their rights and the first `count` nodes are members.
    pub(crate) fn mesh(&self, count: usize) -> Changes {
        let mut changes = self.empty();
        for action in self.founding(count) {
            self.first.write(&mut changes, action).unwrap();
        }
        changes
    }

    /// Makes one of them admit or remove a node at its own node. Some of the admitted nodes run.
    pub(crate) fn act(&self, w: &mut World, random: &mut Random) {
        let (at, signer) =
            [(0, &self.first), (1, &self.second), (2, &self.inviter)][pick(random, 3)];
        let next = w.nodes.len();
        if at < 2 && random.below(4) == 0 {
            // Keep the signers' own nodes and the relays.
            let key = node_key(RELAYS + pick(random, next - RELAYS));
            w.write(at, signer, revoke(key));
        } else {
            w.admit(at, signer, random.below(2) == 0);
        }
    }

    /// Makes the first admin revoke the second one. The second one's changes that the first one knows remain valid.
    pub(crate) fn revoke_second(&self, w: &mut World) {
        let heads = w.nodes[0].changes.heads();
        let head = heads.iter().find(|head| head.signer == self.second.hash);
        let last = head.map(|head| head.hash);
        let revocation = Revocation { key: self.second.hash, last, with_invited: false };
        assert!(w.write(0, &self.first, Action::Revoke(revocation)));
    }
}

pub(crate) fn revoke(key: adit_mesh::session::KeyHash) -> Action {
    Action::Revoke(Revocation { key, last: None, with_invited: false })
}
