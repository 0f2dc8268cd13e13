//! A full tunnel by policy routing: a table of our own that is consulted before the main one.
//!
//! Every packet without the transport's mark is looked up in that table, which leads into the tunnel
//! or nowhere. No route of the main table, however specific, leads around it, whoever sent that
//! route: DHCP (option 121), a router advertisement (RFC 4191) or another program.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_linux::net::{
    MAIN_TABLE, MarkedReplies, NetError, NetErrorKind, Route, RouteKind, Rule, RuleInUse,
};
use adit_linux::udp::{UdpOptions, UdpSocket};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::apply::Host;
use super::ledger;
use super::plan::{HostPlan, Via};
use crate::say;

/// The first table, and the first mark, that are tried. Several tunnels have a table each.
const BASE: u32 = 0xad17;
/// Tables and marks that are tried.
const SLOTS: u32 = 64;
/// The first preference of the first table's rules.
const PREFERENCE: u32 = 7000;
/// Routers beside the machine that rules are made for at most.
const ROUTERS: usize = 16;
/// Preferences of one table's rules.
const PREFERENCES: u32 = 16;

/// What becomes of one family's packets that do not belong to the transport.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Captured {
    /// The main table's routes decide.
    #[default]
    No,
    /// They go through the tunnel.
    Tunnel,
    /// They are unreachable.
    Blocked,
}

/// How much of the machine's traffic a tunnel has.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// IPv4.
    pub ipv4: Captured,
    /// IPv6.
    pub ipv6: Captured,
}

impl Capture {
    /// Whether nothing of either family leaves the machine outside the tunnel.
    pub fn is_full(self) -> bool {
        self.ipv4 != Captured::No && self.ipv6 != Captured::No
    }
}

/// The numbers of one tunnel's rules.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) table: u32,
    pub(super) preference: u32,
    pub(super) mark: u32,
}

/// What is in force.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    slot: Slot,
    rules: Vec<Rule>,
    routes: Vec<Route>,
    pub(super) capture: Capture,
    /// What is carried out; it stays while the tunnel reconnects.
    pub(super) plan: HostPlan,
}

/// What of the access network stays outside.
#[derive(Clone, Debug, Default)]
struct Around {
    /// Networks, with `allow-lan`.
    lan: Vec<IpNet>,
    /// Own addresses and the routers beside them, where the kernel filters sources: it looks up the
    /// sender of an ARP request too, and would not answer the router.
    routers: BTreeSet<(IpAddr, IpAddr)>,
}

/// What a plan wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    rules: Vec<Rule>,
    routes: Vec<Route>,
    capture: Capture,
}

/// Whether a rule is a tunnel's of ours, by its table.
pub(super) fn is_ours(rule: &RuleInUse) -> bool {
    (BASE..BASE + SLOTS).contains(&rule.table)
}

/// A mark that no foreign rule looks for. All tunnels of ours share it, so that none sends another
/// one's transport into its table.
fn free_mark(rules: &[RuleInUse]) -> Option<u32> {
    (BASE..BASE + SLOTS).find(|mark| {
        !rules.iter().any(|rule| {
            let looks = |(value, mask): (u32, u32)| mask != 0 && value == mark & mask;
            !is_ours(rule) && rule.mark.is_some_and(looks)
        })
    })
}

/// Families that a plan takes from the main table.
fn capture(plan: &HostPlan) -> Capture {
    let inside = |v6: bool| {
        let any = |net: &IpNet| matches!(net, IpNet::V6(_)) == v6;
        plan.addresses.is_empty() || plan.addresses.iter().any(any)
    };
    let through = |inside| if inside { Captured::Tunnel } else { Captured::Blocked };
    let redirect = plan.redirect.filter(|redirect| plan.policy && !redirect.private);
    let (mut ipv4, mut ipv6) = (Captured::No, Captured::No);
    if let Some(redirect) = redirect {
        if redirect.ipv4 {
            (ipv4, ipv6) = (through(inside(false)), Captured::Blocked);
        }
        if redirect.ipv6 {
            ipv6 = through(inside(true));
        }
    }
    if plan.block_ipv6 {
        ipv6 = Captured::Blocked;
    }
    Capture { ipv4, ipv6 }
}

/// The rules and routes of a plan.
fn wanted(plan: &HostPlan, slot: Slot, device: (u32, bool), around: &Around) -> Wanted {
    let mut wanted = Wanted { capture: capture(plan), ..Wanted::default() };
    let families = [(false, wanted.capture.ipv4), (true, wanted.capture.ipv6)];
    for (v6, captured) in families.into_iter().filter(|(_, captured)| *captured != Captured::No) {
        wanted.rules.extend(rules(slot, v6, around));
        wanted.routes.push(reject(slot, v6));
        if captured == Captured::Tunnel {
            let (link, ethernet) = device;
            let gateway = plan.redirect.and_then(|redirect| redirect.gateway4);
            let via = gateway.filter(|_| ethernet && !v6).map(IpAddr::V4);
            wanted.routes.push(Route {
                via,
                table: Some(slot.table),
                ..Route::dev(everything(v6), link)
            });
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

fn everything(v6: bool) -> IpNet {
    if v6 { IpNet::V6(Ipv6Net::default()) } else { IpNet::V4(Ipv4Net::default()) }
}

/// What is left when the device is gone, and what reserves the table.
fn reject(slot: Slot, v6: bool) -> Route {
    Route {
        table: Some(slot.table),
        metric: Some(u32::MAX),
        ..Route::without_hop(everything(v6), RouteKind::Unreachable)
    }
}

/// In the order of their preferences: what stays with the main table, then all else.
fn rules(slot: Slot, v6: bool, around: &Around) -> Vec<Rule> {
    let main = Rule {
        v6,
        preference: slot.preference,
        from: None,
        to: None,
        not_mark: None,
        udp_ports: None,
        table: MAIN_TABLE,
    };
    // Client to server: the lease of the address that carries the tunnel must be renewed.
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

/// Routes of the configuration that lead around the tunnel (`net_gateway`, a gateway outside).
fn exemptions(plan: &HostPlan) -> impl Iterator<Item = IpNet> + '_ {
    let outside = |gateway: &IpAddr| !plan.addresses.iter().any(|net| net.contains(gateway));
    plan.routes.iter().filter_map(move |route| match &route.via {
        Via::Outside => Some(route.net),
        Via::Gateway(gateway) if outside(gateway) => Some(route.net),
        Via::Gateway(_) | Via::Tunnel(_) => None,
    })
}

/// A network that `allow-lan` exempts: private, so that no one who hands out addresses can take
/// public ones out of the tunnel.
fn is_private(net: &IpNet) -> bool {
    let within = |ranges: &[&str]| {
        let mut ranges = ranges.iter().filter_map(|range| range.parse::<IpNet>().ok());
        ranges.any(|range| range.contains(net))
    };
    within(&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7"])
}

impl Host {
    /// Prepares for a client: undoes what killed processes left, and chooses the transport's mark.
    /// `own` is a mark of the configuration's; without `may_mark` no other is used.
    pub async fn prepare(&mut self, own: Option<u32>, may_mark: bool) -> Option<u32> {
        if self.link().is_some() {
            ledger::clean_up(&self.net).await;
        }
        let kept = ledger::kept().into_iter().find_map(|(_, page)| page.mark());
        let rules = self.net.rules().await.unwrap_or_default();
        let mark = own.or(kept).or_else(|| free_mark(&rules).filter(|_| may_mark))?;
        let mut options = UdpOptions::new((Ipv4Addr::LOCALHOST, 0).into());
        options.fwmark = Some(mark);
        let works = own.is_some() || UdpSocket::bind(&options).is_ok();
        self.mark = Some(mark).filter(|_| works);
        self.mark
    }

    /// How much of the machine's traffic the tunnel has now.
    pub fn capture(&self) -> Capture {
        let policy = self.policy.as_ref().map(|policy| policy.capture).unwrap_or_default();
        let redirect = self.plan().and_then(|plan| plan.redirect).filter(|r| !r.private);
        let or_routes = |captured, routes| match captured {
            Captured::No if routes => Captured::Tunnel,
            captured => captured,
        };
        Capture {
            ipv4: or_routes(policy.ipv4, redirect.is_some_and(|redirect| redirect.ipv4)),
            ipv6: or_routes(policy.ipv6, redirect.is_some_and(|redirect| redirect.ipv6)),
        }
    }

    /// Whether the table carries out the plan's `redirect-gateway`.
    pub(super) fn redirects_by_policy(&self, plan: &HostPlan) -> bool {
        let redirects = plan.redirect.is_some_and(|redirect| !redirect.private);
        self.policy.is_some() && plan.policy && redirects
    }

    /// Whether a plan needs a table of its own.
    pub(super) fn wants_policy(plan: &HostPlan) -> bool {
        let capture = capture(plan);
        capture.ipv4 != Captured::No || capture.ipv6 != Captured::No
    }

    /// Brings the rules and routes of a plan into force, without a moment in between at which a
    /// packet could get past them.
    pub(super) async fn enter_policy(&mut self, plan: &HostPlan) -> Result<(), String> {
        let Some((name, index)) = self.link() else { return Ok(()) };
        let mark = self.mark.ok_or("the transport's sockets cannot be marked")?;
        let filters = capture(plan).ipv4 != Captured::No && filters_sources(&name);
        if filters {
            self.mark_replies(mark)?;
        }
        let slot = match &self.policy {
            Some(policy) => policy.slot,
            None => self.reserve(mark).await?,
        };
        let around = Around {
            lan: if plan.allow_lan { self.lan(index).await } else { Vec::new() },
            routers: if filters { self.routers(index).await } else { BTreeSet::new() },
        };
        let wanted = wanted(plan, slot, (index, self.ethernet), &around);
        let first = self.policy.is_none();
        let former = self.policy.take().unwrap_or(Policy {
            slot,
            rules: Vec::new(),
            routes: vec![reject(slot, false)],
            capture: Capture::default(),
            plan: plan.clone(),
        });
        self.ledger.keep(plan.kill_switch || self.inherited);
        let mut policy = former.clone();
        for route in &wanted.routes {
            let known = former.routes.contains(route);
            // The kernel removes routes by an interface with its last address.
            if known && route.kind != RouteKind::Unicast {
                continue;
            }
            if !known {
                self.ledger.add(route);
                policy.routes.push(*route);
            }
            if let Err(e) = self.net.add_route(route).await {
                self.pass_over(&mut policy, e, matches!(route.to, IpNet::V6(_))).await?;
            }
        }
        for rule in wanted.rules.iter().filter(|rule| !former.rules.contains(rule)) {
            self.ledger.add_rule(rule);
            policy.rules.push(*rule);
            say!(3, "rule added: {rule}");
            if let Err(e) = self.net.add_rule(rule).await {
                self.pass_over(&mut policy, e, rule.v6).await?;
            }
        }
        for rule in former.rules.iter().filter(|rule| !wanted.rules.contains(rule)) {
            self.drop_rule(&mut policy, rule).await;
        }
        let reserved = reject(slot, false);
        let stale = |route: &&Route| !wanted.routes.contains(route) && **route != reserved;
        for route in former.routes.iter().filter(stale) {
            self.drop_route(&mut policy, route).await;
        }
        policy.capture = wanted.capture;
        policy.plan = plan.clone();
        self.policy = Some(policy);
        if first && self.inherited {
            ledger::release(&self.net).await;
        }
        Ok(())
    }

    /// A machine without IPv6 has no IPv6 to capture; any other refusal ends policy routing.
    async fn pass_over(
        &mut self,
        policy: &mut Policy,
        e: NetError,
        v6: bool,
    ) -> Result<(), String> {
        match e.kind() {
            NetErrorKind::Exists => Ok(()),
            NetErrorKind::NoFamily if v6 => Ok(()),
            _ => {
                self.clear(std::mem::take(&mut policy.rules), std::mem::take(&mut policy.routes))
                    .await;
                Err(e.to_string())
            }
        }
    }

    /// Reverse path filtering drops the transport's replies, since their source is looked up without
    /// the mark: they get it, and the kernel is told to heed it. A strict filter does that always, a
    /// loose one while the table leads nowhere.
    fn mark_replies(&mut self, mark: u32) -> Result<(), String> {
        if self.replies.is_some() {
            return Ok(());
        }
        let failed = |e: std::io::Error| format!("rp_filter needs marked replies: {e}");
        self.replies = Some(MarkedReplies::start(mark).map_err(failed)?);
        self.ledger.set_sysctl("net.ipv4.conf.all.src_valid_mark", "1").map_err(failed)
    }

    /// Takes a table that is no one's. The kernel decides between two that ask at once.
    async fn reserve(&mut self, mark: u32) -> Result<Slot, String> {
        let rules = self.net.rules().await.map_err(|e| e.to_string())?;
        let routes = self.net.all_routes().await.map_err(|e| e.to_string())?;
        for number in 0..SLOTS {
            let slot =
                Slot { table: BASE + number, preference: PREFERENCE + number * PREFERENCES, mark };
            let preferences = slot.preference..slot.preference + PREFERENCES;
            let taken = |rule: &RuleInUse| {
                rule.table == slot.table || preferences.contains(&rule.preference)
            };
            if rules.iter().any(taken) || routes.iter().any(|r| r.table == Some(slot.table)) {
                continue;
            }
            let route = reject(slot, false);
            self.ledger.add(&route);
            match self.net.add_route(&route).await {
                Ok(()) => return Ok(slot),
                Err(e) if e.kind() == NetErrorKind::Exists => self.ledger.remove(&route),
                Err(e) => {
                    self.ledger.remove(&route);
                    return Err(e.to_string());
                }
            }
        }
        Err(format!("the routing tables {BASE} to {} are all in use", BASE + SLOTS - 1))
    }

    /// Private networks on other interfaces, and what is for all stations of a link.
    async fn lan(&self, device: u32) -> Vec<IpNet> {
        let addresses = self.net.addresses().await.unwrap_or_default();
        let others = addresses.iter().filter(|address| address.link != device);
        let mut lan: Vec<IpNet> =
            others.map(|address| address.local.trunc()).filter(is_private).collect();
        lan.push(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4).into());
        lan
    }

    /// The routers that the machine needs, with its own addresses on their links.
    async fn routers(&self, device: u32) -> BTreeSet<(IpAddr, IpAddr)> {
        let routes = self.net.routes().await.unwrap_or_default();
        let addresses = self.net.addresses().await.unwrap_or_default();
        let remote = self.remote().filter(IpAddr::is_ipv4);
        let leads = |route: &&Route| {
            route.link.is_some_and(|link| link != device)
                && route.table == Some(MAIN_TABLE)
                && (route.is_default() || remote.is_some_and(|remote| route.to.contains(&remote)))
        };
        let mut routers = BTreeSet::new();
        for route in routes.iter().filter(leads) {
            let Some(hop) = route.via.or(remote.filter(|_| !route.is_default())) else { continue };
            let own = addresses
                .iter()
                .filter(|address| Some(address.link) == route.link && address.local.contains(&hop));
            routers.extend(own.map(|address| (address.local.addr(), hop)).take(ROUTERS));
        }
        routers.into_iter().take(ROUTERS).collect()
    }

    /// Ends policy routing; with the kill switch only the way into the tunnel goes.
    pub(super) async fn leave_policy(&mut self) {
        if self.ledger.is_kept() {
            return;
        }
        if let Some(policy) = self.policy.take() {
            self.clear(policy.rules, policy.routes).await;
        }
    }

    async fn clear(&mut self, rules: Vec<Rule>, routes: Vec<Route>) {
        let mut policy = Policy {
            slot: Slot { table: 0, preference: 0, mark: 0 },
            rules: Vec::new(),
            routes: Vec::new(),
            capture: Capture::default(),
            plan: HostPlan::default(),
        };
        for rule in rules.iter().rev() {
            self.drop_rule(&mut policy, rule).await;
        }
        for route in routes.iter().rev() {
            self.drop_route(&mut policy, route).await;
        }
    }

    async fn drop_rule(&mut self, policy: &mut Policy, rule: &Rule) {
        say!(3, "rule removed: {rule}");
        warn_unless_gone(self.net.delete_rule(rule).await);
        policy.rules.retain(|other| other != rule);
        self.ledger.remove_rule(rule);
    }

    async fn drop_route(&mut self, policy: &mut Policy, route: &Route) {
        warn_unless_gone(self.net.delete_route(route).await);
        policy.routes.retain(|other| other != route);
        self.ledger.remove(route);
    }
}

/// Whether the kernel filters by source on any interface but the tunnel's, or on one that may come.
fn filters_sources(device: &str) -> bool {
    let Ok(interfaces) = std::fs::read_dir("/proc/sys/net/ipv4/conf") else { return false };
    let others = interfaces.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name();
        name != "lo" && name != device
    });
    let value = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path().join("rp_filter")).ok()?;
        text.trim().parse::<u8>().ok()
    };
    // The higher number of "all" and the interface's own counts.
    others.filter_map(value).any(|value| value != 0)
}

fn warn_unless_gone(done: Result<(), NetError>) {
    match done {
        Err(e) if !matches!(e.kind(), NetErrorKind::NotFound | NetErrorKind::NoFamily) => {
            tracing::warn!("{e}");
        }
        _ => {}
    }
}
