//! Blocks IPv6 outside the tunnel with unreachable routes in the main table, if policy routing is
//! not available.
//!
//! Two unreachable routes cover the halves of the address space. For each more specific route of
//! the host, there is an unreachable route to the same network with a lower metric. Link-local
//! addresses stay reachable. The servers stay reachable through host routes, because a mark has no
//! effect without rules.

use std::net::IpAddr;

use adit_linux::net::{MAIN_TABLE, NetErrorKind, Route, RouteKind};
use ipnet::{IpNet, Ipv6Net};

use super::apply::Host;
use super::enforce::{has_ipv6, unless_gone, warn};
use super::routes::way_to;

/// The metric of unreachable routes. Routers and the kernel use higher ones.
const METRIC: u32 = 1;

/// The maximum number of networks that are made unreachable individually.
const NETWORKS: usize = 256;

/// The loopback interface's index.
const LOOPBACK: u32 = 1;

/// The routes that block IPv6.
#[derive(Debug, Default)]
pub(super) struct BlockIpv6 {
    /// Whether to block IPv6 outside the tunnel.
    on: bool,
    /// Whether all necessary routes are in force.
    complete: bool,
    /// The plan's server.
    remote: Option<IpAddr>,
    /// The routes that this tunnel has added.
    routes: Vec<Route>,
}

impl BlockIpv6 {
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn is_complete(&self) -> bool {
        self.on && self.complete
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }
}

/// Returns the routes that keep the servers reachable, and those that block all other traffic.
fn wanted(
    present: &[Route],
    own: impl Fn(&Route) -> bool,
    servers: &[IpAddr],
) -> (Vec<Route>, Vec<Route>) {
    let mut ways = Vec::new();
    for server in servers.iter().filter(|server| server.is_ipv6()) {
        let Some(hop) = way_to(*server, present, &own) else { continue };
        // The kernel looks up a gateway before it accepts a route through it.
        let gateway = hop.gateway.filter(|gateway| match gateway {
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
            IpAddr::V4(_) => false,
        });
        ways.extend(gateway.map(|gateway| Route::dev(gateway.into(), hop.interface)));
        let to = IpNet::from(*server);
        ways.push(Route { via: hop.gateway, ..Route::dev(to, hop.interface) });
    }
    let half = |first: u16| Ipv6Net::new_assert([first, 0, 0, 0, 0, 0, 0, 0].into(), 1);
    let mut networks: Vec<IpNet> = vec![half(0).into(), half(0x8000).into()];
    for route in present {
        let IpNet::V6(to) = route.to else { continue };
        let local = to.addr().is_unicast_link_local() || to.addr().is_multicast();
        let specific = route.table == Some(MAIN_TABLE)
            && route.kind == RouteKind::Unicast
            && route.link != Some(LOOPBACK)
            && !route.is_default();
        let kept = ways.iter().any(|way| way.to.trunc() == route.to.trunc());
        if specific && !local && !own(route) && !kept && !networks.contains(&route.to) {
            networks.push(route.to);
        }
    }
    let nowhere =
        |net| Route { metric: Some(METRIC), ..Route::without_hop(net, RouteKind::Unreachable) };
    (ways, networks.into_iter().take(NETWORKS).map(nowhere).collect())
}

impl Host {
    /// Makes IPv6 unreachable outside the tunnel, except for the transport, and keeps it
    /// unreachable when the host's routes change.
    ///
    /// # Errors
    /// Fails if a route could not be added or removed. The current routes stay.
    pub(super) async fn block_ipv6(&mut self, remote: Option<IpAddr>) -> Result<(), String> {
        (self.block6.on, self.block6.remote) = (true, remote);
        let blocked = self.try_block().await;
        self.block6.complete = blocked.is_ok();
        blocked
    }

    /// Updates the blocking routes after the host's routes have changed.
    pub(super) async fn block_again(&mut self) {
        if self.block6.on {
            match self.block_ipv6(self.block6.remote).await {
                Ok(()) => self.finished(),
                Err(why) => self.unfinished(why),
            }
        }
    }

    async fn try_block(&mut self) -> Result<(), String> {
        if !has_ipv6() {
            return Ok(());
        }
        let present = self.net.routes().await.map_err(|e| e.to_string())?;
        let mut servers: Vec<IpAddr> =
            self.block6.remote.into_iter().chain(self.remote()).collect();
        servers.extend(&self.follow.detours);
        let (ways, nowhere) = wanted(&present, self.own_routes(), &servers);
        let mut failed = (nowhere.len() >= NETWORKS)
            .then(|| format!("this machine has routes to {NETWORKS} IPv6 networks or more"));
        // Add the transport's routes first, because it must not be interrupted.
        for route in ways.iter().chain(&nowhere) {
            if let Err(why) = self.put(route).await {
                failed.get_or_insert(why);
            }
        }
        let stale: Vec<Route> = self
            .block6
            .routes
            .iter()
            .filter(|route| !ways.contains(route) && !nowhere.contains(route))
            .copied()
            .collect();
        for route in &stale {
            if let Err(why) = self.take_back(route).await {
                failed.get_or_insert(why);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Adds a route, even if it should already exist, because the kernel removes routes together
    /// with their interface.
    async fn put(&mut self, route: &Route) -> Result<(), String> {
        let known = self.block6.routes.contains(route);
        if !known {
            self.undo_log.add(route);
            self.block6.routes.push(*route);
        }
        // On another network, the same server has a different gateway.
        let same = |other: &Route| {
            other.kind == RouteKind::Unicast && other.to == route.to && other != route
        };
        let replaces = route.kind == RouteKind::Unicast && self.block6.routes.iter().any(same);
        let put = if replaces {
            self.net.replace_route(route).await
        } else {
            self.net.add_route(route).await
        };
        match put {
            Ok(()) => Ok(()),
            Err(e) => {
                // An existing route belongs to another tunnel or program.
                if !known {
                    self.forget(route);
                }
                if e.kind() == NetErrorKind::Exists { Ok(()) } else { Err(e.to_string()) }
            }
        }
    }

    async fn take_back(&mut self, route: &Route) -> Result<(), String> {
        unless_gone(self.net.delete_route(route).await)?;
        self.forget(route);
        Ok(())
    }

    fn forget(&mut self, route: &Route) {
        self.block6.routes.retain(|other| other != route);
        self.undo_log.remove(route);
    }

    /// Ends the blocking. Unreachable routes are removed first, so that the server stays reachable.
    pub(super) async fn unblock_ipv6(&mut self) {
        (self.block6.on, self.block6.complete) = (false, false);
        for route in self.block6.routes.clone().iter().rev() {
            warn(self.take_back(route).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_but_the_links_and_the_tunnels_is_unreachable_and_the_server_is_not() {
        let main = |to: &str, link: u32| Route {
            table: Some(MAIN_TABLE),
            ..Route::dev(to.parse().unwrap(), link)
        };
        let gateway: IpAddr = "2001:db8::1".parse().unwrap();
        let present = [
            Route { via: Some(gateway), ..main("::/0", 2) },
            main("2001:db8::/64", 2),
            main("2001:db8:9::/48", 2),
            main("2001:db8:5::5/128", 2),
            main("fe80::/64", 2),
            main("ff00::/8", 2),
            main("::1/128", LOOPBACK),
            main("fd77::/64", 9),
            Route { table: Some(77), ..main("2001:db8:77::/48", 2) },
            main("192.0.2.0/24", 2),
        ];
        let servers = ["2001:db8:a::7".parse().unwrap(), "198.51.100.7".parse().unwrap()];
        let (ways, nowhere) = wanted(&present, |route| route.link == Some(9), &servers);
        let text = |routes: &[Route]| routes.iter().map(|r| r.to.to_string()).collect::<Vec<_>>();
        assert_eq!(text(&ways), ["2001:db8::1/128", "2001:db8:a::7/128"]);
        assert_eq!((ways[0].via, ways[1].via), (None, Some(gateway)));
        assert_eq!(
            text(&nowhere),
            ["::/1", "8000::/1", "2001:db8::/64", "2001:db8:9::/48", "2001:db8:5::5/128"]
        );
        assert!(nowhere.iter().all(|route| route.kind == RouteKind::Unreachable));
        // Many routes to one network must not use up the limit.
        let many: Vec<Route> = (0..1000).map(|n| Route { metric: Some(n), ..present[1] }).collect();
        assert_eq!(wanted(&many, |_| false, &[]).1.len(), 3);
    }
}
