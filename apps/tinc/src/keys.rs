//! Keys of this node.

use std::path::Path;

use adit_runtime::fault::Fault;
use adit_runtime::random;
use adit_tinc::config::split_line;
use adit_tinc::keys::{PrivateKey, PublicKey};
use adit_tinc::name::NodeName;
use zeroize::Zeroizing;

use crate::conf_file::{ConfFile, read_text, write_file};
use crate::console::{Console, reason};
use crate::net::Net;

const OLD: &str = "Warning: old key(s) found and disabled.";

/// Generates a key, and puts it into the files of this node. Old keys become comments.
///
/// # Errors
/// Fails if a file cannot be written.
pub fn generate_ed25519(net: &Net, console: &mut Console<'_>) -> Result<(), Fault> {
    console.note("Generating Ed25519 key pair:");
    let key = PrivateKey::generate(&mut random::generator()?);
    console.note("Done.");
    let path = net.private_key();
    let mut private = existing(&path);
    if private.disable(None, "ED25519 PRIVATE KEY") {
        console.note(OLD);
    }
    private.append(&key.to_file());
    // Not the mode of the old file, which may have been unsafe.
    write_file(&path, Zeroizing::new(private.text()).as_bytes(), 0o600)?;
    let public = match net.own_name() {
        Ok(name) => net.host_file(&name),
        Err(_) => net.config.join("ed25519_key.pub"),
    };
    let mut host = existing(&public);
    if host.disable(Some("Ed25519PublicKey"), "ED25519 PUBLIC KEY") {
        console.note(OLD);
    }
    host.append(&format!("Ed25519PublicKey = {}\n", key.public()));
    host.write(0o644)
}

fn existing(path: &Path) -> ConfFile {
    ConfFile::read(path).unwrap_or_else(|_| ConfFile::new(path, ""))
}

/// Reads the private key of this node.
pub(crate) fn read_private(net: &Net) -> Result<PrivateKey, Fault> {
    let own_file = ConfFile::read(&net.server_file()).ok();
    let named = own_file.as_ref().and_then(|file| file.value("Ed25519PrivateKeyFile"));
    let path = named.map_or_else(|| net.private_key(), |name| net.config.join(name));
    read_private_file(&path)
}

pub(crate) fn read_private_file(path: &Path) -> Result<PrivateKey, Fault> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map(Zeroizing::new)
        .map_err(|error| Fault::operator(format!("Could not open {shown}: {}", reason(&error))))?;
    PrivateKey::from_file(&text).map_err(|error| Fault::operator(format!("{shown}: {error}")))
}

/// Reads the public key in a host file, or in the file that it names.
pub(crate) fn read_public(net: &Net, name: &NodeName) -> Result<PublicKey, Fault> {
    let path = net.host_file(name);
    let shown = path.display();
    let open = |path: &Path| {
        read_text(path).map_err(|error| {
            Fault::operator(format!("Could not open {}: {}", path.display(), reason(&error)))
        })
    };
    let text = open(&path)?;
    let file = ConfFile::new(&path, &text);
    let key = match (file.value("Ed25519PublicKey"), file.value("Ed25519PublicKeyFile")) {
        (Some(key), _) => key.parse(),
        (None, Some(other)) => PublicKey::from_file(&open(&net.config.join(other))?),
        (None, None) => PublicKey::from_file(&text),
    };
    key.map_err(|error| Fault::operator(format!("{shown}: {error}")))
}

/// Returns whether a line of a file in memory sets a variable.
pub(crate) fn sets(line: &str, name: &str) -> bool {
    split_line(line.trim()).0.eq_ignore_ascii_case(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing::Folder;

    #[test]
    fn a_new_key_replaces_the_old_one_which_stays_as_a_comment() {
        let folder = Folder::new();
        let first = folder.run(b"", false, generate_ed25519);
        assert_eq!(first.notes, "Generating Ed25519 key pair:\nDone.\n");
        let old = read_private(&folder.net).unwrap().public();
        assert_eq!(folder.read("hosts/alice"), format!("Ed25519PublicKey = {old}\n"));
        let mode = std::fs::metadata(folder.net.private_key()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = folder.run(b"", false, generate_ed25519);
        assert_eq!(second.notes.matches(OLD).count(), 2);
        let new = read_private(&folder.net).unwrap().public();
        assert_ne!(old, new);
        let name = "alice".parse().unwrap();
        assert_eq!(read_public(&folder.net, &name).unwrap(), new);
        assert!(folder.read("hosts/alice").starts_with(&format!("#Ed25519PublicKey = {old}\n")));
    }

    #[test]
    fn a_folder_without_a_name_gets_its_public_key_next_to_the_private_one() {
        let folder = Folder::new();
        std::fs::remove_file(folder.net.server_file()).unwrap();
        folder.run(b"", false, generate_ed25519);
        assert!(folder.read("ed25519_key.pub").starts_with("Ed25519PublicKey = "));
    }

    #[test]
    fn a_public_key_is_a_variable_or_a_block_here_or_in_another_file() {
        let folder = Folder::new();
        folder.run(b"", false, generate_ed25519);
        let key = read_private(&folder.net).unwrap().public();
        let block = format!(
            "-----BEGIN ED25519 PUBLIC KEY-----\n{key}\n-----END ED25519 PUBLIC KEY-----\n"
        );
        let name = "bob".parse().unwrap();
        folder.write("hosts/bob", &block);
        assert_eq!(read_public(&folder.net, &name).unwrap(), key);
        folder.write("key.pub", &block);
        folder.write("hosts/bob", "Ed25519PublicKeyFile = key.pub\n");
        assert_eq!(read_public(&folder.net, &name).unwrap(), key);
        folder.write("hosts/bob", "Port = 5\n");
        assert!(read_public(&folder.net, &name).is_err());
    }
}
