//! The commands of the guides, word for word.

mod apps;
mod firewall;
mod moving;
mod server_and_client;
mod tinc;

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::super::Scenario;
use super::background::{Machine, prepare_machine};
use super::systemd::Systemd;
use super::unpacked;
use crate::case::SETUP_LIMIT;
use crate::failure::{Context, Failure, Result, ensure};
use crate::net::{Namespace, Pair};
use crate::peer::Program;
use crate::process::{Daemon, output};
use crate::skip::skip;

pub(in super::super) use apps::{phone, windows_and_macos};
pub(in super::super) use firewall::firewall_and_nat;
pub(in super::super) use moving::{from_pivpn, from_wireguard};
pub(in super::super) use server_and_client::server_and_client;
pub(in super::super) use tinc::tinc;

/// How a command is run.
#[derive(Copy, Clone)]
enum Step {
    /// To its end. It must succeed, and print this text.
    Shows(&'static str),
    /// At a terminal, whose questions get the passphrase. It must succeed, and print this text.
    Answers(&'static str),
    /// Until it prints this text, and then Ctrl-C.
    Until(&'static str),
    /// The same at a terminal.
    Watches(&'static str),
    /// Until a device has fetched the profile from the link that it prints.
    Fetched,
    /// As [`Step::Answers`], after another command has made the page's starting point again.
    After(&'static str, &'static str),
    /// Not at all.
    Elsewhere,
}

use Step::{After, Answers, Elsewhere, Fetched, Shows, Until, Watches};

/// The commands of a page, in its order.
type Steps = [(&'static str, Step)];

const PASSPHRASE: &str = "correct horse battery";

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

/// Runs a command at a terminal. Answers each question for a passphrase or a new password with `$1`, and presses Ctrl-C when the command
/// has printed `$2`, if it is not empty.
const AT_TERMINAL: &str = r#"
import os, pty, sys
answer, last, command = sys.argv[1] + "\n", sys.argv[2], sys.argv[3:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
shown, asked, interrupted = "", 0, False
while True:
    try:
        part = os.read(terminal, 4096).decode(errors="replace")
    except OSError:
        break
    if not part:
        break
    shown += part
    questions = sum(shown.count(text) for text in ("Passphrase: ", "The same again: ", "Password for ann: "))
    if questions > asked:
        asked = questions
        os.write(terminal, answer.encode())
    if last and last in shown and not interrupted:
        interrupted = True
        os.write(terminal, b"\x03")
sys.stdout.write(shown.replace("\r", ""))
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// The beginning of a link for browsers.
const LINK: &str = "https://";

/// The beginning of a link for the app; a link for browsers follows.
const APP_LINK: &str = "openvpn://import-profile/";

/// What the command prints when a device has fetched the profile.
const FETCHED: &str = "was fetched from";

/// Checks that the steps are the commands of a page.
fn check(page: &str, steps: &Steps) -> Result<()> {
    let path = format!("docs/guides/{page}");
    let text = fs::read_to_string(&path).context(&path)?;
    let commands = text.lines().filter_map(|line| line.trim_start().strip_prefix("$ "));
    let commands: Vec<&str> = commands.collect();
    let known: Vec<&str> = steps.iter().map(|(command, _)| *command).collect();
    ensure(commands == known, || format!("{page} has {commands:#?}, and the test {known:#?}"))
}

/// A machine on which the commands of a page are entered.
#[derive(Copy, Clone)]
struct Desk<'a> {
    namespace: &'a Namespace,
    /// Its systemd, if one runs.
    systemd: Option<&'a Systemd>,
    /// The device that fetches profiles, and the file for them.
    device: Option<(&'a Namespace, &'a Path)>,
}

impl<'a> Desk<'a> {
    fn of(machine: &'a Machine<'_>) -> Self {
        Self { namespace: machine.namespace, systemd: Some(&machine.systemd), device: None }
    }

    /// Follows a page, or a part of it.
    fn follow(&self, steps: &Steps) -> Result<()> {
        for (line, step) in steps {
            self.step(line, *step).map_err(|failure| format!("$ {line}\n{failure}"))?;
        }
        Ok(())
    }

    fn step(&self, line: &str, step: Step) -> Result<()> {
        let (said, expected) = match step {
            Elsewhere => return Ok(()),
            Until(text) => return self.until(line, text),
            Fetched => return self.fetch(line),
            Shows(text) => (self.run(line)?, text),
            Answers(text) => (self.at_terminal(line, "")?, text),
            // The interrupted program may end with a code of its own.
            Watches(text) => match self.at_terminal(line, text) {
                Ok(said) | Err(Failure(said)) => (said, text),
            },
            After(before, text) => {
                self.run(before)?;
                (self.at_terminal(line, "")?, text)
            }
        };
        ensure(said.contains(expected), || format!("lacks {expected:?}:\n{said}"))
    }

    /// Runs a command to its end.
    fn run(&self, line: &str) -> Result<String> {
        let line = format!("cd /root && {line}");
        let words = ["sh", "-c", &line];
        match self.systemd {
            Some(systemd) => systemd.run(self.namespace, &words),
            None => self.namespace.run("sh", &["-c", &line]),
        }
    }

    fn at_terminal(&self, line: &str, last: &str) -> Result<String> {
        let line = format!("cd /root && {line}");
        self.namespace.run("python3", &["-c", AT_TERMINAL, PASSPHRASE, last, "sh", "-c", &line])
    }

    /// Starts a command that does not end by itself.
    fn start(&self, line: &str) -> Result<Daemon> {
        let mut shell = self.namespace.command("sh");
        shell.args(["-c", &format!("cd /root && exec {line}")]);
        Daemon::spawn(line, shell)
    }

    fn until(&self, line: &str, text: &str) -> Result<()> {
        let mut program = self.start(line)?;
        program.wait_for(text, SETUP_LIMIT)?;
        interrupt(&mut program)
    }

    /// Starts a command that hands out a profile, and lets the device fetch it.
    fn fetch(&self, line: &str) -> Result<()> {
        let (device, file) = self.device.context("no device fetches profiles")?;
        let mut program = self.start(line)?;
        // The first line is of the output, the second of the messages, and either may be read first.
        for text in [APP_LINK, "for the first fetch"] {
            program.wait_for(text, SETUP_LIMIT)?;
        }
        let log = program.log();
        let link = log.lines().map(str::trim).find(|line| line.starts_with(LINK));
        let link = link.context("no link")?;
        let import = format!("{APP_LINK}{link}");
        ensure(log.contains(&import), || format!("no link for the app: {log}"))?;
        let mut curl = on_device(device, self.hosts()?.as_path(), "curl");
        curl.args(["-sk", "--max-time", "20", link, "-o"]).arg(file);
        output(curl)?;
        program.wait_for(FETCHED, SETUP_LIMIT)?;
        let ended = program.wait_exit(SETUP_LIMIT)?;
        ensure(ended.success(), || program.failure(&format!("{ended}")).0)
    }

    /// Returns a file with the names that the guides use.
    fn hosts(&self) -> Result<std::path::PathBuf> {
        let (_, file) = self.device.context("no device")?;
        let hosts = file.with_file_name("hosts");
        fs::write(&hosts, format!("127.0.0.1 localhost\n{NAMES}"))?;
        Ok(hosts)
    }

    /// Copies a file from the home of this machine, through its /etc.
    fn take(&self, etc: &Path, name: &str) -> Result<std::path::PathBuf> {
        self.namespace.run("cp", &[&format!("/root/{name}"), "/etc/taken"])?;
        let to = etc.with_file_name(name);
        fs::copy(etc.join("taken"), &to)?;
        Ok(to)
    }
}

/// The names of the server in the guides.
const NAMES: &str = "192.0.2.1 vpn.example.net\n192.0.2.1 gate.example.net\n";

/// Presses Ctrl-C.
fn interrupt(program: &mut Daemon) -> Result<()> {
    program.signal(Signal::SIGINT)?;
    let ended = program.wait_exit(SETUP_LIMIT)?;
    ensure(ended.success(), || program.failure(&format!("{ended}")).0)
}

/// Creates a command on a device that is not a machine of its own, where the names of the guides resolve.
fn on_device(device: &Namespace, hosts: &Path, program: &str) -> std::process::Command {
    let mut command = device.command("unshare");
    let script = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(hosts).arg(program);
    command
}

/// Gives a prepared machine a home, and the names of the guides.
fn settle(namespace: &Namespace, etc: &Path) -> Result<()> {
    namespace.run("sh", &["-c", HOME])?;
    let hosts = fs::read_to_string(etc.join("hosts"))?;
    Ok(fs::write(etc.join("hosts"), format!("{hosts}\n{NAMES}"))?)
}

/// Copies a file between the homes of two machines.
fn copy(from: &Namespace, to: &Namespace, etc: &[&Path; 2], name: &str) -> Result<()> {
    let [there, here] = etc;
    from.run("cp", &[&format!("/root/{name}"), "/etc/copied"])?;
    fs::copy(there.join("copied"), here.join("copied"))?;
    to.run("mv", &["/etc/copied", &format!("/root/{name}")]).map(drop)
}

/// Returns the unpacked programs for a guide. Without them, counts the case as skipped.
fn programs(name: &str, scenario: &Scenario<'_>) -> Option<std::path::PathBuf> {
    let root = unpacked(name, "frontends")?;
    if !matches!(scenario.server, Program::Adit(_)) {
        skip(name, "it is about adit's own commands");
        return None;
    }
    Some(root)
}
