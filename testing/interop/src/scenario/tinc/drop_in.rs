//! Configurations with which owners of tinc nets come to adit, mistakes included: adit starts, goes on after a reload, and reports mistakes
//! where tinc 1.1 does.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;

use adit_tinc::keys::PrivateKey;
use nix::sys::signal::Signal;

use super::super::Scenario;
use super::SOON;
use super::commands::End;
use super::programs::Programs;
use crate::at_once;
use crate::failure::{Failure, Result, ensure};
use crate::file;
use crate::net::Namespace;
use crate::process::Daemon;
use crate::wait::until;

/// How many configurations are tried at a time.
const AT_ONCE: usize = 6;

/// A change to the files of a plain node `alice` that knows a node `bob`.
#[derive(Copy, Clone)]
enum Change {
    /// Lines at the end of `tinc.conf`.
    Conf(&'static [u8]),
    /// All of `tinc.conf`.
    WholeConf(&'static str),
    /// A file in `conf.d`.
    ConfD(&'static str),
    /// Lines in place of `Port = 0` in the own host file.
    Port(&'static str),
    /// Lines at the beginning of the own host file.
    Own(&'static str),
    /// Lines at the beginning of bob's host file.
    Bob(&'static [u8]),
    /// All of bob's host file.
    WholeBob(&'static [u8]),
    /// bob's host file is a folder.
    BobFolder,
    /// The host files are missing.
    NoHosts,
}

use Change::{Bob, BobFolder, Conf, ConfD, NoHosts, Own, Port, WholeBob, WholeConf};

/// The configurations. Of each, `adit tinc fsck` prints a line with the text in the last column, and nothing about those without one.
const CONFIGURATIONS: &[(&str, Change, &str)] = &[
    ("plain", Conf(b""), ""),
    ("number with a comment", Conf(b"PingInterval = 30 # seconds\n"), ""),
    ("number with a unit", Conf(b"PingTimeout = 5s\n"), ""),
    ("yes with a comment", Conf(b"LocalDiscovery = yes # lan\n"), "LocalDiscovery: ignored"),
    ("true", Conf(b"LocalDiscovery = true\n"), "LocalDiscovery: ignored"),
    ("1 for yes", Conf(b"TCPOnly = 1\n"), "TCPOnly: ignored"),
    ("unknown mode", Conf(b"Mode = ring\n"), "ERROR"),
    ("no interval", Conf(b"PingInterval = 0\n"), "PingInterval: '0' is out of range"),
    ("no number", Conf(b"PingInterval = soon\n"), "PingInterval: ignored"),
    ("no value", Conf(b"PingInterval\n"), "PingInterval: the variable has no value"),
    ("timeout above the interval", Conf(b"PingTimeout = 90\n"), ""),
    ("keys for 0 s", Conf(b"KeyExpire = 0\n"), "KeyExpire: '0' is out of range"),
    ("negative time", Conf(b"MaxTimeout = -1\n"), "ERROR"),
    ("Latin-1 in a comment", Conf(b"# B\xfcro\n"), ""),
    ("block without an end", Conf(b"-----BEGIN X-----\nabc\n"), "the block has no"),
    ("Latin-1 in bob's comment", Bob(b"# B\xfcro M\xfcnchen\n"), ""),
    ("byte order mark", Bob(b"\xef\xbb\xbf# bob\n"), "unknown variable"),
    ("carriage returns", Bob(b"Port = 655\r\n"), ""),
    ("bob's variable without a value", Bob(b"Subnet\n"), "Subnet: ignored: the variable has no"),
    ("bob's subnet", Bob(b"Subnet = 10.0.0.1/16\n"), "Subnet: ignored"),
    ("bob's key", WholeBob(b"Ed25519PublicKey = xx\n"), "Ed25519PublicKey: ignored"),
    ("bob's port", Bob(b"Port = foo\n"), "Port: ignored"),
    ("comment after bob's port", Bob(b"Port = 655 # x\n"), "Port: ignored"),
    ("bob's RSA key without an end", Bob(b"-----BEGIN RSA PUBLIC KEY-----\nabc\n"), "no '-----END"),
    (
        "bob's key file",
        WholeBob(b"Ed25519PublicKeyFile = /nonexistent\n"),
        "Ed25519PublicKeyFile: ",
    ),
    ("bob is a folder", BobFolder, "Is a directory"),
    ("comment after bob's address", Bob(b"Address = 1.2.3.4 655 # dc\n"), "Address: ignored"),
    ("unknown neighbour", Conf(b"ConnectTo = carol\n"), ""),
    ("itself as neighbour", Conf(b"ConnectTo = alice\n"), ""),
    ("impossible neighbour", Conf(b"ConnectTo = bo-b\n"), "ConnectTo: ignored"),
    ("own subnet with host bits", Own("Subnet = 10.0.0.1/16\n"), "ERROR"),
    ("comment after the own subnet", Own("Subnet = 10.0.0.0/16 # lan\n"), "ERROR"),
    ("own variable without a value", Own("Subnet\n"), "Subnet: ignored: the variable has no"),
    ("weight of a subnet", Own("Subnet = 10.0.0.0/16#5\n"), ""),
    ("name to listen on", Conf(b"BindToAddress = localhost 0\n"), ""),
    ("address to listen on", Conf(b"BindToAddress = 127.0.0.1 0\n"), ""),
    ("level with a comment", Own("Compression = 9 # max\n"), "Compression"),
    ("level 10", Own("Compression = 10\n"), "Compression"),
    ("level 13", Own("Compression = 13\n"), "ERROR"),
    ("unknown proxy", Conf(b"Proxy = socks9 a 1\n"), "ERROR"),
    ("standby", Conf(b"DeviceStandby = yes\n"), "ERROR"),
    ("buggy peers", Conf(b"DisableBuggyPeers = yes\n"), "DisableBuggyPeers"),
    ("interpreter", Conf(b"ScriptsInterpreter = /bin/sh\n"), "ERROR"),
    ("tinc 1.0", Conf(b"Cipher = aes-256-cbc\nDigest = sha256\n"), "Cipher"),
    ("only tinc 1.0", Conf(b"ExperimentalProtocol = no\n"), "ERROR"),
    ("priority", Conf(b"ProcessPriority = high\n"), "ProcessPriority"),
    ("names in the log", Conf(b"Hostnames = yes\n"), "Hostnames"),
    ("unknown variable", Conf(b"Foo = 1\n"), "unknown variable Foo"),
    ("no host files", NoHosts, "cannot read"),
    ("small MTU", Own("PMTU = 400\n"), "PMTU: '400' is out of range"),
    ("negative window", Conf(b"ReplayWindow = -1\n"), "ERROR"),
    ("large window", Conf(b"ReplayWindow = 100000\n"), "ReplayWindow: '100000' is out of range"),
    ("no connections", Conf(b"MaxConnectionBurst = 0\n"), "ERROR"),
    (
        ANOTHER_NAME,
        WholeConf("Name = $HOST\nPort = 0\nDeviceType = dummy\nAddressFamily = ipv4\n"),
        "public Ed25519 key",
    ),
    ("service", Port("Port = tinc\n"), ""),
    ("no service", Port("Port = nonsense\n"), "ERROR"),
    ("no buffer", Conf(b"MaxOutputBufferSize = 0\n"), ""),
    ("folder of files", ConfD("PingTimeout = 6\n"), ""),
    ("unknown broadcast", Conf(b"Broadcast = maybe\n"), "ERROR"),
    ("unknown forwarding", Conf(b"Forwarding = maybe\n"), "ERROR"),
    ("mode twice", Conf(b"Mode = router\nMode = switch\n"), "multiple instances of variable Mode"),
    ("device of another kind", Conf(b"Device = /dev/tap0\n"), ""),
];

/// A reload cannot change the name.
const ANOTHER_NAME: &str = "name of the machine";

/// tinc starts with these, and adit refuses them by name. docs/tinc.md lists them.
const REFUSED: &[(&str, &str)] = &[
    ("standby", "tinc-up would run without another node"),
    ("interpreter", "scripts would run by other programs than their first lines name"),
];

/// The outcome of a configuration for one program.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    starts: bool,
    /// The exit code of a daemon that does not start.
    code: Option<i32>,
}

/// Writes the files of a configuration in place of all others.
fn write_files(folder: &Path, change: Change) -> Result<()> {
    let hosts = folder.join("hosts");
    for old in [&hosts, &folder.join("conf.d")] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    fs::create_dir_all(&hosts)?;
    let key = PrivateKey::from_seed(&[1; 32]);
    let private = folder.join("ed25519_key.priv");
    file::write(&private, key.to_file().as_bytes(), 0o600)?;
    let mut conf = b"Name = alice\nDeviceType = dummy\nAddressFamily = ipv4\n".to_vec();
    let (mut port, mut own) = ("Port = 0\n", String::new());
    let other = PrivateKey::from_seed(&[2; 32]).public();
    let mut bob = format!("Address = 192.0.2.9\nEd25519PublicKey = {other}\n").into_bytes();
    match change {
        Conf(lines) => conf.extend_from_slice(lines),
        WholeConf(text) => conf = text.as_bytes().to_vec(),
        ConfD(text) => {
            fs::create_dir_all(folder.join("conf.d"))?;
            fs::write(folder.join("conf.d/a.conf"), text)?;
        }
        Port(line) => port = line,
        Own(lines) => own = lines.to_owned(),
        Bob(lines) => bob = [lines, &bob].concat(),
        WholeBob(text) => bob = text.to_vec(),
        BobFolder | NoHosts => {}
    }
    fs::write(folder.join("tinc.conf"), conf)?;
    match change {
        NoHosts => return Ok(fs::remove_dir_all(&hosts)?),
        BobFolder => fs::create_dir(hosts.join("bob"))?,
        _ => fs::write(hosts.join("bob"), bob)?,
    }
    let alice = format!("{own}{port}Ed25519PublicKey = {}\n", key.public());
    Ok(fs::write(hosts.join("alice"), alice)?)
}

/// Starts a daemon, and ends it.
fn start(daemon: &End<'_>) -> Result<Outcome> {
    let mut tincd = Daemon::spawn("tincd", daemon.command(&daemon.folder, "-D -d 2")?)?;
    let decided = until("the daemon starts or ends", SOON, || {
        Ok(tincd.count("Ready") > 0 || tincd.ended()?.is_some())
    });
    decided.map_err(|failure| tincd.failure(&failure.0))?;
    if tincd.count("Ready") == 0 {
        let code = tincd.ended()?.and_then(|status| status.code());
        return Ok(Outcome { starts: false, code });
    }
    tincd.signal(Signal::SIGTERM)?;
    tincd.wait_exit(SOON)?;
    Ok(Outcome { starts: true, code: None })
}

/// The programs of one implementation, in a namespace of their own.
struct Side<'a> {
    namespace: &'a Namespace,
    programs: Programs,
    folder: std::path::PathBuf,
}

impl Side<'_> {
    fn end(&self, program: &[OsString], name: &str) -> End<'_> {
        let folder = self.folder.join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        End { namespace: self.namespace, program: program.to_vec(), folder }
    }

    /// Tries a configuration. Returns what `fsck` and the daemon do.
    fn try_one(&self, name: &str, change: Change) -> Result<(Option<i32>, String, Outcome)> {
        let tinc = self.end(&self.programs.tinc, name);
        write_files(&tinc.folder, change)?;
        let fsck = tinc.run("fsck", "")?;
        let outcome = start(&self.end(&self.programs.tincd, name))?;
        Ok((fsck.code, fsck.notes, outcome))
    }

    /// Gives a running daemon each configuration in turn. Returns the exit codes of `reload`.
    fn reload_all(&self) -> Result<Vec<Option<i32>>> {
        let tinc = self.end(&self.programs.tinc, "reload");
        write_files(&tinc.folder, Conf(b""))?;
        let daemon = self.end(&self.programs.tincd, "reload");
        let mut tincd = Daemon::spawn("tincd", daemon.command(&daemon.folder, "-D -d 2")?)?;
        tincd.wait_for("Ready", SOON)?;
        let mut codes = Vec::new();
        for (name, change, _) in CONFIGURATIONS {
            write_files(&tinc.folder, *change)?;
            codes.push(tinc.run("reload", "")?.code);
            ensure(tincd.ended()?.is_none(), || tincd.failure(&format!("ended: {name}")).0)?;
        }
        // It has taken no harm.
        write_files(&tinc.folder, Conf(b""))?;
        tinc.done("reload", "")?;
        until("the daemon knows bob again", SOON, || Ok(tinc.run("info bob", "")?.code == Some(0)))
            .map_err(|failure| tincd.failure(&failure.0))?;
        tincd.stop()?;
        Ok(codes)
    }
}

/// Compares both programs on one configuration.
fn compare(ours: &Side<'_>, theirs: &Side<'_>, at: usize) -> Result<()> {
    let Some((name, change, report)) = CONFIGURATIONS.get(at) else { return Ok(()) };
    let blame = |failure: Failure| Failure(format!("{name}: {}", failure.0));
    let (code, notes, outcome) = ours.try_one(name, *change).map_err(blame)?;
    let (their_code, their_notes, expected) = theirs.try_one(name, *change).map_err(blame)?;
    let is_refused = REFUSED.iter().any(|(refused, _)| refused == name);
    ensure((outcome == expected) != is_refused, || {
        format!("{name}: adit {outcome:?}, tinc {expected:?}")
    })?;
    let both =
        || format!("{name}: fsck:\nadit {code:?} {notes}\ntinc {their_code:?} {their_notes}");
    // tinc's own check finds only a part of what stops its daemon, and fails without host files, with which its daemon starts.
    ensure(code == Some(i32::from(!outcome.starts)), both)?;
    ensure(their_code == Some(0) || expected.starts || code == their_code, both)?;
    ensure(if report.is_empty() { notes.is_empty() } else { notes.contains(report) }, both)
}

/// Every configuration with which tinc starts also starts adit, except for [`REFUSED`].
pub(super) fn drop_in(scenario: &Scenario<'_>) -> Result<String> {
    let Some(real) = Programs::real() else { return Ok("skipped".to_owned()) };
    let (adit, _) = Programs::of_adit(scenario)?;
    let spaces = Namespace::several(&["adit", "tinc"])?;
    let [one, other] = &spaces[..] else { return Err("two namespaces".into()) };
    let side = |namespace, programs, name: &str| {
        let folder = scenario.folder().join(name);
        Side { namespace, programs, folder }
    };
    let (ours, theirs) = (side(one, adit, "adit"), side(other, real, "real"));
    let (codes, their_codes, compared) = thread::scope(|scope| {
        let reloads = [&ours, &theirs].map(|side| scope.spawn(|| side.reload_all()));
        let compared =
            at_once::each(AT_ONCE, CONFIGURATIONS.len(), |at| compare(&ours, &theirs, at));
        let [codes, their_codes] =
            reloads.map(|reload| reload.join().map_err(|_| Failure::from("a reload panicked")));
        (codes, their_codes, compared)
    });
    let (codes, their_codes) = (codes??, their_codes??);
    let mut failures: Vec<String> = compared.err().into_iter().map(|failure| failure.0).collect();
    for ((name, _, report), (code, expected)) in
        CONFIGURATIONS.iter().zip(codes.iter().zip(&their_codes))
    {
        let is_refused = REFUSED.iter().any(|(refused, _)| refused == name);
        // tinc does not look at everything again. adit changes nothing if a start would fail, and says so.
        let may_fail = is_refused || *report == "ERROR" || *name == ANOTHER_NAME;
        if code != expected && !may_fail {
            failures.push(format!("{name}: reload: adit {code:?}, tinc {expected:?}"));
        }
    }
    ensure(failures.is_empty(), || failures.join("\n"))?;
    Ok(format!("{} configurations, {} refused", CONFIGURATIONS.len(), REFUSED.len()))
}
