//! Directives for the link to the other end: servers, proxies, sockets.

use std::time::Duration;

use super::InConnection::{Own, Shared};
use super::{Roles, Spec, flag, used};
use crate::config::options::MtuDiscovery;
use crate::config::raw_config::{RawConfig, Remote};
use crate::config::reader::Directive;
use crate::config::transport::parse_proto;
use crate::config::{ConfigError, proxies, transport};

pub(super) const TABLE: &[Spec] = &[
    used("remote", "HOST [PORT] [PROTO]", 1..=3, |raw, d| {
        raw.remotes.push(parse_remote(d)?);
        Ok(())
    })
    .roles(Roles::DIALS)
    .in_connection(Own(|remote, _, d| {
        let new = parse_remote(d)?;
        remote.host = new.host;
        remote.port = new.port.or(remote.port);
        remote.proto = new.proto.or(remote.proto);
        remote.location = new.location;
        Ok(())
    }))
    .doc("The other end. Several lines are tried in turn."),
    used("proto", "udp|tcp", 1..=1, |raw, d| {
        raw.proto = Some(parse_proto(d, 0)?);
        Ok(())
    })
    .in_connection(Own(|remote, _, d| {
        remote.proto = Some(parse_proto(d, 0)?);
        Ok(())
    }))
    .doc(
        "The transport. An appended 4 or 6 chooses the address family; -server and -client \
         choose the end of a TCP connection.",
    ),
    used("proto-force", "udp|tcp", 1..=1, |raw, d| {
        raw.sockets.force = Some(parse_proto(d, 0)?.transport);
        Ok(())
    })
    .doc("Ignores remotes with the other transport."),
    used("port", "NUMBER", 1..=1, |raw, d| {
        let port = Some(d.port(0)?);
        (raw.lport, raw.rport) = (port, port);
        Ok(())
    })
    .in_connection(Own(block_port))
    .doc("The port of both ends (1194)."),
    used("lport", "NUMBER", 1..=1, |raw, d| {
        raw.lport = Some(d.port(0)?);
        Ok(())
    })
    .in_connection(Shared)
    .doc("The port of this end."),
    used("rport", "NUMBER", 1..=1, |raw, d| {
        raw.rport = Some(d.port(0)?);
        Ok(())
    })
    .in_connection(Own(block_port))
    .doc("The port of the other end, for remotes that name none."),
    used("local", "ADDRESS|* [PORT] [PROTO]", 1..=3, transport::local)
        .in_connection(Shared)
        .doc("The address to listen on or send from; a server listens on all that are given."),
    used("bind", "[ipv6only]", 0..=1, bind)
        .in_connection(Shared)
        .doc("Binds the socket to the local port; ipv6only leaves IPv4 to other programs."),
    used("nobind", "", 0..=0, |raw, _| {
        raw.bind = Some(false);
        Ok(())
    })
    .roles(Roles::DIALS)
    .in_connection(Shared)
    .doc("Sends from a port that the kernel chooses."),
    used("bind-dev", "DEVICE", 1..=1, bind_dev)
        .doc("Binds all sockets to a network device, for example that of a VRF."),
    used("multihome", "[same-interface]", 0..=1, multihome)
        .doc("Answers from the address to which a packet was sent, as adit always does."),
    flag("float", |raw| &mut raw.options.session.float)
        .in_connection(Shared)
        .doc("Follows an authenticated peer to a new address, as a server always does."),
    used("sndbuf", "BYTES", 1..=1, |raw, d| {
        raw.options.socket.send_buffer = buffer(d)?;
        Ok(())
    })
    .doc("The size of the sockets' send buffers."),
    used("rcvbuf", "BYTES", 1..=1, |raw, d| {
        raw.options.socket.receive_buffer = buffer(d)?;
        Ok(())
    })
    .doc("The size of the sockets' receive buffers."),
    used("mark", "NUMBER", 1..=1, |raw, d| {
        raw.options.socket.mark = Some(d.number(0, 0..=u32::MAX)?);
        Ok(())
    })
    .doc("The firewall mark of the tunnel's own packets."),
    flag("passtos", |raw| &mut raw.options.socket.copies_tos)
        .doc("Over UDP, copies the type of service of the packets from the device to the tunnel's own."),
    used("mtu-disc", "no|maybe|yes", 1..=1, mtu_discovery).doc(
        "Whether the tunnel's own datagrams may be fragmented: anywhere, by this machine only, or nowhere.",
    ),
    flag("preresolve", |raw| &mut raw.dial.preresolve)
        .roles(Roles::DIALS_LAX)
        .doc("Looks up the remotes' names when the program starts."),
    flag("persist-remote-ip", |raw| &mut raw.dial.persist_remote)
        .roles(Roles::DIALS_LAX)
        .doc("Reconnects to the address that worked last, without looking up its name first."),
    used("persist-local-ip", "", 0..=0, |_, _| Ok(()))
        .doc("Keeps the address of local across reconnects, as adit always does."),
    used("socket-flags", "TCP_NODELAY", 1..=usize::MAX, socket_flags)
        .doc("TCP_NODELAY is the only flag, and adit always sets it."),
    flag("tcp-nodelay", |raw| &mut raw.sockets.nodelay)
        .doc("Pushes socket-flags TCP_NODELAY to the clients of a server."),
    used("tcp-queue-limit", "PACKETS", 1..=1, |raw, d| {
        raw.options.socket.queue_limit = d.number(0, 1..=65_535)?;
        Ok(())
    })
    .doc("The packets that may wait for a full TCP connection (64)."),
    flag("remote-random", |raw| &mut raw.dial.remote_random)
        .roles(Roles::DIALS_LAX)
        .doc("Tries the remotes in random order."),
    flag("remote-random-hostname", |raw| &mut raw.dial.random_hostname)
        .doc("Prepends a random label to names before resolving them, which defeats caches."),
    used("connect-retry", "SECONDS [LONGEST]", 1..=2, connect_retry)
        .roles(Roles::DIALS_LAX)
        .in_connection(Shared)
        .doc("The first and the longest pause between attempts to connect (1 and 300)."),
    used("connect-retry-max", "TIMES", 1..=1, |raw, d| {
        raw.dial.connect_retry_max = match d.arg(0) {
            "unlimited" => None,
            _ => Some(d.number(0, 0..=u32::MAX)?).filter(|times| *times > 0),
        };
        Ok(())
    })
    .roles(Roles::DIALS_LAX)
    .in_connection(Shared)
    .doc("The attempts for each remote before the program ends."),
    used("connect-timeout", "SECONDS", 1..=1, answer_time)
        .roles(Roles::CLIENT_LAX)
        .in_connection(Own(block_answer_time))
        .doc("The same as server-poll-timeout."),
    used("server-poll-timeout", "SECONDS", 1..=1, answer_time)
        .roles(Roles::CLIENT_LAX)
        .in_connection(Own(block_answer_time))
        .doc("The time to wait for a server's answer before the next one is tried (120)."),
    used("resolv-retry", "SECONDS|infinite", 1..=1, |raw, d| {
        raw.dial.resolv_retry = match d.arg(0) {
            "infinite" => None,
            _ => Some(d.seconds(0)?),
        };
        Ok(())
    })
    .doc("The time for which a failing name lookup is repeated."),
    used("http-proxy", "HOST PORT [FILE|stdin|auto|auto-nct] [none|basic]", 2..=4, |raw, d| {
        proxies::http(&mut raw.proxies, raw.base.as_deref(), d)
    })
    .roles(Roles::DIALS)
    .in_connection(Own(|remote, base, d| proxies::http(&mut remote.proxies, base, d)))
    .doc("Connects through an HTTP proxy, over TCP only."),
    used("http-proxy-option", "VERSION|AGENT|CUSTOM-HEADER ...", 2..=3, |raw, d| {
        proxies::option(&mut raw.proxies, d)
    })
    .in_connection(Own(|remote, _, d| proxies::option(&mut remote.proxies, d)))
    .doc("The HTTP version, the user agent, or an additional header of requests to the proxy."),
    used("http-proxy-user-pass", "FILE", 1..=1, |raw, d| {
        proxies::login(&mut raw.proxies, raw.base.as_deref(), d)
    })
    .or_block()
    .in_connection(Own(|remote, base, d| proxies::login(&mut remote.proxies, base, d)))
    .doc("The user name and the password for the HTTP proxy."),
    used("socks-proxy", "HOST [PORT] [FILE]", 1..=3, |raw, d| {
        proxies::socks(&mut raw.proxies, raw.base.as_deref(), d)
    })
    .roles(Roles::DIALS)
    .in_connection(Own(|remote, base, d| proxies::socks(&mut remote.proxies, base, d)))
    .doc("Connects through a SOCKS 5 proxy, over TCP or UDP."),
];

fn parse_remote(d: &Directive) -> Result<Remote, ConfigError> {
    let port = d.get(1).map(|_| d.port(1)).transpose()?;
    if port == Some(0) {
        return Err(d.error("port 0 cannot be reached", "write the server's port, mostly 1194"));
    }
    let proto = d.get(2).map(|_| parse_proto(d, 2)).transpose()?;
    let (host, location) = (Some(d.host(0)?), Some(d.location.clone()));
    Ok(Remote { host, port, proto, location, ..Remote::default() })
}

fn block_port(
    remote: &mut Remote,
    _: Option<&std::path::Path>,
    d: &Directive,
) -> Result<(), ConfigError> {
    let port = d.port(0)?;
    remote.port = remote.port.or(Some(port));
    Ok(())
}

fn answer_time(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.dial.connect_timeout = Duration::from_secs(d.number(0, 1..=86_400)?);
    Ok(())
}

fn block_answer_time(
    remote: &mut Remote,
    _: Option<&std::path::Path>,
    d: &Directive,
) -> Result<(), ConfigError> {
    remote.wait = Some(Duration::from_secs(d.number(0, 1..=86_400)?));
    Ok(())
}

fn connect_retry(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    // OpenVPN accepts 0; adit always waits a little.
    let first = Duration::from_secs(d.number::<u64>(0, 0..=86_400)?.max(1));
    let longest = match d.get(1) {
        Some(_) => Duration::from_secs(d.number(1, 1..=86_400)?),
        None => Duration::from_secs(300),
    };
    raw.dial.connect_retry = (first, longest.max(first));
    Ok(())
}

fn bind(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.ipv6_only = match d.get(0) {
        None => false,
        Some("ipv6only") => true,
        Some(other) => {
            return Err(d.error(format!("\"{other}\" is not known"), "write: bind ipv6only"));
        }
    };
    raw.bind = Some(true);
    Ok(())
}

fn bind_dev(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let name = d.arg(0);
    if name.is_empty() || name.len() > 15 || name.contains(['/', ' ']) {
        return Err(d.error(
            format!("\"{name}\" is not a device name"),
            "write the name of a device of this machine, as ip link lists them",
        ));
    }
    raw.options.socket.device = Some(name.to_owned());
    Ok(())
}

/// Parses a buffer size; `None` for 0, the system's default.
fn buffer(d: &Directive) -> Result<Option<u32>, ConfigError> {
    Ok(Some(d.number(0, 0..=i32::MAX.cast_unsigned())?).filter(|bytes| *bytes > 0))
}

fn multihome(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.options.socket.multihome = true;
    match d.get(0) {
        None => {}
        Some("same-interface") => {
            raw.warn(d, "has no effect with same-interface: routes choose the interface, as in openvpn 2.7 without it");
        }
        Some(other) => {
            return Err(d.error(
                format!("\"{other}\" is not known"),
                "write: multihome, or multihome same-interface",
            ));
        }
    }
    Ok(())
}

fn mtu_discovery(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.options.socket.mtu_discovery = Some(match d.arg(0) {
        "no" => MtuDiscovery::No,
        "maybe" => MtuDiscovery::Maybe,
        "yes" => MtuDiscovery::Yes,
        other => {
            return Err(d.error(format!("\"{other}\" is not known"), "write no, maybe or yes"));
        }
    });
    Ok(())
}

fn socket_flags(_: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    match d.args.iter().find(|flag| *flag != "TCP_NODELAY") {
        Some(other) => Err(d.error(
            format!("there is no flag \"{other}\""),
            "write TCP_NODELAY, or nothing: it is always set",
        )),
        // TCP_NODELAY is always set.
        None => Ok(()),
    }
}
