//! Opens and closes connections as `AutoConnect` chooses.

use std::collections::BTreeSet;

use super::{Node, after};
use crate::autoconnect::{Candidate, Choice, Connection, INTERVAL};
use crate::legacy::FIRST_MINOR;
use crate::name::NodeName;

impl Node {
    /// Lets `AutoConnect` choose, if it is time.
    pub(super) fn choose_connections(&mut self) {
        if !self.config.auto_connect || self.now < self.choose_at {
            return;
        }
        self.choose_at = after(self.now, INTERVAL);
        self.refresh();
        let known = self.graph.nodes().chain(self.hosts.keys()).filter(|name| **name != self.own);
        let known: BTreeSet<NodeName> = known.cloned().collect();
        let candidates: Vec<Candidate<'_>> =
            known.iter().map(|node| self.candidate(node)).collect();
        for choice in self.choice.choose(&candidates, &mut self.random) {
            match choice {
                // A node that joined by an invitation has only its inviter's key. This exchanges keys, so that a later choice can connect.
                Choice::Open(node) if self.public_key(&node).is_none() => {
                    self.ask_public_key(&node);
                }
                Choice::Open(node) => self.add_outgoing(&node, true),
                Choice::Close(node) => self.drop_node(&node),
                Choice::Cancel(node) => {
                    self.outgoing.remove(&node);
                }
            }
        }
    }

    fn candidate<'a>(&self, node: &'a NodeName) -> Candidate<'a> {
        let has_key = self.public_key(node).is_some();
        let learns_key =
            self.config.learn_keys && self.hosts.get(node).is_none_or(|host| !host.unusable_key);
        let speaks = u16::from(self.minor(node)) >= FIRST_MINOR;
        Candidate {
            node,
            connection: self.connection_state(node),
            is_reachable: self.graph.route(node).is_some() && speaks && (has_key || learns_key),
            has_address: has_key
                && self.hosts.get(node).is_some_and(|host| !host.addresses.is_empty()),
            edges: self.graph.edges_of(node).count(),
        }
    }

    /// No longer opens connections by choice. Those that are open remain.
    pub(super) fn forget_choices(&mut self) {
        self.outgoing.retain(|_, outgoing| !outgoing.chosen);
    }

    /// Returns the state of the connection with a node.
    fn connection_state(&self, node: &NodeName) -> Connection {
        let outgoing = self.outgoing.get(node);
        let chosen = outgoing.is_some_and(|outgoing| outgoing.chosen);
        if self.active.contains_key(node) {
            return if chosen { Connection::Chosen } else { Connection::Kept };
        }
        match outgoing {
            None => Connection::None,
            Some(outgoing) if chosen && outgoing.due().is_some() => Connection::Waiting,
            Some(_) => Connection::Opening,
        }
    }
}
