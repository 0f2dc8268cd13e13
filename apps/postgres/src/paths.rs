//! The files of a node, by network.

use std::path::{Path, PathBuf};

use adit_runtime::fault::Fault;
use adit_runtime::paths::{self, NodePaths};

/// The maximum length of a network's name.
const MAX_NAME: usize = 16;

/// The file that marks a folder as a network's.
const SETTINGS: &str = "node.toml";

/// The file with the node's keys.
const SECRETS: &str = "node.key";

/// The files of the node of one network. `node.toml`, `node.key` and `pins` are in the folder of the settings, and
/// `positions` is in that of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    pub(crate) folders: NodePaths,
}

impl Paths {
    /// Returns the paths of the network `name`, in the system's directories such as `/etc/adit/postgres`, or all under `dir`.
    ///
    /// # Errors
    /// Fails if the name has characters other than lower-case letters and digits, or more than 16, or `dir` is not a
    /// valid path.
    pub fn new(dir: Option<&Path>, name: &str) -> Result<Self, Fault> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
            return Err(Fault::operator(format!(
                "{name:?} is no name for a network: 1 to {MAX_NAME} lower-case letters and digits; write for \
                 example --network-name vpn"
            )));
        }
        Ok(Self { folders: NodePaths::new("postgres", dir, name)? })
    }

    /// Returns the paths of the network `name`, or of the only network of this host.
    ///
    /// # Errors
    /// Fails if there is no such network, or there are several and no name is given.
    pub fn find(dir: Option<&Path>, name: Option<&str>) -> Result<Self, Fault> {
        if let Some(name) = name {
            let paths = Self::new(dir, name)?;
            return if paths.settings_file().exists() {
                Ok(paths)
            } else {
                Err(Fault::operator(format!(
                    "there is no {}; this machine joins a network with: adit postgres join URL",
                    paths.settings_file().display()
                )))
            };
        }
        let folder = paths::Paths::new(dir)?.config.join("postgres");
        match &paths::folders_with(&folder, SETTINGS)?[..] {
            [name] => Self::new(dir, name),
            [] => Err(match paths::folders_with(&folder, SECRETS)?.first() {
                Some(name) => Fault::environment(format!(
                    "{} has a node's keys, and {SETTINGS} is missing: restore the whole folder from a backup, or remove it and join \
                     again",
                    folder.join(name).display()
                )),
                None => Fault::operator(format!(
                    "this machine is in no network (nothing in {}); create one with: adit postgres init URL --network CIDR; \
                     or join one with: adit postgres join URL",
                    folder.display()
                )),
            }),
            several => Err(Fault::operator(format!(
                "this machine is in several networks ({}); choose one: --network-name NAME",
                several.join(", ")
            ))),
        }
    }

    /// Returns the network's name on this host, of lower-case letters and digits.
    pub fn name(&self) -> &str {
        &self.folders.name
    }

    /// Returns the folder of the settings and keys.
    pub fn config(&self) -> &Path {
        &self.folders.config
    }

    /// Returns the path of the node's settings. They contain no secrets.
    pub fn settings_file(&self) -> PathBuf {
        self.folders.config.join(SETTINGS)
    }

    /// Returns the path of the file with the node's keys, the network's key, and the password of its role, with mode
    /// 0600.
    pub fn secrets_file(&self) -> PathBuf {
        self.folders.config.join(SECRETS)
    }

    /// Returns the path of the file with the network's later keys, with mode 0600. The running node writes it.
    pub fn ring_file(&self) -> PathBuf {
        self.folders.config.join("network.keys")
    }

    /// Returns the path of the pins file.
    pub fn pins_file(&self) -> PathBuf {
        self.folders.config.join("pins")
    }

    /// Returns the path of the streams' positions.
    pub fn positions_file(&self) -> PathBuf {
        self.folders.state.join("positions")
    }

    /// Returns the path of the file that the running node locks (flock).
    pub fn lock_file(&self) -> PathBuf {
        self.folders.run.join(format!("postgres-{}.lock", self.name()))
    }

    /// Returns the path of the running node's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.folders.control_socket()
    }

    /// Formats a command line for advice. `command("up")` returns `adit postgres up -n NAME --dir D`.
    pub fn command(&self, verb: &str) -> String {
        self.folders.command(verb, Some("-n"))
    }

    /// Creates the folders.
    ///
    /// # Errors
    /// Fails if the file system refuses.
    pub fn create(&self) -> Result<(), Fault> {
        self.folders.create()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_name_is_a_word_that_fits_into_a_role_and_a_path() {
        for name in ["", "..", "a/b", "A", "a b", "a_b", "abcdefghijklmnopq"] {
            assert!(Paths::new(None, name).is_err(), "{name:?}");
        }
        let paths = Paths::new(None, "vpn").unwrap();
        assert_eq!(paths.settings_file(), Path::new("/etc/adit/postgres/vpn/node.toml"));
        assert_eq!(paths.positions_file(), Path::new("/var/lib/adit/postgres/vpn/positions"));
        assert_eq!(paths.command("up"), "adit postgres up -n vpn");
    }

    #[test]
    fn the_only_network_is_found_and_several_must_be_named() {
        let dir = tempfile::tempdir().unwrap();
        let find = |name| Paths::find(Some(dir.path()), name);
        assert!(find(None).unwrap_err().to_string().contains("in no network"));
        let add = |name| {
            let paths = Paths::new(Some(dir.path()), name).unwrap();
            paths.create().unwrap();
            fs::write(paths.settings_file(), "").unwrap();
        };
        // A folder that was restored in part.
        let part = Paths::new(Some(dir.path()), "part").unwrap();
        part.create().unwrap();
        fs::write(part.secrets_file(), "").unwrap();
        let missing = find(None).unwrap_err().to_string();
        assert!(missing.contains("node.toml is missing") && missing.contains("part"), "{missing}");
        fs::remove_file(part.secrets_file()).unwrap();
        add("one");
        assert_eq!(find(None).unwrap().name(), "one");
        add("two");
        assert!(find(None).unwrap_err().to_string().contains("(one, two)"));
        assert_eq!(find(Some("two")).unwrap().name(), "two");
        assert!(find(Some("three")).is_err());
    }
}
