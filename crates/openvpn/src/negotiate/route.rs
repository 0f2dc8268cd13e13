use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::client::Route;

/// A `route` or `route-ipv6` as written: its words may stand for addresses that are known only once
/// the tunnel is up.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec<N, G> {
    /// Where to.
    pub to: Destination<N>,
    /// By which gateway.
    pub via: Via<G>,
    /// Metric; `None` for `route-metric` or the kernel's default.
    pub metric: Option<u32>,
}

/// Where a route leads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Destination<N> {
    /// A network.
    Net(N),
    /// `remote_host`: the server's address outside the tunnel.
    RemoteHost,
    /// `vpn_gateway`: the far end of the tunnel.
    VpnGateway,
}

/// A route's gateway.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Via<G> {
    /// The tunnel's: `vpn_gateway`, `default` or nothing.
    Tunnel,
    /// `net_gateway`: the one outside the tunnel.
    Outside,
    /// `remote_host`: the server's address.
    RemoteHost,
    /// An address.
    Gateway(G),
}

/// What the words in routes stand for.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteContext {
    /// The server's address outside the tunnel.
    pub remote: Option<IpAddr>,
    /// The far end of the tunnel.
    pub gateway4: Option<Ipv4Addr>,
    /// The far end of the tunnel, IPv6.
    pub gateway6: Option<Ipv6Addr>,
    /// `route-metric`.
    pub metric: Option<u32>,
}

impl RouteSpec<Ipv4Net, Ipv4Addr> {
    /// With the words replaced; `None` where one stands for nothing (`remote_host` while the server
    /// is reached over IPv6, say).
    pub fn resolve(&self, context: &RouteContext) -> Option<Route<Ipv4Net, Ipv4Addr>> {
        let remote = match context.remote {
            Some(IpAddr::V4(address)) => Some(address),
            _ => None,
        };
        let net = match self.to {
            Destination::Net(net) => net,
            Destination::RemoteHost => Ipv4Net::from(remote?),
            Destination::VpnGateway => Ipv4Net::from(context.gateway4?),
        };
        Some(finish(net, self.via, remote, self.metric.or(context.metric))?)
    }
}

impl RouteSpec<Ipv6Net, Ipv6Addr> {
    /// With the words replaced; `None` where one stands for nothing.
    pub fn resolve(&self, context: &RouteContext) -> Option<Route<Ipv6Net, Ipv6Addr>> {
        let remote = match context.remote {
            Some(IpAddr::V6(address)) => Some(address),
            _ => None,
        };
        let net = match self.to {
            Destination::Net(net) => net,
            Destination::RemoteHost => Ipv6Net::from(remote?),
            Destination::VpnGateway => Ipv6Net::from(context.gateway6?),
        };
        finish(net, self.via, remote, self.metric.or(context.metric))
    }
}

fn finish<N, G>(
    net: N,
    via: Via<G>,
    remote: Option<G>,
    metric: Option<u32>,
) -> Option<Route<N, G>> {
    let (via, outside) = match via {
        Via::Tunnel => (None, false),
        Via::Outside => (None, true),
        Via::RemoteHost => (Some(remote?), false),
        Via::Gateway(gateway) => (Some(gateway), false),
    };
    Some(Route { net, via, outside, metric })
}
