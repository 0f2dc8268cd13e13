//! The routes of the data plane: which node the packets for each network go to.

use std::collections::BTreeMap;
use std::net::IpAddr;

use adit_dataplane::Unpeered;
use adit_engine::{Instant, PeerId};
use adit_tinc::name::NodeName;
use adit_tinc::node::Node;
use adit_tinc::subnet::{Subnet, SubnetAddress};
use adit_tinc_data::{Command, Plane};
use ipnet::IpNet;

/// The networks of packets to many nodes, which the router spreads.
const BROADCAST: [&str; 3] = ["255.255.255.255/32", "224.0.0.0/4", "ff00::/8"];

/// New routes are computed at most during this part of the time: one in this many.
const SHARE: u32 = 10;

/// Who gets the packets for a network.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// This host.
    Host,
    /// The router of this process.
    Router,
    /// A node that the plane knows. Its packets come up while the plane does not carry them.
    Peer(PeerId),
}

/// The routes that the plane has.
pub(super) struct PlaneRoutes {
    broadcast: Vec<IpNet>,
    installed: BTreeMap<Owner, Vec<IpNet>>,
    /// The version of the subnets that they come from.
    version: u64,
    outdated: bool,
    /// When they may be computed again. A large net whose topology changes all the time would otherwise take all of the processor.
    not_before: Instant,
}

impl PlaneRoutes {
    pub(super) fn new(broadcast_subnets: &[Subnet], now: Instant) -> Self {
        let standard = BROADCAST.iter().filter_map(|text| text.parse().ok());
        let configured = broadcast_subnets.iter().filter_map(network);
        Self {
            broadcast: standard.chain(configured).collect(),
            installed: BTreeMap::new(),
            version: 0,
            outdated: true,
            not_before: now,
        }
    }

    /// Nodes became reachable or unreachable, or the plane knows other nodes than before.
    pub(super) fn set_outdated(&mut self) {
        self.outdated = true;
    }

    /// Returns when [`PlaneRoutes::update`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.outdated.then_some(self.not_before)
    }

    /// Lets the packets of a node that the plane is about to forget come up, so that they do not follow the route of a larger network meanwhile.
    pub(super) fn release(&mut self, id: PeerId, plane: &Plane) {
        self.outdated = true;
        let Some(networks) = self.installed.remove(&Owner::Peer(id)) else { return };
        let router = self.installed.entry(Owner::Router).or_default();
        router.extend(networks);
        install(plane, Owner::Router, router);
    }

    /// Installs the routes that follow from the node's subnets. `known` returns a node that the plane knows.
    pub(super) fn update(
        &mut self,
        node: &Node,
        plane: &Plane,
        clock: fn() -> Instant,
        known: impl Fn(&NodeName) -> Option<PeerId>,
    ) {
        let version = node.subnets().version();
        self.outdated |= version != self.version;
        let start = clock();
        if !self.outdated || start < self.not_before {
            return;
        }
        (self.outdated, self.version) = (false, version);
        let wanted = self.wanted(node, known);
        let gone = self.installed.keys().filter(|owner| !wanted.contains_key(owner));
        let gone: Vec<Owner> = gone.copied().collect();
        // A network that moves to another owner leaves its former one by itself, so this order leaves no gap for those that only move.
        for (owner, networks) in &wanted {
            if self.installed.get(owner) != Some(networks) {
                install(plane, *owner, networks);
            }
        }
        gone.into_iter().for_each(|owner| install(plane, owner, &[]));
        self.installed = wanted;
        self.not_before = clock() + clock().since(start) * SHARE;
    }

    fn wanted(
        &self,
        node: &Node,
        known: impl Fn(&NodeName) -> Option<PeerId>,
    ) -> BTreeMap<Owner, Vec<IpNet>> {
        let (own, graph) = (node.name(), node.graph());
        let mut owners: BTreeMap<IpNet, Owner> = BTreeMap::new();
        for (subnet, name) in node.subnets().winners(|name| graph.route(name).is_some()) {
            let owner = match known(name) {
                _ if name == own => Owner::Host,
                Some(peer) => Owner::Peer(peer),
                None => Owner::Router,
            };
            if let Some(network) = network(subnet) {
                owners.insert(network, owner);
            }
        }
        owners.extend(self.broadcast.iter().map(|network| (*network, Owner::Router)));
        let mut wanted: BTreeMap<Owner, Vec<IpNet>> = BTreeMap::new();
        for (network, owner) in owners {
            wanted.entry(owner).or_default().push(network);
        }
        wanted
    }
}

fn install(plane: &Plane, owner: Owner, networks: &[IpNet]) {
    match owner {
        Owner::Host => plane.set_unpeered_routes(Unpeered::Host, networks),
        Owner::Router => plane.set_unpeered_routes(Unpeered::Control, networks),
        Owner::Peer(id) => plane.apply(Command::SetRoutes(id, networks.to_vec())),
    }
}

/// Returns the network of a subnet; `None` if it is a MAC address.
fn network(subnet: &Subnet) -> Option<IpNet> {
    let address: IpAddr = match subnet.address() {
        SubnetAddress::Mac(_) => return None,
        SubnetAddress::V4(address) => address.into(),
        SubnetAddress::V6(address) => address.into(),
    };
    Some(IpNet::new(address, subnet.prefix()).ok()?.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_are_networks_without_their_host_bits() {
        let of = |text: &str| network(&text.parse().unwrap()).map(|network| network.to_string());
        assert_eq!(of("10.1.2.3/16#5").as_deref(), Some("10.1.0.0/16"));
        assert_eq!(of("fd00::1").as_deref(), Some("fd00::1/128"));
        assert_eq!(of("02:00:00:00:00:01"), None);
        assert_eq!(PlaneRoutes::new(&[], Instant::from_nanos(0)).broadcast.len(), BROADCAST.len());
    }
}
