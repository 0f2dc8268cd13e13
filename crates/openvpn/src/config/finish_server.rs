//! The server's helper directives, networks, pools and pushed options.

use std::net::Ipv4Addr;

use adit_engine::command::Keepalive;
use ipnet::{Ipv4Net, Ipv6Net};

use super::ConfigError;
use super::bridge::{own_address, vlans};
use super::options::ServerOptions;
use super::push_filter::{PushRules, Pushed};
use super::raw_config::{Pool, RawConfig};
use crate::server::{Network4, Network6, Topology};
use crate::tls::ClientCertificates;

pub(super) fn server_options(raw: &mut RawConfig) -> Result<ServerOptions, ConfigError> {
    if raw.sockets.nodelay {
        raw.server.push.push("socket-flags TCP_NODELAY".into());
    }
    let network4 = network4(raw)?;
    let network6 = network6(raw)?;
    let no_network = network4.is_none() && network6.is_none() && raw.bridge.is_none();
    // Stations behind a TAP device may get addresses from elsewhere, such as the DHCP server of a LAN.
    if no_network && !raw.is_ethernet() {
        return Err(raw.error(
            "mode",
            "clients have no network",
            "add: server 10.8.0.0 255.255.255.0",
        ));
    }
    if network4.is_some() && !raw.seen.contains_key("topology") && !raw.is_ethernet() {
        raw.options.warnings.push(
            "no topology is named: clients get topology net30, as openvpn's own default is up to 2.6; \
             write topology subnet, which every client since 2.1 understands and which openvpn 2.7 \
             takes by default"
                .into(),
        );
    }
    if raw.server.pool_persist.is_some() && raw.server.duplicate_cn {
        raw.options.warnings.push(
            "ifconfig-pool-persist has no effect with duplicate-cn: a name has no address of its own".into(),
        );
        raw.server.pool_persist = None;
    }
    if raw.server.ccd_exclusive && raw.server.client_config_dir.is_none() {
        return Err(raw.error(
            "ccd-exclusive",
            "there are no files of single clients",
            "add client-config-dir DIRECTORY, or remove it",
        ));
    }
    check_passwords(raw)?;
    let mut push = push(raw)?;
    push.extend(route_to_server(raw));
    let far4 = network4.as_ref().and_then(|network| far_end(raw, network));
    let bridged_address = raw.bridge.as_ref().map_or(Ok(None), |_| own_address(raw))?;
    let (rules, vlans) = (push_rules(raw), vlans(raw)?);
    let mut server = std::mem::take(&mut raw.server);
    server.client_rules.push = rules;
    server.client_rules.vlans = vlans.is_some();
    Ok(ServerOptions {
        network4,
        far4,
        network6,
        push,
        push_keepalive: raw.keepalive.map(|(interval, timeout)| Keepalive { interval, timeout }),
        force_cookie: raw.force_cookie,
        bridged: raw.bridge.is_some(),
        bridged_address,
        station_age: server.station_age.filter(|_| raw.is_ethernet()),
        vlans,
        ..server
    })
}

/// The directives that check the passwords of clients.
const PASSWORD_CHECKS: [&str; 3] = ["auth-user-pass-verify", "plugin", "management-client-auth"];

/// Checks the directives that depend on a check of passwords, as openvpn does.
fn check_passwords(raw: &mut RawConfig) -> Result<(), ConfigError> {
    const NONE: &str = "auth-user-pass-verify, a plugin or management-client-auth, and this server \
                        has none of them (openvpn does not start then either)";
    let checked = PASSWORD_CHECKS.iter().any(|name| raw.seen.contains_key(*name));
    if !checked && raw.options.tls.client_certificates != ClientCertificates::Require {
        let old = raw.seen.contains_key("client-cert-not-required");
        let name = if old { "client-cert-not-required" } else { "verify-client-cert" };
        return Err(raw.error(
            name,
            format!("a client without a certificate must prove itself in another way: by {NONE}"),
            "remove it and give each client a certificate; peer-fingerprint knows those that no \
             authority signed",
        ));
    }
    for name in ["username-as-common-name", "auth-user-pass-optional"] {
        if !checked && raw.seen.contains_key(name) {
            let problem = format!("user names must be checked: by {NONE}");
            return Err(raw.error(name, problem, "add one of them, or remove it"));
        }
    }
    if raw.server.token_secret.is_some() && raw.server.tokens.is_none() {
        let warning = "auth-gen-token-secret has no effect: there is no auth-gen-token";
        raw.options.warnings.push(warning.into());
    }
    if raw.server.verify_options && raw.seen.contains_key("disable-occ") {
        raw.options.warnings.push("opt-verify has no effect together with disable-occ".into());
        raw.server.verify_options = false;
    }
    Ok(())
}

/// Returns the far end's address for the server: the second argument of `ifconfig`, or the address after the server's.
fn far_end(raw: &RawConfig, network: &Network4) -> Option<Ipv4Addr> {
    if network.topology == Topology::Subnet {
        return None;
    }
    let next = || u32::from(network.server.addr()).checked_add(1).map(Ipv4Addr::from);
    match &raw.ifconfig_pair {
        Some((_, far, _)) if raw.server4.is_none() => Some(*far),
        _ => next(),
    }
}

/// Returns the route that `server` pushes if the clients' addresses are not in one network. It leads to the server or,
/// with client-to-client, to the whole network.
fn route_to_server(raw: &RawConfig) -> Option<String> {
    let (net, _) = raw.server4.as_ref()?;
    let server = first_host(*net)?;
    match (raw.topology(), raw.server.client_to_client) {
        (Topology::Subnet, _) => None,
        (_, true) => Some(format!("route {} {}", net.network(), net.netmask())),
        (Topology::Net30, false) => Some(format!("route {}", server.addr())),
        (Topology::P2p, false) => None,
    }
}

/// Returns a network's first host address, which is the server's.
fn first_host(net: Ipv4Net) -> Option<Ipv4Net> {
    let address = u32::from(net.network()).checked_add(1)?;
    Ipv4Net::new(address.into(), net.prefix_len()).ok()
}

fn network4(raw: &mut RawConfig) -> Result<Option<Network4>, ConfigError> {
    if raw.bridge.is_some() {
        return Ok(raw.bridged());
    }
    let topology = raw.topology();
    let pool = raw.pool4.clone();
    if let Some((net, location)) = raw.server4.clone() {
        if pool.is_some() && !raw.no_pool {
            return Err(raw.error(
                "ifconfig-pool",
                "server makes a pool already",
                "remove it, or write: server NETWORK NETMASK nopool",
            ));
        }
        let too_small = || {
            location.error("server", "the network has no room for clients", "write a larger one")
        };
        let server = first_host(net).ok_or_else(too_small)?;
        // If each client has a block of four addresses, the first block is the server's and the last one is not
        // assigned.
        let (below, above) = if topology == Topology::Subnet { (2, 1) } else { (4, 4) };
        let first = u32::from(net.network()).checked_add(below).ok_or_else(too_small)?;
        let last = u32::from(net.broadcast()).checked_sub(above).ok_or_else(too_small)?;
        if first > last {
            return Err(too_small());
        }
        let netmask = pool.as_ref().and_then(|pool| pool.netmask);
        let pool = match pool {
            Some(pool) => Some((pool.first, pool.last)),
            None if raw.no_pool => None,
            None => Some((first.into(), last.into())),
        };
        return in_network(raw, Network4 { server, pool, topology, netmask }).map(Some);
    }
    match (raw.ifconfig_pair.clone(), pool) {
        (None, None) => Ok(None),
        (Some((local, other, location)), pool) => {
            let netmask = pool.as_ref().and_then(|pool| pool.netmask);
            let pool = pool.map(|Pool { first, last, .. }| (first, last));
            let server = match topology {
                Topology::Subnet => Ipv4Net::with_netmask(local, other).map_err(|_| {
                    location.error(
                        "ifconfig",
                        format!("{other} is not a netmask"),
                        "write: ifconfig 10.8.0.1 255.255.255.0",
                    )
                })?,
                Topology::Net30 | Topology::P2p => Ipv4Net::from(local),
            };
            in_network(raw, Network4 { server, pool, topology, netmask }).map(Some)
        }
        (None, Some(_)) => Err(raw.error(
            "ifconfig-pool",
            "the server has no address",
            "add ifconfig ADDRESS NETMASK, or use server",
        )),
    }
}

fn in_network(raw: &mut RawConfig, network: Network4) -> Result<Network4, ConfigError> {
    let Some((first, last)) = network.pool else {
        let mut warning =
            "there is no pool: a client gets an IPv4 address by ifconfig-push alone".to_owned();
        if raw.server.client_config_dir.is_none() {
            warning.push_str(", and there is no client-config-dir");
        }
        raw.options.warnings.push(warning);
        return Ok(network);
    };
    let net: Ipv4Net = network.server;
    // With a single address for the server and for each client, there is no network.
    let has_network = net.prefix_len() < 32;
    for address in [first, last] {
        let edge = address == net.network() || address == net.broadcast();
        if has_network && (!net.contains(&address) || edge) {
            return Err(raw.error(
                "ifconfig-pool",
                format!("{address} is not an address of {}", net.trunc()),
                "write addresses within the server's network",
            ));
        }
    }
    if (first..=last).contains(&net.addr()) {
        return Err(raw.error(
            "ifconfig-pool",
            format!("the server's own address {} is in it", net.addr()),
            "begin behind it",
        ));
    }
    Ok(network)
}

fn network6(raw: &RawConfig) -> Result<Option<Network6>, ConfigError> {
    let at = |net: &Ipv6Net, offset: u128| {
        u128::from(net.network()).checked_add(offset).map(std::net::Ipv6Addr::from)
    };
    if let Some((net, location)) = &raw.server6 {
        // If the network is large enough, openvpn leaves space for fixed addresses.
        let offset = if net.prefix_len() < 112 { 0x1000 } else { 2 };
        let made = at(net, 1)
            .and_then(|address| Ipv6Net::new(address, net.prefix_len()).ok())
            .zip(at(net, offset));
        let Some((server, first)) = made else {
            return Err(location.error(
                "server-ipv6",
                "the network has no room for clients",
                "write a larger one",
            ));
        };
        let first = raw.pool6.as_ref().map_or(first, |(pool, _)| pool.addr());
        return Ok(Some(Network6 { server, first }));
    }
    match (&raw.ifconfig6, &raw.pool6) {
        (Some((server, _)), Some((pool, _))) if server.contains(&pool.addr()) => {
            Ok(Some(Network6 { server: *server, first: pool.addr() }))
        }
        (Some(_), Some((pool, location))) => Err(location.error(
            "ifconfig-ipv6-pool",
            format!("{} is not in the server's network", pool.addr()),
            "begin within the network of ifconfig-ipv6",
        )),
        (None, Some((_, location))) => Err(location.error(
            "ifconfig-ipv6-pool",
            "the server has no IPv6 address",
            "use server-ipv6",
        )),
        (_, None) => Ok(None),
    }
}

/// Checks the `push` lines, because a client cannot use its session if the server pushes an option that the data
/// channel does not support.
fn push(raw: &mut RawConfig) -> Result<Vec<String>, ConfigError> {
    let rules = push_rules(raw);
    let mut kept = Vec::new();
    for option in std::mem::take(&mut raw.server.push) {
        match rules.evaluate(&option) {
            Ok(Pushed::Kept) => kept.push(option),
            Ok(Pushed::Implied) => {}
            Ok(Pushed::LeftOut(warning)) => raw.options.warnings.push(warning),
            Err((problem, remedy)) => return Err(raw.error("push", problem, remedy)),
        }
    }
    Ok(kept)
}

fn push_rules(raw: &RawConfig) -> PushRules {
    PushRules {
        framing: raw.options.session.framing,
        topology: raw.topology(),
        ipv6: raw.server6.is_some() || raw.pool6.is_some(),
    }
}
