//! UDP_INFO and MTU_INFO: what the nodes on the way know of a node's address and of the path to it.

use std::net::SocketAddr;

use super::mtu::MAX_MTU;
use super::{Node, count};
use crate::meta::{AddressToken, MIN_MTU, Message, Options};
use crate::name::NodeName;

impl Node {
    /// Something from `from` came through `hop`. Tells the nodes on the way back where this node is, if they could send directly.
    pub(super) fn report_address(&mut self, hop: &NodeName, from: &NodeName) {
        let Some(route) = self.graph.route(from) else { return };
        if *hop != route.via {
            let own = self.own.clone();
            self.send_udp_info(&own, from, None);
        }
    }

    /// Returns the node on the way that a message about paths goes to: the last one that can be sent to directly. A message that a neighbour sent
    /// does not go back to it.
    fn info_target(&mut self, to: &NodeName, neighbour: Option<&NodeName>) -> Option<NodeName> {
        let route = self.graph.route(to)?;
        let target = if route.via == self.own { &route.next_hop } else { &route.via };
        let target = Some(target.clone()).filter(|target| *target != self.own)?;
        if neighbour.is_some_and(|neighbour| self.goes_back(neighbour, &target)) {
            count(&mut self.counters.not_relayed);
            return None;
        }
        Some(target)
    }

    /// Returns the minor version of the next node on the way.
    fn next_minor(&self, to: &NodeName) -> u8 {
        self.graph.route(to).map_or(0, |route| self.minor(&route.next_hop))
    }

    /// Tells `to` the address of `from`, as a neighbour has done if it is not this node's own.
    fn send_udp_info(&mut self, from: &NodeName, to: &NodeName, neighbour: Option<&NodeName>) {
        let now = self.now;
        let Some(to) = self.info_target(to, neighbour) else { return };
        let own = *from == self.own;
        let tcp_only = |name: &NodeName| self.options(name).has(Options::TCP_ONLY);
        if self.config.own.tcp_only || (!own && tcp_only(from)) || tcp_only(&to) {
            return;
        }
        let message = Message::UdpInfo(from.clone(), to.clone(), self.address_word(from));
        if self.next_minor(&to) < message.needs_minor() {
            return;
        }
        if own {
            let interval = self.config.udp_info_interval;
            if self.active.contains_key(&to) {
                return;
            }
            let Some(peer) = self.peers.get_mut(&to) else { return };
            if peer.udp_info_sent.is_some_and(|at| now.since(at) < interval) {
                return;
            }
            peer.udp_info_sent = Some(now);
        }
        self.send_towards(&to, &message);
    }

    fn address_word(&self, name: &NodeName) -> AddressToken {
        let address: Option<SocketAddr> = self.peers.get(name).and_then(|peer| peer.udp.address);
        address.map_or_else(AddressToken::unspecified, AddressToken::from)
    }

    /// Handles a UDP_INFO.
    pub(super) fn udp_info(
        &mut self,
        neighbour: &NodeName,
        from: &NodeName,
        to: &NodeName,
        address: &AddressToken,
    ) {
        if !self.is_known(from) || !self.is_known(to) {
            return;
        }
        if self.graph.route(from).is_none_or(|route| route.via != *from) {
            return;
        }
        if !self.active.contains_key(from)
            && let Some(address) = address.remote()
            && let Some(peer) = self.peers.get_mut(from)
            && !peer.udp.confirmed
        {
            peer.udp.set_address(address);
        }
        self.send_udp_info(from, to, Some(neighbour));
    }

    /// Tells `to` the size of packets that reach this node.
    pub(super) fn report_mtu(&mut self, to: &NodeName) {
        let own = self.own.clone();
        self.send_mtu_info(&own, to, MAX_MTU, None);
    }

    /// Tells `to` the size of packets that reach `from`, as a neighbour has done if it is not this node itself.
    fn send_mtu_info(
        &mut self,
        from: &NodeName,
        to: &NodeName,
        mtu: u16,
        neighbour: Option<&NodeName>,
    ) {
        let now = self.now;
        let Some(to) = self.info_target(to, neighbour) else { return };
        let mtu = if *from == self.own { mtu } else { self.mtu_towards(from, mtu) };
        let message = Message::MtuInfo(from.clone(), to.clone(), mtu.into());
        if mtu < MIN_MTU || self.next_minor(&to) < message.needs_minor() {
            return;
        }
        if *from == self.own {
            let interval = self.config.mtu_info_interval;
            if self.active.contains_key(&to) {
                return;
            }
            let Some(peer) = self.peers.get_mut(&to) else { return };
            if peer.mtu_info_sent.is_some_and(|at| now.since(at) < interval) {
                return;
            }
            peer.mtu_info_sent = Some(now);
        }
        self.send_towards(&to, &message);
    }

    /// Returns the size of packets that reach a node from here, where the nodes so far report `mtu`.
    fn mtu_towards(&self, name: &NodeName, mtu: u16) -> u16 {
        let fixed = |name: &NodeName| {
            let peer = self.peers.get(name).filter(|peer| peer.mtu.is_fixed())?;
            Some(peer.mtu.mtu)
        };
        let Some(route) = self.graph.route(name) else { return mtu };
        let via = if route.via == self.own { &route.next_hop } else { &route.via };
        if via == name
            && let Some(own) = fixed(name)
        {
            return own;
        }
        let next_hop = self.graph.route(via).map(|route| &route.next_hop);
        match fixed(via).or_else(|| fixed(next_hop?)) {
            Some(relay) => mtu.min(relay),
            None => mtu,
        }
    }

    /// Handles an MTU_INFO. A size of less than [`MIN_MTU`] means that discovery failed somewhere: it is ignored.
    pub(super) fn mtu_info(
        &mut self,
        neighbour: &NodeName,
        from: &NodeName,
        to: &NodeName,
        mtu: i32,
    ) {
        if !self.is_known(from) || !self.is_known(to) {
            return;
        }
        let Some(mtu) =
            u16::try_from(mtu.clamp(0, MAX_MTU.into())).ok().filter(|mtu| *mtu >= MIN_MTU)
        else {
            return;
        };
        if self.peers.get_mut(from).is_some_and(|peer| peer.mtu.reported(mtu)) {
            self.changed_paths.add(from);
        }
        self.send_mtu_info(from, to, mtu, Some(neighbour));
    }
}
