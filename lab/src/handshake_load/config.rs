//! The configuration of every server under handshake load, and of its clients.

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_engine::Target;
use adit_openvpn::client::{ClientConfig, Remote};
use adit_openvpn::keys::StaticKey;
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{ClientTls, ClientTlsOptions, CommonTlsOptions, Pem};
use adit_openvpn::wrap::WrapConfig;
use adit_testbed::failure::{Context, Result};

use super::pushed::Expected;
use crate::subject::{Identity, Keys};

/// The server's port.
pub const PORT: u16 = 1194;
/// The tunnel's networks and the pushed options, defined once.
const SERVER4: &str = "10.88.0.1/16";
const SERVER6: &str = "fd88::1/64";
const ROUTE4: &str = "10.99.0.0/16";
const ROUTE6: &str = "fd99::/64";
const DNS: &str = "dhcp-option DNS 10.88.0.1";
const MTU: u16 = 1400;

/// Returns the server's config file, with the keys in `keys` (see [`crate::subject::Keys`]); `openvpn` adds the lines
/// that only the reference implementation understands or needs.
pub fn server(keys: &Path, openvpn: bool) -> String {
    // The ping interval and timeout exceed the length of a trial, because the clients have no data channel to answer
    // on.
    let mut text = format!(
        "dev tun\nproto udp4\nport {PORT}\ndh none\ntopology subnet\nserver 10.88.0.0 255.255.0.0\n\
         server-ipv6 fd88::/64\nkeepalive 1000 4000\nduplicate-cn\nmax-clients 8192\nverb 1\nreneg-sec 0\n\
         tun-mtu {MTU}\npush \"route 10.99.0.0 255.255.0.0\"\npush \"route-ipv6 {ROUTE6}\"\npush \"{DNS}\"\n"
    );
    for (word, file) in [
        ("ca", "ca.crt"),
        ("cert", "server.crt"),
        ("key", "server.key"),
        ("tls-crypt", "tls-crypt.key"),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{word} {}", keys.join(file).display());
    }
    if openvpn {
        // Otherwise only its limit would be measured: 100 unauthenticated packets in 10 s for all clients together.
        text.push_str("connect-freq-initial 1000000 1\ndisable-dco\n");
    }
    text
}

/// Returns the config file of a client that is a process of `openvpn`, with the authority's files in `keys` and the
/// client's certificate and key.
pub fn client_file(keys: &Path, [certificate, key]: &[PathBuf; 2], server: IpAddr) -> String {
    let mut text = format!(
        "client\ndev tun\nproto udp4\nremote {server} {PORT}\nnobind\nverb 3\nreneg-sec 0\nremote-cert-tls server\n\
         explicit-exit-notify 1\ndisable-dco\n"
    );
    for (word, path) in [
        ("ca", &keys.join("ca.crt")),
        ("cert", certificate),
        ("key", key),
        ("tls-crypt", &keys.join("tls-crypt.key")),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{word} {}", path.display());
    }
    text
}

/// Returns the configuration that every client of [`server`] should receive.
///
/// # Errors
/// The constants of this module contradict each other.
pub fn expected() -> Result<Expected> {
    Ok(Expected {
        server4: SERVER4.parse().context(SERVER4)?,
        server6: SERVER6.parse().context(SERVER6)?,
        routes4: vec![ROUTE4.parse().context(ROUTE4)?],
        routes6: vec![ROUTE6.parse().context(ROUTE6)?],
        dns: vec![DNS.to_owned()],
        mtu: MTU,
    })
}

/// Returns the configuration of one more client of [`server`], with a new certificate. The client tries again 1 s after
/// a failure, and sends an exit message when it leaves.
///
/// # Errors
/// A key file is missing or malformed.
pub fn client(keys: &Keys) -> Result<ClientConfig> {
    let read = |name: &str| {
        let path = keys.file(name);
        fs::read_to_string(&path).context(path.display())
    };
    let Identity { certificate, key: private } = keys.issue()?;
    let key = StaticKey::parse(&read("tls-crypt.key")?).context("tls-crypt.key")?;
    let pem = |name: &str, text: &str| Some(Pem::new(name, text.as_bytes()));
    let common = CommonTlsOptions {
        ca: pem("ca.crt", &read("ca.crt")?),
        cert: pem("client.crt", &certificate),
        key: pem("client.key", &private),
        ..CommonTlsOptions::default()
    };
    let tls = ClientTls::new(ClientTlsOptions { common }).context("the client's certificates")?;
    let wrap = WrapConfig::TlsCrypt { key };
    Ok(of(Settings { wrap, exit_notify: Some(1), ..Settings::default() }, tls))
}

/// Returns the configuration of a client with these settings and defaults for everything else.
pub fn of(settings: Settings, tls: ClientTls) -> ClientConfig {
    let target = Target {
        host: "vpn.example".into(),
        port: PORT,
        transport: Default::default(),
        family: Default::default(),
        ..Target::default()
    };
    ClientConfig {
        settings,
        tls,
        remotes: vec![Remote { target }],
        connect_retry: (Duration::from_secs(1), Duration::from_secs(300)),
        connect_retry_max: None,
        server_poll_timeout: Duration::from_secs(10),
        credentials: None,
        auth: Default::default(),
        pull_filters: Default::default(),
        keepalive: Default::default(),
        check: false,
    }
}
