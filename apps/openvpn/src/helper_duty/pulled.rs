//! Host plans of a client that accepts options from its server.

use std::net::IpAddr;

use adit_openvpn::config::{ClientOptions, Options, Routes};
use adit_openvpn::negotiate::RouteContext;
use ipnet::IpNet;

use crate::openvpn;
use adit_runtime::helper::{PlanCheck, is_host};
use adit_runtime::host::{HostPlan, PlannedRoute};

/// The smallest MTU with which IPv4 works (RFC 791).
const MTU_LEAST: u16 = 68;

/// The host settings that a client's server may choose.
#[derive(Debug)]
pub(super) struct PullPolicy {
    /// The device, with the settings that the server cannot change.
    base: HostPlan,
    /// Whether addresses are configured (no `ifconfig-noexec`).
    addresses: bool,
    /// Whether routes are configured (no `route-noexec`).
    routes: bool,
    /// Whether routes from the server are accepted.
    pulls: bool,
    /// The routes from the local configuration.
    own: Routes,
}

impl PullPolicy {
    pub(super) fn new(options: &Options, client: &ClientOptions) -> Self {
        Self {
            base: openvpn::bare_plan(options),
            addresses: !options.device.ifconfig_noexec,
            routes: !options.routes.noexec,
            pulls: client.pull && !client.route_nopull,
            own: options.routes.clone(),
        }
    }

    /// Returns whether a route comes from the configuration, in which keywords are replaced by addresses from the
    /// server.
    fn is_own(&self, route: &PlannedRoute, plan: &HostPlan) -> bool {
        let remote = plan.remote.map(|remote| remote.ip());
        let context = |gateway: Option<IpAddr>| RouteContext {
            remote,
            gateway4: match gateway {
                Some(IpAddr::V4(v4)) => Some(v4),
                _ => self.own.gateway4,
            },
            gateway6: match gateway {
                Some(IpAddr::V6(v6)) => Some(v6),
                _ => self.own.gateway6,
            },
            metric: self.own.metric,
        };
        // `vpn_gateway` is an address in the tunnel's own network.
        let inside = plan.addresses.iter().any(|own| own.contains(&route.net));
        let gateway = Some(route.net.addr()).filter(|_| inside || plan.far4.is_some());
        let context = context(gateway);
        let v4 = self.own.v4.iter().filter_map(|spec| spec.resolve(&context));
        let v6 = self.own.v6.iter().filter_map(|spec| spec.resolve(&context));
        v4.map(|own| IpNet::from(own.net))
            .chain(v6.map(|own| own.net.into()))
            .any(|own| own == route.net)
    }
}

impl PlanCheck for PullPolicy {
    fn check(&self, plan: &HostPlan) -> Result<(), String> {
        // All fields are named, so this does not compile until a new field is handled.
        let HostPlan {
            device,
            mtu,
            mac,
            tx_queue_len,
            rate,
            addresses,
            far4,
            routes,
            table,
            redirect,
            remote,
            policy,
            allow_lan,
            // An option that blocks IPv6 does not permit anything.
            block_ipv6: _,
            kill_switch,
            forward,
            dns,
        } = plan;
        if forward.is_some() {
            return Err("plan: a client forwards nothing".into());
        }
        let own = &self.own;
        let configured = (own.policy.unwrap_or(own.kill_switch), own.allow_lan, own.kill_switch);
        let asked = (*policy, *allow_lan, *kill_switch);
        if asked != configured && (self.routes || asked != (false, false, false)) {
            return Err("plan: policy-routing, allow-lan or kill-switch of another value".into());
        }
        let base = &self.base;
        if (device, mac, tx_queue_len, rate)
            != (&base.device, &base.mac, &base.tx_queue_len, &base.rate)
        {
            return Err("plan: the configuration has another device".into());
        }
        if *table != base.table {
            return Err("plan: the configuration has another routing table".into());
        }
        if *mtu < MTU_LEAST {
            return Err(format!("plan: an MTU of {mtu}"));
        }
        let own = addresses.iter().map(IpNet::addr).chain(far4.map(IpAddr::V4));
        if let Some(odd) =
            own.into_iter().find(|address| !is_host(*address) || address.is_loopback())
        {
            return Err(format!("plan: the address {odd}"));
        }
        if !self.addresses && !addresses.is_empty() {
            return Err("plan: addresses with 'ifconfig-noexec'".into());
        }
        if !self.routes && (!routes.is_empty() || redirect.is_some()) {
            return Err("plan: routes with 'route-noexec'".into());
        }
        if remote.is_some_and(|remote| !is_host(remote.ip())) {
            return Err("plan: no server has that address".into());
        }
        if let Some(dns) = dns {
            if self.own.apply_dns != Some(true) {
                return Err("plan: DNS settings, which the configuration does not request".into());
            }
            dns.check().map_err(|why| format!("plan: DNS: {why}"))?;
        }
        if self.pulls {
            return Ok(());
        }
        if dns.is_some() && *dns != self.own.dns.settings().map(openvpn::dns_plan) {
            return Err("plan: DNS settings that are not the configuration's".into());
        }
        let configured = |flags: &Option<Vec<String>>| flags.is_some();
        if redirect.is_some()
            && !configured(&self.own.redirect_gateway)
            && !configured(&self.own.redirect_private)
        {
            return Err("plan: all traffic, which the configuration does not request".into());
        }
        match routes.iter().find(|route| !self.is_own(route, plan)) {
            Some(route) => Err(format!("plan: the route {} is not the configuration's", route.net)),
            None => Ok(()),
        }
    }
}
