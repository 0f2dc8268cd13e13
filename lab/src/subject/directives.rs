//! The config files and the start sequence that adit and openvpn share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use adit_testbed::failure::{Context, Result};
use adit_testbed::net::Namespace;
use adit_testbed::process::Daemon;
use adit_testbed::tunnel::READY;

use super::start::{PORT, Processes, SETUP_LIMIT};
use super::toolchain::Toolchain;
use super::vpn::Carrier;
use super::{TunnelSpec, Tunnels, reach};
use crate::testbed::Testbed;

impl Carrier {
    fn device(self) -> &'static str {
        if self == Self::UdpTap { "tap0" } else { "tun0" }
    }
}

/// A program that takes OpenVPN's config files.
pub(super) struct End {
    /// Its path or name.
    pub(super) program: PathBuf,
    /// Arguments before the config file.
    pub(super) arguments: &'static [&'static str],
    /// Lines that only this program needs.
    pub(super) own: String,
    /// The number of workers; `None` leaves the choice to the program.
    pub(super) workers: Option<u16>,
}

impl End {
    /// Returns the command that runs a config file on a host.
    fn command(&self, host: &Namespace, config: &Path) -> Command {
        let mut command = host.command(&self.program.to_string_lossy());
        command.args(self.arguments).arg(config);
        command.envs(self.workers.map(|workers| ("ADIT_WORKERS", workers.to_string())));
        command
    }
}

/// Starts a server, and a client on every host, and returns when all of them reach the server.
///
/// `ends` are the programs at the server and at the clients.
pub(super) fn start(
    toolchain: &Toolchain,
    testbed: &Testbed,
    spec: &TunnelSpec,
    carrier: Carrier,
    ends: [&End; 2],
) -> Result<Tunnels> {
    let [at_server, at_client] = ends;
    let folder = toolchain.scratch()?;
    let [server, client] = configs(toolchain, testbed, spec, carrier);
    let (server, client) = (server + &at_server.own, client + &at_client.own);
    let write = |name: &str, text: &str| -> Result<PathBuf> {
        let path = folder.path().join(name);
        fs::write(&path, text).context(path.display())?;
        Ok(path)
    };
    let (server_path, client_path) =
        (write("server.conf", &server)?, write("client.conf", &client)?);
    let mut processes = Processes::default();
    processes
        .server
        .push(Daemon::spawn("server", at_server.command(&testbed.server, &server_path))?);
    for daemon in &mut processes.server {
        daemon.wait_for(READY, SETUP_LIMIT)?;
    }
    processes.dial(testbed, |_, host| Ok(at_client.command(host, &client_path)))?;
    processes.wait_clients(READY)?;
    let server_inner = reach::inner_addrs(&testbed.server, carrier.device())?;
    let client_inner = reach::inner(&testbed.clients, carrier.device())?;
    reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT).map_err(|f| processes.blame(f))?;
    let keys = format!("{}/", toolchain.keys().folder().display());
    let shown = |text: &str| text.replace(&keys, "");
    let configs = vec![
        ("server.conf".to_owned(), shown(&server)),
        ("client.conf".to_owned(), shown(&client)),
    ];
    let mut tunnels = processes.into_tunnels(server_inner, client_inner);
    tunnels.notes = match spec.inner_mtu {
        Some(_) => Vec::new(),
        None => vec!["MTU inside the tunnel: the program's default, 1500".to_owned()],
    };
    tunnels.configs = configs;
    tunnels.folder = Some(folder);
    Ok(tunnels)
}

/// Returns the server's file and the one that all clients share, with the same lines for adit and
/// for openvpn.
fn configs(
    toolchain: &Toolchain,
    testbed: &Testbed,
    spec: &TunnelSpec,
    carrier: Carrier,
) -> [String; 2] {
    let family = if spec.outer_v6 { '6' } else { '4' };
    let [server_proto, client_proto] = match carrier {
        Carrier::Udp | Carrier::UdpTap => [format!("udp{family}"), format!("udp{family}")],
        Carrier::Tcp => [format!("tcp{family}-server"), format!("tcp{family}-client")],
    };
    let file = |name: &str| toolchain.keys().file(name).display().to_string();
    let mut common = vec![
        format!("dev {}", carrier.device().trim_end_matches('0')),
        "verb 3".to_owned(),
        "persist-key".to_owned(),
        "persist-tun".to_owned(),
        format!("data-ciphers {}", spec.cipher),
        format!("ca {}", file("ca.crt")),
        format!("tls-crypt {}", file("tls-crypt.key")),
    ];
    common.extend(spec.inner_mtu.map(|mtu| format!("tun-mtu {mtu}")));
    let mut server = vec![
        format!("proto {server_proto}"),
        format!("port {PORT}"),
        "topology subnet".to_owned(),
        "server 10.88.0.0 255.255.0.0".to_owned(),
        "server-ipv6 fd88::/64".to_owned(),
        "keepalive 2 20".to_owned(),
        "dh none".to_owned(),
        // One certificate for all clients, because a hundred certificates would only slow down the
        // start.
        "duplicate-cn".to_owned(),
        format!("cert {}", file("server.crt")),
        format!("key {}", file("server.key")),
    ];
    let mut client = vec![
        "client".to_owned(),
        format!("proto {client_proto}"),
        "nobind".to_owned(),
        format!("remote {} {PORT}", testbed.server_outer(spec.outer_v6)),
        "remote-cert-tls server".to_owned(),
        "verify-x509-name server name".to_owned(),
        format!("cert {}", file("client.crt")),
        format!("key {}", file("client.key")),
    ];
    match carrier {
        Carrier::Udp | Carrier::UdpTap => client.push("explicit-exit-notify 1".to_owned()),
        // As openvpn's manual advises for TCP; the clients receive it by push.
        Carrier::Tcp => server.push("tcp-nodelay".to_owned()),
    }
    server.extend(spec.server_lines.iter().cloned());
    client.extend(spec.client_lines.iter().cloned());
    [server, client].map(|lines| {
        let lines = lines.iter().chain(&common);
        lines.flat_map(|line| [line.as_str(), "\n"]).collect()
    })
}
