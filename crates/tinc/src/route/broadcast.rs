//! Packets to many nodes.

use super::{Decision, DropReason, Refusal, Router, View};
use crate::config::{Broadcast, Forwarding};
use crate::name::NodeName;
use crate::subnet::SubnetAddress;

impl Router {
    /// Returns whether packets to an address go to many nodes. `owned` is the prefix of the subnet that contains the address: a longer one takes
    /// precedence.
    pub(super) fn is_broadcast(&self, address: SubnetAddress, owned: Option<u8>) -> bool {
        let standard = match address {
            SubnetAddress::Mac(mac) => (mac == [0xff; 6]).then_some(48),
            SubnetAddress::V4(v4) if v4.is_broadcast() => Some(32),
            SubnetAddress::V4(v4) => v4.is_multicast().then_some(4),
            SubnetAddress::V6(v6) => v6.is_multicast().then_some(8),
        };
        let subnets = self.settings.broadcast_subnets.iter();
        let configured = subnets.filter(|subnet| subnet.contains(address));
        let longest = configured.map(|subnet| subnet.prefix()).chain(standard).max();
        longest.is_some_and(|prefix| owned.is_none_or(|owned| prefix >= owned))
    }

    /// Decides about a packet to many nodes. `ip_at` is where its IP packet begins, if it has one.
    pub(super) fn route_broadcast<'v, V: View>(
        &self,
        from: &NodeName,
        packet: &mut [u8],
        ip_at: Option<usize>,
        view: &'v V,
    ) -> Result<Decision<'v>, Refusal> {
        let from_device = from == view.own();
        self.decrement_ttl(from_device, packet, ip_at)?;
        let settings = &self.settings;
        let forwards = settings.forwarding == Forwarding::Internal && !settings.tunnel_server;
        let nodes: Vec<&NodeName> = match settings.broadcast {
            Broadcast::Tree if from_device || forwards => {
                let back = view.path(from).map(|path| path.next_hop);
                view.tree().filter(|node| Some(*node) != back && *node != from).collect()
            }
            Broadcast::Direct if from_device => view.direct_nodes().collect(),
            Broadcast::Tree | Broadcast::Direct | Broadcast::No => Vec::new(),
        };
        match (nodes.is_empty(), from_device) {
            (false, _) => Ok(Decision::Many { nodes, device: !from_device }),
            (true, false) => Ok(Decision::Device),
            (true, true) => Err(Refusal::silent(DropReason::NoReceiver)),
        }
    }
}
