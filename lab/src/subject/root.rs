//! Programs of the private roots that `scripts/lab-deps.sh` fetches.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use adit_testbed::net::Namespace;
use adit_testbed::peer::in_root;

use super::revision;
use super::toolchain::first_line;

/// A program of a private root.
#[derive(Debug, Clone)]
pub(super) struct RootProgram {
    /// The root's dynamic linker, with its options and the program.
    words: Vec<OsString>,
}

impl RootProgram {
    /// Finds a program, such as `usr/bin/nebula`, in the root of this name.
    ///
    /// # Errors
    /// It has not been fetched.
    pub(super) fn find(root: &str, program: &str) -> Result<Self, String> {
        let roots = revision::workspace().map_err(|failure| failure.to_string())?;
        let root = roots.join("target/roots").join(root);
        let words = in_root(&root, program).ok_or_else(|| {
            format!("{}/{program}: missing: scripts/lab-deps.sh fetches it", root.display())
        })?;
        Ok(Self { words })
    }

    /// Returns the first line of the program's version output.
    ///
    /// # Errors
    /// It does not run.
    pub(super) fn version(&self, argument: &str) -> Result<String, String> {
        let (linker, words) = self.words();
        let words: Vec<&str> =
            words.iter().filter_map(|word| word.to_str()).chain([argument]).collect();
        first_line(Path::new(linker), &words, "scripts/lab-deps.sh fetches another one")
    }

    /// Returns the command that runs it on this machine.
    pub(super) fn here(&self) -> Command {
        let (linker, words) = self.words();
        let mut command = Command::new(linker);
        command.args(words);
        command
    }

    /// Returns the command that runs it on a host of a testbed.
    pub(super) fn on(&self, host: &Namespace) -> Command {
        let (linker, words) = self.words();
        let mut command = host.command(&linker.to_string_lossy());
        command.args(words);
        command
    }

    fn words(&self) -> (&OsStr, &[OsString]) {
        // There is always a linker, because `find` has put it first.
        self.words
            .split_first()
            .map_or((OsStr::new("ld.so"), &[]), |(linker, words)| (linker, words))
    }
}
