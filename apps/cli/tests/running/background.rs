//! Tests of clients and servers in the background, under the supervisor, and of those that end with their terminal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use adit_linux::netns::NetNs;
use serde_json::Value;

use crate::client::routing;
use crate::users;
use crate::world::terminal::{TAKE_TERMINAL, Terminal};
use crate::world::{ADIT, Server, alive, answers, helper_of, until};

/// A client's machine with profiles in the background, which end with the test.
struct Machine {
    ns: NetNs,
    folder: PathBuf,
}

impl Machine {
    /// Adds a client to the server. Its profile leaves the DNS settings alone, because the namespace shares the host's /etc.
    fn new(server: &mut Server, name: &str, lines: &str) -> Self {
        let ns = server.client(name, "");
        let this = Self { ns, folder: server.dir.path().to_owned() };
        let file = this.folder.join(format!("{name}.ovpn"));
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}dns-updown disable\n{lines}")).unwrap();
        this
    }

    fn terminal(&self, line: &str) -> Terminal {
        let mut command = self.ns.command("setsid").unwrap();
        command
            .args(TAKE_TERMINAL)
            .arg(ADIT)
            .args(line.split_whitespace())
            .current_dir(&self.folder);
        Terminal::start(command)
    }

    fn spawn(&self, line: &str) -> Child {
        let mut command = self.ns.command(ADIT).unwrap();
        command.args(line.split_whitespace()).args(["--dir", "bg"]).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Returns the exit code and the output of `adit LINE --dir bg`.
    fn adit(&self, line: &str) -> (Option<i32>, String) {
        outcome(&self.spawn(line).wait_with_output().unwrap())
    }

    /// Returns an entry of `adit list --json`.
    fn entry(&self, name: &str) -> Value {
        let output = self.spawn("list --json").wait_with_output().unwrap();
        let entries: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        entries.into_iter().find(|entry| entry["name"] == name).unwrap_or_default()
    }

    fn state(&self, name: &str) -> String {
        self.entry(name)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the process id of a client.
    fn pid(&self, name: &str) -> u32 {
        u32::try_from(self.entry(name)["pid"].as_u64().unwrap()).unwrap()
    }

    /// Returns the process id of a client's supervisor.
    fn supervisor(&self, name: &str) -> u32 {
        let path = self.folder.join(format!("bg/run/background/connect-{name}.lock"));
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(format!("bg/log/connect-{name}.log")))
            .unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.folder.join("bg/connect")).into_iter().flatten().flatten() {
            let name = entry.path().file_stem().unwrap().to_string_lossy().into_owned();
            if std::thread::panicking() {
                eprintln!("--- {name}:\n{}", self.log(&name));
            }
            let _ = self.adit(&format!("down {name}"));
        }
    }
}

fn outcome(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn kill(pids: &[u32]) {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    // Stopped first, none of them ends by itself because another one was killed.
    for signal in ["-STOP", "-KILL"] {
        let mut command = std::process::Command::new("kill");
        assert!(command.arg(signal).args(&pids).status().unwrap().success());
    }
}

/// A server that does not answer: a terminal shows that the command waits, and a pipe gets nothing but the result.
#[test]
fn a_terminal_shows_that_a_client_is_awaited() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let machine = Machine::new(&mut server, "ann", "");
    let mut terminal = machine.terminal("up ann.ovpn --wait 5 --dir bg");
    terminal.expect("\r\x1b[K... waiting for the tunnel of ann (");
    terminal.expect("\r\x1b[Kadit: ann is not connected after 5 s");
    assert_eq!(terminal.finish(), Some(1));
    let (code, text) = machine.adit("up ann --wait 2");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("adit: ann is not connected after 2 s"), "{text}");
    assert!(!text.contains(['\r', '\x1b']), "{text:?}");
}

#[test]
fn a_client_in_the_background_is_started_once_restarted_and_stopped() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let machine = Machine::new(&mut server, "ann", "");
    let _running = server.run();
    let before = routing(&machine.ns);
    assert_eq!(machine.adit("down ann").0, Some(2), "there is no such profile");

    // Two starts at once are one.
    let both = [machine.spawn("up ann.ovpn"), machine.spawn("up ann.ovpn")];
    for process in both {
        let (code, text) = outcome(&process.wait_with_output().unwrap());
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("ann is up: 10.73.0.") && text.contains("adit down ann"), "{text}");
    }
    assert_eq!(machine.log("ann").matches("connected: ").count(), 1);
    assert!(answers(&machine.ns, "10.73.0.1"));
    let entry = machine.entry("ann");
    assert_eq!((&entry["state"], &entry["kept_by"]), (&"up".into(), &"supervisor".into()));
    assert_eq!(entry["server"], "192.0.2.1:1194");
    assert!(machine.adit("list").1.contains("ann   up"));
    let (_, status) = machine.adit("status");
    assert!(status.contains("client ann: running"), "{status}");
    let (code, top) = machine.adit("top");
    assert!(code == Some(0) && top.contains("ann"), "{top}");
    assert_eq!(machine.adit("up ann").0, Some(0), "it is up already");

    // Another profile of this name is not used by mistake.
    let profile = machine.folder.join("ann.ovpn");
    let text = fs::read_to_string(&profile).unwrap();
    fs::write(&profile, format!("{text}verb 4\n")).unwrap();
    let (code, text) = machine.adit("up ann.ovpn");
    assert!(code == Some(2) && text.contains("--replace"), "{text}");
    let pid = machine.pid("ann");
    assert_eq!(machine.adit("up --replace ann.ovpn").0, Some(0));
    assert_ne!(machine.pid("ann"), pid);

    // A crash of the client: the supervisor starts it again.
    let pid = machine.pid("ann");
    kill(&[helper_of(pid).unwrap(), pid]);
    until("it is up again", || machine.state("ann") == "up" && machine.pid("ann") != pid);
    assert_eq!(machine.entry("ann")["restarts"], 1);
    assert!(machine.log("ann").contains("supervisor: failed (killed): restarted in 1 s"));

    // A crash of the supervisor: the client ends, and undoes its changes.
    kill(&[machine.supervisor("ann")]);
    until("nothing is left", || routing(&machine.ns) == before);
    until("it has stopped", || machine.state("ann") == "stopped");
    assert!(machine.entry("ann")["message"].as_str().unwrap().contains("supervisor was killed"));

    assert_eq!(machine.adit("up ann").0, Some(0));
    let (code, text) = machine.adit("logs ann -n 3");
    assert!(code == Some(0) && text.contains("connected: "), "{text}");
    assert!(text.lines().count() == 3, "{text}");
    assert_eq!(machine.adit("down ann"), (Some(0), "ann is disconnected\n".into()));
    assert_eq!(routing(&machine.ns), before);
    assert_eq!(machine.adit("down ann.ovpn"), (Some(0), "ann was not connected\n".into()));
    assert_eq!(machine.state("ann"), "stopped");
}

#[test]
fn a_failed_start_gives_the_reason_and_leaves_nothing_running() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let machine = Machine::new(&mut server, "ann", "");
    let _running = server.run();
    let profile = |name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(machine.folder.join("ann.ovpn")).unwrap();
        assert!(text.contains(from));
        fs::write(machine.folder.join(format!("{name}.ovpn")), text.replace(from, to)).unwrap();
    };
    // A mistake is found before anything is copied.
    profile("wrong", "nobind", "nobinding");
    let (code, text) = machine.adit("up wrong.ovpn");
    assert!(code == Some(2) && text.contains("nobinding"), "{text}");
    assert!(!machine.folder.join("bg/connect/wrong.ovpn").exists());
    // The client gives up.
    let once = "remote 192.0.2.99 1 udp\nserver-poll-timeout 1\nconnect-retry-max 1\nnobind";
    let text = fs::read_to_string(machine.folder.join("ann.ovpn")).unwrap();
    let lines =
        text.lines().filter(|line| !line.starts_with("remote ")).map(|line| format!("{line}\n"));
    let text = lines.collect::<String>().replace("nobind", once);
    fs::write(machine.folder.join("once.ovpn"), text).unwrap();
    let (code, text) = machine.adit("up once.ovpn");
    assert!(code == Some(1) && text.contains("once: no server could be reached"), "{text}");
    // The server is not there: the client keeps trying, until it is stopped.
    profile("away", "remote 192.0.2.1", "remote 192.0.2.99");
    let (code, text) = machine.adit("up --wait 1 away.ovpn");
    assert!(code == Some(1) && text.contains("keeps trying"), "{text}");
    assert_eq!(machine.state("away"), "connecting");
    let down = (Some(0), "away is disconnected\n".into());
    assert_eq!(machine.adit("down away"), down);
    let waiting = machine.spawn("up away");
    until("it connects again", || machine.state("away") == "connecting");
    assert_eq!(machine.adit("down away"), down);
    let (code, text) = outcome(&waiting.wait_with_output().unwrap());
    assert!(code == Some(1) && text.contains("stopped while it started"), "{text}");
    // The server refuses it.
    assert!(server.adit("server client revoke ann").0);
    fs::write(machine.folder.join("bg/connect/ann.ovpn"), {
        fs::read(machine.folder.join("ann.ovpn")).unwrap()
    })
    .unwrap();
    let (code, text) = machine.adit("up --wait 5 ann");
    assert!(code == Some(1) && text.contains("revoked: ask for a new profile"), "{text}");
    let _ = machine.adit("down ann");
    for name in ["ann", "away", "once"] {
        assert_eq!(machine.state(name), "stopped", "{name}");
    }
    let (code, text) = machine.adit("up --boot away");
    assert!(code == Some(2) && text.contains("--dir"), "{text}");
    let (code, text) = machine.adit("logs -n 1 wrong");
    assert!(code == Some(2) && text.contains("there is no profile wrong"), "{text}");
}

#[test]
fn a_client_at_a_terminal_ends_with_it_and_undoes_its_changes() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let machine = Machine::new(&mut server, "ann", "");
    let _running = server.run();
    let before = routing(&machine.ns);
    let mut terminal = machine.terminal("connect ann.ovpn --dir run-ann");
    terminal.expect("connected: 10.73.0.");
    assert_ne!(routing(&machine.ns), before);
    assert_eq!(terminal.close(), Some(0));
    until("its changes are undone", || routing(&machine.ns) == before);
}

/// Returns whether a file below a folder contains a text.
fn contains(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return contains(&path, text);
        }
        let bytes = if path.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
fn a_password_is_asked_for_once_and_the_client_outlives_the_terminal() {
    adit_testbed::needs_root!();
    let mut server = users::server("certificate+password", "");
    users::with_password(&server, "server user add alice", "correct horse");
    let machine = Machine::new(&mut server, "ann", "");
    let _running = server.run();
    let (code, text) = machine.adit("up ann.ovpn");
    assert!(code == Some(2) && text.contains("cannot be asked without a terminal"), "{text}");

    let mut terminal = machine.terminal("up ann.ovpn --dir bg");
    terminal.answer("Enter Auth Username: ", "alice");
    terminal.answer("Enter Auth Password: ", "correct horse");
    terminal.expect("End: ");
    assert!(!terminal.shown.contains("horse"));
    assert_eq!(terminal.finish(), Some(0));
    let pid = machine.pid("ann");
    assert!(alive(pid) && machine.state("ann") == "up");
    assert!(!contains(&machine.folder.join("bg"), "horse"), "the password is in a file");
    // The supervisor knows the password after a crash.
    kill(&[pid]);
    until("it is up again", || machine.state("ann") == "up" && machine.pid("ann") != pid);
    assert_eq!(machine.adit("down ann").0, Some(0));

    // A saved one needs no terminal any more.
    let mut terminal = machine.terminal("up --save-password ann.ovpn --dir bg");
    terminal.answer("Enter Auth Username: ", "alice");
    terminal.answer("Enter Auth Password: ", "correct horse");
    terminal.expect("End: ");
    assert_eq!(terminal.finish(), Some(0));
    assert_eq!(machine.adit("down ann").0, Some(0));
    assert_eq!(machine.adit("up ann.ovpn").0, Some(0), "{}", machine.log("ann"));
}

#[test]
fn a_server_in_the_background_is_started_shown_and_stopped() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    let before = server.rules();
    let status = || -> Value {
        let (_, text) = server.adit("server status --json");
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(status()["state"], "stopped");
    let (started, text) = server.adit("server start");
    assert!(started && text.contains("adit server stop --dir vpn"), "{text}");
    assert_eq!(
        (&status()["state"], &status()["kept_by"]),
        (&"running".into(), &"supervisor".into())
    );
    let (runs, text) = server.adit("server status");
    assert!(runs && text.contains("The server is running, up "), "{text}");
    assert!(server.adit("server start").0, "it runs already");
    assert!(server.adit("status").0);
    let (shown, text) = server.adit("server logs");
    assert!(shown && text.matches("the server is up: device").count() == 1, "{text}");
    let (enabled, text) = server.adit("server enable");
    assert!(!enabled && text.contains("adit server run"), "{text}");
    assert_eq!(server.adit("server stop"), (true, "The server has stopped.\n".into()));
    assert_eq!(server.adit("server stop"), (true, "The server was not running.\n".into()));
    assert_eq!(server.rules(), before);
    assert!(!server.adit("server status").0);

    // Wrong settings are reported at once, and those that only the server finds as soon as it has ended.
    server.edit_settings("\ndns = ", "\ncolour = 1\ndns = ");
    let (started, text) = server.adit("server start");
    assert!(!started && text.contains("colour"), "{text}");
    server.edit_settings("\ncolour = 1\n", "\n");
    server.edit_settings("[\"udp/1194\"]", "[\"udp/203.0.113.77:1194\"]");
    let (started, text) = server.adit("server start");
    assert!(!started && text.contains("203.0.113.77"), "{text}");
    assert_eq!(status()["state"], "stopped");
    server.edit_settings("udp/203.0.113.77:1194", "udp/1194");

    // One in the foreground is neither started twice nor forgotten.
    let mut foreground = server.run();
    let (started, text) = server.adit("server start");
    assert!(!started && text.contains("in the foreground"), "{text}");
    assert_eq!(status()["kept_by"], "foreground");
    assert_eq!(server.adit("server stop").1, "The server has stopped.\n");
    until("it has ended", || foreground.child.try_wait().unwrap().is_some());
    assert_eq!(foreground.child.wait().unwrap().code(), Some(0));
}
