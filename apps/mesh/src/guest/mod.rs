//! A node as a guest in a tinc net (`[tinc]` in mesh.toml).
//!
//! ```text
//!   node (no privileges) ──networks to announce──► guest (root) ──starts, asks every 2 s──► tincd
//!                        ◄─subnets of the net────               ◄─subnets────────────────
//!
//!   mesh's device ◄──── kernel, with the forwarding rules of the node ────► tinc's device
//! ```
//!
//! The guest is another instance of this program, and `tincd` a third one: the daemon of `adit tinc`, with a helper and privileges of its own. If
//! a daemon for the net runs already, as a service for example, the guest uses that one. The node's process may not start programs, so it cannot
//! do any of this itself.

pub(crate) mod exchange;
mod process;
mod protocol;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use adit_linux::channel::{Channel, Received};
use adit_linux::process::{open_process, wait_for_end};
use adit_runtime::driver::watch;
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use ipnet::IpNet;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) use self::protocol::GuestState;
use self::protocol::{Begin, MESSAGE_LIMIT, ToGuest};
use crate::settings::TincSettings;

/// The program name of the guest.
const NAME: &str = "adit-tinc-guest";

/// How long an orderly end waits for the guest, which waits for its daemon.
const FAREWELL: Duration = Duration::from_secs(7);

/// Runs the guest if this process was started as one.
pub fn main(arguments: &[OsString]) -> Option<ExitCode> {
    let name = arguments.first().map(Path::new)?;
    (name == Path::new(NAME)).then(|| match process::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            let _ = writeln!(io::stderr(), "{NAME}: {reason}");
            ExitCode::FAILURE
        }
    })
}

/// The process of a guest, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct GuestProcess {
    channel: Channel,
    process: OwnedFd,
}

impl GuestProcess {
    /// Starts the process. Call it as root, before any thread is started.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn start(settings: &TincSettings, verbose: u8) -> Result<Self, Fault> {
        let failed =
            |error: io::Error| Fault::environment(format!("tinc: the guest cannot start: {error}"));
        let (channel, theirs) = Channel::pair(MESSAGE_LIMIT).map_err(failed)?;
        let child = Command::new("/proc/self/exe")
            .arg0(NAME)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let process = open_process(child.id()).map_err(failed)?;
        let begin = Begin {
            net: settings.net.clone(),
            directory: settings.directory.clone(),
            // The daemon's own name for it, because its pid file is the standard one.
            control: Paths::new(None)?.run.join(format!("tinc-{}.sock", settings.net)),
            debug: verbose,
        };
        send(&channel, &ToGuest::Begin(begin)).map_err(failed)?;
        Ok(Self { channel, process })
    }
}

fn send(channel: &Channel, message: &ToGuest) -> io::Result<()> {
    channel.send(&serde_json::to_vec(message).map_err(io::Error::other)?, &[])
}

/// The node's end of the guest.
#[derive(Debug)]
pub(crate) struct Guest {
    process: GuestProcess,
    watched: AsyncFd<OwnedFd>,
    /// The networks that the guest was asked to announce.
    asked: Option<Vec<IpNet>>,
    has_ended: bool,
}

impl Guest {
    /// Takes over the process. Call it inside a runtime.
    ///
    /// # Errors
    /// The channel cannot be watched.
    pub(crate) fn new(process: GuestProcess) -> Result<Self, Fault> {
        let watched = process.channel.as_fd().try_clone_to_owned();
        let watched = watched.and_then(|fd| watch(fd, Interest::READABLE));
        let watched =
            watched.map_err(|error| Fault::environment(format!("tinc: the guest: {error}")))?;
        Ok(Self { process, watched, asked: None, has_ended: false })
    }

    /// Waits for the next state. Cancel-safe.
    pub(crate) async fn next(&mut self) -> GuestState {
        loop {
            if self.has_ended {
                return std::future::pending().await;
            }
            match self.process.channel.receive(MESSAGE_LIMIT) {
                Ok(Received::Message(bytes, _)) => match serde_json::from_slice(&bytes) {
                    Ok(state) => return state,
                    Err(error) => tracing::error!("tinc: the guest: invalid message: {error}"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Ok(mut ready) = self.watched.readable().await {
                        ready.clear_ready();
                    }
                }
                Ok(Received::End) | Err(_) => {
                    self.has_ended = true;
                    let reason = "the process of the guest has ended: restart the node";
                    return GuestState::Failed(reason.into());
                }
            }
        }
    }

    /// Announces exactly these networks in the net.
    pub(crate) fn announce(&mut self, networks: &[IpNet]) {
        if self.asked.as_deref() == Some(networks) {
            return;
        }
        let sent = send(&self.process.channel, &ToGuest::Announce(networks.to_vec()));
        // Otherwise the next event tries again.
        self.asked = sent.is_ok().then(|| networks.to_vec());
    }

    /// Withdraws everything from the net, and waits for the end of the guest.
    pub(crate) fn end(self) {
        let GuestProcess { channel, process } = self.process;
        drop((channel, self.watched));
        if !wait_for_end(&process, FAREWELL).unwrap_or(false) {
            tracing::warn!("tinc: the guest takes too long to end");
        }
    }
}
