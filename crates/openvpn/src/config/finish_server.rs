//! The server's helpers: networks, pools, what is pushed.

use std::net::Ipv4Addr;

use adit_engine::command::Keepalive;
use ipnet::{Ipv4Net, Ipv6Net};

use super::ConfigError;
use super::apply_tunnel::first_host;
use super::bridge::{own_address, station_age};
use super::client_file::ClientRules;
use super::draft::{Draft, Pool};
use super::options::ServerOptions;
use super::push_rules::{PushRules, Pushed};
use crate::server::{Network4, Network6, Topology};

pub(super) fn server_options(draft: &mut Draft) -> Result<ServerOptions, ConfigError> {
    if draft.sockets.nodelay {
        draft.push.push("socket-flags TCP_NODELAY".into());
    }
    let network4 = network4(draft)?;
    let network6 = network6(draft)?;
    if network4.is_none() && network6.is_none() && draft.bridge.is_none() {
        return Err(draft.error(
            "mode",
            "clients have no network",
            "add: server 10.8.0.0 255.255.255.0",
        ));
    }
    if network4.is_some() && !draft.seen.contains_key("topology") && !draft.is_ethernet() {
        draft.warnings.push(
            "no topology is named: clients get topology net30, as openvpn's own default is up to 2.6; \
             write topology subnet, which every client since 2.1 understands and which openvpn 2.7 \
             takes by default"
                .into(),
        );
    }
    if draft.pool_persist.is_some() && draft.duplicate_cn {
        draft.warnings.push(
            "ifconfig-pool-persist has no effect with duplicate-cn: a name has no address of its own".into(),
        );
        draft.pool_persist = None;
    }
    if draft.ccd_exclusive && draft.client_config_dir.is_none() {
        return Err(draft.error(
            "ccd-exclusive",
            "there are no files of single clients",
            "add client-config-dir DIRECTORY, or remove it",
        ));
    }
    let mut push = push(draft)?;
    push.extend(route_to_server(draft));
    let far4 = network4.as_ref().and_then(|network| far_end(draft, network));
    Ok(ServerOptions {
        network4,
        far4,
        network6,
        push,
        push_keepalive: draft.keepalive.map(|(interval, timeout)| Keepalive { interval, timeout }),
        max_clients: draft.max_clients,
        duplicate_cn: draft.duplicate_cn,
        client_to_client: draft.client_to_client,
        port_share: draft.proxies.port_share.take(),
        pool_persist: draft.pool_persist.take(),
        force_cookie: draft.force_cookie,
        client_config_dir: draft.client_config_dir.take(),
        ccd_exclusive: draft.ccd_exclusive,
        filter: draft.filter.take(),
        client_rules: ClientRules {
            max_routes: draft.max_routes_per_client,
            constraint: draft.push_constraint,
            push: push_rules(draft),
        },
        compress_migrate: draft.compress_migrate,
        bridged: draft.bridge.is_some(),
        bridged_address: draft.bridge.as_ref().map_or(Ok(None), |_| own_address(draft))?,
        station_age: station_age(draft),
    })
}

/// The other end of the server's own address: the second word of `ifconfig`, or the next address.
fn far_end(draft: &Draft, network: &Network4) -> Option<Ipv4Addr> {
    if network.topology == Topology::Subnet {
        return None;
    }
    let next = || u32::from(network.server.addr()).checked_add(1).map(Ipv4Addr::from);
    match &draft.ifconfig_pair {
        Some((_, far, _)) if draft.server4.is_none() => Some(*far),
        _ => next(),
    }
}

/// What `server` pushes where clients' addresses are not in one network: how they reach it, and with
/// client-to-client each other.
fn route_to_server(draft: &Draft) -> Option<String> {
    let (net, _) = draft.server4.as_ref()?;
    let server = first_host(*net)?;
    match (draft.topology(), draft.client_to_client) {
        (Topology::Subnet, _) => None,
        (_, true) => Some(format!("route {} {}", net.network(), net.netmask())),
        (Topology::Net30, false) => Some(format!("route {}", server.addr())),
        (Topology::P2p, false) => None,
    }
}

fn network4(draft: &mut Draft) -> Result<Option<Network4>, ConfigError> {
    if draft.bridge.is_some() {
        return Ok(draft.bridged());
    }
    let topology = draft.topology();
    let pool = draft.pool4.clone();
    if let Some((net, place)) = draft.server4.clone() {
        if pool.is_some() && !draft.no_pool {
            return Err(draft.error(
                "ifconfig-pool",
                "server makes a pool already",
                "remove it, or write: server NETWORK NETMASK nopool",
            ));
        }
        let too_small =
            || place.error("server", "the network has no room for clients", "write a larger one");
        let server = first_host(net).ok_or_else(too_small)?;
        // Where each client has four addresses, the server's own four and the last four are not given out.
        let (below, above) = if topology == Topology::Subnet { (2, 1) } else { (4, 4) };
        let first = u32::from(net.network()).checked_add(below).ok_or_else(too_small)?;
        let last = u32::from(net.broadcast()).checked_sub(above).ok_or_else(too_small)?;
        if first > last {
            return Err(too_small());
        }
        let netmask = pool.as_ref().and_then(|pool| pool.netmask);
        let pool = match pool {
            Some(pool) => Some((pool.first, pool.last)),
            None if draft.no_pool => None,
            None => Some((first.into(), last.into())),
        };
        return in_network(draft, Network4 { server, pool, topology, netmask }).map(Some);
    }
    match (draft.ifconfig_pair.clone(), pool) {
        (None, None) => Ok(None),
        (Some((local, other, place)), pool) => {
            let netmask = pool.as_ref().and_then(|pool| pool.netmask);
            let pool = pool.map(|Pool { first, last, .. }| (first, last));
            let server = match topology {
                Topology::Subnet => Ipv4Net::with_netmask(local, other).map_err(|_| {
                    place.error(
                        "ifconfig",
                        format!("{other} is not a netmask"),
                        "write: ifconfig 10.8.0.1 255.255.255.0",
                    )
                })?,
                Topology::Net30 | Topology::P2p => Ipv4Net::from(local),
            };
            in_network(draft, Network4 { server, pool, topology, netmask }).map(Some)
        }
        (None, Some(_)) => Err(draft.error(
            "ifconfig-pool",
            "the server has no address",
            "add ifconfig ADDRESS NETMASK, or use server",
        )),
    }
}

fn in_network(draft: &mut Draft, network: Network4) -> Result<Network4, ConfigError> {
    let Some((first, last)) = network.pool else {
        let mut warning =
            "there is no pool: a client gets an IPv4 address by ifconfig-push alone".to_owned();
        if draft.client_config_dir.is_none() {
            warning.push_str(", and there is no client-config-dir");
        }
        draft.warnings.push(warning);
        return Ok(network);
    };
    let net: Ipv4Net = network.server;
    // A server with a single address, whose clients have single ones too, has no network.
    let has_network = net.prefix_len() < 32;
    for address in [first, last] {
        let edge = address == net.network() || address == net.broadcast();
        if has_network && (!net.contains(&address) || edge) {
            return Err(draft.error(
                "ifconfig-pool",
                format!("{address} is not an address of {}", net.trunc()),
                "write addresses within the server's network",
            ));
        }
    }
    if (first..=last).contains(&net.addr()) {
        return Err(draft.error(
            "ifconfig-pool",
            format!("the server's own address {} is in it", net.addr()),
            "begin behind it",
        ));
    }
    Ok(network)
}

fn network6(draft: &Draft) -> Result<Option<Network6>, ConfigError> {
    let at = |net: &Ipv6Net, offset: u128| {
        u128::from(net.network()).checked_add(offset).map(std::net::Ipv6Addr::from)
    };
    if let Some((net, place)) = &draft.server6 {
        // Stock leaves room for addresses given by hand where the network is large enough.
        let offset = if net.prefix_len() < 112 { 0x1000 } else { 2 };
        let made = at(net, 1)
            .and_then(|address| Ipv6Net::new(address, net.prefix_len()).ok())
            .zip(at(net, offset));
        let Some((server, first)) = made else {
            return Err(place.error(
                "server-ipv6",
                "the network has no room for clients",
                "write a larger one",
            ));
        };
        let first = draft.pool6.as_ref().map_or(first, |(pool, _)| pool.addr());
        return Ok(Some(Network6 { server, first }));
    }
    match (&draft.ifconfig6, &draft.pool6) {
        (Some((server, _)), Some((pool, _))) if server.contains(&pool.addr()) => {
            Ok(Some(Network6 { server: *server, first: pool.addr() }))
        }
        (Some(_), Some((pool, place))) => Err(place.error(
            "ifconfig-ipv6-pool",
            format!("{} is not in the server's network", pool.addr()),
            "begin within the network of ifconfig-ipv6",
        )),
        (None, Some((_, place))) => Err(place.error(
            "ifconfig-ipv6-pool",
            "the server has no IPv6 address",
            "use server-ipv6",
        )),
        (_, None) => Ok(None),
    }
}

/// The `push` lines, checked: a client that gets what the data channel cannot do is lost.
fn push(draft: &mut Draft) -> Result<Vec<String>, ConfigError> {
    let rules = push_rules(draft);
    let mut kept = Vec::new();
    for option in std::mem::take(&mut draft.push) {
        match rules.judge(&option) {
            Ok(Pushed::Kept) => kept.push(option),
            Ok(Pushed::Implied) => {}
            Ok(Pushed::LeftOut(warning)) => draft.warnings.push(warning),
            Err((problem, remedy)) => return Err(draft.error("push", problem, remedy)),
        }
    }
    Ok(kept)
}

fn push_rules(draft: &Draft) -> PushRules {
    PushRules {
        framing: draft.framing,
        topology: draft.topology(),
        ipv6: draft.server6.is_some() || draft.pool6.is_some(),
    }
}
