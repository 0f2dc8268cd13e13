//! `fsck`: finds mistakes in a configuration.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use adit_runtime::fault::Fault;
use adit_tinc::config::scripts::{SCRIPTS, host_of};
use adit_tinc::config::variables::{Support, Variable};
use adit_tinc::config::{Entries, WarningReason};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeName;
use zeroize::Zeroizing;

use crate::conf_file::{ConfFile, cannot_write, read_text};
use crate::console::{Console, reason};
use crate::daemon::load::{ConfigProblems, load_own, read_host};
use crate::daemon::system_names::SystemNames;
use crate::exchange::host_names;
use crate::keys::read_public;
use crate::net::Net;
use crate::variables::OBSOLETE;

/// Checks a configuration. With `--force`, also corrects what has only one correction.
///
/// # Errors
/// Fails if a daemon could not run with it.
pub fn fsck(net: &Net, console: &mut Console<'_>) -> Result<(), Fault> {
    let path = net.server_file();
    let text = read_text(&path).map_err(|error| {
        Fault::operator(format!(
            "ERROR: cannot read {}: {}\nNo tinc configuration found. Create a new one with:\n\n{} init",
            path.display(),
            reason(&error),
            net.command()
        ))
    })?;
    let mut names = SystemNames::default();
    let own = load_own(net, &[], &mut names);
    let name = match &own {
        Ok((name, ..)) => name.clone(),
        Err(_) => net.own_name().map_err(|fault| {
            Fault::operator(format!("ERROR: tinc cannot run without a valid Name: {fault}"))
        })?,
    };
    check_keys(net, &name, console)?;
    check_scripts(net, console);
    check_variables(&path, &text, console);
    match &own {
        Ok((.., problems)) => print_problems(problems, console),
        Err(fault) => console.note(&format!("ERROR: {fault}")),
    }
    for host in host_names(net).unwrap_or_default() {
        let path = net.host_file(&host);
        if let Ok(text) = read_text(&path) {
            check_variables(&path, &text, console);
        }
        if host != name {
            print_problems(&read_host(net, &host, &[], &mut names)?.1, console);
        }
    }
    match own {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault::operator("The daemon cannot start with this configuration.")),
    }
}

/// Prints what a daemon warns of, except for what [`check_variables`] prints in tinc's words.
fn print_problems(problems: &ConfigProblems, console: &mut Console<'_>) {
    for warning in &problems.lines {
        match warning.reason {
            WarningReason::Invalid(_)
            | WarningReason::Limited { .. }
            | WarningReason::WrongFile
            | WarningReason::ValueNotSupported(_) => {
                console.note(&format!("WARNING: {warning}"));
            }
            WarningReason::Unknown | WarningReason::Repeated | WarningReason::NotSupported(_) => {}
        }
    }
    if let Some(file) = &problems.file {
        console.note(&format!("WARNING: {file}"));
    }
}

fn check_keys(net: &Net, name: &NodeName, console: &mut Console<'_>) -> Result<(), Fault> {
    let path = net.private_key();
    let text = std::fs::read_to_string(&path).map(Zeroizing::new);
    let key = match &text {
        Ok(text) => PrivateKey::from_file(text).map_err(|error| error.to_string()),
        Err(error) => Err(reason(error)),
    };
    let key = key.map_err(|error| {
        Fault::operator(format!(
            "ERROR: No Ed25519 private key found: {}: {error}\nYou can generate new keys with:\n\n{} generate-ed25519-keys",
            path.display(),
            net.command()
        ))
    })?;
    let shown = path.display();
    let mode = std::fs::metadata(&path).map_or(0, |data| data.permissions().mode());
    if mode & 0o077 != 0 {
        console.note(&format!("WARNING: unsafe file permissions on {shown}."));
        if console.force {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode & 0o700))
                .map_err(|error| cannot_write(&path, &error))?;
            console.note(&format!("Fixed permissions of {shown}."));
        }
    }
    match read_public(net, name) {
        Ok(public) if public == key.public() => {}
        Ok(_) => {
            return Err(Fault::operator("ERROR: public and private Ed25519 keys do not match."));
        }
        Err(_) => {
            console.note("WARNING: No (usable) public Ed25519 key found.");
            if console.force {
                let host = net.host_file(name);
                let mut file = ConfFile::read(&host).unwrap_or_else(|_| ConfFile::new(&host, ""));
                file.set("Ed25519PublicKey", &key.public().to_string());
                file.write(0o644)?;
                console.note(&format!("Wrote Ed25519 public key to {}.", host.display()));
            }
        }
    }
    Ok(())
}

fn check_scripts(net: &Net, console: &mut Console<'_>) {
    for name in file_names(&net.config) {
        if SCRIPTS.contains(&name.as_str()) {
            check_script(&net.config.join(&name), console);
        } else if host_of(&name).is_some() {
            let (script, folder) = (net.config.join(&name), net.config.display());
            console.note(&format!("WARNING: Unknown script {} found.", script.display()));
            console.note(&format!("The only scripts in {folder} executed by tinc are:"));
            console.note("tinc-up, tinc-down, host-up, host-down, subnet-up and subnet-down.");
        }
    }
    for name in file_names(&net.hosts()) {
        if host_of(&name).is_some() {
            check_script(&net.hosts().join(&name), console);
        }
    }
}

fn file_names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn check_script(path: &Path, console: &mut Console<'_>) {
    let mode = std::fs::metadata(path).map_or(0, |data| data.permissions().mode());
    if mode & 0o111 == 0 {
        let path = path.display();
        console.note(&format!("WARNING: cannot read and execute {path}: Permission denied"));
    }
}

/// Checks the names of the variables in a file.
fn check_variables(path: &Path, text: &str, console: &mut Console<'_>) {
    let shown = path.display();
    let mut entries = Entries::default();
    entries.add_host_file(&path.to_string_lossy(), text);
    let mut seen: Vec<(&str, bool)> = Vec::new();
    for entry in entries.iter() {
        let (line, written) = (entry.line, &entry.name);
        let Some(variable) = Variable::find(written) else {
            // Part of an invitation or an export, but not of a configuration.
            console.note(&format!("WARNING: unknown variable {written} in {shown} line {line}"));
            continue;
        };
        let name = variable.name;
        if OBSOLETE.contains(&name) {
            console.note(&format!("WARNING: obsolete variable {written} in {shown} line {line}"));
        } else if let Support::Ignored(why) = variable.support {
            console.note(&format!("WARNING: {name} in {shown} line {line} is ignored: {why}"));
        }
        if variable.many {
            continue;
        }
        match seen.iter_mut().find(|(other, _)| *other == name) {
            None => seen.push((name, false)),
            Some((_, warned)) if *warned => {}
            Some((_, warned)) => {
                *warned = true;
                console.note(&format!("WARNING: multiple instances of variable {name} in {shown}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::generate_ed25519;
    use crate::testing::Folder;

    fn healthy() -> Folder {
        let folder = Folder::new();
        folder.run(b"", false, generate_ed25519);
        folder
    }

    #[test]
    fn a_healthy_configuration_gets_no_word() {
        let printed = healthy().run(b"", false, fsck);
        assert_eq!((printed.notes.as_str(), printed.error), ("", None));
    }

    #[test]
    fn each_mistake_in_a_file_has_a_line() {
        let folder = healthy();
        let conf = "Name = alice\nFoo = 1\nGraphDumpFile = x\nMode = hub\nMode = hub\nCipher = x\n";
        folder.write("tinc.conf", conf);
        folder.write("tinc-up", "#!/bin/sh\n");
        folder.write("x-up", "");
        folder.write("hosts/bob-down", "");
        let notes = folder.run(b"", false, fsck).notes;
        for line in [
            "WARNING: unknown variable Foo in ",
            "tinc.conf line 2\n",
            "WARNING: obsolete variable GraphDumpFile in ",
            "WARNING: multiple instances of variable Mode in ",
            "WARNING: Cipher in ",
            "tinc-up: Permission denied\n",
            "x-up found.\n",
            "hosts/bob-down: Permission denied\n",
        ] {
            assert!(notes.contains(line), "{line}: {notes}");
        }
    }

    #[test]
    fn what_stops_a_daemon_is_an_error() {
        let folder = healthy();
        let fails = |folder: &Folder| folder.run(b"", false, fsck);
        folder.write("tinc.conf", "Name = alice\nMode = x\n");
        let printed = fails(&folder);
        assert!(printed.notes.contains("ERROR: "), "{printed:?}");
        assert!(printed.error.is_some());
        folder.write("tinc.conf", "Name = alice\nScriptsInterpreter = sh\n");
        assert!(fails(&folder).error.is_some());
        folder.write("tinc.conf", "Name = alice\nDeviceStandby = yes\n");
        assert!(fails(&folder).error.is_some());
        folder.write("tinc.conf", "Name = alice\nPingTimeout\n");
        let printed = fails(&folder);
        assert_eq!(printed.notes.matches("the variable has no value").count(), 1, "{printed:?}");
        assert!(printed.error.is_some());
        folder.write("tinc.conf", "Name = alice\n");
        folder.write("conf.d/a.conf", "Mode = x\n");
        assert!(fails(&folder).error.is_some());
        folder.write("conf.d/a.conf", "");
        folder.write("tinc.conf", "Mode = hub\n");
        assert!(fails(&folder).error.unwrap().starts_with("ERROR: tinc cannot run without"));
        std::fs::remove_file(folder.net.server_file()).unwrap();
        assert!(fails(&folder).error.unwrap().contains("No tinc configuration found"));
    }

    /// The daemon starts with each of these.
    #[test]
    fn what_a_daemon_warns_of_is_a_warning() {
        let folder = healthy();
        let path = folder.net.host_file(&"bob".parse().unwrap());
        for (content, warning) in [
            (&b"Subnet = 10.0.0.1/8\n"[..], "bob:1: Subnet: ignored: the address has bits"),
            (b"Subnet\n", "bob:1: Subnet: ignored: the variable has no value"),
            (b"Address = B\xfcro\n", "bob:1: Address: ignored: the line is not UTF-8"),
            (
                b"Ed25519PublicKeyFile = /nonexistent\n",
                "bob: Ed25519PublicKeyFile: cannot read /nonexistent: ",
            ),
            (b"-----BEGIN X-----\n", "bob:1: -----BEGIN X-----: ignored: the block has no"),
        ] {
            std::fs::write(&path, content).unwrap();
            let printed = folder.run(b"", false, fsck);
            assert_eq!((printed.notes.lines().count(), printed.error), (1, None), "{warning}");
            assert!(printed.notes.starts_with("WARNING: "), "{}", printed.notes);
            assert!(printed.notes.contains(warning), "{}", printed.notes);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let printed = folder.run(b"", false, fsck);
        assert!(printed.notes.contains("cannot read ") && printed.error.is_none(), "{printed:?}");
        folder.write("tinc.conf", "Name = alice\nPingInterval = 0\nTCPOnly = 1\nCompression = 9\n");
        let notes = folder.run(b"", false, fsck).notes;
        assert!(notes.contains("PingInterval: '0' is out of range: 1 is used"), "{notes}");
        assert!(notes.contains("TCPOnly: ignored: "), "{notes}");
        assert_eq!(notes.matches("Compression: ignored: ").count(), 1, "{notes}");
    }

    #[test]
    fn force_corrects_the_mode_and_the_public_key() {
        let folder = healthy();
        let path = folder.net.private_key();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        folder.write("hosts/alice", "Port = 7\n");
        let notes = folder.run(b"", true, fsck).notes;
        assert!(notes.contains("Fixed permissions of "), "{notes}");
        assert!(notes.contains("Wrote Ed25519 public key to "), "{notes}");
        assert_eq!(folder.run(b"", false, fsck).notes, "");
        assert!(folder.read("hosts/alice").starts_with("Port = 7\nEd25519PublicKey = "));
        let other = healthy();
        other.write("hosts/alice", &folder.read("hosts/alice"));
        assert!(other.run(b"", false, fsck).error.unwrap().ends_with("keys do not match."));
        std::fs::remove_file(path).unwrap();
        let error = folder.run(b"", false, fsck).error.unwrap();
        assert!(error.starts_with("ERROR: No Ed25519 private key found"), "{error}");
    }
}
