//! Runs the programs that the configuration names.
//!
//! ```text
//!   network process ──call: program, arguments, variables──► runner (user, root directory of the programs)
//!                   ◄──exit status, files, output lines────    │ fork, exec
//!                                                              ▼
//!   helper, or the network process without one ──Setup──►   up to MAX_RUNNING programs
//! ```
//!
//! The runner is another instance of this program. It is started before any privilege is dropped, because the programs
//! may need all of root's, and only if the configuration names programs. It runs exactly those programs, and passes them
//! only variables that the [`Setup`] permits. The trusted side sends the setup: the helper process, which reads the
//! configuration as root, or, without root, the network process. If the setup names a user, the runner becomes that user
//! for good when the network process says so ([`drop_privileges`]).
//!
//! No shell is involved. A program gets no descriptor but /dev/null and a pipe for its output, whose lines are logged.

mod child;
mod client;
mod output;
mod protocol;
mod runner;
mod scratch;
mod setup;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use client::{Finished, Running, Scratch, ScratchWriter, drop_privileges, finish, run, start};
pub(crate) use client::{install, no_runner};
pub(crate) use runner::Control;
pub use runner::main;
pub use setup::{Setup, Variables};

/// The program name of the runner.
pub const NAME: &str = "adit-runner";

/// The maximum number of programs that run at a time.
pub const MAX_RUNNING: usize = 100;

/// The maximum number of calls that wait for a running program to end. Further calls fail.
pub const MAX_QUEUED: usize = 1000;

/// The maximum number of bytes that are read from a scratch file.
pub const MAX_FILE: usize = 64 * 1024;

/// The maximum number of scratch files of one call.
pub const MAX_FILES: usize = 8;

/// The number of tasks (processes and threads) that programs add to a service's limits: the runner, and a program that
/// starts another. More programs run at a time if the limits allow it.
pub const TASKS: u16 = 3;

/// A program that the configuration names, with the arguments from there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Program {
    /// The path. A relative one starts at the working directory; there is no search path.
    pub path: String,
    /// The arguments before those of a call.
    pub args: Vec<String>,
}

/// One execution of a program.
#[derive(Debug)]
pub struct Call {
    /// The program.
    pub program: Program,
    /// The arguments after those of the configuration.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// The files that are created for the program, and removed when the last [`Scratch`] of the call is dropped.
    pub files: Vec<ScratchFile>,
    /// The time after which the program is killed; `None` if it may take as long as it likes.
    pub timeout: Option<Duration>,
}

/// A temporary file for a program. Only the program's user can read it.
#[derive(Debug)]
pub struct ScratchFile {
    /// Where the program finds the file's path.
    pub place: Place,
    /// The file's initial content.
    pub content: Option<Zeroizing<Vec<u8>>>,
    /// Whether the file is in [`Setup::export`] instead of [`Setup::temporary`].
    pub exported: bool,
}

impl ScratchFile {
    /// Creates a file.
    pub fn new(place: Place, content: Option<Zeroizing<Vec<u8>>>) -> Self {
        Self { place, content, exported: false }
    }

    /// Creates a file whose path is an argument.
    pub fn argument(content: Option<Zeroizing<Vec<u8>>>) -> Self {
        Self::new(Place::Argument, content)
    }

    /// Creates a file whose path is in a variable.
    pub fn variable(name: &'static str, content: Option<Zeroizing<Vec<u8>>>) -> Self {
        Self::new(Place::Variable(name), content)
    }

    /// Puts the file into [`Setup::export`].
    #[must_use]
    pub fn exported(self) -> Self {
        Self { exported: true, ..self }
    }
}

/// Where a program finds the path of a [`ScratchFile`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// After the last argument.
    Argument,
    /// In this variable.
    Variable(&'static str),
    /// After the last argument, and in this variable.
    ArgumentAndVariable(&'static str),
}

/// The end of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// The program exited with this code.
    Code(u8),
    /// A signal killed the program.
    Signal(i32),
    /// The program was killed because its time was over.
    TimedOut,
    /// The program could not be started, for this reason.
    NotStarted(String),
}

impl ExitStatus {
    /// Returns whether the program exited with code 0.
    pub fn is_success(&self) -> bool {
        *self == Self::Code(0)
    }
}

/// Describes the end in openvpn's words, as far as it has any.
impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "external program exited with error status: {code}"),
            Self::Signal(signal) => {
                write!(f, "external program did not exit normally: signal {signal}")
            }
            Self::TimedOut => f.write_str("external program killed: its time was over"),
            Self::NotStarted(why) => write!(f, "could not execute external program: {why}"),
        }
    }
}

/// Handles messages that a compromised network process might send, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    protocol::fuzz(bytes);
}
