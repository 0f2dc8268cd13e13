//! Applies policy routing, and keeps it in force when the kernel refuses a change.
//!
//! New rules and routes are added before old ones are removed. The rule that captures a family's packets is added after
//! the table has an unreachable default route for them. So after a failed change no traffic leaves outside the tunnel,
//! and the change is tried again after growing pauses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use adit_linux::net::{
    MAIN_TABLE, MarkedReplies, NetError, NetErrorKind, Route, RouteKind, Rule, RuleInUse,
};
use ipnet::{IpNet, Ipv4Net};
use tokio::time::Instant;

use super::apply::Host;
use super::plan::HostPlan;
use super::policy_routing::{
    BASE, Bypass, Capture, CaptureMode, DesiredRouting, PREFERENCE, PREFERENCES, ROUTERS, SLOTS,
    Slot, capture, is_private, reject, wanted,
};
use super::undo_log;
use crate::say;

/// The pause before a failed change is tried again, which doubles up to the limit.
const RETRY: Duration = Duration::from_millis(250);
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// The current rules and routes.
#[derive(Clone, Debug)]
pub(super) struct PolicyRouting {
    slot: Slot,
    /// The rules that the kernel has, or may have if an attempt was interrupted.
    rules: Vec<Rule>,
    routes: Vec<Route>,
    pub(super) capture: Capture,
    /// The current plan. It is kept while the tunnel reconnects.
    pub(super) plan: HostPlan,
}

/// A change that the kernel refused, and the time of the next attempt.
#[derive(Clone, Debug)]
pub(super) struct FailedChange {
    /// The error.
    pub(super) why: String,
    attempts: u32,
    pub(super) retry: Instant,
}

/// The failures of one attempt. The first attempt of a tunnel ends with its first failure. A later one continues as far
/// as possible, because the previous state is in force.
struct Attempt {
    first: bool,
    failed: Option<String>,
}

impl Attempt {
    /// Records the result of one step, and returns whether it succeeded.
    fn step(&mut self, done: Result<(), String>) -> Result<bool, String> {
        match done {
            Ok(()) => Ok(true),
            Err(why) if self.first => Err(why),
            Err(why) => {
                self.failed.get_or_insert(why);
                Ok(false)
            }
        }
    }
}

/// Returns whether this host has IPv6. Without it, no IPv6 traffic can leak.
pub(super) fn has_ipv6() -> bool {
    Path::new("/proc/thread-self/net/if_inet6").exists()
}

impl Host {
    /// Applies the rules and routes of a plan, so that no packet can bypass them at any moment.
    ///
    /// # Errors
    /// Fails if policy routing is not available and was not in force. If it is in force, no traffic leaves outside the
    /// tunnel after a failure, and the change is tried again.
    pub(super) async fn enter_policy(&mut self, plan: &HostPlan) -> Result<(), String> {
        let Some((name, index)) = self.device.clone() else { return Ok(()) };
        let first = self.policy.is_none();
        match self.try_policy(plan, &name, index).await {
            Ok(()) => {
                self.finished();
                if first && self.inherited {
                    undo_log::release(&self.net).await;
                }
                Ok(())
            }
            Err(why) if first => {
                self.clear_policy().await;
                Err(why)
            }
            Err(why) => {
                self.unfinished(why);
                Ok(())
            }
        }
    }

    async fn try_policy(&mut self, plan: &HostPlan, name: &str, index: u32) -> Result<(), String> {
        let mark = self.mark.ok_or("the transport's sockets cannot be marked")?;
        let filters = capture(plan).ipv4 != CaptureMode::No && filters_sources(name);
        let mut attempt = Attempt { first: self.policy.is_none(), failed: None };
        if filters {
            let marked = self.mark_replies(mark);
            attempt.step(marked)?;
        }
        let slot = match &self.policy {
            Some(policy) => policy.slot,
            None => self.reserve(plan, mark).await?,
        };
        let around = self.around(plan, index, filters, &mut attempt).await?;
        let mut wanted = wanted(plan, slot, (index, self.ethernet), &around);
        if !has_ipv6() {
            wanted.rules.retain(|rule| !rule.v6);
            wanted.routes.retain(|route| matches!(route.to, IpNet::V4(_)));
        }
        self.undo_log.keep(plan.kill_switch || self.inherited);
        self.put_wanted(&wanted, &mut attempt).await?;
        self.drop_stale(&wanted, slot, &mut attempt).await?;
        if let Some(policy) = &mut self.policy {
            policy.plan = plan.clone();
            // The previous state is still in force, whatever else failed.
            if attempt.failed.is_none() {
                policy.capture = wanted.capture;
            }
        }
        attempt.failed.map_or(Ok(()), Err)
    }

    /// Returns the parts of the access network that bypass the tunnel. If they cannot be determined, no network
    /// bypasses the tunnel, and the routers stay the same.
    async fn around(
        &self,
        plan: &HostPlan,
        index: u32,
        filters: bool,
        attempt: &mut Attempt,
    ) -> Result<Bypass, String> {
        let mut around = Bypass::default();
        if plan.allow_lan {
            match self.lan(index).await {
                Ok(lan) => around.lan = lan,
                Err(e) => drop(attempt.step(Err(e.to_string()))?),
            }
        }
        if filters {
            match self.routers(index).await {
                Ok(routers) => around.routers = routers,
                Err(e) => {
                    attempt.step(Err(e.to_string()))?;
                    let former = self.policy.iter().flat_map(|policy| &policy.rules);
                    let router = |rule: &Rule| Some((rule.from?.addr(), rule.to?.addr()));
                    around.routers = former.filter_map(router).collect();
                }
            }
        }
        Ok(around)
    }

    /// Adds the rules and routes of a plan. Known ones are added again, because another program may have removed them.
    async fn put_wanted(
        &mut self,
        wanted: &DesiredRouting,
        attempt: &mut Attempt,
    ) -> Result<(), String> {
        // The address families whose table may lack the unreachable route.
        let mut open = BTreeSet::new();
        for route in &wanted.routes {
            let known = self.policy.as_ref().is_some_and(|p| p.routes.contains(route));
            let put = self.put_route(route, known).await;
            if !attempt.step(put)? && route.kind == RouteKind::Unreachable && !known {
                open.insert(matches!(route.to, IpNet::V6(_)));
            }
        }
        for rule in &wanted.rules {
            let known = self.policy.as_ref().is_some_and(|p| p.rules.contains(rule));
            if rule.not_mark.is_some() && open.contains(&rule.v6) {
                continue;
            }
            let put = self.put_rule(rule, known).await;
            attempt.step(put)?;
        }
        Ok(())
    }

    /// Removes the rules and routes that are not in a plan. Exemptions are removed first. Those that block traffic
    /// outside the tunnel are removed only after everything else has succeeded.
    async fn drop_stale(
        &mut self,
        wanted: &DesiredRouting,
        slot: Slot,
        attempt: &mut Attempt,
    ) -> Result<(), String> {
        let Some(policy) = self.policy.clone() else { return Ok(()) };
        let reserved = reject(slot, false);
        let stale_rules = policy.rules.iter().filter(|rule| !wanted.rules.contains(rule));
        let (exempt, capture): (Vec<_>, Vec<_>) =
            stale_rules.partition(|rule| rule.table == MAIN_TABLE);
        let stale_routes = policy
            .routes
            .iter()
            .filter(|route| !wanted.routes.contains(route) && **route != reserved);
        let (throws, others): (Vec<_>, Vec<_>) =
            stale_routes.partition(|route| route.kind == RouteKind::Throw);
        for rule in exempt {
            let dropped = self.drop_rule(rule).await;
            attempt.step(dropped)?;
        }
        for route in throws {
            let dropped = self.drop_route(route).await;
            if !attempt.step(dropped)? {
                let closed = self.close_exemption(route).await;
                attempt.step(closed)?;
            }
        }
        for rule in capture {
            if attempt.failed.is_none() {
                let dropped = self.drop_rule(rule).await;
                if attempt.step(dropped)?
                    && rule.not_mark.is_some()
                    && let Some(PolicyRouting { capture, .. }) = &mut self.policy
                {
                    *(if rule.v6 { &mut capture.ipv6 } else { &mut capture.ipv4 }) =
                        CaptureMode::No;
                }
            }
        }
        for route in others {
            if attempt.failed.is_none() {
                let dropped = self.drop_route(route).await;
                attempt.step(dropped)?;
            }
        }
        Ok(())
    }

    /// Puts an unreachable route in the place of an exemption that the kernel does not remove. The
    /// next attempt removes it.
    async fn close_exemption(&mut self, exemption: &Route) -> Result<(), String> {
        let closed = Route { kind: RouteKind::Unreachable, ..*exemption };
        self.undo_log.add(&closed);
        if let Err(e) = self.net.replace_route(&closed).await {
            self.undo_log.remove(&closed);
            return Err(e.to_string());
        }
        self.policy.iter_mut().for_each(|policy| policy.routes.push(closed));
        self.forget_route(exemption);
        Ok(())
    }

    async fn put_route(&mut self, route: &Route, known: bool) -> Result<(), String> {
        if !known {
            self.undo_log.add(route);
            self.policy.iter_mut().for_each(|policy| policy.routes.push(*route));
        }
        // The kernel removes an interface's routes together with its last address, and a gateway may change.
        let put = match route.kind {
            // An unreachable route may have replaced an exemption.
            RouteKind::Unicast | RouteKind::Throw => self.net.replace_route(route).await,
            RouteKind::Unreachable => self.net.add_route(route).await,
        };
        match put {
            Err(e) if e.kind() != NetErrorKind::Exists => {
                if !known {
                    self.forget_route(route);
                }
                Err(e.to_string())
            }
            _ => Ok(()),
        }
    }

    async fn put_rule(&mut self, rule: &Rule, known: bool) -> Result<(), String> {
        if !known {
            self.undo_log.add_rule(rule);
            self.policy.iter_mut().for_each(|policy| policy.rules.push(*rule));
            say!(3, "rule added: {rule}");
        }
        match self.net.add_rule(rule).await {
            Err(e) if e.kind() != NetErrorKind::Exists => {
                if !known {
                    self.forget_rule(rule);
                }
                Err(e.to_string())
            }
            _ => Ok(()),
        }
    }

    async fn drop_rule(&mut self, rule: &Rule) -> Result<(), String> {
        unless_gone(self.net.delete_rule(rule).await)?;
        say!(3, "rule removed: {rule}");
        self.forget_rule(rule);
        Ok(())
    }

    async fn drop_route(&mut self, route: &Route) -> Result<(), String> {
        unless_gone(self.net.delete_route(route).await)?;
        self.forget_route(route);
        Ok(())
    }

    fn forget_rule(&mut self, rule: &Rule) {
        self.policy.iter_mut().for_each(|policy| policy.rules.retain(|other| other != rule));
        self.undo_log.remove_rule(rule);
    }

    fn forget_route(&mut self, route: &Route) {
        self.policy.iter_mut().for_each(|policy| policy.routes.retain(|other| other != route));
        self.undo_log.remove(route);
    }

    /// Records that the current plan is not applied completely and must be tried again.
    pub(super) fn unfinished(&mut self, why: String) {
        let attempts = self.unfinished.as_ref().map_or(0, |unfinished| unfinished.attempts);
        let pause = RETRY.saturating_mul(1 << attempts.min(16)).min(RETRY_LIMIT);
        let retry = Instant::now() + pause;
        if self.unfinished.as_ref().is_none_or(|unfinished| unfinished.why != why) {
            tracing::warn!(
                "routing: update failed: {why}: former rules and routes stay in force, next attempt \
                 in {} ms",
                pause.as_millis()
            );
            self.undo_log.set_problem(Some(why.clone()));
        }
        self.unfinished = Some(FailedChange { why, attempts: attempts.saturating_add(1), retry });
    }

    pub(super) fn finished(&mut self) {
        if let Some(FailedChange { attempts, .. }) = self.unfinished.take() {
            say!(1, "routing: update complete after {} attempts", attempts.saturating_add(1));
            self.undo_log.set_problem(None);
        }
    }

    /// Marks the transport's replies and sets `src_valid_mark`. Otherwise reverse path filtering would look up their
    /// source without the mark and drop them. A strict filter always needs this, a loose one only while the table has
    /// no usable route.
    fn mark_replies(&mut self, mark: u32) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("rp_filter needs marked replies: {e}");
        if self.replies.is_none() {
            self.replies = Some(MarkedReplies::start(mark).map_err(failed)?);
        }
        self.undo_log.set_sysctl("net.ipv4.conf.all.src_valid_mark", "1").map_err(failed)
    }

    /// Reserves a free table. If two processes try at once, the kernel decides between them.
    async fn reserve(&mut self, plan: &HostPlan, mark: u32) -> Result<Slot, String> {
        let rules = self.net.rules().await.map_err(|e| e.to_string())?;
        if has_ipv6() && capture(plan).ipv6 != CaptureMode::No {
            // A kernel may have rules for only one family, and only one table for the other.
            self.net.rules_of(true).await.map_err(|e| e.to_string())?;
        }
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
            self.undo_log.add(&route);
            match self.net.add_route(&route).await {
                Ok(()) => {
                    self.policy = Some(PolicyRouting {
                        slot,
                        rules: Vec::new(),
                        routes: vec![route],
                        capture: Capture::default(),
                        plan: plan.clone(),
                    });
                    return Ok(slot);
                }
                Err(e) if e.kind() == NetErrorKind::Exists => self.undo_log.remove(&route),
                Err(e) => {
                    self.undo_log.remove(&route);
                    return Err(e.to_string());
                }
            }
        }
        Err(format!("the routing tables {BASE} to {} are all in use", BASE + SLOTS - 1))
    }

    /// Returns the private networks on other interfaces, and the multicast and broadcast addresses of a link.
    async fn lan(&self, device: u32) -> Result<Vec<IpNet>, NetError> {
        let addresses = self.net.addresses().await?;
        let others = addresses.iter().filter(|address| address.link != device);
        let mut lan: Vec<IpNet> =
            others.map(|address| address.local.trunc()).filter(is_private).collect();
        lan.push(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4).into());
        Ok(lan)
    }

    /// Returns the routers that the host needs, with its own addresses on their links.
    async fn routers(&self, device: u32) -> Result<BTreeSet<(IpAddr, IpAddr)>, NetError> {
        let routes = self.net.routes().await?;
        let addresses = self.net.addresses().await?;
        let remote = self.remote().filter(IpAddr::is_ipv4);
        let leads = |route: &&Route| {
            route.link.is_some_and(|link| link != device)
                && route.table == Some(MAIN_TABLE)
                && (route.is_default() || remote.is_some_and(|remote| route.to.contains(&remote)))
        };
        let mut routers = BTreeSet::new();
        for route in routes.iter().filter(leads) {
            let hop = route.via.or(remote.filter(|_| !route.is_default()));
            // IPv6 has no reverse path filter.
            let Some(hop) = hop.filter(IpAddr::is_ipv4) else { continue };
            let own = addresses
                .iter()
                .filter(|address| Some(address.link) == route.link && address.local.contains(&hop));
            routers.extend(own.map(|address| (address.local.addr(), hop)).take(ROUTERS));
        }
        Ok(routers.into_iter().take(ROUTERS).collect())
    }

    /// Ends policy routing. With the kill switch, only the routes into the tunnel are removed.
    pub(super) async fn leave_policy(&mut self) {
        if !self.undo_log.is_kept() {
            self.clear_policy().await;
        }
    }

    /// Removes all rules and routes, the rules first. Entries that cannot be removed stay in the undo log for the next
    /// start.
    async fn clear_policy(&mut self) {
        if self.unfinished.take().is_some() {
            self.undo_log.set_problem(None);
        }
        let Some(policy) = self.policy.clone() else { return };
        for rule in policy.rules.iter().rev() {
            warn(self.drop_rule(rule).await);
        }
        for route in policy.routes.iter().rev() {
            warn(self.drop_route(route).await);
        }
        self.policy = None;
    }
}

/// Returns whether the kernel filters by source on any interface other than the tunnel's, including interfaces that may
/// be added.
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
    // The kernel uses the higher value of "all" and the interface's own.
    others.filter_map(value).any(|value| value != 0)
}

/// Ignores the error of an entry that is already gone.
pub(super) fn unless_gone(done: Result<(), NetError>) -> Result<(), String> {
    match done {
        Err(e) if !matches!(e.kind(), NetErrorKind::NotFound | NetErrorKind::NoFamily) => {
            Err(e.to_string())
        }
        _ => Ok(()),
    }
}

pub(super) fn warn(done: Result<(), String>) {
    if let Err(why) = done {
        tracing::warn!("routing: removal failed: {why}: retried at the next start");
    }
}
