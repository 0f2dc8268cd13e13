use std::net::IpAddr;

use adit_linux::net::{Address, MarkedReplies, Net, NetError, NetErrorKind, Route};
use adit_linux::tun::{TunDevice, TunError, TunOffloads, TunOptions, TunParts, interface_index};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::block_ipv6::BlockIpv6;
use super::dns::Dns;
use super::enforce::{FailedChange, PolicyRouting};
use super::forward::Forwarding;
use super::kernel::Kernel;
use super::plan::{Device, HostPlan, Redirect};
use super::policy_routing::{CaptureMode, capture};
use super::routes::{KernelRoute, OutsideRoutes, RouteInterface, default_way, expand, way_to};
use super::undo_log::{self, UndoLog};
use super::watch::{NetworkWatcher, is_link_local};
use crate::fault::Fault;
use crate::say;

/// The number of flow queues over which the kernel distributes waiting flows. With so many, two flows seldom share a
/// queue.
const FLOW_QUEUES: usize = 16;

/// The default of `txqueuelen`, with room for a whole train and for the packets that arrive while it is sealed.
const TX_QUEUE_LEN: u32 = 1000;

/// The result of [`Host::apply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyOutcome {
    /// The same plan was already in force.
    Same,
    /// The plan is in force now. Contains a note on each part that was left out.
    Changed(Vec<String>),
}

/// The changes that a tunnel has made to this host.
#[derive(Debug)]
pub struct Host {
    pub(super) net: Kernel,
    device: Option<(String, u32)>,
    /// Whether this is a TAP device, behind which gateways are separate stations.
    pub(super) ethernet: bool,
    /// Whether we created the device with several queues.
    flow_queues: bool,
    /// Whether the device's rate is limited. A device that another program created outlives the tunnel.
    limited: bool,
    changes: Vec<Change>,
    plan: Option<HostPlan>,
    /// The routes to the outside world from before the plan.
    outside: OutsideRoutes,
    pub(super) undo_log: UndoLog,
    pub(super) dns: Dns,
    /// The mark of the transport's sockets.
    pub(super) mark: Option<u32>,
    /// The current rules and table.
    pub(super) policy: Option<PolicyRouting>,
    /// The routes that block IPv6 if policy routing is not available.
    pub(super) block6: BlockIpv6,
    /// A change to rules and routes that the kernel refused.
    pub(super) unfinished: Option<FailedChange>,
    /// Whether the kill switch of an earlier process is still on.
    pub(super) inherited: bool,
    /// The reason why policy routing is not available, which is logged once.
    refused: Option<String>,
    /// The marks on replies, which make strict reverse path filtering accept them.
    pub(super) replies: Option<MarkedReplies>,
    pub(super) forwarding: Forwarding,
    pub(super) follow: NetworkWatcher,
    /// Whether a route of the plan could not be added, so that the same plan tries it again.
    pub(super) lacks_routes: bool,
    /// Whether a former process set up the device, whose addresses and routes therefore exist.
    taken_over: bool,
}

/// A change, with the data for undoing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Address(Address),
    Route(Route),
}

impl Host {
    /// Opens the device with this number of queues. It is still down and has no addresses. Call it inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// Fails if the driver or the privileges are missing, or the name is taken. Each error names its remedy.
    pub fn open(
        device: &Device,
        offloads: TunOffloads,
        queues: usize,
    ) -> Result<(Self, Option<TunDevice>), Fault> {
        let mut host = Self::without_device(device)?;
        let Some((mode, name)) = device.tun() else { return Ok((host, None)) };
        host.undo_log = UndoLog::open();
        host.follow = NetworkWatcher::start();
        // The server's name may have to be resolved before anything is applied.
        host.dns.repair();
        let name = name.map(str::to_owned);
        let options = TunOptions { name, offloads, mode, queues, flow_queues: FLOW_QUEUES };
        let tun = TunDevice::open(&options).map_err(|e| match e {
            TunError::BadName(_) => Fault::operator(e.to_string()),
            _ => Fault::environment(e.to_string()),
        })?;
        say!(1, "TUN/TAP device {} opened", tun.name);
        host.device = Some((tun.name.clone(), tun.ifindex));
        host.flow_queues = tun.queues.iter().any(|queue| queue.flow_queues() > 1);
        Ok((host, Some(tun)))
    }

    /// Continues with a device that a former process has set up, and that another process still holds open. Call it
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// Fails if the device does not exist, or if the configuration would not have created it.
    pub fn take_over(device: &Device, parts: &TunParts) -> Result<Self, Fault> {
        let TunParts { name, ifindex, .. } = parts;
        let problem =
            |what: &str| Fault::environment(format!("device {name}: not taken over: {what}"));
        if !device.may_be(name) {
            return Err(problem("the configuration does not name it"));
        }
        if interface_index(name).ok() != Some(*ifindex) {
            return Err(problem("it does not exist any more"));
        }
        let mut host = Self::without_device(device)?;
        host.undo_log = UndoLog::open();
        host.follow = NetworkWatcher::start();
        host.device = Some((name.clone(), *ifindex));
        host.flow_queues = parts.flow_queues.iter().any(|count| *count > 1);
        host.taken_over = true;
        Ok(host)
    }

    /// Leaves the device and all changes as they are, for a process that continues with them. The undo log remains if
    /// it has entries; the next start reads it.
    pub fn leave(mut self) {
        self.changes.clear();
    }

    fn without_device(device: &Device) -> Result<Self, Fault> {
        let net = Net::open()
            .map_err(|e| Fault::environment(format!("netlink: cannot open a socket: {e}")))?;
        Ok(Self {
            net: Kernel::new(net),
            device: None,
            ethernet: device.is_ethernet(),
            flow_queues: false,
            limited: false,
            changes: Vec::new(),
            plan: None,
            outside: OutsideRoutes::default(),
            undo_log: UndoLog::default(),
            dns: Dns::default(),
            mark: None,
            policy: None,
            block6: BlockIpv6::default(),
            unfinished: None,
            inherited: false,
            refused: None,
            replies: None,
            forwarding: Forwarding::default(),
            follow: NetworkWatcher::default(),
            lacks_routes: false,
            taken_over: false,
        })
    }

    /// Returns the device's name.
    pub fn device(&self) -> Option<&str> {
        self.device.as_ref().map(|(name, _)| name.as_str())
    }

    /// Returns the plan in force.
    pub fn plan(&self) -> Option<&HostPlan> {
        self.plan.as_ref()
    }

    /// Applies a plan in place of the previous one.
    ///
    /// # Errors
    /// Fails if the device or its addresses cannot be set up. A route that cannot be added is only a note, because the
    /// rest of the tunnel is useful without it.
    pub async fn apply(&mut self, plan: &HostPlan) -> Result<ApplyOutcome, Fault> {
        if self.plan.as_ref() == Some(plan) {
            return Ok(ApplyOutcome::Same);
        }
        self.undo().await;
        let Some((name, index)) = self.device.clone() else {
            self.plan = Some(plan.clone());
            return Ok(ApplyOutcome::Changed(Vec::new()));
        };
        undo_log::clean_up(&self.net).await;
        self.dns.clean_up().await;
        self.outside = self.look_outside(plan).await;
        self.set_up(plan, &name, index).await?;
        let mut notes = self.apply_policy(plan).await?;
        let (routes, more) = expand(plan, &self.outside, self.redirects_by_policy(plan));
        notes.extend(more);
        self.lacks_routes = false;
        for route in routes {
            if let Err(note) = self.add_route(&route, index, &name).await {
                self.lacks_routes = true;
                notes.push(note);
            }
        }
        notes.extend(self.apply_forwarding(plan, &name));
        notes.extend(self.dns.apply(plan.dns.as_ref(), self.device.as_ref()).await);
        self.plan = Some(plan.clone());
        Ok(ApplyOutcome::Changed(notes))
    }

    /// Sets up policy routing if the plan needs it. If it is not available, routes in the main table replace it as far
    /// as possible, except for a kill switch, which they cannot implement.
    pub(super) async fn apply_policy(&mut self, plan: &HostPlan) -> Result<Vec<String>, Fault> {
        if !Self::wants_policy(plan) {
            self.leave_policy().await;
            self.unblock_ipv6().await;
            return Ok(self.no_kill_switch(plan));
        }
        self.inherited |= !undo_log::kill_switches_of_ended().is_empty();
        let entered = self.enter_policy(plan).await;
        let Err(why) = entered else {
            self.unblock_ipv6().await;
            let inherited = self.inherited && !plan.kill_switch;
            let note = "the kill switch of an earlier connection stays on: `adit connect --release` \
                        turns it off";
            let inherited = inherited.then(|| note.to_owned());
            let unfinished = self.unfinished.as_ref().map(|unfinished| {
                format!("policy routing: change incomplete: {}: traffic stays in", unfinished.why)
            });
            return Ok(inherited.into_iter().chain(unfinished).collect());
        };
        if plan.kill_switch {
            return Err(Fault::environment(format!(
                "kill-switch: it needs policy routing, which is not available: {why}"
            )));
        }
        if plan.policy && plan.redirect.is_some() && plan.remote.is_none() {
            return Err(Fault::environment(format!(
                "a full tunnel to more than one server needs policy routing, which is not available: {why}"
            )));
        }
        let said = self.refused.replace(why.clone()).is_some();
        let mut notes = Vec::new();
        if plan.redirect.is_some() && plan.policy && !said {
            notes.push(format!(
                "policy routing is not available: {why}; routes in the main table are used, and more \
                 specific ones lead around the tunnel"
            ));
        }
        notes.extend(self.block_by_routes(plan).await);
        Ok(notes)
    }

    /// Blocks IPv6 outside the tunnel with routes in the main table, if the plan needs that.
    async fn block_by_routes(&mut self, plan: &HostPlan) -> Option<String> {
        if capture(plan).ipv6 != CaptureMode::Blocked {
            self.unblock_ipv6().await;
            return None;
        }
        match self.block_ipv6(plan.remote.map(|remote| remote.ip())).await {
            Ok(()) => {
                self.finished();
                None
            }
            Err(why) => {
                self.unfinished(why.clone());
                Some(format!("IPv6 is not blocked and stays outside the tunnel: {why}"))
            }
        }
    }

    fn no_kill_switch(&self, plan: &HostPlan) -> Vec<String> {
        let mut notes = Vec::new();
        if plan.kill_switch {
            notes.push(
                "kill-switch has no effect: this tunnel does not take all traffic \
                 (redirect-gateway with policy-routing)"
                    .to_owned(),
            );
        }
        if !undo_log::kill_switches_of_ended().is_empty() {
            notes.push(
                "the kill switch of an earlier connection keeps traffic in: `adit connect --release` \
                 turns it off"
                    .to_owned(),
            );
        }
        notes
    }

    async fn set_up(&mut self, plan: &HostPlan, name: &str, index: u32) -> Result<(), Fault> {
        let failed = |e: NetError| Fault::environment(format!("{name}: {e}"));
        say!(3, "net_iface_mtu_set: mtu {} for {name}", plan.mtu);
        self.net.set_mtu(index, u32::from(plan.mtu)).await.map_err(failed)?;
        if let Some(mac) = plan.mac {
            let text: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
            say!(1, "TUN/TAP link layer address set to {}", text.join(":"));
            self.net.set_mac(index, mac).await.map_err(failed)?;
        }
        let queue = plan.tx_queue_len.unwrap_or(TX_QUEUE_LEN);
        self.net.set_txqueuelen(index, queue).await.map_err(failed)?;
        if self.flow_queues {
            // The device also works with the default qdisc.
            let _ = self.net.set_no_qdisc(index).await;
        }
        if let Some(rate) = plan.rate {
            self.net.set_rate_limit(index, rate, plan.mtu).await.map_err(|e| {
                Fault::environment(format!("shaper: {e}: load the kernel's module sch_tbf"))
            })?;
            say!(1, "Output Traffic Shaping initialized at {rate} bytes per second");
            self.limited = true;
        }
        say!(3, "net_iface_up: set {name} up");
        self.net.set_up(index).await.map_err(failed)?;
        for local in &plan.addresses {
            let far = plan.far4.filter(|_| matches!(local, IpNet::V4(_)));
            match far {
                Some(far) => {
                    say!(3, "net_addr_ptp_v4_add: {} peer {far} dev {name}", local.addr());
                }
                None => say!(3, "net_addr_{}_add: {local} dev {name}", family(local)),
            }
            let address = Address { remote: far.map(IpAddr::V4), ..Address::new(index, *local) };
            match self.net.add_address(&address).await {
                Ok(()) => self.changes.push(Change::Address(address)),
                Err(e) if e.kind() == NetErrorKind::Exists && self.taken_over => {
                    self.changes.push(Change::Address(address));
                }
                Err(e) if e.kind() == NetErrorKind::Exists => {}
                // With `ipv6.disable=1`, the IPv4 part of the tunnel still works.
                Err(e) if e.kind() == NetErrorKind::NoFamily && matches!(local, IpNet::V6(_)) => {
                    tracing::warn!("{name}: {e}; going on without IPv6");
                }
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }

    pub(super) fn link(&self) -> Option<(String, u32)> {
        self.device.clone()
    }

    pub(super) fn outside(&self) -> &OutsideRoutes {
        &self.outside
    }

    /// Returns the changes of this tunnel so far.
    pub(super) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Undoes one change, which stays recorded until it is undone.
    pub(super) async fn undo_change(&mut self, change: &Change) {
        self.revert(change).await;
        self.changes.retain(|other| other != change);
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn put_changes(&mut self, changes: Vec<Change>) {
        self.changes = changes;
    }

    pub(super) fn set_outside(&mut self, outside: OutsideRoutes) {
        self.outside = outside;
    }

    /// Returns the routes that this tunnel has added.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.changes.iter().filter_map(|change| match change {
            Change::Route(route) => Some(route),
            Change::Address(_) => None,
        })
    }

    pub(super) fn set_plan(&mut self, plan: HostPlan) {
        self.plan = Some(plan);
    }

    pub(super) async fn set_mtu(&self, index: u32, mtu: u16) -> Result<(), Fault> {
        let set = self.net.set_mtu(index, u32::from(mtu)).await;
        set.map_err(|e| Fault::environment(e.to_string()))
    }

    pub(super) async fn add_address(&mut self, index: u32, local: IpNet) -> Result<(), NetError> {
        let address = Address::new(index, local);
        self.net.add_address(&address).await?;
        self.changes.push(Change::Address(address));
        Ok(())
    }

    pub(super) async fn add_route(
        &mut self,
        route: &KernelRoute,
        index: u32,
        name: &str,
    ) -> Result<(), String> {
        let Some(mut wanted) = kernel_route(route, index) else { return Ok(()) };
        let dev = Some(name).filter(|_| route.through == RouteInterface::Tunnel);
        say!(3, "net_route_{}_add: {}", family(&route.net), line(&wanted, dev));
        let foreign = route.through != RouteInterface::Tunnel;
        if foreign {
            self.undo_log.add(&wanted);
        }
        let mut added = self.net.add_route(&wanted).await;
        if matches!(&added, Err(e) if e.kind() == NetErrorKind::Unreachable)
            && route.through == RouteInterface::Tunnel
            && !self.ethernet
        {
            // The gateway is in none of the device's networks. Leave it out, because the device has only one other end.
            wanted.via = None;
            added = self.net.add_route(&wanted).await;
        }
        if added.is_err() && foreign {
            self.undo_log.remove(&wanted);
        }
        match added {
            Ok(()) => {
                self.changes.push(Change::Route(wanted));
                Ok(())
            }
            Err(e) if e.kind() == NetErrorKind::Exists && self.taken_over && !foreign => {
                self.changes.push(Change::Route(wanted));
                Ok(())
            }
            Err(e) if e.kind() == NetErrorKind::Exists => {
                Err(format!("a route to {} exists already and stays as it is", route.net))
            }
            Err(e) => Err(e.to_string()),
        }
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

    /// Undoes the applied changes, the latest first, and keeps the device for the next plan.
    pub async fn undo(&mut self) {
        self.plan = None;
        self.dns.undo().await;
        while let Some(change) = self.changes.pop() {
            self.revert(&change).await;
        }
    }

    /// Undoes the changes that do not disappear with the device, which the caller closes. The others are left, because
    /// after a change of user the process may lack the privileges to undo them. A kill switch stays.
    pub async fn close(mut self) {
        let Some((_, index)) = self.device else { return };
        if std::mem::take(&mut self.limited) {
            // After a change of user, the right may be missing.
            let _ = self.net.remove_rate_limit(index).await;
        }
        self.dns.undo().await;
        say!(1, "Closing TUN/TAP interface");
        while let Some(change) = self.changes.pop() {
            let link = match &change {
                Change::Address(address) => Some(address.link),
                Change::Route(route) => route.link,
            };
            if link != Some(index) {
                self.revert(&change).await;
            }
        }
        self.unblock_ipv6().await;
        self.leave_policy().await;
        self.undo_log.restore_sysctls(|_| true);
        if self.undo_log.is_kept() {
            say!(1, "the kill switch keeps traffic in: `adit connect --release` turns it off");
        }
    }

    /// Undoes everything except a kill switch, because the tunnel's process was killed.
    pub async fn abandon(mut self) {
        if !self.changes.is_empty() {
            tracing::warn!("tunnel: process ended unexpectedly: routes removed");
        }
        self.undo().await;
        self.unblock_ipv6().await;
        self.leave_policy().await;
        self.undo_log.restore_sysctls(|_| true);
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
    pub(super) fn detour_routes(
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

    pub(super) async fn revert(&mut self, change: &Change) {
        let undone = match change {
            Change::Address(address) => {
                say!(3, "net_addr_{}_del: {}", family(&address.local), address.local);
                self.net.delete_address(address).await
            }
            Change::Route(route) => {
                say!(3, "net_route_{}_del: {}", family(&route.to), line(route, None));
                let deleted = self.net.delete_route(route).await;
                self.undo_log.remove(route);
                deleted
            }
        };
        match undone {
            Ok(()) => {}
            // Another program removed the route or its interface.
            Err(e) if e.kind() == NetErrorKind::NotFound => {}
            Err(e) => tracing::warn!("{e}"),
        }
    }
}

/// Converts a route to the form of the kernel's interface. Returns `None` if it has neither gateway nor interface.
pub(super) fn kernel_route(route: &KernelRoute, index: u32) -> Option<Route> {
    let link = match route.through {
        RouteInterface::Tunnel => Some(index),
        RouteInterface::Interface(other) => Some(other),
        RouteInterface::Gateway => None,
    };
    let mut wanted = match (route.gateway, link) {
        (Some(gateway), _) => Route::via(route.net, gateway),
        (None, Some(link)) => Route::dev(route.net, link),
        (None, None) => return None,
    };
    wanted.link = link;
    wanted.metric = route.metric;
    wanted.table = route.table;
    Some(wanted)
}

/// Formats a route as `ip route` does.
fn line(route: &Route, dev: Option<&str>) -> String {
    let via = route.via.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let dev = dev.map(|dev| format!(" dev {dev}")).unwrap_or_default();
    let metric = route.metric.map(|metric| format!(" metric {metric}")).unwrap_or_default();
    let table = route.table.map(|table| format!(" table {table}")).unwrap_or_default();
    format!("{}{via}{dev}{metric}{table}", route.to)
}

pub(super) fn family(net: &IpNet) -> &'static str {
    match net {
        IpNet::V4(_) => "v4",
        IpNet::V6(_) => "v6",
    }
}
