//! Implements a full tunnel with policy routing, in a separate table that is consulted before the main one.
//!
//! Every packet without the transport's mark is looked up in that table, which leads into the tunnel or nowhere. So
//! even a specific route in the main table cannot bypass the tunnel, whether it comes from DHCP (option 121), a router
//! advertisement (RFC 4191) or another program.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_linux::net::{MAIN_TABLE, Route, RouteKind, Rule, RuleInUse};
use adit_linux::udp::{UdpOptions, UdpSocket};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::apply::Host;
use super::plan::{HostPlan, Via};
use super::{orphan_rules, undo_log};

/// The number of the first table and the first mark that are tried. Several tunnels have a table each.
pub(super) const BASE: u32 = 0xad17;
/// The number of tables and marks that are tried.
pub(super) const SLOTS: u32 = 64;
/// The first preference of the first table's rules.
pub(super) const PREFERENCE: u32 = 7000;
/// The maximum number of on-link routers with rules.
pub(super) const ROUTERS: usize = 16;
/// The number of preferences for one table's rules.
pub(super) const PREFERENCES: u32 = 16;

/// The treatment of one address family's packets, except the transport's.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CaptureMode {
    /// The main table's routes decide.
    #[default]
    No,
    /// The packets go through the tunnel.
    Tunnel,
    /// Routes in the main table lead the packets through the tunnel, unless a more specific route bypasses it.
    ByRoutes,
    /// The packets are rejected as unreachable.
    Blocked,
}

/// The part of the host's traffic that a tunnel carries.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// IPv4.
    pub ipv4: CaptureMode,
    /// IPv6.
    pub ipv6: CaptureMode,
}

impl Capture {
    /// Returns whether no traffic of either family leaves the host outside the tunnel.
    pub fn is_full(self) -> bool {
        let captured = |captured| matches!(captured, CaptureMode::Tunnel | CaptureMode::Blocked);
        captured(self.ipv4) && captured(self.ipv6)
    }
}

/// The numbers of one tunnel's rules.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) table: u32,
    pub(super) preference: u32,
    pub(super) mark: u32,
}

/// The parts of the access network that bypass the tunnel.
#[derive(Clone, Debug, Default)]
pub(super) struct Bypass {
    /// The local networks, with `allow-lan`.
    pub(super) lan: Vec<IpNet>,
    /// The host's own addresses and their on-link routers, if the kernel filters by source. The filter also looks up
    /// the sender of an ARP request, so without these the kernel would not answer the router.
    pub(super) routers: BTreeSet<(IpAddr, IpAddr)>,
}

/// The rules and routes that a plan needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DesiredRouting {
    pub(super) rules: Vec<Rule>,
    pub(super) routes: Vec<Route>,
    pub(super) capture: Capture,
}

/// Returns whether a rule belongs to one of our tunnels according to its table.
pub(super) fn is_ours(rule: &RuleInUse) -> bool {
    (BASE..BASE + SLOTS).contains(&rule.table)
}

/// Returns our rule that routes all unmarked packets, if a listed rule looks like one.
pub(super) fn capturing(rule: &RuleInUse) -> Option<Rule> {
    let RuleInUse { v6, preference, table, mark } = *rule;
    let (mark, mask) = mark?;
    let ours = is_ours(rule) && mask == u32::MAX && preference == first_preference(table) + 2;
    ours.then_some(Rule {
        v6,
        preference,
        from: None,
        to: None,
        not_mark: Some(mark),
        udp_ports: None,
        table,
    })
}

/// Returns whether a listed rule belongs to the tunnel of a rule that [`capturing`] found.
pub(super) fn is_of_tunnel(rule: &RuleInUse, capturing: &Rule) -> bool {
    let first = first_preference(capturing.table);
    rule.v6 == capturing.v6
        && (first..=capturing.preference).contains(&rule.preference)
        && [MAIN_TABLE, capturing.table].contains(&rule.table)
}

/// Returns the preference of the first rule that leads to one of our tables.
fn first_preference(table: u32) -> u32 {
    PREFERENCE + table.saturating_sub(BASE) * PREFERENCES
}

/// Returns a mark that no foreign rule matches. All tunnels share it, so that no tunnel captures another one's
/// transport.
fn free_mark(rules: &[RuleInUse]) -> Option<u32> {
    (BASE..BASE + SLOTS).find(|mark| {
        !rules.iter().any(|rule| {
            let looks = |(value, mask): (u32, u32)| mask != 0 && value == mark & mask;
            !is_ours(rule) && rule.mark.is_some_and(looks)
        })
    })
}

/// Returns the part of the traffic that a plan takes from the main table.
pub(super) fn capture(plan: &HostPlan) -> Capture {
    let inside = |v6: bool| {
        let any = |net: &IpNet| matches!(net, IpNet::V6(_)) == v6;
        plan.addresses.is_empty() || plan.addresses.iter().any(any)
    };
    let through = |inside| if inside { CaptureMode::Tunnel } else { CaptureMode::Blocked };
    let redirect = plan.redirect.filter(|redirect| plan.policy && !redirect.private);
    let (mut ipv4, mut ipv6) = (CaptureMode::No, CaptureMode::No);
    if let Some(redirect) = redirect {
        if redirect.ipv4 {
            (ipv4, ipv6) = (through(inside(false)), CaptureMode::Blocked);
        }
        if redirect.ipv6 {
            ipv6 = through(inside(true));
        }
    }
    if plan.block_ipv6 {
        ipv6 = CaptureMode::Blocked;
    }
    Capture { ipv4, ipv6 }
}

/// Returns the rules and routes of a plan.
pub(super) fn wanted(
    plan: &HostPlan,
    slot: Slot,
    device: (u32, bool),
    around: &Bypass,
) -> DesiredRouting {
    let mut wanted = DesiredRouting { capture: capture(plan), ..DesiredRouting::default() };
    let families = [(false, wanted.capture.ipv4), (true, wanted.capture.ipv6)];
    for (v6, captured) in families.into_iter().filter(|(_, captured)| *captured != CaptureMode::No)
    {
        wanted.rules.extend(rules(slot, v6, around));
        wanted.routes.push(reject(slot, v6));
        if captured == CaptureMode::Tunnel {
            let (link, ethernet) = device;
            let gateway = plan.redirect.and_then(|redirect| redirect.gateway4);
            let via = gateway.filter(|_| ethernet && !v6).map(IpAddr::V4);
            wanted.routes.push(Route {
                via,
                table: Some(slot.table),
                ..Route::dev(everything(v6), link)
            });
        }
        if captured == CaptureMode::Blocked && !plan.block_ipv6 {
            wanted.routes.extend(
                inside(plan, device, v6).map(|route| Route { table: Some(slot.table), ..route }),
            );
        }
        let exempt: BTreeSet<IpNet> = exemptions(plan)
            .chain(around.lan.iter().copied())
            .filter(|net| matches!(net, IpNet::V6(_)) == v6)
            .map(|net| net.trunc())
            .collect();
        let throw =
            |net| Route { table: Some(slot.table), ..Route::without_hop(net, RouteKind::Throw) };
        wanted.routes.extend(exempt.into_iter().map(throw));
    }
    wanted
}

pub(super) fn everything(v6: bool) -> IpNet {
    if v6 { IpNet::V6(Ipv6Net::default()) } else { IpNet::V4(Ipv4Net::default()) }
}

/// Returns the unreachable route, which remains when the device is gone and reserves the table.
pub(super) fn reject(slot: Slot, v6: bool) -> Route {
    Route {
        table: Some(slot.table),
        metric: Some(u32::MAX),
        ..Route::without_hop(everything(v6), RouteKind::Unreachable)
    }
}

/// Returns the rules in the order of their preferences. Those for the main table come first.
fn rules(slot: Slot, v6: bool, around: &Bypass) -> Vec<Rule> {
    let main = Rule {
        v6,
        preference: slot.preference,
        from: None,
        to: None,
        not_mark: None,
        udp_ports: None,
        table: MAIN_TABLE,
    };
    // Let DHCP requests bypass the tunnel, because the lease of the address that carries the tunnel must be renewed.
    let dhcp = Rule { udp_ports: Some(if v6 { (546, 547) } else { (68, 67) }), ..main };
    let all_else = Rule {
        preference: slot.preference + 2,
        not_mark: Some(slot.mark),
        table: slot.table,
        ..main
    };
    if !v6 {
        let router = |(own, router): &(IpAddr, IpAddr)| Rule {
            preference: slot.preference + 1,
            from: Some(IpNet::from(*own)),
            to: Some(IpNet::from(*router)),
            ..main
        };
        let routers = around.routers.iter().map(router);
        return [dhcp].into_iter().chain(routers).chain([all_else]).collect();
    }
    let link_local = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);
    let local = Rule { preference: slot.preference + 1, to: Some(link_local.into()), ..main };
    vec![dhcp, local, all_else]
}

/// Returns the networks of a family that a tunnel carries although it does not capture the whole family. These are its
/// own networks and those of the routes into it.
fn inside(
    plan: &HostPlan,
    (link, ethernet): (u32, bool),
    v6: bool,
) -> impl Iterator<Item = Route> + '_ {
    let own = plan.addresses.iter().map(|net| (net.trunc(), None));
    let routed = plan.routes.iter().filter_map(|route| match route.via {
        Via::Tunnel(gateway) => Some((route.net, gateway)),
        Via::Outside | Via::Gateway(_) => None,
    });
    let of_family = own.chain(routed).filter(move |(net, _)| matches!(net, IpNet::V6(_)) == v6);
    of_family.map(move |(net, gateway)| Route {
        via: gateway.filter(|_| ethernet),
        ..Route::dev(net, link)
    })
}

/// Returns the configured routes that bypass the tunnel (`net_gateway`, a gateway outside).
fn exemptions(plan: &HostPlan) -> impl Iterator<Item = IpNet> + '_ {
    let outside = |gateway: &IpAddr| !plan.addresses.iter().any(|net| net.contains(gateway));
    plan.routes.iter().filter_map(move |route| match &route.via {
        Via::Outside => Some(route.net),
        Via::Gateway(gateway) if outside(gateway) => Some(route.net),
        Via::Gateway(_) | Via::Tunnel(_) => None,
    })
}

/// Returns whether `allow-lan` may exempt a network. It must be private, so that a DHCP server cannot make public
/// addresses bypass the tunnel.
pub(super) fn is_private(net: &IpNet) -> bool {
    private_networks().any(|range| range.contains(net))
}

/// Returns the networks that are private.
pub(super) fn private_networks() -> impl Iterator<Item = IpNet> {
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7"]
        .iter()
        .filter_map(|range| range.parse().ok())
}

impl Host {
    /// Prepares the host for a client. Undoes the changes of killed processes, and chooses the transport's mark. `own`
    /// is the configured mark. Without `may_mark`, no other mark is used.
    pub async fn prepare(&mut self, own: Option<u32>, may_mark: bool) -> Option<u32> {
        if self.device.is_some() {
            undo_log::clean_up(&self.net).await;
        }
        let mut kept =
            undo_log::kill_switches_of_ended().into_iter().find_map(|(_, page)| page.mark());
        if kept.is_none() {
            kept = orphan_rules::rules(&self.net).await.iter().find_map(|rule| rule.not_mark);
        }
        let rules = self.net.rules().await.unwrap_or_default();
        let mark = own.or(kept).or_else(|| free_mark(&rules).filter(|_| may_mark))?;
        let mut options = UdpOptions::new((Ipv4Addr::LOCALHOST, 0).into());
        options.fwmark = Some(mark);
        let works = own.is_some() || UdpSocket::bind(&options).is_ok();
        self.mark = Some(mark).filter(|_| works);
        self.mark
    }

    /// Returns the part of the host's traffic that the tunnel carries now.
    pub fn capture(&self) -> Capture {
        let policy = self.policy.as_ref().map(|policy| policy.capture).unwrap_or_default();
        let redirect = self.plan().and_then(|plan| plan.redirect).filter(|r| !r.private);
        let or_routes = |captured, routes| match captured {
            CaptureMode::No if routes => CaptureMode::ByRoutes,
            captured => captured,
        };
        let blocked = match policy.ipv6 {
            CaptureMode::No if self.block6.is_complete() => CaptureMode::Blocked,
            captured => captured,
        };
        Capture {
            ipv4: or_routes(policy.ipv4, redirect.is_some_and(|redirect| redirect.ipv4)),
            ipv6: or_routes(blocked, redirect.is_some_and(|redirect| redirect.ipv6)),
        }
    }

    /// Returns whether the separate table implements the plan's `redirect-gateway`.
    pub(super) fn redirects_by_policy(&self, plan: &HostPlan) -> bool {
        let redirects = plan.redirect.is_some_and(|redirect| !redirect.private);
        self.policy.is_some() && plan.policy && redirects
    }

    /// Returns whether a plan needs a separate table.
    pub(super) fn wants_policy(plan: &HostPlan) -> bool {
        let capture = capture(plan);
        capture.ipv4 != CaptureMode::No || capture.ipv6 != CaptureMode::No
    }
}
