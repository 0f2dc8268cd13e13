//! tinc 1.0, 1.1 and `adit tinc` in router mode, with their default ciphers and digests.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::file;
use adit_testbed::net::Namespace;
use adit_testbed::process::{Daemon, output};
use adit_testbed::tunnel::InnerAddrs;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::root::RootProgram;
use super::start::{Processes, SETUP_LIMIT, inner, inners, no_lines};
use super::toolchain::{Toolchain, first_line};
use super::{MemberPath, TunnelSpec, Tunnels, adit, reach};
use crate::testbed::Testbed;

const INSTALL: &str = "apt install tinc, or: scripts/lab-deps.sh";

/// The name by which adit is tinc's daemon.
const TINCD: &str = "tincd";

/// The programs of a tinc net.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tinc {
    /// The system's 1.0.
    V1_0,
    /// 1.1 from a private root.
    V1_1,
    /// `adit tinc`.
    Adit,
    /// `adit tinc` with tinc's cipher.
    AditChaCha20,
    /// `adit tinc` as the server of clients with 1.1.
    AditServes,
    /// 1.1 as the server of clients with `adit tinc`.
    TincServes,
}

/// The program of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    V1_0,
    V1_1,
    Adit,
}

impl Tinc {
    /// All of them.
    pub(super) const ALL: [Self; 6] = [
        Self::V1_0,
        Self::V1_1,
        Self::Adit,
        Self::AditChaCha20,
        Self::AditServes,
        Self::TincServes,
    ];

    /// Returns its name as a subject.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V1_0 => "tinc",
            Self::V1_1 => "tinc-1.1",
            Self::Adit => "adit-tinc",
            Self::AditChaCha20 => "adit-tinc/chacha20",
            Self::AditServes => "adit-tinc/tinc-1.1",
            Self::TincServes => "tinc-1.1/adit-tinc",
        }
    }

    /// Returns the program of a node; the server is 0.
    fn program(self, number: usize) -> Program {
        match self {
            Self::V1_0 => Program::V1_0,
            Self::V1_1 => Program::V1_1,
            Self::Adit | Self::AditChaCha20 => Program::Adit,
            Self::AditServes if number == 0 => Program::Adit,
            Self::TincServes if number > 0 => Program::Adit,
            Self::AditServes | Self::TincServes => Program::V1_1,
        }
    }

    /// Returns the first line of the versions of its programs.
    pub(super) fn installed(self) -> std::result::Result<String, String> {
        let [server, client] = [self.program(0), self.program(1)];
        let version = server.installed()?;
        if server == client {
            return Ok(version);
        }
        Ok(format!("{version}; {}", client.installed()?))
    }

    fn notes(self) -> Vec<String> {
        vec![match self {
            Self::V1_0 => {
                "tinc's own cipher and digest: AES-256-CBC, SHA-256 cut to 4 bytes".into()
            }
            Self::Adit => "the cipher on which two nodes of adit agree: AES-256-GCM".into(),
            _ => "tinc 1.1's only cipher: ChaCha20-Poly1305".into(),
        }]
    }

    /// Starts a daemon on every host; the clients connect to the server.
    pub(super) fn start(
        self,
        toolchain: &Toolchain,
        testbed: &Testbed,
        spec: &TunnelSpec,
    ) -> Result<Tunnels> {
        no_lines(spec, self.name())?;
        let files = Files::write(self, toolchain, testbed, spec)?;
        let mut processes = Processes::default();
        processes.server.push(Daemon::spawn("server", files.command(&testbed.server, 0)?)?);
        for daemon in &mut processes.server {
            daemon.wait_for("Ready", SETUP_LIMIT)?;
        }
        processes.dial(testbed, |index, host| files.command(host, index + 1))?;
        processes.wait_clients("Ready")?;
        let (server_inner, client_inner) = (inner(0)?, inners(testbed)?);
        let peers =
            if spec.members == Some(MemberPath::Direct) { testbed.clients.len() } else { 1 };
        wait_for_mtu(&files, &processes, testbed, peers, || {
            reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT)?;
            if spec.members.is_some() {
                reach::members(&testbed.clients, &client_inner, SETUP_LIMIT)?;
            }
            Ok(())
        })
        .map_err(|failure| processes.blame(failure))?;
        let mut tunnels = processes.into_tunnels(server_inner, client_inner);
        tunnels.notes = self.notes();
        if spec.inner_mtu.is_none() {
            tunnels.notes.push(
                "MTU inside the tunnel: the kernel's, 1500; tinc finds the path's and clamps"
                    .into(),
            );
        }
        tunnels.configs = files.shown;
        tunnels.folder = Some(files.folder);
        Ok(tunnels)
    }
}

impl Program {
    fn installed(self) -> std::result::Result<String, String> {
        match self {
            Self::Adit => adit::version(&adit::beside()?, false),
            Self::V1_1 => {
                RootProgram::find("tinc", "usr/sbin/tinc")?;
                RootProgram::find("tinc", "usr/sbin/tincd")?.version("--version")
            }
            Self::V1_0 => {
                let line = first_line(Path::new("tincd"), &["--version"], INSTALL)?;
                if line.starts_with("tinc version 1.0") {
                    return Ok(line);
                }
                Err(format!("{line}: the lab writes the files of 1.0, which are others: {INSTALL}"))
            }
        }
    }

    /// Returns the command of `tinc`, which 1.0 does not have.
    fn tinc(self, toolchain: &Toolchain) -> Result<Command> {
        if self == Self::V1_1 {
            return Ok(RootProgram::find("tinc", "usr/sbin/tinc")?.here());
        }
        let mut command = Command::new(toolchain.adit(None)?);
        command.arg("tinc");
        Ok(command)
    }

    /// Makes a node's key. Returns the lines for the node's host file.
    fn make_key(self, toolchain: &Toolchain, node: &Path) -> Result<String> {
        if self == Self::V1_0 {
            return Ok(toolchain.rsa()?.public.clone());
        }
        let mut generate = self.tinc(toolchain)?;
        generate.args(["--batch", "-c"]).arg(node).arg("generate-ed25519-keys");
        output(generate)?;
        let hosts = fs::read_dir(node.join("hosts"))?;
        let host = hosts.flatten().next().context("tinc made no host file")?.path();
        Ok(fs::read_to_string(host)?)
    }
}

/// The folder of each node, numbered like the addresses: the server is 0.
struct Files<'a> {
    version: Tinc,
    toolchain: &'a Toolchain,
    folder: TempDir,
    shown: Vec<(String, String)>,
}

impl<'a> Files<'a> {
    fn write(
        version: Tinc,
        toolchain: &'a Toolchain,
        testbed: &Testbed,
        spec: &TunnelSpec,
    ) -> Result<Self> {
        let folder = toolchain.scratch()?;
        let mut files = Self { version, toolchain, folder, shown: Vec::new() };
        if version.name().contains("adit") {
            symlink(toolchain.adit(None)?, files.folder.path().join(TINCD))?;
        }
        let mut server_host = String::new();
        for number in 0..=testbed.clients.len() {
            let node = files.node(number);
            fs::create_dir_all(node.join("hosts")).context(node.display())?;
            let mut conf = conf(number, spec);
            if version == Tinc::AditChaCha20 {
                conf.push_str("SPTPSCipher = chacha20-poly1305\n");
            }
            let program = version.program(number);
            let key_file = match program {
                Program::V1_0 => {
                    format!("PrivateKeyFile = {}\n", toolchain.rsa()?.private.display())
                }
                Program::V1_1 | Program::Adit => String::new(),
            };
            fs::write(node.join("tinc.conf"), format!("{conf}{key_file}"))?;
            let address = inner(number)?;
            let up = up(address, spec);
            file::write(node.join("tinc-up"), &up, 0o755)?;
            let host = host(version, testbed, spec, number)?;
            let with_key = format!("{host}{}", program.make_key(toolchain, &node)?);
            // A client has the files of itself and the server; the server has those of all nodes.
            fs::write(node.join("hosts").join(name(number)), &with_key)?;
            if number == 0 {
                server_host = with_key;
            } else {
                fs::write(files.node(0).join("hosts").join(name(number)), &with_key)?;
                fs::write(node.join("hosts/server"), &server_host)?;
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

    fn command(&self, host: &Namespace, number: usize) -> Result<Command> {
        let mut command = match self.version.program(number) {
            Program::V1_0 => host.command("tincd"),
            Program::V1_1 => RootProgram::find("tinc", "usr/sbin/tincd")?.on(host),
            Program::Adit => {
                let mut command = host.command(&self.folder.path().join(TINCD).to_string_lossy());
                // The net's name is that of its sockets in /run, of which each node has its own.
                command.arg("-n").arg(name(number));
                command
            }
        };
        command.arg("-D");
        self.add_folder(&mut command, number);
        Ok(command)
    }

    /// Returns the list of nodes that a daemon knows, as `server at 192.0.2.1 port 655 ... pmtu 1451 (min 1451 max 1451)`.
    fn nodes(&self, daemon: &Daemon, number: usize) -> Result<String> {
        let program = self.version.program(number);
        if program == Program::V1_0 {
            daemon.signal(Signal::SIGUSR2)?;
            std::thread::sleep(Duration::from_millis(20));
            return Ok(daemon.log());
        }
        let mut dump = program.tinc(self.toolchain)?;
        self.add_folder(&mut dump, number);
        dump.args(["dump", "nodes"]);
        output(dump)
    }

    fn add_folder(&self, command: &mut Command, number: usize) {
        let node = self.node(number);
        command.arg("-c").arg(&node).arg(format!("--pidfile={}", node.join("pid").display()));
    }
}

/// Returns a node's host file without its key.
fn host(version: Tinc, testbed: &Testbed, spec: &TunnelSpec, number: usize) -> Result<String> {
    let subnets = subnets(inner(number)?);
    if number == 0 {
        return Ok(format!("Address = {}\n{subnets}", testbed.server_outer(spec.outer_v6)));
    }
    // Without it, 1.0 uses its TCP connections to members that it cannot reach by UDP; 1.1 finds a relay itself.
    let is_indirect = version == Tinc::V1_0 && spec.members == Some(MemberPath::Relay);
    let indirect = if is_indirect { "IndirectData = yes\n" } else { "" };
    Ok(format!("{indirect}{subnets}"))
}

fn name(number: usize) -> String {
    if number == 0 { "server".to_owned() } else { format!("client{number}") }
}

fn conf(number: usize, spec: &TunnelSpec) -> String {
    let family = if spec.outer_v6 { "ipv6" } else { "ipv4" };
    let mut conf = format!("Name = {}\nMode = router\nInterface = tun0\n", name(number));
    // Writing to a String cannot fail.
    let _ = writeln!(conf, "AddressFamily = {family}");
    let role = match (number, spec.members) {
        // Without it every client would learn of every other, and a mesh would be measured instead of a star.
        (0, None) => "TunnelServer = yes\n",
        (0, Some(_)) => "",
        _ => "ConnectTo = server\n",
    };
    conf + role
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

/// Waits until tinc has discovered the path MTU to `peers` nodes from each client, and to all from the server. Until
/// then it sends large packets over TCP, which a trial must not include. It probes only paths with traffic, which
/// `ping` creates.
fn wait_for_mtu(
    files: &Files<'_>,
    processes: &Processes,
    testbed: &Testbed,
    peers: usize,
    ping: impl Fn() -> Result<()>,
) -> Result<()> {
    let last = Instant::now() + SETUP_LIMIT;
    let daemons = processes.server.iter().map(|server| (server, testbed.clients.len()));
    let daemons = daemons.chain(processes.clients.iter().flatten().map(|client| (client, peers)));
    for (number, (daemon, peers)) in daemons.enumerate() {
        let mut asked = 0;
        loop {
            ping()?;
            asked += 1;
            if settled(&files.nodes(daemon, number)?) >= peers {
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

/// An RSA key that all nodes share, because tinc would make one for each node, which takes seconds and makes no
/// difference here.
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
        file::set_mode(&private, 0o600)?;
        let mut public = openssl(&["rsa", "-RSAPublicKey_out", "-in"]);
        public.arg(&private);
        Ok(Self { public: output(public)?, private })
    }
}
