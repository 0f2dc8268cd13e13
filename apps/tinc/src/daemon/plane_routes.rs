//! The routes of the data plane: which node the packets for each network go to, or in switch mode the frames for each station.

use std::collections::BTreeMap;

use adit_dataplane::Unpeered;
use adit_engine::{Instant, PeerId};
use adit_tinc::name::NodeName;
use adit_tinc::node::Node;
use adit_tinc::subnet::{Subnet, SubnetAddress};
use adit_tinc_data::packet::Packets;
use adit_tinc_data::{Command, Plane};
use ipnet::IpNet;

/// The networks of packets to many nodes, which the router handles.
const BROADCAST: [&str; 3] = ["255.255.255.255/32", "224.0.0.0/4", "ff00::/8"];

/// New routes are computed at most during this part of the time: one in this many.
const SHARE: u32 = 10;

/// The receiver of the packets for a network.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// This host.
    Host,
    /// The router of this process.
    Router,
    /// A node that the plane knows. Its packets come up while the plane does not carry them.
    Peer(PeerId),
}

/// The addresses of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Addresses {
    networks: Vec<IpNet>,
    stations: Vec<[u8; 6]>,
}

/// The routes that the plane has.
pub(super) struct PlaneRoutes {
    packets: Packets,
    broadcast: Vec<IpNet>,
    /// The stations whose frames go to many nodes.
    broadcast_stations: Vec<[u8; 6]>,
    installed: BTreeMap<Owner, Addresses>,
    /// The version of the subnets that they come from.
    version: u64,
    outdated: bool,
    /// When they may be computed again. A large net whose topology changes all the time would otherwise take all of the processor.
    not_before: Instant,
}

impl PlaneRoutes {
    pub(super) fn new(broadcast_subnets: &[Subnet], packets: Packets, now: Instant) -> Self {
        let standard = BROADCAST.iter().filter_map(|text| text.parse().ok());
        let configured = broadcast_subnets.iter().filter_map(Subnet::ip_net);
        Self {
            packets,
            broadcast: standard.chain(configured).collect(),
            broadcast_stations: broadcast_subnets.iter().filter_map(station).collect(),
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
        let Some(Addresses { networks, .. }) = self.installed.remove(&Owner::Peer(id)) else {
            return;
        };
        if self.packets == Packets::Ip {
            let router = self.installed.entry(Owner::Router).or_default();
            router.networks.extend(networks);
            install(plane, Owner::Router, router);
        }
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
        for (owner, addresses) in &wanted {
            if self.installed.get(owner) != Some(addresses) {
                install(plane, *owner, addresses);
            }
        }
        gone.into_iter().for_each(|owner| install(plane, owner, &Addresses::default()));
        self.installed = wanted;
        self.not_before = clock() + clock().since(start) * SHARE;
    }

    fn wanted(
        &self,
        node: &Node,
        known: impl Fn(&NodeName) -> Option<PeerId>,
    ) -> BTreeMap<Owner, Addresses> {
        let (own, graph) = (node.name(), node.graph());
        let winners = node.subnets().winners(|name| graph.route(name).is_some());
        let owned = winners.map(|(subnet, name)| {
            let owner = match known(name) {
                _ if name == own => Owner::Host,
                Some(peer) => Owner::Peer(peer),
                None => Owner::Router,
            };
            (subnet, owner)
        });
        match self.packets {
            Packets::Ip => self.wanted_networks(owned),
            Packets::Frames => self.wanted_stations(owned),
        }
    }

    fn wanted_networks<'s>(
        &self,
        owned: impl Iterator<Item = (&'s Subnet, Owner)>,
    ) -> BTreeMap<Owner, Addresses> {
        let networks = owned.filter_map(|(subnet, owner)| Some((subnet.ip_net()?, owner)));
        let mut owners: BTreeMap<IpNet, Owner> = networks.collect();
        owners.extend(self.broadcast.iter().map(|network| (*network, Owner::Router)));
        let mut wanted: BTreeMap<Owner, Addresses> = BTreeMap::new();
        for (network, owner) in owners {
            wanted.entry(owner).or_default().networks.push(network);
        }
        wanted
    }

    /// The plane hands up the frames for stations that it does not know, so the router's are left out.
    fn wanted_stations<'s>(
        &self,
        owned: impl Iterator<Item = (&'s Subnet, Owner)>,
    ) -> BTreeMap<Owner, Addresses> {
        let mut wanted: BTreeMap<Owner, Addresses> = BTreeMap::new();
        for (subnet, owner) in owned.filter(|(_, owner)| *owner != Owner::Router) {
            if let Some(mac) = station(subnet).filter(|mac| !self.broadcast_stations.contains(mac))
            {
                wanted.entry(owner).or_default().stations.push(mac);
            }
        }
        wanted
    }
}

fn install(plane: &Plane, owner: Owner, Addresses { networks, stations }: &Addresses) {
    match owner {
        Owner::Host => {
            plane.set_unpeered_routes(Unpeered::Host, networks);
            plane.set_stations(None, stations);
        }
        Owner::Router => plane.set_unpeered_routes(Unpeered::Control, networks),
        Owner::Peer(id) => {
            plane.apply(Command::SetRoutes(id, networks.clone()));
            plane.set_stations(Some(id), stations);
        }
    }
}

/// Returns the MAC address of a subnet; `None` if it is a network.
fn station(subnet: &Subnet) -> Option<[u8; 6]> {
    match subnet.address() {
        SubnetAddress::Mac(mac) => Some(mac),
        SubnetAddress::V4(_) | SubnetAddress::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_networks_of_packets_to_many_nodes_are_valid() {
        let routes = PlaneRoutes::new(&[], Packets::Ip, Instant::from_nanos(0));
        assert_eq!(routes.broadcast.len(), BROADCAST.len());
    }
}
