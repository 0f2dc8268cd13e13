//! The connections that this node opens, and when it tries again.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::Instant;

use super::{CloseReason, ConnectionId, Node, Output, after, canonical};
use crate::name::NodeName;

/// By how much the time between two rounds over a node's addresses grows.
const BACKOFF_STEP: Duration = Duration::from_secs(5);

/// The largest random delay before a round, so that nodes that failed at once do not all try again at once.
const JITTER_MS: u32 = 1000;

/// The number of addresses at which a node was reached that are remembered.
const MAX_RECENT: usize = 8;

/// The number of addresses that are tried in a round.
const MAX_ADDRESSES: usize = 64;

/// A node that this node keeps a connection with.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// `AutoConnect` chose it.
    pub(super) chosen: bool,
    state: State,
    backoff: Duration,
    /// The addresses to try in this round.
    addresses: VecDeque<Candidate>,
}

#[derive(Debug)]
enum State {
    Waiting(Instant),
    Resolving,
    Dialling(ConnectionId),
    Connected,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Candidate {
    Address(SocketAddr),
    Host(String, u16),
}

impl Outgoing {
    pub(super) fn connected(&mut self) {
        self.state = State::Connected;
        self.addresses.clear();
    }

    pub(super) fn reset_backoff(&mut self) {
        self.backoff = Duration::ZERO;
    }

    /// Returns when to start a round.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(at) => Some(at),
            State::Resolving | State::Dialling(_) | State::Connected => None,
        }
    }
}

impl Node {
    /// Keeps a connection with a node from now on.
    pub fn connect(&mut self, now: Instant, node: &NodeName) {
        self.now = now;
        if *node != self.own {
            self.add_outgoing(node, false);
            self.start_rounds();
        }
        self.finish();
    }

    /// Closes the connection with a node, or the attempt to open one. Returns whether there was one. If this node keeps a connection, it opens another
    /// one a few seconds later, like tinc.
    pub fn disconnect(&mut self, now: Instant, node: &NodeName) -> bool {
        self.now = now;
        if let Some(outgoing) = self.outgoing.get_mut(node) {
            outgoing.addresses.clear();
            outgoing.backoff = outgoing.backoff.max(BACKOFF_STEP);
        }
        let known = self.close_with(node);
        self.finish();
        known
    }

    /// Closes the connection with a node, and no longer keeps one.
    pub(super) fn drop_node(&mut self, node: &NodeName) {
        self.outgoing.remove(node);
        self.close_with(node);
    }

    fn close_with(&mut self, node: &NodeName) -> bool {
        let ids = self.connections.iter().filter(|(_, connection)| {
            connection.dialled.as_ref() == Some(node)
                || connection.meta().is_some_and(|meta| meta.node == *node)
        });
        let ids: Vec<ConnectionId> = ids.map(|(id, _)| *id).collect();
        let connected = !ids.is_empty();
        for id in ids {
            self.close(id, CloseReason::Requested);
        }
        connected
    }

    /// Tries at once to open the connections that are missing.
    pub fn retry(&mut self, now: Instant) {
        self.now = now;
        for outgoing in self.outgoing.values_mut() {
            outgoing.reset_backoff();
            if outgoing.due().is_some() {
                outgoing.state = State::Waiting(now);
            }
        }
        self.start_rounds();
        self.finish();
    }

    /// The addresses that an [`Output::Resolve`] found; none if it failed.
    pub fn resolved(&mut self, now: Instant, node: &NodeName, addresses: &[SocketAddr]) {
        self.now = now;
        if let Some(outgoing) = self.outgoing.get_mut(node)
            && matches!(outgoing.state, State::Resolving)
        {
            for address in addresses.iter().take(MAX_ADDRESSES).rev() {
                outgoing.addresses.push_front(Candidate::Address(canonical(*address)));
            }
            self.dial_next(node);
        }
        self.finish();
    }

    pub(super) fn add_outgoing(&mut self, node: &NodeName, chosen: bool) {
        if *node == self.own {
            return;
        }
        let state = if self.active.contains_key(node) {
            State::Connected
        } else {
            State::Waiting(self.now)
        };
        let (backoff, addresses) = (Duration::ZERO, VecDeque::new());
        let outgoing = Outgoing { chosen, state, backoff, addresses };
        let outgoing = self.outgoing.entry(node.clone()).or_insert(outgoing);
        outgoing.chosen &= chosen;
    }

    /// Starts the rounds that are due.
    pub(super) fn start_rounds(&mut self) {
        let now = self.now;
        let due = self.outgoing.iter().filter(|(_, it)| it.due().is_some_and(|at| now >= at));
        let due: Vec<NodeName> = due.map(|(name, _)| name.clone()).collect();
        for node in due {
            let addresses = self.addresses_of(&node);
            let connected = self.active.contains_key(&node);
            let Some(outgoing) = self.outgoing.get_mut(&node) else { continue };
            if connected {
                outgoing.connected();
                continue;
            }
            outgoing.addresses = addresses;
            self.dial_next(&node);
        }
    }

    /// Returns the addresses to try: where the node was reached lately, where other nodes see it, and those in its host file.
    fn addresses_of(&self, node: &NodeName) -> VecDeque<Candidate> {
        let recent = self.recent.get(node).into_iter().flatten().copied();
        let seen = self.graph.edges_of(node).filter_map(|(other, _)| {
            let edge = self.graph.edge(other, node).filter(|_| *other != self.own)?;
            edge.address.remote()
        });
        let mut candidates: VecDeque<Candidate> = VecDeque::new();
        for address in recent.chain(seen) {
            let candidate = Candidate::Address(address);
            if !candidates.contains(&candidate) {
                candidates.push_back(candidate);
            }
        }
        candidates.truncate(MAX_ADDRESSES);
        let Some(host) = self.hosts.get(node) else { return candidates };
        for address in &host.addresses {
            let port = address.port.unwrap_or(host.port);
            let candidate = match address.host.parse() {
                Ok(ip) => Candidate::Address(canonical(SocketAddr::new(ip, port))),
                Err(_) => Candidate::Host(address.host.clone(), port),
            };
            if !candidates.contains(&candidate) {
                candidates.push_back(candidate);
            }
        }
        candidates
    }

    /// Tries the next address of a round, or waits for the next round.
    fn dial_next(&mut self, node: &NodeName) {
        let Some(outgoing) = self.outgoing.get_mut(node) else { return };
        let family = self.config.address_family;
        outgoing.addresses.retain(|candidate| match candidate {
            Candidate::Address(address) => family.includes(address),
            Candidate::Host(..) => true,
        });
        match outgoing.addresses.pop_front() {
            Some(Candidate::Address(address)) => {
                let id = self.dial(node, address);
                if let Some(outgoing) = self.outgoing.get_mut(node) {
                    outgoing.state = State::Dialling(id);
                }
            }
            Some(Candidate::Host(host, port)) => {
                outgoing.state = State::Resolving;
                self.outputs.push_back(Output::Resolve { node: node.clone(), host, port });
            }
            None => {
                let longest = self.config.max_timeout;
                outgoing.backoff = outgoing.backoff.saturating_add(BACKOFF_STEP).min(longest);
                let jitter = Duration::from_millis(self.random.below(JITTER_MS).into());
                outgoing.state = State::Waiting(after(after(self.now, outgoing.backoff), jitter));
            }
        }
    }

    /// A connection with a node ended, or an attempt failed.
    pub(super) fn outgoing_ended(&mut self, node: &NodeName, id: ConnectionId) {
        let connected = self.active.contains_key(node);
        let Some(outgoing) = self.outgoing.get_mut(node) else { return };
        match outgoing.state {
            State::Dialling(attempt) if attempt == id => self.dial_next(node),
            State::Connected if !connected => {
                let jitter = Duration::from_millis(self.random.below(JITTER_MS).into());
                outgoing.state = State::Waiting(after(after(self.now, outgoing.backoff), jitter));
            }
            _ => {}
        }
    }

    /// Remembers an address at which a node was reached.
    pub(super) fn remember_address(&mut self, node: &NodeName, address: SocketAddr) {
        let recent = self.recent.entry(node.clone()).or_default();
        recent.retain(|known| *known != address);
        recent.push_front(address);
        recent.truncate(MAX_RECENT);
    }

    /// Returns the addresses at which a node was reached, the latest first, to be kept across a restart.
    pub fn recent_addresses(&self, node: &NodeName) -> Vec<SocketAddr> {
        self.recent.get(node).into_iter().flatten().copied().collect()
    }

    /// Returns the same for all nodes with such addresses, in the order of their names.
    pub fn all_recent_addresses(&self) -> impl Iterator<Item = (&NodeName, Vec<SocketAddr>)> {
        self.recent.iter().map(|(node, recent)| (node, recent.iter().copied().collect()))
    }

    /// Sets the result of [`Node::recent_addresses`] in an earlier run.
    pub fn set_recent_addresses(&mut self, node: &NodeName, addresses: &[SocketAddr]) {
        for address in addresses.iter().take(MAX_RECENT).rev() {
            self.remember_address(node, canonical(*address));
        }
    }
}
