//! The helper's part of a command, as defined by the command's app.

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

/// An answer with its descriptors.
pub type AnswerWithFds = (Answer, Vec<OwnedFd>);

/// A kind of helper, with the name of its command and a parser for its arguments.
///
/// The `adit` binary passes the kinds of all apps to [`super::main`]. A command names its own kind in [`super::start`].
#[derive(Copy, Clone)]
pub struct DutyKind {
    /// The command's name, in the first request.
    pub name: &'static str,
    /// Parses the command line that the network process passed to [`super::start`].
    pub read: fn(Value) -> serde_json::Result<Box<dyn Duty>>,
}

impl fmt::Debug for DutyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The helper's part of one command.
pub trait Duty {
    /// Returns the profile of system calls that the helper may use.
    fn profile(&self) -> Profile {
        Profile::DaemonWithPrograms
    }

    /// Reads the configuration as root, and returns the requests that it permits. It is called again at each reload.
    /// `piped` contains the config files that cannot be read twice, and `network_process` is the id of the network
    /// process.
    ///
    /// # Errors
    /// Fails if the configuration is wrong.
    fn policy(&self, piped: &[(PathBuf, Vec<u8>)], network_process: u32) -> Result<Policy, Fault>;

    /// Leaves this command's own changes to a process that continues with them, so that their end does not undo them.
    fn leave(&mut self) {}

    /// Carries out a request that only this command has. The policy has permitted it.
    fn carry_out(
        &mut self,
        request: Value,
        network_process: u32,
    ) -> Pin<Box<dyn Future<Output = Result<AnswerWithFds, Problem>> + '_>> {
        let _ = (request, network_process);
        Box::pin(async { Err(Problem::Refused("this command has no requests of its own".into())) })
    }
}
