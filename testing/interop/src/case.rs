//! Runs one case: a tunnel between two programs with traffic in all directions, rekeys under traffic, and an orderly end.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Result, ensure};
use crate::file;
use crate::matrix::{Case, Roles, Tls, Wrapping};
use crate::net::{End, Pair};
use crate::peer::Program;
use crate::pki::{Pki, PkiTool};
use crate::process::Daemon;
use crate::sandbox::{Sandbox, text};
use crate::traffic::{Delivery, Stream, ping, tcp};
use crate::wait::ScaledInstant;

pub use adit_testbed::tunnel::{
    EXIT_NOTICES, HANDSHAKE, InnerAddrs, READY, SETUP_LIMIT, inner_addrs, inner_addrs_on,
};

/// The resources that all cases of a run share.
#[derive(Debug)]
pub struct TestEnv {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Certificates and keys.
    pub pki: Pki,
    /// The duration of tests whose length the caller chooses.
    pub length: Duration,
}

/// Two configuration files under construction, one for each end.
#[derive(Debug, Clone, Default)]
pub struct Configs {
    /// The server's lines.
    pub server: String,
    /// The client's lines.
    pub client: String,
}

impl Configs {
    /// Creates a plain server on UDP port 1194 and its client, with the certificates of `pki_tool`, and no wrapping
    /// yet.
    pub fn new(pki: &Pki, pki_tool: PkiTool, outer_v6: bool) -> Self {
        let proto = if outer_v6 { "udp6" } else { "udp4" };
        let common =
            format!("dev tun\nproto {proto}\nverb 3\nkeepalive 2 20\npersist-key\npersist-tun\n");
        let mut configs =
            Self { server: common.clone(), client: common.replace("keepalive 2 20\n", "") };
        configs.server("port 1194\ndh none\ntopology subnet");
        configs.server("server 10.88.0.0 255.255.255.0\nserver-ipv6 fd88::/64");
        configs.client(&format!("client\nnobind\nremote {} 1194", End::Server.outer(outer_v6)));
        configs
            .client("remote-cert-tls server\nverify-x509-name server name\nexplicit-exit-notify 1");
        for name in ["ca.crt", "server.crt", "server.key"] {
            configs.server(&directive(name, &pki.file(pki_tool, name)));
        }
        for name in ["ca.crt", "client.crt", "client.key"] {
            configs.client(&directive(name, &pki.file(pki_tool, name)));
        }
        configs
    }

    /// Adds lines to the server's file.
    pub fn server(&mut self, lines: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.server, "{lines}");
    }

    /// Adds lines to the client's file.
    pub fn client(&mut self, lines: &str) {
        let _ = writeln!(self.client, "{lines}");
    }

    /// Adds lines to both files.
    pub fn both(&mut self, lines: &str) {
        self.server(lines);
        self.client(lines);
    }

    /// Has the server check names and passwords by lines for a shell, to which `$1` is the file with both, and `$OUT` the folder of the script.
    /// Returns the script.
    pub(crate) fn check_passwords(&mut self, folder: &Path, lines: &str) -> Result<PathBuf> {
        let (script, folder) = (folder.join("check"), folder.display());
        file::write(&script, format!("#!/bin/sh\nOUT='{folder}'\n{lines}\n"), 0o755)?;
        let verify = format!("auth-user-pass-verify {} via-file", script.display());
        self.server(&format!("script-security 2\n{verify}\ntmp-dir {folder}"));
        Ok(script)
    }

    /// Adds the wrapping of the control channel at both ends.
    pub fn wrap(&mut self, pki: &Pki, wrapping: Wrapping) {
        let path = |name: &str| text(&pki.wrapping_key(name)).to_owned();
        let fixed = path("static.key");
        match wrapping {
            Wrapping::None => {}
            Wrapping::TlsAuth => {
                self.server(&format!("tls-auth {fixed} 0\nauth SHA256"));
                self.client(&format!("tls-auth {fixed} 1\nauth SHA256"));
            }
            Wrapping::TlsAuthBidirectional => self.both(&format!("tls-auth {fixed}")),
            Wrapping::TlsCrypt => self.both(&format!("tls-crypt {fixed}")),
            Wrapping::TlsCryptV2 => {
                self.server(&format!("tls-crypt-v2 {}", path("v2-server.key")));
                self.client(&format!("tls-crypt-v2 {}", path("v2-client.key")));
            }
        }
    }
}

/// Returns the directive for a file: `ca.crt` -> `ca /path/ca.crt`, `server.key` -> `key /path/server.key`.
fn directive(name: &str, path: &Path) -> String {
    let word = match name.rsplit_once('.') {
        Some(("ca", _)) => "ca",
        Some((_, "crt")) => "cert",
        _ => "key",
    };
    format!("{word} {}", path.display())
}

/// An established tunnel.
#[derive(Debug)]
pub struct Tunnel {
    /// The server's process. Declared first, so that the processes end before their namespaces.
    pub server: Daemon,
    /// The client's process.
    pub client: Daemon,
    /// The namespaces.
    pub pair: Pair,
    /// The server's addresses in the tunnel.
    pub server_inner: InnerAddrs,
    /// The client's addresses in the tunnel.
    pub client_inner: InnerAddrs,
}

impl Tunnel {
    /// Writes the configuration files into `folder`, starts both ends and waits until both are ready.
    ///
    /// # Errors
    /// An end did not start; the error includes its log.
    pub fn start(
        pair: Pair,
        folder: &Path,
        configs: &Configs,
        server: &Program,
        client: &Program,
    ) -> Result<Self> {
        let mut server = serve(&pair, folder, configs, server)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        let mut client = dial(&pair, folder, configs, client)?;
        if let Err(failure) = client.wait_for(READY, SETUP_LIMIT) {
            return Err(
                format!("{failure}\n{}", server.failure("meanwhile at the other end")).into()
            );
        }
        let server_inner = inner_addrs(&pair.server)?;
        let client_inner = inner_addrs(&pair.client)?;
        Ok(Self { server, client, pair, server_inner, client_inner })
    }

    /// Pings each end from the other over IPv4 and IPv6, with small packets and with 3000 bytes.
    ///
    /// # Errors
    /// Fewer than `least` of four answers arrived for one of them.
    pub fn ping_all(&self, least: u32) -> Result<()> {
        for size in [56, 3000] {
            for (from, to) in [(End::Client, self.server_inner), (End::Server, self.client_inner)] {
                for address in std::iter::once(to.v4).chain(to.v6) {
                    let got = ping(self.pair.namespace(from), address, size, 4)?;
                    ensure(got >= least, || {
                        let what =
                            format!("{got} of 4 pings of {size} bytes to {address} came back");
                        format!("{what}\n{}\n{}", self.server.failure(""), self.client.failure(""))
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Writes the server's config file and starts the server.
///
/// # Errors
/// The program could not be started.
pub fn serve(pair: &Pair, folder: &Path, configs: &Configs, program: &Program) -> Result<Daemon> {
    let path = folder.join("server.conf");
    fs::write(&path, &configs.server)?;
    Daemon::spawn(&format!("server ({})", program.label()), program.command(&pair.server, &path))
}

/// Writes the client's config file and starts the client.
///
/// # Errors
/// The program could not be started.
pub fn dial(pair: &Pair, folder: &Path, configs: &Configs, program: &Program) -> Result<Daemon> {
    let path = folder.join("client.conf");
    fs::write(&path, &configs.client)?;
    Daemon::spawn(&format!("client ({})", program.label()), program.command(&pair.client, &path))
}

/// The observations of a case.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Rekeys that were observed while datagrams were counted.
    pub rekeys: usize,
    /// Datagrams from client to server, then from server to client.
    pub delivery: [Delivery; 2],
}

/// The number of rekeys that a case waits for.
const REKEYS: usize = 2;

/// Runs one case; `name` is that of the test, and unique.
///
/// # Errors
/// Any deviation, with the logs that show the cause.
pub fn run(
    env: &TestEnv,
    name: &str,
    case: &Case,
    server: &Program,
    client: &Program,
) -> Result<Outcome> {
    let folder = env.sandbox.folder(&name.replace('/', "_"))?;
    let pair = Pair::new()?;
    if case.loss > 0 {
        pair.set_loss(case.loss)?;
    }
    let configs = configs(env, case, server, client);
    let mut tunnel = Tunnel::start(pair, &folder, &configs, server, client)?;
    check_negotiated(case, &mut tunnel)?;
    let lossy = case.loss > 0;
    // With 2 % loss in each direction, one in eight pings of three fragments is lost.
    tunnel.ping_all(if lossy { 1 } else { 4 })?;
    let (server_v4, server_v6) = (tunnel.server_inner.v4, tunnel.server_inner.newest());
    let client_v4 = tunnel.client_inner.v4;
    let bytes = if lossy { 300_000 } else { 6_000_000 };
    tcp(&tunnel.pair.client, &tunnel.pair.server, server_v4, bytes)?;
    tcp(&tunnel.pair.server, &tunnel.pair.client, client_v4, bytes)?;
    let dropped_before = tunnel.pair.dropped()?;
    let up = Stream::start(&tunnel.pair.client, &tunnel.pair.server, server_v6, 1400)?;
    let down = Stream::start(&tunnel.pair.server, &tunnel.pair.client, client_v4, 1400)?;
    let rekeyed = wait_for_rekeys(&mut tunnel);
    let delivery = [up.finish()?, down.finish()?];
    let outcome = Outcome { rekeys: rekeyed?, delivery };
    let dropped = tunnel.pair.dropped()? - dropped_before;
    let senders = [client, server].map(|program| matches!(program, Program::Adit(_)));
    let judged = delivery
        .iter()
        .zip(senders)
        .try_for_each(|(delivery, adit_sends)| judge(delivery, case.loss, dropped, adit_sends));
    judged.map_err(|failure| {
        format!("{failure}\n{}\n{}", tunnel.server.failure(""), tunnel.client.failure(""))
    })?;
    tunnel.ping_all(if lossy { 1 } else { 4 })?;
    part(&mut tunnel, lossy)?;
    Ok(outcome)
}

fn configs(env: &TestEnv, case: &Case, server: &Program, client: &Program) -> Configs {
    let mut configs = Configs::new(&env.pki, case.pki_tool, case.outer_v6);
    configs.wrap(&env.pki, case.wrapping);
    configs.both(&format!("data-ciphers {}", case.cipher));
    // openvpn resends a lost control packet after 2, 4 and 8 seconds. With loss, a window of 5 s is over when a packet is lost twice, and
    // the end with the longer window waits for the end of its own.
    let often =
        if case.loss > 0 { "reneg-sec 16\nhand-window 15" } else { "reneg-sec 6\nhand-window 5" };
    let never = "reneg-sec 0";
    let (at_server, at_client) = if case.client_rekeys { (never, often) } else { (often, never) };
    configs.server(at_server);
    configs.client(at_client);
    if case.tls == Tls::V12 {
        configs.both("tls-version-max 1.2");
    }
    for (program, lines) in [(server, &mut configs.server), (client, &mut configs.client)] {
        // The kernel's module, if present, is a different implementation.
        if program.may_offload() {
            lines.push_str("disable-dco\n");
        }
    }
    configs
}

/// Checks that both ends have negotiated the parameters of the case.
fn check_negotiated(case: &Case, tunnel: &mut Tunnel) -> Result<()> {
    let version = if case.tls == Tls::V12 { "TLSv1.2" } else { "TLSv1.3" };
    let soon = Duration::from_secs(5);
    for daemon in [&mut tunnel.server, &mut tunnel.client] {
        daemon.wait_for(&format!("Control Channel: {version}"), soon)?;
        // 2.5 writes "Cipher".
        daemon.wait_for(&format!("ipher '{}'", case.cipher), soon)?;
    }
    Ok(())
}

/// Waits under traffic until both ends have seen the rekeys, and then a moment longer.
fn wait_for_rekeys(tunnel: &mut Tunnel) -> Result<usize> {
    let end = ScaledInstant::now() + Duration::from_secs(60);
    let Tunnel { server, client, .. } = tunnel;
    while rekeys(server).min(rekeys(client)) < REKEYS {
        ensure(ScaledInstant::now() < end, || {
            format!("{}\n{}", server.failure("too few rekeys"), client.failure("meanwhile"))
        })?;
        std::thread::sleep(Duration::from_millis(100));
    }
    // The initiator keeps sending under the old key for a while. Its switch to the new key is part of the test.
    std::thread::sleep(Duration::from_millis(1500));
    Ok(rekeys(server))
}

/// Returns the number of rekeys that a daemon has logged. openvpn logs a line for each TLS handshake, and adit one for
/// each new key.
pub(crate) fn rekeys(daemon: &Daemon) -> usize {
    let handshakes = daemon.count(HANDSHAKE).saturating_sub(1);
    handshakes.max(daemon.count("new data channel key")).max(daemon.count("', key-id: "))
}

/// Checks a delivery. `dropped` is the number of packets that the kernel dropped at full sockets and devices, which is no program's fault.
fn judge(delivery: &Delivery, loss: u32, dropped: u64, adit_sends: bool) -> Result<()> {
    let Delivery { sent, received, duplicated, corrupted } = *delivery;
    ensure(duplicated == 0 && corrupted == 0, || format!("changed or doubled: {delivery:?}"))?;
    ensure(sent > 500, || format!("the stream starved: {delivery:?}"))?;
    // Without loss on the veth pair, no packet may be missing, with or without rekeys. With loss, that share and a margin may be missing.
    let share = match (loss, adit_sends) {
        (0, _) => 0,
        (_, true) => loss + 2,
        // openvpn may send under a new key that the other end cannot have yet, as long as a lost control packet of the
        // rekey has not been repeated: two seconds or four.
        (_, false) => 60,
    };
    let allowed = u64::from(sent * share / 100) + dropped;
    ensure(u64::from(sent - received) <= allowed, || {
        format!(
            "datagrams are missing: {delivery:?} at {loss} % loss, the kernel dropped {dropped}"
        )
    })
}

/// Ends the client. The server must notice at once, without a timeout.
fn part(tunnel: &mut Tunnel, lossy: bool) -> Result<()> {
    tunnel.client.signal(nix::sys::signal::Signal::SIGTERM)?;
    let left = ScaledInstant::now();
    if !lossy {
        tunnel.server.wait_for_any(EXIT_NOTICES, Duration::from_secs(5))?;
    }
    let status = tunnel.client.wait_exit(Duration::from_secs(10))?;
    ensure(left.elapsed() < Duration::from_secs(10), || "the client was slow to leave".to_owned())?;
    ensure(status.success(), || tunnel.client.failure(&format!("ended with {status}")).0)?;
    tunnel.server.stop()
}

/// Returns the programs for the roles of a case; `openvpn` is openvpn or its substitute.
pub fn programs<'a>(
    roles: Roles,
    adit: &'a Program,
    openvpn: &'a Program,
) -> (&'a Program, &'a Program) {
    match roles {
        Roles::AditServes => (adit, openvpn),
        Roles::OpenVpnServes => (openvpn, adit),
        Roles::AditBoth => (adit, adit),
        Roles::OpenVpnBoth => (openvpn, openvpn),
    }
}
