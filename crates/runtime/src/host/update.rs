//! Replaces the plan while the tunnel is up, and applies only the differences.

use adit_linux::net::{NetErrorKind, Route};

use super::apply::{ApplyOutcome, Host};
use super::changes::{Change, family, kernel_route};
use super::plan::HostPlan;
use super::routes::{KernelRoute, expand};
use super::sysctl;
use crate::fault::Fault;
use crate::say;

impl Host {
    /// Applies another plan without undoing the changes that both plans make, so traffic continues. Applying the same plan again retries
    /// routes and forwarding that the kernel refused.
    ///
    /// # Errors
    /// See [`Host::apply`].
    pub async fn change(&mut self, plan: &HostPlan) -> Result<ApplyOutcome, Fault> {
        let Some(former) = self.plan().cloned() else { return self.apply(plan).await };
        if former == *plan && !self.forwarding.is_incomplete() && !self.lacks_routes {
            return Ok(ApplyOutcome::Same);
        }
        let blocks_local = |plan: &HostPlan| plan.redirect.is_some_and(|r| r.block_local);
        let Some((name, index)) = self.device.clone() else { return self.apply(plan).await };
        if former.remote != plan.remote || blocks_local(&former) != blocks_local(plan) {
            // This passes over the tunnel's own routes, so they can stay: without them, packets would leave outside the tunnel.
            self.outside = self.look_outside(plan).await;
        }
        let mut notes = self.apply_policy(plan).await?;
        let (routes, more) = expand(plan, &self.outside, self.redirects_by_policy(plan));
        notes.extend(more);
        let wanted = |change: &Change| match change {
            Change::Address(address) => plan.addresses.contains(&address.local),
            Change::Route(route) => {
                routes.iter().any(|r| kernel_route(r, index).as_ref() == Some(route))
            }
        };
        let (kept, mut stale): (Vec<_>, Vec<_>) = self.changes.iter().cloned().partition(wanted);
        let is_new = |route: &KernelRoute| {
            let route = kernel_route(route, index);
            !kept
                .iter()
                .any(|change| matches!(change, Change::Route(r) if route.as_ref() == Some(r)))
        };
        let new: Vec<KernelRoute> = routes.iter().filter(|route| is_new(route)).copied().collect();
        // What is new comes before what is stale goes: a device without an address has no routes, and packets would leave outside the tunnel.
        if !keep_other_addresses(&name) {
            for change in stale.extract_if(.., |change| matches!(change, Change::Address(_))) {
                self.undo_change(&change).await;
            }
        }
        if former.mtu != plan.mtu {
            say!(3, "net_iface_mtu_set: mtu {} for {name}", plan.mtu);
            self.set_mtu(index, plan.mtu).await?;
        }
        for local in plan.addresses.iter().filter(|local| !former.addresses.contains(local)) {
            say!(3, "net_addr_{}_add: {local} dev {name}", family(local));
            match self.add_address(index, *local).await {
                Ok(()) => {}
                Err(e) if e.kind() == NetErrorKind::Exists => {}
                Err(e) => return Err(Fault::environment(format!("{name}: {e}"))),
            }
        }
        self.lacks_routes = false;
        for route in &new {
            let replaced = take_replaced(&mut stale, route, index);
            if let Err(note) = self.exchange_route(route, index, &name, replaced).await {
                self.lacks_routes = true;
                notes.push(note);
            }
        }
        for change in stale.iter().rev() {
            self.undo_change(change).await;
        }
        notes.extend(self.apply_forwarding(plan, &name));
        notes.extend(self.dns.apply(plan.dns.as_ref(), Some(&(name, index))).await);
        self.plan = Some(plan.clone());
        Ok(ApplyOutcome::Changed(notes))
    }
}

/// Lets the device keep its other addresses when the first one in their network is removed, which the kernel does not by default. Returns whether
/// the kernel allows it.
fn keep_other_addresses(device: &str) -> bool {
    sysctl::write(&format!("net.ipv4.conf.{device}.promote_secondaries"), "1").is_ok()
}

/// Takes the route whose place a new one takes: no table has two to the same network with the same metric.
fn take_replaced(stale: &mut Vec<Change>, route: &KernelRoute, index: u32) -> Option<Route> {
    let place = |route: &Route| (route.to, route.metric, route.table);
    let new = kernel_route(route, index)?;
    let at = stale
        .iter()
        .position(|change| matches!(change, Change::Route(old) if place(old) == place(&new)))?;
    match stale.remove(at) {
        Change::Route(old) => Some(old),
        Change::Address(_) => None,
    }
}
