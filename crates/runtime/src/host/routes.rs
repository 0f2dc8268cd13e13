//! Computes the kernel's routes from a tunnel's plan.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_linux::net::{MAIN_TABLE, Route, RouteKind};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::plan::{HostPlan, PlannedRoute, Redirect, Via};
use super::policy_routing::{CaptureMode, capture};

/// The host's routes to the outside world before the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutsideRoutes {
    /// The IPv4 default route.
    pub default4: Option<NextHop>,
    /// The IPv6 default route.
    pub default6: Option<NextHop>,
    /// The route to the server.
    pub remote: Option<NextHop>,
    /// The networks on the interface of the default route, for `block-local`.
    pub local: Vec<IpNet>,
}

/// A gateway on an interface. Without a gateway, the destination is on the link itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The gateway.
    pub gateway: Option<IpAddr>,
    /// The interface's index.
    pub interface: u32,
}

/// A route in the form that the kernel needs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The destination.
    pub net: IpNet,
    /// The gateway, if any.
    pub gateway: Option<IpAddr>,
    /// The interface: the tunnel's, another, or the one through which the gateway is reached.
    pub through: RouteInterface,
    /// The priority, or `None` for the kernel's default.
    pub metric: Option<u32>,
    /// The routing table, or `None` for the main one.
    pub table: Option<u32>,
}

/// The interface of a [`KernelRoute`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RouteInterface {
    /// The tunnel.
    Tunnel,
    /// The interface with this index.
    Interface(u32),
    /// The interface that the kernel finds for the gateway.
    Gateway,
}

/// Returns the next hop for an address in the main table, without the routes for which `own`
/// returns true.
pub(super) fn way_to(
    to: IpAddr,
    routes: &[Route],
    own: impl Fn(&Route) -> bool,
) -> Option<NextHop> {
    let fits = |route: &&Route| {
        route.table == Some(MAIN_TABLE)
            && route.kind == RouteKind::Unicast
            && route.to.contains(&to)
            && !own(route)
    };
    let order =
        |route: &&Route| (std::cmp::Reverse(route.to.prefix_len()), route.metric.unwrap_or(0));
    let best = routes.iter().filter(fits).min_by_key(order)?;
    Some(NextHop { gateway: best.via, interface: best.link? })
}

/// Returns the default route of a family in the main table, without the routes for which `own`
/// returns true.
pub(super) fn default_way(
    v6: bool,
    routes: &[Route],
    own: impl Fn(&Route) -> bool,
) -> Option<NextHop> {
    let of_family = |route: &Route| route.is_default() && matches!(route.to, IpNet::V6(_)) == v6;
    let any = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    way_to(any, routes, |route| !of_family(route) || own(route))
}

/// Returns the routes of a plan, in the order in which to add them, and notes for the operator.
/// With `policy` a separate table implements `redirect-gateway`.
pub fn expand(
    plan: &HostPlan,
    outside: &OutsideRoutes,
    policy: bool,
) -> (Vec<KernelRoute>, Vec<String>) {
    let mut routes = Vec::new();
    let mut notes = Vec::new();
    if let Some(redirect) = plan.redirect.as_ref().filter(|_| !policy) {
        keep_server_reachable(plan, redirect, outside, &mut routes, &mut notes);
        if redirect.block_local {
            block_local(redirect, outside, &mut routes);
        }
        if !redirect.private {
            split_default_route(redirect, &mut routes, &mut notes);
        }
    }
    for route in &plan.routes {
        let v6 = matches!(route.net, IpNet::V6(_));
        let (gateway, through) = match route.via {
            Via::Tunnel(_) if policy && carries_transport(plan, route) => continue,
            // The device is point-to-point, so IPv6 needs no gateway. OpenVPN omits it too.
            Via::Tunnel(_) if v6 => (None, RouteInterface::Tunnel),
            Via::Tunnel(gateway) => (gateway, RouteInterface::Tunnel),
            Via::Gateway(gateway) => (Some(gateway), RouteInterface::Gateway),
            Via::Outside => match if v6 { outside.default6 } else { outside.default4 } {
                Some(hop) => (hop.gateway, RouteInterface::Interface(hop.interface)),
                None => {
                    notes.push(format!(
                        "the route {} by net_gateway is left out: this machine has no default route",
                        route.net
                    ));
                    continue;
                }
            },
        };
        let (net, metric, table) = (route.net, route.metric, plan.table);
        routes.push(KernelRoute { net, gateway, through, metric, table });
    }
    (routes, notes)
}

/// Returns whether a route would lead the transport's own packets, which use the main table, into
/// the tunnel. All other packets reach the tunnel through the table of policy routing.
fn carries_transport(plan: &HostPlan, route: &PlannedRoute) -> bool {
    let capture = capture(plan);
    let captured = if matches!(route.net, IpNet::V6(_)) { capture.ipv6 } else { capture.ipv4 };
    captured == CaptureMode::Tunnel && plan.remote.is_some_and(|to| route.net.contains(&to.ip()))
}

/// Returns whether a route into the tunnel leads to the server.
fn covered(plan: &HostPlan, remote: IpAddr) -> bool {
    let leads =
        |route: &PlannedRoute| matches!(route.via, Via::Tunnel(_)) && route.net.contains(&remote);
    plan.routes.iter().any(leads)
}

/// Adds the host route to the server through the old gateway. Without it, the tunnel would carry
/// its own packets.
fn keep_server_reachable(
    plan: &HostPlan,
    redirect: &Redirect,
    outside: &OutsideRoutes,
    routes: &mut Vec<KernelRoute>,
    notes: &mut Vec<String>,
) {
    let Some(remote) = plan.remote.map(|remote| remote.ip()) else { return };
    let captured = match remote {
        IpAddr::V4(_) => redirect.ipv4,
        IpAddr::V6(_) => redirect.ipv6,
    };
    if !captured || redirect.local || remote.is_loopback() {
        return;
    }
    match outside.remote {
        // The server is on the link. The interface's own network is more specific than the routes
        // that we add.
        Some(NextHop { gateway: None, .. }) if !covered(plan, remote) => {}
        Some(hop) => routes.push(KernelRoute {
            net: IpNet::from(remote),
            gateway: hop.gateway,
            through: RouteInterface::Interface(hop.interface),
            metric: None,
            table: None,
        }),
        None => notes.push(format!(
            "the server {remote} has no route outside the tunnel; redirect-gateway may cut it off"
        )),
    }
}

/// Implements `block-local`. Routes the local networks through the tunnel, in halves that are more
/// specific than the interface's own route. Only the gateway stays reachable.
fn block_local(redirect: &Redirect, outside: &OutsideRoutes, routes: &mut Vec<KernelRoute>) {
    let gateways = [outside.default4, outside.default6];
    for hop in gateways.into_iter().flatten() {
        if let Some(gateway) = hop.gateway {
            routes.push(KernelRoute {
                net: IpNet::from(gateway),
                gateway: None,
                through: RouteInterface::Interface(hop.interface),
                metric: None,
                table: None,
            });
        }
    }
    for net in &outside.local {
        let longer = net.prefix_len().saturating_add(1);
        // A single address has no halves.
        let Ok(halves) = net.subnets(longer) else { continue };
        for half in halves {
            let gateway = gateway_of(redirect, &half);
            routes.push(KernelRoute {
                net: half,
                gateway,
                through: RouteInterface::Tunnel,
                metric: None,
                table: None,
            });
        }
    }
}

/// Adds the two halves of the IPv4 default route, and the routes of IPv6.
///
/// Without `def1`, OpenVPN deletes the default route and restores it at its end. If it is killed in
/// between, the host stays offline. The halves have the same effect and disappear with the device.
fn split_default_route(
    redirect: &Redirect,
    routes: &mut Vec<KernelRoute>,
    notes: &mut Vec<String>,
) {
    const V4: [(Ipv4Addr, u8); 2] =
        [(Ipv4Addr::new(0, 0, 0, 0), 1), (Ipv4Addr::new(128, 0, 0, 0), 1)];
    // The global unicast and unique local addresses, in networks more specific than a default
    // route.
    const V6: [(Ipv6Addr, u8); 4] = [
        (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 3),
        (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 4),
        (Ipv6Addr::new(0x3000, 0, 0, 0, 0, 0, 0, 0), 4),
        (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    ];
    let mut add = |net: IpNet| {
        let gateway = gateway_of(redirect, &net);
        let through = RouteInterface::Tunnel;
        routes.push(KernelRoute { net, gateway, through, metric: None, table: None });
    };
    if redirect.ipv4 {
        V4.iter().for_each(|&(address, len)| add(Ipv4Net::new_assert(address, len).into()));
        if !redirect.def1 {
            notes.push(
                "redirect-gateway without def1: the default route stays in place beneath two halves"
                    .into(),
            );
        }
    }
    if redirect.ipv6 {
        V6.iter().for_each(|&(address, len)| add(Ipv6Net::new_assert(address, len).into()));
    }
}

fn gateway_of(redirect: &Redirect, net: &IpNet) -> Option<IpAddr> {
    match net {
        IpNet::V4(_) => redirect.gateway4.map(IpAddr::V4),
        IpNet::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn hop(gateway: &str, interface: u32) -> Option<NextHop> {
        Some(NextHop { gateway: Some(ip(gateway)), interface })
    }

    fn outside() -> OutsideRoutes {
        OutsideRoutes {
            default4: hop("192.0.2.1", 2),
            default6: hop("fe80::1", 2),
            remote: hop("192.0.2.1", 2),
            local: vec!["192.0.2.0/24".parse().unwrap()],
        }
    }

    fn plan(flags: &str) -> HostPlan {
        let mut redirect = Redirect::parse(flags.split(' ')).unwrap();
        redirect.gateway4 = Some(Ipv4Addr::new(10, 8, 0, 1));
        HostPlan {
            redirect: Some(redirect),
            remote: Some("198.51.100.7:1194".parse().unwrap()),
            ..HostPlan::default()
        }
    }

    fn text(plan: &HostPlan, outside: &OutsideRoutes) -> Vec<String> {
        expand(plan, outside, false)
            .0
            .iter()
            .map(|route| {
                let via = route.gateway.map(|gateway| format!(" via {gateway}"));
                format!("{}{} {:?}", route.net, via.unwrap_or_default(), route.through)
            })
            .collect()
    }

    #[test]
    fn def1_pins_the_server_and_adds_the_halves() {
        assert_eq!(
            text(&plan("def1"), &outside()),
            [
                "198.51.100.7/32 via 192.0.2.1 Interface(2)",
                "0.0.0.0/1 via 10.8.0.1 Tunnel",
                "128.0.0.0/1 via 10.8.0.1 Tunnel",
            ]
        );
    }

    #[test]
    fn local_and_a_server_on_the_link_need_no_host_route() {
        assert_eq!(text(&plan("def1 local"), &outside()).len(), 2);
        let on_link = NextHop { gateway: None, interface: 2 };
        let outside = OutsideRoutes { remote: Some(on_link), ..outside() };
        assert_eq!(text(&plan("def1"), &outside).len(), 2);
    }

    #[test]
    fn a_route_that_covers_the_server_does_not_lead_the_transport_into_the_tunnel() {
        let over = |net: &str| PlannedRoute {
            net: net.parse().unwrap(),
            via: Via::Tunnel(Some(ip("10.8.0.1"))),
            metric: None,
        };
        let routes = vec![over("198.51.100.0/25"), over("203.0.113.0/24"), over("2001:db8::/32")];
        let both = HostPlan { routes, ..plan("def1") };
        // The server is on the link too.
        let on_link = NextHop { gateway: None, interface: 2 };
        let outside = OutsideRoutes { remote: Some(on_link), ..outside() };
        assert_eq!(text(&both, &outside)[0], "198.51.100.7/32 Interface(2)");
        let by_rules = HostPlan { policy: true, ..both };
        let nets = |plan: &HostPlan| -> Vec<String> {
            expand(plan, &outside, true).0.iter().map(|route| route.net.to_string()).collect()
        };
        assert_eq!(nets(&by_rules), ["203.0.113.0/24", "2001:db8::/32"]);
        // A family that policy routing does not capture has its routes in the main table.
        let six = HostPlan { remote: Some("[2001:db8::7]:1".parse().unwrap()), ..by_rules };
        assert_eq!(nets(&six), ["198.51.100.0/25", "203.0.113.0/24", "2001:db8::/32"]);
    }

    #[test]
    fn the_configured_table_is_for_the_routes_and_not_for_redirecting() {
        let route = |net: &str| PlannedRoute {
            net: net.parse().unwrap(),
            via: Via::Tunnel(None),
            metric: None,
        };
        let plan = HostPlan {
            routes: vec![route("203.0.113.0/24"), route("2001:db8::/32")],
            table: Some(300),
            ..plan("def1")
        };
        let tables: Vec<_> = expand(&plan, &outside(), false)
            .0
            .iter()
            .map(|route| (route.net.prefix_len(), route.table))
            .collect();
        assert_eq!(tables, [(32, None), (1, None), (1, None), (24, Some(300)), (32, Some(300))]);
    }

    #[test]
    fn ipv6_only_leaves_ipv4_alone() {
        assert_eq!(
            text(&plan("def1 ipv6 !ipv4"), &outside()),
            ["::/3 Tunnel", "2000::/4 Tunnel", "3000::/4 Tunnel", "fc00::/7 Tunnel"]
        );
    }

    #[test]
    fn a_server_reached_over_ipv6_is_pinned_when_ipv6_is_redirected() {
        let mut plan = plan("def1 ipv6");
        plan.remote = Some("[2001:db8::7]:1194".parse().unwrap());
        let outside = OutsideRoutes { remote: hop("fe80::1", 2), ..outside() };
        assert_eq!(text(&plan, &outside)[0], "2001:db8::7/128 via fe80::1 Interface(2)");
    }

    #[test]
    fn block_local_keeps_only_the_gateway_on_the_link() {
        let outside = OutsideRoutes { default6: None, ..outside() };
        assert_eq!(
            text(&plan("def1 block-local"), &outside)[1..4],
            [
                "192.0.2.1/32 Interface(2)",
                "192.0.2.0/25 via 10.8.0.1 Tunnel",
                "192.0.2.128/25 via 10.8.0.1 Tunnel",
            ]
        );
    }

    #[test]
    fn net_gateway_is_the_old_default_route_and_is_left_out_where_there_is_none() {
        let route = PlannedRoute {
            net: "203.0.113.0/24".parse().unwrap(),
            via: Via::Outside,
            metric: None,
        };
        let plan = HostPlan { routes: vec![route], ..HostPlan::default() };
        assert_eq!(text(&plan, &outside()), ["203.0.113.0/24 via 192.0.2.1 Interface(2)"]);
        let (routes, notes) = expand(&plan, &OutsideRoutes::default(), false);
        assert!(routes.is_empty());
        assert!(notes[0].contains("no default route"), "{notes:?}");
    }

    #[test]
    fn the_most_specific_route_that_is_not_ours_leads_outside() {
        let main = |route: Route| Route { table: Some(MAIN_TABLE), ..route };
        let net = |text: &str| text.parse().unwrap();
        let routes = [
            main(Route { metric: Some(600), ..Route::dev(net("0.0.0.0/0"), 4) }),
            main(Route { metric: Some(100), ..Route::dev(net("0.0.0.0/0"), 2) }),
            main(Route::dev(net("0.0.0.0/1"), 9)),
            main(Route::dev(net("198.51.100.0/24"), 3)),
            Route { table: Some(77), ..Route::dev(net("198.51.100.7/32"), 5) },
            main(Route::dev(net("::/0"), 6)),
        ];
        let own = |route: &Route| route.link == Some(9);
        let to = |ip_: &str| way_to(ip(ip_), &routes, own).map(|hop| hop.interface);
        assert_eq!(to("198.51.100.7"), Some(3));
        assert_eq!(to("8.8.8.8"), Some(2), "the lower metric");
        assert_eq!(to("2001:db8::1"), Some(6));
        assert_eq!(default_way(false, &routes, own).map(|hop| hop.interface), Some(2));
        assert_eq!(default_way(true, &routes[..4], own), None);
    }

    #[test]
    fn an_unknown_flag_is_named() {
        assert_eq!(
            Redirect::parse(["def1", "ipv5"]).unwrap_err(),
            "redirect-gateway has no flag 'ipv5'"
        );
    }
}
