//! A hub with a public address, and machines with public addresses or behind NATs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::super::Scenario;
use super::boxes::{put_behind, put_both_behind};
use adit_testbed::laptop::own_etc;
use adit_testbed::line::Line;

use crate::failure::{Context, Failure, Result, ensure};
use crate::net::{Namespace, ip};
use crate::peer::Program;
use crate::process::{Daemon, output, run_with_input};
use crate::wait::until;

/// The time limit of every wait: as long as a user would wait, because many tests run at once.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The log line of a node that is up.
const RUNS: &str = "this machine is";

/// The connection of a machine to the internet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Nat {
    /// Nothing.
    None,
    /// A NAT that keeps the port, and admits only answers.
    PortRestricted,
    /// A NAT that keeps the port, and admits everything to a port that was used.
    FullCone,
    /// A NAT that keeps the port, and admits packets from all addresses to which the machine has sent.
    AddressRestricted,
    /// Two of [`Self::PortRestricted`] in series, one of them an internet provider's.
    Double,
    /// A NAT that forwards the node's port to the machine.
    Forwarded,
    /// A NAT with a random port for each destination.
    Symmetric,
    /// A NAT that keeps the port and drops UDP.
    NoUdp,
    /// A NAT that uses the next port for each destination.
    SymmetricSequential,
    /// A NAT with this machine and the next one behind it. They reach each other only through its outer address.
    Hairpin,
    /// The NAT of the previous machine.
    SameBox,
    /// A line that can be made to lose and reorder frames: see [`MeshTestbed::line`].
    Line,
    /// A direct connection with IPv6 only.
    Ipv6,
}

/// One machine.
#[derive(Debug)]
pub(super) struct Machine {
    /// Its name in the mesh.
    pub name: String,
    /// Its namespace.
    pub space: Namespace,
    /// Its files.
    pub dir: PathBuf,
    program: PathBuf,
    daemon: Option<Daemon>,
    /// Whether it has its own /etc, in which a node may change the DNS settings.
    has_own_etc: bool,
}

/// A mesh in namespaces. The order of the fields makes processes end before their namespaces. The first machine is the hub.
#[derive(Debug)]
pub(super) struct MeshTestbed {
    pub machines: Vec<Machine>,
    /// The NATs, in the order of the machines behind them.
    pub boxes: Vec<Namespace>,
    /// The line of a machine with [`Nat::Line`].
    pub line: Option<Line>,
    internet: Namespace,
}

impl MeshTestbed {
    /// Creates a hub, and a machine behind each of these NATs.
    pub(super) fn new(scenario: &Scenario<'_>, nats: &[Nat]) -> Result<Self> {
        let internet = Namespace::new("internet")?;
        ip(Some(&internet), ["link add br0 up type bridge".to_owned()].into_iter())?;
        let hub = Namespace::new("hub")?;
        attach(&internet, &hub, 1)?;
        let has_ipv6 = nats.contains(&Nat::Ipv6);
        if has_ipv6 {
            add_ipv6(&hub, 1)?;
        }
        let mut machines = vec![Machine::new(scenario, "hub".into(), hub)?];
        let (mut boxes, mut line) = (Vec::new(), None);
        for (nat, number) in nats.iter().zip(2..) {
            let space = Namespace::new("machine")?;
            match nat {
                Nat::None => {
                    attach(&internet, &space, number)?;
                    if has_ipv6 {
                        add_ipv6(&space, number)?;
                    }
                }
                Nat::Ipv6 => {
                    attach(&internet, &space, number)?;
                    space.run("ip", &["-4", "addr", "flush", "dev", "wan"])?;
                    add_ipv6(&space, number)?;
                }
                Nat::Double => {
                    let (provider, nat_box) = (Namespace::new("provider")?, Namespace::new("nat")?);
                    attach(&internet, &provider, number)?;
                    put_behind(&provider, "10.1.0", &nat_box, "wan", Nat::PortRestricted)?;
                    put_behind(&nat_box, "10.0.0", &space, "veth0", Nat::PortRestricted)?;
                    boxes.extend([provider, nat_box]);
                }
                // The next machine connects both.
                Nat::Hairpin => {}
                Nat::SameBox => {
                    let nat_box = Namespace::new("nat")?;
                    attach(&internet, &nat_box, number)?;
                    let first = &machines.last().context("no machine before")?.space;
                    put_both_behind(&nat_box, outer(number), [first, &space])?;
                    boxes.push(nat_box);
                }
                Nat::Line => {
                    let port = format!("port{number}");
                    let bad = Line::new([(&internet, &port), (&space, "wan")])?;
                    ip(Some(&internet), [format!("link set {port} up master br0")].into_iter())?;
                    set_address(&space, number)?;
                    line = Some(bad);
                }
                _ => {
                    let nat_box = Namespace::new("nat")?;
                    attach(&internet, &nat_box, number)?;
                    put_behind(&nat_box, "10.0.0", &space, "veth0", *nat)?;
                    if *nat == Nat::NoUdp {
                        block_udp(&nat_box)?;
                    }
                    boxes.push(nat_box);
                }
            }
            machines.push(Machine::new(scenario, format!("node{number}"), space)?);
        }
        Ok(Self { machines, boxes, line, internet })
    }

    /// Creates the mesh on the hub. Returns the first token.
    pub(super) fn found(&mut self) -> Result<String> {
        self.found_with(&[])
    }

    /// Begins the mesh on the hub with these options. Returns the first token.
    pub(super) fn found_with(&mut self, options: &[&str]) -> Result<String> {
        let hub = self.machines.first_mut().context("no hub")?;
        let words = [&["up", "--name", "hub"], options].concat();
        let mut daemon = Daemon::spawn("hub", hub.node_command(&words))?;
        let token = daemon.wait_for("adit-mesh1-", LIMIT)?;
        hub.daemon = Some(daemon);
        Ok(token)
    }

    /// Creates a hub and further machines, each in its own network behind one router. Many machines on one network would fill the kernel's
    /// neighbour table, which all namespaces share.
    pub(super) fn routed(scenario: &Scenario<'_>, count: u8) -> Result<Self> {
        let internet = Namespace::new("internet")?;
        internet.run("sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
        let mut machines = Vec::new();
        for number in 1..=count {
            let name = if number == 1 { "hub".to_owned() } else { format!("node{number}") };
            let space = Namespace::new("machine")?;
            route(&internet, &space, number)?;
            machines.push(Machine::new(scenario, name, space)?);
        }
        Ok(Self { machines, boxes: Vec::new(), line: None, internet })
    }

    /// Makes all machines members.
    pub(super) fn join_all(&mut self) -> Result<()> {
        let first = self.found()?;
        for at in 1..self.machines.len() {
            let token = if at == 1 { first.clone() } else { self.invite(&[])? };
            self.join_with(at, &token)?;
        }
        Ok(())
    }

    /// Returns a token with these terms.
    pub(super) fn invite(&self, terms: &[&str]) -> Result<String> {
        let hub = self.machines.first().context("no hub")?;
        let mut words = vec!["invite"];
        words.extend(terms);
        let printed = hub.mesh(&words)?;
        let token = printed.lines().find(|line| line.starts_with("adit-mesh1-"));
        Ok(token.context("no token")?.to_owned())
    }

    /// Makes a machine a member on these terms.
    pub(super) fn join(&mut self, at: usize, terms: &[&str]) -> Result<()> {
        let token = self.invite(terms)?;
        self.join_with(at, &token)
    }

    /// Makes a machine a member with a token, and starts its node.
    pub(super) fn join_with(&mut self, at: usize, token: &str) -> Result<()> {
        self.join_only(at, token)?;
        self.up(at)
    }

    /// Makes a machine a member with a token, without starting its node.
    pub(super) fn join_only(&self, at: usize, token: &str) -> Result<()> {
        let machine = &self.machines[at];
        let joined = run_with_input(machine.join_command("-"), token)?;
        ensure(joined.contains("joined home"), || format!("{}: {joined}", machine.name))
    }

    /// Joins with the token among the arguments, as a node that keeps running.
    pub(super) fn join_by_argument(&mut self, at: usize, token: &str) -> Result<()> {
        let machine = &mut self.machines[at];
        let command = machine.node_command(&["join", token, "--name", &machine.name.clone()]);
        let mut daemon = Daemon::spawn(&machine.name, command)?;
        daemon.wait_for("joined home", LIMIT)?;
        daemon.wait_for("hub: connected", LIMIT)?;
        machine.daemon = Some(daemon);
        Ok(())
    }

    /// Begins to join with the token among the arguments, as a program that keeps running.
    pub(super) fn begin_to_join(&mut self, at: usize, token: &str) -> Result<()> {
        let machine = &mut self.machines[at];
        let command = machine.node_command(&["join", token, "--name", &machine.name.clone()]);
        machine.daemon = Some(Daemon::spawn(&machine.name, command)?);
        Ok(())
    }

    /// Starts the node of a member.
    pub(super) fn up(&mut self, at: usize) -> Result<()> {
        self.spawn(at)?;
        self.wait_until_up(at)
    }

    /// Starts the node of a member with these options.
    pub(super) fn up_with(&mut self, at: usize, options: &[&str]) -> Result<()> {
        let machine = &mut self.machines[at];
        let words = [&["up"], options].concat();
        machine.daemon = Some(Daemon::spawn(&machine.name, machine.node_command(&words))?);
        self.wait_until_up(at)
    }

    /// Starts the node of a member, without waiting for it.
    pub(super) fn spawn(&mut self, at: usize) -> Result<()> {
        let machine = &mut self.machines[at];
        machine.daemon = Some(Daemon::spawn(&machine.name, machine.node_command(&["up"]))?);
        Ok(())
    }

    pub(super) fn wait_until_up(&mut self, at: usize) -> Result<()> {
        self.daemon(at)?.wait_for(RUNS, LIMIT).map(drop)
    }

    /// Returns a figure of the memory of a node's processes in KiB, on average, such as `Pss_Anon`.
    pub(super) fn memory_kib(&self, figure: &str) -> Result<u64> {
        let mut all: u64 = 0;
        let running = self.machines.iter().filter_map(|machine| machine.daemon.as_ref());
        for daemon in running.clone() {
            for pid in with_children(daemon.pid())? {
                all = all.saturating_add(adit_testbed::process::memory_kib(pid, figure)?);
            }
        }
        Ok(all / running.count().max(1) as u64)
    }

    fn daemon(&mut self, at: usize) -> Result<&mut Daemon> {
        self.machines[at].daemon.as_mut().context("the node does not run")
    }

    /// Stops a node, which must undo everything.
    pub(super) fn stop(&mut self, at: usize) -> Result<()> {
        self.daemon(at)?.stop()
    }

    /// Kills a node.
    pub(super) fn kill(&mut self, at: usize) -> Result<()> {
        self.signal(at, Signal::SIGKILL)?;
        self.killed(at)
    }

    /// Waits for the end of a killed node.
    pub(super) fn killed(&mut self, at: usize) -> Result<()> {
        self.ended(at)?;
        let space = &self.machines[at].space;
        // Wait until its helper has undone everything, before another one starts.
        until("the device is gone", LIMIT, || Ok(!space.run("ip", &["link"])?.contains("mesh-")))
    }

    /// Deletes the files of a machine, so it can join again as a new node.
    pub(super) fn forget(&self, at: usize) -> Result<()> {
        let dir = &self.machines[at].dir;
        std::fs::remove_dir_all(dir)?;
        Ok(std::fs::create_dir(dir)?)
    }

    pub(super) fn signal(&mut self, at: usize, signal: Signal) -> Result<()> {
        self.daemon(at)?.signal(signal)
    }

    pub(super) fn pid(&mut self, at: usize) -> Result<u32> {
        Ok(self.daemon(at)?.pid())
    }

    /// Waits until a node has ended.
    pub(super) fn ended(&mut self, at: usize) -> Result<()> {
        self.daemon(at)?.wait_exit(LIMIT).map(drop)
    }

    /// Returns a node's log.
    pub(super) fn log(&mut self, at: usize) -> Result<String> {
        Ok(self.daemon(at)?.log())
    }

    pub(super) fn wait_for_line(&mut self, at: usize, line: &str) -> Result<()> {
        self.daemon(at)?.wait_for(line, LIMIT).map(drop)
    }

    /// Returns a member's addresses in the mesh, IPv4 first.
    pub(super) fn addresses(&self, at: usize) -> Result<Vec<IpAddr>> {
        let status = self.machines[at].json(&["status"])?;
        let addresses = status["addresses"].as_array().context("no addresses")?;
        let parsed = addresses.iter().map(|address| {
            address.as_str().and_then(|text| text.parse().ok()).context("an address")
        });
        parsed.collect()
    }

    pub(super) fn ipv4(&self, at: usize) -> Result<IpAddr> {
        self.addresses(at)?.into_iter().find(IpAddr::is_ipv4).context("no IPv4 address")
    }

    /// Returns how a member reaches another one: `direct`, `relay`, `connecting` or `none`.
    pub(super) fn route(&self, from: usize, to: usize) -> Result<String> {
        let peer = self.peer(from, to)?;
        Ok(peer["route"].as_str().context("no route")?.to_owned())
    }

    /// Returns a member's report on another one.
    pub(super) fn peer(&self, from: usize, to: usize) -> Result<Value> {
        let peers = self.machines[from].json(&["peers"])?;
        let peers = peers.as_array().context("no peers")?;
        let peer = peers.iter().find(|peer| peer["name"] == self.machines[to].name.as_str());
        peer.cloned().context("no such peer")
    }

    pub(super) fn wait_for_route(&self, from: usize, to: usize, route: &str) -> Result<()> {
        until(&format!("the route is {route}"), LIMIT, || Ok(self.route(from, to)? == route))
    }
}

impl Machine {
    fn new(scenario: &Scenario<'_>, name: String, space: Namespace) -> Result<Self> {
        let Program::Adit(program) = scenario.server else {
            return Err(Failure::from("only adit does that"));
        };
        let dir = scenario.folder().join(&name);
        std::fs::create_dir(&dir)?;
        Ok(Self { name, space, dir, program: program.clone(), daemon: None, has_own_etc: false })
    }

    /// Returns `adit mesh WORDS` with this machine's files.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.space.command(&self.program.to_string_lossy());
        command.arg("mesh").args(words).arg("--dir").arg(&self.dir);
        command
    }

    /// Returns the command of a node that keeps running.
    pub(super) fn node_command(&self, words: &[&str]) -> Command {
        let mut command = self.command(words);
        command.args(["--dns", if self.has_own_etc { "on" } else { "off" }]);
        command
    }

    /// Writes its `mesh.toml`.
    pub(super) fn set(&self, settings: &str) -> Result<()> {
        let folder = self.dir.join("mesh/home");
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::write(folder.join("mesh.toml"), settings)?)
    }

    /// Gives the machine its own /etc. Returns its folder.
    pub(super) fn separate_etc(&mut self) -> Result<PathBuf> {
        let etc = own_etc(&self.dir.join("etc"))?;
        self.space.separate_files(&etc)?;
        self.has_own_etc = true;
        Ok(etc)
    }

    fn join_command(&self, token: &str) -> Command {
        self.command(&["join", token, "--no-up", "--name", &self.name])
    }

    /// Runs a verb to completion. Returns its output.
    pub(super) fn mesh(&self, words: &[&str]) -> Result<String> {
        output(self.command(words))
    }

    /// Runs a command other than `adit mesh` to completion, with this machine's files. Returns its output.
    pub(super) fn adit(&self, words: &[&str]) -> Result<String> {
        let mut command = self.space.command(&self.program.to_string_lossy());
        command.args(words).arg("--dir").arg(&self.dir);
        output(command)
    }

    /// Returns the number of packets that the running node has dropped for this reason.
    pub(super) fn drops(&self, reason: &str) -> Result<u64> {
        let status = self.adit(&["status", "--json"])?;
        let status: Value = serde_json::from_str(&status).context("JSON")?;
        let drops = status[0]["drops"].as_object().context("no drops")?;
        Ok(drops.get(reason).and_then(Value::as_u64).unwrap_or_default())
    }

    /// Runs a verb that prints JSON.
    pub(super) fn json(&self, words: &[&str]) -> Result<Value> {
        let mut command = self.command(words);
        command.arg("--json");
        serde_json::from_str(&output(command)?).context("JSON")
    }

    /// Runs a verb that fails. Returns the message.
    pub(super) fn refused(&self, words: &[&str]) -> Result<String> {
        match output(self.command(words)) {
            Ok(printed) => Err(Failure(format!("it succeeded: {printed}"))),
            Err(failure) => Ok(failure.to_string()),
        }
    }

    /// Runs a verb to completion with this input. Returns its output.
    pub(super) fn mesh_with_input(&self, words: &[&str], input: &str) -> Result<String> {
        run_with_input(self.command(words), input)
    }

    /// Runs a verb that fails with this input. Returns the message.
    pub(super) fn refused_with_input(&self, words: &[&str], input: &str) -> Result<String> {
        match self.mesh_with_input(words, input) {
            Ok(printed) => Err(Failure(format!("it succeeded: {printed}"))),
            Err(failure) => Ok(failure.to_string()),
        }
    }

    /// Tries to join, which fails. Returns the message.
    pub(super) fn join_refused(&self, token: &str) -> Result<String> {
        match run_with_input(self.join_command("-"), token) {
            Ok(printed) => Err(Failure(format!("it joined: {printed}"))),
            Err(failure) => Ok(failure.to_string()),
        }
    }
}

/// Returns a process and its children: a node's helper is one.
fn with_children(pid: u32) -> Result<Vec<u32>> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(std::iter::once(pid).chain(listed.split_whitespace().flat_map(str::parse)).collect())
}

/// Connects a host outside the mesh to the internet. Returns its address.
pub(super) fn add_to_internet(bed: &MeshTestbed, host: &Namespace, number: u8) -> Result<IpAddr> {
    attach(&bed.internet, host, number)?;
    Ok(outer(number))
}

/// Connects a namespace to the internet with the address 11.0.0.NUMBER. Do not use an address reserved for documentation: miniupnpd maps no
/// ports for those.
fn attach(internet: &Namespace, space: &Namespace, number: u8) -> Result<()> {
    let peer = format!("type veth peer name wan netns {}", space.name());
    let port = format!("link add port{number} up master br0 {peer}");
    ip(Some(internet), [port].into_iter())?;
    set_address(space, number)
}

fn set_address(space: &Namespace, number: u8) -> Result<()> {
    let lines = [format!("addr add {}/24 dev wan", outer(number)), "link set wan up".to_owned()];
    ip(Some(space), lines.into_iter())
}

/// Returns the public address with this number.
pub(super) fn outer(number: u8) -> IpAddr {
    [11, 0, 0, number].into()
}

fn add_ipv6(space: &Namespace, number: u8) -> Result<()> {
    let line = format!("addr add 2001:db8:11::{number}/64 dev wan nodad");
    ip(Some(space), [line].into_iter())
}

/// Connects a namespace to a router with the address 11.0.NUMBER.2.
fn route(router: &Namespace, space: &Namespace, number: u8) -> Result<()> {
    let link = format!("link add lan{number} type veth peer name wan netns {}", space.name());
    let lines = [
        link,
        format!("addr add 11.0.{number}.1/24 dev lan{number}"),
        format!("link set lan{number} up"),
    ];
    ip(Some(router), lines.into_iter())?;
    let lines = [
        format!("addr add 11.0.{number}.2/24 dev wan"),
        "link set wan up".to_owned(),
        format!("route add default via 11.0.{number}.1"),
    ];
    ip(Some(space), lines.into_iter())
}

/// Makes a router drop the UDP packets of the machine behind it.
pub(super) fn block_udp(router: &Namespace) -> Result<()> {
    let rules = "table ip no_udp {
        chain forward {
            type filter hook forward priority filter - 1;
            meta l4proto udp drop
        }
    }";
    let mut nft = router.command("nft");
    nft.args(["-f", "-"]);
    run_with_input(nft, rules).map(drop)
}

/// Undoes [`block_udp`].
pub(super) fn allow_udp(router: &Namespace) -> Result<()> {
    router.run("nft", &["delete", "table", "ip", "no_udp"]).map(drop)
}

/// The rules that miniupnpd changes.
const MAPPED_PORTS: &str = "table inet mapped {
    chain prerouting { type nat hook prerouting priority dstnat; jump ports; }
    chain ports { }
    chain postrouting { }
    chain forward { }
}";

/// miniupnpd's settings: PCP and NAT-PMP on the machine's side.
const MINIUPNPD: &str = "\
ext_ifname=wan
listening_ip=lan
port=0
enable_upnp=no
enable_natpmp=yes
secure_mode=yes
upnp_table_name=mapped
upnp_nat_table_name=mapped
upnp_forward_chain=forward
upnp_nat_chain=ports
upnp_nat_postrouting_chain=postrouting
uuid=00000000-0000-0000-0000-000000000000
allow 1024-65535 10.0.0.0/24 1024-65535
";

/// Makes a NAT map ports on request; `folder` is for its files.
pub(super) fn start_miniupnpd(nat_box: &Namespace, folder: &Path) -> Result<Daemon> {
    let mut nft = nat_box.command("nft");
    nft.args(["-f", "-"]);
    run_with_input(nft, MAPPED_PORTS)?;
    let file = folder.join("miniupnpd.conf");
    std::fs::write(&file, MINIUPNPD)?;
    let mut command = nat_box.command("miniupnpd");
    command.args(["-d", "-f"]).arg(&file).arg("-P").arg(folder.join("miniupnpd.pid"));
    let mut daemon = Daemon::spawn("miniupnpd", command)?;
    daemon.wait_for("Listening for NAT-PMP/PCP traffic", LIMIT)?;
    Ok(daemon)
}

/// Returns the ports that a NAT maps, as nftables rules.
pub(super) fn mapped_ports(nat_box: &Namespace) -> Result<String> {
    let rules = nat_box.run("nft", &["list", "chain", "inet", "mapped", "ports"])?;
    Ok(rules.lines().filter(|line| line.contains("dnat")).collect())
}
