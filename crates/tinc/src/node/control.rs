//! The operator's view of a node, and the operator's requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Bound;
use std::time::Duration;

use adit_engine::Instant;

use super::connections::State;
use super::{CloseReason, ConnectionId, Node};
use crate::aead::Cipher;
use crate::meta::{Message, Options};
use crate::name::{NodeId, NodeName};
use crate::subnet::Subnet;

pub use super::peer::Traffic;

/// A node, for the operator.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// The name.
    pub name: NodeName,
    /// The identifier in datagrams.
    pub id: NodeId,
    /// Whether it is reachable.
    pub reachable: bool,
    /// Its UDP address, if known.
    pub address: Option<SocketAddr>,
    /// The options of the last edge to it.
    pub options: Options,
    /// The neighbour on the way to it.
    pub next_hop: Option<NodeName>,
    /// The node that datagrams for it are sent to.
    pub via: Option<NodeName>,
    /// The number of edges on the way.
    pub distance: Option<u32>,
    /// Whether there is a session with it.
    pub session: bool,
    /// The cipher of the session.
    pub cipher: Option<Cipher>,
    /// Whether datagrams pass.
    pub udp_confirmed: bool,
    /// The length of packets for it, bytes; and of those proven and believed to pass by UDP.
    pub mtu: (u16, u16, u16),
    /// The time of a probe and its answer.
    pub round_trip: Option<Duration>,
    /// The packets from and to it.
    pub traffic: Traffic,
    /// When the latest authentic packet or probe of it came; accurate to a second if another layer carries its packets.
    pub heard: Option<Instant>,
    /// The number of its announcements that were dropped because it exceeded a limit, as a neighbour.
    pub dropped_announcements: u64,
}

/// The numbers of what a node knows and has, for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The nodes that have announced themselves or have a host file, this one included.
    pub nodes: usize,
    /// The sessions for packets, by cipher.
    pub sessions: BTreeMap<Cipher, usize>,
    /// The connections.
    pub connections: usize,
    /// The inbound connections whose peer has not proved yet who it is.
    pub unauthenticated: usize,
}

/// A connection, for the operator.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The connection.
    pub connection: ConnectionId,
    /// The node, as far as it is known.
    pub node: Option<NodeName>,
    /// The TCP address.
    pub address: SocketAddr,
    /// Whether this node opened it.
    pub outgoing: bool,
    /// Whether the handshake is over.
    pub active: bool,
    /// The number of bytes that wait to be sent.
    pub queued: usize,
}

impl Node {
    /// Returns a description of all nodes that have announced themselves or have a host file, in the order of their names.
    pub fn node_infos(&self) -> Vec<NodeInfo> {
        let names: BTreeSet<&NodeName> = self.graph.nodes().chain(self.hosts.keys()).collect();
        names.into_iter().map(|name| self.node_info(name)).collect()
    }

    /// Returns a description of the other reachable nodes whose identifiers are higher than `after`, in the order of their identifiers.
    pub fn reachable_after(&self, after: Option<NodeId>) -> impl Iterator<Item = NodeInfo> {
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.by_id.range((first, Bound::Unbounded)).map(|(_, name)| name);
        names.filter(|name| self.peers.contains_key(*name)).map(|name| self.node_info(name))
    }

    /// Returns the numbers of what this node knows and has.
    pub fn totals(&self) -> Totals {
        let silent = self.hosts.keys().filter(|name| !self.graph.contains(name)).count();
        let mut sessions = BTreeMap::new();
        for peer in self.peers.values().filter(|peer| peer.is_established()) {
            if let Some(cipher) = peer.session.as_ref().and_then(|session| session.sptps.cipher()) {
                let count: &mut usize = sessions.entry(cipher).or_default();
                *count = count.saturating_add(1);
            }
        }
        Totals {
            nodes: self.graph.nodes().count().saturating_add(silent),
            sessions,
            connections: self.connections.len(),
            unauthenticated: self.unauthenticated(),
        }
    }

    fn node_info(&self, name: &NodeName) -> NodeInfo {
        let route = self.graph.route(name);
        let peer = self.peers.get(name);
        NodeInfo {
            name: name.clone(),
            id: name.id(),
            reachable: route.is_some(),
            address: peer.and_then(|peer| peer.udp.address),
            options: route.map_or(Options(0), |route| route.options),
            next_hop: route.map(|route| route.next_hop.clone()),
            via: route.map(|route| route.via.clone()),
            distance: route.map(|route| route.distance),
            session: peer.is_some_and(super::peer::Peer::is_established),
            cipher: peer
                .filter(|peer| peer.is_established())
                .and_then(|peer| peer.session.as_ref()?.sptps.cipher()),
            udp_confirmed: peer.is_some_and(|peer| peer.udp.confirmed),
            mtu: peer.map_or((0, 0, 0), |peer| (peer.mtu.mtu, peer.mtu.min, peer.mtu.max)),
            round_trip: peer.and_then(|peer| peer.udp.round_trip),
            traffic: peer.map(|peer| peer.traffic).unwrap_or_default(),
            heard: peer.and_then(|peer| peer.heard),
            dropped_announcements: self.limits.dropped(name),
        }
    }

    /// Returns a description of all connections.
    pub fn connection_infos(&self) -> Vec<ConnectionInfo> {
        let describe = |(id, connection): (&ConnectionId, &super::connections::Connection)| {
            let known = connection.meta().map(|meta| &meta.node);
            ConnectionInfo {
                connection: *id,
                node: known.or(connection.dialled.as_ref()).cloned(),
                address: connection.remote,
                outgoing: connection.dialled.is_some(),
                active: matches!(connection.state, State::Active(..)),
                queued: connection.queued(),
            }
        };
        self.connections.iter().map(describe).collect()
    }

    /// Returns until when the node does not answer announcements about itself, because another node seems to have its name.
    pub fn name_conflict_until(&self) -> Option<Instant> {
        self.contradictions.silent_until()
    }

    /// Forgets the nodes that are not reachable, with their edges and subnets.
    pub fn purge(&mut self, now: Instant) {
        self.now = now;
        self.refresh();
        let unreachable = self.graph.nodes().filter(|name| self.graph.route(name).is_none());
        let unreachable: Vec<NodeName> = unreachable.cloned().collect();
        for name in &unreachable {
            let subnets: Vec<Subnet> = self.subnets.of(name).copied().collect();
            for subnet in subnets {
                if !self.config.strict_subnets {
                    self.flood(&Message::DelSubnet(name.clone(), subnet), None);
                    self.forget_subnet(name, subnet);
                }
            }
            let edges: Vec<NodeName> =
                self.graph.edges_of(name).map(|(to, _)| to.clone()).collect();
            for to in edges {
                if !self.config.tunnel_server {
                    self.flood(&Message::DelEdge(name.clone(), to.clone()), None);
                }
                self.remove_edge(name, &to);
            }
        }
        for name in self.graph.remove_unused() {
            self.by_id.remove(&name.id());
            self.limits.nodes.release(&name);
        }
        self.finish();
    }

    /// Closes all connections, before the node ends.
    pub fn close_all(&mut self, now: Instant) {
        self.now = now;
        self.outgoing.clear();
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.close(id, CloseReason::Requested);
        }
        self.finish();
    }
}
