//! The host of one tunnel: opens its device, applies a plan, and undoes it.

use std::net::IpAddr;

use adit_linux::net::{Address, MarkedReplies, Net, NetError, NetErrorKind};
use adit_linux::tun::{TunDevice, TunError, TunOffloads, TunOptions, TunParts, interface_index};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::block_ipv6::BlockIpv6;
use super::changes::{Change, family};
use super::dns::Dns;
use super::enforce::{FailedChange, PolicyRouting};
use super::forward::Forwarding;
use super::kernel::Kernel;
use super::plan::{Device, HostPlan};
use super::policy_routing::{CaptureMode, capture};
use super::routes::{OutsideRoutes, expand};
use super::undo_log::{self, UndoLog};
use super::watch::NetworkWatcher;
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
    pub(super) device: Option<(String, u32)>,
    /// Whether this is a TAP device, behind which gateways are separate stations.
    pub(super) ethernet: bool,
    /// Whether we created the device with several queues.
    flow_queues: bool,
    /// Whether the device's rate is limited. A device that another program created outlives the tunnel.
    limited: bool,
    pub(super) changes: Vec<Change>,
    pub(super) plan: Option<HostPlan>,
    /// The routes to the outside world from before the plan.
    pub(super) outside: OutsideRoutes,
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
    pub(super) taken_over: bool,
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

    pub(super) async fn set_mtu(&self, index: u32, mtu: u16) -> Result<(), Fault> {
        let set = self.net.set_mtu(index, u32::from(mtu)).await;
        set.map_err(|e| Fault::environment(e.to_string()))
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
}
