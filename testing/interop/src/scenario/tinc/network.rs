//! How `tincd` of adit joins, connects and reloads, with nodes of adit and of tinc 1.1 that have no device. All listen on the loopback of one
//! namespace, on ports of their own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use super::super::Scenario;
use super::super::proxies::{HTTP_PORT, SOCKS_PORT};
use super::SOON;
use super::commands::{End, Ran};
use super::programs::Programs;
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::{Namespace, Pair};
use crate::process::Daemon;
use crate::wait::until;

/// Eight days: longer than an invitation is valid.
const LONG_AGO: Duration = Duration::from_secs(8 * 86_400);

/// The limit for a net in which each node opens a connection every five seconds.
const SETTLED: Duration = Duration::from_secs(90);

/// The address of a node that only the proxy's host reaches.
const HIDDEN: &str = "198.18.0.1";

/// The programs of both implementations.
struct Both {
    adit: Programs,
    tinc: Programs,
}

impl Both {
    /// Returns `None` if tinc 1.1 is missing.
    fn find(scenario: &Scenario<'_>) -> Result<Option<Self>> {
        let Some(tinc) = Programs::real() else { return Ok(None) };
        let (adit, _) = Programs::of_adit(scenario)?;
        Ok(Some(Self { adit, tinc }))
    }
}

/// A node.
struct Node<'a> {
    name: String,
    commands: End<'a>,
    daemon: Vec<OsString>,
}

impl<'a> Node<'a> {
    fn new(namespace: &'a Namespace, folder: PathBuf, name: &str, programs: &Programs) -> Self {
        let commands = End { namespace, program: programs.tinc.clone(), folder };
        Self { name: name.to_owned(), commands, daemon: programs.tincd.clone() }
    }

    /// Creates the files of a node at an address.
    fn init(&self, address: &str, port: u16) -> Result<()> {
        self.done(&format!("init {}", self.name))?;
        self.set(&[&format!("Port {port}"), &format!("Address {address}")])?;
        self.without_device()
    }

    fn without_device(&self) -> Result<()> {
        self.set(&["DeviceType dummy", "AddressFamily ipv4", "LocalDiscovery no"])
    }

    fn set(&self, lines: &[&str]) -> Result<()> {
        lines.iter().try_for_each(|line| self.done(&format!("set {line}")).map(drop))
    }

    fn done(&self, words: &str) -> Result<Ran> {
        self.commands.done(words, "")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.commands.folder.join(name)
    }

    /// Appends a line to a file, without telling the daemon.
    fn append(&self, name: &str, line: &str) -> Result<()> {
        let text = fs::read_to_string(self.path(name)).context(name.to_owned())?;
        Ok(fs::write(self.path(name), format!("{text}\n{line}\n"))?)
    }

    /// Gives both nodes each other's host file.
    fn introduce(&self, other: &Self) -> Result<()> {
        other.commands.done("import", &self.done("export")?.out)?;
        self.commands.done("import", &other.done("export")?.out).map(drop)
    }

    fn start(&self) -> Result<Daemon> {
        let end = End {
            namespace: self.commands.namespace,
            program: self.daemon.clone(),
            folder: self.commands.folder.clone(),
        };
        // Its net's name makes the daemon's own control socket unique: all namespaces share /run.
        let net = format!("{}-{}", self.commands.namespace.name(), self.name);
        let command = end.command(&self.commands.folder, &format!("-D -d 3 -n {net}"))?;
        let mut daemon = Daemon::spawn(&self.name, command)?;
        daemon.wait_for("Ready", SOON)?;
        Ok(daemon)
    }

    fn dump(&self, what: &str) -> Result<String> {
        // A daemon that starts or ends has no socket.
        Ok(self.commands.run(&format!("dump {what}"), "")?.out)
    }

    fn until_reachable(&self, other: &str, daemon: &Daemon) -> Result<()> {
        let line = format!("{other} id ");
        until(&format!("{other} is reachable"), SOON, || {
            Ok(self.dump("reachable nodes")?.lines().any(|found| found.starts_with(&line)))
        })
        .map_err(|failure| daemon.failure(&failure.0))
    }

    fn connections(&self) -> Result<Vec<String>> {
        let text = self.dump("connections")?;
        let names = text.lines().filter_map(|line| line.split(' ').next());
        let names = names.filter(|name| !name.starts_with('<')).map(str::to_owned);
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    }
}

/// `tincd` of adit lets nodes of tinc 1.1 and of adit join, and refuses used, invented and expired invitations.
pub(super) fn invitations(scenario: &Scenario<'_>) -> Result<String> {
    let Some(programs) = Both::find(scenario)? else { return Ok("skipped".to_owned()) };
    let namespace = Namespace::new("tinc")?;
    let folder = |name: &str| scenario.folder().join(name);
    let alice = Node::new(&namespace, folder("alice"), "alice", &programs.adit);
    alice.init("127.0.0.1", 7001)?;
    let script = alice.path("invitation-accepted");
    file::write(&script, "#!/bin/sh\necho \"$NAME $NODE $REMOTEADDRESS\" >> accepted\n", 0o755)?;
    let mut daemon = alice.start()?;
    let joiners = [("bob", &programs.tinc, 7002), ("carol", &programs.adit, 7003)];
    let mut daemons = Vec::new();
    for (at, (name, programs, port)) in joiners.into_iter().enumerate() {
        let url = alice.done(&format!("invite {name}"))?.out.trim().to_owned();
        let other =
            |why: &str| Node::new(&namespace, folder(&format!("{name}-{why}")), name, programs);
        let invented = format!("{}{}", &url[..url.len() - 24], "A".repeat(24));
        let refused = other("invented").commands.run(&format!("join {invented}"), "")?;
        ensure(refused.code != Some(0), || format!("an invented cookie: {refused:?}"))?;
        daemon.wait_for_nth("used, withdrawn or invented", 2 * at + 1, SOON)?;
        let node = Node::new(&namespace, folder(name), name, programs);
        node.done(&format!("join {url}")).map_err(|failure| daemon.failure(&failure.0))?;
        let host = fs::read_to_string(alice.path(&format!("hosts/{name}")))?;
        let own = fs::read_to_string(node.path(&format!("hosts/{name}")))?;
        let key = |text: &str| text.lines().find(|it| it.starts_with("Ed25519")).map(str::to_owned);
        ensure(key(&host).is_some() && key(&host) == key(&own), || format!("{host} {own}"))?;
        let refused = other("again").commands.run(&format!("join {url}"), "")?;
        ensure(refused.code != Some(0), || format!("a used invitation: {refused:?}"))?;
        daemon.wait_for_nth("used, withdrawn or invented", 2 * at + 2, SOON)?;
        node.set(&[&format!("Port {port}")])?;
        node.without_device()?;
        daemons.push(node.start()?);
        alice.until_reachable(name, &daemon)?;
    }
    let expected = "alice bob 127.0.0.1\nalice carol 127.0.0.1\n";
    until("the script ran for both", SOON, || {
        Ok(fs::read_to_string(alice.path("accepted")).is_ok_and(|text| text == expected))
    })?;
    let url = alice.done("invite dave")?.out.trim().to_owned();
    for entry in fs::read_dir(alice.path("invitations"))?.flatten() {
        File::options()
            .write(true)
            .open(entry.path())?
            .set_modified(SystemTime::now() - LONG_AGO)?;
    }
    let dave = Node::new(&namespace, folder("dave"), "dave", &programs.adit);
    let refused = dave.commands.run(&format!("join {url}"), "")?;
    ensure(refused.code != Some(0), || format!("an expired invitation: {refused:?}"))?;
    daemon.wait_for("expired", SOON)?;
    ensure(!alice.path("hosts/dave").exists(), || "dave has joined".to_owned())?;
    let left = alice.done("dump invitations")?;
    ensure(left.out.is_empty(), || format!("{left:?}"))?;
    Ok("tinc and adit joined".to_owned())
}

/// Nodes of both kinds without a ConnectTo line open three connections each.
pub(super) fn auto_connect(scenario: &Scenario<'_>) -> Result<String> {
    let Some(programs) = Both::find(scenario)? else { return Ok("skipped".to_owned()) };
    let namespace = Namespace::new("tinc")?;
    let kinds = [&programs.adit, &programs.tinc, &programs.adit, &programs.tinc, &programs.adit];
    let mut nodes = Vec::new();
    for (port, programs) in (7001..).zip(kinds) {
        let name = format!("n{port}");
        let node = Node::new(&namespace, scenario.folder().join(&name), &name, programs);
        node.init("127.0.0.1", port)?;
        nodes.push(node);
    }
    for (at, node) in nodes.iter().enumerate() {
        nodes.iter().take(at).try_for_each(|other| node.introduce(other))?;
    }
    let daemons: Vec<Daemon> = nodes.iter().map(Node::start).collect::<Result<_>>()?;
    let counts = || -> Result<Vec<usize>> {
        nodes.iter().map(|node| Ok(node.connections()?.len())).collect()
    };
    until("three connections of each node", SETTLED, || {
        Ok(counts()?.iter().all(|count| *count >= 3))
    })
    .map_err(|failure| daemons[0].failure(&failure.0))?;
    Ok(format!("{:?} connections", counts()?))
}

/// Nodes that know only the one between them learn each other's keys over the net, and still know them after a restart.
pub(super) fn learned_keys(scenario: &Scenario<'_>) -> Result<String> {
    let Some(programs) = Both::find(scenario)? else { return Ok("skipped".to_owned()) };
    let namespace = Namespace::new("tinc")?;
    let kinds = [&programs.adit, &programs.tinc, &programs.adit];
    let nodes: Vec<Node<'_>> = ["alice", "bob", "carol"]
        .iter()
        .zip(kinds)
        .map(|(name, kind)| Node::new(&namespace, scenario.folder().join(name), name, kind))
        .collect();
    let [alice, bob, carol] = &nodes[..] else { return Err("three nodes".into()) };
    for (port, node) in (7001..).zip(&nodes) {
        node.init("127.0.0.1", port)?;
    }
    for node in [alice, carol] {
        node.introduce(bob)?;
        node.set(&["ConnectTo bob"])?;
    }
    let _bob = bob.start()?;
    let _carol = carol.start()?;
    let mut daemon = alice.start()?;
    let own = fs::read_to_string(carol.path("hosts/carol"))?;
    let key = own.lines().find(|line| line.starts_with("Ed25519")).context("carol's key")?;
    let learned = "Learned the key of carol";
    daemon.wait_for(learned, SOON)?;
    let stored = alice.path("hosts/carol");
    until("the key is stored", SOON, || {
        Ok(fs::read_to_string(&stored).is_ok_and(|text| text == format!("{key}\n")))
    })
    .map_err(|failure| daemon.failure(&failure.0))?;
    daemon.stop()?;
    let daemon = alice.start()?;
    alice.until_reachable("carol", &daemon)?;
    alice.done("reload")?;
    ensure(daemon.count(learned) == 0, || daemon.log())?;
    Ok("a key in a new host file".to_owned())
}

/// SIGALRM tries at once, and a node that was reached is found again without its `Address`.
pub(super) fn outgoing(scenario: &Scenario<'_>) -> Result<String> {
    let Some(programs) = Both::find(scenario)? else { return Ok("skipped".to_owned()) };
    let namespace = Namespace::new("tinc")?;
    let folder = |name: &str| scenario.folder().join(name);
    let alice = Node::new(&namespace, folder("alice"), "alice", &programs.adit);
    let bob = Node::new(&namespace, folder("bob"), "bob", &programs.tinc);
    alice.init("127.0.0.1", 7001)?;
    bob.init("127.0.0.1", 7002)?;
    alice.introduce(&bob)?;
    alice.set(&["ConnectTo bob", "AutoConnect no"])?;
    bob.set(&["AutoConnect no"])?;
    let mut daemon = alice.start()?;
    let attempt = "Trying to connect to 127.0.0.1 port 7002";
    daemon.wait_for(attempt, SOON)?;
    // By themselves, further attempts come after 5, 10, 15, 20, 25 and more seconds.
    for count in 2..=10 {
        until("another attempt", SOON, || {
            daemon.signal(Signal::SIGALRM)?;
            Ok(daemon.count(attempt) >= count)
        })?;
    }
    let _bob = bob.start()?;
    daemon.signal(Signal::SIGALRM)?;
    alice.until_reachable("bob", &daemon)?;
    daemon.stop()?;
    let cache = fs::read_to_string(alice.path("cache/adit.addresses"))?;
    ensure(cache == "bob 127.0.0.1:7002\n", || cache.clone())?;
    let host = fs::read_to_string(alice.path("hosts/bob"))?;
    let lines = host.lines().filter(|line| !line.starts_with("Address"));
    fs::write(alice.path("hosts/bob"), lines.map(|line| format!("{line}\n")).collect::<String>())?;
    let daemon = alice.start()?;
    alice.until_reachable("bob", &daemon)?;
    Ok("ten attempts, and one by the cache".to_owned())
}

/// SIGHUP: subnets, connections and changed host files; what needs a restart is named.
pub(super) fn reload(scenario: &Scenario<'_>) -> Result<String> {
    let Some(programs) = Both::find(scenario)? else { return Ok("skipped".to_owned()) };
    let namespace = Namespace::new("tinc")?;
    let folder = |name: &str| scenario.folder().join(name);
    let alice = Node::new(&namespace, folder("alice"), "alice", &programs.adit);
    let bob = Node::new(&namespace, folder("bob"), "bob", &programs.tinc);
    let carol = Node::new(&namespace, folder("carol"), "carol", &programs.adit);
    for (node, port) in [(&alice, 7001), (&bob, 7002), (&carol, 7003)] {
        node.init("127.0.0.1", port)?;
        node.set(&["AutoConnect no"])?;
    }
    alice.set(&["Subnet 10.1.0.0/16", "ConnectTo bob"])?;
    alice.introduce(&bob)?;
    alice.introduce(&carol)?;
    let _others = [bob.start()?, carol.start()?];
    let mut daemon = alice.start()?;
    let subnet_at_bob = |subnet: &str, daemon: &Daemon| {
        until(&format!("bob knows {subnet} alone"), SOON, || {
            let text = bob.dump("subnets")?;
            let of_alice = text.lines().filter(|line| line.ends_with("owner alice"));
            Ok(of_alice.eq([format!("{subnet} owner alice")]))
        })
        .map_err(|failure| daemon.failure(&failure.0))
    };
    subnet_at_bob("10.1.0.0/16", &daemon)?;
    // Files are changed directly, because the commands would tell the daemon.
    let own = fs::read_to_string(alice.path("hosts/alice"))?;
    fs::write(alice.path("hosts/alice"), own.replace("10.1.0.0/16", "10.5.0.0/16"))?;
    alice.append("tinc.conf", "ConnectTo = carol\nFWMark = 7")?;
    let connected = |names: &[&str], daemon: &Daemon| {
        until(&format!("connections with {names:?}"), SOON, || Ok(alice.connections()? == names))
            .map_err(|failure| daemon.failure(&failure.0))
    };
    connected(&["bob"], &daemon)?;
    daemon.signal(Signal::SIGHUP)?;
    subnet_at_bob("10.5.0.0/16", &daemon)?;
    connected(&["bob", "carol"], &daemon)?;
    daemon.wait_for("FWMark: changed: restart required", SOON)?;
    let closed = "Closing connection with";
    ensure(daemon.count(closed) == 0, || daemon.log())?;
    alice.append("hosts/bob", "Weight = 77")?;
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for(
        "Closing connection with bob (127.0.0.1 port 7002): the host file changed",
        SOON,
    )?;
    connected(&["bob", "carol"], &daemon)?;
    fs::remove_file(alice.path("hosts/bob"))?;
    daemon.signal(Signal::SIGHUP)?;
    connected(&["carol"], &daemon)?;
    ensure(daemon.count("Closing connection with carol") == 0, || daemon.log())?;
    let conf = fs::read_to_string(alice.path("tinc.conf"))?;
    fs::write(alice.path("tinc.conf"), conf.replace("ConnectTo = carol\n", ""))?;
    daemon.signal(Signal::SIGHUP)?;
    connected(&[], &daemon)?;
    fs::write(alice.path("tinc.conf"), "Name = alice\nMode = junk\n")?;
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for("nothing has changed: ", SOON)?;
    Ok("five reloads".to_owned())
}

/// A node that only a proxy reaches, by each kind of proxy.
pub(super) fn proxies(scenario: &Scenario<'_>) -> Result<String> {
    let Some(programs) = Both::find(scenario)? else { return Ok("skipped".to_owned()) };
    let pair = Pair::new()?;
    pair.server.run("ip", &["address", "add", &format!("{HIDDEN}/32"), "dev", "lo"])?;
    let folder = |name: &str| scenario.folder().join(name);
    let alice = Node::new(&pair.client, folder("alice"), "alice", &programs.adit);
    let bob = Node::new(&pair.server, folder("bob"), "bob", &programs.tinc);
    alice.init("192.0.2.2", 655)?;
    bob.init(HIDDEN, 655)?;
    alice.introduce(&bob)?;
    alice.set(&["ConnectTo bob", "AutoConnect no"])?;
    bob.set(&["AutoConnect no"])?;
    let _bob = bob.start()?;
    let socks4 = SOCKS_PORT + 1;
    let _proxies = [
        microsocks(&pair.server)?,
        tinyproxy(scenario.folder(), &pair.server)?,
        dante(scenario.folder(), &pair.server, socks4)?,
    ];
    let command = "exec echo \"$NAME $NODE $REMOTEADDRESS $REMOTEPORT\" > environment; \
                   exec bash -c 'exec 3<>/dev/tcp/192.0.2.1/655; cat <&3 & cat >&3; kill $!'";
    let settings = [
        format!("socks5 192.0.2.1 {SOCKS_PORT} ann secret"),
        format!("http 192.0.2.1 {HTTP_PORT}"),
        format!("socks4 192.0.2.1 {socks4}"),
        command.to_owned(),
    ];
    let conf = fs::read_to_string(alice.path("tinc.conf"))?;
    for setting in &settings {
        fs::write(alice.path("tinc.conf"), format!("{conf}\nProxy = {setting}\n"))?;
        let mut daemon = alice.start()?;
        // The proxy may not listen yet.
        until(&format!("bob is reachable by {setting}"), SOON, || {
            daemon.signal(Signal::SIGALRM)?;
            Ok(alice.dump("reachable nodes")?.lines().any(|line| line.starts_with("bob id ")))
        })
        .map_err(|failure| daemon.failure(&failure.0))?;
        daemon.stop()?;
        until("bob noticed the end", SOON, || Ok(bob.connections()?.is_empty()))?;
    }
    let environment = fs::read_to_string(alice.path("environment"))?;
    ensure(environment == format!("alice bob {HIDDEN} 655\n"), || environment.clone())?;
    fs::write(alice.path("tinc.conf"), format!("{conf}\nProxy = socks5 192.0.2.1 {SOCKS_PORT}\n"))?;
    let mut daemon = alice.start()?;
    daemon.wait_for(&format!("proxy 192.0.2.1:{SOCKS_PORT}: it asks for a user name"), SOON)?;
    Ok("socks5, http, socks4 and exec".to_owned())
}

fn microsocks(host: &Namespace) -> Result<Daemon> {
    let mut command = host.command("microsocks");
    command.args(["-p", &SOCKS_PORT.to_string(), "-u", "ann", "-P", "secret"]);
    Daemon::spawn("microsocks", command)
}

fn tinyproxy(folder: &Path, host: &Namespace) -> Result<Daemon> {
    let path = folder.join("tinyproxy.conf");
    let text = format!(
        "Port {HTTP_PORT}\nListen 0.0.0.0\nTimeout 600\nMaxClients 20\nAllow 0.0.0.0/0\nConnectPort 655\n"
    );
    fs::write(&path, text)?;
    let mut command = host.command("tinyproxy");
    command.arg("-d").arg("-c").arg(&path);
    Daemon::spawn("tinyproxy", command)
}

fn dante(folder: &Path, host: &Namespace, port: u16) -> Result<Daemon> {
    let path = folder.join("danted.conf");
    let text = format!(
        "logoutput: stderr\ninternal: 192.0.2.1 port = {port}\nexternal: {HIDDEN}\nclientmethod: none\n\
         socksmethod: none\nuser.privileged: root\nuser.unprivileged: root\n\
         client pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\n\
         socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 command: connect }}\n"
    );
    fs::write(&path, text)?;
    let mut command = host.command("danted");
    command.arg("-f").arg(&path);
    Daemon::spawn("danted", command)
}
