//! `invite`, and the list of invitations.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use adit_runtime::fault::Fault;
use adit_runtime::random;
use adit_tinc::config::scripts::INVITATION_CREATED;
use adit_tinc::config::{Entries, ServerConfig};
use adit_tinc::invitation::{Cookie, Offer, Url};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeName;
use serde::Serialize;

use crate::conf_file::{ConfFile, cannot_write, write_file};
use crate::console::{Console, reason};
use crate::control::client;
use crate::daemon::system_names::SystemNames;
use crate::keys::read_private_file;
use crate::net::Net;

/// Length of the name of an invitation's file, characters.
const FILE_NAME: usize = 24;

/// The private key of invitations, in their folder.
pub(crate) const KEY_FILE: &str = "ed25519_key.priv";

/// An invitation that was not accepted yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Invitation {
    /// The name of its file.
    pub file: String,
    /// The node that it is for.
    pub node: String,
}

/// Invites a node, and prints the URL that it needs to join.
///
/// # Errors
/// Fails if the node exists, or if this node's address is unknown.
pub fn invite(net: &Net, node: &str, console: &mut Console<'_>) -> Result<(), Fault> {
    let node: NodeName = node.parse().map_err(|_| Fault::operator("Invalid name for node."))?;
    let own = net.own_name()?;
    if net.host_file(&node).exists() {
        return Err(Fault::operator(format!("A host config file for {node} already exists!")));
    }
    let server_file = ConfFile::read(&net.server_file())?;
    let host_file = ConfFile::read(&net.host_file(&own))?;
    let config = settings(net, &own, &server_file, &host_file)?;
    let Some(address) = config.own.addresses.first() else {
        return Err(Fault::operator(
            "Could not determine the external address or hostname. Please set Address manually.",
        ));
    };
    let port = address.port.unwrap_or(config.own.port);
    let (key, is_new) = invitation_key(net, console)?;
    let cookie = Cookie::generate(&mut random::generator()?);
    let file = net.invitations().join(cookie.file_name(&key.public()));
    let url = Url::new(&address.host, port, &key.public(), cookie)
        .map_err(|error| Fault::operator(format!("Address = {}: {error}", address.host)))?;
    let host_text = host_file.text();
    let offer = Offer {
        name: &node,
        net_name: net.name.as_deref(),
        inviter: &own,
        mode: server_file.value("Mode").map(|_| config.mode),
        broadcast: server_file.value("Broadcast").map(|_| config.broadcast),
        host_file: &host_text,
        port: config.own.port,
    };
    write_file(&file, offer.to_file().as_bytes(), 0o600)?;
    // A running daemon knows the old key.
    if is_new && let Err(fault) = client::reload(net) {
        console.note(&fault.to_string());
        console.note("Could not signal the tinc daemon. Please restart or reload it manually.");
    }
    let url = url.to_string();
    run_script(net, &own, &node, &file, &url, console);
    console.print(&format!("{url}\n"));
    Ok(())
}

fn settings(
    net: &Net,
    own: &NodeName,
    server: &ConfFile,
    host: &ConfFile,
) -> Result<ServerConfig, Fault> {
    let fault = |error: adit_tinc::config::ConfigError| Fault::operator(error.to_string());
    let mut entries = Entries::default();
    entries.add_file(&net.server_file().to_string_lossy(), &server.text()).map_err(fault)?;
    entries.add_host_file(&net.host_file(own).to_string_lossy(), &host.text());
    SystemNames::default().replace(&mut entries);
    Ok(ServerConfig::read(&entries).map_err(fault)?.0)
}

/// Returns the key of invitations, and whether it is new. It is replaced when no invitation is left that was made with it.
fn invitation_key(net: &Net, console: &mut Console<'_>) -> Result<(PrivateKey, bool), Fault> {
    let folder = net.invitations();
    let path = folder.join(KEY_FILE);
    if path.exists() && !invitations(net)?.is_empty() {
        return Ok((read_private_file(&path)?, false));
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| cannot_write(&folder, &error))?;
    let key = PrivateKey::generate(&mut random::generator()?);
    write_file(&path, key.to_file().as_bytes(), 0o600)?;
    if !net.pid_file.exists() {
        console.note("No daemon runs; it will find the new invitation key when it starts.");
        return Ok((key, false));
    }
    Ok((key, true))
}

/// Returns the invitations that were not accepted yet, in the order of their files.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn invitations(net: &Net) -> Result<Vec<Invitation>, Fault> {
    let folder = net.invitations();
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let (folder, reason) = (folder.display(), reason(&error));
            return Err(Fault::operator(format!("Cannot read directory {folder}: {reason}")));
        }
    };
    let mut found: Vec<Invitation> =
        entries.flatten().filter_map(|entry| invitation(&entry.path())).collect();
    found.sort_by(|one, next| one.file.cmp(&next.file));
    Ok(found)
}

fn invitation(path: &Path) -> Option<Invitation> {
    let file = path.file_name()?.to_str()?;
    if !is_invitation(file) {
        return None;
    }
    let content = ConfFile::read(path).ok()?;
    let node = content.value("Name")?.parse::<NodeName>().ok()?;
    Some(Invitation { file: file.to_owned(), node: node.to_string() })
}

/// Returns whether a file of this name may be an invitation.
pub(crate) fn is_invitation(file: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    file.len() == FILE_NAME && file.bytes().all(is_name)
}

/// Runs the script `invitation-created`. Its failure is no failure of the invitation.
fn run_script(
    net: &Net,
    own: &NodeName,
    node: &NodeName,
    file: &Path,
    url: &str,
    console: &mut Console<'_>,
) {
    let script: PathBuf = net.config.join(INVITATION_CREATED);
    if !script.exists() {
        return;
    }
    let run = Command::new(&script)
        .current_dir(&net.config)
        .stdin(Stdio::null())
        .env("NETNAME", net.name.as_deref().unwrap_or_default())
        .env("NAME", own.as_str())
        .env("NODE", node.as_str())
        .env("INVITATION_FILE", file)
        .env("INVITATION_URL", url)
        .output();
    let shown = script.display();
    match run {
        // The standard output is for the URL alone.
        Ok(output) => {
            let _ = console.notes.write_all(&output.stdout);
            let _ = console.notes.write_all(&output.stderr);
            if !output.status.success() {
                console.note(&format!("Script {shown}: {}", output.status));
            }
        }
        Err(error) => console.note(&format!("Could not run {shown}: {}", reason(&error))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing::{Folder, Printed};

    fn invited(folder: &Folder, node: &str) -> Printed {
        folder.run(b"", false, |net, console| invite(net, node, console))
    }

    #[test]
    fn an_invitation_has_a_url_and_a_file() {
        let folder = Folder::new();
        folder.write("tinc.conf", "Name = alice\nMode = switch\n");
        folder
            .write("hosts/alice", "Address = vpn.example.com\nPort = 656\nSubnet = 10.1.0.0/16\n");
        let printed = invited(&folder, "carol");
        assert_eq!(printed.error, None);
        assert!(printed.out.starts_with("vpn.example.com:656/"), "{printed:?}");
        let url: Url = printed.out.trim().parse().unwrap();
        let key = read_private_file(&folder.net.invitations().join(KEY_FILE)).unwrap().public();
        assert!(url.is_of(&key));
        let list = invitations(&folder.net).unwrap();
        let file = url.cookie().file_name(&key);
        assert_eq!(list, [Invitation { file: file.clone(), node: "carol".to_owned() }]);
        let text = folder.read(&format!("invitations/{file}"));
        assert!(text.starts_with("Name = carol\nConnectTo = alice\nMode = switch\n#-"), "{text}");
        assert!(text.ends_with(
            "Name = alice\nAddress = vpn.example.com\nSubnet = 10.1.0.0/16\nPort = 656\n"
        ));
        let path = folder.net.invitations().join(file);
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_key_remains_while_an_invitation_is_left() {
        let folder = Folder::new();
        folder.write("hosts/alice", "Address = 192.0.2.1 7000\n");
        let key = || folder.read("invitations/ed25519_key.priv");
        assert!(invited(&folder, "carol").out.starts_with("192.0.2.1:7000/"));
        let first = key();
        invited(&folder, "dave");
        assert_eq!(key(), first);
        for invitation in invitations(&folder.net).unwrap() {
            std::fs::remove_file(folder.net.invitations().join(invitation.file)).unwrap();
        }
        invited(&folder, "erin");
        assert_ne!(key(), first);
    }

    #[test]
    fn what_cannot_be_an_invitation_is_refused() {
        let folder = Folder::new();
        let error = |node| invited(&folder, node).error.unwrap();
        assert_eq!(error("bob"), "A host config file for bob already exists!");
        assert_eq!(error("ca-rol"), "Invalid name for node.");
        assert!(error("carol").starts_with("Could not determine the external address"));
        assert!(!folder.net.invitations().exists());
    }

    #[test]
    fn the_script_gets_the_invitation_and_does_not_write_into_the_url() {
        let folder = Folder::new();
        folder.write("hosts/alice", "Address = 192.0.2.1\n");
        folder.write("invitation-created", "#!/bin/sh\necho \"$NAME $NODE $INVITATION_URL\"\n");
        let script = folder.net.config.join(INVITATION_CREATED);
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let printed = invited(&folder, "carol");
        let url = printed.out.trim();
        assert!(printed.notes.contains(&format!("alice carol {url}\n")), "{printed:?}");
        assert_eq!(printed.out.lines().count(), 1);
    }
}
