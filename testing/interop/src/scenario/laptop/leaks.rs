//! Tests of traffic that must not bypass the tunnel.

use std::net::IpAddr;
use std::time::Duration;

use super::Control::{Fails, Passes};
use super::{
    BOTH, CONNECT, Client, ConnectedLaptop, Laptop, NO_REPLY_WAIT, Scenario, Setup, TIMEOUT,
};
use crate::failure::{Failure, Result, ensure};
use crate::laptop::{Access, Answer, LAPTOP6, Query, Resolver, VPN_RESOLVER, VPS, VPS6, WEB, WEB6};
use crate::net::ip;
use crate::wait::ScaledInstant;

/// The scenarios of this module.
pub(super) const SCENARIOS: &[Scenario] = &[
    ("route-from-dhcp", CONNECT, Fails(MORE_SPECIFIC), route_from_dhcp),
    ("route-from-router-advertisement", CONNECT, Fails(MORE_SPECIFIC), route_from_advertisement),
    ("both-families", BOTH, Passes, both_families),
    ("ipv6-blocked", BOTH, Fails(BLOCK_IPV6), ipv6_blocked),
    ("ipv6-blocked-under-ipv6", BOTH, Fails(BLOCK_IPV6), ipv6_blocked_under_ipv6),
    ("pushed-dns", BOTH, Fails(SCRIPTS), pushed_dns),
    ("pushed-dns-change-of-network", BOTH, Fails(SCRIPTS), pushed_dns_change_of_network),
    ("local-network", CONNECT, Fails("leaves the local network reachable"), local_network),
];

const MORE_SPECIFIC: &str = "follows routes that are more specific than its own";
const SCRIPTS: &str = "leaves name servers to scripts";
const BLOCK_IPV6: &str = "refuses only the IPv6 that is routed into the tunnel";

/// A DHCP server sends a route to the external host (option 121), which is more specific than the tunnel's.
fn route_from_dhcp(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup::default())?;
    let (router, device) = (Access::Home.router(), Access::Home.interface());
    for net in ["128.0.0.0/1", "192.0.2.0/24", "192.0.2.80/32"] {
        let line = format!("route add {net} via {router} dev {device} proto dhcp");
        ip(Some(&laptop.internet.laptop), [line].into_iter())?;
        laptop.back(TIMEOUT)?;
    }
    laptop.ensure_no_leak()?;
    Ok(String::new())
}

/// A router advertises a route to the host outside (RFC 4191).
fn route_from_advertisement(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup { access: Access::Cafe, ipv6: true, ..Setup::default() })?;
    through6(&laptop)?;
    let line = "route add 2001:db8:4::/64 via fe80::1 dev eth1 proto ra";
    ip(Some(&laptop.internet.laptop), [line.to_owned()].into_iter())?;
    through6(&laptop)?;
    laptop.ensure_no_leak()?;
    Ok(String::new())
}

/// Checks that IPv6 uses the tunnel.
fn through6(laptop: &ConnectedLaptop<'_>) -> Result<()> {
    let (seen, _) =
        laptop.internet.probe().until_answered(WEB6, TIMEOUT).map_err(|f| laptop.with_logs(f))?;
    ensure(seen == IpAddr::V6(VPS6), || {
        laptop.with_logs(Failure(format!("LEAK: the host outside says: you are {seen}"))).0
    })
}

/// Both families through a tunnel that carries both, from a network that has both.
fn both_families(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup { access: Access::Cafe, ipv6: true, ..Setup::default() })?;
    through6(&laptop)?;
    laptop.ensure_no_leak()?;
    laptop.end()?;
    Ok(String::new())
}

/// A tunnel without IPv6 on a laptop that has IPv6.
fn ipv6_blocked(laptop: &Laptop<'_>) -> Result<String> {
    blocked(laptop, "203.0.113.7")
}

/// The same with a tunnel over IPv6.
fn ipv6_blocked_under_ipv6(laptop: &Laptop<'_>) -> Result<String> {
    blocked(laptop, "2001:db8:7::7")
}

fn blocked(laptop: &Laptop<'_>, host: &'static str) -> Result<String> {
    let laptop = laptop.connect(Setup { access: Access::Cafe, host, ..Setup::default() })?;
    let probe = laptop.internet.probe();
    let mut kinds = Vec::new();
    // A program that waits for a timeout would wait for minutes, and would not try IPv4 instead.
    for answer in [probe.udp(WEB6, TIMEOUT)?, probe.tcp(WEB6, TIMEOUT)?] {
        match answer {
            Answer::Refused(kind) => kinds.push(format!("{kind:?}")),
            other => {
                let text = format!("LEAK: {WEB6} is to be refused at once: {other:?}");
                return Err(laptop.with_logs(text.into()));
            }
        }
    }
    // New addresses and routes from the router do not lift the block.
    let lines = [
        "route add 2001:db8:4::/64 via fe80::1 dev eth1 proto ra".to_owned(),
        "address add 2001:db8:30::51/64 dev eth1 nodad".to_owned(),
    ];
    ip(Some(&laptop.internet.laptop), lines.into_iter())?;
    let answer = probe.udp(WEB6, TIMEOUT)?;
    ensure(matches!(answer, Answer::Refused(_)), || {
        format!("LEAK: {WEB6} after a router advertisement: {answer:?}")
    })?;
    laptop.back(TIMEOUT)?;
    laptop.ensure_no_leak()?;
    let undo = [
        "route delete 2001:db8:4::/64 via fe80::1 dev eth1 proto ra".to_owned(),
        "address delete 2001:db8:30::51/64 dev eth1".to_owned(),
    ];
    ip(Some(&laptop.internet.laptop), undo.into_iter())?;
    let mut laptop = laptop;
    laptop.client.stop()?;
    let (seen, _) = laptop.internet.probe().until_answered(WEB6, TIMEOUT)?;
    ensure(seen == IpAddr::V6(LAPTOP6), || format!("after the end {seen} has IPv6"))?;
    laptop.internet.ensure_restored(&laptop.before, "after the client's end")?;
    Ok(kinds.join(", "))
}

/// The server pushes a resolver; the resolver at home would see every name.
fn pushed_dns(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(laptop.with_dns(Setup { dns: true, ..Setup::default() }))?;
    laptop.asked_through("secret-1")?;
    laptop.ensure_no_leak()?;
    let mut laptop = laptop;
    laptop.client.stop()?;
    laptop.internet.ensure_restored(&laptop.before, "after the client's end")?;
    let found = laptop.internet.resolve("plain-1.web.example");
    ensure(found == Some(WEB.into()), || format!("after the end the name is {found:?}"))?;
    Ok(String::new())
}

/// The laptop moves, and the new network's DHCP writes its resolver over the VPN's.
fn pushed_dns_change_of_network(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(laptop.with_dns(Setup {
        dns: true,
        resolver: Resolver::Outside,
        ..Setup::default()
    }))?;
    laptop.asked_through("secret-1")?;
    laptop.internet.leave(Access::Home)?;
    laptop.internet.join(Access::Cafe)?;
    laptop.back(TIMEOUT)?;
    let started = ScaledInstant::now();
    // Until the client has noticed, queries go to the resolver that DHCP named, through the tunnel.
    while laptop.asked_through("secret-2").is_err() && started.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(200));
    }
    laptop.asked_through("secret-3")?;
    let took = started.elapsed();
    laptop.ensure_no_leak()?;
    let mut laptop = laptop;
    laptop.client.stop()?;
    let conf = laptop.internet.resolv_conf()?;
    let resolver = laptop.internet.resolver(Access::Cafe).to_string();
    ensure(conf.contains(&resolver), || format!("after the end resolv.conf is\n{conf}"))?;
    Ok(format!("the VPN's resolver again after {} ms", took.as_millis()))
}

impl Laptop<'_> {
    /// Configures a tunnel whose pushed resolver is applied, which `adit openvpn` does only on request.
    pub(super) fn with_dns(&self, setup: Setup) -> Setup {
        let profile = if self.client == Client::DropIn { "dns-updown force\n" } else { "" };
        Setup { profile, ..setup }
    }
}

impl ConnectedLaptop<'_> {
    /// Looks up a name with `part` in it. The query reaches the VPN's resolver from the VPN's address, and no other.
    pub(super) fn asked_through(&self, part: &str) -> Result<()> {
        let found = self.internet.resolve(&format!("{part}.web.example"));
        let queries = self.internet.queries(part);
        let through =
            |query: &Query| query.from == IpAddr::V4(VPS) && query.to == IpAddr::V4(VPN_RESOLVER);
        let right = found == Some(WEB.into()) && !queries.is_empty() && queries.iter().all(through);
        ensure(right, || {
            let conf = self.internet.resolv_conf().unwrap_or_default();
            let text = format!("LEAK: {part} was found as {found:?} by {queries:?}\n{conf}");
            self.with_logs(text.into()).0
        })
    }
}

/// The local network is not reachable unless it was requested.
fn local_network(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup::default())?;
    let router = Access::Home.router();
    let answer = laptop.internet.probe().udp(router, NO_REPLY_WAIT)?;
    ensure(!matches!(answer, Answer::From(_)), || {
        laptop.with_logs(format!("the local network answers: {answer:?}").into()).0
    })?;
    laptop.back(TIMEOUT)?;
    let mut laptop = laptop;
    laptop.client.stop()?;
    laptop.client = laptop.laptop.dial(&laptop.internet.laptop, &["--allow-lan"])?;
    laptop.wait_connected(1)?;
    let (seen, _) = laptop.internet.probe().until_answered(router, TIMEOUT)?;
    ensure(seen == IpAddr::V4(Access::Home.lease()), || {
        laptop.with_logs(format!("the local network sees {seen}").into()).0
    })?;
    laptop.back(TIMEOUT)?;
    laptop.end()?;
    Ok(String::new())
}
