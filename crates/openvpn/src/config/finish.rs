//! From what the directives say to [`Options`]: roles, helpers, defaults and what must fit together.

use std::time::Duration;

use adit_engine::command::Keepalive;

use super::draft::Draft;
use super::finish_peer;
use super::finish_server;
use super::options::{
    ClientOptions, DeviceKind, Identity, LogTo, Options, PeerKeys, Role, Status, Tls, Wrap,
};
use super::{ConfigError, bridge, ciphers, proxies, transport};
use crate::session::Renegotiation;
use crate::tls::CertProfile;

/// Directives of the other role. Stock refuses the first list and lets the second be, and so do we,
/// with a word.
struct Foreign {
    refused: &'static [&'static str],
    idle: &'static [&'static str],
}

const ON_CLIENTS: Foreign = Foreign {
    refused: &[
        "ifconfig-pool",
        "ifconfig-ipv6-pool",
        "ifconfig-pool-persist",
        "client-to-client",
        "duplicate-cn",
        "client-config-dir",
        "ccd-exclusive",
        "filter",
        "ifconfig-push-constraint",
        "verify-client-cert",
        "tls-server",
        "port-share",
    ],
    idle: &["push", "max-clients", "max-routes-per-client", "ifconfig", "ifconfig-ipv6"],
};
const ON_SERVERS: Foreign = Foreign {
    refused: &[
        "remote",
        "nobind",
        "auth-user-pass",
        "redirect-gateway",
        "http-proxy",
        "socks-proxy",
    ],
    idle: &[
        "remote-random",
        "pull-filter",
        "route-nopull",
        "auth-retry",
        "connect-retry",
        "connect-retry-max",
        "connect-timeout",
        "server-poll-timeout",
        "push-peer-info",
        "tls-exit",
    ],
};

pub(super) fn finish(mut draft: Draft) -> Result<Options, ConfigError> {
    let peer = finish_peer::is_peer(&draft)?;
    let server = !peer && is_server(&draft)?;
    if !peer {
        transport::sides(&draft, server)?;
    }
    super::sizes::check(&draft)?;
    device(&mut draft)?;
    bridge::check(&mut draft)?;
    match peer {
        true => finish_peer::foreign(&draft)?,
        false => foreign(&mut draft, server)?,
    }
    let keepalive = keepalive(&draft, server)?;
    let ciphers = ciphers::allowed(&mut draft)?;
    if !peer {
        ciphers::named_in_vain(&mut draft, &ciphers);
    }
    super::sizes::from_link_mtu(&mut draft)?;
    let fallback = ciphers::fallback(&mut draft, peer)?;
    let role = if server {
        Role::Server(Box::new(finish_server::server_options(&mut draft)?))
    } else if peer {
        Role::Peer(Box::new(finish_peer::peer_options(&mut draft)?))
    } else {
        Role::Client(Box::new(client_options(&mut draft)?))
    };
    let socket = transport::socket(&draft, &role)?;
    proxies::check_share(&draft, &role, &socket)?;
    let tls = match &role {
        Role::Peer(peer) if matches!(peer.keys, PeerKeys::Static { .. }) => finish_peer::no_tls(),
        _ => {
            let server = server || (peer && draft.tls_server);
            tls(&mut draft, server)?
        }
    };
    let tls_server = server || draft.tls_server;
    let wrap = wrap(&mut draft, tls_server)?;
    Ok(Options {
        occ_cipher: ciphers::named(&draft),
        renegotiation: renegotiation(&draft, server || draft.tls_server),
        wrap,
        peer_info: draft
            .environment
            .iter()
            .filter(|(name, _)| name.starts_with("UV_"))
            .cloned()
            .collect(),
        status: draft.status.take().map(|(path, every)| Status {
            path,
            every,
            version: draft.status_version,
        }),
        log: {
            if let (LogTo::Standard, Some(name)) = (&draft.log.to, draft.syslog.take()) {
                draft.log.to = LogTo::Syslog(name);
            }
            draft.log
        },
        role,
        device: draft.device_rest,
        socket,
        tls,
        ciphers,
        cipher_fallback: fallback,
        auth: draft.auth.unwrap_or_else(|| "SHA1".into()),
        framing: draft.framing,
        decompress: !draft.never_decompress,
        tun_mtu: draft.tun_mtu,
        tun_mtu_max: draft.tun_mtu_max.max(draft.tun_mtu),
        occ_mtu: draft.occ_mtu,
        fragment: draft.fragment,
        mssfix: draft.mssfix,
        hand_window: draft.hand_window,
        tran_window: draft.tran_window,
        tls_timeout: draft.tls_timeout,
        replay_window: draft.replay_window,
        float: draft.float || server,
        keepalive,
        limits: draft.limits,
        exit_notify: draft.exit_notify,
        push_peer_info: draft.push_peer_info,
        environment: draft.environment,
        routes: draft.routes,
        process: draft.process,
        management: draft.management,
        warnings: draft.warnings,
        directives: draft.directives,
        echo: draft.echo,
    })
}

fn is_server(draft: &Draft) -> Result<bool, ConfigError> {
    let helper = draft.server4.is_some() || draft.server6.is_some() || draft.bridge.is_some();
    let server = helper || draft.mode_server;
    let client = draft.client || draft.tls_client || draft.pull;
    if server && client {
        let which =
            ["client", "tls-client", "pull"].iter().find(|name| draft.seen.contains_key(**name));
        return Err(draft.error(
            which.copied().unwrap_or("client"),
            "a server cannot be a client too",
            "keep either client and remote, or server",
        ));
    }
    if server && !helper && !draft.tls_server {
        return Err(draft.error(
            "mode",
            "mode server needs tls-server",
            "add tls-server, or use server NETWORK NETMASK",
        ));
    }
    if !server && !draft.tls_client {
        return Err(draft.error(
            "",
            "this is neither a client nor a server",
            "add client and remote HOST, or server NETWORK NETMASK; or, for a tunnel between two points, \
             secret FILE or tls-client or tls-server, with ifconfig LOCAL REMOTE",
        ));
    }
    Ok(server)
}

fn foreign(draft: &mut Draft, server: bool) -> Result<(), ConfigError> {
    let (lists, other, this) =
        if server { (ON_SERVERS, "clients", "server") } else { (ON_CLIENTS, "servers", "client") };
    if let Some(name) = lists.refused.iter().find(|name| draft.seen.contains_key(**name)) {
        let remedy = match *name {
            "redirect-gateway" => {
                "write push \"redirect-gateway def1\", which sends it to them".to_owned()
            }
            _ => format!("remove it: this is a {this}'s configuration"),
        };
        return Err(draft.error(name, format!("it is for {other}"), remedy));
    }
    // A TAP device may have its address from here.
    let tap = !server && draft.is_ethernet();
    let own = |name: &str| tap && name.starts_with("ifconfig");
    if draft.compress_migrate && !server {
        draft.warnings.push(
            "compress migrate has no effect on a client: the server says what frames its packets"
                .into(),
        );
    }
    for name in lists.idle.iter().filter(|name| !own(name)) {
        if let Some(place) = draft.seen.get(*name) {
            let warning =
                format!("{}:{}: {name} has no effect on a {this}", place.file, place.line);
            draft.warnings.push(warning);
        }
    }
    Ok(())
}

fn device(draft: &mut Draft) -> Result<(), ConfigError> {
    let Some(name) = draft.device.clone() else {
        return Err(draft.error("", "no device is named", "add: dev tun"));
    };
    let (kind, own) = match name.as_str() {
        "null" => (DeviceKind::Null, None),
        "tun" => (DeviceKind::Tun, None),
        "tap" => (DeviceKind::Tap, None),
        // As in stock, any name that begins like a type has that type.
        _ if name.starts_with("tun") => (DeviceKind::Tun, Some(name.clone())),
        _ if name.starts_with("tap") => (DeviceKind::Tap, Some(name.clone())),
        _ if draft.device_type.is_some() => (DeviceKind::Tun, Some(name.clone())),
        _ => {
            return Err(draft.error(
                "dev",
                format!("the name {name} does not say what kind of device it is"),
                "add: dev-type tun, or dev-type tap",
            ));
        }
    };
    draft.device_rest.kind = if name == "null" { kind } else { draft.device_type.unwrap_or(kind) };
    draft.device_rest.name = own;
    Ok(())
}

fn keepalive(draft: &Draft, server: bool) -> Result<Keepalive, ConfigError> {
    if let Some((interval, timeout)) = draft.keepalive {
        for name in ["ping", "ping-restart", "ping-exit"] {
            if draft.seen.contains_key(name) {
                return Err(draft.error(
                    name,
                    "keepalive sets it already",
                    "remove one of the two",
                ));
            }
        }
        // The server waits twice as long, so that it is the client that notices and reconnects.
        let timeout = if server { timeout.saturating_mul(2) } else { timeout };
        return Ok(Keepalive { interval, timeout });
    }
    let until_pulled = if draft.pull { Duration::from_secs(120) } else { Duration::ZERO };
    Ok(Keepalive {
        interval: draft.ping.unwrap_or_default(),
        timeout: draft.ping_timeout.unwrap_or(until_pulled),
    })
}

fn renegotiation(draft: &Draft, server: bool) -> Renegotiation {
    let (after, earliest) = draft.reneg_sec.unwrap_or((Duration::from_secs(3600), None));
    let default = if server { after.mul_f64(0.9) } else { after };
    Renegotiation {
        after,
        earliest: earliest.unwrap_or(default),
        bytes: draft.reneg_bytes,
        packets: draft.reneg_packets,
    }
}

/// `tls_server`: this end has the server's part in TLS.
fn wrap(draft: &mut Draft, tls_server: bool) -> Result<Wrap, ConfigError> {
    let shared = match std::mem::replace(&mut draft.wrap, Wrap::None) {
        Wrap::TlsAuth { key, .. } => Wrap::TlsAuth { key, direction: draft.key_direction },
        other => other,
    };
    let max_age = draft.max_key_age.take();
    if max_age.is_some() && (draft.crypt_v2.is_none() || !tls_server) {
        let why = match tls_server {
            true => "there is no tls-crypt-v2",
            false => "the server judges the age of clients' keys",
        };
        draft.warnings.push(format!("tls-crypt-v2-max-age has no effect: {why}"));
    }
    let Some((key, place)) = draft.crypt_v2.take() else { return Ok(shared) };
    let shared = match shared {
        Wrap::None => None,
        shared if tls_server => Some(Box::new(shared)),
        _ => {
            return Err(place.error(
                "tls-crypt-v2",
                "there already is another of tls-auth and tls-crypt, and a client uses one",
                "keep the one that the server has",
            ));
        }
    };
    Ok(Wrap::TlsCryptV2 { key, max_age, shared })
}

fn client_options(draft: &mut Draft) -> Result<ClientOptions, ConfigError> {
    if draft.auth_nocache && draft.auth_user_pass.is_some() {
        let warning =
            "auth-nocache: the password stays in memory until the end, for reconnects".into();
        draft.warnings.push(warning);
    }
    let (remotes, proxies) = transport::remotes(draft)?;
    Ok(ClientOptions {
        remotes,
        remote_random: draft.remote_random,
        connect_retry: draft.connect_retry,
        connect_retry_max: draft.connect_retry_max,
        server_poll_timeout: draft.server_poll_timeout,
        resolv_retry: draft.resolv_retry,
        pull: draft.pull,
        ifconfig4: bridge::own_address(draft)?,
        ifconfig6: draft.ifconfig6.as_ref().map(|(net, _)| *net).filter(|_| draft.is_ethernet()),
        pull_filters: std::mem::take(&mut draft.pull_filters),
        route_nopull: draft.route_nopull,
        auth_user_pass: draft.auth_user_pass.take(),
        auth_nocache: draft.auth_nocache,
        auth_retry: draft.auth_retry,
        proxies,
        random_hostname: draft.random_hostname,
    })
}

fn tls(draft: &mut Draft, server: bool) -> Result<Tls, ConfigError> {
    let ca = draft.ca.take();
    let peer_fingerprints = std::mem::take(&mut draft.fingerprints);
    let ca_path = draft.ca_path.take();
    let authority = ca.is_some() || ca_path.is_some();
    if !authority && peer_fingerprints.is_empty() {
        return Err(draft.error(
            "",
            "no certificate authority is named",
            "add: ca FILE, or a <ca> block; or peer-fingerprint for peers without an authority",
        ));
    }
    if draft.issuer.is_some() && !peer_fingerprints.is_empty() {
        return Err(draft.error(
            "verify-hash",
            "it cannot be used together with peer-fingerprint",
            "remove it: peer-fingerprint says exactly who may in",
        ));
    }
    if !authority && draft.crl.is_some() {
        return Err(draft.error(
            "crl-verify",
            "a list of revoked certificates is of no use without the authority that signed it",
            "add ca, or remove it: who is not in peer-fingerprint is not let in",
        ));
    }
    let identity = match (draft.cert.take(), draft.key.take()) {
        (Some(cert), Some(key)) => Some(Identity { cert, extra: draft.extra.take(), key }),
        (Some(_), None) => {
            return Err(draft.error(
                "cert",
                "its key is not named",
                "add: key FILE, or a <key> block",
            ));
        }
        (None, Some(_)) => {
            return Err(draft.error(
                "key",
                "its certificate is not named",
                "add: cert FILE, or a <cert> block",
            ));
        }
        (None, None) if server => {
            return Err(draft.error(
                "",
                "the server's certificate is not named",
                "add: cert FILE and key FILE",
            ));
        }
        (None, None) if !draft.seen.contains_key("auth-user-pass") => {
            return Err(draft.error(
                "",
                "there is nothing to prove to the server who this is",
                "add cert and key, or auth-user-pass",
            ));
        }
        (None, None) => None,
    };
    if draft.max_version.is_some_and(|max| max < draft.min_version) {
        return Err(draft.error(
            "tls-version-max",
            "it is below tls-version-min",
            "remove one of the two",
        ));
    }
    let unproved =
        draft.peer_usage.is_none() && draft.netscape_usage.is_none() && draft.verify_name.is_none();
    if !server && unproved && peer_fingerprints.is_empty() {
        draft.warnings.push(
            "WARNING: No server certificate verification method has been enabled.  Any client of the \
             same authority could pose as the server: add remote-cert-tls server"
                .into(),
        );
    }
    Ok(Tls {
        ca,
        ca_path,
        peer_fingerprints,
        identity,
        askpass: draft.askpass.take(),
        crl: draft.crl.take(),
        verify_name: draft.verify_name.take(),
        peer_usage: draft.peer_usage,
        key_usage: draft.key_usage.take(),
        netscape_usage: draft.netscape_usage,
        profile: draft.profile.unwrap_or(CertProfile::Legacy),
        // A client ignores the file, and need not have it.
        dh: draft.dh.take().filter(|_| server),
        issuer: draft.issuer.take(),
        require_client_cert: true,
        min_version: draft.min_version,
        max_version: draft.max_version,
        cipher_list: draft.cipher_list.take(),
        cipher_suites: draft.cipher_suites.take(),
        groups: draft.groups.take(),
    })
}
