//! Tests of an upgrade under traffic: the next process of the server continues the sessions of the former one, which the
//! clients do not notice. The test is the service manager that keeps the descriptors in between.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_linux::{descriptors, fd_store, notify};
use nix::sys::signal::Signal;

use super::{Scenario, ping_until};
use crate::case::{Configs, READY, SETUP_LIMIT};
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, Pair, Star};
use crate::other_version::OtherVersion;
use crate::peer::Program;
use crate::process::{Daemon, run_with_input};
use crate::traffic::{ping, tcp};
use crate::wait::{ScaledInstant, until};

/// The server's address in the tunnel.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 1));

/// The environment variable with the number of clients. If it is set, the test also waits for the renegotiations of all
/// sessions, which take a minute.
const CLIENTS: &str = "ADIT_UPGRADE_CLIENTS";

/// The number of clients otherwise.
const FEW: u8 = 2;

/// The bytes of the transfer during the upgrades.
const TRANSFER: usize = 40_000_000;

/// Rules that drop all packets of TCP connections of which they have not seen the first one.
const RULES: &str = "table inet vpn {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        tcp flags & (fin | syn | rst | ack) == syn ct state new accept
        meta l4proto icmp accept
    }
}
";

/// Rules whose first counter counts only datagrams to the discard port, with a set that changes.
const COUNTING_RULES: &str = "table inet vpn {
    set banned { type ipv4_addr; flags timeout; }
    chain forward {
        type filter hook forward priority 0; policy accept;
        udp dport 9 counter drop
        ip saddr @banned drop
    }
}
";

/// The service manager's part of sd_notify that keeps descriptors.
struct Manager {
    path: PathBuf,
    /// The limit of open files of the programs that it starts.
    open_files: Option<u64>,
    stored: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
}

impl Manager {
    fn start(path: PathBuf) -> Result<Self> {
        let socket = UnixDatagram::bind(&path)?;
        let stored = Arc::new(Mutex::new(BTreeMap::new()));
        let kept = Arc::clone(&stored);
        std::thread::spawn(move || {
            while let Ok((text, descriptors)) = notify::receive(&socket) {
                let field = |name: &str| {
                    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                };
                let mut kept = locked(&kept);
                match (field("FDNAME"), descriptors.into_iter().next()) {
                    (Some(name), Some(fd)) if field("FDSTORE") == Some("1") => {
                        kept.insert(name.to_owned(), fd);
                    }
                    (Some(name), None) if field("FDSTOREREMOVE") == Some("1") => {
                        kept.remove(name);
                    }
                    // A barrier's descriptor is closed.
                    _ => {}
                }
            }
        });
        Ok(Self { path, open_files: None, stored })
    }

    /// Creates a command that runs a program with what is stored.
    fn command(&self, namespace: &Namespace, words: &[&str]) -> Result<Command> {
        let mut command = namespace.command("sh");
        let (mut names, mut copies) = (Vec::new(), Vec::new());
        for (name, fd) in &*self.stored() {
            names.push(name.clone());
            copies.push(fd.try_clone()?);
        }
        let limit = self.open_files.map(|most| format!("ulimit -n {most}; ")).unwrap_or_default();
        let set = format!(
            "{limit}NOTIFY_SOCKET={} LISTEN_FDS={} LISTEN_FDNAMES={} LISTEN_PID=$$ exec \"$@\"",
            self.path.display(),
            names.len(),
            names.join(":"),
        );
        command.args(["-c", &set, "sh"]).args(words);
        descriptors::inherit_from(&mut command, 3, copies)?;
        Ok(command)
    }

    fn stored(&self) -> MutexGuard<'_, BTreeMap<String, OwnedFd>> {
        locked(&self.stored)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server, its clients and its service manager.
struct Upgrade<'a> {
    scenario: &'a Scenario<'a>,
    adit: String,
    vpn: String,
    star: Star,
    manager: Manager,
    clients: Vec<Daemon>,
}

impl<'a> Upgrade<'a> {
    fn prepare(scenario: &'a Scenario<'a>, listen: &str, clients: u8) -> Result<Self> {
        let Program::Adit(adit) = scenario.server else { return Err("adit serves here".into()) };
        let path = |name: &str| scenario.folder().join(name).display().to_string();
        let this = Self {
            scenario,
            adit: adit.display().to_string(),
            vpn: path("vpn"),
            star: Star::new(clients)?,
            manager: Manager::start(scenario.folder().join("notify"))?,
            clients: Vec::new(),
        };
        let network = ["--network", "10.88.0.0/24", "--network6", "fd88::/64"];
        let host = ["server", "init", "--host", "192.0.2.1", "--listen", listen];
        this.ask(&[&host[..], &network].concat())?;
        for n in 0..clients {
            let profile = path(&format!("client{n}.ovpn"));
            this.ask(&["server", "client", "add", &format!("client{n}"), "-o", &profile])?;
        }
        Ok(this)
    }

    /// Adds lines to the settings.
    fn set(&self, lines: &str) -> Result<()> {
        let path = Path::new(&self.vpn).join("server.toml");
        let text = fs::read_to_string(&path).context(path.display())?;
        let keys = lines.lines().filter_map(|line| line.split_once(" = "));
        let keys: Vec<String> = keys.map(|(key, _)| format!("{key} = ")).collect();
        let others = text.lines().filter(|line| !keys.iter().any(|key| line.starts_with(key)));
        let others: Vec<&str> = others.collect();
        Ok(fs::write(&path, format!("{lines}\n{}\n", others.join("\n")))?)
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let words = [words, &["--dir", &self.vpn]].concat();
        self.star.server.run(&self.adit, &words)
    }

    /// Starts the server, with what the service manager keeps.
    fn serve(&self, name: &str) -> Result<Daemon> {
        let words = [self.adit.as_str(), "server", "run", "-vv", "--dir", &self.vpn];
        let command = self.manager.command(&self.star.server, &words)?;
        let mut server = Daemon::spawn(name, command)?;
        server.wait_for("the server is up", SETUP_LIMIT)?;
        Ok(server)
    }

    fn dial(&mut self, more: &[&str]) -> Result<()> {
        for (n, namespace) in self.star.clients.iter().enumerate() {
            let profile = self.scenario.folder().join(format!("client{n}.ovpn"));
            let mut options: Vec<OsString> = vec!["--config".into(), profile.into()];
            options.extend(["--dev", "tun0", "--verb", "3", "--disable-dco"].map(Into::into));
            options.extend(more.iter().map(Into::into));
            let command = self.scenario.client.command_with(namespace, &options);
            self.clients.push(Daemon::spawn(&format!("client {n}"), command)?);
        }
        for client in &mut self.clients {
            client.wait_for(READY, SETUP_LIMIT)?;
        }
        Ok(())
    }

    /// Replaces the process. Returns the new one.
    fn replace(&self, mut server: Daemon, name: &str) -> Result<Daemon> {
        self.ask(&["server", "hand-over"]).map_err(|e| server.failure(&e.0))?;
        let status = server.wait_exit(SETUP_LIMIT)?;
        ensure(status.success(), || server.failure(&format!("it ended with {status}")).0)?;
        ensure(!self.manager.stored().is_empty(), || server.failure("nothing is stored").0)?;
        self.serve(name).map_err(|e| format!("{e}\n{}", server.failure("before")).into())
    }

    /// Checks that every client has an answer, and how often each has connected.
    fn all_connected(&self, times: usize, server: &Daemon) -> Result<()> {
        for (client, namespace) in self.clients.iter().zip(&self.star.clients) {
            ping_until(namespace, SERVER, SETUP_LIMIT)
                .map_err(|e| format!("{e}\n{}\n{}", client.failure(""), server.failure("")))?;
            ensure(client.count(READY) == times, || {
                client.failure(&format!("not connected {times} times")).0
            })?;
        }
        Ok(())
    }
}

/// Two upgrades during a transfer: no client connects again, and no connection through the tunnel breaks. `settings` are
/// lines of the settings, and each new process logs `log`.
fn under_traffic(
    scenario: &Scenario<'_>,
    listen: &str,
    settings: &str,
    log: &str,
) -> Result<String> {
    let wanted = std::env::var(CLIENTS).ok().and_then(|count| count.parse().ok());
    let mut upgrade = Upgrade::prepare(scenario, listen, wanted.unwrap_or(FEW))?;
    upgrade.set(settings)?;
    fs::write(Path::new(&upgrade.vpn).join("rules.nft"), RULES)?;
    let server = upgrade.serve("server 1")?;
    upgrade.dial(&[])?;
    upgrade.all_connected(1, &server)?;
    let mut server = Some(server);
    let count = upgrade.clients.len();
    let rules = || upgrade.star.server.run("nft", &["list", "tables"]);
    let before = rules()?;
    std::thread::scope(|scope| -> Result<()> {
        let (server_end, client_end) = (&upgrade.star.server, &upgrade.star.clients);
        let first = client_end.first().ok_or("there are clients")?;
        let transfer = scope.spawn(move || tcp(first, server_end, SERVER, TRANSFER));
        for next in ["server 2", "server 3"] {
            let former = server.take().ok_or("a server")?;
            let server = server.insert(upgrade.replace(former, next)?);
            server.wait_for(
                &format!("{count} sessions of the former process continue"),
                SETUP_LIMIT,
            )?;
            server.wait_for(log, SETUP_LIMIT)?;
            ensure(upgrade.manager.stored().is_empty(), || "descriptors remain stored".into())?;
        }
        let took = transfer.join().map_err(|_| "the transfer panicked")?;
        took.map(drop).map_err(|e| e.0.into())
    })?;
    let mut server = server.ok_or("a server")?;
    upgrade.all_connected(1, &server)?;
    ensure(rules()? == before, || "the firewall's tables have changed".to_owned())?;
    let status = upgrade.ask(&["status"])?;
    ensure(status.matches("client").count() >= count, || status.clone())?;
    if wanted.is_some() {
        until("the renegotiations", Duration::from_secs(90), || {
            Ok(server.count("new data key") >= count)
        })
        .map_err(|e| server.failure(&e.0))?;
        upgrade.all_connected(1, &server)?;
    }
    for client in &upgrade.clients {
        ensure(!client.log().contains("estarting"), || client.failure("it restarted").0)?;
    }
    let first = upgrade.star.clients.first().ok_or("there are clients")?;
    ensure(ping(first, SERVER, 1200, 3)? == 3, || server.failure("pings are lost").0)?;
    // An ordinary stop undoes everything.
    server.stop()?;
    ensure(!rules()?.contains("adit"), || "the firewall's rules remain".to_owned())?;
    ensure(upgrade.star.server.run("ip", &["link", "show", "adit0"]).is_err(), || {
        "the device remains".to_owned()
    })?;
    Ok(format!("{count} clients, two upgrades"))
}

/// Upgrades under traffic over UDP.
pub(super) fn traffic_udp(scenario: &Scenario<'_>) -> Result<String> {
    under_traffic(scenario, "udp/1194", "", "")
}

/// Upgrades under traffic over TCP.
pub(super) fn traffic_tcp(scenario: &Scenario<'_>) -> Result<String> {
    under_traffic(scenario, "tcp/1194", "", "")
}

/// Upgrades with several workers, whose sockets and queues all pass.
pub(super) fn several_workers(scenario: &Scenario<'_>) -> Result<String> {
    under_traffic(scenario, "udp/1194", "workers = 4", "")
}

/// Upgrades with a filter that accepts no packet from the middle of a connection that it does not know: its connections pass, too.
pub(super) fn filtered(scenario: &Scenario<'_>) -> Result<String> {
    let setting = format!("filter = \"{}/rules.nft\"", scenario.folder().join("vpn").display());
    under_traffic(scenario, "udp/1194", &setting, "connections of the former process continue")
}

/// An upgrade with a filter whose counters go on, and to whose set an element was added.
pub(super) fn filter_state(scenario: &Scenario<'_>) -> Result<String> {
    let mut upgrade = Upgrade::prepare(scenario, "udp/1194", 1)?;
    let rules = Path::new(&upgrade.vpn).join("rules.nft");
    upgrade.set(&format!("filter = \"{}\"", rules.display()))?;
    fs::write(&rules, COUNTING_RULES)?;
    let mut server = upgrade.serve("server 1")?;
    upgrade.dial(&[])?;
    upgrade.all_connected(1, &server)?;
    let first = upgrade.star.clients.first().ok_or("a client")?;
    let datagram = ["-c", "exec 3<>/dev/udp/10.88.0.1/9; printf x >&3"];
    first.run("bash", &datagram)?;
    upgrade.ask(&["filter", "element", "add", "banned", "192.0.2.200 timeout 1h"])?;
    let shows = |counter: &str| -> Result<bool> {
        let shown = upgrade.ask(&["filter", "show"])?;
        Ok(shown.contains(counter)
            && shown.contains("192.0.2.200 timeout 1h expires 5")
            && !shown.contains("expires 1h"))
    };
    const ONE: &str = "udp dport 9 counter packets 1 bytes 29 drop";
    until("the datagram is counted", SETUP_LIMIT, || shows(ONE))
        .map_err(|e| server.failure(&e.0))?;
    for next in ["server 2", "server 3"] {
        server = upgrade.replace(server, next)?;
        server.wait_for("1 added elements of the former process remain", SETUP_LIMIT)?;
        upgrade.all_connected(1, &server)?;
        let shown = upgrade.ask(&["filter", "show"])?;
        ensure(shows(ONE)?, || server.failure(&shown).0)?;
    }
    first.run("bash", &datagram)?;
    let two = "udp dport 9 counter packets 2 bytes 58 drop";
    until("the next is counted, too", SETUP_LIMIT, || shows(two))
        .map_err(|e| server.failure(&e.0))?;
    server.stop()?;
    Ok("two upgrades".into())
}

/// An upgrade to a process whose limit of open files has room for two of three sessions over TCP: the third client has to
/// connect again, and the others notice nothing.
pub(super) fn few_open_files(scenario: &Scenario<'_>) -> Result<String> {
    let mut upgrade = Upgrade::prepare(scenario, "tcp/1194", 3)?;
    let room = u64::try_from(fd_store::RESERVED).unwrap_or_default() + 2;
    upgrade.manager.open_files = Some(room);
    let server = upgrade.serve("server 1")?;
    upgrade.dial(&[])?;
    upgrade.all_connected(1, &server)?;
    upgrade.ask(&["server", "hand-over"]).map_err(|e| server.failure(&e.0))?;
    let mut former = server;
    former.wait_for("1 sessions over TCP end, and their clients connect again", SETUP_LIMIT)?;
    ensure(former.wait_exit(SETUP_LIMIT)?.success(), || former.failure("it failed").0)?;
    let mut server = upgrade.serve("server 2")?;
    server.wait_for("2 sessions of the former process continue", SETUP_LIMIT)?;
    let times = |upgrade: &Upgrade<'_>| -> Vec<usize> {
        let mut times: Vec<usize> = upgrade.clients.iter().map(|one| one.count(READY)).collect();
        times.sort_unstable();
        times
    };
    until("the third is back", SETUP_LIMIT, || Ok(times(&upgrade) == [1, 1, 2]))
        .map_err(|e| server.failure(&e.0))?;
    for namespace in &upgrade.star.clients {
        ping_until(namespace, SERVER, SETUP_LIMIT).map_err(|e| server.failure(&e.0))?;
    }
    ensure(times(&upgrade) == [1, 1, 2], || server.failure("more have connected again").0)?;
    server.stop()?;
    Ok("two sessions continue, and one begins again".into())
}

/// An upgrade with a user whose password includes a code that is valid once: in the next process the token that the client got
/// is valid, for a renegotiation, and for another connection.
pub(super) fn token(scenario: &Scenario<'_>) -> Result<String> {
    const PASSWORD: &str = "correct horse battery";
    let mut upgrade = Upgrade::prepare(scenario, "udp/1194", 1)?;
    upgrade.set("login = \"certificate+password+code\"")?;
    let words =
        ["server", "user", "add", "alice", "--totp", "--password-stdin", "--dir", &upgrade.vpn];
    let mut add = upgrade.star.server.command(&upgrade.adit);
    add.args(words);
    let said = run_with_input(add, format!("{PASSWORD}\n"))?;
    let code = said.lines().find_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let code = code.context("no recovery code")?;
    let (login, profile) =
        (scenario.folder().join("login"), scenario.folder().join("client0.ovpn"));
    fs::write(&login, format!("alice\n{PASSWORD}{code}\n"))?;
    let renewed = upgrade.ask(&["server", "client", "renew", "client0", "-o", "-"])?;
    let text = renewed.lines().filter(|line| !line.starts_with("static-challenge"));
    fs::write(&profile, text.collect::<Vec<_>>().join("\n"))?;
    let server = upgrade.serve("server 1")?;
    // The client renegotiates by itself, soon after the upgrade.
    let login = login.display().to_string();
    upgrade.dial(&["--auth-user-pass", &login, "--reneg-sec", "8"])?;
    upgrade.all_connected(1, &server)?;
    let mut server = upgrade.replace(server, "server 2")?;
    server.wait_for("1 sessions of the former process continue", SETUP_LIMIT)?;
    server.wait_for("new data key", SETUP_LIMIT)?;
    upgrade.all_connected(1, &server)?;
    let client = upgrade.clients.first().ok_or("a client")?;
    client.signal(Signal::SIGUSR1)?;
    let client = upgrade.clients.first_mut().ok_or("a client")?;
    client.wait_for_nth(READY, 2, SETUP_LIMIT).map_err(|e| server.failure(&e.0))?;
    upgrade.all_connected(2, &server)?;
    ensure(server.count("authentication failed") == 0, || server.failure("a login failed").0)?;
    server.stop()?;
    Ok(String::new())
}

/// A restart without a hand-over: the server tells its clients, which connect again at once.
fn stop_and_start(scenario: &Scenario<'_>, listen: &str) -> Result<String> {
    let mut upgrade = Upgrade::prepare(scenario, listen, FEW)?;
    let mut server = upgrade.serve("server 1")?;
    upgrade.dial(&[])?;
    upgrade.all_connected(1, &server)?;
    server.stop()?;
    let began = ScaledInstant::now();
    let server = upgrade.serve("server 2")?;
    for client in &mut upgrade.clients {
        client.wait_for_nth(READY, 2, SETUP_LIMIT)?;
    }
    let took = began.elapsed();
    upgrade.all_connected(2, &server)?;
    Ok(format!("back after {} ms", took.as_millis()))
}

/// The same over UDP.
pub(super) fn cold_udp(scenario: &Scenario<'_>) -> Result<String> {
    stop_and_start(scenario, "udp/1194")
}

/// The same over TCP.
pub(super) fn cold_tcp(scenario: &Scenario<'_>) -> Result<String> {
    stop_and_start(scenario, "tcp/1194")
}

/// The beginning of a state and of a request for a hand-over, and that of another version.
const STATE_VERSION: (&str, &str) = ("\"version\":", "\"version\":9");

/// A newer program that knows another layout of sessions asks for them before it is started. The running server keeps them, and after an
/// ordinary stop the clients connect again at once.
pub(super) fn newer_layout(scenario: &Scenario<'_>) -> Result<String> {
    let mut upgrade = Upgrade::prepare(scenario, "udp/1194", FEW)?;
    let mut server = upgrade.serve("server 1")?;
    upgrade.dial(&[])?;
    upgrade.all_connected(1, &server)?;
    let socket = Path::new(&upgrade.vpn).join("run/server.sock");
    let aside = scenario.folder().join("aside");
    let newer = OtherVersion::between(&socket, &aside, STATE_VERSION, ("", ""))?;
    let refused = upgrade.ask(&["server", "hand-over"]).err().context("it was handed over")?;
    drop(newer);
    for part in
        ["the sessions end and begin again: version 9", " of the state, but this program has"]
    {
        ensure(refused.0.contains(part), || refused.0.clone())?;
    }
    upgrade.all_connected(1, &server)?;
    server.stop()?;
    ensure(upgrade.manager.stored().is_empty(), || "something was stored".into())?;
    let server = upgrade.serve("server 2")?;
    for client in &mut upgrade.clients {
        client.wait_for_nth(READY, 2, SETUP_LIMIT)?;
    }
    upgrade.all_connected(2, &server)?;
    Ok(String::new())
}

/// A process finds sessions in another layout. It says so and serves clients, which connect again.
pub(super) fn state_of_another_version(scenario: &Scenario<'_>) -> Result<String> {
    let mut upgrade = Upgrade::prepare(scenario, "udp/1194", FEW)?;
    let mut server = upgrade.serve("server 1")?;
    upgrade.dial(&[])?;
    upgrade.all_connected(1, &server)?;
    upgrade.ask(&["server", "hand-over"]).map_err(|e| server.failure(&e.0))?;
    server.wait_exit(SETUP_LIMIT)?;
    let state = upgrade.manager.stored().get("adit-state").context("no state")?.try_clone()?;
    let path = format!("/proc/self/fd/{}", state.as_raw_fd());
    let text = fs::read_to_string(&path)?;
    fs::write(&path, text.replacen(STATE_VERSION.0, STATE_VERSION.1, 1))?;
    let mut server = upgrade.serve("server 2")?;
    let sentence = "sessions of the former process: not taken over: version 9";
    server.wait_for(sentence, SETUP_LIMIT)?;
    ensure(upgrade.manager.stored().is_empty(), || "descriptors remain stored".into())?;
    // The former process left without a word, so the clients would wait for their timers.
    for client in &mut upgrade.clients {
        client.signal(Signal::SIGUSR1)?;
        client.wait_for_nth(READY, 2, SETUP_LIMIT)?;
    }
    upgrade.all_connected(2, &server)?;
    server.stop()?;
    Ok(String::new())
}

/// Upgrades of `adit openvpn` as a server during a transfer. Its device has no name in the configuration.
fn of_openvpn(scenario: &Scenario<'_>, configs: &Configs) -> Result<String> {
    let Program::Adit(adit) = scenario.server else { return Err("adit serves here".into()) };
    let adit = adit.display().to_string();
    let file = |name: &str| scenario.folder().join(name);
    let config = file("server.conf").display().to_string();
    fs::write(&config, &configs.server)?;
    fs::write(file("client.conf"), &configs.client)?;
    let (pair, manager) = (Pair::new()?, Manager::start(file("notify"))?);
    let serve = |name: &str| -> Result<Daemon> {
        let words = [adit.as_str(), "openvpn", "--config", &config];
        let mut server = Daemon::spawn(name, manager.command(&pair.server, &words)?)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        Ok(server)
    };
    let replace = |mut server: Daemon, name: &str| -> Result<Daemon> {
        let words = ["server", "hand-over", "--process", &server.pid().to_string()];
        pair.server.run(&adit, &words).map_err(|e| server.failure(&e.0))?;
        let status = server.wait_exit(SETUP_LIMIT)?;
        ensure(status.success(), || server.failure(&format!("it ended with {status}")).0)?;
        ensure(!manager.stored().is_empty(), || server.failure("nothing is stored").0)?;
        let mut next = serve(name).map_err(|e| format!("{e}\n{}", server.failure("before")))?;
        next.wait_for("1 sessions of the former process continue", SETUP_LIMIT)?;
        ensure(manager.stored().is_empty(), || "descriptors remain stored".into())?;
        Ok(next)
    };
    let server = serve("server 1")?;
    let command = scenario.client.command(&pair.client, &file("client.conf"));
    let mut client = Daemon::spawn("client", command)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|e| format!("{e}\n{}", server.failure("")))?;
    let mut server = std::thread::scope(|scope| -> Result<Daemon> {
        let transfer = scope.spawn(|| tcp(&pair.client, &pair.server, SERVER, TRANSFER));
        let server = replace(server, "server 2").and_then(|server| replace(server, "server 3"));
        let took = transfer.join().map_err(|_| "the transfer panicked")?;
        let server = server?;
        took.map_err(|e| server.failure(&e.0))?;
        Ok(server)
    })?;
    ensure(client.count(READY) == 1 && !client.log().contains("estarting"), || {
        client.failure("it has connected again").0
    })?;
    ensure(ping(&pair.client, SERVER, 1200, 3)? == 3, || server.failure("pings are lost").0)?;
    server.stop()?;
    ensure(pair.server.run("ip", &["link", "show", "tun0"]).is_err(), || {
        "the device remains".to_owned()
    })?;
    Ok("two upgrades".into())
}

/// The same over UDP.
pub(super) fn openvpn_udp(scenario: &Scenario<'_>) -> Result<String> {
    of_openvpn(scenario, &scenario.configs())
}

/// The same over TCP.
pub(super) fn openvpn_tcp(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server = configs.server.replace("proto udp4", "proto tcp4-server");
    configs.client = configs.client.replace("proto udp4", "proto tcp4-client");
    configs.client = configs.client.replace("explicit-exit-notify 1\n", "");
    of_openvpn(scenario, &configs)
}
