//! Point-to-point tunnels, for configurations that contain neither a server's network nor `client`.

use adit_crypto::{BlockCipher, Digest};

use super::ConfigError;
use super::directives::{self, DirectiveEffect};
use super::options::{DialOptions, PeerKeys, PeerOptions};
use super::raw_config::RawConfig;
use super::transport;
use crate::data_format::BlockSuite;
use crate::p2p::{Ifconfig4, TunnelAddrs};
use crate::server::Topology;

/// Returns whether this is the configuration of a point-to-point tunnel.
pub(super) fn is_peer(raw: &RawConfig) -> Result<bool, ConfigError> {
    let helper = raw.server4.is_some() || raw.server6.is_some() || raw.bridge.is_some();
    let server = helper || raw.mode_server;
    if raw.secret.is_some() {
        if let Some(other) = ["client", "pull", "server", "server-ipv6", "server-bridge", "mode"]
            .iter()
            .find(|name| raw.seen.contains_key(**name) && (**name != "mode" || server))
        {
            return Err(raw.error(
                other,
                "a static key joins two ends: there is no server that gives options to clients",
                "remove it and write ifconfig LOCAL REMOTE at both ends; or remove secret and use TLS",
            ));
        }
        if let Some(other) =
            ["tls-client", "tls-server"].iter().find(|name| raw.seen.contains_key(**name))
        {
            return Err(raw.error(
                other,
                "TLS makes its own keys, and secret is a key without TLS",
                "remove one of the two",
            ));
        }
        return Ok(true);
    }
    if server || raw.client.pull {
        return Ok(false);
    }
    if raw.tls_client && raw.tls_server {
        return Err(raw.error(
            "tls-server",
            "one end is tls-client and the other tls-server",
            "keep one of the two",
        ));
    }
    Ok(raw.tls_client || raw.tls_server)
}

/// Refuses directives that a point-to-point tunnel does not support.
pub(super) fn check_role(raw: &RawConfig) -> Result<(), ConfigError> {
    for spec in directives::all().filter(|spec| raw.seen.contains_key(spec.name)) {
        if spec.roles.p2p == DirectiveEffect::Refused {
            return Err(raw.error(
                spec.name,
                "it is for servers and their clients, and this is a tunnel between two points",
                "remove it; or write client at one end and server NETWORK NETMASK at the other",
            ));
        }
        if spec.roles.tls && raw.secret.is_some() {
            return Err(raw.error(
                spec.name,
                "it belongs to TLS, and secret is a key without TLS",
                "remove it; or remove secret and write tls-client at one end and tls-server at the other",
            ));
        }
    }
    if raw.options.tls.crl_directory.is_some() {
        return Err(raw.error(
            "crl-verify",
            "a directory of serial numbers is for servers and their clients",
            "write: crl-verify FILE with a list made by your authority (easyrsa gen-crl)",
        ));
    }
    if raw.bind == Some(false) && raw.remotes.is_empty() && raw.connections.is_empty() {
        return Err(raw.error(
            "nobind",
            "without remote this end waits for the other, which has to know its port",
            "remove it, or add: remote HOST PORT",
        ));
    }
    Ok(())
}

pub(super) fn peer_options(raw: &mut RawConfig) -> Result<PeerOptions, ConfigError> {
    let keys = match raw.secret.take() {
        Some(key) => PeerKeys::Static { key, direction: raw.key_direction, suite: suite(raw)? },
        None if raw.tls_server => PeerKeys::TlsServer,
        None => PeerKeys::TlsClient,
    };
    let tunnel_addrs = tunnel_addrs(raw)?;
    let listens = transport::listening_end(raw)?;
    let unknown = raw.remotes.is_empty() && raw.connections.is_empty();
    if raw.options.session.limits.exit_on_tls_failure && (unknown || listens == Some(true)) {
        raw.options.warnings.push(
            "tls-exit has no effect at an end that waits for the other: any stranger could end it"
                .into(),
        );
    }
    let (accepts, (remotes, proxies)) = match listens {
        Some(true) => (Some(accepts(raw)?), Default::default()),
        Some(false) if unknown => {
            return Err(raw.error(
                "proto",
                "an end that is tcp-client dials, and has no remote to dial",
                "add: remote HOST PORT; or write tcp-server here and tcp-client at the other end",
            ));
        }
        _ if unknown => (None, Default::default()),
        _ => (None, transport::remotes(raw)?),
    };
    if let (true, Some(name)) = (
        remotes.is_empty(),
        ["http-proxy", "socks-proxy"].iter().find(|name| raw.seen.contains_key(**name)),
    ) {
        return Err(raw.error(
            name,
            "an end that waits for the other goes through no proxy",
            "remove it, or add remote HOST PORT, over TCP with proto tcp-client",
        ));
    }
    let connect_timeout = raw.options.session.hand_window;
    let dial = DialOptions { remotes, proxies, connect_timeout, ..std::mem::take(&mut raw.dial) };
    Ok(PeerOptions { keys, dial, accepts, tunnel_addrs, force_cookie: raw.force_cookie })
}

/// Returns the addresses that may connect to an end that listens.
fn accepts(raw: &mut RawConfig) -> Result<Vec<std::net::IpAddr>, ConfigError> {
    if raw.bind == Some(false) {
        return Err(raw.error(
            "nobind",
            "an end that is tcp-server has to be found at its port",
            "remove it, or write tcp-client here and tcp-server at the other end",
        ));
    }
    if raw.options.session.exit_notify.is_some() {
        raw.options.warnings.push(transport::notice_enough(raw));
    }
    transport::allowed(raw)
}

/// Returns `cipher` and `auth` of a static key.
fn suite(raw: &mut RawConfig) -> Result<BlockSuite, ConfigError> {
    const REMEDY: &str = "write: cipher AES-256-CBC, at both ends";
    raw.options.warnings.push(
        "secret: a static key has no forward secrecy: anyone who gets it reads all that was ever sent; \
         OpenVPN 2.8 will not know it any more. Prefer TLS with peer-fingerprint"
            .into(),
    );
    let named = raw.fallback.as_ref().or(raw.cipher.as_ref());
    let cipher = match named {
        None => {
            return Err(raw.error(
                "secret",
                "no cipher is named, and openvpn's default BF-CBC is broken",
                REMEDY,
            ));
        }
        Some((name, location)) if name.eq_ignore_ascii_case("none") => {
            let warning = format!(
                "{}:{}: cipher none: everybody on the way reads what is sent",
                location.file, location.line
            );
            raw.options.warnings.push(warning);
            None
        }
        Some((name, location)) => match BlockCipher::from_name(name) {
            Some(cipher) => Some(cipher),
            None => {
                return Err(location.error(
                    "cipher",
                    format!("{name} cannot be used with a static key"),
                    REMEDY,
                ));
            }
        },
    };
    let digest = match raw.options.session.auth.as_str() {
        none if none.eq_ignore_ascii_case("none") => {
            return Err(raw.error(
                "auth",
                "without it everybody on the way can alter what is sent, and pass for the peer",
                "write: auth SHA256, at both ends",
            ));
        }
        name => match Digest::from_name(name) {
            Some(digest) => Some(digest),
            None => {
                let problem = format!("the digest {name} is not supported");
                return Err(raw.error("auth", problem, "write: auth SHA256, at both ends"));
            }
        },
    };
    Ok(BlockSuite { cipher, digest })
}

/// Returns whether `ifconfig` contains a network instead of the other end's address. With Ethernet
/// it always does.
fn is_net(raw: &RawConfig) -> bool {
    raw.is_ethernet() || raw.topology == Some(Topology::Subnet)
}

/// Returns the addresses inside the tunnel.
fn tunnel_addrs(raw: &RawConfig) -> Result<TunnelAddrs, ConfigError> {
    let ipv4 = match &raw.ifconfig_pair {
        None => None,
        Some((local, far, location)) if is_net(raw) => {
            let net = ipnet::Ipv4Net::with_netmask(*local, *far).map_err(|_| {
                let (because, or) = if raw.is_ethernet() {
                    ("dev tap", "")
                } else {
                    ("topology subnet", ", or remove topology subnet")
                };
                location.error(
                    "ifconfig",
                    format!("with {because} {far} should be a netmask"),
                    format!("write: ifconfig ADDRESS NETMASK{or}"),
                )
            })?;
            Some(Ifconfig4::Net(net))
        }
        Some((local, far, location)) => {
            if far.octets().first() == Some(&255) {
                return Err(location.error(
                    "ifconfig",
                    format!("{far} looks like a netmask, where the other end's address belongs"),
                    "write: ifconfig LOCAL REMOTE, or add topology subnet",
                ));
            }
            if local == far {
                return Err(location.error(
                    "ifconfig",
                    "both ends have the same address",
                    "write: ifconfig LOCAL REMOTE",
                ));
            }
            Some(Ifconfig4::Pair(*local, *far))
        }
    };
    let ipv6 = raw.ifconfig6.as_ref().map(|(net, _)| (*net, raw.options.routes.gateway6));
    Ok(TunnelAddrs { ipv4, ipv6 })
}
