//! Scenarios of a mobile laptop with all traffic in the tunnel. Its surroundings are in [`crate::laptop`].

mod ends;
mod leaks;
mod links;
mod point_to_point;
mod proxies;
mod sessions;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Test;
use crate::case::{READY, SETUP_LIMIT, TestEnv};
use crate::failure::{Context, Failure, Result, ensure};
use crate::laptop::{
    Access, HostState, Internet, Resolver, VPN_NAME, VPN_NAME6, VPN_RESOLVER, VPS, VPS6, WEB, WEB6,
};
use crate::net::Namespace;
use crate::peer::Program;
use crate::pki::PkiTool;
use crate::process::Daemon;
use crate::wait::ScaledInstant;

/// The program that runs on the laptop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// `adit connect`
    Connect,
    /// `adit openvpn`
    DropIn,
    /// The system's `openvpn` at both ends, as the control.
    Openvpn,
}

impl Client {
    fn name(self) -> &'static str {
        match self {
            Self::Connect => "adit-connect",
            Self::DropIn => "adit-openvpn",
            Self::Openvpn => "openvpn",
        }
    }
}

/// Whether openvpn in adit's place passes a scenario.
#[derive(Debug, Clone, Copy)]
enum Control {
    /// openvpn passes it.
    Passes,
    /// openvpn fails it, for this reason.
    Fails(&'static str),
}

use Control::{Fails, Passes};

/// One scenario, with its name, the clients that it runs with, whether openvpn passes it, and the work.
type Scenario = (&'static str, &'static [Client], Control, Work);

/// Returns a short description of its measurements.
type Work = fn(&Laptop<'_>) -> Result<String>;

const BOTH: &[Client] = &[Client::Connect, Client::DropIn];
const CONNECT: &[Client] = &[Client::Connect];
const DROP_IN: &[Client] = &[Client::DropIn];

/// Returns all scenarios with adit on the laptop, or those that openvpn passes, with openvpn in adit's place.
pub(super) fn tests(adit: &Program) -> Vec<Test> {
    let mut tests = Vec::new();
    let scenarios = [
        links::SCENARIOS,
        leaks::SCENARIOS,
        ends::SCENARIOS,
        sessions::SCENARIOS,
        proxies::SCENARIOS,
        point_to_point::SCENARIOS,
    ];
    for (name, clients, control, work) in scenarios.into_iter().flatten() {
        let clients: &[Client] = match (adit, control) {
            (Program::Adit(_), _) => clients,
            (_, Passes) => &[Client::Openvpn],
            (_, Fails(reason)) => {
                eprintln!("interop: no control of laptop/{name}: openvpn {reason}");
                &[]
            }
        };
        for client in clients {
            tests.push(test(format!("laptop/{name}/{}", client.name()), adit, *client, *work));
        }
    }
    tests
}

fn test(name: String, adit: &Program, client: Client, work: Work) -> Test {
    let (adit, label) = (adit.clone(), name.replace('/', "_"));
    let run = move |env: &TestEnv| {
        let folder = env.sandbox.folder(&label)?;
        work(&Laptop { env, folder, adit: &adit, client })
    };
    Test { name, run: Box::new(run) }
}

/// The laptop of a scenario.
struct Laptop<'a> {
    env: &'a TestEnv,
    folder: PathBuf,
    adit: &'a Program,
    client: Client,
}

/// The tunnel that a scenario needs.
#[derive(Clone, Copy)]
struct Setup {
    /// The network that the laptop joins first.
    access: Access,
    resolver: Resolver,
    /// The server's name or address in the profile.
    host: &'static str,
    /// The transport on which the server listens and which the profile dials.
    listen: &'static str,
    /// Whether the tunnel takes all traffic from the start.
    full: bool,
    /// Whether the tunnel carries IPv6.
    ipv6: bool,
    /// Whether the server pushes [`VPN_RESOLVER`].
    dns: bool,
    /// The keys of a point-to-point tunnel, which has no server.
    point_to_point: Option<Keys>,
    /// More lines for the profile.
    profile: &'static str,
    /// More options for the client's command line.
    options: &'static [&'static str],
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            access: Access::Home,
            resolver: Resolver::Router,
            host: "203.0.113.7",
            listen: "udp/1194",
            full: true,
            ipv6: false,
            dns: false,
            point_to_point: None,
            profile: "",
            options: &[],
        }
    }
}

/// The keys of a point-to-point tunnel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Certificates.
    Tls,
    /// A static key.
    Static,
}

/// Profile lines that make a client give up a silent server after 4 s, whatever the server pushes.
const IMPATIENT: &str = "pull-filter ignore \"ping\"\nping 1\nping-restart 4\n";

/// The network inside the tunnel.
const NETWORK: &str = "10.73.0.0/24";

/// A connected laptop. The fields are declared in this order so that the processes end before their namespaces.
struct ConnectedLaptop<'a> {
    laptop: &'a Laptop<'a>,
    setup: Setup,
    client: Daemon,
    server: Daemon,
    internet: Internet,
    /// The laptop before it was connected.
    before: HostState,
    since: Instant,
    /// The number of queries that the resolvers outside had received before.
    queries: usize,
}

/// The time limit for an expected answer. Recovery takes well under 3 s on an idle machine; the limit is for a busy
/// one.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a scenario waits to see that no answer arrives.
const NO_REPLY_WAIT: Duration = Duration::from_millis(700);

impl<'a> Laptop<'a> {
    fn adit(&self) -> Result<String> {
        match self.adit {
            Program::Adit(path) => Ok(path.display().to_string()),
            _ => Err("adit's own verbs have no control".into()),
        }
    }

    /// Builds the world, starts the server, joins the access network and connects.
    fn connect(&'a self, setup: Setup) -> Result<ConnectedLaptop<'a>> {
        self.connect_after(setup, |_| Ok(()))
    }

    /// Does the same, after a change to the laptop before its state is recorded and it connects.
    fn connect_after(
        &'a self,
        setup: Setup,
        prepare: impl FnOnce(&Internet) -> Result<()>,
    ) -> Result<ConnectedLaptop<'a>> {
        let internet = Internet::new(&self.folder, setup.resolver)?;
        self.make_server(&internet, setup)?;
        let server = self.serve(&internet, setup)?;
        internet.join(setup.access)?;
        let (reached, _) = internet.probe().until_answered(WEB, TIMEOUT)?;
        ensure(reached == IpAddr::V4(setup.access.outside()), || {
            format!("before the tunnel the laptop is {reached}: the world is wrong")
        })?;
        prepare(&internet)?;
        let before = internet.state()?;
        let client = self.dial(&internet.laptop, setup.options)?;
        let (since, queries) = (Instant::now(), 0);
        let mut connected = ConnectedLaptop {
            laptop: self,
            setup,
            client,
            server,
            internet,
            before,
            since,
            queries,
        };
        connected.wait_connected(1)?;
        Ok(connected)
    }

    /// Creates the server's settings and the profile.
    fn make_server(&self, internet: &Internet, setup: Setup) -> Result<()> {
        let mut profile = match (setup.point_to_point, self.client) {
            (Some(keys), _) => self.make_point_to_point(internet, setup, keys)?,
            (None, Client::Openvpn) => self.openvpn_server(internet, setup)?,
            (None, Client::Connect | Client::DropIn) => self.adit_server(internet, setup)?,
        };
        profile.push_str(setup.profile);
        Ok(fs::write(self.profile(), profile)?)
    }

    fn adit_server(&self, internet: &Internet, setup: Setup) -> Result<String> {
        let adit = self.adit()?;
        let run =
            |words: &str| internet.vps.run(&adit, &words.split_whitespace().collect::<Vec<_>>());
        let dns = if setup.dns { format!("--dns {VPN_RESOLVER}") } else { String::new() };
        let full = if setup.full { "--full-tunnel" } else { "" };
        run(&format!(
            "server init {full} --listen {} --host {} --network {NETWORK} --network6 fd73::/64 {dns}",
            setup.listen, setup.host
        ))?;
        if !setup.ipv6 {
            self.edit_settings(|line| {
                if line.starts_with("network6") { String::new() } else { line.to_owned() }
            })?;
        }
        run("server client add laptop -o -")
    }

    /// Changes the lines of the server's settings.
    fn edit_settings(&self, edit: impl Fn(&str) -> String) -> Result<()> {
        let settings = self.folder.join("vps-etc/adit/server.toml");
        let text = fs::read_to_string(&settings).context(settings.display())?;
        let lines: Vec<String> = text.lines().map(edit).collect();
        Ok(fs::write(settings, lines.join("\n") + "\n")?)
    }

    fn openvpn_server(&self, internet: &Internet, setup: Setup) -> Result<String> {
        let pki = &self.env.pki;
        let path = |name: &str| pki.file(PkiTool::OpenSslEc, name).display().to_string();
        let (ca, redirect) = (path("ca.crt"), if setup.ipv6 { "def1 ipv6" } else { "def1" });
        let inside6 = if setup.ipv6 { "server-ipv6 fd73::/64\n" } else { "" };
        let server = format!(
            "dev tun\nproto udp6\nport 1194\nverb 3\ndh none\ntopology subnet\nserver 10.73.0.0 255.255.255.0\n\
             {inside6}keepalive 10 60\npush \"redirect-gateway {redirect}\"\nca {ca}\ncert {}\nkey {}\ndisable-dco\n",
            path("server.crt"),
            path("server.key"),
        );
        fs::write(self.folder.join("server.conf"), server)?;
        internet.share_vps()?;
        Ok(format!(
            "client\ndev tun\nproto udp\nnobind\nverb 3\nremote {} 1194\nremote-cert-tls server\nca {ca}\ncert {}\n\
             key {}\ndisable-dco\n",
            setup.host,
            path("client.crt"),
            path("client.key"),
        ))
    }

    fn profile(&self) -> PathBuf {
        self.folder.join("laptop.ovpn")
    }

    /// Starts the server and waits until it serves.
    fn serve(&self, internet: &Internet, setup: Setup) -> Result<Daemon> {
        let config = self.folder.join("server.conf");
        let (command, ready) = match self.client {
            // Neither end of a point-to-point tunnel is ready before the other one has connected.
            _ if setup.point_to_point.is_some() => {
                let program = match self.client {
                    Client::Openvpn => &Program::OpenVpn,
                    Client::Connect | Client::DropIn => self.adit,
                };
                (program.command(&internet.vps, &config), "link local (bound)")
            }
            Client::Openvpn => (Program::OpenVpn.command(&internet.vps, &config), READY),
            Client::Connect | Client::DropIn => {
                let mut command = internet.vps.command(&self.adit()?);
                command.args(["server", "run"]);
                (command, "listening")
            }
        };
        let mut server = Daemon::spawn("server", command)?;
        server.wait_for(ready, SETUP_LIMIT)?;
        Ok(server)
    }

    /// Starts the client in `host` with the profile.
    fn dial(&self, host: &Namespace, options: &[&str]) -> Result<Daemon> {
        let profile = self.profile();
        let mut command = match self.client {
            Client::Openvpn => Program::OpenVpn.command(host, &profile),
            Client::DropIn => self.adit.command(host, &profile),
            Client::Connect => {
                let mut command = host.command(&self.adit()?);
                command.arg("connect").arg(&profile);
                command
            }
        };
        if self.client == Client::DropIn {
            command.args(["--verb", "3"]);
        }
        command.args(options);
        Daemon::spawn(self.client.name(), command)
    }

    /// Returns the log line that the client writes each time it connects.
    fn connected_line(&self) -> &'static str {
        match self.client {
            // "connection failed: ..." is another line.
            Client::Connect => "connected: 10.73.0.",
            Client::DropIn | Client::Openvpn => READY,
        }
    }
}

impl ConnectedLaptop<'_> {
    /// Waits until the client has logged `count` times that it is connected, and a reply arrives through the tunnel.
    fn wait_connected(&mut self, count: usize) -> Result<()> {
        let line = self.laptop.connected_line();
        self.client
            .wait_for_nth(line, count, SETUP_LIMIT)
            .map_err(|failure| self.with_server(failure))?;
        self.since = Instant::now();
        self.queries = self.internet.queries("").len();
        let through = self.setup.full || self.setup.point_to_point.is_some();
        if through { self.back(TIMEOUT).map(drop) } else { Ok(()) }
    }

    /// Sends until an answer arrives, which must arrive through the tunnel; returns how long it took.
    fn back(&self, limit: Duration) -> Result<Duration> {
        let answered = self.internet.probe().until_answered(WEB, limit);
        let (seen, took) = answered.map_err(|failure| self.with_logs(failure))?;
        ensure(seen == IpAddr::V4(VPS), || {
            self.with_logs(Failure(format!("LEAK: the host outside says: you are {seen}"))).0
        })?;
        Ok(took)
    }

    /// Sends until the host outside sees the laptop with this address.
    fn until_seen_as(&self, address: IpAddr) -> Result<Duration> {
        let started = ScaledInstant::now();
        loop {
            let (seen, _) = self.internet.probe().until_answered(WEB, TIMEOUT)?;
            if seen == address {
                return Ok(started.elapsed());
            }
            ensure(started.elapsed() < TIMEOUT, || {
                let text = format!("the host outside sees {seen}, not {address}");
                self.with_logs(Failure(text)).0
            })?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until the laptop's programs ask this resolver, which a live change sets after the routes.
    fn until_resolver_is(&self, resolver: Ipv4Addr) -> Result<()> {
        let started = ScaledInstant::now();
        let line = format!("nameserver {resolver}");
        loop {
            let conf = self.internet.resolv_conf()?;
            if conf.lines().any(|of_conf| of_conf == line) {
                return Ok(());
            }
            ensure(started.elapsed() < TIMEOUT, || {
                self.with_logs(Failure(format!("no `{line}` in\n{conf}"))).0
            })?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks that no traffic to the host outside has bypassed the tunnel since the client was connected.
    fn ensure_no_leak(&self) -> Result<()> {
        let outside = [IpAddr::V4(WEB), IpAddr::V6(WEB6)];
        let through = [IpAddr::V4(VPS), IpAddr::V6(VPS6)];
        let visits = self.internet.visits();
        let around = visits.iter().find(|visit| {
            visit.at > self.since && outside.contains(&visit.to) && !through.contains(&visit.from)
        });
        ensure(around.is_none(), || {
            self.with_logs(Failure(format!("LEAK: around the tunnel came {around:?}"))).0
        })?;
        // The server's own name is resolved outside the tunnel.
        let asked = self.internet.queries("").into_iter().skip(self.queries).find(|query| {
            ![VPN_NAME, VPN_NAME6].contains(&query.name.as_str()) && !through.contains(&query.from)
        });
        ensure(!self.setup.dns || asked.is_none(), || {
            self.with_logs(Failure(format!("LEAK: around the tunnel was asked {asked:?}"))).0
        })
    }

    /// Ends the client in an orderly way; afterwards the laptop is in its former state.
    fn end(mut self) -> Result<()> {
        self.client.stop().map_err(|failure| self.with_server(failure))?;
        let when = "after the client's end";
        self.internet.ensure_restored(&self.before, when).map_err(|f| self.with_logs(f))
    }

    fn with_server(&self, failure: Failure) -> Failure {
        Failure(format!("{failure}\n{}", self.server.failure("meanwhile")))
    }

    fn with_logs(&self, failure: Failure) -> Failure {
        let client = self.client.failure("meanwhile");
        self.with_server(Failure(format!("{failure}\n{client}")))
    }

    /// Sends a signal to the client and all processes that it has started.
    fn signal_all(&self, signal: Signal) -> Result<()> {
        for pid in family(self.client.pid())? {
            let pid = i32::try_from(pid).context("process id")?;
            // A process that has just ended needs no signal.
            let _ = kill(Pid::from_raw(pid), signal);
        }
        Ok(())
    }

    /// Returns user and system time of the client and all processes that it has started, in seconds.
    fn cpu_seconds(&self) -> Result<f64> {
        Ok(family(self.client.pid())?.into_iter().flat_map(crate::process::cpu_seconds).sum())
    }
}

/// Returns whether a process is running: it has neither ended nor become a zombie.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, after)| after.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Returns the ids of a process and its descendants.
fn family(first: u32) -> Result<Vec<u32>> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end between the two reads.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let after = stat.rsplit_once(") ").map(|(_, after)| after).unwrap_or_default();
        if let Some(parent) = after.split(' ').nth(1).and_then(|parent| parent.parse().ok()) {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![first];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(found)
}
