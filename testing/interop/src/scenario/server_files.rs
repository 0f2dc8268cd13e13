//! Starts server files in the forms that installers, appliances, panels and controllers write, with openvpn and with adit.
//!
//! The files are in `testing/interop/servers`. `@DIR@` is the folder of keys and scripts, and `@CA@`, `@CERT@`, `@KEY@` and
//! `@STATIC@` are the contents of keys. Every file that openvpn starts must also start with adit, or adit must refuse a
//! directive that docs/openvpn.md lists as refused, with the reason.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Scenario;
use crate::at_once;
use crate::case::READY;
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::Namespace;
use crate::peer::Program;
use crate::pki::PkiTool;
use crate::process::{Daemon, output, run};
use crate::sandbox::text;
use crate::wait::ScaledInstant;

/// The time in which a program starts or ends.
const LIMIT: Duration = Duration::from_secs(20);
/// The number of programs that are started at the same time.
const JOBS: usize = 4;
/// A server that waits for its management client has read its whole file.
const HOLD: &str = "Need hold release from management interface";
/// The scripts that the files name. All of them succeed.
const SCRIPTS: [&str; 10] = [
    "linkup",
    "linkdown",
    "verify",
    "auth",
    "connect",
    "disconnect",
    "learn",
    "hotplug",
    "updown",
    "ip",
];
/// The directories that the files name.
const DIRECTORIES: [&str; 12] = [
    "ccd",
    "jail/ccd",
    "jail/tmp",
    "capath",
    "revoked",
    "tmp",
    "staticclients",
    "keys",
    "servers/office/logs",
    "servers/office/ccd",
    "pki/issued",
    "pki/private",
];

/// The reaction of a program to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reaction {
    Started,
    /// The program ended; the last lines of its log.
    Ended(String),
}

pub(super) fn all(scenario: &Scenario<'_>) -> Result<String> {
    let (adit, openvpn) = (scenario.server, scenario.client);
    let template = scenario.folder().join("t");
    make_folder(scenario, &template)?;
    let files = files()?;
    let reactions = at_once::each(JOBS, 2 * files.len(), |job| {
        let (number, which) = (job / 2, job % 2);
        let (name, content) = files.get(number).context("a file")?;
        let (program, mark) = if which == 0 { (openvpn, 'o') } else { (adit, 'a') };
        let folder = scenario.folder().join(format!("{number}{mark}"));
        start(program, &template, &folder, content).context(name)
    })?;
    report(&files, &reactions)
}

/// Compares the reactions, openvpn's and adit's to each file in turn. Returns a table and the share of files that start.
fn report(files: &[(String, String)], reactions: &[Reaction]) -> Result<String> {
    let defended = refused_directives()?;
    let (mut table, mut wrong) = (String::new(), Vec::new());
    let (mut started, mut refused, mut all) = (0_usize, 0_usize, 0_usize);
    for ((name, _), row) in files.iter().zip(reactions.chunks_exact(2)) {
        let [openvpn, adit] = row else { continue };
        if let Reaction::Ended(why) = openvpn {
            wrong.push(format!("{name}: openvpn itself does not start: {why}"));
            continue;
        }
        all += 1;
        match adit {
            Reaction::Started => started += 1,
            Reaction::Ended(why) => {
                let refusal = defended.iter().find(|(part, _)| why.contains(part.as_str()));
                match refusal {
                    Some((part, reason)) => {
                        refused += 1;
                        // Writing to a String cannot fail.
                        let _ = writeln!(table, "{name}{part}{reason}");
                    }
                    None => wrong.push(format!("{name}: {why}")),
                }
            }
        }
    }
    ensure(wrong.is_empty(), || wrong.join("\n"))?;
    let share = 100 * started / all.max(1);
    Ok(format!("{started} of {all} start ({share} %), {refused} are refused by name\n{table}"))
}

/// Returns what errors about the directives that docs/openvpn.md lists as refused contain, and the reasons.
fn refused_directives() -> Result<Vec<(String, String)>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openvpn.md");
    let page = fs::read_to_string(path).context(path)?;
    let (_, region) =
        page.split_once("<!-- directives: refused -->").context("no refused table")?;
    let rows = region.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let name = cells.next()?.trim_end_matches('`');
        Some((format!(": {name}: "), cells.next()?.to_owned()))
    });
    Ok(rows.collect())
}

/// Returns the names and contents of all files, sorted.
fn files() -> Result<Vec<(String, String)>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/servers");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).context(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        files.push((name, fs::read_to_string(&path).context(path.display())?));
    }
    files.sort();
    ensure(files.len() >= 80, || format!("{} files in {folder}", files.len()))?;
    Ok(files)
}

/// Makes the folder with all keys, scripts and directories.
fn make_folder(scenario: &Scenario<'_>, folder: &Path) -> Result<()> {
    for directory in DIRECTORIES {
        fs::create_dir_all(folder.join(directory)).context(directory)?;
    }
    let pki = &scenario.env.pki;
    let copy = |from: PathBuf, to: &str| -> Result<()> {
        fs::copy(&from, folder.join(to)).context(format!("{} to {to}", from.display()))?;
        Ok(())
    };
    for name in ["ca.crt", "server.crt", "server.key", "crl.pem"] {
        copy(pki.file(PkiTool::OpenSslEc, name), name)?;
        copy(pki.file(PkiTool::OpenSslEc, name), &format!("keys/{name}"))?;
    }
    for (name, to) in [
        ("ca.crt", "pki/ca.crt"),
        ("crl.pem", "pki/crl.pem"),
        ("server.crt", "pki/issued/server.crt"),
        ("server.key", "pki/private/server.key"),
    ] {
        copy(pki.file(PkiTool::OpenSslEc, name), to)?;
    }
    for to in ["ta.key", "tc.key", "pki/ta.key"] {
        copy(pki.wrapping_key("static.key"), to)?;
    }
    copy(pki.wrapping_key("v2-server.key"), "v2-server.key")?;
    let openssl = |words: &[&str]| {
        let mut command = Command::new("openssl");
        command.current_dir(folder).args(words);
        output(command)
    };
    let group = ["genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:ffdhe2048"];
    openssl(&[&group[..], &["-out", "dh.pem"]].concat())?;
    fs::copy(folder.join("dh.pem"), folder.join("keys/dh.pem"))?;
    let hash = openssl(&["x509", "-hash", "-noout", "-in", "ca.crt"])?;
    fs::copy(folder.join("ca.crt"), folder.join("capath").join(format!("{}.0", hash.trim())))?;
    let bundle = ["pkcs12", "-export", "-in", "server.crt", "-inkey", "server.key"];
    let rest = ["-certfile", "ca.crt", "-out", "server.p12", "-passout", "pass:"];
    openssl(&[&bundle[..], &rest].concat())?;
    run("openvpn", &["--genkey", "auth-token", text(&folder.join("auth-token.key"))])?;
    file::write(folder.join("management.pw"), "secret\n", 0o600)?;
    for script in SCRIPTS {
        let path = folder.join(format!("{script}.sh"));
        file::write(&path, "#!/bin/sh\nexit 0\n", 0o755)?;
    }
    Ok(())
}

/// Starts a program with a file, in a namespace and a folder of its own, and ends it again.
fn start(program: &Program, template: &Path, folder: &Path, content: &str) -> Result<Reaction> {
    run("cp", &["-a", text(template), text(folder)])?;
    let config = folder.join("run.conf");
    fs::write(&config, completed(content, folder)?)?;
    let namespace = Namespace::new("file")?;
    for words in [
        "link add veth0 type veth peer name veth1",
        "addr add 192.0.2.1/24 dev veth0",
        "link set veth0 up",
        "link set veth1 up",
    ] {
        namespace.run("ip", &words.split(' ').collect::<Vec<_>>())?;
    }
    let (log, pid) = (folder.join("run.log"), folder.join("run.pid"));
    let options = ["--log", text(&log), "--cd", text(folder), "--config", text(&config)];
    let mut options: Vec<std::ffi::OsString> = options.map(Into::into).into();
    options.extend(["--writepid".into(), pid.clone().into()]);
    let mut daemon = Daemon::spawn(program.label(), program.command_with(&namespace, &options))?;
    let reaction = reaction(&mut daemon, &log)?;
    // The file may have put it into the background.
    let running = fs::read_to_string(&pid).ok().and_then(|id| id.trim().parse::<i32>().ok());
    if let Some(id) = running {
        // It may have ended already.
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    // If it does not end, the namespace's end shows why.
    let _ = daemon.wait_exit(LIMIT);
    Ok(reaction)
}

/// Waits until a program has started or ended.
fn reaction(daemon: &mut Daemon, log: &Path) -> Result<Reaction> {
    let end = ScaledInstant::now() + LIMIT;
    loop {
        let ended = daemon.ended()?;
        let lines = format!("{}\n{}", daemon.log(), fs::read_to_string(log).unwrap_or_default());
        if lines.contains(READY) || lines.contains(HOLD) {
            return Ok(Reaction::Started);
        }
        let failed = ended.is_some_and(|status| !status.success());
        if failed || ScaledInstant::now() >= end {
            let last: Vec<&str> = lines.lines().filter(|line| !line.trim().is_empty()).collect();
            let last = last.get(last.len().saturating_sub(5)..).unwrap_or_default();
            return Ok(Reaction::Ended(last.join("\n    ")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Replaces the placeholders of a file.
fn completed(content: &str, folder: &Path) -> Result<String> {
    let mut content = content.replace("@DIR@", text(folder));
    for (word, file) in [
        ("@CA@", "ca.crt"),
        ("@CERT@", "server.crt"),
        ("@KEY@", "server.key"),
        ("@STATIC@", "ta.key"),
    ] {
        let path = folder.join(file);
        let inline = fs::read_to_string(&path).context(path.display())?;
        content = content.replace(word, inline.trim());
    }
    Ok(content)
}
