//! The files of a node, by mesh.

use std::path::{Path, PathBuf};

use adit_runtime::fault::Fault;
use adit_runtime::paths::{self, NodePaths};

/// The default name of a mesh.
pub const DEFAULT_NAME: &str = "home";

/// The length of the longest name. The device is named after the mesh: `mesh-NAME`.
const MAX_NAME: usize = 10;

/// The file whose presence marks a folder as a mesh's.
const ROSTER: &str = "roster";

/// The files with a node's key and with an admin's.
const NODE_KEY: &str = "node.key";
const ADMIN_KEY: &str = "admin.key";

/// The files of the node of one mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    pub(crate) folders: NodePaths,
}

impl Paths {
    /// Returns the paths of the mesh `name`: below `/etc/adit/mesh` and `/var/lib/adit/mesh`, or everything below `dir`.
    ///
    /// # Errors
    /// The name is longer than 10 characters, or contains characters other than lower-case letters, digits and inner
    /// hyphens; or `dir` is not a valid path.
    pub fn new(dir: Option<&Path>, name: &str) -> Result<Self, Fault> {
        let is_label = adit_mesh::roster::Label::new(name).is_some();
        if !is_label || name.len() > MAX_NAME {
            return Err(Fault::operator(format!(
                "{name:?} is not a name for a mesh: 1 to {MAX_NAME} lower-case letters, digits and inner hyphens; write for \
                 example --mesh home"
            )));
        }
        Ok(Self { folders: NodePaths::new("mesh", dir, name)? })
    }

    /// Returns the paths of the mesh `name`, or of the only one that this machine is in.
    ///
    /// # Errors
    /// There is none, or there are several and none was named.
    pub fn find(dir: Option<&Path>, name: Option<&str>) -> Result<Self, Fault> {
        if let Some(name) = name {
            let paths = Self::new(dir, name)?;
            return if paths.exists() { Ok(paths) } else { Err(missing(&paths.folders.state)) };
        }
        match &names(dir)?[..] {
            [name] => Self::new(dir, name),
            [] => Err(missing(&folder(dir)?)),
            several => Err(Fault::operator(format!(
                "this machine is in several meshes ({}); choose one: --mesh NAME",
                several.join(", ")
            ))),
        }
    }

    /// Returns the paths of all meshes that this machine is in.
    ///
    /// # Errors
    /// The folder of meshes cannot be read; `dir` is not a valid path.
    pub fn all(dir: Option<&Path>) -> Result<Vec<Self>, Fault> {
        names(dir)?.iter().map(|name| Self::new(dir, name)).collect()
    }

    /// Returns whether this machine is in no mesh.
    ///
    /// # Errors
    /// The folder of meshes cannot be read, or one in it was restored in part; `dir` is not a valid path.
    pub fn is_none(dir: Option<&Path>) -> Result<bool, Fault> {
        Self::check_all_complete(dir)?;
        Ok(names(dir)?.is_empty())
    }

    /// Refuses any folder that [`Self::check_complete`] refuses.
    ///
    /// # Errors
    /// There is one, or the folder of meshes cannot be read; `dir` is not a valid path.
    pub(crate) fn check_all_complete(dir: Option<&Path>) -> Result<(), Fault> {
        for key in [NODE_KEY, ADMIN_KEY] {
            for name in paths::folders_with(&folder(dir)?, key)? {
                Self::new(dir, &name)?.check_complete()?;
            }
        }
        Ok(())
    }

    /// Refuses a folder that has a node's key but no roster, because another node there would replace the key.
    ///
    /// # Errors
    /// The folder was restored in part, or the creation of its node was interrupted.
    pub(crate) fn check_complete(&self) -> Result<(), Fault> {
        let keys = [self.node_key_file(), self.admin_key_file()];
        match keys.iter().find(|key| key.exists()) {
            Some(key) if !self.exists() => Err(Fault::environment(format!(
                "{} is missing, although there is {}: restore the whole folder from a backup, or move it away to begin again",
                self.roster_file().display(),
                key.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns whether this machine is a node of the mesh.
    pub fn exists(&self) -> bool {
        self.roster_file().exists()
    }

    /// Returns the mesh's name on this machine.
    pub fn name(&self) -> &str {
        &self.folders.name
    }

    /// Returns the path of the settings, which are optional.
    pub fn settings_file(&self) -> PathBuf {
        self.folders.config.join("mesh.toml")
    }

    /// Returns the path of the node's key; mode 0600.
    pub fn node_key_file(&self) -> PathBuf {
        self.folders.state.join(NODE_KEY)
    }

    /// Returns the path of an admin's key; mode 0600. Most machines have none.
    pub fn admin_key_file(&self) -> PathBuf {
        self.folders.state.join(ADMIN_KEY)
    }

    /// Returns the path of the roster's changes.
    pub fn roster_file(&self) -> PathBuf {
        self.folders.state.join(ROSTER)
    }

    /// Returns the path of this node's invitations, without their secrets.
    pub fn invitations_file(&self) -> PathBuf {
        self.folders.state.join("invitations.json")
    }

    /// Returns the path of the addresses at which other members were reached.
    pub fn reach_file(&self) -> PathBuf {
        self.folders.state.join("reach.json")
    }

    /// Returns the path of the text of the mesh's policy.
    pub fn policy_file(&self) -> PathBuf {
        self.folders.state.join("policy.nft")
    }

    /// Returns the path of the keys of the server for OpenVPN apps; mode 0600. Most machines have none.
    pub fn apps_file(&self) -> PathBuf {
        self.folders.state.join("openvpn.json")
    }

    /// Returns the path of the file that names this node's directory database; mode 0600. Without a directory, it does not exist.
    pub fn directory_file(&self) -> PathBuf {
        self.folders.state.join("directory.json")
    }

    /// Returns the running node's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.folders.control_socket()
    }

    /// Returns the name of the TUN device, unless the settings have another.
    pub fn device(&self) -> String {
        format!("mesh-{}", self.name())
    }

    /// Formats a command line for hints: `command("up")` is `adit mesh up`.
    pub fn command(&self, verb: &str) -> String {
        self.folders.command(verb, (self.name() != DEFAULT_NAME).then_some("--mesh"))
    }

    /// Creates the folders. Only the owner can read the state folder.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn create(&self) -> Result<(), Fault> {
        self.folders.create()
    }
}

/// Returns the names of all meshes that this machine is in.
fn names(dir: Option<&Path>) -> Result<Vec<String>, Fault> {
    paths::folders_with(&folder(dir)?, ROSTER)
}

/// Returns the parent folder of all meshes.
fn folder(dir: Option<&Path>) -> Result<PathBuf, Fault> {
    Ok(paths::Paths::new(dir)?.data.join("mesh"))
}

fn missing(folder: &Path) -> Fault {
    Fault::operator(format!(
        "this machine is not in a mesh (nothing in {}); create one with: adit mesh up; or join one with: adit mesh join",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_name_fits_into_a_path_and_a_devices_name() {
        for name in ["", "..", "a/b", "A", "a b", "-a", "abcdefghijk"] {
            assert!(Paths::new(None, name).is_err(), "{name:?}");
        }
        let paths = Paths::new(None, "home").unwrap();
        assert_eq!(paths.roster_file(), Path::new("/var/lib/adit/mesh/home/roster"));
        assert_eq!(paths.settings_file(), Path::new("/etc/adit/mesh/home/mesh.toml"));
        assert_eq!(paths.device(), "mesh-home");
        assert_eq!(paths.command("up"), "adit mesh up");
        let office = Paths::new(Some(Path::new("/x")), "office").unwrap();
        assert_eq!(office.command("up"), "adit mesh up --mesh office --dir /x");
        assert!(Paths::new(None, "abcdefghij").unwrap().device().len() <= 15);
    }

    #[test]
    fn the_only_mesh_is_found_and_several_must_be_named() {
        let dir = tempfile::tempdir().unwrap();
        let find = |name| Paths::find(Some(dir.path()), name);
        assert!(find(None).unwrap_err().to_string().contains("not in a mesh"));
        let add = |name| {
            let paths = Paths::new(Some(dir.path()), name).unwrap();
            paths.create().unwrap();
            fs::write(paths.roster_file(), "").unwrap();
        };
        add("one");
        assert_eq!(find(None).unwrap().name(), "one");
        add("two");
        assert!(find(None).unwrap_err().to_string().contains("(one, two)"));
        assert_eq!(find(Some("two")).unwrap().name(), "two");
        assert!(find(Some("three")).is_err());
    }

    #[test]
    fn a_folder_that_was_restored_in_part_is_no_place_for_another_node() {
        for key in [NODE_KEY, ADMIN_KEY] {
            let dir = tempfile::tempdir().unwrap();
            assert!(Paths::is_none(Some(dir.path())).unwrap());
            let paths = Paths::new(Some(dir.path()), "office").unwrap();
            paths.create().unwrap();
            fs::write(paths.folders.state.join(key), "key").unwrap();
            let missing = Paths::is_none(Some(dir.path())).unwrap_err().to_string();
            assert!(missing.contains("roster is missing") && missing.contains(key), "{missing}");
            assert!(missing.contains("from a backup"), "{missing}");
            fs::write(paths.roster_file(), "").unwrap();
            assert!(!Paths::is_none(Some(dir.path())).unwrap());
        }
    }
}
