//! The files of a server and of nodes, and functions that create files and directories.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::fault::{Fault, file_fault};

/// The directories and files of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The directory of `server.toml`.
    pub config: PathBuf,
    /// The directory of the PKI, registry and leases.
    pub data: PathBuf,
    /// The directory of the control socket and the undo log.
    pub run: PathBuf,
    /// A short name that is unique on this host, for the nft table.
    pub instance: String,
    /// The argument of `--dir`, for hints such as `adit --dir D server run`.
    pub dir: Option<PathBuf>,
}

impl Paths {
    /// Returns the paths below `/etc/adit`, `/var/lib/adit` and `/run/adit`, or all of them below
    /// `dir`.
    pub fn new(dir: Option<&Path>) -> Result<Self, Fault> {
        let Some(dir) = dir else {
            return Ok(Self {
                config: "/etc/adit".into(),
                data: "/var/lib/adit".into(),
                run: "/run/adit".into(),
                instance: "server".into(),
                dir: None,
            });
        };
        let absolute = std::path::absolute(dir).map_err(|error| {
            Fault::operator(format!(
                "--dir {}: {error}; name a folder, for example --dir ./vpn",
                dir.display()
            ))
        })?;
        let absolute = fs::canonicalize(&absolute).unwrap_or(absolute);
        Ok(Self {
            data: absolute.join("data"),
            run: absolute.join("run"),
            instance: instance_name(&absolute),
            config: absolute,
            dir: Some(dir.to_owned()),
        })
    }

    /// Returns the path of `server.toml`.
    pub fn settings_file(&self) -> PathBuf {
        self.config.join("server.toml")
    }

    /// Returns the undo log of the running server.
    pub fn undo_file(&self) -> PathBuf {
        self.run.join("server.undo.json")
    }

    /// Returns the file that the running server locks (flock).
    pub fn lock_file(&self) -> PathBuf {
        self.run.join("server.lock")
    }

    /// Returns the running server's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.run.join("server.sock")
    }

    /// Returns the directory of the logs of programs in the background.
    pub fn log_folder(&self) -> PathBuf {
        match self.dir {
            Some(_) => self.config.join("log"),
            None => "/var/log/adit".into(),
        }
    }

    /// Formats a command line for advice. `command("server run")` returns `adit server run --dir D`.
    pub fn command(&self, verb: &str) -> String {
        match &self.dir {
            Some(dir) => format!("adit {verb} --dir {}", shell_word(dir)),
            None => format!("adit {verb}"),
        }
    }

    /// Creates the three directories. Only the owner may access the data directory.
    pub fn create(&self) -> Result<(), Fault> {
        for (path, mode) in [(&self.config, 0o755), (&self.data, 0o700), (&self.run, 0o755)] {
            make_folder(path, mode)?;
        }
        Ok(())
    }
}

/// The folders of this machine's node of one network, such as a mesh. A machine may be in several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePaths {
    /// The kind of the network, as in `adit KIND`.
    kind: &'static str,
    /// The network's name on this machine.
    pub name: String,
    /// The folder of the settings.
    pub config: PathBuf,
    /// The folder of the state.
    pub state: PathBuf,
    /// The folder of the control sockets of all nodes and servers.
    pub run: PathBuf,
    dir: Option<PathBuf>,
}

impl NodePaths {
    /// Returns the folders below `/etc/adit/KIND`, `/var/lib/adit/KIND` and `/run/adit`, or all of them below `dir`.
    ///
    /// # Errors
    /// `dir` is not a valid path.
    pub fn new(kind: &'static str, dir: Option<&Path>, name: &str) -> Result<Self, Fault> {
        let base = Paths::new(dir)?;
        Ok(Self {
            kind,
            name: name.to_owned(),
            config: base.config.join(kind).join(name),
            state: base.data.join(kind).join(name),
            run: base.run,
            dir: dir.map(Path::to_owned),
        })
    }

    /// Returns the folder that contains all files, if they are not in the system's folders.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Returns the running node's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.run.join(format!("{}-{}.sock", self.kind, self.name))
    }

    /// Formats a command line for advice. `command("up", Some("-n"))` returns `adit KIND up -n NAME --dir D`. Without an option, the
    /// command finds the network itself.
    pub fn command(&self, verb: &str, name_option: Option<&str>) -> String {
        let mut command = format!("adit {} {verb}", self.kind);
        if let Some(option) = name_option {
            command.push_str(&format!(" {option} {}", self.name));
        }
        if let Some(dir) = &self.dir {
            command.push_str(&format!(" --dir {}", shell_word(dir)));
        }
        command
    }

    /// Creates the folders. Only the owner may access the one with the state.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn create(&self) -> Result<(), Fault> {
        for (path, mode) in [(&self.config, 0o755), (&self.state, 0o700), (&self.run, 0o755)] {
            make_folder(path, mode)?;
        }
        Ok(())
    }
}

/// Returns the names of the folders in `folder` that contain `file`, in order; none if `folder` does not exist.
///
/// # Errors
/// The folder cannot be read.
pub fn folders_with(folder: &Path, file: &str) -> Result<Vec<String>, Fault> {
    let list = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.path().join(file).exists() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    };
    match list() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(file_fault("cannot read", folder, &error)),
        Ok(names) => Ok(names),
    }
}

/// Creates a directory and its parents if they are missing. An existing directory keeps its mode.
pub fn make_folder(path: &Path, mode: u32) -> Result<(), Fault> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| file_fault("cannot create the folder", path, &error))
}

/// Replaces a file atomically, with this mode.
pub fn write_whole(path: &Path, mode: u32, contents: &[u8]) -> Result<(), Fault> {
    let suffix = format!(".new-{}", std::process::id());
    adit_linux::file::replace(path, contents, mode, &suffix)
        .map_err(|error| file_fault("cannot write", path, &error))
}

/// Returns the letters and digits of the directory's name and a few of its path's hash, so that two
/// directories with the same name do not share an nft table.
fn instance_name(path: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).take(16).collect::<String>();
    format!("{}_{:06x}", name.to_ascii_lowercase(), hasher.finish() & 0xff_ffff)
}

/// Quotes a path as a word of a shell command.
pub fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_folder_holds_all_three() {
        let paths = Paths::new(Some(Path::new("/tmp/x/My VPN"))).unwrap();
        assert_eq!(paths.settings_file(), Path::new("/tmp/x/My VPN/server.toml"));
        assert!(paths.data.starts_with("/tmp/x/My VPN"));
        assert!(paths.run.starts_with("/tmp/x/My VPN"));
        assert_eq!(paths.command("reload"), "adit reload --dir '/tmp/x/My VPN'");
    }

    #[test]
    fn a_node_of_each_network_has_its_own_folders() {
        let paths = NodePaths::new("mesh", None, "home").unwrap();
        assert_eq!(paths.config, Path::new("/etc/adit/mesh/home"));
        assert_eq!(paths.state, Path::new("/var/lib/adit/mesh/home"));
        assert_eq!(paths.control_socket(), Path::new("/run/adit/mesh-home.sock"));
        assert_eq!(paths.command("up", None), "adit mesh up");
        let dir = tempfile::tempdir().unwrap();
        let paths = NodePaths::new("postgres", Some(dir.path()), "vpn").unwrap();
        let command = paths.command("up", Some("-n"));
        assert_eq!(command, format!("adit postgres up -n vpn --dir {}", dir.path().display()));
        paths.create().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&paths.config), mode(&paths.state)), (0o755, 0o700));
    }

    #[test]
    fn instance_names_are_safe_and_differ() {
        let one = instance_name(Path::new("/a/vpn; flush ruleset"));
        let two = instance_name(Path::new("/b/vpn; flush ruleset"));
        assert_ne!(one, two);
        for name in [one, two] {
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{name}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole_and_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write_whole(&path, 0o600, b"one").unwrap();
        write_whole(&path, 0o600, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
