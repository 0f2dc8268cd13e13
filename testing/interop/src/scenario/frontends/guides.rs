//! The commands of the guides, word for word, on a server and a client with a systemd.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::super::Scenario;
use super::background::{Machine, boot, prepare};
use super::unpacked;
use crate::case::SETUP_LIMIT;
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::Daemon;
use crate::skip::skip;

/// How a command is run.
#[derive(Copy, Clone)]
enum Step {
    /// To its end. It must succeed, and print this text.
    Shows(&'static str),
    /// At a terminal, whose questions get the passphrase. It must succeed, and print this text.
    Answers(&'static str),
    /// Until it prints this text, and then Ctrl-C.
    Until(&'static str),
    /// Not at all.
    Elsewhere,
}

use Step::{Answers, Elsewhere, Shows, Until};

/// The commands of a page, in its order.
type Steps = [(&'static str, Step)];

const PASSPHRASE: &str = "correct horse battery";

const SERVER: &Steps = &[
    ("sudo adit server up --host vpn.example.net --client laptop", Until("Self-test passed")),
    ("sudo systemctl enable --now adit-server", Shows("")),
    ("sudo adit status", Shows("server: running")),
    ("sudo adit doctor", Shows("")),
    ("sudo adit server client add tablet", Shows("BEGIN CERTIFICATE")),
    ("sudo adit server client set tablet --note \"Ann\" --quota 50GB/month", Shows("Ann")),
    ("sudo adit server client list", Shows("tablet")),
    ("sudo adit server client revoke tablet", Shows("tablet")),
    ("sudo adit server client add office", Shows("BEGIN CERTIFICATE")),
    ("sudo adit server client set office --network 192.168.20.0/24", Shows("192.168.20.0/24")),
];

const CLIENT: &Steps = &[
    ("sudo install -D -m 600 laptop.ovpn /etc/adit/laptop.ovpn", Shows("")),
    ("adit connect --check laptop.ovpn", Shows("ok    data")),
    ("sudo adit connect laptop.ovpn", Until("connected: ")),
    ("sudo adit connect --kill-switch laptop.ovpn", Until("connected: ")),
    ("sudo adit connect --release", Shows("")),
];

const DNS: &Steps = &[
    ("sudo adit reload", Shows("dns")),
    (
        "sudo nft add rule inet filter input iifname adit0 meta l4proto { tcp, udp } th dport 53 accept",
        Shows(""),
    ),
    // On a connected client.
    ("sudo adit status", Elsewhere),
    ("resolvectl status", Elsewhere),
];

const BACKUP: &Steps = &[
    ("sudo adit server backup vpn.backup", Answers("holds the server with 3 clients")),
    (
        "sudo adit server backup /var/backups/vpn.backup --passphrase-file /root/vpn.phrase",
        Shows("holds the server"),
    ),
    // On the new machine.
    ("sudo adit server restore vpn.backup", Elsewhere),
    ("sudo adit doctor", Elsewhere),
    ("sudo adit server run", Elsewhere),
    ("sudo systemctl restart adit-server", Shows("")),
    ("sudo adit status", Shows("server: running")),
];

/// Those of the same page on the new machine.
const RESTORE: &Steps = &[
    ("sudo adit server restore vpn.backup", Answers("restored: 3 clients")),
    ("sudo adit doctor", Shows("")),
    ("sudo adit server run", Until("the server is up")),
];

/// Gives a machine a home of root, a folder for backups, terminals, and `sudo`.
const HOME: &str = r#"set -e
for folder in /root /var/backups; do
    mkdir -p "$folder"
    mount -t tmpfs -o mode=0700 tmpfs "$folder"
done
mkdir /dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
rm -f /usr/bin/sudo
printf '#!/bin/sh\nexec "$@"\n' > /usr/bin/sudo
chmod 755 /usr/bin/sudo
"#;

/// Runs a command at a terminal, and answers each question for a passphrase with `$1`.
const AT_TERMINAL: &str = r#"
import os, pty, sys
answer, command = sys.argv[1] + "\n", sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
shown, asked = "", 0
while True:
    try:
        part = os.read(terminal, 4096).decode()
    except OSError:
        break
    if not part:
        break
    shown += part
    questions = shown.count("Passphrase: ") + shown.count("The same again: ")
    if questions > asked:
        asked = questions
        os.write(terminal, answer.encode())
sys.stdout.write(shown.replace("\r", ""))
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// Checks that the steps are the commands of a page.
fn check(page: &str, steps: &Steps) -> Result<()> {
    let path = format!("docs/guides/{page}");
    let text = fs::read_to_string(&path).context(&path)?;
    let commands = text.lines().filter_map(|line| line.trim_start().strip_prefix("$ "));
    let commands: Vec<&str> = commands.collect();
    let known: Vec<&str> = steps.iter().map(|(command, _)| *command).collect();
    ensure(commands == known, || format!("{page} has {commands:#?}, and the test {known:#?}"))
}

/// Follows a page on a machine.
fn follow(machine: &Machine<'_>, steps: &Steps) -> Result<()> {
    for (line, step) in steps {
        let command = format!("cd /root && {line}");
        let (said, expected) = match step {
            Elsewhere => continue,
            Shows(text) => (machine.systemd.run(machine.namespace, &["sh", "-c", &command]), text),
            Answers(text) => {
                let arguments = ["-c", AT_TERMINAL, PASSPHRASE, "sh", "-c", &command];
                (machine.namespace.run("python3", &arguments), text)
            }
            Until(text) => {
                let mut shell = machine.namespace.command("sh");
                shell.args(["-c", &format!("cd /root && exec {line}")]);
                let mut program = Daemon::spawn(line, shell)?;
                program.wait_for(text, SETUP_LIMIT)?;
                program.signal(Signal::SIGINT)?;
                let ended = program.wait_exit(SETUP_LIMIT)?;
                ensure(ended.success(), || program.failure(&format!("$ {line}: {ended}")).0)?;
                continue;
            }
        };
        let said = said.map_err(|failure| format!("$ {line}\n{failure}"))?;
        ensure(said.contains(expected), || format!("$ {line}\nlacks {expected:?}:\n{said}"))?;
    }
    Ok(())
}

/// Copies a file between the homes of two machines.
fn copy(from: &Machine<'_>, to: &Machine<'_>, etc: &[&Path; 2], name: &str) -> Result<()> {
    let [there, here] = etc;
    from.namespace.run("cp", &[&format!("/root/{name}"), "/etc/copied"])?;
    fs::copy(there.join("copied"), here.join("copied"))?;
    to.namespace.run("mv", &["/etc/copied", &format!("/root/{name}")]).map(drop)
}

/// A server, its client, DNS, a backup, and its restoration on another machine.
pub(in super::super) fn server_and_client(scenario: &Scenario<'_>) -> Result<String> {
    let name = "guides/server-and-client";
    let Some(root) = unpacked(name, "frontends") else { return Ok("SKIPPED".into()) };
    let Program::Adit(_) = scenario.server else {
        skip(name, "it is about adit's own commands");
        return Ok("SKIPPED".into());
    };
    let pages = [
        ("server.md", SERVER),
        ("client.md", CLIENT),
        ("dns.md", DNS),
        ("backup-upgrade.md", BACKUP),
    ];
    for (page, steps) in pages {
        check(page, steps)?;
    }
    let mut pair = Pair::new()?;
    let folders = prepare(scenario, &mut pair, &root)?;
    for (namespace, etc) in [&pair.server, &pair.client].into_iter().zip(&folders) {
        namespace.run("sh", &["-c", HOME])?;
        let hosts = fs::read_to_string(etc.join("hosts"))?;
        fs::write(etc.join("hosts"), format!("{hosts}\n192.0.2.1 vpn.example.net\n"))?;
    }
    let Some([server, client]) = boot(name, &pair, &folders, &root)? else {
        return Ok("SKIPPED".into());
    };
    let [at_server, at_client] = &folders;
    let etc = [at_server.as_path(), at_client.as_path()];

    follow(&server, SERVER)?;
    copy(&server, &client, &etc, "laptop.ovpn")?;
    follow(&client, CLIENT)?;
    // What the page writes into the settings, and the firewall that it expects.
    let settings = at_server.join("adit/server.toml");
    let text = fs::read_to_string(&settings)?;
    let dns = "dns = [\"9.9.9.9\", \"149.112.112.112\"]";
    let page = fs::read_to_string("docs/guides/dns.md")?;
    ensure(page.contains(dns) && text.contains("dns = []"), || text.clone())?;
    fs::write(&settings, text.replace("dns = []", dns))?;
    let firewall = "table inet filter { chain input { type filter hook input priority 0; }; }";
    server.namespace.run("nft", &[firewall])?;
    follow(&server, DNS)?;
    let phrase = format!("umask 077; echo '{PASSPHRASE}' > /root/vpn.phrase");
    server.namespace.run("sh", &["-c", &phrase])?;
    follow(&server, BACKUP)?;
    copy(&server, &client, &etc, "vpn.backup")?;
    follow(&client, RESTORE)?;
    server.adit("server stop")?;
    Ok(String::new())
}
