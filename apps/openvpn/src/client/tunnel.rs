//! The tunnel's changes to the host: when it comes up, changes or goes down.

use adit_openvpn::Reason;
use adit_openvpn::client::TunnelConfig;
use adit_openvpn::session::PathReport;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::fault::Fault;
use adit_runtime::host::{ApplyOutcome, HostPlan};

use super::engines::DrivenEngine;
use super::steps::Step;
use super::{HostReport, Running, named_routes};
use crate::openvpn::scripts::Script;

impl<E: DrivenEngine> Running<'_, E> {
    /// Sets the host up for a tunnel.
    pub(super) async fn up(&mut self, mut tunnel: TunnelConfig) -> Result<(), Fault> {
        let left_out = named_routes::resolve(&mut tunnel, self.allow_names).await;
        left_out.iter().for_each(|line| tracing::warn!("{line}"));
        let (plan, notes) = self.hooks.plan(&tunnel)?;
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        if self.hooked.is_some() {
            self.schedule_up(tunnel, plan);
            return Ok(());
        }
        let applied = self.apply_plan(&plan).await?;
        self.completed(tunnel, &applied).await;
        Ok(())
    }

    /// Applies the plan of a tunnel that is up.
    pub(super) async fn apply_plan(&mut self, plan: &HostPlan) -> Result<ApplyOutcome, Fault> {
        self.driver.resolver().remember();
        let applied = match self.hooked {
            // The addresses are in force already.
            Some(_) => self.host.change(plan).await?,
            None => self.host.apply(plan).await?,
        };
        self.keep_proxy_reachable().await;
        self.redirected(plan);
        self.driver.worked();
        if let ApplyOutcome::Changed(notes) = &applied {
            notes.iter().for_each(|note| tracing::warn!("{note}"));
        }
        Ok(applied)
    }

    /// Records that the tunnel is up.
    pub(super) async fn completed(&mut self, tunnel: TunnelConfig, applied: &ApplyOutcome) {
        let capture = self.host.capture().await;
        self.hooks.up(&tunnel, &HostReport { device: self.host.device(), applied, capture });
        // The session may replace another one, whose counters can still be read.
        self.keep_traffic();
        self.peer = tunnel.peer;
        self.since = unix_time().0;
        self.key_since = now();
        self.path = PathReport::default();
        self.tunnel = Some(tunnel);
    }

    /// Keeps the proxy reachable. A proxy may relay datagrams at an address other than that of the connection that
    /// keeps the relay open, and the plan covers only the relay.
    async fn keep_proxy_reachable(&mut self) {
        let Some((relay, proxy)) = self.relay.map(|relay| relay.ip()).zip(self.proxy) else {
            return;
        };
        if relay != proxy {
            self.host.keep_reachable(proxy).await;
            // The path to the relay is the one to follow.
            self.host.keep_reachable(relay).await;
        }
    }

    /// Handles an update of the options of a session that continues. Only differences are applied.
    pub(super) async fn updated(&mut self, mut tunnel: TunnelConfig) -> Result<(), Fault> {
        let left_out = named_routes::resolve(&mut tunnel, self.allow_names).await;
        left_out.iter().for_each(|line| tracing::warn!("{line}"));
        let (plan, notes) = self.hooks.plan(&tunnel)?;
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        let now = match &mut self.delayed {
            Some(delayed) => {
                delayed.replace(&tunnel, &plan);
                plan.before_routes()
            }
            None => plan,
        };
        if let ApplyOutcome::Changed(notes) = self.host.change(&now).await? {
            notes.iter().for_each(|note| tracing::warn!("{note}"));
        }
        self.redirected(&now);
        if let Some(hooked) = &self.hooked {
            let mut steps = vec![Step::Variables(Box::new(tunnel.clone()))];
            if hooked.scripts.changes_dns(&tunnel) {
                steps.insert(0, Step::Run(Script::DnsDown));
                steps.push(Step::Run(Script::DnsUp));
            }
            self.schedule(steps);
        }
        self.tunnel = Some(tunnel);
        Ok(())
    }

    /// Handles the end of a session.
    pub(super) async fn down(&mut self, reason: &Reason) {
        self.keep_traffic();
        if self.hooked.is_some() {
            return self.schedule_down(reason);
        }
        if !self.persist_tun {
            self.host.undo().await;
            self.closed().await;
        }
        self.session_ended();
    }

    /// Records that a plan is in force. From then on, the server's name must be looked up outside the tunnel, which may
    /// be down.
    fn redirected(&mut self, plan: &HostPlan) {
        let access = self.driver.resolver();
        access.redirected = plan.redirect.is_some() || plan.dns.is_some();
        access.tunnel =
            plan.dns.iter().flat_map(|dns| dns.servers.iter().map(|server| server.ip())).collect();
        let in_use = self.host.dns_in_use();
        self.hooks.dns(&in_use, false);
    }
}
