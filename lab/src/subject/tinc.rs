//! tinc 1.0 in router mode, with its default cipher and digest.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::net::Namespace;
use adit_testbed::process::{Daemon, output};
use adit_testbed::tunnel::InnerAddrs;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::start::{Processes, SETUP_LIMIT, inner, inners, no_lines};
use super::toolchain::{Toolchain, first_line};
use super::{TunnelSpec, Tunnels, reach};
use crate::testbed::Testbed;

const INSTALL: &str = "apt install tinc, or: scripts/lab-deps.sh";

/// Returns the first line of `tincd --version`.
pub(super) fn version() -> std::result::Result<String, String> {
    let line = first_line(Path::new("tincd"), &["--version"], INSTALL)?;
    if line.starts_with("tinc version 1.0") {
        return Ok(line);
    }
    Err(format!("{line}: the lab writes the files of 1.0, which are others: {INSTALL}"))
}

/// Starts a daemon at every host; the clients connect to the server.
pub(super) fn start(
    toolchain: &Toolchain,
    testbed: &Testbed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    no_lines(spec, "tinc")?;
    let files = Files::write(toolchain, testbed, spec)?;
    let mut processes = Processes::default();
    processes.server.push(Daemon::spawn("server", files.command(&testbed.server, 0))?);
    for daemon in &mut processes.server {
        daemon.wait_for("Ready", SETUP_LIMIT)?;
    }
    processes.dial(testbed, |index, host| Ok(files.command(host, index + 1)))?;
    processes.wait_clients("Ready")?;
    let server_inner = inner(0)?;
    reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT).map_err(|f| processes.blame(f))?;
    wait_for_mtu(&processes, testbed.clients.len()).map_err(|f| processes.blame(f))?;
    let mut tunnels = processes.into_tunnels(server_inner, inners(testbed)?);
    tunnels.notes =
        vec!["tinc's own cipher and digest: AES-256-CBC, SHA-256 cut to 4 bytes".to_owned()];
    if spec.inner_mtu.is_none() {
        tunnels.notes.push(
            "MTU inside the tunnel: the kernel's, 1500; tinc finds the path's and clamps".into(),
        );
    }
    tunnels.configs = files.shown;
    tunnels.folder = Some(files.folder);
    Ok(tunnels)
}

/// The folder of each node, numbered like the addresses: the server is 0.
struct Files {
    folder: TempDir,
    shown: Vec<(String, String)>,
}

impl Files {
    fn write(toolchain: &Toolchain, testbed: &Testbed, spec: &TunnelSpec) -> Result<Self> {
        let keys = toolchain.rsa()?;
        let mut files = Self { folder: toolchain.scratch()?, shown: Vec::new() };
        let server_outer = testbed.server_outer(spec.outer_v6);
        let server_host = format!("Address = {server_outer}\n{}", subnets(inner(0)?));
        for number in 0..=testbed.clients.len() {
            let address = inner(number)?;
            let node = files.node(number);
            fs::create_dir_all(node.join("hosts")).context(node.display())?;
            let (key, conf) = (&keys.private, conf(number, spec));
            fs::write(
                node.join("tinc.conf"),
                format!("{conf}PrivateKeyFile = {}\n", key.display()),
            )?;
            let up = up(address, spec);
            let script = node.join("tinc-up");
            fs::write(&script, &up)?;
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
            let host = if number == 0 { server_host.clone() } else { subnets(address) };
            let with_key = format!("{host}{}", keys.public);
            // A client has the files of itself and the server; the server has those of all nodes.
            fs::write(node.join("hosts").join(name(number)), &with_key)?;
            if number > 0 {
                fs::write(files.node(0).join("hosts").join(name(number)), &with_key)?;
                fs::write(node.join("hosts/server"), format!("{server_host}{}", keys.public))?;
            }
            if number < 2 {
                let name = name(number);
                files.shown.push((format!("{name}/tinc.conf"), conf));
                files.shown.push((format!("{name}/tinc-up"), up));
                files.shown.push((format!("hosts/{name}"), host));
            }
        }
        Ok(files)
    }

    fn node(&self, number: usize) -> PathBuf {
        self.folder.path().join(name(number))
    }

    fn command(&self, host: &Namespace, number: usize) -> Command {
        let node = self.node(number);
        let mut command = host.command("tincd");
        command.arg("-D").arg("-c").arg(&node);
        command.arg(format!("--pidfile={}", node.join("pid").display()));
        command
    }
}

fn name(number: usize) -> String {
    if number == 0 { "server".to_owned() } else { format!("client{number}") }
}

fn conf(number: usize, spec: &TunnelSpec) -> String {
    let family = if spec.outer_v6 { "ipv6" } else { "ipv4" };
    let mut conf = format!("Name = {}\nMode = router\nInterface = tun0\n", name(number));
    // Writing to a String cannot fail.
    let _ = writeln!(conf, "AddressFamily = {family}");
    // Without it every client would learn of every other, and a mesh would be measured instead of a star.
    let _ =
        writeln!(conf, "{}", if number == 0 { "TunnelServer = yes" } else { "ConnectTo = server" });
    conf
}

fn subnets(address: InnerAddrs) -> String {
    let v6 = address.v6.map(|v6| format!("Subnet = {v6}/128\n")).unwrap_or_default();
    format!("Subnet = {}/32\n{v6}", address.v4)
}

fn up(address: InnerAddrs, spec: &TunnelSpec) -> String {
    let mtu = spec.inner_mtu.map(|mtu| format!("mtu {mtu} ")).unwrap_or_default();
    let mut script = format!("#!/bin/sh\nip link set dev $INTERFACE {mtu}up\n");
    for line in super::start::address_lines(address, "$INTERFACE").lines() {
        let _ = writeln!(script, "ip {line}");
    }
    script
}

/// Waits until tinc has discovered the path MTU: until then it sends large packets over TCP, which a trial must not
/// include.
///
/// On SIGUSR2 a daemon lists its nodes, as `server at 192.0.2.1 port 655 ... pmtu 1451 (min 1451 max 1451)`.
fn wait_for_mtu(processes: &Processes, clients: usize) -> Result<()> {
    let last = Instant::now() + SETUP_LIMIT;
    let daemons = processes.server.iter().map(|server| (server, clients));
    let daemons = daemons.chain(processes.clients.iter().flatten().map(|client| (client, 1)));
    for (daemon, peers) in daemons {
        let mut asked = 0;
        loop {
            daemon.signal(Signal::SIGUSR2)?;
            asked += 1;
            std::thread::sleep(Duration::from_millis(20));
            if settled(&daemon.log()) >= peers {
                break;
            }
            ensure(Instant::now() < last, || {
                let missing = daemon.failure("did not find the path's MTU in time");
                format!("{missing}, asked {asked} times")
            })?;
            std::thread::sleep(Duration::from_millis(180));
        }
    }
    Ok(())
}

/// Returns the number of peers in the last list of nodes whose MTU is no longer being probed.
fn settled(log: &str) -> usize {
    let list = log.rsplit("Nodes:").next().unwrap_or_default();
    let fixed = |line: &&str| {
        let after = |word: &str| {
            let mut words =
                line.split_whitespace().skip_while(|w| w.trim_start_matches('(') != word);
            words.nth(1).map(|w| w.trim_end_matches(')').to_owned())
        };
        let (least, most) = (after("min"), after("max"));
        least.is_some() && least == most && least.as_deref() != Some("0")
    };
    list.lines().filter(fixed).count()
}

/// An RSA key that all nodes share: tinc would make one for each node, which takes seconds and makes no difference
/// here.
#[derive(Debug)]
pub(super) struct RsaKey {
    private: PathBuf,
    public: String,
}

impl RsaKey {
    /// Creates an RSA key of 2048 bits, as `tincd -K` does.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let private = folder.join("rsa_key.priv");
        let openssl = |arguments: &[&str]| {
            let mut command = Command::new("openssl");
            command.args(arguments);
            command
        };
        let mut generate = openssl(&["genrsa", "-traditional", "-out"]);
        generate.arg(&private).arg("2048");
        output(generate)?;
        fs::set_permissions(&private, fs::Permissions::from_mode(0o600))?;
        let mut public = openssl(&["rsa", "-RSAPublicKey_out", "-in"]);
        public.arg(&private);
        Ok(Self { public: output(public)?, private })
    }
}
