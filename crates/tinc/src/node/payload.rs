//! Packets to and from other nodes, and those that this node relays.
//!
//! A datagram is `destination 6 | source 6 | record`. A destination of zeros is the receiver, which the source reaches directly. A relay looks
//! at the two identifiers only: it cannot read the record.

use std::net::SocketAddr;

use adit_engine::{Instant, SocketId};

use super::discovery::PROBE;
use super::{ConnectionId, Node, Output, UdpEndpoint, canonical, count, is_router};
use crate::base64;
use crate::legacy::FIRST_MINOR;
use crate::meta::{KeyRequest, Message, Options, Token};
use crate::name::{NodeId, NodeName};
use crate::sptps::{DATAGRAM_OVERHEAD, Error};

/// Length of the longest packet, bytes: an Ethernet frame with a VLAN tag.
pub const MAX_PACKET: usize = 1518;

/// The type of records with IP packets.
pub const PACKET: u8 = 0;

/// The type of records with Ethernet frames.
pub const FRAME: u8 = 2;

/// Length of the identifiers before a record.
pub(super) const IDS: usize = 2 * NodeId::LEN;

/// The number of bytes by which a datagram is longer than the data in it.
pub const DATAGRAM_EXTRA: usize = IDS + DATAGRAM_OVERHEAD;

/// Length of an Ethernet header.
pub(super) const HEADER: usize = 14;

/// The first minor version whose nodes understand the identifiers.
pub(super) const RELAY_MINOR: u8 = 4;

/// How a record leaves this node.
pub(super) enum RecordPath {
    /// By UDP to a node; `direct` if it is the record's destination and this node its source.
    Udp { relay: NodeName, direct: bool },
    /// Over the connection with the next node.
    Tcp { next_hop: NodeName },
}

/// How a record arrived.
#[derive(Copy, Clone)]
pub(super) enum Arrival {
    /// In a datagram from its source, at this address and on this socket.
    Direct(UdpEndpoint),
    /// Through other nodes.
    Relayed,
}

impl Node {
    /// Sends a packet to a node: an IP packet in router mode, otherwise an Ethernet frame.
    pub fn send_packet(&mut self, now: Instant, to: &NodeName, packet: &[u8]) {
        self.now = now;
        self.send_payload(to, packet);
        self.finish();
    }

    /// A datagram arrived on a socket. It is decrypted in place.
    pub fn datagram(&mut self, now: Instant, socket: SocketId, from: SocketAddr, bytes: &mut [u8]) {
        self.now = now;
        let from = UdpEndpoint { address: canonical(from), socket: Some(socket) };
        self.datagram_received(from, bytes);
        self.finish();
    }

    fn kind(&self) -> u8 {
        if is_router(&self.config) { PACKET } else { FRAME }
    }

    fn send_payload(&mut self, to: &NodeName, packet: &[u8]) {
        let Some(route) = self.graph.route(to).filter(|_| *to != self.own) else {
            return count(&mut self.counters.unreachable);
        };
        let (next_hop, minor) = (route.next_hop.clone(), route.options.minor());
        if packet.len() > MAX_PACKET || packet.is_empty() {
            return count(&mut self.counters.too_long);
        }
        if u16::from(minor) < FIRST_MINOR {
            if self.config.legacy_nodes {
                self.send_frame(&next_hop, to, packet);
            } else {
                count(&mut self.counters.unreachable);
            }
            return;
        }
        if self.active.contains_key(to) && packet.len() > usize::from(self.usable_mtu(to)) {
            self.send_frame(to, to, packet);
        } else {
            self.seal_packet(to, packet);
        }
        self.try_path(to, true);
    }

    /// Sends a packet to a neighbour over the connection, in which it is not sealed once more.
    fn send_frame(&mut self, next_hop: &NodeName, to: &NodeName, packet: &[u8]) {
        let Some(id) = self.active.get(next_hop).copied() else { return };
        let mut frame = self.buffer();
        if is_router(&self.config) {
            frame.extend_from_slice(&[0; HEADER - 2]);
            let ether_type: u16 = if version(packet) == Some(6) { 0x86dd } else { 0x0800 };
            frame.extend_from_slice(&ether_type.to_be_bytes());
        }
        frame.extend_from_slice(packet);
        if self.has_room(id, frame.len())
            && let Ok(len) = u16::try_from(frame.len())
        {
            self.send_packet_message(id, &Message::Packet(len), &frame);
            if let Some(peer) = self.peers.get_mut(to) {
                peer.traffic.sent(packet.len());
            }
        }
        self.recycle(frame);
    }

    /// Returns whether a packet may be queued on a connection: always if the queue is less than half full, and less and less likely above.
    fn has_room(&mut self, id: ConnectionId, len: usize) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        let most = self.config.max_output_buffer_size;
        let queued = u32::try_from(connection.queued().saturating_add(len)).unwrap_or(u32::MAX);
        let half = most / 2;
        let above = queued.saturating_sub(half);
        let dropped = queued > most || (above > 0 && self.random.below(half.max(1)) < above);
        if dropped {
            count(&mut self.counters.queue_full);
        }
        !dropped
    }

    /// Seals a packet and sends it, if there is a session.
    pub(super) fn seal_packet(&mut self, to: &NodeName, packet: &[u8]) {
        let now = self.now;
        let Some(peer) = self.peers.get(to) else { return };
        let Some(session) = peer.session.as_ref().filter(|it| it.sptps.is_established()) else {
            return count(&mut self.counters.no_session);
        };
        if session.must_hold(now) {
            return self.hold(to, packet);
        }
        let kind = self.kind();
        if self.seal(to, kind, packet, None)
            && let Some(peer) = self.peers.get_mut(to)
        {
            peer.traffic.sent(packet.len());
        }
    }

    /// Seals a record and sends it on its path, or to the address given. Returns whether it did.
    pub(super) fn seal(
        &mut self,
        to: &NodeName,
        kind: u8,
        data: &[u8],
        address: Option<UdpEndpoint>,
    ) -> bool {
        let own = self.own.clone();
        let path = match address {
            Some(_) => Some(RecordPath::Udp { relay: to.clone(), direct: true }),
            None => self.record_path(&own, to, data.len(), kind == PROBE),
        };
        let Some(path) = path else { return false };
        let mut bytes = self.buffer();
        if matches!(path, RecordPath::Udp { direct: true, .. }) && self.is_carried_at(to, address) {
            bytes.push(kind);
            bytes.extend_from_slice(data);
            self.outputs.push_back(Output::Record { to: to.clone(), bytes });
            return true;
        }
        if matches!(path, RecordPath::Udp { direct: false, .. }) {
            self.offer_to_carry(to);
        }
        bytes.extend_from_slice(&[0; IDS]);
        let sealed = self.session_mut(to).is_some_and(|session| {
            session.sealed(1);
            session.sptps.seal(kind, data, &mut bytes).is_ok()
        });
        if !sealed {
            self.recycle(bytes);
            return false;
        }
        let tos = self.inherited_tos(kind, data);
        self.transmit(path, &own, to, bytes, address, tos);
        true
    }

    /// Lets another layer carry the packets to and from a node that is reached through a relay, once there are any.
    fn offer_to_carry(&mut self, name: &NodeName) {
        if self.peers.get(name).is_some_and(|peer| !peer.carried) {
            self.changed_paths.add(name);
        }
    }

    /// Returns the type of service that a datagram inherits from the packet in it.
    fn inherited_tos(&self, kind: u8, data: &[u8]) -> Option<u8> {
        if !self.config.priority_inheritance {
            return None;
        }
        match kind {
            PACKET => adit_wire::ip::tos(data),
            FRAME => adit_wire::ethernet::tos(data),
            _ => None,
        }
    }

    /// Returns the path of a record with `len` bytes of data.
    pub(super) fn record_path(
        &self,
        from: &NodeName,
        to: &NodeName,
        len: usize,
        probe: bool,
    ) -> Option<RecordPath> {
        let route = self.graph.route(to)?;
        let fits = |relay: &NodeName| probe || len <= usize::from(self.usable_mtu(relay));
        let relay =
            if route.via != self.own && fits(&route.via) { &route.via } else { &route.next_hop };
        let direct = *from == self.own && relay == to;
        let options = self.options(relay);
        let tcp = self.config.own.tcp_only
            || options.has(Options::TCP_ONLY)
            || (!direct && options.minor() < RELAY_MINOR)
            || !fits(relay);
        Some(if tcp {
            RecordPath::Tcp { next_hop: route.next_hop.clone() }
        } else {
            RecordPath::Udp { relay: relay.clone(), direct }
        })
    }

    /// Sends a record, before which `bytes` has room for the identifiers.
    fn transmit(
        &mut self,
        path: RecordPath,
        from: &NodeName,
        to: &NodeName,
        mut bytes: Vec<u8>,
        address: Option<UdpEndpoint>,
        tos: Option<u8>,
    ) {
        let (source, destination) = (self.id_of(from), self.id_of(to));
        let mut write = |destination: NodeId| {
            if let Some(prefix) = bytes.first_chunk_mut::<IDS>() {
                *prefix = ids(destination, source);
            }
        };
        match path {
            RecordPath::Udp { relay, direct } => {
                write(if direct { NodeId::DIRECT } else { destination });
                let options = self.options(&relay);
                let chosen = address.or_else(|| self.choose_address(&relay));
                let Some(UdpEndpoint { address: to, socket }) = chosen else {
                    count(&mut self.counters.unreachable);
                    return self.recycle(bytes);
                };
                if options.minor() < RELAY_MINOR {
                    bytes.drain(..IDS.min(bytes.len()));
                }
                let dont_fragment = options.has(Options::PMTU_DISCOVERY);
                self.outputs.push_back(Output::Datagram { to, socket, bytes, dont_fragment, tos });
            }
            RecordPath::Tcp { next_hop } => {
                write(destination);
                self.send_over_tcp(&next_hop, from, to, &bytes);
                self.recycle(bytes);
            }
        }
    }

    fn send_over_tcp(&mut self, next_hop: &NodeName, from: &NodeName, to: &NodeName, bytes: &[u8]) {
        let Some(id) = self.active.get(next_hop).copied() else { return };
        if !self.has_room(id, bytes.len()) {
            return;
        }
        if self.minor(next_hop) >= 7 {
            if let Ok(len) = u16::try_from(bytes.len()) {
                self.send_packet_message(id, &Message::SptpsPacket(len), bytes);
            }
            return;
        }
        let record = bytes.get(IDS..).unwrap_or_default();
        let Some(text) = Token::new(base64::encode(record).as_bytes()) else {
            return count(&mut self.counters.too_long);
        };
        let request = Some(KeyRequest::Datagram(text));
        self.send(id, &Message::ReqKey(from.clone(), to.clone(), request));
    }

    fn id_of(&self, name: &NodeName) -> NodeId {
        match self.peers.get(name) {
            Some(peer) => peer.id,
            None if *name == self.own => self.own_id,
            None => name.id(),
        }
    }

    fn datagram_received(&mut self, at: UdpEndpoint, bytes: &mut [u8]) {
        let known = self.by_address.get(&at.address).cloned();
        if let Some(node) = &known
            && self.minor(node) < RELAY_MINOR
        {
            self.open(node, bytes, Arrival::Direct(at), true);
            return;
        }
        let Some((prefix, record)) = bytes.split_first_chunk_mut::<IDS>() else {
            return count(&mut self.counters.unknown_senders);
        };
        let (destination, source) = split_ids(prefix);
        let source = self.by_id.get(&source).filter(|name| self.peers.contains_key(*name)).cloned();
        if destination == NodeId::DIRECT {
            // The session proves the source, so a new address of it is no obstacle.
            let trusted = known.is_some() && known == source;
            let Some(node) = source.or(known) else {
                return count(&mut self.counters.unknown_senders);
            };
            self.open(&node, record, Arrival::Direct(at), trusted);
            return;
        }
        let (Some(hop), Some(from)) = (known, source) else {
            return count(&mut self.counters.unknown_senders);
        };
        let Some(to) = self.by_id.get(&destination).cloned() else {
            return count(&mut self.counters.not_relayed);
        };
        let ids = *prefix;
        if self.relayed_record(&hop, &from, &to, record) {
            self.changed_paths.add_transit(&hop, ids);
        }
    }

    /// Handles a datagram that a neighbour sent over its connection.
    pub(super) fn relayed_packet(&mut self, id: ConnectionId, bytes: &mut [u8]) {
        let Some(hop) = self.connections.get(&id).and_then(|it| Some(it.meta()?.node.clone()))
        else {
            return;
        };
        self.refresh();
        let Some((prefix, record)) = bytes.split_first_chunk_mut::<IDS>() else { return };
        let (destination, source) = split_ids(prefix);
        let (from, to) = (self.by_id.get(&source).cloned(), self.by_id.get(&destination).cloned());
        let (Some(from), Some(to)) = (from, to) else {
            return count(&mut self.counters.not_relayed);
        };
        self.relayed_record(&hop, &from, &to, record);
    }

    /// Handles a record that came through another node: it is for this one, or to be relayed. Returns whether it was authentic, or was relayed by UDP.
    pub(super) fn relayed_record(
        &mut self,
        hop: &NodeName,
        from: &NodeName,
        to: &NodeName,
        record: &mut [u8],
    ) -> bool {
        // One that claims to come from this node would leave it as its own datagram.
        let Some(route) = self.graph.route(to).filter(|_| *from != self.own) else {
            count(&mut self.counters.not_relayed);
            return false;
        };
        if route.via == self.own {
            self.report_address(hop, from);
        }
        if *to != self.own {
            let by_udp = self.relay(hop, from, to, record);
            self.try_path(to, true);
            return by_udp;
        }
        let is_authentic = self.open(from, record, Arrival::Relayed, true);
        if is_authentic {
            self.offer_to_carry(from);
            self.report_mtu(from);
        }
        is_authentic
    }

    /// Sends a record on. Returns whether it goes by UDP.
    fn relay(&mut self, hop: &NodeName, from: &NodeName, to: &NodeName, record: &[u8]) -> bool {
        let len = record.len().saturating_sub(DATAGRAM_OVERHEAD);
        let back = |path: &RecordPath| match path {
            RecordPath::Udp { relay, .. } => relay == hop,
            RecordPath::Tcp { next_hop } => next_hop == hop,
        };
        let path = self.record_path(from, to, len, false);
        let Some(path) = path.filter(|path| !back(path) && record.len() >= DATAGRAM_OVERHEAD)
        else {
            count(&mut self.counters.not_relayed);
            return false;
        };
        count(&mut self.counters.relayed);
        let by_udp = matches!(path, RecordPath::Udp { .. });
        let mut bytes = self.buffer();
        bytes.extend_from_slice(&[0; IDS]);
        bytes.extend_from_slice(record);
        self.transmit(path, from, to, bytes, None, None);
        by_udp
    }

    /// Opens a record and handles its data. Returns whether it is authentic. If it is not, and `trusted`, it starts a new session: then it came
    /// from an address that is known to be the sender's.
    pub(super) fn open(
        &mut self,
        from: &NodeName,
        record: &mut [u8],
        arrival: Arrival,
        trusted: bool,
    ) -> bool {
        let peer = self.peers.get_mut(from);
        let Some((session, heard)) =
            peer.and_then(|peer| Some((peer.session.as_mut()?, &mut peer.heard)))
        else {
            count(&mut self.counters.refused_records);
            return false;
        };
        // A failure alters the record.
        let copy = session.sptps.awaits_receive_key().then(|| record.to_vec());
        let (kind, data) = match session.sptps.open(record) {
            Ok(opened) => {
                *heard = Some(self.now);
                opened
            }
            Err(error) => {
                if let Some(copy) = copy
                    && matches!(error, Error::Forged | Error::NotEstablished)
                    && self.keep_early(from, copy, arrival)
                {
                    return false;
                }
                count(&mut self.counters.refused_records);
                if trusted && matches!(error, Error::Forged | Error::UnexpectedType(_)) {
                    self.forged(from);
                }
                return false;
            }
        };
        self.opened(from, kind, data, arrival);
        true
    }

    /// Handles an authentic record.
    pub(super) fn opened(&mut self, from: &NodeName, kind: u8, data: &[u8], arrival: Arrival) {
        if let Arrival::Direct(at) = arrival {
            self.seen_at(from, at, data.len());
            if kind == PROBE {
                return self.probe_received(from, at, data);
            }
        }
        if let Some(peer) = self.peers.get_mut(from) {
            peer.traffic.received(data.len());
        }
        let router = is_router(&self.config);
        let packet = match kind {
            0 if router => Some(data),
            FRAME if router => data.get(HEADER..),
            FRAME => Some(data),
            _ => None,
        };
        self.deliver(from, packet.filter(|_| data.len() <= MAX_PACKET));
    }

    /// Handles a packet from a neighbour that came over its connection.
    pub(super) fn neighbours_packet(&mut self, from: &NodeName, frame: &[u8]) {
        self.refresh();
        if let Some(peer) = self.peers.get_mut(from) {
            peer.traffic.received(frame.len());
        }
        let packet = if is_router(&self.config) { frame.get(HEADER..) } else { Some(frame) };
        self.deliver(from, packet.filter(|_| frame.len() <= MAX_PACKET.saturating_add(HEADER)));
    }

    /// Hands a packet up, if it has the form that the net's mode wants.
    fn deliver(&mut self, from: &NodeName, packet: Option<&[u8]>) {
        let valid = |packet: &&[u8]| {
            if is_router(&self.config) {
                matches!(version(packet), Some(4 | 6))
            } else {
                packet.len() >= HEADER
            }
        };
        let Some(packet) = packet.filter(valid) else {
            return count(&mut self.counters.refused_packets);
        };
        let mut bytes = self.buffer();
        bytes.extend_from_slice(packet);
        self.outputs.push_back(Output::Packet { from: from.clone(), bytes });
    }
}

/// Returns the version in an IP header.
fn version(packet: &[u8]) -> Option<u8> {
    packet.first().map(|byte| byte >> 4)
}

fn ids(destination: NodeId, source: NodeId) -> [u8; IDS] {
    let mut bytes = [0; IDS];
    for (to, from) in bytes.iter_mut().zip(destination.0.into_iter().chain(source.0)) {
        *to = from;
    }
    bytes
}

/// Returns the destination and the source.
pub(super) fn split_ids(bytes: &[u8; IDS]) -> (NodeId, NodeId) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
    (NodeId([a, b, c, d, e, f]), NodeId([g, h, i, j, k, l]))
}
