//! What the network asks of this machine: addresses and routes.

use adit_wire::VnetHeader;
use ipnet::IpNet;

use super::directory::Directory;
use crate::host::{Device, HostPlan, PlannedRoute, Via};
use crate::postgres::Settings;

const _: () = assert!(VnetHeader::LEN == adit_linux::tun::VNET_LEN);

/// The plan with the nodes that are known; without routes to networks behind them unless `routes`.
pub(super) fn plan(settings: &Settings, directory: Option<&Directory>, routes: bool) -> HostPlan {
    let mut planned: Vec<PlannedRoute> = Vec::new();
    // What the addresses' own prefixes cover is routed by them.
    let covered = |net: &IpNet| settings.addresses.iter().any(|own| own.trunc().contains(net));
    for node in directory.iter().filter(|_| routes).flat_map(|directory| &directory.nodes) {
        let hosts = node.addresses().into_iter().map(IpNet::from);
        for net in hosts.chain(node.record.subnets.iter().map(IpNet::trunc)) {
            let known = planned.iter().any(|route| route.net == net);
            if !covered(&net) && !known && !settings.subnets.contains(&net) {
                planned.push(PlannedRoute { net, via: Via::Tunnel(None), metric: None });
            }
        }
    }
    HostPlan {
        device: Device::Tun(Some(settings.device.clone())),
        mtu: u16::try_from(settings.packet_size).unwrap_or(u16::MAX),
        addresses: settings.addresses.clone(),
        routes: planned,
        ..HostPlan::default()
    }
}
