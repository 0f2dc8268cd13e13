//! Datagrams between other nodes that another layer relays, because it has learnt their path from this node; and those that others relay to this one.
//!
//! ```text
//!   the node relays a datagram ──► ChangedPaths::transits ──► transit_path ──► the layer relays those that follow
//!   a node on the way changes  ──► ChangedPaths::nodes    ──► transit_path ──► the layer goes on, or stops
//! ```
//!
//! A relayed datagram leaves as it came. What else the node does for each of them, it does about once a second, as long as there are any:
//! see [`Node::relayed_traffic`].

use adit_engine::Instant;

use super::Node;
use super::payload::{IDS, RELAY_MINOR, RecordPath, split_ids};
use crate::meta::Options;
use crate::name::{NodeId, NodeName};

/// The kinds of relayed datagrams that are reported together.
pub(super) const MAX_TRANSITS: usize = 64;

/// A kind of datagrams that this node relays, or that are relayed to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transit {
    /// The node from whose confirmed address they come.
    pub hop: NodeName,
    /// Their first bytes: the identifiers of the destination and of the source.
    pub ids: [u8; IDS],
}

/// The path of relayed datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransitPath {
    /// They are sent on, unread.
    To {
        /// The node to whose confirmed address they are sent.
        node: NodeName,
        /// The length of the largest packet in them that takes this path, bytes. The datagram is [`super::DATAGRAM_EXTRA`] bytes longer, and
        /// has at least this length. Others take the path of [`Node::datagram`].
        mtu: u16,
    },
    /// They are for this node, in the session with their source.
    Here {
        /// The source.
        from: NodeName,
    },
}

impl TransitPath {
    /// Returns the node whose peer in the other layer they go to, or belong to.
    pub fn node(&self) -> &NodeName {
        match self {
            Self::To { node, .. } => node,
            Self::Here { from } => from,
        }
    }
}

impl Node {
    /// Returns the path of datagrams that this node relays by UDP, or that are relayed to it; `None` while they have to take the path of
    /// [`Node::datagram`].
    pub fn transit_path(&self, transit: &Transit) -> Option<TransitPath> {
        let hop = &transit.hop;
        let (from, to) = self.transit_ends(transit)?;
        let address = self.confirmed_address(hop)?;
        if self.by_address.get(&address.address) != Some(hop) || self.minor(hop) < RELAY_MINOR {
            return None;
        }
        if *to == self.own {
            return Some(TransitPath::Here { from: from.clone() });
        }
        // The path of the shortest datagrams is that of all that are not too long for it.
        let RecordPath::Udp { relay, .. } = self.record_path(from, to, 0, false)? else {
            return None;
        };
        let is_probed = self.options(&relay).has(Options::PMTU_DISCOVERY);
        let mtu = self.usable_mtu(&relay);
        let peer = self.peers.get(&relay).filter(|peer| peer.udp.confirmed)?;
        let is_usable = relay != *hop && is_probed && peer.mtu.is_fixed() && mtu > 0;
        is_usable.then_some(TransitPath::To { node: relay, mtu })
    }

    /// Returns the source, another node, and the destination, if both are reachable.
    fn transit_ends(&self, transit: &Transit) -> Option<(&NodeName, &NodeName)> {
        let (destination, source) = split_ids(&transit.ids);
        let other = |name: &&NodeName| self.peers.contains_key(*name);
        let to = self.by_id.get(&destination).filter(|to| **to == self.own || other(to));
        let from = self.by_id.get(&source).filter(other);
        from.zip(to.filter(|_| destination != NodeId::DIRECT))
    }

    /// Another layer has relayed datagrams since the last call, or got some through a relay. Call this about once a second, because it keeps their path alive.
    pub fn relayed_traffic(&mut self, now: Instant, transit: &Transit, packets: u64) {
        self.now = now;
        let ends = self.transit_ends(transit).map(|(from, to)| (from.clone(), to.clone()));
        let is_own = ends.as_ref().is_some_and(|(_, to)| *to == self.own);
        if !is_own {
            self.counters.relayed = self.counters.relayed.saturating_add(packets);
        }
        if let Some((from, to)) = ends {
            if self.graph.route(&to).is_some_and(|route| route.via == self.own) {
                self.report_address(&transit.hop, &from);
            }
            if is_own {
                self.report_mtu(&from);
            } else {
                self.try_path(&to, true);
            }
        }
        self.finish();
    }
}
