//! A database and nodes that reach only the database, set up as a user would.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::super::Scenario;
use crate::failure::{Context, Failure, Result, ensure};
use crate::net::{Host, Namespace, Offload, configure_veth, ip, star, wait_for_carriers};
use crate::peer::Program;
use crate::postgres::{Cluster, Options, ROOT};
use crate::process::{Daemon, command_line, output, run};
use crate::traffic::ping;
use crate::wait::ScaledInstant;
pub(super) use crate::wait::until;

/// The time limit of every wait, as long as a user would wait, because many tests run at once.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// A node's log line when its packets can pass.
const READY: &str = "packets of up to";

/// The role that may create roles and owns the database; its password is the same word.
pub(super) const ADMIN: &str = "admin";
pub(super) const PASSWORD: &str = "Very5ecret-of-the-admin";
/// The address of the database.
pub(super) const DATABASE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// One machine of the network.
#[derive(Debug)]
pub(super) struct Node {
    /// Its name in the network.
    pub name: String,
    /// Its machine.
    pub space: Namespace,
    /// Its files.
    pub dir: PathBuf,
    /// `adit postgres up`, while it runs.
    pub daemon: Option<Daemon>,
    program: PathBuf,
}

/// The parameters of a network.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan<'a> {
    /// Settings of the database's server.
    pub settings: &'a [(&'a str, &'a str)],
    /// Further arguments of `init`.
    pub init: &'a [&'a str],
    /// Further arguments of `init` or `join` of each node.
    pub each: &'a [&'a [&'a str]],
    /// Parameters of the URL, such as `sslmode=disable`.
    pub parameters: &'a str,
    /// The hosts at which the nodes look for the database, instead of its actual address and port.
    pub hosts: Option<&'a str>,
}

/// The database and the nodes. The order of the fields makes processes end before their namespaces.
#[derive(Debug)]
pub(super) struct PostgresTestbed {
    /// The machines, in order; the first has created the network.
    pub nodes: Vec<Node>,
    /// The database.
    pub cluster: Cluster,
    /// Its machine.
    pub database: Namespace,
    switch: Namespace,
}

impl PostgresTestbed {
    /// Creates machines and a database, without a network.
    pub(super) fn bare(scenario: &Scenario<'_>, nodes: u8, options: &Options<'_>) -> Result<Self> {
        let Program::Adit(program) = scenario.server else {
            return Err(Failure::from("only adit does that"));
        };
        let host = |label: String, number: u8| -> Result<Host> {
            let v4 = Ipv4Addr::new(192, 0, 2, number).into();
            let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()).into();
            let net = |address, length| IpNet::new(address, length).context("a prefix length");
            Ok((label, vec![net(v4, 24)?, net(v6, 64)?]))
        };
        let mut hosts = vec![host("database".to_owned(), 1)?];
        for number in 1..=nodes {
            hosts.push(host(format!("node{number}"), 10 + number)?);
        }
        let (switch, mut spaces) = star(&hosts, Offload::All)?;
        let database = spaces.remove(0);
        let options = Options { namespace: Some(&database), ..*options };
        if std::env::var_os(ROOT).is_some() {
            // A server in a separate root sees later mounts.
            run("mount", &["--make-rshared", "/"])?;
        }
        let cluster = Cluster::start(&scenario.folder().join("pg"), &options)?;
        cluster.create(ADMIN, PASSWORD, "CREATEROLE")?;
        let node = |(space, number)| -> Result<Node> {
            let dir = scenario.folder().join(format!("node{number}"));
            fs::create_dir(&dir)?;
            let name = format!("n{number}");
            Ok(Node { name, space, dir, daemon: None, program: program.clone() })
        };
        let nodes = spaces.into_iter().zip(1..).map(node).collect::<Result<Vec<_>>>()?;
        Ok(Self { nodes, cluster, database, switch })
    }

    /// Creates a network of this many nodes, all of which are running.
    pub(super) fn new(scenario: &Scenario<'_>, nodes: u8, plan: &Plan<'_>) -> Result<Self> {
        let options = Options { settings: plan.settings, ..Options::default() };
        let mut bed = Self::bare(scenario, nodes, &options)?;
        bed.found(plan)?;
        bed.up()?;
        Ok(bed)
    }

    /// Returns the URL of the user who creates the network.
    pub(super) fn url(&self, plan: &Plan<'_>) -> String {
        let hosts = plan.hosts.map_or_else(|| DATABASE.to_string(), str::to_owned);
        // TLS has a separate test.
        let parameters =
            if plan.parameters.is_empty() { "sslmode=disable" } else { plan.parameters };
        format!("postgres://{ADMIN}:{PASSWORD}@{hosts}/{ADMIN}?{parameters}")
    }

    /// Creates the network at the first node, and makes the others join it with the command that the first prints.
    pub(super) fn found(&self, plan: &Plan<'_>) -> Result<()> {
        let (first, others) = self.nodes.split_first().context("no node")?;
        let url = self.url(plan);
        let mut words = vec!["init", &url, "--network", "10.9.0.0/24", "--network6", "fd09::/64"];
        // The nodes are started when all have joined.
        words.extend(["--name", &first.name, "--offline"]);
        words.extend(plan.init);
        words.extend(plan.each.first().copied().unwrap_or_default());
        let mut told = first.adit(&words)?;
        for (at, node) in others.iter().enumerate() {
            if at > 0 {
                told = first.adit(&["invite", "--offline"])?;
            }
            let url = invitation(&told)?;
            let mut words = vec!["join", &url, "--name", &node.name];
            words.extend(plan.each.get(at + 1).copied().unwrap_or_default());
            node.adit(&words)?;
        }
        Ok(())
    }

    /// Starts all nodes and waits until each one reaches all others over IPv4.
    pub(super) fn up(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            node.spawn()?;
        }
        for node in &mut self.nodes {
            node.wait_up()?;
        }
        // A row that was written before the other node's reader starts is not delivered.
        for node in &self.nodes {
            until("both connections of the node are up", LIMIT, || {
                let status = node.status()?;
                let up = |side: &str| status.pointer(side).and_then(Value::as_bool);
                Ok(up("/reader/up") == Some(true) && up("/writer/up") == Some(true))
            })?;
        }
        for at in 1..self.nodes.len() {
            self.reach(0, at)?;
        }
        Ok(())
    }

    /// Connects another machine, which the nodes can reach, to the switch.
    pub(super) fn attach(&self, machine: &Namespace, address: &str) -> Result<()> {
        let veth = format!(
            "link add more up master bridge type veth peer name veth0 netns {}",
            machine.name()
        );
        ip(Some(&self.switch), [veth].into_iter())?;
        configure_veth(machine, &[address.parse().context(address)?], Offload::All)?;
        wait_for_carriers(&[machine, &self.switch])
    }

    /// Waits until one node gets an answer to a ping from the other.
    pub(super) fn reach(&self, from: usize, to: usize) -> Result<()> {
        let begun = ScaledInstant::now();
        let address = self.node(to)?.v4()?;
        while ping(&self.node(from)?.space, address, 56, 1)? == 0 {
            ensure(begun.elapsed() < LIMIT, || {
                self.failure_with_logs(&format!("no ping to {address}"))
            })?;
        }
        Ok(())
    }

    /// Returns a node.
    pub(super) fn node(&self, at: usize) -> Result<&Node> {
        self.nodes.get(at).context("no such node")
    }

    /// Returns a node to be started or ended.
    pub(super) fn node_mut(&mut self, at: usize) -> Result<&mut Node> {
        self.nodes.get_mut(at).context("no such node")
    }

    /// Runs SQL in the network's database, as the superuser.
    pub(super) fn sql(&self, sql: &str) -> Result<String> {
        self.cluster.sql(ADMIN, sql)
    }

    /// Queries a number with SQL.
    pub(super) fn number(&self, sql: &str) -> Result<i64> {
        self.cluster.number(ADMIN, sql)
    }

    /// Waits until one node has counted as many rows from the other as the tables contain. Every row was delivered, or
    /// was read when it was too old to be delivered, and there were no others. Returns the number of late rows, which
    /// is 0 except on a machine that is too busy. There must be no rows from before the receiver's start.
    pub(super) fn all_accounted(&self, from: usize, to: usize) -> Result<u64> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        let (mut last, mut late) = (String::new(), 0);
        let same = until("the receiver's counters are the table's", LIMIT, || {
            let rows = self.sql(&format!(
                "SELECT count(*), coalesce(sum(len), 0) FROM adit.log WHERE \"from\" = '{}' AND \"to\" = '{}'",
                from.name, to.name
            ))?;
            let packets = to.count(&from.name, "/received/packets")?;
            let bytes = to.count(&from.name, "/received/bytes")?;
            let expired = to.count(&from.name, "/received/drops/expired")?;
            late = expired + to.count(&from.name, "/received/drops/skipped")?;
            last = format!("{packets}|{bytes} received, {late} late, {rows} in the tables");
            let all = rows.split_once('|').and_then(|(count, _)| count.parse().ok());
            Ok(match late {
                0 => rows == format!("{packets}|{bytes}"),
                _ => all == Some(packets + late),
            })
        });
        same.map_err(|failure| Failure(self.failure_with_logs(&format!("{failure}: {last}"))))?;
        let dropped = to.dropped(&from.name)?;
        ensure(dropped == late, || {
            self.failure_with_logs(&format!("{dropped} dropped, {late} of them late"))
        })?;
        Ok(late)
    }

    /// Returns a failure with the last log lines of the nodes.
    pub(super) fn failure_with_logs(&self, what: &str) -> String {
        let running = self.nodes.iter().filter_map(|node| node.daemon.as_ref());
        let said: Vec<String> = running.map(|daemon| daemon.failure("").0).collect();
        format!("{what}\n{}", said.join("\n"))
    }

    /// Adds the last log lines of the nodes to a failure.
    pub(super) fn blame<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|failure| Failure(self.failure_with_logs(&failure.0)))
    }
}

impl Node {
    /// Runs `adit postgres` to completion, with these arguments and this node's files.
    pub(super) fn adit(&self, words: &[&str]) -> Result<String> {
        output(self.command(words))
    }

    /// Runs a command that must fail, and returns its output.
    pub(super) fn refused(&self, words: &[&str]) -> Result<String> {
        let done = self.command(words).output()?;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        let verb = words.first().copied().unwrap_or_default();
        ensure(!done.status.success(), || format!("{verb} succeeded: {said}"))?;
        Ok(said)
    }

    /// Returns the command without running it.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.space.command(&self.program.to_string_lossy());
        command.arg("postgres").args(words).arg("--dir").arg(&self.dir);
        command
    }

    /// Starts `adit postgres up`.
    pub(super) fn spawn(&mut self) -> Result<()> {
        self.daemon = Some(Daemon::spawn(&self.name, self.command(&["up"]))?);
        Ok(())
    }

    /// Waits until the node reports that it is up.
    pub(super) fn wait_up(&mut self) -> Result<()> {
        self.running()?.wait_for(READY, LIMIT).map(drop)
    }

    /// Returns the node's process.
    pub(super) fn running(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().context("the node does not run")
    }

    /// Kills the node with `kill -9`.
    pub(super) fn kill(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("the node does not run")?;
        daemon.signal(Signal::SIGKILL)?;
        daemon.wait_exit(LIMIT).map(drop)
    }

    /// Stops the node in an orderly way.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.daemon.take().context("the node does not run")?.stop()
    }

    /// Returns the path of one of the node's files for its only network.
    pub(super) fn file(&self, name: &str) -> Result<PathBuf> {
        fn find(folder: &std::path::Path, name: &str) -> Option<PathBuf> {
            fs::read_dir(folder).ok()?.flatten().find_map(|entry| match entry.path() {
                path if path.is_dir() => find(&path, name),
                path if path.file_name()? == name => Some(path),
                _ => None,
            })
        }
        find(&self.dir, name).context(format!("{name} of {}", self.name))
    }

    fn addresses(&self) -> Result<Vec<IpAddr>> {
        let text = fs::read_to_string(self.file("node.toml")?)?;
        let line = text.lines().find_map(|line| line.strip_prefix("addresses = "));
        let words = line.unwrap_or_default().split('"');
        Ok(words.filter_map(|word| word.parse::<IpNet>().ok()).map(|net| net.addr()).collect())
    }

    /// Returns its IPv4 address in the network.
    pub(super) fn v4(&self) -> Result<IpAddr> {
        self.addresses()?.into_iter().find(IpAddr::is_ipv4).context("no IPv4 address")
    }

    /// Returns its IPv6 address in the network.
    pub(super) fn v6(&self) -> Result<IpAddr> {
        self.addresses()?.into_iter().find(IpAddr::is_ipv6).context("no IPv6 address")
    }

    /// Returns the part about the network of the running node's `status`.
    pub(super) fn status(&self) -> Result<Value> {
        let mut command = self.space.command(&self.program.to_string_lossy());
        command.args(["status", "--json", "--dir"]).arg(&self.dir);
        let shown = command_line(&command);
        let text = output(command)?;
        let all: Value = serde_json::from_str(&text).context(&shown)?;
        let one = all.get(0).unwrap_or(&all);
        let part = one.get("postgres").unwrap_or(one);
        ensure(part.get("writer").is_some(), || format!("{shown}: {text}"))?;
        Ok(part.clone())
    }

    /// Returns a counter of packets from another node: `/received/packets`, `/received/drops/...`. Zero as long as the
    /// node has not read anything from that node.
    pub(super) fn count(&self, other: &str, pointer: &str) -> Result<u64> {
        let status = self.status()?;
        let nodes = status.get("nodes").and_then(Value::as_array);
        let peer = nodes
            .into_iter()
            .flatten()
            .find(|node| node.get("name").and_then(Value::as_str) == Some(other));
        Ok(peer.and_then(|peer| peer.pointer(pointer)?.as_u64()).unwrap_or(0))
    }

    /// Returns the number of all packets from another node that were dropped, for any reason.
    pub(super) fn dropped(&self, other: &str) -> Result<u64> {
        let status = self.status()?;
        let nodes = status.get("nodes").and_then(Value::as_array);
        let of = nodes
            .into_iter()
            .flatten()
            .find(|node| node.get("name").and_then(Value::as_str) == Some(other));
        let drops = of.and_then(|node| node.pointer("/received/drops")?.as_object());
        Ok(drops.into_iter().flat_map(|drops| drops.values()).filter_map(Value::as_u64).sum())
    }
}

/// Returns the URL in the command that the first node prints for the next machine.
pub(super) fn invitation(told: &str) -> Result<String> {
    let url = told
        .split(|c: char| c.is_whitespace() || c == '\'')
        .find(|word| word.starts_with("postgres") && word.contains("://") && word.contains('#'));
    url.map(str::to_owned).context(format!("no URL with a token in: {told}"))
}
