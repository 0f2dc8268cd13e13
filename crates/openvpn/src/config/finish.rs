//! Turns the parsed directives into [`Options`]: determines the role, expands helpers, fills in defaults and checks
//! combinations.

use std::time::Duration;

use adit_engine::command::Keepalive;

use super::directives::{self, DirectiveEffect};
use super::finish_management;
use super::finish_peer;
use super::finish_pkcs11;
use super::finish_server;
use super::options::{
    ClientOptions, DeviceKind, DialOptions, Identity, LogTo, Options, PeerKeys, Pkcs12, Role,
    Source, Tls, UserPass, Wrap,
};
use super::raw_config::RawConfig;
use super::{ConfigError, bridge, ciphers, proxies, transport};
use crate::negotiate::is_peer_info;
use crate::tls::ClientCertificates;

pub(super) fn finish(mut raw: RawConfig) -> Result<Options, ConfigError> {
    let peer = finish_peer::is_peer(&raw)?;
    let server = !peer && is_server(&raw)?;
    if !peer {
        transport::sides(&raw, server)?;
    }
    super::mtu::check(&raw)?;
    device(&mut raw)?;
    bridge::check(&mut raw)?;
    if peer {
        finish_peer::check_role(&raw)?;
    } else {
        check_role(&mut raw, server)?;
    }
    let keepalive = keepalive(&raw, server)?;
    let ciphers = ciphers::allowed(&mut raw)?;
    if !peer {
        ciphers::named_in_vain(&mut raw, &ciphers);
    }
    super::mtu::from_link_mtu(&mut raw)?;
    let fallback = ciphers::fallback(&mut raw, peer)?;
    let role = if server {
        Role::Server(Box::new(finish_server::server_options(&mut raw)?))
    } else if peer {
        Role::Peer(Box::new(finish_peer::peer_options(&mut raw)?))
    } else {
        Role::Client(Box::new(client_options(&mut raw)?))
    };
    let socket = transport::socket(&raw, &role)?;
    proxies::check_share(&raw, &role, &socket)?;
    let tls_server = server || raw.tls_server;
    raw.options.tls = match &role {
        Role::Peer(peer) if matches!(peer.keys, PeerKeys::Static { .. }) => Tls::default(),
        _ => tls(&mut raw, server || (peer && tls_server))?,
    };
    raw.options.wrap = wrap(&mut raw, tls_server)?;
    raw.options.management = finish_management::management(&mut raw)?;
    let occ_cipher = ciphers::named(&raw);
    let mut role = role;
    if raw.options.hooks.dns_updown.is_some() && raw.options.process.chroot.is_some() {
        return Err(raw.error(
            "dns-updown",
            "the command would run outside of the directory of chroot, which is not supported",
            "write dns-updown force, or remove chroot",
        ));
    }
    enter_root(&mut raw, &mut role);
    let mut options = raw.options;
    let session = &mut options.session;
    let after = session.renegotiation.after;
    let earliest = if tls_server { after.mul_f64(0.9) } else { after };
    session.renegotiation.earliest = raw.reneg_earliest.unwrap_or(earliest);
    let environment = options.environment.iter();
    session.peer_info = environment.filter(|(name, _)| is_peer_info(name)).cloned().collect();
    session.tun_mtu_max = session.tun_mtu_max.max(session.tun_mtu);
    session.float |= server;
    session.ethernet = options.device.kind == DeviceKind::Tap;
    session.ciphers = ciphers;
    session.cipher_fallback = fallback;
    session.occ_cipher = occ_cipher;
    session.keepalive = keepalive;
    if let (Some(status), Some(version)) = (&mut options.status, raw.status_version) {
        status.version = version;
    }
    if let (LogTo::Standard, Some(name)) = (&options.log.to, raw.syslog) {
        options.log.to = LogTo::Syslog(name);
    }
    Ok(Options { role, socket, ..options })
}

/// Moves the paths of files that openvpn opens after `chroot` into its directory.
fn enter_root(raw: &mut RawConfig, role: &mut Role) {
    let Some(root) = raw.options.process.chroot.clone() else { return };
    // After chroot, the working directory is the root directory.
    let inside = |name: &str| {
        let path = raw.paths_in_root.get(name)?;
        Some(root.join(path.strip_prefix('/').unwrap_or(path)))
    };
    let (files, list) = (inside("client-config-dir"), inside("crl-verify"));
    if let (Role::Server(server), Some(files)) = (role, files) {
        server.client_config_dir = server.client_config_dir.as_ref().map(|_| files);
    }
    let tls = &mut raw.options.tls;
    match (&mut tls.crl, &mut tls.crl_directory, list) {
        (Some(Source::File(path)), _, Some(list)) | (None, Some(path), Some(list)) => *path = list,
        _ => {}
    }
}

fn is_server(raw: &RawConfig) -> Result<bool, ConfigError> {
    let helper = raw.server4.is_some() || raw.server6.is_some() || raw.bridge.is_some();
    let server = helper || raw.mode_server;
    let client = raw.tls_client || raw.client.pull;
    if server && client {
        let which =
            ["client", "tls-client", "pull"].iter().find(|name| raw.seen.contains_key(**name));
        return Err(raw.error(
            which.copied().unwrap_or("client"),
            "a server cannot be a client too",
            "keep either client and remote, or server",
        ));
    }
    if server && !helper && !raw.tls_server {
        return Err(raw.error(
            "mode",
            "mode server needs tls-server",
            "add tls-server, or use server NETWORK NETMASK",
        ));
    }
    if !server && !raw.tls_client {
        return Err(raw.error(
            "",
            "this is neither a client nor a server",
            "add client and remote HOST, or server NETWORK NETMASK; or, for a tunnel between two points, \
             secret FILE or tls-client or tls-server, with ifconfig LOCAL REMOTE",
        ));
    }
    Ok(server)
}

/// Refuses directives of the other role, or warns about them if openvpn tolerates them.
fn check_role(raw: &mut RawConfig, server: bool) -> Result<(), ConfigError> {
    let (other, this) = if server { ("clients", "server") } else { ("servers", "client") };
    let tap = raw.is_ethernet();
    if raw.server.compress_migrate && !server {
        raw.options.warnings.push(
            "compress migrate has no effect on a client: the server says what frames its packets"
                .into(),
        );
    }
    for spec in directives::all() {
        let Some(location) = raw.seen.get(spec.name) else { continue };
        match if server { spec.roles.server } else { spec.roles.client } {
            DirectiveEffect::Refused => {
                let remedy = match spec.name {
                    "redirect-gateway" => {
                        "write push \"redirect-gateway def1\", which sends it to them".to_owned()
                    }
                    _ => format!("remove it: this is a {this}'s configuration"),
                };
                return Err(location.error(spec.name, format!("it is for {other}"), remedy));
            }
            DirectiveEffect::IgnoredWithTun if tap => {}
            DirectiveEffect::Ignored | DirectiveEffect::IgnoredWithTun => {
                raw.options.warnings.push(format!(
                    "{}:{}: {} has no effect on a {this}",
                    location.file, location.line, spec.name
                ));
            }
            DirectiveEffect::Used => {}
        }
    }
    Ok(())
}

fn device(raw: &mut RawConfig) -> Result<(), ConfigError> {
    let Some(name) = raw.device.clone() else {
        return Err(raw.error("", "no device is named", "add: dev tun"));
    };
    let (kind, own) = match name.as_str() {
        "null" => (DeviceKind::Null, None),
        "tun" => (DeviceKind::Tun, None),
        "tap" => (DeviceKind::Tap, None),
        // As in openvpn, a name that begins with a type's name has that type.
        _ if name.starts_with("tun") => (DeviceKind::Tun, Some(name.clone())),
        _ if name.starts_with("tap") => (DeviceKind::Tap, Some(name.clone())),
        _ if raw.device_type.is_some() => (DeviceKind::Tun, Some(name.clone())),
        _ => {
            return Err(raw.error(
                "dev",
                format!("the name {name} does not say what kind of device it is"),
                "add: dev-type tun, or dev-type tap",
            ));
        }
    };
    raw.options.device.kind = if name == "null" { kind } else { raw.device_type.unwrap_or(kind) };
    raw.options.device.name = own;
    Ok(())
}

fn keepalive(raw: &RawConfig, server: bool) -> Result<Keepalive, ConfigError> {
    if let Some((interval, timeout)) = raw.keepalive {
        for name in ["ping", "ping-restart", "ping-exit"] {
            if raw.seen.contains_key(name) {
                return Err(raw.error(name, "keepalive sets it already", "remove one of the two"));
            }
        }
        // The server waits twice as long, so that the client notices a lost connection first and reconnects.
        let timeout = if server { timeout.saturating_mul(2) } else { timeout };
        return Ok(Keepalive { interval, timeout });
    }
    let until_pulled = if raw.client.pull { Duration::from_secs(120) } else { Duration::ZERO };
    Ok(Keepalive {
        interval: raw.options.session.keepalive.interval,
        timeout: raw.ping_timeout.unwrap_or(until_pulled),
    })
}

/// Returns the wrapping. `tls_server` is true if this end is the TLS server.
fn wrap(raw: &mut RawConfig, tls_server: bool) -> Result<Wrap, ConfigError> {
    let shared = match std::mem::replace(&mut raw.options.wrap, Wrap::None) {
        Wrap::TlsAuth { key, .. } => Wrap::TlsAuth { key, direction: raw.key_direction },
        other => other,
    };
    let max_age = raw.max_key_age.take();
    if max_age.is_some() && (raw.crypt_v2.is_none() || !tls_server) {
        let why = if tls_server {
            "there is no tls-crypt-v2"
        } else {
            "the server judges the age of clients' keys"
        };
        raw.options.warnings.push(format!("tls-crypt-v2-max-age has no effect: {why}"));
    }
    let Some((key, location)) = raw.crypt_v2.take() else { return Ok(shared) };
    let shared = match shared {
        Wrap::None => None,
        shared if tls_server => Some(Box::new(shared)),
        _ => {
            return Err(location.error(
                "tls-crypt-v2",
                "there already is another of tls-auth and tls-crypt, and a client uses one",
                "keep the one that the server has",
            ));
        }
    };
    Ok(Wrap::TlsCryptV2 { key, max_age, shared })
}

fn client_options(raw: &mut RawConfig) -> Result<ClientOptions, ConfigError> {
    if raw.client.auth_nocache && raw.client.auth_user_pass == Some(UserPass::Prompt) {
        let warning =
            "auth-nocache: a password from the terminal stays in memory until the end, for reconnects"
                .into();
        raw.options.warnings.push(warning);
    }
    let (remotes, proxies) = transport::remotes(raw)?;
    Ok(ClientOptions {
        dial: DialOptions { remotes, proxies, ..std::mem::take(&mut raw.dial) },
        ifconfig4: bridge::own_address(raw)?,
        ifconfig6: raw.ifconfig6.as_ref().map(|(net, _)| *net).filter(|_| raw.is_ethernet()),
        ..std::mem::take(&mut raw.client)
    })
}

fn tls(raw: &mut RawConfig, server: bool) -> Result<Tls, ConfigError> {
    let mut tls = std::mem::take(&mut raw.options.tls);
    tls.pkcs11 = finish_pkcs11::pkcs11(raw, &tls, server)?;
    if let Some(file) = raw.pkcs12.take() {
        tls.pkcs12 = Some(Pkcs12 { file, extra: raw.extra.take() });
        for name in ["cert", "key"] {
            if raw.seen.contains_key(name) {
                return Err(raw.error(
                    name,
                    "the file in pkcs12 contains it",
                    "remove one of the two",
                ));
            }
        }
    }
    let authority = tls.ca.is_some() || tls.ca_path.is_some() || tls.pkcs12.is_some();
    let anonymous = server && tls.client_certificates == ClientCertificates::None;
    if !authority && tls.peer_fingerprints.is_empty() && !anonymous {
        return Err(raw.error(
            "",
            "no certificate authority is named",
            "add: ca FILE, or a <ca> block; or peer-fingerprint for peers without an authority",
        ));
    }
    if tls.issuer.is_some() && !tls.peer_fingerprints.is_empty() {
        return Err(raw.error(
            "verify-hash",
            "it cannot be used together with peer-fingerprint",
            "remove it: peer-fingerprint says exactly who may in",
        ));
    }
    if !authority && tls.crl.is_some() {
        return Err(raw.error(
            "crl-verify",
            "a list of revoked certificates is of no use without the authority that signed it",
            "add ca, or remove it: who is not in peer-fingerprint is not let in",
        ));
    }
    tls.external_key = finish_management::external_key(raw)?;
    let identity = match (raw.cert.take(), raw.key.take()) {
        (None, None) if tls.external_key.is_some() => None,
        (Some(cert), Some(key)) => Some(Identity { cert, extra: raw.extra.take(), key }),
        (Some(_), None) => {
            return Err(raw.error(
                "cert",
                "its key is not named",
                "add: key FILE, or a <key> block",
            ));
        }
        (None, Some(_)) => {
            return Err(raw.error(
                "key",
                "its certificate is not named",
                "add: cert FILE, or a <cert> block",
            ));
        }
        (None, None) if tls.pkcs12.is_some() || tls.pkcs11.is_some() => None,
        (None, None) if server => {
            return Err(raw.error(
                "",
                "the server's certificate is not named",
                "add: cert FILE and key FILE",
            ));
        }
        (None, None) if !raw.seen.contains_key("auth-user-pass") => {
            return Err(raw.error(
                "",
                "there is nothing to prove to the server who this is",
                "add cert and key, or auth-user-pass",
            ));
        }
        (None, None) => None,
    };
    if tls.max_version.is_some_and(|max| max < tls.min_version) {
        return Err(raw.error(
            "tls-version-max",
            "it is below tls-version-min",
            "remove one of the two",
        ));
    }
    let unproved =
        tls.peer_usage.is_none() && tls.netscape_usage.is_none() && tls.verify_name.is_none();
    if !server && unproved && tls.peer_fingerprints.is_empty() {
        raw.options.warnings.push(
            "WARNING: No server certificate verification method has been enabled.  Any client of the \
             same authority could pose as the server: add remote-cert-tls server"
                .into(),
        );
    }
    // A client ignores the file, which need not exist.
    tls.dh = tls.dh.filter(|_| server);
    Ok(Tls { identity, ..tls })
}
