//! The helper's part of a command, which its app declares.

use std::fmt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;

use adit_linux::privileges::Profile;
use serde_json::Value;

use super::policy::Policy;
use super::protocol::{Answer, Problem};
use crate::fault::Fault;

/// An answer with the descriptors that go with it.
pub type AnswerWithFds = (Answer, Vec<OwnedFd>);

/// A kind of helper: the name of a command, and how its arguments are read.
///
/// The `adit` binary hands the kinds of all apps to [`super::main`]; a command names its own in [`super::start`].
#[derive(Copy, Clone)]
pub struct DutyKind {
    /// The command's name, in the first request.
    pub name: &'static str,
    /// Reads the command line that the network process passed to [`super::start`].
    pub read: fn(Value) -> serde_json::Result<Box<dyn Duty>>,
}

impl fmt::Debug for DutyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The helper's part of one command.
pub trait Duty {
    /// Returns the profile of system calls that the helper keeps.
    fn profile(&self) -> Profile {
        Profile::DaemonWithPrograms
    }

    /// Reads the configuration, as root, and returns the requests that it permits. Called again at each reload.
    /// `piped` has the content of config files that cannot be read twice; `network_process` is a process id.
    ///
    /// # Errors
    /// The configuration is wrong.
    fn policy(&self, piped: &[(PathBuf, Vec<u8>)], network_process: u32) -> Result<Policy, Fault>;

    /// Carries out a request of this command alone. The policy has permitted it.
    fn carry_out(
        &mut self,
        request: Value,
        network_process: u32,
    ) -> Pin<Box<dyn Future<Output = Result<AnswerWithFds, Problem>> + '_>> {
        let _ = (request, network_process);
        Box::pin(async { Err(Problem::Refused("this command has no requests of its own".into())) })
    }
}
