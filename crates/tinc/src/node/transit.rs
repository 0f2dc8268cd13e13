//! Datagrams between other nodes that another layer relays, because it has learnt their way from this node.
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
use super::payload::{IDS, RELAY_MINOR, Way, split_ids};
use crate::meta::Options;
use crate::name::{NodeId, NodeName};

/// The kinds of relayed datagrams that are reported together.
pub(super) const MAX_TRANSITS: usize = 64;

/// A kind of datagrams that this node relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transit {
    /// The node from whose confirmed address they come.
    pub hop: NodeName,
    /// Their first bytes: the identifiers of the destination and of the source.
    pub ids: [u8; IDS],
}

/// The way of relayed datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitPath {
    /// The node to whose confirmed address they are sent.
    pub to: NodeName,
    /// The length of the largest packet in them that goes this way, bytes. The datagram is [`super::DATAGRAM_EXTRA`] bytes longer, and has at
    /// least this length. Others take the way of [`Node::datagram`].
    pub mtu: u16,
}

impl Node {
    /// Returns the way of datagrams that this node relays by UDP; `None` while they have to take the way of [`Node::datagram`].
    pub fn transit_path(&self, transit: &Transit) -> Option<TransitPath> {
        let hop = &transit.hop;
        let (from, to) = self.transit_ends(transit)?;
        let address = self.confirmed_address(hop)?;
        if self.by_address.get(&address.address) != Some(hop) || self.minor(hop) < RELAY_MINOR {
            return None;
        }
        // The way of the shortest datagrams is that of all that are not too long for it.
        let Way::Udp { relay, .. } = self.way(from, to, 0, false)? else { return None };
        let is_probed = self.options(&relay).has(Options::PMTU_DISCOVERY);
        let mtu = self.usable_mtu(&relay);
        let peer = self.peers.get(&relay).filter(|peer| peer.udp.confirmed)?;
        let is_usable = relay != *hop && is_probed && peer.mtu.is_fixed() && mtu > 0;
        is_usable.then_some(TransitPath { to: relay, mtu })
    }

    /// Returns the source and the destination, if both are other nodes and reachable.
    fn transit_ends(&self, transit: &Transit) -> Option<(&NodeName, &NodeName)> {
        let (destination, source) = split_ids(&transit.ids);
        let reachable = |id: NodeId| self.by_id.get(&id).filter(|it| self.peers.contains_key(*it));
        Some((
            reachable(source)?,
            reachable(destination).filter(|_| destination != NodeId::DIRECT)?,
        ))
    }

    /// Another layer has relayed datagrams since the last call. Call this about once a second, because it keeps their path alive.
    pub fn relayed_traffic(&mut self, now: Instant, transit: &Transit, packets: u64) {
        self.now = now;
        self.counters.relayed = self.counters.relayed.saturating_add(packets);
        if let Some((from, to)) = self.transit_ends(transit) {
            let (from, to) = (from.clone(), to.clone());
            if self.graph.route(&to).is_some_and(|route| route.via == self.own) {
                self.report_address(&transit.hop, &from);
            }
            self.try_path(&to, true);
        }
        self.finish();
    }
}
