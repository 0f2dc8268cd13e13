//! Directives for sockets: protocols, addresses to listen on, servers to dial.

use adit_engine::{Family, Target, Transport};

use super::ConfigError;
use super::args::unbracketed;
use super::options::{Listen, Proxy, Role, Socket};
use super::proxies;
use super::raw_config::{RawConfig, Remote};
use super::reader::Directive;

/// The default port of openvpn.
const PORT: u16 = 1194;
/// The maximum number of addresses to listen on.
const MAX_LISTENERS: usize = 1024;

/// The argument of `proto`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proto {
    pub(super) transport: Transport,
    pub(super) family: Family,
    /// The end that `tcp-server` or `tcp-client` names. With `tcp`, the role determines the end.
    side: Option<Side>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

/// A `local` line. Values for fields that are `None` come from `port` and `proto`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Local {
    host: Option<String>,
    port: Option<u16>,
    proto: Option<Proto>,
}

/// The values of these directives.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    locals: Vec<Local>,
    /// `proto-force`.
    pub(super) force: Option<Transport>,
    /// `tcp-nodelay`, which a server also pushes to its clients.
    pub(super) nodelay: bool,
}

pub(super) fn parse_proto(d: &Directive, index: usize) -> Result<Proto, ConfigError> {
    let name = d.arg(index);
    let (base, side) = match name.rsplit_once('-') {
        Some((base, "server")) => (base, Some(Side::Server)),
        Some((base, "client")) => (base, Some(Side::Client)),
        _ => (name, None),
    };
    let (transport, family) = match (base, side) {
        ("udp", None) => (Transport::Udp, Family::Any),
        ("udp4", None) => (Transport::Udp, Family::V4),
        ("udp6", None) => (Transport::Udp, Family::V6),
        ("tcp", _) => (Transport::Tcp, Family::Any),
        ("tcp4", _) => (Transport::Tcp, Family::V4),
        ("tcp6", _) => (Transport::Tcp, Family::V6),
        _ => {
            return Err(d.error(
                format!("there is no protocol \"{name}\""),
                "write udp or tcp, or one of them with a 4 or 6 for the address family",
            ));
        }
    };
    Ok(Proto { transport, family, side })
}

/// Handles `local`.
pub(super) fn local(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let host = unbracketed(d.arg(0));
    let local = Local {
        host: (host != "*").then(|| host.to_owned()),
        port: d.get(1).map(|_| d.port(1)).transpose()?,
        proto: d.get(2).map(|_| parse_proto(d, 2)).transpose()?,
    };
    // Several connection blocks may contain the same line.
    if !raw.sockets.locals.contains(&local) {
        raw.sockets.locals.push(local);
    }
    if raw.sockets.locals.len() > MAX_LISTENERS {
        return Err(d.error("there are too many addresses", "listen on * instead"));
    }
    Ok(())
}

/// Returns the settings of the local socket.
pub(super) fn socket(raw: &RawConfig, role: &Role) -> Result<Socket, ConfigError> {
    let bind = raw.bind.unwrap_or(true);
    let chosen: Vec<&str> =
        ["local", "lport"].into_iter().filter(|name| raw.seen.contains_key(*name)).collect();
    if let (false, Some(name)) = (bind, chosen.first()) {
        return Err(raw.error(
            name,
            "it makes no sense together with nobind",
            "remove one of the two",
        ));
    }
    let listen = match role {
        _ if !bind => Vec::new(),
        Role::Server(_) => listen(raw, Proto::default())?,
        Role::Peer(peer) if peer.dial.remotes.is_empty() => listen(raw, Proto::default())?,
        Role::Client(_) | Role::Peer(_) => {
            let remotes = match role {
                Role::Client(client) => &client.dial.remotes,
                Role::Peer(peer) => &peer.dial.remotes,
                Role::Server(_) => &Vec::new(),
            };
            let family = remotes.first().map_or(Family::Any, |remote| remote.family);
            let mut listen = listen(raw, Proto { family, ..Proto::default() })?;
            if listen.len() > 1 {
                return Err(raw.error(
                    "local",
                    "a client sends from one address",
                    "keep one of the local lines",
                ));
            }
            listen.iter_mut().for_each(|listen| listen.family = family);
            listen
        }
    };
    let chosen = ["local", "lport", "port", "bind"];
    let bind_streams = bind && chosen.iter().any(|name| raw.seen.contains_key(*name));
    Ok(Socket { listen, bind_streams, ..raw.options.socket.clone() })
}

/// Returns one entry for each `local`, or a single entry without a host if there is none.
fn listen(raw: &RawConfig, default: Proto) -> Result<Vec<Listen>, ConfigError> {
    let nowhere = Local { host: None, port: None, proto: None };
    let locals = match raw.sockets.locals.as_slice() {
        [] => std::slice::from_ref(&nowhere),
        locals => locals,
    };
    let entry = |local: &Local| {
        let proto = local.proto.or(raw.proto).unwrap_or(default);
        Listen {
            host: local.host.clone(),
            port: local.port.or(raw.lport).unwrap_or(PORT),
            transport: proto.transport,
            family: proto.family,
            ipv6_only: raw.ipv6_only,
        }
    };
    let mut entries: Vec<Listen> = Vec::new();
    for entry in locals.iter().map(entry) {
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// Refuses `tcp-client` in a server's configuration, and `tcp-server` in a client's.
pub(super) fn sides(raw: &RawConfig, server: bool) -> Result<(), ConfigError> {
    let wrong = if server { Side::Client } else { Side::Server };
    let of = |proto: &Option<Proto>| proto.is_some_and(|proto| proto.side == Some(wrong));
    let (better, location) =
        if server { ("tcp-server", "local") } else { ("tcp-client", "remote") };
    let problem = if server { "a server does not dial" } else { "a client does not listen" };
    let remedy = format!("write: {better}, or tcp, which fits both ends");
    if of(&raw.proto) {
        return Err(raw.error("proto", problem, remedy));
    }
    let remotes = raw.remotes.iter().chain(&raw.connections).map(|remote| &remote.proto);
    if remotes.chain(raw.sockets.locals.iter().map(|local| &local.proto)).any(of) {
        return Err(raw.error(location, problem, remedy));
    }
    Ok(())
}

/// Returns whether a point-to-point end listens for TCP connections; `None` without TCP.
pub(super) fn listening_end(raw: &RawConfig) -> Result<Option<bool>, ConfigError> {
    let remotes = raw.remotes.iter().chain(&raw.connections).map(|remote| remote.proto);
    let locals = raw.sockets.locals.iter().map(|local| local.proto);
    let own = remotes.chain(locals).flatten();
    let all: Vec<Proto> = raw.proto.into_iter().chain(own).collect();
    let streams: Vec<Proto> =
        all.iter().copied().filter(|proto| proto.transport == Transport::Tcp).collect();
    if streams.is_empty() {
        return Ok(None);
    }
    let line = ["proto", "remote", "connection", "local"]
        .into_iter()
        .find(|name| raw.seen.contains_key(*name))
        .unwrap_or("proto");
    if streams.iter().any(|proto| proto.side.is_none()) {
        return Err(raw.error(
            line,
            "of two points on TCP one listens and the other dials, and tcp does not say which",
            "write: tcp-server at the end that listens, tcp-client at the other",
        ));
    }
    let listens = streams.iter().any(|proto| proto.side == Some(Side::Server));
    if listens && all.iter().any(|proto| proto.side != Some(Side::Server)) {
        return Err(raw.error(
            line,
            "an end that is tcp-server only listens for the other",
            "keep tcp-server alone, or write tcp-client in every place",
        ));
    }
    Ok(Some(listens))
}

/// Returns the addresses in the `remote` lines of an end that listens for connections.
pub(super) fn allowed(raw: &RawConfig) -> Result<Vec<std::net::IpAddr>, ConfigError> {
    let hosts = raw.remotes.iter().chain(&raw.connections).filter_map(|r| r.host.as_deref());
    let address = |host: &str| {
        host.parse().map_err(|_| {
            raw.error(
                "remote",
                format!("an end that is tcp-server lets in who comes from there, and {host} is no address"),
                "write an IP address, or remove the line: who has no key gets nowhere",
            )
        })
    };
    hosts.map(address).collect()
}

/// Returns the servers to dial, in order, and the proxies before them.
pub(super) fn remotes(raw: &mut RawConfig) -> Result<(Vec<Target>, Vec<Proxy>), ConfigError> {
    let blocks = !raw.connections.is_empty();
    if blocks && !raw.remotes.is_empty() {
        let warning = "remote lines outside of connection blocks have no effect".to_owned();
        raw.options.warnings.push(warning);
    }
    let list = if blocks { raw.connections.clone() } else { raw.remotes.clone() };
    if list.iter().any(|remote| remote.host.is_none()) {
        return Err(raw.error(
            "",
            "a connection block has no remote",
            "add remote HOST PORT to it",
        ));
    }
    if list.is_empty() {
        return Err(raw.error("client", "no server is named", "add: remote HOST PORT"));
    }
    let (mut targets, mut proxies) = (Vec::new(), Vec::new());
    for remote in &list {
        let Some(mut target) = target(remote, raw) else { continue };
        if raw.sockets.force.is_none_or(|transport| transport == target.transport) {
            target.proxy = proxies::before(raw, &remote.proxies, &target, &mut proxies)?;
            targets.push(target);
        }
    }
    if targets.is_empty() {
        return Err(raw.error(
            "proto-force",
            "it leaves no server",
            "remove it, or add a remote with that protocol",
        ));
    }
    if raw.options.session.exit_notify.is_some()
        && targets.iter().all(|t| t.transport == Transport::Tcp)
    {
        let warning = notice_enough(raw);
        raw.options.warnings.push(warning);
    }
    Ok((targets, proxies))
}

/// Returns a warning about `explicit-exit-notify` over TCP.
pub(super) fn notice_enough(raw: &RawConfig) -> String {
    let location = raw.seen.get("explicit-exit-notify");
    let location = location
        .map(|location| format!("{}:{}: ", location.file, location.line))
        .unwrap_or_default();
    format!(
        "{location}explicit-exit-notify has no effect: the end of a TCP connection is notice enough"
    )
}

fn target(remote: &Remote, raw: &RawConfig) -> Option<Target> {
    let proto = remote.proto.or(raw.proto).unwrap_or_default();
    Some(Target {
        host: remote.host.clone()?,
        port: remote.port.or(raw.rport).unwrap_or(PORT),
        transport: proto.transport,
        family: proto.family,
        proxy: None,
        wait: remote.wait,
    })
}
