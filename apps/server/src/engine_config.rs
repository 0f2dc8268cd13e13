//! Builds the engine's configuration from `server.toml` and the store.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use adit_crypto::Cipher;
use adit_engine::command::Keepalive;
use adit_openvpn::server::{ClientChecks, Network4, Network6, ReloadableConfig, ServerConfig};
use adit_openvpn::session::Settings as SessionSettings;
use adit_openvpn::tls::{
    ClientCertificates, CommonTlsOptions, Pem, RemoteCertTls, ServerTls, ServerTlsOptions,
    VerifyOptions,
};
use adit_openvpn::wrap::WrapConfig;
use adit_pki::{ClientState, Store};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::clients::server_key;
use super::settings::{Listen, Login, Reach, Settings};
use super::sites::{self, SiteRules};
use adit_openvpn_service::{Listener, Relay};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::helper::files;
use adit_runtime::host::{Device, HostPlan, PlannedRoute, Via};

/// The server drops a client that is silent for twice the client's own restart timeout, as OpenVPN's `keepalive
/// 10 60` does.
const PING: Duration = Duration::from_secs(10);
const PING_RESTART: Duration = Duration::from_secs(60);
const SERVER_FORGETS: Duration = Duration::from_secs(120);

/// The default MTU inside the tunnel. Outer packets that exceed the path MTU are fragmented.
const TUN_MTU: u16 = 1500;

/// Returns the network with the server's address and the pool.
pub(super) fn network4(network: Ipv4Net) -> Network4 {
    let server = network.hosts().next().unwrap_or(network.addr());
    let first = first_client4(network);
    // Do not use `last()`, which iterates over all addresses of a /8.
    let last = Ipv4Addr::from(u32::from(network.broadcast()).saturating_sub(1)).max(first);
    Network4::subnet(with_prefix4(server, network), first, last)
}

/// Returns the first address for clients.
pub(super) fn first_client4(network: Ipv4Net) -> Ipv4Addr {
    let mut hosts = network.hosts();
    let server = hosts.next().unwrap_or(network.addr());
    hosts.next().unwrap_or(server)
}

fn with_prefix4(address: Ipv4Addr, network: Ipv4Net) -> Ipv4Net {
    Ipv4Net::new(address, network.prefix_len()).unwrap_or(network)
}

pub(super) fn network6(network: Ipv6Net) -> Network6 {
    let at = |offset: u128| Ipv6Addr::from(u128::from(network.network()).saturating_add(offset));
    let server = Ipv6Net::new(at(1), network.prefix_len()).unwrap_or(network);
    // Like OpenVPN, leave room below the pool for manually assigned addresses.
    Network6 { server, first: at(0x1000) }
}

/// Returns the options pushed to every client, in addition to those that the engine generates.
pub(super) fn push(settings: &Settings) -> Vec<String> {
    // A client that disconnects sends an exit notice, and its address is free at once.
    let mut lines = vec!["explicit-exit-notify 1".to_owned()];
    lines.extend(settings.mtu.map(|mtu| format!("tun-mtu {mtu}")));
    match &settings.reach {
        Reach::Full if settings.network6.is_some() => {
            lines.push("redirect-gateway def1 ipv6".into());
        }
        Reach::Full => {
            // Otherwise the client's own IPv6 would bypass the tunnel.
            lines.push("redirect-gateway def1".into());
            lines.push("block-ipv6".into());
        }
        Reach::Networks(routes) => lines.extend(routes.iter().map(sites::route)),
    }
    lines.extend(settings.dns.iter().map(|server| match server {
        IpAddr::V4(address) => format!("dhcp-option DNS {address}"),
        IpAddr::V6(address) => format!("dhcp-option DNS6 {address}"),
    }));
    lines
}

/// Loads the certificate, key, authority and revocation list from disk.
///
/// # Errors
/// Fails if one of them is missing or damaged. A missing revocation list is also an error, because without it revoked
/// clients could connect again.
pub(super) fn tls(store: &Store, login: Login) -> Result<ServerTls, Fault> {
    let named = store.files();
    let pem = |path: &Path| -> Result<Option<Pem>, Fault> {
        let mut bytes = Vec::new();
        let read = files::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        read.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Fault::operator(format!(
                "{} is missing: restore the whole folder of the server from a backup",
                path.display()
            )),
            _ => file_fault("cannot read", path, &error),
        })?;
        Ok(Some(Pem::new(path.display().to_string(), bytes)))
    };
    let common = CommonTlsOptions {
        ca: pem(&named.ca)?,
        cert: pem(&named.cert)?,
        key: pem(&named.key)?,
        crl: pem(&named.crl)?,
        verify: VerifyOptions {
            remote_cert_tls: Some(RemoteCertTls::Client),
            ..VerifyOptions::default()
        },
        ..CommonTlsOptions::default()
    };
    let client_certificates = if login.uses_certificate() {
        ClientCertificates::Require
    } else {
        ClientCertificates::None
    };
    let options = ServerTlsOptions { common, client_certificates };
    let tls = ServerTls::new(options).map_err(|error| Fault::operator(error.to_string()))?;
    tls.warnings().iter().for_each(|text| tracing::warn!("{text}"));
    Ok(tls)
}

/// Returns the settings that a reload can change: pushed options, the client limit, fixed addresses, and the parameters
/// of single clients. `kept` are the leases by the names in certificates, because a renamed client keeps its address.
pub(super) fn offer(
    settings: &Settings,
    store: &Store,
    rules: &SiteRules,
    kept: &BTreeMap<String, Ipv4Addr>,
) -> Result<ReloadableConfig, Fault> {
    // Without certificates, a session has the name of a user, which has no fixed address.
    let clients = if settings.login.uses_certificate() {
        store.clients().map_err(super::init::pki_fault)?
    } else {
        Vec::new()
    };
    let fixed = clients.iter().filter(|client| client.state != ClientState::Revoked);
    let leases = fixed.flat_map(|client| {
        let renamed = client.identity.as_ref().and_then(|name| kept.get(name.as_str()));
        let renamed = renamed.copied().filter(|address| settings.network.contains(address));
        let four = client.address4.or(renamed).map(|address| IpNet::from(IpAddr::V4(address)));
        let six = client.address6.map(|address| IpNet::from(IpAddr::V6(address)));
        four.into_iter().chain(six).map(|net| (client.name.to_string(), net))
    });
    let mut options = push(settings);
    options.extend(rules.push(&clients));
    Ok(ReloadableConfig {
        push: options,
        max_clients: settings.max_clients,
        leases: leases.collect(),
        clients: rules.updates(&clients),
    })
}

/// Builds the engine's configuration.
pub(super) fn config(
    settings: &Settings,
    store: &Store,
    rules: &SiteRules,
    leases: &BTreeMap<String, Ipv4Addr>,
) -> Result<ServerConfig, Fault> {
    let offer = offer(settings, store, rules, leases)?;
    let kept = leases
        .iter()
        .filter(|(_, address)| settings.network.contains(*address))
        .map(|(name, address)| (name.clone(), IpNet::from(IpAddr::V4(*address))));
    Ok(ServerConfig {
        settings: SessionSettings {
            wrap: WrapConfig::tls_crypt_v2_server(server_key(store)?),
            ciphers: [Cipher::Aes256Gcm, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305]
                .map(Into::into)
                .to_vec(),
            tun_mtu: settings.mtu.unwrap_or(TUN_MTU),
            float: true,
            keepalive: Keepalive { interval: PING, timeout: SERVER_FORGETS },
            exit_notify: Some(1),
            ..SessionSettings::default()
        },
        tls: tls(store, settings.login)?,
        network4: Some(network4(settings.network)),
        network6: settings.network6.map(network6),
        push: offer.push,
        push_keepalive: Some(Keepalive { interval: PING, timeout: PING_RESTART }),
        max_clients: offer.max_clients,
        duplicate_cn: false,
        // A fixed address comes last, so that it overrides a remembered one.
        leases: kept.chain(offer.leases).collect(),
        force_cookie: false,
        authorize: true,
        checks: ClientChecks {
            require_username: !settings.login.uses_certificate(),
            username_as_common_name: !settings.login.uses_certificate(),
            ..ClientChecks::default()
        },
        compress_migrate: false,
        vlans: None,
    })
}

/// Returns the sockets to open.
pub(super) fn listeners(listen: &[Listen], ipv6: bool) -> Vec<Listener> {
    let any: IpAddr =
        if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    listen
        .iter()
        .map(|listen| Listener {
            bind: SocketAddr::new(listen.address.unwrap_or(any), listen.port),
            v6only: false,
            transport: listen.transport,
        })
        .collect()
}

/// Returns a plan with the device, its addresses, and routes to the networks behind clients.
pub(super) fn host_plan(settings: &Settings, behind: &[IpNet]) -> HostPlan {
    let four = IpNet::V4(network4(settings.network).server);
    let six = settings.network6.map(|network| IpNet::V6(network6(network).server));
    HostPlan {
        device: Device::Tun(Some(settings.device.clone())),
        mtu: settings.mtu.unwrap_or(TUN_MTU),
        addresses: std::iter::once(four).chain(six).collect(),
        routes: behind
            .iter()
            .map(|net| PlannedRoute { net: *net, via: Via::Tunnel(None), metric: None })
            .collect(),
        ..HostPlan::default()
    }
}

/// Returns how to relay packets between clients.
pub(super) fn relay(settings: &Settings) -> Relay {
    if settings.client_to_client { Relay::Direct } else { Relay::Deny }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(lines: &str) -> Settings {
        let text = format!("host = \"h\"\nnetwork = \"10.9.9.0/24\"\n{lines}");
        Settings::parse(&text, Path::new("server.toml")).unwrap()
    }

    #[test]
    fn the_server_has_the_first_address_and_clients_the_rest() {
        let network = network4("10.9.9.0/24".parse().unwrap());
        assert_eq!(network.server.to_string(), "10.9.9.1/24");
        let addresses = [2, 254].map(|host| Ipv4Addr::new(10, 9, 9, host));
        assert_eq!(network.pool, Some((addresses[0], addresses[1])));
        let small = network4("10.9.9.0/29".parse().unwrap());
        assert_eq!(small.pool.map(|(a, b)| (a.octets()[3], b.octets()[3])), Some((2, 6)));
        let six = network6("fd12::/64".parse().unwrap());
        assert_eq!(six.server.to_string(), "fd12::1/64");
        assert_eq!(six.first.to_string(), "fd12::1000");
    }

    #[test]
    fn pushes_what_the_settings_say() {
        let full =
            "full-tunnel = true\nnetwork6 = \"fd12::/64\"\ndns = [\"9.9.9.9\", \"fd12::53\"]";
        let extra = |lines: &str| push(&settings(lines)).split_off(1);
        assert_eq!(
            extra(full),
            ["redirect-gateway def1 ipv6", "dhcp-option DNS 9.9.9.9", "dhcp-option DNS6 fd12::53"]
        );
        assert_eq!(extra("full-tunnel = true"), ["redirect-gateway def1", "block-ipv6"]);
        assert_eq!(
            extra("routes = [\"192.168.7.9/24\", \"fd00:7::/32\"]"),
            ["route 192.168.7.0 255.255.255.0", "route-ipv6 fd00:7::/32"]
        );
        assert_eq!(push(&settings("")), ["explicit-exit-notify 1"]);
        assert_eq!(push(&settings("mtu = 1400")), ["explicit-exit-notify 1", "tun-mtu 1400"]);
    }

    #[test]
    fn clients_are_apart_unless_told_otherwise() {
        assert_eq!(relay(&settings("")), Relay::Deny);
        assert_eq!(relay(&settings("client-to-client = true")), Relay::Direct);
    }
}
