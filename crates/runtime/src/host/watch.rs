//! Follows the host's path to the server while a tunnel is up (its interfaces, addresses and routes), and keeps the
//! server reachable around the tunnel.

use std::net::IpAddr;
use std::time::Duration;

use adit_linux::net::{MAIN_TABLE, NetChange, NetWatch, Route};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::apply::Host;
use super::changes::{Change, kernel_route};
use super::dns::{DnsEvent, DnsInUse};
use super::plan::{HostPlan, Redirect};
use super::routes::{
    KernelRoute, NextHop, OutsideRoutes, RouteInterface, default_way, expand, way_to,
};

/// The delay before a change is processed, because changes arrive in bursts (a link, its address, its route).
const SETTLE: Duration = Duration::from_millis(150);

/// The maximum number of servers kept reachable by host routes. Further ones replace the oldest.
const DETOURS: usize = 16;

/// An event of the host that concerns the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostEvent {
    /// The path to the server has changed or is available again.
    PathChanged {
        /// The addresses of the path's interface. A socket that is bound to another address no longer works.
        sources: Vec<IpAddr>,
    },
    /// There is no longer a path to the server.
    PathLost {
        /// Whether the other address family has a path.
        alternative: bool,
    },
    /// Another program changed the DNS settings.
    Dns(DnsEvent),
    /// The reason why the tunnel lacks rules or routes that it needs; `None` once it has them.
    Routing(Option<String>),
}

/// The path to the server without the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerPath {
    hop: Option<NextHop>,
    sources: Vec<IpAddr>,
    /// Whether the other address family has a default route.
    alternative: bool,
}

/// Waits for changes, and holds the state to compare them with.
#[derive(Debug, Default)]
pub(super) struct NetworkWatcher {
    watch: Option<NetWatch>,
    /// The time when the pending changes will be processed.
    settled: Option<Instant>,
    /// The destination of the transport's packets.
    remote: Option<IpAddr>,
    way: ServerPath,
    /// The further servers that are kept reachable.
    pub(super) detours: Vec<IpAddr>,
    /// The last [`HostEvent::Routing`].
    routing: Option<String>,
}

impl NetworkWatcher {
    pub(super) fn start() -> Self {
        let watch =
            NetWatch::open().map_err(|e| tracing::warn!("network: cannot watch for changes: {e}"));
        Self { watch: watch.ok(), ..Self::default() }
    }

    pub(super) fn detour(&mut self, remote: IpAddr) {
        if !self.detours.contains(&remote) {
            if self.detours.len() >= DETOURS {
                self.detours.remove(0);
            }
            self.detours.push(remote);
        }
    }
}

impl Host {
    /// Waits for the next event that concerns the client, or forever if there is nothing to watch. Cancel-safe.
    pub async fn event(&mut self) -> HostEvent {
        loop {
            let routing = self.unfinished.as_ref().map(|unfinished| unfinished.why.clone());
            if routing != self.follow.routing {
                self.follow.routing.clone_from(&routing);
                return HostEvent::Routing(routing);
            }
            let retry = self.unfinished.as_ref().map(|unfinished| unfinished.retry);
            let Self { follow, dns, .. } = self;
            let due = follow.settled.into_iter().chain(retry).min();
            let network = async {
                match &mut follow.watch {
                    Some(watch) => watch.next().await,
                    None => std::future::pending().await,
                }
            };
            let look = async {
                match due {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = network => {
                    if let Some(settle) = self.settle_time(change) {
                        let at = Instant::now() + settle;
                        let settled = self.follow.settled.map_or(at, |former| former.min(at));
                        self.follow.settled = Some(settled);
                    }
                }
                () = look => {
                    let event = self.look().await;
                    self.follow.settled = None;
                    if let Some(event) = event {
                        return event;
                    }
                }
                event = dns.event() => return HostEvent::Dns(event),
            }
        }
    }

    /// Returns the DNS servers in use.
    pub fn dns_in_use(&self) -> &DnsInUse {
        self.dns.in_use()
    }

    /// Undoes the DNS changes of a killed process, before names are resolved.
    pub async fn clean_up_dns(&self) {
        self.dns.clean_up().await;
    }

    /// Returns the time to wait for further changes, if the change may concern the path to the server.
    fn settle_time(&self, change: NetChange) -> Option<Duration> {
        let concerns = match change {
            NetChange::Unknown => true,
            // The kernel removes the routes into the tunnel's own interface when the interface goes down.
            NetChange::Link(index) => {
                self.policy.is_some() || self.device.as_ref().is_none_or(|(_, own)| *own != index)
            }
            NetChange::Route(IpNet::V6(_), MAIN_TABLE) if self.block6.is_on() => {
                // The route may bypass the tunnel.
                return Some(Duration::ZERO);
            }
            NetChange::Route(to, table) => {
                let remote = self.follow.remote;
                table == MAIN_TABLE
                    && (to.prefix_len() == 0 || remote.is_some_and(|ip| to.contains(&ip)))
            }
        };
        concerns.then_some(SETTLE)
    }

    /// Returns the destination of the transport's packets.
    pub(super) fn remote(&self) -> Option<IpAddr> {
        self.follow.remote
    }

    /// Follows the transport's packets to a new address.
    pub(super) async fn follow_remote(&mut self, remote: IpAddr) {
        if self.follow.remote != Some(remote) {
            self.follow.remote = Some(remote);
            self.follow.way = self.way().await;
        }
    }

    /// Keeps another server reachable while the current plan sends all traffic into the tunnel. Otherwise a client that
    /// reconnects to that server would dial through its lost tunnel.
    pub async fn keep_reachable(&mut self, remote: IpAddr) {
        self.follow_remote(remote).await;
        if self.block6.is_on() && remote.is_ipv6() {
            self.follow.detour(remote);
            self.block_again().await;
        }
        let Some(((name, index), plan)) = self.device.clone().zip(self.plan.clone()) else {
            return;
        };
        if self.redirects_by_policy(&plan) || plan.redirect.is_none() {
            return;
        }
        if plan.remote.is_some_and(|known| known.ip() == remote) {
            return;
        }
        self.follow.detour(remote);
        for route in self.detour_routes(&plan, remote, &self.outside.clone()) {
            // The route may exist from an earlier call.
            let _ = self.add_route(&route, index, &name).await;
        }
    }

    /// Returns the host routes to a server other than the plan's.
    fn detour_routes(
        &self,
        plan: &HostPlan,
        remote: IpAddr,
        outside: &OutsideRoutes,
    ) -> Vec<KernelRoute> {
        let Some(redirect) = plan.redirect.filter(|_| !self.redirects_by_policy(plan)) else {
            return Vec::new();
        };
        let default = if remote.is_ipv4() { outside.default4 } else { outside.default6 };
        let outside = OutsideRoutes { remote: default, ..OutsideRoutes::default() };
        let detour = HostPlan {
            redirect: Some(Redirect { private: true, block_local: false, ..redirect }),
            remote: Some((remote, 0).into()),
            ..HostPlan::default()
        };
        expand(&detour, &outside, false).0
    }

    pub(super) async fn look(&mut self) -> Option<HostEvent> {
        if let Some(plan) = self.plan().cloned() {
            let outside = self.look_outside(&plan).await;
            self.refresh(outside).await;
        }
        // The host may be in other networks now, with other routers.
        if let Some(plan) = self.policy.as_ref().map(|policy| policy.plan.clone())
            && let Err(e) = self.enter_policy(&plan).await
        {
            tracing::warn!("policy routing: {e}");
        }
        self.block_again().await;
        let way = self.way().await;
        if way == self.follow.way {
            return None;
        }
        self.follow.way = way.clone();
        Some(match way.hop {
            Some(_) => HostEvent::PathChanged { sources: way.sources },
            None => HostEvent::PathLost { alternative: way.alternative },
        })
    }

    /// Finds the routes to the outside world without the tunnel. Routes that cannot be found are left out.
    pub(super) async fn look_outside(&self, plan: &HostPlan) -> OutsideRoutes {
        let routes = self.net.routes().await.unwrap_or_default();
        let own = self.own_routes();
        let default4 = default_way(false, &routes, &own);
        let default6 = default_way(true, &routes, &own);
        let remote = match plan.remote.map(|remote| remote.ip()) {
            Some(ip) if !self.is_local(ip).await => way_to(ip, &routes, &own),
            Some(_) | None => None,
        };
        let mut outside = OutsideRoutes { default4, default6, remote, local: Vec::new() };
        if plan.redirect.is_some_and(|redirect| redirect.block_local) {
            let addresses = self.net.addresses().await.unwrap_or_default();
            let links = [outside.default4, outside.default6];
            outside.local = addresses
                .iter()
                .filter(|a| links.iter().flatten().any(|hop| hop.interface == a.link))
                .filter(|a| !is_link_local(&a.local))
                .map(|a| a.local.trunc())
                .collect();
        }
        outside
    }

    /// Returns whether an address belongs to this host.
    async fn is_local(&self, ip: IpAddr) -> bool {
        self.net.route_to(ip).await.is_ok_and(|path| path.local)
    }

    async fn way(&self) -> ServerPath {
        let Ok(routes) = self.net.routes().await else { return ServerPath::default() };
        let own = self.own_routes();
        let default = |v6| default_way(v6, &routes, &own);
        let v6 = self.follow.remote.is_some_and(|remote| remote.is_ipv6());
        let hop = match self.follow.remote {
            Some(remote) => way_to(remote, &routes, &own),
            None => default(false).or_else(|| default(true)),
        };
        let alternative = default(!v6).is_some();
        let Some(found) = hop else { return ServerPath { alternative, ..ServerPath::default() } };
        // An interface without carrier cannot transmit, although its routes exist.
        let link = self.net.link_by_index(found.interface).await;
        if !link.is_ok_and(|link| link.running) {
            return ServerPath { alternative, ..ServerPath::default() };
        }
        let addresses = self.net.addresses().await.unwrap_or_default();
        let mut sources: Vec<IpAddr> = addresses
            .iter()
            .filter(|address| address.link == found.interface)
            .map(|address| address.local.addr())
            .filter(|ip| ip.is_ipv6() == v6)
            .collect();
        sources.sort();
        ServerPath { hop, sources, alternative }
    }

    /// Returns a predicate for this tunnel's routes.
    pub(super) fn own_routes(&self) -> impl Fn(&Route) -> bool + use<> {
        let device = self.device.as_ref().map(|(_, index)| *index);
        let ours: Vec<Route> = self.routes().chain(self.block6.routes()).copied().collect();
        move |route: &Route| {
            let same = |other: &Route| {
                (other.to, other.via, other.link) == (route.to, route.via, route.link)
            };
            (device.is_some() && route.link == device) || ours.iter().any(same)
        }
    }

    /// Replaces the routes through interfaces other than the tunnel's after the network has changed. Adds those again
    /// that the kernel removed together with an interface.
    async fn refresh(&mut self, outside: OutsideRoutes) {
        let Some(((name, index), plan)) = self.device.clone().zip(self.plan().cloned()) else {
            return;
        };
        let mut wanted: Vec<_> = expand(&plan, &outside, self.redirects_by_policy(&plan))
            .0
            .into_iter()
            .filter(|route| route.through != RouteInterface::Tunnel)
            .collect();
        for remote in self.follow.detours.clone() {
            wanted.extend(self.detour_routes(&plan, remote, &outside));
        }
        self.outside = outside;
        let Ok(present) = self.net.routes().await else { return };
        let is_present = |route: &Route| {
            present.iter().any(|other| {
                let link = route.link.is_none() || route.link == other.link;
                other.table == Some(MAIN_TABLE)
                    && (other.to, other.via) == (route.to.trunc(), route.via)
                    && link
            })
        };
        let keeps = |route: &Route| {
            let same = |wanted| kernel_route(wanted, index).as_ref() == Some(route);
            is_present(route) && wanted.iter().any(same)
        };
        let stale = |change: &&Change| match change {
            Change::Route(route) if route.link != Some(index) => !keeps(route),
            Change::Route(_) | Change::Address(_) => false,
        };
        let stale: Vec<Change> = self.changes.iter().filter(stale).cloned().collect();
        for change in stale.iter().rev() {
            self.undo_change(change).await;
        }
        for route in &wanted {
            let new = kernel_route(route, index);
            let known = self.routes().any(|other| Some(other) == new.as_ref());
            if !known && let Err(note) = self.add_route(route, index, &name).await {
                tracing::debug!("{note}");
            }
        }
    }
}

/// Returns whether a network is link-local.
pub(super) fn is_link_local(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.addr().is_link_local(),
        IpNet::V6(net) => net.addr().is_unicast_link_local(),
    }
}
