//! The addresses and routes that the network requires on this host.

use adit_wire::VnetHeader;
use ipnet::IpNet;

use super::directory::Directory;
use crate::Settings;
use adit_runtime::host::{Device, HostPlan, PlannedRoute, Via};

const _: () = assert!(VnetHeader::LEN == adit_linux::tun::VNET_LEN);

/// Returns the plan with the known nodes, without routes to networks behind them unless `routes` is set.
pub(super) fn plan(settings: &Settings, directory: Option<&Directory>, routes: bool) -> HostPlan {
    let mut planned: Vec<PlannedRoute> = Vec::new();
    for node in directory.iter().filter(|_| routes).flat_map(|directory| &directory.nodes) {
        let hosts = node.addresses().into_iter().map(IpNet::from);
        for net in hosts.chain(node.record.subnets.iter().map(IpNet::trunc)) {
            let known = planned.iter().any(|route| route.net == net);
            if !known && is_elsewhere(settings, &net) {
                planned.push(PlannedRoute { net, via: Via::Tunnel(None), metric: None });
            }
        }
    }
    let network = directory.map(|directory| directory.settings.current());
    let mtu = u16::try_from(settings.packet_size(network)).unwrap_or(u16::MAX);
    HostPlan { routes: planned, mtu, ..without_routes(settings) }
}

/// Returns whether a network may belong to another node: it is not this node's, and the prefixes of the node's addresses do not cover it.
pub(super) fn is_elsewhere(settings: &Settings, net: &IpNet) -> bool {
    let own = settings.addresses.iter().map(IpNet::trunc).chain(settings.subnets.iter().copied());
    own.into_iter().all(|own| !own.contains(net) && !net.contains(&own))
}

/// Returns the part of every plan that depends only on the settings.
pub(super) fn without_routes(settings: &Settings) -> HostPlan {
    HostPlan {
        device: Device::Tun(Some(settings.device.clone())),
        mtu: u16::try_from(settings.packet_size(None)).unwrap_or(u16::MAX),
        addresses: settings.addresses.clone(),
        ..HostPlan::default()
    }
}
