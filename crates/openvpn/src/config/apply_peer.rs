//! Directives about the other end: role, remotes, sockets, what clients are given.

use std::time::Duration;

use super::ConfigError;
use super::options::{AuthRetry, PoolPersist, UserPass};
use super::raw_config::{RawConfig, Remote};
use super::reader::Directive;
use super::transport::{self, parse_proto};
use super::{directive_support, proxies};
use crate::negotiate::{FilterAction, PullFilter};

pub(super) fn apply(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    Ok(transport::apply(raw, d)?
        || role(raw, d)?
        || remote(raw, d)?
        || socket(raw, d)?
        || network(raw, d)?
        || server(raw, d)?
        || login(raw, d)?)
}

/// What has a meaning in a `<connection>` block.
#[rustfmt::skip]
const IN_CONNECTION: &[&str] = &[
    "bind", "connect-retry", "connect-retry-max", "connect-timeout", "explicit-exit-notify", "float",
    "fragment", "http-proxy", "http-proxy-option", "http-proxy-user-pass",
    "key-direction", "local", "lport", "mssfix", "nobind", "port", "proto", "remote", "rport",
    "server-poll-timeout", "socks-proxy", "tls-auth", "tls-crypt", "tls-crypt-v2", "tun-mtu",
];

/// What may differ from one `<connection>` block to the next.
pub(super) fn in_connection(
    raw: &mut RawConfig,
    block: usize,
    d: &Directive,
) -> Result<bool, ConfigError> {
    let name = d.name.as_str();
    if !IN_CONNECTION.contains(&name) && directive_support::HANDLED.contains(&name) {
        return Err(d.error(
            "it has no place in a connection block",
            "write it outside, before or after the block",
        ));
    }
    match d.name.as_str() {
        "remote" => {
            let new = parse_remote(d)?;
            if let Some(remote) = raw.connection(block) {
                remote.host = new.host;
                remote.port = new.port.or(remote.port);
                remote.proto = new.proto.or(remote.proto);
                remote.location = new.location;
            }
        }
        "proto" => {
            d.shape("proto udp|tcp", 1..=1)?;
            let proto = parse_proto(d, 0)?;
            if let Some(remote) = raw.connection(block) {
                remote.proto = Some(proto);
            }
        }
        "port" | "rport" => {
            d.shape("port NUMBER", 1..=1)?;
            let port = d.port(0)?;
            if let Some(remote) = raw.connection(block) {
                remote.port = remote.port.or(Some(port));
            }
        }
        "connect-timeout" | "server-poll-timeout" => {
            let wait = answer_time(d)?;
            if let Some(remote) = raw.connection(block) {
                remote.wait = Some(wait);
            }
        }
        _ => {
            let base = raw.base.clone();
            let remote = raw.connection(block);
            return remote.map_or(Ok(false), |r| proxies::take(&mut r.proxies, base.as_deref(), d));
        }
    }
    Ok(true)
}

fn role(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    let flag = match d.name.as_str() {
        "client" => {
            raw.pull = true;
            raw.tls_client = true;
            &mut raw.client
        }
        "pull" => &mut raw.pull,
        "tls-client" => &mut raw.tls_client,
        "tls-server" => &mut raw.tls_server,
        "mode" => {
            d.shape("mode server", 1..=1)?;
            match d.arg(0) {
                "server" => raw.mode_server = true,
                "p2p" => raw.mode_server = false,
                other => {
                    return Err(d.error(
                        format!("there is no mode \"{other}\""),
                        "write: mode server, or leave it out",
                    ));
                }
            }
            return Ok(true);
        }
        _ => return Ok(false),
    };
    *flag = true;
    d.shape(&d.name, 0..=0)?;
    Ok(true)
}

fn parse_remote(d: &Directive) -> Result<Remote, ConfigError> {
    d.shape("remote HOST [PORT] [PROTO]", 1..=3)?;
    let host = d.arg(0);
    // Some tools write IPv6 literals in brackets.
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() || host.len() > 253 || host.contains(|c: char| c.is_whitespace()) {
        return Err(d.error(format!("\"{host}\" is not a host"), "write a name or an address"));
    }
    let port = d.get(1).map(|_| d.port(1)).transpose()?;
    if port == Some(0) {
        return Err(d.error("port 0 cannot be reached", "write the server's port, mostly 1194"));
    }
    let proto = d.get(2).map(|_| parse_proto(d, 2)).transpose()?;
    let (host, location) = (Some(host.to_owned()), Some(d.location.clone()));
    Ok(Remote { host, port, proto, location, ..Remote::default() })
}

fn answer_time(d: &Directive) -> Result<Duration, ConfigError> {
    d.shape("server-poll-timeout SECONDS", 1..=1)?;
    Ok(Duration::from_secs(d.number(0, 1..=86_400)?))
}

fn remote(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "remote" => {
            let remote = parse_remote(d)?;
            raw.remotes.push(remote);
        }
        "proto" => {
            d.shape("proto udp|tcp", 1..=1)?;
            raw.proto = Some(parse_proto(d, 0)?);
        }
        "remote-random" => {
            d.shape("remote-random", 0..=0)?;
            raw.remote_random = true;
        }
        "remote-random-hostname" => {
            d.shape("remote-random-hostname", 0..=0)?;
            raw.random_hostname = true;
        }
        "connect-retry" => {
            d.shape("connect-retry SECONDS [LONGEST]", 1..=2)?;
            // Stock takes 0; we always wait a little.
            let first = Duration::from_secs(d.number::<u64>(0, 0..=86_400)?.max(1));
            let longest = match d.get(1) {
                Some(_) => Duration::from_secs(d.number(1, 1..=86_400)?),
                None => Duration::from_secs(300),
            };
            raw.connect_retry = (first, longest.max(first));
        }
        "connect-retry-max" => {
            d.shape("connect-retry-max TIMES", 1..=1)?;
            raw.connect_retry_max = match d.arg(0) {
                "unlimited" => None,
                _ => Some(d.number(0, 0..=u32::MAX)?).filter(|times| *times > 0),
            };
        }
        "connect-timeout" | "server-poll-timeout" => {
            raw.server_poll_timeout = answer_time(d)?;
        }
        "resolv-retry" => {
            d.shape("resolv-retry SECONDS|infinite", 1..=1)?;
            raw.resolv_retry = match d.arg(0) {
                "infinite" => None,
                _ => Some(d.seconds(0)?),
            };
        }
        "float" => {
            d.shape("float", 0..=0)?;
            raw.float = true;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn socket(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "port" => {
            d.shape("port NUMBER", 1..=1)?;
            let port = Some(d.port(0)?);
            (raw.lport, raw.rport) = (port, port);
        }
        "lport" => {
            d.shape("lport NUMBER", 1..=1)?;
            raw.lport = Some(d.port(0)?);
        }
        "rport" => {
            d.shape("rport NUMBER", 1..=1)?;
            raw.rport = Some(d.port(0)?);
        }
        "bind" => {
            d.shape("bind [ipv6only]", 0..=1)?;
            raw.ipv6_only = match d.get(0) {
                None => false,
                Some("ipv6only") => true,
                Some(other) => {
                    return Err(
                        d.error(format!("\"{other}\" is not known"), "write: bind ipv6only")
                    );
                }
            };
            raw.bind = Some(true);
        }
        "nobind" => {
            d.shape("nobind", 0..=0)?;
            raw.bind = Some(false);
        }
        "multihome" => {
            d.shape("multihome", 0..=0)?;
            raw.multihome = true;
        }
        "sndbuf" => {
            d.shape("sndbuf BYTES", 1..=1)?;
            raw.send_buffer = Some(d.number(0, 0..=i32::MAX.cast_unsigned())?).filter(|n| *n > 0);
        }
        "rcvbuf" => {
            d.shape("rcvbuf BYTES", 1..=1)?;
            raw.receive_buffer =
                Some(d.number(0, 0..=i32::MAX.cast_unsigned())?).filter(|n| *n > 0);
        }
        "mark" => {
            d.shape("mark NUMBER", 1..=1)?;
            raw.mark = Some(d.number(0, 0..=u32::MAX)?);
        }
        "bind-dev" => {
            d.shape("bind-dev DEVICE", 1..=1)?;
            let name = d.arg(0);
            if name.is_empty() || name.len() > 15 || name.contains(['/', ' ']) {
                return Err(d.error(
                    format!("\"{name}\" is not a device name"),
                    "write the name of a device of this machine, as ip link lists them",
                ));
            }
            raw.bind_device = Some(name.to_owned());
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn network(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "server" => {
            d.shape("server NETWORK NETMASK", 2..=3)?;
            let net = d.net4(0, 1)?;
            if net.addr() != net.network() {
                let better = format!("write: server {} {}", net.network(), net.netmask());
                return Err(
                    d.error(format!("{} is not the network's first address", net.addr()), better)
                );
            }
            if !(16..=29).contains(&net.prefix_len()) {
                return Err(d.error(
                    format!("a network of /{} is not possible", net.prefix_len()),
                    "write one of /16 (255.255.0.0) to /29 (255.255.255.248)",
                ));
            }
            raw.no_pool = match d.get(2) {
                None => false,
                Some("nopool") => true,
                Some(other) => {
                    return Err(d.error(
                        format!("\"{other}\" is not known"),
                        "write: server NETWORK NETMASK",
                    ));
                }
            };
            raw.server4 = Some((net, d.location.clone()));
        }
        "server-ipv6" => {
            d.shape("server-ipv6 NETWORK/BITS", 1..=1)?;
            let net = d.net6(0)?.trunc();
            if !(64..=124).contains(&net.prefix_len()) {
                return Err(d.error(
                    format!("a network of /{} is not possible", net.prefix_len()),
                    "write one of /64 to /124",
                ));
            }
            raw.server6 = Some((net, d.location.clone()));
        }
        "ifconfig-ipv6-pool" => {
            d.shape("ifconfig-ipv6-pool FIRST/BITS", 1..=1)?;
            raw.pool6 = Some((d.net6(0)?, d.location.clone()));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn server(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "ifconfig-pool-persist" => {
            d.shape("ifconfig-pool-persist FILE [SECONDS]", 1..=2)?;
            let every = if d.args.len() > 1 { d.seconds(1)? } else { Duration::from_secs(600) };
            let path = d.path(0, raw.base.as_deref());
            raw.pool_persist = Some(PoolPersist { path, every });
        }
        "push" => {
            d.shape("push \"OPTION\"", 1..=1)?;
            if d.arg(0).contains(',') {
                return Err(d.error(
                    "there is a comma in the option",
                    "commas separate options on the wire; write one push line for each",
                ));
            }
            raw.push.push(d.arg(0).to_owned());
        }
        "max-clients" => {
            d.shape("max-clients NUMBER", 1..=1)?;
            raw.max_clients = d.number(0, 1..=0xff_fffe)?;
        }
        "duplicate-cn" => {
            d.shape("duplicate-cn", 0..=0)?;
            raw.duplicate_cn = true;
        }
        "client-to-client" => {
            d.shape("client-to-client", 0..=0)?;
            raw.client_to_client = true;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn login(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "auth-user-pass" => {
            d.shape("auth-user-pass [FILE] <inline>", 0..=1)?;
            raw.auth_user_pass = if d.inline.is_none() && matches!(d.get(0), None | Some("stdin")) {
                Some(UserPass::Prompt)
            } else {
                d.source("auth-user-pass", raw.base.as_deref())
                    .map(UserPass::Source)
                    .or(raw.auth_user_pass.take())
            };
        }
        "auth-nocache" => {
            d.shape("auth-nocache", 0..=0)?;
            raw.auth_nocache = true;
        }
        "auth-retry" => {
            d.shape("auth-retry none|nointeract|interact", 1..=1)?;
            raw.auth_retry = match d.arg(0) {
                "none" => AuthRetry::None,
                "nointeract" => AuthRetry::NoInteract,
                "interact" => AuthRetry::Interact,
                other => {
                    return Err(d.error(
                        format!("\"{other}\" is not known"),
                        "write none, nointeract or interact",
                    ));
                }
            };
        }
        "pull-filter" => {
            d.shape("pull-filter accept|ignore|reject \"TEXT\"", 2..=2)?;
            let action = match d.arg(0) {
                "accept" => FilterAction::Accept,
                "ignore" => FilterAction::Ignore,
                "reject" => FilterAction::Reject,
                other => {
                    return Err(d.error(
                        format!("\"{other}\" is not known"),
                        "write accept, ignore or reject",
                    ));
                }
            };
            raw.pull_filters.push(PullFilter::new(action, d.arg(1)));
        }
        "route-nopull" => {
            d.shape("route-nopull", 0..=0)?;
            raw.route_nopull = true;
        }
        "push-peer-info" => {
            d.shape("push-peer-info", 0..=0)?;
            raw.push_peer_info = true;
        }
        _ => return Ok(false),
    }
    Ok(true)
}
