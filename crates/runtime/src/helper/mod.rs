//! The privileged helper: a small process that performs privileged operations after the network process has dropped its privileges.
//!
//! ```text
//!   network process (unprivileged) ──requests, plain data──► helper (uid 0, few capabilities)
//!                                  ◄─answers, descriptors──  checks each against the configuration
//! ```
//!
//! The helper is another instance of this program, which is started before the network process reads a packet or starts
//! a thread. It reads the same configuration itself and carries out only requests that the configuration needs. The
//! command's app defines these ([`Duty`]), and every request is checked against the resulting [`Policy`]. When the
//! network process ends for any reason, the helper undoes its changes and ends too.

mod client;
mod duty;
pub mod files;
mod policy;
mod protocol;
mod root_files;
mod serve;
pub mod sockets;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use adit_linux::channel::Channel;
use serde::Serialize;

use crate::fault::Fault;
use crate::programs;
pub use client::{Helper, Watcher};
pub use duty::{AnswerWithFds, Duty, DutyKind};
pub use policy::{PlanCheck, Policy, RequestCheck, Sockets, is_host};
pub use protocol::{
    Answer, DeviceRequest, OpenedDevice, Problem, Request, SocketRequest, WriteMode,
};

/// The program name of the helper.
pub const NAME: &str = "adit-helper";

/// The number of tasks (processes and threads) that the helper adds to a service's limits. They are the helper itself, a thread for files
/// that are slow to open, and one program at a time.
pub const TASKS: u16 = 3;

/// The directories in which the helper looks for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment variable with the address of the system's D-Bus, if it is not the default.
const BUS: &str = "DBUS_SYSTEM_BUS_ADDRESS";

static HELPER: OnceLock<Helper> = OnceLock::new();

/// Returns this process's helper, if it has one.
pub fn current() -> Option<&'static Helper> {
    HELPER.get()
}

/// Shuts the helper down when it is dropped.
#[derive(Debug)]
pub struct Running(());

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(helper) = current() {
            helper.finish();
        }
    }
}

/// Starts the helper for a command line, with the content of config files that cannot be read twice. Call it before
/// any thread is started, while the process is still root.
///
/// Returns `None` if the process is not root, or if no helper can be started here. The reason is logged, and the
/// network process keeps the privileges that it needs and does the work itself.
///
/// # Errors
/// Fails if the helper cannot read the configuration.
pub fn start(
    kind: &DutyKind,
    arguments: &impl Serialize,
    piped: &[(PathBuf, Vec<u8>)],
) -> Result<Option<Running>, Fault> {
    if !nix::unistd::geteuid().is_root() || current().is_some() {
        return Ok(None);
    }
    let channel = match spawn() {
        Ok(channel) => channel,
        Err(e) => {
            tracing::warn!(
                "helper: start failed: {e}: the network process keeps the privileges for routes and addresses, and cannot read files again after it drops root"
            );
            return Ok(None);
        }
    };
    let helper = HELPER.get_or_init(|| Helper::new(channel));
    let contents = piped.iter().map(|(_, bytes)| root_files::in_memory(bytes));
    let contents: Vec<OwnedFd> = contents
        .collect::<io::Result<_>>()
        .map_err(|e| Fault::environment(format!("helper: configuration not passed: {e}")))?;
    let descriptors: Vec<_> = contents.iter().map(AsFd::as_fd).collect();
    let piped = piped.iter().map(|(path, _)| path.clone()).collect();
    let arguments = serde_json::to_value(arguments)
        .map_err(|e| Fault::ours(format!("helper: command line not passed: {e}")))?;
    let begin = Request::Begin { duty: kind.name.into(), arguments, piped };
    let (_, mut opened) = helper.call(begin, &descriptors)?;
    // If the configuration names programs, the helper has started a runner for them.
    if let Some(calls) = opened.pop() {
        programs::install(calls)?;
    }
    Ok(Some(Running(())))
}

fn spawn() -> io::Result<Channel> {
    let (ours, theirs) = Channel::pair(protocol::MESSAGE_LIMIT)?;
    // Do not wait for the child, because it outlives this process, or its end is noticed on the channel.
    Command::new("/proc/self/exe")
        .arg0(NAME)
        .env_clear()
        .env("PATH", PATH)
        // The programs that manage DNS need it.
        .envs(std::env::var_os(BUS).map(|bus| (BUS, bus)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(ours)
}

/// Runs the helper if this process was started as one. `kinds` are the helpers of all commands.
pub fn main(arguments: &[OsString], kinds: &[DutyKind]) -> Option<ExitCode> {
    let name = arguments.first().map(Path::new)?;
    (name == Path::new(NAME)).then(|| serve::main(kinds))
}

/// Handles a message that a compromised network process might send, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(asked) = protocol::parse(bytes) {
        let policy = Policy::for_fuzzing();
        let _ = policy.check(&asked.request);
        let again = serde_json::to_vec(&asked).unwrap_or_default();
        assert_eq!(protocol::parse(&again).as_ref(), Ok(&asked));
    }
}
