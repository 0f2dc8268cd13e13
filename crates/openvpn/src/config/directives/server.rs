//! Directives for a server's networks, pools, pushed options and clients.

use std::time::Duration;

use ipnet::Ipv4Net;

use super::Field::Path;
use super::{Roles, Spec, client_file, flag, one, source, used};
use crate::config::options::{PoolPersist, PortShare, TokenOptions};
use crate::config::raw_config::{Pool, RawConfig};
use crate::config::reader::Directive;
use crate::config::{ConfigError, bridge};
use crate::server::Topology;
use crate::session::Frequency;

pub(super) const TABLE: &[Spec] = &[
    used("server", "NETWORK NETMASK [nopool]", 2..=3, server)
        .roles(Roles::SERVER)
        .doc("A server that assigns IPv4 addresses from this network."),
    used("server-ipv6", "NETWORK/BITS", 1..=1, server_ipv6)
        .roles(Roles::SERVER)
        .doc("A server that assigns IPv6 addresses from this network."),
    used("server-bridge", bridge::USAGE, 0..=4, |raw, d| {
        raw.bridge = Some((bridge::bridge(d)?, d.location.clone()));
        Ok(())
    })
    .roles(Roles::SERVER)
    .doc(
        "A server whose TAP device joins a bridge, and whose clients get addresses from its network.",
    ),
    used("ifconfig-pool", "FIRST LAST [NETMASK]", 2..=3, ifconfig_pool)
        .roles(Roles::SERVER)
        .doc("The IPv4 addresses for clients."),
    used("ifconfig-pool-persist", "FILE [SECONDS]", 1..=2, |raw, d| {
        let every = if d.args.len() > 1 { d.seconds(1)? } else { Duration::from_secs(600) };
        let path = d.path(0, raw.base.as_deref());
        raw.server.pool_persist = Some(PoolPersist { path, every });
        Ok(())
    })
    .roles(Roles::SERVER)
    .doc("A file that remembers clients' addresses, and how often it is written (600)."),
    used("ifconfig-pool-linear", "", 0..=0, |raw, d| {
        raw.topology.get_or_insert(Topology::P2p);
        raw.warn(d, "is deprecated: it means topology p2p");
        Ok(())
    })
    .doc("Deprecated: topology p2p."),
    used("ifconfig-ipv6-pool", "FIRST/BITS", 1..=1, |raw, d| {
        raw.pool6 = Some((d.net6(0)?, d.location.clone()));
        Ok(())
    })
    .roles(Roles::SERVER)
    .doc("The IPv6 addresses for clients."),
    used("ifconfig-push-constraint", "NETWORK NETMASK", 2..=2, |raw, d| {
        raw.server.client_rules.constraint = Some(d.net4(0, 1)?.trunc());
        Ok(())
    })
    .roles(Roles::SERVER)
    .doc("The network that must contain the addresses of ifconfig-push."),
    used("push", "\"OPTION\"", 1..=1, push)
        .roles(Roles::SERVER_LAX)
        .in_client_file(client_file::push)
        .doc("An option for clients."),
    used("max-clients", "NUMBER", 1..=1, |raw, d| {
        raw.server.max_clients = d.number(0, 1..=0xff_fffe)?;
        Ok(())
    })
    .roles(Roles::SERVER_LAX)
    .doc("The maximum number of simultaneous clients (1024)."),
    flag("auth-user-pass-optional", |raw| &mut raw.server.username_optional)
        .roles(Roles::SERVER)
        .doc("Leaves it to the checks of passwords whether a client must send a user name."),
    flag("username-as-common-name", |raw| &mut raw.server.username_as_common_name)
        .roles(Roles::SERVER)
        .doc("An authenticated client's user name is its name instead of the certificate's."),
    used("auth-gen-token", "[LIFETIME [RENEWAL]] [external-auth]", 0..=3, auth_gen_token)
        .roles(Roles::SERVER)
        .doc(
            "Clients that have sent a password get a token, which replaces it in renegotiations and \
             reconnects.",
        ),
    source("auth-gen-token-secret", |raw| &mut raw.server.token_secret)
        .roles(Roles::SERVER)
        .doc("The key of auth-gen-token, so that tokens stay valid when the server restarts."),
    flag("opt-verify", |raw| &mut raw.server.verify_options)
        .roles(Roles::SERVER)
        .doc("Deprecated: refuses clients whose device type, MTU or compression differs."),
    used("connect-freq", "NUMBER SECONDS", 2..=2, |raw, d| {
        raw.options.session.connect_freq = Some(frequency(d)?);
        Ok(())
    })
    .roles(Roles::SERVER_LAX)
    .doc("The maximum number of handshakes that may start in this time."),
    used("connect-freq-initial", "NUMBER SECONDS", 2..=2, |raw, d| {
        raw.options.session.connect_freq_initial = Some(frequency(d)?);
        Ok(())
    })
    .roles(Roles::SERVER_LAX)
    .doc("The maximum number of first packets from one network (/32 or /64) that are answered in this time (500 10)."),
    flag("force-tls-key-material-export", |raw| &mut raw.options.session.force_exporter)
        .roles(Roles::SERVER)
        .doc("Refuses clients that cannot derive data keys with the TLS exporter (openvpn before 2.6)."),
    flag("duplicate-cn", |raw| &mut raw.server.duplicate_cn)
        .roles(Roles::SERVER)
        .doc("Clients with the same name do not replace each other."),
    flag("client-to-client", |raw| &mut raw.server.client_to_client)
        .roles(Roles::SERVER)
        .doc("Forwards packets between clients without the device."),
    one("client-config-dir", "DIRECTORY", Path(|raw| &mut raw.server.client_config_dir))
        .roles(Roles::SERVER)
        .doc("A directory with a file for each client that has its own settings."),
    flag("ccd-exclusive", |raw| &mut raw.server.ccd_exclusive)
        .roles(Roles::SERVER)
        .doc("Refuses clients that have no file in client-config-dir."),
    one("filter", "FILE", Path(|raw| &mut raw.server.filter))
        .roles(Roles::SERVER)
        .doc("Rules for the packets in the tunnel. Only adit has it."),
    used("max-routes-per-client", "NUMBER", 1..=1, |raw, d| {
        raw.server.client_rules.max_routes = d.number(0, 1..=65_536)?;
        Ok(())
    })
    .roles(Roles::SERVER_LAX)
    .in_client_file(client_file::max_routes)
    .doc("The maximum number of networks behind one client (256)."),
    used("stale-routes-check", "AGE [INTERVAL]", 1..=2, stale_routes_check)
        .doc("The time for which a silent station behind a TAP device is remembered."),
    flag("vlan-tagging", |raw| &mut raw.vlan_tagging)
        .roles(Roles::SERVER)
        .doc("Sorts the frames of clients and of a TAP device into VLANs."),
    used("vlan-accept", "all|tagged|untagged", 1..=1, |raw, d| {
        raw.vlan_accept = Some(bridge::vlan_accept(d)?);
        Ok(())
    })
    .roles(Roles::SERVER)
    .doc("With vlan-tagging, the frames that the device may carry (all)."),
    used("vlan-pvid", "VLAN", 1..=1, |raw, d| {
        raw.vlan_pvid = Some(bridge::vlan(d)?);
        Ok(())
    })
    .roles(Roles::SERVER)
    .in_client_file(client_file::vlan_pvid)
    .doc("With vlan-tagging, the VLAN of the device's untagged frames and of clients (1); in a client's file, its VLAN."),
    used("port-share", "HOST PORT", 2..=3, port_share)
        .roles(Roles::SERVER)
        .doc("Forwards TCP connections of other protocols to another service."),
];

fn auth_gen_token(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let external = d.args.last().is_some_and(|last| last == "external-auth");
    let times = d.args.len().saturating_sub(usize::from(external));
    if times > 2 {
        let remedy = "write: auth-gen-token [LIFETIME [RENEWAL]] [external-auth]";
        return Err(d.error(format!("\"{}\" is not known", d.arg(2)), remedy));
    }
    let time = |index| -> Result<Option<Duration>, ConfigError> {
        let time = if index < times { d.seconds(index)? } else { Duration::ZERO };
        Ok(Some(time).filter(|time| !time.is_zero()))
    };
    let (lifetime, renewal) = (time(0)?, time(1)?);
    raw.server.tokens = Some(TokenOptions { lifetime, renewal, external });
    Ok(())
}

fn server(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let net = d.net4(0, 1)?;
    if net.addr() != net.network() {
        return Err(d.error(
            format!("{} is not the network's first address", net.addr()),
            format!("write: server {} {}", net.network(), net.netmask()),
        ));
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
            return Err(
                d.error(format!("\"{other}\" is not known"), "write: server NETWORK NETMASK")
            );
        }
    };
    raw.server4 = Some((net, d.location.clone()));
    Ok(())
}

fn server_ipv6(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let net = d.net6(0)?.trunc();
    if !(64..=124).contains(&net.prefix_len()) {
        return Err(d.error(
            format!("a network of /{} is not possible", net.prefix_len()),
            "write one of /64 to /124",
        ));
    }
    raw.server6 = Some((net, d.location.clone()));
    Ok(())
}

fn ifconfig_pool(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let (first, last) = (d.ipv4(0)?, d.ipv4(1)?);
    if first > last {
        return Err(d.error(format!("{first} is behind {last}"), "write the lower address first"));
    }
    let netmask = match d.get(2) {
        Some(_) => Some(Ipv4Net::netmask(&d.net4(0, 2)?)),
        None => None,
    };
    raw.pool4 = Some(Pool { first, last, netmask });
    Ok(())
}

fn push(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    if d.arg(0).contains(',') {
        return Err(d.error(
            "there is a comma in the option",
            "commas separate options on the wire; write one push line for each",
        ));
    }
    raw.server.push.push(d.arg(0).to_owned());
    Ok(())
}

fn frequency(d: &Directive) -> Result<Frequency, ConfigError> {
    let period = d.seconds(1)?;
    if period.is_zero() {
        return Err(d.error("the time is 0", "write: connect-freq 10 1"));
    }
    Ok(Frequency { count: d.number(0, 1..=1_000_000)?, period })
}

fn stale_routes_check(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let age = d.seconds(0)?;
    if age.is_zero() {
        return Err(d.error("an age of 0 forgets everything", "write 300, or remove it"));
    }
    if d.args.len() > 1 {
        d.seconds(1)?;
    }
    raw.server.station_age = Some(age);
    Ok(())
}

fn port_share(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    if d.get(2).is_some() {
        return Err(d.error(
            "a directory with the addresses of foreign clients is not supported",
            "write the host and the port only",
        ));
    }
    raw.server.port_share = Some(PortShare { host: d.host(0)?, port: d.reachable_port(1)? });
    Ok(())
}
