//! Nets of adit, tinc 1.1 and tinc 1.0: machines at one router, which loses what a test wants to be lost.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;
use serde_json::Value;

use self::files::{append, local_conf, public_lines, up_script, write_files};
use super::super::Scenario;
use super::SOON;
use super::programs::Programs;
use crate::failure::{Context, Failure, Result, ensure};
use crate::file;
use crate::net::{Namespace, ip, wait_for_carriers};
use crate::peer::Program;
use crate::process::{Daemon, output, run_with_input};
use crate::traffic::ping;
use crate::wait::{ScaledInstant, until};

mod files;

/// The device of every node.
const DEVICE: &str = "vpn";

/// The program of a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Adit,
    /// tinc 1.1 from its private root.
    V1_1,
    /// The system's tinc 1.0.
    V1_0,
}

/// How a net treats packets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Router,
    Switch,
    Hub,
}

impl Mode {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Switch => "switch",
            Self::Hub => "hub",
        }
    }
}

/// A node to be made. Nodes are numbered from 0.
#[derive(Clone, Debug)]
pub(super) struct NodeSpec {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) connect_to: Vec<usize>,
    /// Lines for its host file.
    pub(super) host: String,
    /// The node whose name and key it has as well.
    pub(super) twin_of: Option<usize>,
    /// The node whose invitation it accepts. It connects to that one, and no other node has its host file at first.
    pub(super) invited_by: Option<usize>,
}

impl NodeSpec {
    pub(super) fn new(name: &str, kind: Kind, connect_to: &[usize]) -> Self {
        let (name, connect_to) = (name.to_owned(), connect_to.to_vec());
        Self { name, kind, connect_to, host: String::new(), twin_of: None, invited_by: None }
    }
}

/// A net to be made.
#[derive(Clone, Debug)]
pub(super) struct NetSpec {
    pub(super) nodes: Vec<NodeSpec>,
    pub(super) mode: Mode,
    /// Whether the nodes' packets to each other travel over IPv6.
    pub(super) outer_v6: bool,
    /// Lines for the `tinc.conf` of every node.
    pub(super) conf: String,
    /// Whether a node has the host files of its neighbours only. It learns the keys of the others over the net.
    pub(super) only_neighbours: bool,
    /// The nodes on one local network behind a NAT.
    pub(super) behind_nat: Vec<usize>,
}

impl NetSpec {
    pub(super) fn new(nodes: Vec<NodeSpec>) -> Self {
        Self {
            nodes,
            mode: Mode::Router,
            outer_v6: false,
            conf: String::new(),
            only_neighbours: false,
            behind_nat: Vec::new(),
        }
    }

    fn are_neighbours(&self, one: usize, other: usize) -> bool {
        let connects = |from: usize, to| {
            self.nodes.get(from).is_some_and(|node| node.connect_to.contains(&to))
        };
        connects(one, other) || connects(other, one)
    }

    /// Returns whether a node needs an RSA key: it is one of tinc 1.0, or connects such nodes with the others.
    fn has_rsa(&self, at: usize) -> bool {
        let is_old = |node: usize| self.nodes.get(node).is_some_and(|it| it.kind == Kind::V1_0);
        is_old(at) || (0..self.nodes.len()).any(|to| self.are_neighbours(at, to) && is_old(to))
    }
}

/// The programs of all kinds.
struct AllPrograms {
    adit: PathBuf,
    real: Programs,
}

/// A net. The order of the fields makes processes end before their namespaces.
pub(super) struct Bed {
    pub(super) nodes: Vec<Node>,
    _nat: Option<Namespace>,
    router: Namespace,
    programs: AllPrograms,
}

/// A node, which runs or not.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) daemon: Option<Daemon>,
    pub(super) space: Arc<Namespace>,
    folder: PathBuf,
    invitation: Option<Invitation>,
}

/// An invitation that a node is to accept before it starts.
struct Invitation {
    by: usize,
    /// Lines for `tinc.conf` and the node's host file, and the script `tinc-up`.
    conf: String,
    host: String,
    up: String,
}

/// Returns a node's address on the outer network.
fn outer(at: usize, v6: bool) -> String {
    let number = at + 1;
    if v6 { format!("2001:db8:{number:x}::2") } else { format!("11.0.{number}.2") }
}

/// Returns a node's address in the net.
pub(super) fn inner(at: usize, v6: bool) -> IpAddr {
    let number = u8::try_from(at + 1).unwrap_or_default();
    if v6 {
        [0xfd09, 0, 0, 0, 0, 0, 0, u16::from(number)].into()
    } else {
        [10, 9, 0, number].into()
    }
}

impl Bed {
    /// Makes the machines and the files of a net; no node runs yet. Returns `None` if tinc is missing.
    pub(super) fn new(scenario: &Scenario<'_>, spec: &NetSpec) -> Result<Option<Self>> {
        let Some(programs) = AllPrograms::find(scenario)? else { return Ok(None) };
        let mut labels = vec!["router"];
        labels.extend(spec.nodes.iter().map(|node| node.name.as_str()));
        let mut spaces = Namespace::several(&labels)?;
        let router = spaces.remove(0);
        let nat = (!spec.behind_nat.is_empty()).then(|| Namespace::new("nat")).transpose()?;
        connect_machines(spec, &router, nat.as_ref(), &spaces)?;
        let mut nodes = Vec::new();
        for ((at, node), space) in spec.nodes.iter().enumerate().zip(spaces) {
            // Two nodes may have one name.
            let folder = scenario.folder().join(format!("{at}"));
            let invitation = match node.invited_by {
                None => None,
                Some(by) => Some(Invitation {
                    by,
                    conf: local_conf(spec),
                    host: public_lines(spec, at)?,
                    up: up_script(spec.mode, at),
                }),
            };
            if invitation.is_none() {
                write_files(spec, at, &folder)?;
            }
            let (name, kind, space) = (node.name.clone(), node.kind, Arc::new(space));
            nodes.push(Node { name, kind, daemon: None, space, folder, invitation });
        }
        Ok(Some(Self { nodes, _nat: nat, router, programs }))
    }

    /// Starts a node, and does not wait until it is ready.
    pub(super) fn spawn(&mut self, at: usize) -> Result<()> {
        let node = self.nodes.get_mut(at).context("no such node")?;
        let mut command = self.programs.daemon(node)?;
        command.args(["-D", "-d", "4"]);
        node.daemon = Some(Daemon::spawn(&node.name, command)?);
        Ok(())
    }

    /// Starts a node.
    pub(super) fn start(&mut self, at: usize) -> Result<()> {
        self.spawn(at)?;
        self.daemon(at)?.wait_for("Ready", SOON).map(drop)
    }

    /// Starts all nodes. Those that are invited join once the others run.
    pub(super) fn start_all(&mut self) -> Result<()> {
        let invited = |node: &Node| node.invitation.is_some();
        let (late, first): (Vec<usize>, Vec<usize>) =
            (0..self.nodes.len()).partition(|at| self.nodes.get(*at).is_some_and(invited));
        first.iter().try_for_each(|at| self.spawn(*at))?;
        first.iter().try_for_each(|at| self.daemon(*at)?.wait_for("Ready", SOON).map(drop))?;
        late.into_iter().try_for_each(|at| {
            self.join(at)?;
            self.start(at)
        })
    }

    /// Lets a node accept its invitation, and completes its files.
    fn join(&mut self, at: usize) -> Result<()> {
        let node = self.nodes.get_mut(at).context("no such node")?;
        let Some(Invitation { by, conf, host, up }) = node.invitation.take() else { return Ok(()) };
        let (name, folder) = (node.name.clone(), node.folder.clone());
        let url = self.tinc(by, &["invite", &name])?;
        // tinc prints more than the URL to its error stream alone.
        self.tinc_inside(at, &["join", url.trim()])?;
        append(&folder.join("tinc.conf"), &conf)?;
        append(&folder.join("hosts").join(&name), &host)?;
        file::write(folder.join("tinc-up"), &up, 0o755)
    }

    /// Ends a node by a signal.
    pub(super) fn end(&mut self, at: usize, signal: Signal) -> Result<()> {
        let node = self.nodes.get_mut(at).context("no such node")?;
        let mut daemon = node.daemon.take().context("it does not run")?;
        daemon.signal(signal)?;
        daemon.wait_exit(SOON).map(drop)
    }

    pub(super) fn daemon(&mut self, at: usize) -> Result<&mut Daemon> {
        let node = self.nodes.get_mut(at).context("no such node")?;
        node.daemon.as_mut().context("it does not run")
    }

    /// Returns the number of lines in a node's log that contain a text.
    pub(super) fn count(&self, at: usize, text: &str) -> usize {
        let daemon = self.nodes.get(at).and_then(|node| node.daemon.as_ref());
        daemon.map_or(0, |daemon| daemon.count(text))
    }

    pub(super) fn space(&self, at: usize) -> Result<&Arc<Namespace>> {
        Ok(&self.nodes.get(at).context("no such node")?.space)
    }

    /// Runs a command of `tinc` on a running node. tinc 1.0 has none.
    pub(super) fn tinc(&self, at: usize, words: &[&str]) -> Result<String> {
        self.command(at, words, |program| Command::new(program))
    }

    /// Runs a command of `tinc` on a node's machine.
    fn tinc_inside(&self, at: usize, words: &[&str]) -> Result<String> {
        let space = self.space(at)?;
        self.command(at, words, |program| space.command(&program.to_string_lossy()))
    }

    fn command(
        &self,
        at: usize,
        words: &[&str],
        start: impl FnOnce(&OsStr) -> Command,
    ) -> Result<String> {
        let node = self.nodes.get(at).context("no such node")?;
        let mut command = match node.kind {
            Kind::Adit => {
                let mut command = start(self.programs.adit.as_os_str());
                command.arg("tinc");
                command
            }
            Kind::V1_1 => {
                let (first, rest) = self.programs.real.tinc.split_first().context("no program")?;
                let mut command = start(first);
                command.args(rest);
                command
            }
            Kind::V1_0 => return Err("tinc 1.0 has no control socket".into()),
        };
        command.arg("-c").arg(&node.folder).arg("--pidfile").arg(node.folder.join("pid"));
        command.args(words);
        output(command)
    }

    /// Returns the report of a node of adit.
    pub(super) fn status(&self, at: usize) -> Result<Value> {
        let space = self.space(at)?;
        let mut command = space.command(&self.programs.adit.to_string_lossy());
        command.args(["status", "--json"]);
        let status: Value = serde_json::from_str(&output(command)?).context("JSON")?;
        let mut reports = status.as_array().into_iter().flatten();
        let report = reports.find(|it| it["tinc"]["net"] == space.name());
        report.cloned().context(format!("no {} in {status}", space.name()))
    }

    /// Returns how a node reaches another one, in the words of `tinc info`.
    pub(super) fn reachability(&self, from: usize, to: usize) -> Result<String> {
        let name = &self.nodes.get(to).context("no such node")?.name;
        let text = self.tinc(from, &["info", name])?;
        let line = text.lines().find_map(|line| line.strip_prefix("Reachability:"));
        Ok(line.context("no reachability")?.trim().to_owned())
    }

    /// Waits until a node reaches another one in a way that begins with these words. A path is looked for only while there are packets for it.
    pub(super) fn wait_for_path(&self, from: usize, to: usize, way: &str, v6: bool) -> Result<()> {
        let began = ScaledInstant::now();
        loop {
            ping(self.space(from)?, inner(to, v6), 56, 4)?;
            let found = self.reachability(from, to)?;
            if found.starts_with(way) {
                return Ok(());
            }
            let names = [from, to].map(|at| self.nodes.get(at).map_or("", |node| &node.name));
            ensure(began.elapsed() < SOON, || {
                format!("{} reaches {} {found}, and not {way}", names[0], names[1])
            })?;
        }
    }

    /// Pings until an answer comes.
    pub(super) fn wait_for_ping(&self, from: usize, to: usize, v6: bool) -> Result<()> {
        let names = [from, to].map(|at| self.nodes.get(at).map_or("", |node| &node.name));
        until(&format!("{} reaches {}", names[0], names[1]), SOON, || {
            Ok(ping(self.space(from)?, inner(to, v6), 56, 1)? == 1)
        })
    }

    /// Makes the router drop what these rules of nftables say; [`machine`] names its interfaces.
    pub(super) fn set_rules(&self, rules: &[String]) -> Result<()> {
        let rules = rules.join("\n");
        let script = format!(
            "table inet bed\ndelete table inet bed\ntable inet bed {{ chain forward {{\n\
             type filter hook forward priority 0;\n{rules}\n}}\n}}\n"
        );
        let mut nft = self.router.command("nft");
        nft.args(["-f", "-"]);
        run_with_input(nft, script).map(drop)
    }

    /// Returns what the counters in the router's rules have counted: `packets` or `bytes`.
    pub(super) fn counters(&self, unit: &str) -> Result<Vec<u64>> {
        let listing = self.router.run("nft", &["list", "chain", "inet", "bed", "forward"])?;
        let words: Vec<&str> = listing.split_whitespace().collect();
        let found = words.windows(2).filter(|pair| pair.first() == Some(&unit));
        found.map(|pair| pair.last().context("a count")?.parse().context("a count")).collect()
    }

    /// Returns the number of bytes that the machines have sent so far.
    pub(super) fn bytes_sent(&self) -> Result<u64> {
        let script = "cat /sys/class/net/lan*/statistics/rx_bytes";
        let counts = self.router.run("sh", &["-c", script])?;
        Ok(counts.lines().filter_map(|line| line.parse::<u64>().ok()).sum())
    }

    /// Returns a failure with the logs of all nodes.
    pub(super) fn blame(&self, failure: &Failure) -> Failure {
        let logs =
            self.nodes.iter().filter_map(|node| Some(node.daemon.as_ref()?.failure("log").0));
        Failure(std::iter::once(failure.0.clone()).chain(logs).collect::<Vec<_>>().join("\n"))
    }
}

/// Returns the router's interface to a machine.
pub(super) fn machine(at: usize) -> String {
    format!("lan{}", at + 1)
}

/// Returns the rules that keep two machines apart.
pub(super) fn apart(one: usize, other: usize) -> [String; 2] {
    [(one, other), (other, one)]
        .map(|(from, to)| format!("iifname {} oifname {} drop", machine(from), machine(to)))
}

impl AllPrograms {
    fn find(scenario: &Scenario<'_>) -> Result<Option<Self>> {
        let Some(real) = Programs::real() else { return Ok(None) };
        let Program::Adit(adit) = scenario.server else { return Ok(None) };
        let link = scenario.folder().join("tincd");
        if !link.exists() {
            symlink(adit, &link)?;
        }
        Ok(Some(Self { adit: adit.clone(), real }))
    }

    fn daemon(&self, node: &Node) -> Result<Command> {
        let mut command = match node.kind {
            Kind::Adit => {
                let link = node.folder.with_file_name("tincd");
                let mut command = node.space.command(&link.to_string_lossy());
                // Its sockets in /run are named after the net.
                command.args(["-n", node.space.name()]);
                command
            }
            Kind::V1_1 => {
                let (first, rest) = self.real.tincd.split_first().context("no program")?;
                let mut command = node.space.command(&first.to_string_lossy());
                command.args(rest);
                command
            }
            Kind::V1_0 => node.space.command("tincd"),
        };
        command.arg("-c").arg(&node.folder);
        command.arg(format!("--pidfile={}", node.folder.join("pid").display()));
        Ok(command)
    }
}

/// Connects all machines with the router, those behind the NAT through it.
fn connect_machines(
    spec: &NetSpec,
    router: &Namespace,
    nat: Option<&Namespace>,
    spaces: &[Namespace],
) -> Result<()> {
    for space in spaces.iter().chain([router]).chain(nat) {
        // A new address is usable at once.
        space.handle()?.set_sysctl("net.ipv6.conf.default.accept_dad", "0")?;
    }
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        router.handle()?.set_sysctl(key, "1")?;
    }
    let mut lines = Vec::new();
    let is_behind = |at: usize| spec.behind_nat.contains(&at);
    for (at, space) in spaces.iter().enumerate() {
        // The NAT has the place of the first machine behind it.
        let to = match nat {
            Some(nat) if is_behind(at) && spec.behind_nat.first() == Some(&at) => nat,
            _ if is_behind(at) => continue,
            _ => space,
        };
        let (device, number) = (machine(at), at + 1);
        lines.push(format!("link add {device} type veth peer name wan netns {}", to.name()));
        lines.push(format!("addr add 11.0.{number}.1/24 dev {device}"));
        lines.push(format!("addr add 2001:db8:{number:x}::1/64 dev {device} nodad"));
        lines.push(format!("link set {device} up"));
        ip(Some(router), lines.drain(..))?;
        let own = [
            format!("addr add {}/24 dev wan", outer(at, false)),
            format!("addr add {}/64 dev wan nodad", outer(at, true)),
            "link set wan up".to_owned(),
            format!("route add default via 11.0.{number}.1"),
            format!("route add default via 2001:db8:{number:x}::1"),
        ];
        ip(Some(to), own.into_iter())?;
    }
    if let Some(nat) = nat {
        connect_lan(spec, nat, spaces)?;
    }
    let everyone: Vec<&Namespace> = spaces.iter().chain([router]).chain(nat).collect();
    wait_for_carriers(&everyone)
}

/// Connects the machines behind the NAT. They reach each other at their local addresses only. The kernel may pass what the bridge forwards
/// through the rules as well.
fn connect_lan(spec: &NetSpec, nat: &Namespace, spaces: &[Namespace]) -> Result<()> {
    let mut lines = vec![
        "link add lan type bridge".to_owned(),
        "addr add 192.168.7.1/24 dev lan".to_owned(),
        "link set lan up".to_owned(),
    ];
    for at in &spec.behind_nat {
        let space = spaces.get(*at).context("no such node")?;
        let name = space.name();
        lines.push(format!("link add port{at} up master lan type veth peer name wan netns {name}"));
    }
    ip(Some(nat), lines.into_iter())?;
    for at in &spec.behind_nat {
        let own = [
            format!("addr add 192.168.7.{}/24 dev wan", at + 2),
            "link set wan up".to_owned(),
            "route add default via 192.168.7.1".to_owned(),
        ];
        ip(Some(spaces.get(*at).context("no such node")?), own.into_iter())?;
    }
    nat.handle()?.set_sysctl("net.ipv4.ip_forward", "1")?;
    let rules = "table ip box {
        chain out { type nat hook postrouting priority srcnat; oifname wan masquerade; }
        chain forward {
            type filter hook forward priority filter; policy drop;
            iifname lan accept
            ct state established,related accept
        }
    }";
    let mut nft = nat.command("nft");
    nft.args(["-f", "-"]);
    run_with_input(nft, rules).map(drop)
}
