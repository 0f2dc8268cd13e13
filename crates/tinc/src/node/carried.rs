//! Nodes whose packets another layer carries, which seals and opens the records of their sessions itself.
//!
//! ```text
//!   direct_path ──► the layer takes over ──► set_carried(true) ──► Output::Record, carried_record, carried_traffic
//!       None    ──► the layer stops      ──► set_carried(false)
//! ```
//!
//! Their datagrams go to the node itself, or through a relay. The node keeps everything but the packets: handshakes, probes, the path MTU.
//! Before a handshake record is handled or sent, the layer must stop, because such a record must not be overtaken by many others: the node waits
//! for [`Node::set_carried`]. With another node of adit the layer carries on, and takes over the new keys from [`Node::direct_path`].

use std::collections::BTreeSet;

use adit_engine::Instant;

use super::control::Traffic;
use super::payload::{Arrival, IDS, RELAY_MINOR, RecordPath};
use super::transit::{MAX_TRANSITS, Transit};
use super::{Node, UdpEndpoint};
use crate::config::Mode;
use crate::meta::{AddressToken, Options};
use crate::name::{NodeId, NodeName};
use crate::sptps::SharedSession;

/// The number of handshake records of a node that wait until another layer has stopped to carry its packets.
const MAX_DEFERRED: usize = 4;

/// The path of packets to and from a node by UDP.
#[derive(Clone, Debug)]
pub struct DirectPath {
    /// The node to whose confirmed address datagrams are sent, if it relays them; otherwise they go to the node itself.
    pub relay: Option<NodeName>,
    /// The session.
    pub session: SharedSession,
    /// This node, as the source of datagrams.
    pub own: NodeId,
    /// The other node, as the source of datagrams.
    pub peer: NodeId,
    /// The length of the largest packet that goes by UDP, bytes; in switch mode, of the largest frame. Longer ones take the path of [`Node::send_packet`].
    pub mtu: u16,
    /// The MSS of TCP connections is lowered to what fits into `mtu`.
    pub clamp_mss: bool,
}

impl DirectPath {
    /// Returns whether nothing differs but the address.
    pub fn is_same(&self, other: &Self) -> bool {
        self.session.is_same(&other.session) && self.is_continued_by(other)
    }

    /// Returns whether nothing differs but the address and the keys. The layer may take over the new ones without a stop.
    pub fn is_continued_by(&self, other: &Self) -> bool {
        self.session.is_continued_by(&other.session)
            && (self.mtu, self.clamp_mss) == (other.mtu, other.clamp_mss)
            && self.relay == other.relay
    }
}

/// The nodes whose direct path may have changed.
#[derive(Debug, Default)]
pub struct ChangedPaths {
    /// All nodes.
    pub all: bool,
    /// These nodes, which may have become unreachable.
    pub nodes: BTreeSet<NodeName>,
    /// The kinds of datagrams that were relayed by UDP since the last call, and of relayed ones for this node; some of them if there are many.
    pub transits: Vec<Transit>,
}

impl ChangedPaths {
    pub(super) fn add(&mut self, node: &NodeName) {
        // Nodes are at most as many as the graph can have.
        if !self.all && !self.nodes.contains(node) {
            self.nodes.insert(node.clone());
        }
    }

    pub(super) fn add_transit(&mut self, hop: &NodeName, ids: [u8; IDS]) {
        let is_known = self.transits.iter().any(|it| it.ids == ids && it.hop == *hop);
        if !is_known && self.transits.len() < MAX_TRANSITS {
            self.transits.push(Transit { hop: hop.clone(), ids });
        }
    }

    /// Returns whether there are no such nodes.
    pub fn is_empty(&self) -> bool {
        !self.all && self.nodes.is_empty()
    }
}

/// A handshake record that waits.
pub(super) type Deferred = (Vec<u8>, Option<AddressToken>);

impl Node {
    /// Takes the nodes for which [`Node::direct_path`], [`Node::confirmed_address`] or [`Node::transit_path`] may have another result than before.
    /// The last one concerns the hop of a [`Transit`] and the node that its datagrams go to.
    pub fn take_changed_paths(&mut self) -> ChangedPaths {
        std::mem::take(&mut self.changed_paths)
    }

    /// Returns the names of the other reachable nodes.
    pub fn reachable(&self) -> impl Iterator<Item = &NodeName> {
        self.peers.keys()
    }

    /// Returns the address from which datagrams of a node come, if the node has answered there, and the socket on which they arrive.
    pub fn confirmed_address(&self, name: &NodeName) -> Option<UdpEndpoint> {
        self.peers.get(name).and_then(|peer| peer.udp.endpoint().filter(|_| peer.udp.confirmed))
    }

    /// Returns the path to a node by UDP in router and switch mode. `None` while packets have to take the path of [`Node::send_packet`]: without a
    /// session or a path by UDP whose MTU is known, and around a rekey, unless the node is of adit.
    pub fn direct_path(&self, now: Instant, name: &NodeName) -> Option<DirectPath> {
        let route = self.graph.route(name)?;
        let peer = self.peers.get(name).filter(|peer| peer.deferred.is_empty())?;
        if self.config.mode == Mode::Hub || route.options.minor() < RELAY_MINOR {
            return None;
        }
        // The path of the shortest packets is that of all that are not too long for it.
        let RecordPath::Udp { relay, direct } = self.record_path(&self.own, name, 1, false)? else {
            return None;
        };
        if direct != peer.udp.confirmed {
            return None;
        }
        // The node whose limits the router applies.
        let via = if route.via == self.own { &route.next_hop } else { &route.via };
        let is_usual = if direct { route.via == *name } else { *via == *name || *via == relay };
        let is_refused = self.config.direct_only && via != name;
        let mtu = self.usable_mtu(&relay).min(self.mtu(via));
        let is_measured = self.options(&relay).has(Options::PMTU_DISCOVERY)
            && self.peers.get(&relay).is_some_and(|peer| peer.udp.confirmed && peer.mtu.is_fixed());
        // Packets to a neighbour that do not go to it directly go over its connection.
        let is_over_tcp = !direct && self.active.contains_key(name);
        if !is_usual || is_refused || !is_measured || mtu == 0 || is_over_tcp {
            return None;
        }
        Some(DirectPath {
            relay: (!direct).then_some(relay),
            session: peer.session.as_ref()?.share(now)?,
            own: self.own_id,
            peer: peer.id,
            mtu,
            clamp_mss: self.options(via).has(Options::CLAMP_MSS),
        })
    }

    /// Another layer started or stopped to carry a node's packets.
    pub fn set_carried(&mut self, now: Instant, name: &NodeName, carried: bool) {
        self.now = now;
        let Some(peer) = self.peers.get_mut(name) else { return };
        peer.carried = carried;
        if carried {
            return;
        }
        let is_rekey_due = peer.session.as_ref().is_some_and(|session| session.is_rekey_due(now));
        for (record, reflexive) in std::mem::take(&mut peer.deferred) {
            self.handshake_record(name, &record, reflexive);
        }
        if is_rekey_due {
            self.check_sessions();
        }
        self.finish();
    }

    /// Keeps a handshake record until another layer has stopped to carry the node's packets. Returns whether it has to wait.
    pub(super) fn defer_handshake(
        &mut self,
        name: &NodeName,
        record: &[u8],
        reflexive: Option<&AddressToken>,
    ) -> bool {
        let Some(peer) = self.peers.get_mut(name).filter(|peer| peer.carried) else { return false };
        // The other layer need not stop for a record that will be refused, nor with a peer that tolerates its records.
        let session = peer.session.as_ref();
        if session.is_some_and(|session| {
            session.sptps.is_peer_tolerant() || session.sptps.check_handshake(record).is_err()
        }) {
            return false;
        }
        if peer.deferred.len() < MAX_DEFERRED {
            peer.deferred.push((record.to_vec(), reflexive.cloned()));
        } else {
            super::count(&mut self.counters.refused_handshakes);
        }
        self.changed_paths.add(name);
        true
    }

    /// Returns whether records for a node that go to this address, or where its datagrams usually go, are sealed by another layer.
    pub(super) fn is_carried_at(&self, name: &NodeName, address: Option<UdpEndpoint>) -> bool {
        self.peers.get(name).is_some_and(|peer| {
            peer.carried
                && peer.udp.confirmed
                && (address.is_none() || address == peer.udp.endpoint())
        })
    }

    /// Sends a record that no other layer has taken: see [`super::Output::Record`].
    pub fn send_record(&mut self, now: Instant, to: &NodeName, record: &[u8]) {
        self.now = now;
        if let Some(peer) = self.peers.get_mut(to) {
            peer.carried = false;
        }
        if let Some((kind, data)) = record.split_first() {
            self.seal(to, *kind, data, None);
        }
        self.finish();
    }

    /// Another layer opened a record that is not an ordinary packet: its type, and its data.
    pub fn carried_record(&mut self, now: Instant, from: &NodeName, record: &[u8]) {
        self.now = now;
        let Some((kind, data)) = record.split_first() else { return };
        if let Some(peer) = self.peers.get_mut(from) {
            peer.heard = Some(now);
        }
        let arrival = match self.confirmed_address(from) {
            Some(at) => Arrival::Direct(at),
            None => Arrival::Relayed,
        };
        self.opened(from, *kind, data, arrival);
        self.finish();
    }

    /// Another layer received a record of a node that is not authentic.
    pub fn carried_forgery(&mut self, now: Instant, from: &NodeName) {
        self.now = now;
        super::count(&mut self.counters.refused_records);
        self.forged(from);
        self.finish();
    }

    /// Another layer has carried packets since the last call. `largest`: the length of the largest packet received so far, bytes. Call this about
    /// once a second, because it keeps the path alive.
    pub fn carried_traffic(
        &mut self,
        now: Instant,
        name: &NodeName,
        traffic: Traffic,
        largest: u16,
    ) {
        self.now = now;
        let Some(peer) = self.peers.get_mut(name) else { return };
        peer.traffic.add(traffic);
        if traffic.packets_in > 0 {
            peer.heard = Some(now);
        }
        if traffic != Traffic::default() {
            peer.udp.largest = peer.udp.largest.max(largest);
            self.try_path(name, true);
        }
        self.finish();
    }
}
