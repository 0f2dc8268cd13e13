//! The server's helpers: networks, pools, what is pushed.

use adit_engine::verbs::{Framing, Keepalive};
use ipnet::{Ipv4Net, Ipv6Net};

use super::ConfigError;
use super::apply_tunnel::first_host;
use super::draft::Draft;
use super::options::ServerOptions;
use crate::server::{Network4, Network6};

/// Longest option that fits into a PUSH_REPLY.
const MAX_PUSH: usize = 980;

pub(super) fn server_options(draft: &mut Draft) -> Result<ServerOptions, ConfigError> {
    let network4 = network4(draft)?;
    let network6 = network6(draft)?;
    if network4.is_none() && network6.is_none() {
        return Err(draft.error(
            "mode",
            "clients have no network",
            "add: server 10.8.0.0 255.255.255.0",
        ));
    }
    if network4.is_some() && !draft.seen.contains_key("topology") {
        draft.warnings.push(
            "no topology is named: clients get topology subnet (openvpn 2.6 would take net30); \
             add topology subnet to silence this"
                .into(),
        );
    }
    if draft.pool_persist.is_some() && draft.duplicate_cn {
        draft.warnings.push(
            "ifconfig-pool-persist has no effect with duplicate-cn: a name has no address of its own".into(),
        );
        draft.pool_persist = None;
    }
    if let Some(place) =
        draft.client_config_dir.is_some().then(|| draft.seen.get("client-config-dir")).flatten()
    {
        draft.warnings.push(format!(
            "{}:{}: client-config-dir: files in it are not read yet",
            place.file, place.line
        ));
    }
    Ok(ServerOptions {
        network4,
        network6,
        push: push(draft)?,
        push_keepalive: draft.keepalive.map(|(interval, timeout)| Keepalive { interval, timeout }),
        max_clients: draft.max_clients,
        duplicate_cn: draft.duplicate_cn,
        client_to_client: draft.client_to_client,
        pool_persist: draft.pool_persist.take(),
        force_cookie: draft.force_cookie,
        client_config_dir: draft.client_config_dir.take(),
    })
}

fn network4(draft: &Draft) -> Result<Option<Network4>, ConfigError> {
    let pool = draft.pool4.as_ref();
    if let Some((net, place)) = &draft.server4 {
        if pool.is_some() && !draft.no_pool {
            return Err(draft.error(
                "ifconfig-pool",
                "server makes a pool already",
                "remove it, or write: server NETWORK NETMASK nopool",
            ));
        }
        let too_small =
            || place.error("server", "the network has no room for clients", "write a larger one");
        let server = first_host(*net).ok_or_else(too_small)?;
        let first = u32::from(server.addr()).checked_add(1).ok_or_else(too_small)?;
        let last = u32::from(net.broadcast()).checked_sub(1).ok_or_else(too_small)?;
        let (first, last) = match pool {
            Some((first, last, _)) => (*first, *last),
            None if draft.no_pool => {
                return Err(place.error(
                    "server",
                    "with nopool clients get no address",
                    "add ifconfig-pool, or remove nopool",
                ));
            }
            None => (first.into(), last.into()),
        };
        return in_network(draft, Network4 { server, first, last }).map(Some);
    }
    match (&draft.ifconfig, pool) {
        (None, None) => Ok(None),
        (Some((server, _)), Some((first, last, _))) => {
            in_network(draft, Network4 { server: *server, first: *first, last: *last }).map(Some)
        }
        (Some(_), None) => Err(draft.error(
            "ifconfig",
            "clients have no addresses",
            "add ifconfig-pool FIRST LAST, or use server",
        )),
        (None, Some(_)) => Err(draft.error(
            "ifconfig-pool",
            "the server has no address",
            "add ifconfig ADDRESS NETMASK, or use server",
        )),
    }
}

fn in_network(draft: &Draft, network: Network4) -> Result<Network4, ConfigError> {
    let net: Ipv4Net = network.server;
    for address in [network.first, network.last] {
        if !net.contains(&address) || address == net.network() || address == net.broadcast() {
            return Err(draft.error(
                "ifconfig-pool",
                format!("{address} is not an address of {}", net.trunc()),
                "write addresses within the server's network",
            ));
        }
    }
    if (network.first..=network.last).contains(&net.addr()) {
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
    const OURS: [&str; 9] = [
        "ifconfig",
        "ifconfig-ipv6",
        "peer-id",
        "cipher",
        "key-derivation",
        "protocol-flags",
        "push-continuation",
        "auth-token",
        "fragment",
    ];
    let mut kept = Vec::new();
    for option in std::mem::take(&mut draft.push) {
        let mut words = option.split_whitespace();
        let (word, rest) = (words.next().unwrap_or_default(), words.next());
        let framing = match (word, rest) {
            ("comp-lzo", Some("no")) => Some(Framing::LzoStub),
            ("compress", None | Some("stub")) => Some(Framing::SwapStub),
            ("compress", Some("stub-v2")) => Some(Framing::StubV2),
            ("comp-lzo" | "compress", _) => {
                return Err(draft.error(
                    "push",
                    format!("\"{option}\": packets are not compressed: it gives away their content (VORACLE)"),
                    "remove it",
                ));
            }
            _ => None,
        };
        if framing.is_some_and(|framing| framing != draft.framing) {
            return Err(draft.error(
                "push",
                format!("\"{option}\": the server itself is not set so"),
                format!("add {option} to the server's configuration too, or remove it here"),
            ));
        }
        if OURS.contains(&word) {
            return Err(draft.error(
                "push",
                format!("\"{option}\" is negotiated with each client"),
                "remove it",
            ));
        }
        if option.len() > MAX_PUSH {
            return Err(draft.error(
                "push",
                format!("an option of {} bytes is too long", option.len()),
                format!("write at most {MAX_PUSH} bytes"),
            ));
        }
        match (word, rest) {
            // Pushed anyway.
            ("topology", Some("subnet")) => {}
            ("topology", _) => {
                return Err(draft.error(
                    "push",
                    format!("\"{option}\" is not supported"),
                    "remove it: clients get topology subnet",
                ));
            }
            _ => kept.push(option),
        }
    }
    Ok(kept)
}
