//! The messages from one node to another, which the nodes on the way pass on: REQ_KEY and ANS_KEY.

use super::{Excess, Node, count};
use crate::config::Forwarding;
use crate::meta::{AddressToken, KeyRequest, Token, decode_record};
use crate::name::NodeName;
use crate::sptps::DATAGRAM_OVERHEAD;

/// The content of an ANS_KEY.
pub(super) struct Answer {
    /// A handshake record, in base64.
    pub(super) key: Token,
    pub(super) offers_aes: bool,
    pub(super) reflexive: Option<AddressToken>,
}

impl Node {
    /// Handles a REQ_KEY that a neighbour sent or passed on.
    pub(super) fn key_requested(
        &mut self,
        neighbour: &NodeName,
        line: &[u8],
        from: &NodeName,
        to: &NodeName,
        request: Option<KeyRequest>,
    ) {
        if !self.is_known(from) || !self.is_known(to) {
            return;
        }
        if *to != self.own {
            if self.config.tunnel_server {
                return;
            }
            let relays = self.config.forwarding == Forwarding::Internal;
            return match request {
                Some(KeyRequest::Datagram(datagram)) if relays => {
                    self.datagram_in_request(neighbour, from, to, &datagram);
                }
                _ => self.pass_towards(neighbour, to, line),
            };
        }
        if !self.peers.contains_key(from) {
            return;
        }
        match request {
            // Only tinc 1.0 asks so, and this node has no key for it.
            None => {}
            Some(KeyRequest::Datagram(datagram)) => {
                self.datagram_in_request(neighbour, from, to, &datagram);
            }
            // Keys of a session cost more than a line about the topology.
            Some(_) if !self.limits.line(self.now, neighbour) => {
                self.exceeded(neighbour, Excess::Lines);
            }
            Some(request) => {
                if matches!(request, KeyRequest::Session { .. }) {
                    self.report_address(neighbour, from);
                }
                self.requested(from, request);
            }
        }
    }

    /// Handles a datagram in a REQ_KEY.
    fn datagram_in_request(
        &mut self,
        neighbour: &NodeName,
        from: &NodeName,
        to: &NodeName,
        datagram: &Token,
    ) {
        let Some(mut record) = decode_record(datagram) else { return };
        if record.len() < DATAGRAM_OVERHEAD {
            return count(&mut self.counters.refused_records);
        }
        self.relayed_record(neighbour, from, to, &mut record);
    }

    /// Handles an ANS_KEY that a neighbour sent or passed on.
    pub(super) fn key_answered(
        &mut self,
        neighbour: &NodeName,
        line: &[u8],
        from: &NodeName,
        to: &NodeName,
        answer: Answer,
    ) {
        let Answer { key, offers_aes, reflexive } = answer;
        if !self.is_known(from) || !self.is_known(to) {
            return;
        }
        if *to == self.own {
            if !self.limits.line(self.now, neighbour) {
                return self.exceeded(neighbour, Excess::Lines);
            }
            if let Some(record) = decode_record(&key) {
                if let Some(session) = self.session_mut(from).filter(|_| offers_aes) {
                    session.sptps.peer_offers();
                }
                self.handshake_record(from, &record, reflexive);
            }
            return;
        }
        if self.config.tunnel_server {
            return;
        }
        // The last node before TO that both reach by UDP tells TO where it sees FROM.
        let address = self.peers.get(from).and_then(|peer| peer.udp.address);
        match address.filter(|_| reflexive.is_none() && self.usable_mtu(to) > 0) {
            None => self.pass_towards(neighbour, to, line),
            Some(address) => {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                let words = format!(" {} {}", address.ip(), address.port());
                self.pass_towards(neighbour, to, &[line, words.as_bytes()].concat());
            }
        }
    }

    /// Returns whether there is such a node in the graph.
    pub(super) fn is_known(&mut self, name: &NodeName) -> bool {
        self.refresh();
        self.graph.contains(name)
    }

    /// Returns whether the next node on the way is the neighbour from which a message came. Nothing in a message limits how often it is passed on, so
    /// two nodes with different views of the net would exchange it without end.
    pub(super) fn goes_back(&self, neighbour: &NodeName, to: &NodeName) -> bool {
        self.graph.route(to).is_some_and(|route| route.next_hop == *neighbour)
    }

    /// Sends a line of a neighbour as it came to the next node on the way.
    fn pass_towards(&mut self, neighbour: &NodeName, to: &NodeName, line: &[u8]) {
        if self.goes_back(neighbour, to) {
            return count(&mut self.counters.not_relayed);
        }
        let Some(route) = self.graph.route(to) else { return };
        let Some(id) = self.active.get(&route.next_hop).copied() else { return };
        if line.ends_with(b"\n") {
            return self.send_line(id, line);
        }
        self.send_line(id, &[line, b"\n"].concat());
    }
}
