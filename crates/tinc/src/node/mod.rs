//! A node of a net: its connections with neighbours, the topology, and its sessions with all other nodes, as one sans-IO engine.
//!
//! ```text
//!   bytes of a connection ─► Stream ─► lines ─┬─► floods:   topology ─► Graph ─► who is reachable, and how
//!                                             ├─► requests: handshakes of sessions ─┐
//!                                             └─► packets over TCP ─┐               ▼
//!   datagrams ──────────────────────────────────────────────────────┴─► relay, or session ─► packet for the device
//! ```
//!
//! The driver calls one method for each thing that happens, then performs the [`Output`]s of [`Node::pop`] in their order, and calls
//! [`Node::tick`] at [`Node::deadline`]. Messages are collected: a call sends at most one block of bytes on each connection, and none of them
//! delays or forces out a datagram.
//!
//! Which node a packet is for is not decided here: [`Node::send_packet`] takes it with its destination, and [`Output::Packet`] hands packets up.
//!
//! # Trust
//!
//! Topology is unsigned: a node believes its neighbours about all others. Each of them can make a node store only
//! so much, and what exceeds that is counted and reported by neighbour: see [`Excess`].

mod carried;
mod choice;
mod connections;
mod contradictions;
mod control;
mod discovery;
mod early;
mod floods;
mod handshake;
mod info;
mod limits;
mod mtu;
mod outgoing;
mod output;
mod pace;
mod payload;
mod peer;
mod reload;
mod requests;
mod sessions;
#[cfg(test)]
mod tests;
mod timers;
mod topology_sync;
mod transit;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, Rate, TokenBucket};

use self::connections::Connection;
use self::contradictions::Contradictions;
use self::limits::{Limits, Started};
use self::outgoing::Outgoing;
use self::peer::Peer;
use crate::autoconnect::AutoConnect;
use crate::config::{HostConfig, Mode, ServerConfig};
use crate::graph::{Graph, SubnetTable};
use crate::keys::{PrivateKey, PublicKey};
use crate::meta::{Message, Options, SeenLines};
use crate::name::{NodeId, NodeName};
use crate::route::{Topology, tree_neighbours};
use crate::subnet::Subnet;

pub use carried::{ChangedPaths, DirectPath};
pub use control::{ConnectionInfo, NodeInfo, Totals, Traffic};
pub use limits::Excess;
pub use output::{CloseReason, ConnectionId, Event, Output, Script};
pub use payload::{DATAGRAM_EXTRA, FRAME, MAX_PACKET, PACKET};
pub use peer::UdpEndpoint;
pub use transit::{Transit, TransitPath};

/// The number of connections that a node has at most, with those whose peer has not proved yet who it is.
pub const MAX_CONNECTIONS: usize = 4096;

/// The number of inbound connections whose peer has not proved yet who it is.
pub const MAX_UNAUTHENTICATED: usize = 64;

/// The number of bytes that wait to be sent on a connection. A neighbour that reads more slowly than others send is given up.
pub const MAX_QUEUE: usize = 64 << 20;

/// The budget of computing routes: a token for each node, edge and subnet. The graph of a node that invents as many of them as it may takes a
/// noticeable time to compute, and each line can change it.
const COMPUTING: Rate = Rate::new(1 << 20, Duration::from_secs(8));

/// The number of buffers that are kept for later packets.
const MAX_SPARE_BUFFERS: usize = 64;

/// The settings of a node.
#[derive(Debug)]
pub struct NodeConfig {
    /// The node's name.
    pub name: NodeName,
    /// The node's key.
    pub key: Arc<PrivateKey>,
    /// The settings in `tinc.conf` and the node's own host file.
    pub server: ServerConfig,
    /// The host files of the other nodes.
    pub hosts: BTreeMap<NodeName, HostConfig>,
    /// The UDP port that the node listens on.
    pub udp_port: u16,
}

/// The counters of a node.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Connections that were refused because too many came at once.
    pub refused_connections: u64,
    /// Packets to nodes that are not reachable.
    pub unreachable: u64,
    /// Packets that are longer than [`MAX_PACKET`], or that do not fit the message that would carry them.
    pub too_long: u64,
    /// Packets that were dropped while a session starts.
    pub no_session: u64,
    /// Packets that were dropped because too many waited for a rekey.
    pub not_held: u64,
    /// Packets that were dropped because a connection's queue was full.
    pub queue_full: u64,
    /// Datagrams from addresses and nodes that are not known.
    pub unknown_senders: u64,
    /// Datagrams to relay that had no way forward.
    pub not_relayed: u64,
    /// Datagrams that were relayed.
    pub relayed: u64,
    /// Records of sessions that were refused, because they are forged, altered or repeated.
    pub refused_records: u64,
    /// Packets that do not fit the net's mode, or are compressed.
    pub refused_packets: u64,
    /// Handshake records that were refused.
    pub refused_handshakes: u64,
    /// Handshakes that failed because a node on the way removed the offer of AES-256-GCM.
    pub removed_offers: u64,
    /// Rekeys that got stuck and were given up.
    pub stuck_rekeys: u64,
    /// Announcements that contradict this node's own state.
    pub contradictions: u64,
    /// Lines for many nodes or for another one that are invalid, or that claim to come from this node itself.
    pub refused_lines: u64,
}

/// A node of a net. See [the module](self).
pub struct Node {
    own: NodeName,
    own_id: NodeId,
    key: Arc<PrivateKey>,
    config: ServerConfig,
    hosts: BTreeMap<NodeName, HostConfig>,
    learned_keys: usize,
    udp_port: u16,
    random: Random,
    /// The time of the current input.
    now: Instant,
    graph: Graph,
    graph_changed: bool,
    computing: TokenBucket,
    /// The neighbours along the tree for packets to many nodes.
    tree: Vec<NodeName>,
    subnets: SubnetTable,
    seen: SeenLines,
    contradictions: Contradictions,
    limits: Limits,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    /// The connections with neighbours, by their names.
    active: BTreeMap<NodeName, ConnectionId>,
    /// The connections with bytes to send.
    unsent: BTreeSet<ConnectionId>,
    /// The connections with neighbours that do not have the whole topology yet.
    syncing: BTreeSet<ConnectionId>,
    /// The connections that failed while the node sent on them.
    broken: Vec<(ConnectionId, CloseReason)>,
    started: Started,
    outgoing: BTreeMap<NodeName, Outgoing>,
    choice: AutoConnect,
    /// When the next choice of connections is due.
    choose_at: Instant,
    /// The addresses at which nodes were reached, the latest first.
    recent: BTreeMap<NodeName, VecDeque<SocketAddr>>,
    /// The other reachable nodes.
    peers: BTreeMap<NodeName, Peer>,
    /// The nodes with packets that wait for a rekey, and those whose rekey is over since a moment ago.
    settling: BTreeSet<NodeName>,
    /// The records that wait for their key.
    early: BTreeMap<NodeName, Vec<early::EarlyRecord>>,
    by_id: BTreeMap<NodeId, NodeName>,
    /// The nodes with a confirmed UDP address.
    by_address: HashMap<SocketAddr, NodeName>,
    /// The nodes whose direct path may have changed.
    changed_paths: ChangedPaths,
    outputs: VecDeque<Output>,
    next_second: Instant,
    spare: Vec<Vec<u8>>,
    /// The record that is being handled, kept for its memory.
    record: Vec<u8>,
    /// The line that is being written, kept for its memory.
    line: Vec<u8>,
    counters: NodeCounters,
}

impl Node {
    /// Creates a node. It starts to connect with the first [`Node::tick`].
    pub fn new(config: NodeConfig, now: Instant, random: Random) -> Self {
        let own = config.name;
        let mut subnets = SubnetTable::default();
        let mut add = |owner: &NodeName, subnet: &Subnet| {
            // A configuration has fewer lines than the table has places.
            let added = subnets.insert(owner, *subnet);
            debug_assert!(added.is_ok());
        };
        config.server.own.subnets.iter().for_each(|subnet| add(&own, subnet));
        if config.server.strict_subnets {
            for (name, host) in config.hosts.iter().filter(|(name, _)| **name != own) {
                host.subnets.iter().for_each(|subnet| add(name, subnet));
            }
        }
        let mut node = Self {
            own_id: own.id(),
            key: config.key,
            hosts: config.hosts,
            learned_keys: 0,
            udp_port: config.udp_port,
            random,
            now,
            graph: Graph::new(own.clone()),
            graph_changed: false,
            computing: TokenBucket::new(),
            tree: Vec::new(),
            subnets,
            seen: SeenLines::new(config.server.ping_interval),
            contradictions: Contradictions::new(now),
            limits: Limits::default(),
            connections: BTreeMap::new(),
            next_connection: 0,
            active: BTreeMap::new(),
            unsent: BTreeSet::new(),
            syncing: BTreeSet::new(),
            broken: Vec::new(),
            started: Started::new(config.server.max_connection_burst),
            outgoing: BTreeMap::new(),
            choice: AutoConnect::default(),
            choose_at: now,
            recent: BTreeMap::new(),
            peers: BTreeMap::new(),
            settling: BTreeSet::new(),
            early: BTreeMap::new(),
            by_id: BTreeMap::from([(own.id(), own.clone())]),
            by_address: HashMap::new(),
            changed_paths: ChangedPaths::default(),
            outputs: VecDeque::new(),
            next_second: now,
            spare: Vec::new(),
            record: Vec::new(),
            line: Vec::new(),
            counters: NodeCounters::default(),
            config: config.server,
            own,
        };
        let connect_to = std::mem::take(&mut node.config.connect_to);
        for name in &connect_to {
            node.add_outgoing(name, false);
        }
        node.config.connect_to = connect_to;
        node
    }

    /// Removes and returns the oldest output.
    pub fn pop(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes back the buffer of a datagram or packet that was sent or delivered.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE_BUFFERS {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Returns the node's own name.
    pub fn name(&self) -> &NodeName {
        &self.own
    }

    /// Returns the topology.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the subnets of all nodes.
    pub fn subnets(&self) -> &SubnetTable {
        &self.subnets
    }

    /// Returns the counters.
    pub fn counters(&self) -> NodeCounters {
        self.counters
    }

    /// Returns the host file of another node.
    pub fn host(&self, name: &NodeName) -> Option<&HostConfig> {
        self.hosts.get(name)
    }

    /// Returns the names of the neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = &NodeName> {
        self.active.keys()
    }

    /// Returns the view of the net that decides where packets go.
    pub fn topology(&self) -> Topology<'_, impl Fn(&NodeName) -> u16> {
        let mtu = |name: &NodeName| self.frame_mtu(name);
        Topology { graph: &self.graph, subnets: &self.subnets, tree: &self.tree, mtu }
    }

    /// Announces a subnet of this node. Returns whether it is new.
    pub fn add_subnet(&mut self, now: Instant, subnet: Subnet) -> bool {
        self.now = now;
        let own = self.own.clone();
        let added = self.subnets.insert(&own, subnet) == Ok(true);
        if added {
            self.flood(&Message::AddSubnet(own.clone(), subnet), None);
            self.subnet_script(true, &own, subnet);
        }
        self.finish();
        added
    }

    /// Withdraws a subnet of this node. Returns whether there was one.
    pub fn remove_subnet(&mut self, now: Instant, subnet: Subnet) -> bool {
        self.now = now;
        let own = self.own.clone();
        let removed = self.subnets.remove(&own, &subnet);
        if removed {
            self.flood(&Message::DelSubnet(own.clone(), subnet), None);
            self.subnet_script(false, &own, subnet);
        }
        self.finish();
        removed
    }

    fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    fn script(&mut self, script: Script) {
        self.outputs.push_back(Output::Script(script));
    }

    fn subnet_script(&mut self, up: bool, owner: &NodeName, subnet: Subnet) {
        if *owner != self.own && !self.peers.contains_key(owner) {
            return;
        }
        let address = self.peers.get(owner).and_then(|peer| peer.udp.address);
        self.script(Script::Subnet { up, node: owner.clone(), address, subnet });
    }

    fn public_key(&self, name: &NodeName) -> Option<PublicKey> {
        self.hosts.get(name)?.public_key
    }

    /// Returns the options of the last edge to a node; none if it is unreachable.
    fn options(&self, name: &NodeName) -> Options {
        self.graph.route(name).map_or(Options(0), |route| route.options)
    }

    fn minor(&self, name: &NodeName) -> u8 {
        self.options(name).minor()
    }

    /// Adds a node to the graph, unless it is known. Returns whether it is in the graph.
    fn learn_node(&mut self, name: &NodeName, neighbour: &NodeName) -> bool {
        if self.graph.contains(name) {
            return true;
        }
        let id = name.id();
        if let Some(known) = self.by_id.get(&id) {
            let event = Event::IdCollision { known: known.clone(), refused: name.clone() };
            if self.limits.may_report(self.now, neighbour) {
                self.event(event);
            }
            return false;
        }
        if !self.limits.nodes.take(name.clone(), neighbour) {
            self.exceeded(neighbour, Excess::Nodes);
            return false;
        }
        if self.graph.add_node(name).is_err() {
            self.limits.nodes.release(name);
            return false;
        }
        self.by_id.insert(id, name.clone());
        true
    }

    fn exceeded(&mut self, neighbour: &NodeName, excess: Excess) {
        if self.limits.exceeded(self.now, neighbour) {
            self.event(Event::Excess { node: neighbour.clone(), excess });
        }
    }

    /// Computes who is reachable, if the topology changed since the last time. If it changes too often, it waits for a moment.
    fn refresh(&mut self) {
        if !self.graph_changed {
            return;
        }
        let size = self.graph.size().saturating_add(self.subnets.len());
        if self.computing.take(self.now, size, COMPUTING) {
            self.compute();
        }
    }

    /// Computes who is reachable.
    fn compute(&mut self) {
        while std::mem::take(&mut self.graph_changed) {
            let changes = self.graph.compute();
            self.changed_paths.all = true;
            self.tree = tree_neighbours(&self.graph);
            for change in changes {
                if change.reachable {
                    self.node_up(&change.node);
                } else {
                    self.node_down(&change.node);
                }
            }
            for (name, peer) in &mut self.peers {
                if peer.udp.address.is_none() {
                    peer.udp.address = self.graph.route(name).and_then(|route| route.address);
                }
            }
        }
    }

    fn node_up(&mut self, name: &NodeName) {
        let address = self.graph.route(name).and_then(|route| route.address);
        let bound = self.hosts.get(name).and_then(|host| host.pmtu);
        self.peers.insert(name.clone(), Peer::new(name, address, bound, self.now));
        self.event(Event::Reachable { node: name.clone(), reachable: true });
        self.host_scripts(true, name, address);
    }

    fn node_down(&mut self, name: &NodeName) {
        let address = self.peers.get(name).and_then(|peer| peer.udp.address);
        self.event(Event::Reachable { node: name.clone(), reachable: false });
        self.host_scripts(false, name, address);
        self.unconfirm(name);
        self.peers.remove(name);
        let own = self.own.clone();
        if self.graph.edge(name, &own).is_some() {
            self.flood(&Message::DelEdge(name.clone(), own.clone()), None);
            self.remove_edge(name, &own);
        }
    }

    fn host_scripts(&mut self, up: bool, name: &NodeName, address: Option<SocketAddr>) {
        self.script(Script::Host { up, node: name.clone(), address });
        let subnets: Vec<Subnet> = self.subnets.of(name).copied().collect();
        for subnet in subnets {
            self.script(Script::Subnet { up, node: name.clone(), address, subnet });
        }
    }

    /// Ends a call: closes the connections that failed, computes who is reachable, and hands the collected bytes to the driver.
    fn finish(&mut self) {
        self.continue_topology_sync();
        loop {
            self.refresh();
            let Some((id, reason)) = self.broken.pop() else { break };
            self.close(id, reason);
        }
        while let Some(id) = self.unsent.pop_first() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let bytes = connection.take_output();
            if !bytes.is_empty() {
                self.outputs.push_back(Output::Send { connection: id, bytes });
            }
        }
    }
}

/// Returns the time after a span. A span added to an [`Instant`] does not overflow.
#[allow(clippy::arithmetic_side_effects)]
fn after(now: Instant, span: Duration) -> Instant {
    now + span
}

fn count(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// Returns an address in the form in which all parts of the node compare it: without a scope, and IPv4 as such.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (connections, peers) = (self.connections.len(), self.peers.len());
        write!(f, "Node({}, {connections} connections, {peers} reachable)", self.own)
    }
}

fn is_router(config: &ServerConfig) -> bool {
    config.mode == Mode::Router
}
