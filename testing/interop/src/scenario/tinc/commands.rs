//! The commands of `adit tinc` compared with those of the real tinc 1.1: what they print, return, and leave on disk.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::Scenario;
use super::SOON;
use super::programs::Programs;
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::peer::Program;
use crate::process::Daemon;
use crate::wait::until;

/// Commands and their input, in their order. Both programs must return the same code, print the same lines, and leave the same files.
const SAME: &[(&str, &str)] = &[
    ("get Name", ""),
    ("get Mode", ""),
    ("set Mode switch", ""),
    ("set Mode = hub", ""),
    ("get mode", ""),
    ("add Mode router", ""),
    ("set Foo 1", ""),
    ("--force set Foo 1", ""),
    ("get Foo", ""),
    ("del Foo", ""),
    ("add Subnet 10.1.0.0/16", ""),
    ("add Subnet 10.1.0.0/16", ""),
    ("add Subnet 10.2.0.0/16", ""),
    ("add Subnet 10.2.0.1/16", ""),
    ("set Subnet 10.3.0.0/16", ""),
    ("set Cipher none", ""),
    ("set PublicKey x", ""),
    ("set bob.Port 5", ""),
    ("import", "junk\nName = bob\nSubnet = 10.9.0.0/16\n"),
    ("import", "Name = bob\nSubnet = 10.8.0.0/16\n"),
    ("--force import", "Name = bob\nSubnet = 10.7.0.0/16\nName = carol\nPort = 7\n"),
    ("import", "Name = ../x\n"),
    ("set bob.Port 5", ""),
    ("set bob.Mode hub", ""),
    ("set bo-b.Port 5", ""),
    ("set bob. 5", ""),
    ("set Mode", ""),
    ("del bob.Port", ""),
    ("del bob.Port", ""),
    ("set Address 192.0.2.1", ""),
    ("set Weight 7", ""),
    ("export", ""),
    ("invite bob", ""),
    ("invite ca-rol", ""),
    ("dump invitations", ""),
    ("sign none", ""),
    ("verify alice", "hello\n"),
    ("verify ca-rol", "hello\n"),
    ("network other", ""),
    ("pid", ""),
    ("reload", ""),
    ("info bob", ""),
    ("", "# a script\nget Name\nset Port 6551\nget Port\nquit\n"),
];

/// Requests to a running daemon.
const DAEMON: &[&str] = &[
    "dump nodes",
    "dump reachable nodes",
    "dump edges",
    "dump subnets",
    "dump connections",
    "dump graph",
    "dump digraph",
    "info alice",
    "info bob",
    "info 10.3.4.5",
    "info 10.3.0.0/16",
    "info 192.0.2.1",
    "info nobody",
    "info -",
    "disconnect nobody",
    "disconnect -",
    "purge",
    "retry",
    "reload",
    "debug 3",
    "debug 2",
    "pid",
];

/// The outcome of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) notes: String,
}

/// A program, and the folder that it works in.
pub(super) struct End<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) program: Vec<OsString>,
    pub(super) folder: PathBuf,
}

impl End<'_> {
    pub(super) fn command(&self, config: &Path, words: &str) -> Result<Command> {
        let (first, rest) = self.program.split_first().context("no program")?;
        let mut command = self.namespace.command(&first.to_string_lossy());
        command.args(rest).arg("-c").arg(config).arg("--pidfile").arg(config.join("pid"));
        command.args(words.split_whitespace());
        Ok(command)
    }

    /// Runs a command on this end's own folder.
    pub(super) fn run(&self, words: &str, input: &str) -> Result<Ran> {
        self.run_on(&self.folder, words, input)
    }

    fn run_on(&self, config: &Path, words: &str, input: &str) -> Result<Ran> {
        let mut command = self.command(config, words)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("spawn")?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read it may have ended.
            let _ = stdin.write_all(input.as_bytes());
        }
        let done = child.wait_with_output().context("wait")?;
        let folder = config.display().to_string();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&folder, "FOLDER");
        Ok(Ran { code: done.status.code(), out: text(&done.stdout), notes: text(&done.stderr) })
    }

    /// Runs a command that must succeed.
    pub(super) fn done(&self, words: &str, input: &str) -> Result<Ran> {
        let ran = self.run(words, input)?;
        ensure(ran.code == Some(0), || format!("{words}: {ran:?}"))?;
        Ok(ran)
    }

    /// Returns the files with their modes. Keys are replaced, and what belongs to RSA is left out.
    fn files(&self) -> Result<BTreeMap<String, (u32, String)>> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)?.flatten() {
                let path = entry.path();
                let name = path.strip_prefix(&self.folder).context("path")?.display().to_string();
                let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
                if path.is_dir() {
                    files.insert(name, (mode, String::new()));
                    folders.push(path);
                } else if name != "rsa_key.priv" {
                    let content = fs::read_to_string(&path)?;
                    files.insert(name.clone(), (mode, without_keys(&name, &content)));
                }
            }
        }
        Ok(files)
    }
}

fn without_keys(name: &str, content: &str) -> String {
    // The script is an example, in words of its own.
    if name.ends_with(".priv") || name == "tinc-up" {
        return String::new();
    }
    let mut in_block = false;
    let lines = content.lines().filter(|line| {
        let was = in_block;
        in_block = (was || line.starts_with("-----BEGIN")) && !line.starts_with("-----END");
        !was && !in_block
    });
    let lines = lines.map(|line| match line.split_once("PublicKey = ") {
        Some((before, _)) => format!("{before}PublicKey = KEY\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

pub(super) fn commands(scenario: &Scenario<'_>) -> Result<String> {
    let Some(real) = Programs::real() else { return Ok("skipped".to_owned()) };
    let Program::Adit(adit) = Program::adit()? else { return Ok("no adit".to_owned()) };
    let namespace = Namespace::new("tinc")?;
    let end = |program, name: &str| End {
        namespace: &namespace,
        program,
        folder: scenario.folder().join(name),
    };
    let ours = end(vec![adit.into(), "tinc".into()], "adit");
    let theirs = end(real.tinc, "real");
    for end in [&ours, &theirs] {
        end.done("init alice", "")?;
    }
    compare_files(&ours, &theirs, "init")?;
    for (words, input) in SAME {
        let (mut one, mut other) = (ours.run(words, input)?, theirs.run(words, input)?);
        for ran in [&mut one, &mut other] {
            ran.out = without_keys("", &ran.out);
        }
        ensure(one == other, || format!("tinc {words}:\nadit {one:?}\ntinc {other:?}"))?;
        compare_files(&ours, &theirs, words)?;
    }
    signatures(&ours, &theirs)?;
    invitations(&ours, &theirs)?;
    daemon(&ours, &theirs, real.tincd)?;
    Ok(format!("{} commands, and {} requests", SAME.len(), DAEMON.len()))
}

fn compare_files(ours: &End<'_>, theirs: &End<'_>, after: &str) -> Result<()> {
    let (one, other) = (ours.files()?, theirs.files()?);
    ensure(one == other, || format!("files after {after}:\nadit {one:#?}\ntinc {other:#?}"))
}

/// Each program accepts what the other one signed.
fn signatures(ours: &End<'_>, theirs: &End<'_>) -> Result<()> {
    for (signer, verifier) in [(ours, theirs), (theirs, ours)] {
        let signed = signer.done("sign", "hello\n")?.out;
        let checked = |name: &str, text: &str| {
            verifier.run_on(&signer.folder, &format!("verify {name}"), text)
        };
        for name in ["alice", ".", "*"] {
            let ran = checked(name, &signed)?;
            ensure(ran.code == Some(0) && ran.out == "hello\n", || format!("{name}: {ran:?}"))?;
        }
        let ran = checked("alice", &signed.replace("hello", "hallo"))?;
        ensure(ran.code == Some(1) && ran.notes == "Invalid signature\n", || format!("{ran:?}"))?;
    }
    Ok(())
}

/// Each program lists the other one's invitations.
fn invitations(ours: &End<'_>, theirs: &End<'_>) -> Result<()> {
    for end in [ours, theirs] {
        let ran = end.done("invite dave", "")?;
        ensure(ran.out.starts_with("192.0.2.1:6551/"), || format!("{ran:?}"))?;
        let lists = [ours, theirs].map(|other| other.run_on(&end.folder, "dump invitations", ""));
        let [one, other] = lists;
        let (one, other) = (one?, other?);
        ensure(one == other && one.out.ends_with(" dave\n"), || format!("{one:?} {other:?}"))?;
    }
    Ok(())
}

/// A real daemon runs with a configuration that adit made, and answers both programs alike.
fn daemon(ours: &End<'_>, theirs: &End<'_>, program: Vec<OsString>) -> Result<()> {
    for words in ["set DeviceType dummy", "set AddressFamily ipv4", "set AutoConnect no"] {
        ours.done(words, "")?;
    }
    let end = End { namespace: ours.namespace, program, folder: ours.folder.clone() };
    let mut tincd = Daemon::spawn("tincd", end.command(&ours.folder, "-D -d 2")?)?;
    tincd.wait_for("Ready", SOON)?;
    for words in DAEMON {
        let one = ours.run(words, "")?;
        let other = theirs.run_on(&ours.folder, words, "")?;
        // The level before a change is that of the other program's change.
        let same = one == other || words.starts_with("debug");
        ensure(same, || format!("tinc {words}:\nadit {one:?}\ntinc {other:?}"))?;
        ensure(
            !words.starts_with("debug")
                || one.notes.ends_with(&format!("new level {}.\n", &words[6..])),
            || format!("{one:?}"),
        )?;
    }
    let json = ours.done("dump nodes --json", "")?.out;
    ensure(json.contains("\"name\": \"alice\""), || json.clone())?;
    let log = ours.command(&ours.folder, "log 5")?;
    let mut log = Daemon::spawn("log", log)?;
    // Lines from before the program asked for them are not sent.
    until("a line of the log", SOON, || {
        ours.done("pid", "")?;
        Ok(log.wait_for("Connection from", Duration::from_millis(100)).is_ok())
    })?;
    ours.done("stop", "")?;
    until("the daemon ends", SOON, || Ok(!ours.folder.join("pid").exists()))?;
    let ran = ours.run("stop", "")?;
    ensure(ran.notes.starts_with("Could not open pid file FOLDER/pid: "), || format!("{ran:?}"))
}
