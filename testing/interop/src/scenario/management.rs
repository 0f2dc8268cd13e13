//! The management interface: the same conversation with openvpn and with adit, and clients of it that misbehave.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::Scenario;
use crate::case::{Configs, READY, SETUP_LIMIT, dial, inner_addrs, serve};
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::Daemon;
use crate::traffic::{ping, tcp};
use crate::wait::{ScaledInstant, until};

const SOON: Duration = Duration::from_secs(20);

/// The time for a client of a session that was ended: openvpn does not tell it, so its ping-restart must expire.
const BACK: Duration = Duration::from_secs(90);

/// A management client.
pub(super) struct Talk {
    stream: UnixStream,
    bytes: Vec<u8>,
    lines: VecDeque<String>,
    /// All lines in order.
    transcript: Vec<String>,
}

impl Talk {
    /// Connects as soon as the program listens.
    pub(super) fn connect(path: &Path) -> Result<Self> {
        let mut stream = None;
        until("the management interface listens", SETUP_LIMIT, || {
            stream = UnixStream::connect(path).ok();
            Ok(stream.is_some())
        })?;
        let stream = stream.context("no management interface")?;
        stream.set_read_timeout(Some(Duration::from_millis(50)))?;
        Ok(Self { stream, bytes: Vec::new(), lines: VecDeque::new(), transcript: Vec::new() })
    }

    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        self.transcript.push(format!("< {line}"));
        Ok(writeln!(self.stream, "{line}")?)
    }

    /// Reads what has arrived.
    fn read(&mut self) -> Result<()> {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err("the management interface closed the connection".into()),
            Ok(count) => self.bytes.extend_from_slice(&bytes[..count]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e.into()),
        }
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.transcript.push(line.clone());
            self.lines.push_back(line);
        }
        Ok(())
    }

    /// Waits for a line that begins with `start`, and returns it. Earlier lines are skipped.
    pub(super) fn wait(&mut self, start: &str) -> Result<String> {
        let limit = ScaledInstant::now() + SOON;
        loop {
            while let Some(line) = self.lines.pop_front() {
                if line.starts_with(start) {
                    return Ok(line);
                }
            }
            ensure(ScaledInstant::now() < limit, || {
                format!("{start} was expected:\n{}", self.transcript.join("\n"))
            })?;
            self.read()?;
        }
    }

    /// Waits for the state with this name.
    pub(super) fn wait_state(&mut self, name: &str) -> Result<String> {
        loop {
            let line = self.wait(">STATE:")?;
            if line.split(',').nth(1) == Some(name) {
                return Ok(line);
            }
        }
    }

    /// Sends a command and returns its reply: one line, or lines up to END.
    pub(super) fn ask(&mut self, command: &str) -> Result<Vec<String>> {
        self.lines.clear();
        self.send(command)?;
        let mut reply = Vec::new();
        loop {
            let limit = ScaledInstant::now() + SOON;
            while self.lines.is_empty() {
                ensure(ScaledInstant::now() < limit, || {
                    format!("no reply to {command}:\n{}", self.transcript.join("\n"))
                })?;
                self.read()?;
            }
            let Some(line) = self.lines.pop_front() else { continue };
            // Notifications come at any time.
            if line.starts_with('>') {
                continue;
            }
            let first = reply.is_empty();
            let last = line == "END"
                || (first && (line.starts_with("SUCCESS:") || line.starts_with("ERROR:")));
            reply.push(line);
            if last {
                return Ok(reply);
            }
        }
    }
}

/// What a conversation showed, with everything that differs from run to run left out.
pub(super) type Shown = Vec<String>;

/// Replaces numbers that are times, counters or ports.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut digits = String::new();
    for c in line.chars().chain([' ']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        // Shorter numbers are parts of names and addresses, and flags.
        if digits.len() >= 4 && digits != "1194" {
            text.push('#');
        } else {
            text.push_str(&digits);
        }
        digits.clear();
        text.push(c);
    }
    text.trim_end().to_owned()
}

/// Replaces all numbers of a line after its name.
fn counters(line: &str) -> String {
    let numbers = |c: char| c.is_ascii_digit();
    line.split(numbers).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
}

pub(super) fn lines(command: &str, reply: Vec<String>) -> Shown {
    let shown = reply.iter().map(|line| plain(line));
    std::iter::once(format!("< {command}")).chain(shown).collect()
}

/// Compares what openvpn and adit showed.
pub(super) fn same(of_openvpn: &Shown, of_adit: &Shown) -> Result<()> {
    ensure(of_openvpn == of_adit, || {
        let rows = of_openvpn.len().max(of_adit.len());
        let line = |shown: &Shown, at: usize| shown.get(at).cloned().unwrap_or_default();
        let differs = |at: &usize| line(of_openvpn, *at) != line(of_adit, *at);
        let rows: Vec<String> = (0..rows)
            .filter(differs)
            .map(|at| format!("openvpn: {}\nadit:    {}", line(of_openvpn, at), line(of_adit, at)))
            .collect();
        rows.join("\n")
    })
}

/// Commands whose replies depend on nothing.
const PLAIN: [&str; 24] = [
    "nonsense",
    "bytecount",
    "bytecount 0",
    "log",
    "log maybe",
    "state maybe",
    "echo off",
    "hold",
    "hold maybe",
    "hold release",
    "signal SIGKILL",
    "signal",
    "verb 4",
    "verb",
    "verb 99",
    "mute 40",
    "mute",
    "mute 0",
    "net",
    "username Auth x",
    "password Auth x",
    "needok a ok",
    "needstr a b",
    "env-filter 2",
];

/// A client that waits for `hold release` and for its password, and restarts.
fn client_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    configs.server("disable-dco\npush \"echo forget-passwords\"");
    configs.client(&format!(
        "management {} unix\nmanagement-hold\nmanagement-query-passwords\nauth-user-pass\n\
         disable-dco\necho of the file",
        path.display()
    ));
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = client_conversation(&path, &mut client);
    talked
        .map_err(|e| format!("{name}: {e}\n{}\n{}", client.failure(""), server.failure("")).into())
}

fn client_conversation(path: &Path, client: &mut Daemon) -> Result<Shown> {
    let mut talk = Talk::connect(path)?;
    let mut shown = Vec::new();
    shown.push(talk.wait(">INFO:")?);
    shown.push(talk.wait(">HOLD:")?);
    for command in ["state", "state on", "echo on", "hold off"] {
        let reply = talk.ask(command)?;
        shown.extend(lines(command, reply));
    }
    shown.extend(lines("hold release", talk.ask("hold release")?));
    shown.push(talk.wait(">PASSWORD:")?);
    for command in [
        "password \"Private Key\" x",
        "username \"Auth\" \"alice\"",
        "password \"Auth\" \"a \\\"b\\\" c\"",
    ] {
        shown.extend(lines(command, talk.ask(command)?));
    }
    let echo = talk.wait(">ECHO:")?;
    shown.push(plain(&echo));
    let connected = talk.wait_state("CONNECTED")?;
    shown.push(plain(&connected));
    for command in
        PLAIN.iter().chain(&["state", "echo all", "status", "kill x", "client-auth-nt 0 0"])
    {
        let reply = talk.ask(command)?;
        if *command == "status" {
            shown.extend(reply.iter().map(|line| counters(line)));
        } else {
            shown.extend(lines(command, reply));
        }
    }
    let pid = talk.ask("pid")?;
    ensure(pid == [format!("SUCCESS: pid={}", client.pid())], || format!("{pid:?}"))?;
    talk.send("bytecount 1")?;
    shown.push(counters(&talk.wait(">BYTECOUNT:")?));
    talk.ask("bytecount 0")?;
    // A restart by the user holds again.
    for command in ["hold on", "signal SIGUSR1"] {
        shown.extend(lines(command, talk.ask(command)?));
    }
    shown.push(plain(&talk.wait_state("RECONNECTING")?));
    let hold = talk.wait(">HOLD:")?;
    shown.push(hold.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned());
    talk.ask("hold release")?;
    talk.wait_state("CONNECTED")?;
    // Another client waits until this one leaves.
    let mut second = Talk::connect(path)?;
    std::thread::sleep(Duration::from_millis(300));
    second.read()?;
    ensure(second.transcript.is_empty(), || format!("{:?}", second.transcript))?;
    let states = states(&talk);
    shown.extend(states);
    talk.send("quit")?;
    shown.push(second.wait(">INFO:")?);
    second.ask("state on")?;
    shown.extend(lines("signal SIGTERM", second.ask("signal SIGTERM")?));
    shown.push(plain(&second.wait_state("EXITING")?));
    client.wait_exit(SOON)?;
    ensure(!path.exists(), || "the socket stays after the end".to_owned())?;
    Ok(shown)
}

/// Returns the names of the states in order.
fn states(talk: &Talk) -> Vec<String> {
    let states = talk.transcript.iter().filter(|line| line.starts_with(">STATE:"));
    states.map(|line| line.split(',').nth(1).unwrap_or_default().to_owned()).collect()
}

/// The conversation with adit as a client is that with openvpn as a client.
pub(super) fn client(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = client_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = client_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

/// A server with a connected client.
fn server_talk(scenario: &Scenario<'_>, server: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    configs.server(&format!("disable-dco\nmanagement {} unix", path.display()));
    configs.client("disable-dco\nconnect-retry 1 1");
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, server)?;
    let mut client = None;
    let talked = server_conversation(scenario, &folder, &configs, &pair, &mut server, &mut client);
    talked.map_err(|e| {
        let of_client = client.as_ref().map(|client| client.failure("").0).unwrap_or_default();
        format!("{name}: {e}\n{}\n{of_client}", server.failure("")).into()
    })
}

fn server_conversation(
    scenario: &Scenario<'_>,
    folder: &Path,
    configs: &Configs,
    pair: &Pair,
    server: &mut Daemon,
    client: &mut Option<Daemon>,
) -> Result<Shown> {
    let mut talk = Talk::connect(&folder.join("management"))?;
    let mut shown = vec![talk.wait(">INFO:")?];
    server.wait_for(READY, SETUP_LIMIT)?;
    shown.extend(lines("state all", talk.ask("state all")?));
    let client = client.insert(dial(pair, folder, configs, scenario.client)?);
    client.wait_for(READY, SETUP_LIMIT)?;
    ping(&pair.client, inner_addrs(&pair.server)?.v4, 56, 2)?;
    for version in ["status 1", "status 2", "status 3"] {
        let reply = talk.ask(version)?;
        // The title differs, and the queue length is openvpn's own.
        let reply =
            reply.iter().filter(|line| !line.starts_with("TITLE") && !line.contains("queue"));
        let mut rows: Vec<String> = reply.map(|line| counters(line)).collect();
        // The order of routes is that of openvpn's hash table.
        rows.sort_unstable();
        shown.extend(rows);
    }
    let load = talk.ask("load-stats")?;
    shown.extend(load.iter().map(|line| counters(line)));
    talk.send("bytecount 1")?;
    shown.push(counters(&talk.wait(">BYTECOUNT_CLI:")?));
    talk.ask("bytecount 0")?;
    for command in PLAIN.iter().chain(&[
        "kill",
        "kill nobody",
        "kill 192.0.2.99:1194",
        "kill 192.0.2.99:0",
        "kill x:7",
        "client-kill x",
        "client-kill 77",
        "client-deny 0",
        "status 9",
    ]) {
        shown.extend(lines(command, talk.ask(command)?));
    }
    shown.extend(lines("kill client", talk.ask("kill client")?));
    until("the client comes back", BACK, || Ok(clients(&mut talk)? == ["1"]))?;
    shown.extend(lines("client-kill", talk.ask("client-kill 1")?));
    until("the client comes back again", BACK, || Ok(clients(&mut talk)? == ["2"]))?;
    talk.ask("state on")?;
    talk.send("signal SIGTERM")?;
    shown.push(plain(&talk.wait_state("EXITING")?));
    server.wait_exit(SOON)?;
    Ok(shown)
}

/// Returns the numbers of the connected clients.
fn clients(talk: &mut Talk) -> Result<Vec<String>> {
    let status = talk.ask("status 2")?;
    let rows = status.iter().filter_map(|line| line.strip_prefix("CLIENT_LIST,"));
    Ok(rows.filter_map(|row| Some(row.split(',').nth(9)?.to_owned())).collect())
}

/// The conversation with adit as a server is that with openvpn as a server.
pub(super) fn server(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = server_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = server_talk(scenario, scenario.server, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

/// A management client that stops reading stalls nothing, and is disconnected.
pub(super) fn client_that_does_not_read(scenario: &Scenario<'_>) -> Result<String> {
    let path = scenario.folder().join("management");
    let mut configs = scenario.configs();
    configs.server(&format!("management {} unix", path.display()));
    let tunnel = scenario.tunnel(&configs)?;
    let mut talk = Talk::connect(&path)?;
    talk.ask("log on")?;
    // More than the interface keeps for a client. The reply is never read.
    talk.send("test 1000000")?;
    tcp(&tunnel.pair.client, &tunnel.pair.server, tunnel.server_inner.v4, 6_000_000)?;
    tunnel.ping_all(4)?;
    // The next client does not wait for it.
    let mut next = Talk::connect(&path)?;
    next.wait(">INFO:")?;
    ensure(tunnel.server.log().contains("did not read its lines"), || {
        tunnel.server.failure("the client was not disconnected").0
    })?;
    let reply = next.ask("load-stats")?;
    ensure(reply.concat().starts_with("SUCCESS: nclients=1,"), || format!("{reply:?}"))?;
    Ok(String::new())
}

/// Many commands a second during a bulk transfer. Returns the processor time that they cost.
pub(super) fn many_commands(scenario: &Scenario<'_>) -> Result<String> {
    let path = scenario.folder().join("management");
    let mut configs = scenario.configs();
    configs.server(&format!("management {} unix", path.display()));
    let tunnel = scenario.tunnel(&configs)?;
    let transfer =
        || tcp(&tunnel.pair.client, &tunnel.pair.server, tunnel.server_inner.v4, 60_000_000);
    let cpu = |from: f64| tunnel.server.cpu_seconds().map(|now| now - from);
    let before = cpu(0.0)?;
    transfer()?;
    let alone = cpu(before)?;
    let mut talk = Talk::connect(&path)?;
    talk.wait(">INFO:")?;
    let before = cpu(0.0)?;
    let mut count = 0_u32;
    std::thread::scope(|scope| -> Result<()> {
        let moving = scope.spawn(|| transfer().map_err(|e| e.to_string()));
        while !moving.is_finished() {
            for command in ["load-stats", "state", "status 2", "pid", "hold"] {
                talk.ask(command)?;
                count += 1;
            }
            talk.transcript.clear();
            std::thread::sleep(Duration::from_millis(10));
        }
        match moving.join() {
            Ok(moved) => Ok(moved.map(drop)?),
            Err(_) => Err("the transfer failed".into()),
        }
    })?;
    let with = cpu(before)?;
    ensure(count > 0, || "no command was answered".to_owned())?;
    Ok(format!("{count} commands, {alone:.2} s of processor time without, {with:.2} s with them"))
}

/// The password of the interface, and its address in a TCP port of the loopback interface.
pub(super) fn password(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let (path, file) = (folder.join("management"), folder.join("password"));
    std::fs::write(&file, "secret\n")?;
    let mut configs = scenario.configs();
    configs.server(&format!("management {} unix {}", path.display(), file.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut talk = Talk::connect(&path)?;
    talk.send("signal SIGTERM")?;
    talk.wait("ENTER PASSWORD:ERROR: bad password")?;
    talk.send("secret")?;
    talk.wait("ENTER PASSWORD:SUCCESS: password is correct")?;
    talk.wait(">INFO:")?;
    ensure(server.ended()?.is_none(), || server.failure("it obeyed without the password").0)?;
    // Three wrong passwords end the conversation.
    talk.send("quit")?;
    let mut guesser = Talk::connect(&path)?;
    for _ in 0..3 {
        guesser.send("guess")?;
    }
    until("the guesser is disconnected", SOON, || Ok(guesser.read().is_err()))?;
    Ok(String::new())
}

/// A program that listens is connected to, and its end is the end of the client.
pub(super) fn program_that_listens(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let path = folder.join("program");
    let listener = std::os::unix::net::UnixListener::bind(&path)?;
    let mut configs = scenario.configs();
    configs.client(&format!("management {} unix\nmanagement-client", path.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    let (stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut talk =
        Talk { stream, bytes: Vec::new(), lines: VecDeque::new(), transcript: Vec::new() };
    talk.wait(">INFO:")?;
    client.wait_for(READY, SETUP_LIMIT)?;
    let state = talk.ask("state")?;
    ensure(state.concat().contains(",CONNECTED,SUCCESS,"), || format!("{state:?}"))?;
    drop(talk);
    let status = client.wait_exit(SOON)?;
    ensure(status.success(), || client.failure(&format!("it ended by {status}")).0)?;
    ensure(path.exists(), || "the program's socket is gone".to_owned())?;
    Ok(String::new())
}

/// `management-query-remote`: the second server is skipped to, and then another address is given.
pub(super) fn query_remote(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = remote_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = remote_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(String::new())
}

fn remote_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    let server = configs.client.lines().find_map(|line| line.strip_prefix("remote "));
    let server = server.and_then(|rest| rest.split(' ').next()).context("no remote")?.to_owned();
    configs.client = configs.client.replace(&format!("remote {server} 1194"), "");
    configs.client("remote 192.0.2.77 1194\nremote 192.0.2.78 1195\nremote 192.0.2.79 1196");
    configs.client(&format!("management {} unix\nmanagement-query-remote", path.display()));
    configs.client("management-hold\ndisable-dco");
    let pair = Pair::new()?;
    let mut daemon = serve(&pair, &folder, &configs, scenario.server)?;
    daemon.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = || -> Result<Shown> {
        let mut talk = Talk::connect(&path)?;
        let mut shown = Vec::new();
        talk.wait(">HOLD:")?;
        talk.ask("state on")?;
        talk.send("hold release")?;
        shown.push(talk.wait(">REMOTE:")?);
        for command in ["remote-entry-count", "remote-entry-get all", "remote-entry-get 1"] {
            shown.extend(lines(command, talk.ask(command)?));
        }
        talk.send("remote SKIP")?;
        shown.push(talk.wait(">REMOTE:")?);
        talk.send(&format!("remote MOD {server} 1194"))?;
        talk.wait_state("CONNECTED")?;
        Ok(shown)
    };
    let shown = talked().map_err(|e| format!("{name}: {e}\n{}", client.failure("")))?;
    client.stop()?;
    Ok(shown)
}

/// The encrypted key of a client is opened with a password of the management client.
pub(super) fn key_password(scenario: &Scenario<'_>) -> Result<String> {
    let path = scenario.folder().join("management");
    let mut configs = scenario.configs();
    let key = scenario.pki("client.key");
    let sealed = scenario.folder().join("sealed.key");
    let sealed = sealed.display().to_string();
    crate::process::run(
        "openssl",
        &["pkcs8", "-topk8", "-in", &key, "-out", &sealed, "-passout", "pass:open sesame"],
    )?;
    configs.client = configs.client.replace(&key, &sealed);
    configs.client(&format!("management {} unix\nmanagement-query-passwords", path.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    let mut talk = Talk::connect(&path)?;
    let asked = talk.wait(">PASSWORD:")?;
    ensure(asked == ">PASSWORD:Need 'Private Key' password", || asked.clone())?;
    talk.send("password \"Private Key\" \"open sesame\"")?;
    client.wait_for(READY, SETUP_LIMIT)?;
    client.stop()?;
    // A wrong password ends the client.
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    let mut talk = Talk::connect(&path)?;
    talk.wait(">PASSWORD:Need")?;
    talk.send("password \"Private Key\" wrong")?;
    let refused = talk.wait(">PASSWORD:Verification")?;
    ensure(refused == ">PASSWORD:Verification Failed: 'Private Key'", || refused.clone())?;
    let status = client.wait_exit(SOON)?;
    ensure(!status.success(), || client.failure("it went on").0)?;
    Ok(String::new())
}

/// A client whose key and certificate are with its management client, which signs with the `openssl` command.
pub(super) fn external_key(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = signing_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = signing_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(String::new())
}

fn signing_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    let (cert, key) = (scenario.pki("client.crt"), scenario.pki("client.key"));
    let own = |line: &&str| !line.contains(&cert) && !line.contains(&key);
    configs.client = configs.client.lines().filter(own).map(|line| format!("{line}\n")).collect();
    configs.client(&format!(
        "management {} unix\nmanagement-external-key\nmanagement-external-cert test:hint\n\
         management-hold\ndisable-dco",
        path.display()
    ));
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = || -> Result<Shown> {
        let mut shown = Vec::new();
        let mut talk = Talk::connect(&path)?;
        talk.send("version 3")?;
        talk.ask("state on")?;
        shown.extend(lines("pk-sig", talk.ask("pk-sig")?));
        talk.ask("hold release")?;
        shown.push(talk.wait(">NEED-CERTIFICATE:")?);
        talk.send("certificate")?;
        let certificate = std::fs::read_to_string(&cert)?;
        let from = certificate.find("-----BEGIN").context("no certificate")?;
        for line in certificate[from..].lines() {
            talk.send(line)?;
        }
        talk.send("END")?;
        shown.push(talk.wait("SUCCESS: ")?);
        let asked = talk.wait(">PK_SIGN:")?;
        let (data, algorithm) = asked
            .strip_prefix(">PK_SIGN:")
            .and_then(|rest| rest.split_once(','))
            .context("a request to sign has no algorithm")?;
        shown.push(algorithm.to_owned());
        talk.send("pk-sig")?;
        for line in sign(&folder, &key, data)?.lines() {
            talk.send(line)?;
        }
        talk.send("END")?;
        shown.push(talk.wait("SUCCESS: ")?);
        talk.wait_state("CONNECTED")?;
        Ok(shown)
    };
    let shown = talked()
        .map_err(|e| format!("{name}: {e}\n{}\n{}", client.failure(""), server.failure("")))?;
    client.stop()?;
    Ok(shown)
}

/// Signs a digest in base64 by an EC key. Returns base64.
fn sign(folder: &Path, key: &str, data: &str) -> Result<String> {
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("data.base64"), format!("{data}\n"))?;
    let (data, signature) = (path("data"), path("signature"));
    let run = |args: &[&str]| crate::process::run("openssl", args);
    run(&["base64", "-d", "-A", "-in", &path("data.base64"), "-out", &data])?;
    run(&["pkeyutl", "-sign", "-inkey", key, "-in", &data, "-out", &signature])?;
    run(&["base64", "-in", &signature])
}

/// A client whose password is questioned, forgotten and refused by a server with `management-client-auth`.
pub(super) fn challenge(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = challenge_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = challenge_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

fn challenge_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let (at_server, at_client) = (folder.join("server.sock"), folder.join("client.sock"));
    let mut configs = scenario.configs();
    configs.server(&format!(
        "management {} unix\nmanagement-client-auth\ndisable-dco",
        at_server.display()
    ));
    configs.client(&format!(
        "management {} unix\nmanagement-hold\nmanagement-query-passwords\nauth-user-pass\n\
         disable-dco\npush-peer-info\nsetenv IV_SSO crtext",
        at_client.display()
    ));
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = || -> Result<Shown> {
        let (mut server, mut client) = (Talk::connect(&at_server)?, Talk::connect(&at_client)?);
        challenge_conversation(&mut server, &mut client)
    };
    let shown = talked()
        .map_err(|e| format!("{name}: {e}\n{}\n{}", client.failure(""), server.failure("")))?;
    client.stop()?;
    Ok(shown)
}

fn challenge_conversation(server: &mut Talk, client: &mut Talk) -> Result<Shown> {
    let mut shown = Vec::new();
    client.wait(">HOLD:")?;
    for command in ["state on", "auth-retry", "auth-retry interact", "auth-retry", "hold release"] {
        shown.extend(lines(command, client.ask(command)?));
    }
    log_in(client, &mut shown)?;
    let asked = asked_about(server)?;
    let pending = format!("client-pending-auth {asked} \"CR_TEXT:R,E:PIN, please\" 30");
    server.ask(&pending)?;
    shown.push(plain(&client.wait_state("AUTH_PENDING")?));
    shown.push(client.wait(">INFOMSG:")?);
    shown.extend(lines("cr-response", client.ask("cr-response MTIzNA==")?));
    let response = server.wait(">CLIENT:CR_RESPONSE,")?;
    ensure(response.ends_with(",MTIzNA=="), || response.clone())?;
    server.ask(&format!("client-auth-nt {asked}"))?;
    client.wait_state("CONNECTED")?;
    // The password is asked for again after it was forgotten, and after it was refused.
    for command in ["forget-passwords", "hold on", "signal SIGUSR1"] {
        shown.extend(lines(command, client.ask(command)?));
    }
    shown.push(plain(&client.wait_state("RECONNECTING")?));
    client.wait(">HOLD:")?;
    client.ask("hold release")?;
    log_in(client, &mut shown)?;
    let asked = asked_about(server)?;
    server.ask(&format!("client-deny {asked} \"a reason\" \"come back later\""))?;
    shown.push(client.wait(">PASSWORD:Verification")?);
    shown.push(plain(&client.wait_state("RECONNECTING")?));
    client.wait(">HOLD:")?;
    client.ask("hold off")?;
    client.ask("hold release")?;
    log_in(client, &mut shown)?;
    let asked = asked_about(server)?;
    server.ask(&format!("client-auth-nt {asked}"))?;
    client.wait_state("CONNECTED")?;
    // GET_CONFIG is entered once a second, so that a fast server's answer precedes it.
    shown.extend(states(client).into_iter().filter(|name| !name.contains("GET_CONFIG")));
    Ok(shown)
}

/// Answers the question for a password.
fn log_in(client: &mut Talk, shown: &mut Shown) -> Result<()> {
    shown.push(client.wait(">PASSWORD:Need")?);
    for command in ["username \"Auth\" alice", "password \"Auth\" secret"] {
        shown.extend(lines(command, client.ask(command)?));
    }
    Ok(())
}

/// Waits for a client's request, and returns the numbers of the client and its key.
fn asked_about(server: &mut Talk) -> Result<String> {
    let asked = server.wait(">CLIENT:CONNECT,")?;
    server.wait(">CLIENT:ENV,END")?;
    let numbers = asked.trim_start_matches(">CLIENT:CONNECT,");
    Ok(numbers.replace(',', " "))
}
