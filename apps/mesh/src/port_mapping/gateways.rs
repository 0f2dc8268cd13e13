//! The routers in front of this machine.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use adit_linux::net::{MAIN_TABLE, Net, NetChange, NetWatch, Route};
use ipnet::IpNet;
use tokio::time::timeout;

/// The maximum number of gateways in use. Those with the lowest metrics are used.
const MAX_GATEWAYS: usize = 4;

/// The delay between a change and reading the routes. Changes arrive in bursts: a link, its address, its route.
const SETTLE: Duration = Duration::from_secs(1);

/// The time after which the routes are read again without a change.
const RECHECK: Duration = Duration::from_secs(300);

/// A default gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gateway {
    pub(super) address: Ipv4Addr,
    /// This machine's address on the link to the gateway.
    pub(super) client: Ipv4Addr,
}

impl Gateway {
    /// Returns the gateway with this address; `None` if it is unreachable.
    pub(super) fn new(address: Ipv4Addr) -> Option<Self> {
        // Connecting a UDP socket sends nothing.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((address, crab_nat::GATEWAY_PORT)).ok()?;
        match socket.local_addr().ok()? {
            SocketAddr::V4(client) => Some(Self { address, client: *client.ip() }),
            SocketAddr::V6(_) => None,
        }
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gateway {}", self.address)
    }
}

/// The default gateways, and a subscription to their changes.
pub(super) struct DefaultGateways {
    watch: Option<NetWatch>,
    listed: bool,
}

impl DefaultGateways {
    /// Subscribes to changes of this network namespace. Call it inside a tokio runtime.
    pub(super) fn open() -> Self {
        let watch = NetWatch::open()
            .map_err(|e| tracing::warn!("port mapping: cannot watch for changes: {e}"));
        Self { watch: watch.ok(), listed: false }
    }

    /// Returns the gateways. The first call returns at once, later calls after a change.
    pub(super) async fn next(&mut self) -> BTreeSet<Gateway> {
        loop {
            if self.listed {
                // Without changes or a subscription, read the routes again after a while.
                let _ = timeout(RECHECK, self.changed()).await;
                let _ = timeout(SETTLE, self.discard_changes()).await;
            }
            self.listed = true;
            match routes().await {
                Ok(routes) => {
                    return default_gateways(&routes)
                        .into_iter()
                        .filter_map(Gateway::new)
                        .collect();
                }
                Err(e) => tracing::debug!("port mapping: {e}"),
            }
        }
    }

    /// Waits for a change that may concern the default gateways.
    async fn changed(&mut self) {
        let Some(watch) = &mut self.watch else { return std::future::pending().await };
        loop {
            match watch.next().await {
                NetChange::Route(IpNet::V4(to), MAIN_TABLE) if to.prefix_len() == 0 => return,
                NetChange::Link(_) | NetChange::Unknown => return,
                NetChange::Route(..) => {}
            }
        }
    }

    async fn discard_changes(&mut self) {
        loop {
            self.changed().await;
        }
    }
}

async fn routes() -> io::Result<Vec<Route>> {
    Net::open()?.routes().await.map_err(io::Error::other)
}

/// Returns the gateways of the main table's IPv4 default routes, lowest metrics first.
fn default_gateways(routes: &[Route]) -> Vec<Ipv4Addr> {
    let mut found: Vec<(u32, Ipv4Addr)> = routes
        .iter()
        .filter(|route| route.is_default() && route.table == Some(MAIN_TABLE))
        .filter_map(|route| match (route.to, route.via) {
            (IpNet::V4(_), Some(IpAddr::V4(via))) => Some((route.metric.unwrap_or(0), via)),
            _ => None,
        })
        .collect();
    found.sort_unstable();
    let mut gateways: Vec<Ipv4Addr> = Vec::new();
    for (_, gateway) in found {
        if !gateways.contains(&gateway) {
            gateways.push(gateway);
        }
    }
    gateways.truncate(MAX_GATEWAYS);
    gateways
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_route(via: &str, metric: u32) -> Route {
        let to = "0.0.0.0/0".parse().unwrap();
        let via = Route::via(to, via.parse().unwrap());
        Route { metric: Some(metric), table: Some(MAIN_TABLE), link: Some(2), ..via }
    }

    fn addresses(routes: &[Route]) -> Vec<String> {
        default_gateways(routes).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn gateways_are_those_of_ipv4_default_routes_in_the_main_table() {
        let on_link = Route { via: None, ..default_route("192.0.2.9", 0) };
        let network = Route { to: "10.0.0.0/8".parse().unwrap(), ..default_route("192.0.2.8", 0) };
        let other_table = Route { table: Some(7), ..default_route("192.0.2.7", 0) };
        let v6_hop = Route { via: "fe80::1".parse().ok(), ..default_route("192.0.2.6", 0) };
        let v6 = Route { to: "::/0".parse().unwrap(), ..v6_hop };
        let routes = [on_link, network, other_table, v6_hop, v6, default_route("192.0.2.1", 100)];
        assert_eq!(addresses(&routes), ["192.0.2.1"]);
    }

    #[test]
    fn the_lowest_metrics_come_first_and_their_number_is_limited() {
        let via = |number: u32, metric| default_route(&format!("192.0.2.{number}"), metric);
        let routes = [via(1, 600), via(2, 100), via(2, 200), via(3, 50)];
        assert_eq!(addresses(&routes), ["192.0.2.3", "192.0.2.2", "192.0.2.1"]);
        let many: Vec<Route> = (1..=6).map(|number| via(number, number)).collect();
        assert_eq!(addresses(&many), ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"]);
    }
}
