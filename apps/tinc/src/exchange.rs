//! `export`, `export-all` and `import`: host files as one text that a user passes on.

use std::fmt::Write as _;

use adit_runtime::fault::Fault;
use adit_tinc::config::split_line;
use adit_tinc::name::NodeName;

use crate::conf_file::{cannot_write, read_text, write_file};
use crate::console::{Console, reason};
use crate::keys::sets;
use crate::net::Net;

const SEPARATOR: &str = "#---------------------------------------------------------------#";

/// The number of hosts that are imported at once.
const MAX_HOSTS: usize = 16_384;

/// Prints the host file of this node.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn export(net: &Net, console: &mut Console<'_>) -> Result<(), Fault> {
    let text = exported(net, &net.own_name()?)?;
    console.print(&text);
    Ok(())
}

/// Prints the host files of all nodes.
///
/// # Errors
/// Fails if a file cannot be read.
pub fn export_all(net: &Net, console: &mut Console<'_>) -> Result<(), Fault> {
    let mut text = String::new();
    for name in host_names(net)? {
        if !text.is_empty() {
            let _ = writeln!(text, "{SEPARATOR}");
        }
        text.push_str(&exported(net, &name)?);
    }
    console.print(&text);
    Ok(())
}

/// Returns the names of the nodes that have a host file, in their order.
pub(crate) fn host_names(net: &Net) -> Result<Vec<NodeName>, Fault> {
    let folder = net.hosts();
    let entries = std::fs::read_dir(&folder).map_err(|error| {
        Fault::operator(format!("Could not open {}: {}", folder.display(), reason(&error)))
    })?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut names: Vec<NodeName> = names.collect();
    names.sort();
    Ok(names)
}

fn exported(net: &Net, name: &NodeName) -> Result<String, Fault> {
    let path = net.host_file(name);
    let file = read_text(&path).map_err(|error| {
        Fault::operator(format!("Could not open {}: {}", path.display(), reason(&error)))
    })?;
    let mut text = format!("Name = {name}\n");
    // A 'Name' line would begin another host.
    for line in file.lines().filter(|line| !sets(line, "Name")) {
        text.push_str(line);
        text.push('\n');
    }
    Ok(text)
}

/// Writes the host files in the input. Existing ones are replaced only with `--force`.
///
/// # Errors
/// Fails if the input has no host, or if a file cannot be written.
pub fn import(net: &Net, console: &mut Console<'_>) -> Result<(), Fault> {
    let text = console.read_text()?;
    let hosts = split(&text, console)?;
    let mut count = 0;
    for (name, content) in hosts {
        let path = net.host_file(&name);
        if path.exists() && !console.force {
            let shown = path.display();
            console.note(&format!("Host configuration file {shown} already exists, skipping."));
            continue;
        }
        std::fs::create_dir_all(net.hosts()).map_err(|error| cannot_write(&path, &error))?;
        write_file(&path, content.as_bytes(), 0o644)?;
        count += 1;
    }
    if count == 0 {
        return Err(Fault::operator("No host configuration files imported."));
    }
    console.note(&format!("Imported {count} host configuration files."));
    Ok(())
}

/// Splits a text into hosts. Each begins with a line `Name = NAME`.
fn split(text: &str, console: &mut Console<'_>) -> Result<Vec<(NodeName, String)>, Fault> {
    let mut hosts: Vec<(NodeName, String)> = Vec::new();
    let mut warned = false;
    for line in text.split_inclusive('\n') {
        if sets(line, "Name") {
            let (_, name) = split_line(line.trim());
            let name = name.parse().map_err(|_| Fault::operator("Invalid Name in input!"))?;
            if hosts.len() >= MAX_HOSTS {
                return Err(Fault::operator(format!("More than {MAX_HOSTS} hosts in input!")));
            }
            hosts.push((name, String::new()));
        } else if line.trim_end() == SEPARATOR {
        } else if let Some((_, content)) = hosts.last_mut() {
            content.push_str(line);
        } else if !std::mem::replace(&mut warned, true) {
            console.note("Junk at the beginning of the input, ignoring.");
        }
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn an_import_writes_what_an_export_printed() {
        let folder = Folder::new();
        folder.write("hosts/alice", "Subnet = 10.0.0.0/8\n");
        folder.write("hosts/bob", "Name = other\nAddress = 1.2.3.4");
        folder.write("hosts/bob-up", "#!/bin/sh\n");
        let own = folder.run(b"", false, export);
        assert_eq!(own.out, "Name = alice\nSubnet = 10.0.0.0/8\n");
        let all = folder.run(b"", false, export_all).out;
        assert_eq!(all, format!("{}{SEPARATOR}\nName = bob\nAddress = 1.2.3.4\n", own.out));
        let other = Folder::empty();
        let printed = other.run(all.as_bytes(), false, import);
        assert_eq!(printed.notes, "Imported 2 host configuration files.\n");
        assert_eq!(other.read("hosts/alice"), "Subnet = 10.0.0.0/8\n");
        assert_eq!(other.read("hosts/bob"), "Address = 1.2.3.4\n");
    }

    #[test]
    fn existing_files_are_replaced_by_force_only() {
        let folder = Folder::new();
        let input = b"junk\nName = bob\nPort = 1\n";
        let printed = folder.run(input, false, import);
        assert_eq!(printed.error.unwrap(), "No host configuration files imported.");
        assert!(printed.notes.starts_with("Junk at the beginning of the input, ignoring.\n"));
        assert!(printed.notes.ends_with("bob already exists, skipping.\n"));
        assert_eq!(folder.read("hosts/bob"), "");
        assert_eq!(folder.run(input, true, import).error, None);
        assert_eq!(folder.read("hosts/bob"), "Port = 1\n");
    }

    #[test]
    fn a_wrong_name_imports_nothing() {
        let folder = Folder::new();
        let input = b"Name = carol\nPort = 1\nName = ../x\n";
        let printed = folder.run(input, true, import);
        assert_eq!(printed.error.unwrap(), "Invalid Name in input!");
        assert!(!folder.net.hosts().join("carol").exists());
    }
}
