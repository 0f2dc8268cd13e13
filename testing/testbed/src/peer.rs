//! The programs under test and their peers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Result, ensure};
use crate::net::Namespace;

/// A program with OpenVPN's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// The system's `openvpn`.
    OpenVpn,
    /// `adit openvpn`.
    Adit(PathBuf),
    /// The `openvpn` of a private root, started by the dynamic linker of that root.
    Root {
        /// The Debian suite that it came from.
        suite: &'static str,
        /// The loader, its library path, the program.
        words: Vec<OsString>,
    },
}

impl Program {
    /// Returns the `adit` next to this program, or the one that `ADIT` names.
    ///
    /// # Errors
    /// There is no such program.
    pub fn adit() -> Result<Self> {
        let path = match std::env::var_os("ADIT") {
            Some(path) => PathBuf::from(path),
            None => std::env::current_exe()?.with_file_name("adit"),
        };
        ensure(path.exists(), || format!("{}: missing: cargo build -p adit-cli", path.display()))?;
        Ok(Self::Adit(path))
    }

    /// Returns the `openvpn` of a Debian suite under `roots` (see `scripts/roots.sh`), if it has been fetched.
    pub fn of_suite(roots: &Path, suite: &'static str) -> Option<Self> {
        Some(Self::Root { suite, words: in_root(&roots.join(suite), "usr/sbin/openvpn")? })
    }

    /// Returns whether the program supports `disable-dco`, and would use the kernel's module without it.
    pub fn may_offload(&self) -> bool {
        matches!(self, Self::OpenVpn | Self::Root { suite: "sid", .. })
    }

    /// Returns its name in messages.
    pub fn label(&self) -> &'static str {
        match self {
            Self::OpenVpn => "openvpn",
            Self::Adit(_) => "adit",
            Self::Root { suite, .. } => suite,
        }
    }

    /// Returns the command that runs it in a namespace with this configuration file.
    pub fn command(&self, namespace: &Namespace, config: &Path) -> Command {
        self.command_with(namespace, &["--config".into(), config.into()])
    }

    /// Returns the command that runs it in a namespace with these options.
    pub fn command_with(&self, namespace: &Namespace, options: &[OsString]) -> Command {
        let mut command = match self {
            Self::OpenVpn => namespace.command("openvpn"),
            Self::Adit(path) => {
                let mut command = namespace.command(&path.to_string_lossy());
                command.arg("openvpn");
                command
            }
            Self::Root { words, .. } => {
                let mut words = words.iter();
                let first = words.next().map(|word| word.to_string_lossy().into_owned());
                let mut command = namespace.command(&first.unwrap_or_default());
                command.args(words);
                command
            }
        };
        command.args(options);
        command
    }
}

/// Returns the words that start a program of a private root through the root's own dynamic linker: the linker, its library
/// path, the program. `None` if the root has not been fetched (see `scripts/roots.sh`).
pub fn in_root(root: &Path, program: &str) -> Option<Vec<OsString>> {
    let root = root.canonicalize().ok()?;
    let program = root.join(program);
    let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
    let libraries = [root.join("lib").join(&machine), root.join("usr/lib").join(&machine)];
    // Its name is ld-2.31.so or ld-linux-x86-64.so.2; the links to it may be absolute and lead out of the root.
    let loader = libraries.iter().find_map(|folder| {
        std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("ld-") && name.contains(".so") && !path.is_symlink()
        })
    })?;
    let path = std::env::join_paths(&libraries).ok()?;
    let words = vec![loader.into(), "--library-path".into(), path, program.clone().into()];
    program.exists().then_some(words)
}
