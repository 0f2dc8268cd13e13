//! Starts one program and waits for its end.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Gid, Pid, Uid, geteuid};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::protocol::{Event, PlainCall, PlainFile};
use super::scratch::TemporaryFile;
use super::{ExitStatus, Setup, output};

/// The time for a program's last lines to arrive. A program that it left running may keep the pipe open.
const LAST_LINES: Duration = Duration::from_millis(20);

/// The user and group of a program, if they are not those of the runner.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) user: Option<Uid>,
    pub(super) group: Option<Gid>,
}

impl Identity {
    pub(super) fn user(self) -> u32 {
        self.user.unwrap_or_else(geteuid).as_raw()
    }

    pub(super) fn group(self) -> Option<u32> {
        self.group.map(Gid::as_raw)
    }
}

/// A running program.
pub(super) struct Started {
    child: Child,
    /// The process group, of which the program is the leader.
    group: Option<Pid>,
    output: JoinHandle<()>,
    limit: Option<Duration>,
}

/// The reason why a program could not be started.
pub(super) enum StartError {
    /// The limits of the system allow no further process now.
    TooMany,
    /// Another reason.
    Failed(String),
}

/// Creates the files of a call.
///
/// # Errors
/// The directory cannot be written.
pub(super) fn create_files(
    call: &PlainCall,
    setup: &Setup,
    identity: Option<Identity>,
) -> Result<Vec<TemporaryFile>, String> {
    let create = |file: &PlainFile| {
        let (directive, folder) = match &setup.export {
            Some(folder) if file.exported => ("tls-export-cert", folder),
            _ => ("tmp-dir", &setup.temporary),
        };
        TemporaryFile::create(folder, &file.content.0, identity)
            .map_err(|e| format!("cannot create a file in {directive} {}: {e}", folder.display()))
    };
    call.files.iter().map(create).collect()
}

/// Starts a program. It gets /dev/null (`null`) as its input, a pipe for its output, and exactly the variables of the call.
///
/// # Errors
/// See [`StartError`].
pub(super) fn start(
    call: &PlainCall,
    files: &[TemporaryFile],
    null: Option<&File>,
    log: &mpsc::Sender<Event>,
    identity: Option<Identity>,
) -> Result<Started, StartError> {
    let failed = |e: io::Error| match e.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => StartError::TooMany,
        _ => StartError::Failed(format!("{}: {e}", call.program.path)),
    };
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let mut command = Command::new(executable(&call.program.path));
    command.arg0(&call.program.path).args(&call.program.args).args(&call.args);
    command.env_clear().envs(call.env.iter().map(|(name, value)| (name, value)));
    for (file, place) in files.iter().zip(&call.files) {
        if let Some(variable) = &place.variable {
            command.env(variable, file.path());
        }
        if place.argument {
            command.arg(file.path());
        }
    }
    let input = null.map(File::try_clone).transpose().map_err(failed)?;
    command
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .stdout(writer.try_clone().map_err(failed)?)
        .stderr(writer);
    if let Some(identity) = identity {
        // With a user, even if it is the same one, the program also loses the supplementary groups.
        command.uid(identity.user());
        if let Some(group) = identity.group() {
            command.gid(group);
        }
    }
    // A group of its own, so that the programs that it starts are killed with it.
    command.process_group(0);
    // The spawned command is dropped at once, and with it this process's end of the pipe, so that the pipe has an end.
    let child = tokio::process::Command::from(command).spawn().map_err(failed)?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let reader = Receiver::from_owned_fd(reader).map_err(failed)?;
    let name = Path::new(&call.program.path).file_name().unwrap_or_default().to_string_lossy();
    let output = tokio::spawn(output::forward(name.into_owned(), reader, log.clone()));
    Ok(Started { child, group, output, limit: call.timeout })
}

/// Returns the path to execute. The system would look up a name without a slash in a search path.
fn executable(path: &str) -> OsString {
    if path.contains('/') { path.into() } else { format!("./{path}").into() }
}

impl Started {
    /// Returns the process group.
    pub(super) fn group(&self) -> Option<Pid> {
        self.group
    }

    /// Waits for the program's end. It is killed when its time is over, or when `stop` says so.
    pub(super) async fn wait(mut self, stop: oneshot::Receiver<()>) -> ExitStatus {
        let over = async {
            match self.limit {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let status = tokio::select! {
            status = self.child.wait() => exit_status(status),
            () = over => {
                self.kill().await;
                ExitStatus::TimedOut
            }
            Ok(()) = stop => {
                self.kill().await;
                ExitStatus::Signal(Signal::SIGKILL as i32)
            }
        };
        let _ = timeout(LAST_LINES, &mut self.output).await;
        status
    }

    async fn kill(&mut self) {
        if let Some(group) = self.group {
            kill(group);
        }
        // The process is gone, or it is in the kernel and goes then.
        let _ = self.child.wait().await;
    }
}

/// Kills a program and the programs that it has started.
pub(super) fn kill(group: Pid) {
    // It may have ended by itself.
    let _ = killpg(group, Signal::SIGKILL);
}

fn exit_status(waited: io::Result<std::process::ExitStatus>) -> ExitStatus {
    match waited {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ExitStatus::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) => ExitStatus::Signal(signal),
            (None, None) => ExitStatus::NotStarted("it ended in an unknown way".into()),
        },
        Err(e) => ExitStatus::NotStarted(format!("its end cannot be waited for: {e}")),
    }
}
