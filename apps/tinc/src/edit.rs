//! `edit` and `network`.

use std::path::{Path, PathBuf};
use std::process::Command;

use adit_runtime::fault::Fault;
use adit_tinc::config::scripts::{SCRIPTS, host_of};
use adit_tinc::name::NodeName;

use crate::console::{Console, reason};
use crate::control::client;
use crate::net::{ALL_NETS, Net};

/// Opens a configuration file in the editor that VISUAL or EDITOR names, and makes a running daemon read its files again.
///
/// # Errors
/// Fails if the file is outside the configuration, or if the editor fails.
pub fn edit(net: &Net, file: &str) -> Result<(), Fault> {
    let path = edited_file(net, file)?;
    let editor = ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()));
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    let mut words = editor.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("vi"));
    let status = command.args(words).arg(&path).status().map_err(|error| {
        Fault::environment(format!("Could not start {editor}: {}", reason(&error)))
    })?;
    if !status.success() {
        return Err(Fault::environment(format!("{editor}: {status}")));
    }
    let _ = client::reload(net);
    Ok(())
}

fn edited_file(net: &Net, file: &str) -> Result<PathBuf, Fault> {
    // Other files are in `hosts`.
    if file == "tinc.conf" || SCRIPTS.contains(&file) {
        return Ok(net.config.join(file));
    }
    let name = file.strip_prefix("hosts/").unwrap_or(file);
    // A host file, or a script of that host.
    let host = host_of(name).unwrap_or(name);
    if host.parse::<NodeName>().is_err() {
        return Err(Fault::operator(format!(
            "{file}: name tinc.conf, a script, or a node's host file"
        )));
    }
    Ok(net.hosts().join(name))
}

/// Prints the names of the nets of this machine: the folders with a `tinc.conf`, and `.` for a net without a name.
///
/// # Errors
/// Fails if /etc/tinc cannot be read.
pub fn networks(console: &mut Console<'_>) -> Result<(), Fault> {
    networks_in(Path::new(ALL_NETS), console)
}

fn networks_in(folder: &Path, console: &mut Console<'_>) -> Result<(), Fault> {
    for name in net_names(folder)? {
        console.print(&format!("{name}\n"));
    }
    Ok(())
}

/// Returns the names of the nets whose folders are in a folder, and `.` for a net in it itself.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn net_names(folder: &Path) -> Result<Vec<String>, Fault> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        Fault::operator(format!(
            "Could not read directory {}: {}",
            folder.display(),
            reason(&error)
        ))
    })?;
    let has_net = |path: &Path| path.join("tinc.conf").exists();
    let names = entries.flatten().filter(|entry| has_net(&entry.path()));
    let mut names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with('.'));
    if has_net(folder) {
        names.push(".".to_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn an_edited_file_is_part_of_the_configuration() {
        let net = Folder::empty().net;
        let path = |file| {
            edited_file(&net, file).map(|path| path.strip_prefix(&net.config).unwrap().to_owned())
        };
        assert_eq!(path("tinc.conf").unwrap(), Path::new("tinc.conf"));
        assert_eq!(path("host-up").unwrap(), Path::new("host-up"));
        assert_eq!(path("bob").unwrap(), Path::new("hosts/bob"));
        assert_eq!(path("hosts/bob-up").unwrap(), Path::new("hosts/bob-up"));
        for file in ["../x", "hosts/../x", "/etc/passwd", "a.b"] {
            assert!(path(file).is_err(), "{file}");
        }
    }

    #[test]
    fn nets_are_folders_with_a_configuration() {
        let folder = Folder::empty();
        for name in ["vpn/tinc.conf", "office/tinc.conf", "empty/x", "tinc.conf"] {
            folder.write(name, "");
        }
        let printed = folder.run(b"", false, |net, console| networks_in(&net.config, console));
        assert_eq!(printed.out, ".\noffice\nvpn\n");
    }
}
