//! `init`: the first files of a node.

use std::fs::DirBuilder;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::unix::fs::DirBuilderExt;

use adit_runtime::fault::Fault;
use adit_runtime::random;
use adit_tinc::config::DEFAULT_PORT;
use adit_tinc::name::{MAX_CONFIGURED_NAME, NodeName};

use crate::conf_file::{ConfFile, cannot_write, write_file};
use crate::console::Console;
use crate::keys::generate_ed25519;
use crate::net::Net;

/// The script that a user edits to give the interface its address.
const TINC_UP: &str = "#!/bin/sh

echo 'Unconfigured tinc-up script, please edit '$0'!'

#ip link set $INTERFACE up
#ip addr add <address>/<prefix length> dev $INTERFACE
";

/// The ports to choose from if the usual one is taken.
const OTHER_PORTS: std::ops::Range<u16> = 0x1000..0x8000;

/// How often to try another port.
const TRIES: u32 = 100;

/// Creates the configuration of a new node: its name, its key, its host file, and an example of a script.
///
/// # Errors
/// Fails if there is a configuration, or if a file cannot be written.
pub fn init(net: &Net, name: &str, console: &mut Console<'_>) -> Result<(), Fault> {
    let path = net.server_file();
    if path.exists() {
        return Err(Fault::operator(format!(
            "Configuration file {} already exists!",
            path.display()
        )));
    }
    let name = check_name(name)?;
    make_folders(net)?;
    write_file(&path, format!("Name = {name}\n").as_bytes(), 0o644)?;
    generate_ed25519(net, console)?;
    choose_port(net, &name, console)?;
    write_script(net)
}

/// Creates the configuration directory, and the folder for host files in it.
pub(crate) fn make_folders(net: &Net) -> Result<(), Fault> {
    for path in [net.config.clone(), net.hosts()] {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&path);
        made.map_err(|error| cannot_write(&path, &error))?;
    }
    Ok(())
}

/// Writes the example of a script, unless there is a script.
pub(crate) fn write_script(net: &Net) -> Result<(), Fault> {
    let script = net.config.join("tinc-up");
    if script.exists() {
        return Ok(());
    }
    write_file(&script, TINC_UP.as_bytes(), 0o755)
}

/// Reads the name of a node that a user chose.
pub(crate) fn check_name(name: &str) -> Result<NodeName, Fault> {
    let parsed = name.parse().ok().filter(|_| name.len() <= MAX_CONFIGURED_NAME);
    parsed.ok_or_else(|| {
        Fault::operator("Invalid Name! Only a-z, A-Z, 0-9 and _ are allowed characters.")
    })
}

/// Chooses another port if another program has the usual one.
pub(crate) fn choose_port(
    net: &Net,
    name: &NodeName,
    console: &mut Console<'_>,
) -> Result<(), Fault> {
    if is_free(DEFAULT_PORT) {
        return Ok(());
    }
    let mut random = random::generator()?;
    let span = OTHER_PORTS.end - OTHER_PORTS.start;
    let mut choose = || OTHER_PORTS.start + u16::from_be_bytes(random.bytes()) % span;
    let found = (0..TRIES).map(|_| choose()).find(|port| is_free(*port));
    let Some(port) = found else {
        console.note(&format!("Please change {name}'s Port manually."));
        return Ok(());
    };
    console.note(&format!(
        "Warning: could not bind to port {DEFAULT_PORT}. tinc will instead listen on port {port}."
    ));
    let mut host = ConfFile::read(&net.host_file(name))?;
    host.set("Port", &port.to_string());
    host.write(0o644)
}

/// Returns whether a node could listen on a port, over the protocols that this machine has.
fn is_free(port: u16) -> bool {
    let taken = |error: std::io::Error| {
        matches!(error.kind(), std::io::ErrorKind::AddrInUse | std::io::ErrorKind::PermissionDenied)
    };
    let four = (Ipv4Addr::UNSPECIFIED, port);
    let six = (Ipv6Addr::UNSPECIFIED, port);
    // Without IPv6 the last two fail for another reason.
    let refused = [
        TcpListener::bind(four).err(),
        UdpSocket::bind(four).err(),
        TcpListener::bind(six).err(),
        UdpSocket::bind(six).err(),
    ];
    !refused.into_iter().flatten().any(taken)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing::Folder;

    #[test]
    fn a_new_node_has_a_name_a_key_and_a_script() {
        let folder = Folder::empty();
        let printed = folder.run(b"", false, |net, console| init(net, "alice", console));
        assert_eq!(printed.error, None);
        assert_eq!(folder.read("tinc.conf"), "Name = alice\n");
        assert!(folder.read("hosts/alice").starts_with("Ed25519PublicKey = "));
        let script = std::fs::metadata(folder.net.config.join("tinc-up")).unwrap();
        assert_eq!(script.permissions().mode() & 0o777, 0o755);
        let again = folder.run(b"", false, |net, console| init(net, "bob", console));
        assert!(again.error.unwrap().ends_with("tinc.conf already exists!"));
        assert_eq!(folder.read("tinc.conf"), "Name = alice\n");
    }

    #[test]
    fn a_wrong_name_leaves_nothing_behind() {
        let folder = Folder::empty();
        let printed = folder.run(b"", false, |net, console| init(net, "al-ice", console));
        assert!(printed.error.unwrap().starts_with("Invalid Name!"));
        assert!(!folder.net.config.exists());
    }

    #[test]
    fn a_port_of_another_program_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}
