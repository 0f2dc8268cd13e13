//! Finding and keeping the UDP path to a node.
//!
//! A probe is a record of its own type: `0 | zeros | random`, at least 18 bytes. The answer goes to where the probe came from, and tells which
//! length has arrived. An answer proves that datagrams pass in both directions.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::Instant;

use super::mtu::Probes;
use super::payload::RELAY_MINOR;
use super::{Event, Node, UdpEndpoint, after, count};
use crate::legacy::FIRST_MINOR;
use crate::meta::{MIN_MTU, Options};
use crate::name::NodeName;

/// The type of probes.
pub(super) const PROBE: u8 = 4;

/// Length of the shortest probe, and of every answer of the newer kind.
const MIN_PROBE: usize = 18;

/// The number of zero bytes at the start of a probe.
const ZEROS: usize = 14;

/// Kinds of probes, in their first byte.
const REQUEST: u8 = 0;
const SAME_LENGTH: u8 = 1;
const WITH_LENGTH: u8 = 2;

/// The first minor version that understands answers with a length.
const WITH_LENGTH_MINOR: u8 = 3;

/// By how much reports about the largest length precede the probes.
const REPORT_MARGIN: Duration = Duration::from_secs(1);

/// Every how many datagrams an unconfirmed address is tried; the others go to addresses in edges.
const CURRENT_EVERY: u32 = 3;

/// The number of nodes for which one call looks: a node, the relay to it, and the neighbour on the way to that. With edges that a node invents,
/// two neighbours can be each other's next hop.
const MAX_ON_THE_WAY: usize = 3;

impl Node {
    /// Starts what is missing for datagrams to a node: a session, a confirmed address, the path MTU; for it, or for the relay in between.
    pub(super) fn try_path(&mut self, name: &NodeName, search_mtu: bool) {
        let mut next = Some(name.clone());
        for _ in 0..MAX_ON_THE_WAY {
            let Some(name) = next else { return };
            next = self.try_node(&name, search_mtu);
        }
    }

    /// Starts what is missing for a node. Returns the node on the way to it for which the same is to be done.
    fn try_node(&mut self, name: &NodeName, search_mtu: bool) -> Option<NodeName> {
        let route = self.graph.route(name).filter(|_| *name != self.own)?;
        let (options, next_hop) = (route.options, route.next_hop.clone());
        let via = if route.via == self.own { next_hop.clone() } else { route.via.clone() };
        if u16::from(options.minor()) < FIRST_MINOR {
            return None;
        }
        let tcp_only = self.config.own.tcp_only || options.has(Options::TCP_ONLY);
        if tcp_only && self.active.contains_key(name) {
            return None;
        }
        self.ensure_session(name);
        if via != *name {
            return Some(via).filter(|via| self.minor(via) >= RELAY_MINOR);
        }
        if tcp_only {
            return None;
        }
        self.discover(name);
        if !self.peers.get(name).is_some_and(|peer| peer.udp.confirmed) {
            return Some(next_hop).filter(|next_hop| next_hop != name);
        }
        if search_mtu && options.has(Options::PMTU_DISCOVERY) {
            self.search_mtu(name);
        }
        None
    }

    /// Sends the probes and reports that are due.
    fn discover(&mut self, name: &NodeName) {
        let now = self.now;
        let interval = self.config.udp_discovery_interval;
        let keepalive = self.config.udp_discovery_keepalive_interval;
        let with_length = self.minor(name) >= WITH_LENGTH_MINOR;
        let Some(peer) = self.peers.get_mut(name).filter(|peer| peer.is_ready(now)) else {
            return;
        };
        if !self.config.udp_discovery {
            return;
        }
        let confirmed = peer.udp.confirmed;
        let report =
            (confirmed && with_length && peer.udp.largest > 0 && now >= peer.udp.report_at)
                .then(|| std::mem::take(&mut peer.udp.largest));
        if report.is_some() {
            peer.udp.report_at = after(now, keepalive.saturating_sub(REPORT_MARGIN));
        }
        let address = peer.udp.endpoint();
        let due = now >= peer.udp.probe_at;
        if due {
            peer.udp.probe_at = after(now, if confirmed { keepalive } else { interval });
            peer.udp.probed = Some(now);
        }
        if let Some(len) = report {
            self.seal(name, PROBE, &answer(len, [0; 4]), address);
        }
        if due {
            self.send_probe(name, MIN_PROBE, None);
            if !confirmed
                && self.config.local_discovery
                && let Some(local) = self.local_address(name)
            {
                let local = UdpEndpoint { address: local, socket: None };
                self.send_probe(name, MIN_PROBE, Some(local));
            }
        }
    }

    fn send_probe(&mut self, name: &NodeName, len: usize, to: Option<UdpEndpoint>) {
        let mut probe = self.buffer();
        probe.resize(len.max(MIN_PROBE), REQUEST);
        self.random.fill(probe.get_mut(ZEROS..).unwrap_or_default());
        self.seal(name, PROBE, &probe, to);
        self.recycle(probe);
    }

    fn search_mtu(&mut self, name: &NodeName) {
        let (now, interval) = (self.now, self.config.ping_interval);
        let Some(peer) = self.peers.get_mut(name).filter(|peer| peer.is_ready(now)) else {
            return;
        };
        let fixed = peer.mtu.is_fixed();
        let probes = peer.mtu.probes(now, interval);
        let mtu = peer.mtu.mtu;
        if fixed != peer.mtu.is_fixed() {
            self.changed_paths.add(name);
        }
        if !fixed && peer.mtu.is_fixed() {
            self.event(Event::MtuFixed { node: name.clone(), mtu });
        }
        let (one, more) = match probes {
            Probes::None => return,
            Probes::One(len) => (len, None),
            Probes::Two(len, more) => (len, Some(more)),
        };
        self.send_probe(name, one.into(), None);
        if let Some(more) = more {
            self.send_probe(name, more.into(), None);
        }
    }

    /// An authentic record of a node arrived from an address, on a socket.
    pub(super) fn seen_at(&mut self, name: &NodeName, at: UdpEndpoint, len: usize) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        peer.udp.largest = peer.udp.largest.max(u16::try_from(len).unwrap_or(u16::MAX));
        if peer.udp.endpoint() == Some(at) {
            return;
        }
        if peer.udp.address != Some(at.address) {
            self.unconfirm(name);
        }
        if let Some(peer) = self.peers.get_mut(name) {
            (peer.udp.address, peer.udp.socket) = (Some(at.address), at.socket);
            self.changed_paths.add(name);
        }
    }

    /// Handles a probe.
    pub(super) fn probe_received(&mut self, name: &NodeName, at: UdpEndpoint, probe: &[u8]) {
        let len = u16::try_from(probe.len()).unwrap_or(u16::MAX);
        let is_ready = self.peers.get(name).is_some_and(|peer| peer.is_ready(self.now));
        match probe.first() {
            _ if probe.len() < MIN_PROBE => count(&mut self.counters.refused_packets),
            // The node asks again.
            Some(&REQUEST) if !is_ready => {}
            Some(&REQUEST) if self.minor(name) >= WITH_LENGTH_MINOR => {
                let random = probe.get(ZEROS..).and_then(<[u8]>::first_chunk).copied();
                let answer = answer(len, random.unwrap_or_default());
                self.seal(name, PROBE, &answer, Some(at));
            }
            Some(&REQUEST) => {
                let mut answer = self.buffer();
                answer.extend_from_slice(probe);
                if let Some(kind) = answer.first_mut() {
                    *kind = SAME_LENGTH;
                }
                self.seal(name, PROBE, &answer, Some(at));
                self.recycle(answer);
            }
            Some(&SAME_LENGTH) => self.probe_answered(name, at.address, len),
            Some(&WITH_LENGTH) => {
                let bytes = probe.get(1..).and_then(<[u8]>::first_chunk).copied();
                self.probe_answered(
                    name,
                    at.address,
                    u16::from_be_bytes(bytes.unwrap_or_default()),
                );
            }
            _ => count(&mut self.counters.refused_packets),
        }
    }

    /// A probe of this length has reached a node.
    fn probe_answered(&mut self, name: &NodeName, address: SocketAddr, len: u16) {
        let (now, interval) = (self.now, self.config.ping_interval);
        let keepalive = self.config.udp_discovery_keepalive_interval;
        // A node that forges source addresses must not take over another one's datagrams.
        if self.by_address.get(&address).is_some_and(|holder| holder != name) {
            return count(&mut self.counters.refused_records);
        }
        let Some(peer) = self.peers.get_mut(name) else { return };
        peer.udp.answered = now;
        if let Some(probed) = peer.udp.probed.take() {
            peer.udp.round_trip = Some(now.since(probed));
        }
        let was_fixed = peer.mtu.is_fixed();
        let fixed = peer.mtu.answered(len, now, interval);
        if was_fixed != peer.mtu.is_fixed() || !peer.udp.confirmed {
            self.changed_paths.add(name);
        }
        let mtu = peer.mtu.mtu;
        if !peer.udp.confirmed {
            peer.udp.confirmed = true;
            peer.udp.attempts = 0;
            peer.udp.probe_at = after(now, keepalive);
            self.by_address.insert(address, name.clone());
            self.event(Event::UdpConfirmed { node: name.clone(), address });
        }
        if fixed {
            self.event(Event::MtuFixed { node: name.clone(), mtu });
        }
    }

    /// A node's address is no longer certain: forgets what was found out about the path.
    pub(super) fn unconfirm(&mut self, name: &NodeName) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(name) else { return };
        if !std::mem::take(&mut peer.udp.confirmed) {
            return;
        }
        if let Some(address) = peer.udp.address
            && self.by_address.get(&address) == Some(name)
        {
            self.by_address.remove(&address);
        }
        peer.mtu.reset(now);
        peer.udp.probe_at = now;
        peer.udp.probed = None;
        self.changed_paths.add(name);
    }

    /// Gives up UDP paths whose node no longer answers.
    pub(super) fn check_udp(&mut self) {
        let (now, timeout) = (self.now, self.config.udp_discovery_timeout);
        let silent = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.udp.confirmed && now.since(peer.udp.answered) >= timeout);
        let silent: Vec<NodeName> = silent.map(|(name, _)| name.clone()).collect();
        for name in silent {
            self.unconfirm(&name);
            self.event(Event::UdpLost(name));
        }
    }

    /// A datagram of this length was too long for the network.
    pub fn too_big(&mut self, now: Instant, to: SocketAddr, len: usize) {
        self.now = now;
        let data = len.saturating_sub(super::payload::DATAGRAM_EXTRA);
        let Some(name) = self.by_address.get(&super::canonical(to)) else { return };
        if let (Some(peer), Ok(data)) = (self.peers.get_mut(name), u16::try_from(data)) {
            peer.mtu.too_big(data);
            self.changed_paths.add(name);
        }
    }

    /// Returns the length of the largest packet that may go to a node by UDP, directly; 0 if none.
    pub(super) fn usable_mtu(&self, name: &NodeName) -> u16 {
        let Some(peer) = self.peers.get(name).filter(|peer| peer.udp.confirmed) else { return 0 };
        if self.options(name).has(Options::PMTU_DISCOVERY) { peer.mtu.min } else { peer.mtu.max }
    }

    /// Returns the length of the largest packet for a node, as far as it is known; larger ones should be fragmented or refused.
    pub fn mtu(&self, name: &NodeName) -> u16 {
        self.peers.get(name).map_or(super::mtu::MAX_MTU, |peer| peer.mtu.mtu.max(MIN_MTU))
    }

    /// Returns the length of the longest frame for a node, as the router counts it: in router mode the header of a packet is not sent.
    pub(super) fn frame_mtu(&self, name: &NodeName) -> u16 {
        let header = if super::is_router(&self.config) { super::payload::HEADER } else { 0 };
        let header = u16::try_from(header).unwrap_or(0);
        self.mtu(name).saturating_add(header).min(super::mtu::MAX_MTU)
    }

    /// Chooses the address for a datagram: the confirmed one, or in turns the last known one and those in edges.
    pub(super) fn choose_address(&mut self, name: &NodeName) -> Option<UdpEndpoint> {
        let peer = self.peers.get_mut(name)?;
        let current = peer.udp.endpoint();
        if peer.udp.confirmed {
            return current;
        }
        let attempt = peer.udp.attempts;
        peer.udp.attempts = attempt.saturating_add(1);
        if current.is_some() && attempt.is_multiple_of(CURRENT_EVERY) {
            return current;
        }
        let seen = self.graph.edges_of(name).filter_map(|(other, _)| {
            let address = &self.graph.edge(other, name)?.address;
            if *other == self.own { address.socket() } else { address.remote() }
        });
        let seen: Vec<SocketAddr> =
            seen.filter(|address| self.config.address_family.includes(address)).collect();
        self.pick(&seen).map(|address| UdpEndpoint { address, socket: None }).or(current)
    }

    /// Returns one of the addresses that a node has in its own network.
    fn local_address(&mut self, name: &NodeName) -> Option<SocketAddr> {
        let local = self.graph.edges_of(name).filter_map(|(_, edge)| edge.local.as_ref()?.remote());
        let local: Vec<SocketAddr> =
            local.filter(|address| self.config.address_family.includes(address)).collect();
        self.pick(&local)
    }

    fn pick(&mut self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let number = self.random.below(u32::try_from(addresses.len()).unwrap_or(u32::MAX));
        addresses.get(usize::try_from(number).ok()?).copied()
    }
}

/// Returns an answer that a probe of this length has arrived.
fn answer(len: u16, random: [u8; 4]) -> [u8; MIN_PROBE] {
    let [high, low] = len.to_be_bytes();
    let [a, b, c, d] = random;
    [WITH_LENGTH, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Specification 20.4.
    #[test]
    fn an_answer_is_that_of_the_vectors() {
        let expected = crate::testing::hex("020012 0000000000000000000000 aabbccdd");
        assert_eq!(answer(18, [0xaa, 0xbb, 0xcc, 0xdd]).as_slice(), expected);
    }
}
