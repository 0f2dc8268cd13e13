//! The supervisor: a small process that keeps one program running where systemd does not.
//!
//! ```text
//!   adit up ──job──► supervisor ──answers──► program (adit connect ...)
//!           ◄─reply─     │      ◄──output───
//!                        └─► lock file, record, log file
//! ```
//!
//! The connection on which the program gets its answers stays open. When it closes, because the supervisor was killed, the program
//! ends in an orderly way, so no program runs without its supervisor.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use adit_linux::privileges::protect_memory;
use nix::sys::signal::{self, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin};

use super::backoff::{Backoff, Next};
use super::child::{ANSWERS_LIMIT, SUPERVISED, read_line};
use super::{Manager, Phase, State};
use crate::clock::unix_time;
use crate::fault::{Fault, file_fault};
use crate::lock::{self, Taken};
use crate::log_file::LogFile;
use crate::paths::{make_folder, write_whole};
use crate::prompts::Answers;
use crate::signals::{Signal, Signals};

/// The program name of the supervisor.
const NAME: &str = "adit-supervisor";

/// The maximum length of a job and of a record in bytes.
const JOB_LIMIT: usize = 2 * ANSWERS_LIMIT;

/// The size of the buffer for the program's output in bytes.
const OUTPUT: usize = 8192;

/// How long a program may take to end before it is killed. Its helper then undoes its changes to the host.
const END_LIMIT: Duration = Duration::from_secs(30);

/// The files of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Files {
    /// The file that the supervisor locks.
    pub lock: PathBuf,
    /// Its [`Record`].
    pub record: PathBuf,
    /// The program's log.
    pub log: PathBuf,
}

/// The program to keep running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub files: Files,
    pub answers: Answers,
}

/// The supervisor's answer to the process that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    /// It keeps the program running.
    Started,
    /// Another supervisor does.
    Held,
    /// It cannot.
    Failed(Fault),
}

/// The state that a supervisor writes to a file whenever it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    phase: Phase,
    #[serde(default)]
    pid: Option<u32>,
    #[serde(default)]
    restarts: u32,
    #[serde(default)]
    next: Option<u64>,
    #[serde(default)]
    code: Option<i32>,
    #[serde(default)]
    message: Option<String>,
}

/// Returns the state of a program.
pub(super) fn state(files: &Files) -> State {
    let record = std::fs::read(&files.record).unwrap_or_default();
    let record: Record = serde_json::from_slice(&record).unwrap_or_default();
    let Some(supervisor) = lock::holder(&files.lock) else {
        let phase = match record.phase {
            Phase::Failed => Phase::Failed,
            _ => Phase::Stopped,
        };
        let message = match record.phase {
            Phase::Running | Phase::Waiting => Some("its supervisor was killed".into()),
            _ => record.message,
        };
        return State { phase, code: record.code, message, ..State::default() };
    };
    State {
        manager: Some(Manager::Supervisor(supervisor)),
        // It holds the lock, and may not have written its record yet.
        phase: if record.phase == Phase::Waiting { Phase::Waiting } else { Phase::Running },
        pid: record.pid,
        restarts: record.restarts,
        next: record.next,
        code: record.code,
        message: record.message,
        at_boot: false,
    }
}

/// Starts a supervisor in the background.
///
/// # Errors
/// It cannot be started, or cannot open its files.
pub(super) fn start(job: &Job) -> Result<Reply, Fault> {
    let fault = |e: &dyn std::fmt::Display| Fault::environment(format!("the supervisor: {e}"));
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).current_dir("/").env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().map_err(|e| fault(&e))?;
    let mut line = serde_json::to_vec(job).map_err(|e| fault(&e))?;
    line.push(b'\n');
    let reply = match (process.stdin.take(), process.stdout.take()) {
        (Some(mut input), Some(mut output)) => {
            input.write_all(&line).and_then(|()| read_line(&mut output, JOB_LIMIT))
        }
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    };
    let reply = serde_json::from_slice(&reply.map_err(|e| fault(&e))?).map_err(|e| fault(&e))?;
    match reply {
        Reply::Failed(fault) => Err(fault),
        reply => Ok(reply),
    }
}

/// Runs the supervisor if this process was started as one.
pub fn main(arguments: &[OsString]) -> Option<ExitCode> {
    if arguments.first().map(Path::new)? != Path::new(NAME) {
        return None;
    }
    let done = read_line(&mut io::stdin().lock(), JOB_LIMIT)
        .and_then(|line| serde_json::from_slice(&line).map_err(io::Error::other))
        .is_ok_and(|job| supervise(job).is_ok());
    Some(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn supervise(job: Job) -> Result<(), Fault> {
    let prepared = prepare(&job.files);
    let (reply, ready) = match prepared {
        Ok(Some(ready)) => (Reply::Started, Ok(Some(ready))),
        Ok(None) => (Reply::Held, Ok(None)),
        Err(fault) => (Reply::Failed(fault.clone()), Err(fault)),
    };
    let mut line = serde_json::to_vec(&reply).unwrap_or_default();
    line.push(b'\n');
    // The process that started this one may be gone.
    let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
    let Some((lock, log)) = ready? else { return Ok(()) };
    // The job may contain passwords.
    let _ = protect_memory();
    let supervisor = Supervisor {
        job,
        log,
        record: Record { phase: Phase::Running, ..Record::default() },
        backoff: Backoff::default(),
    };
    let ended = crate::async_runtime()?.block_on(supervisor.run());
    drop(lock);
    ended
}

/// Leaves the terminal and opens the files. Returns `None` if another supervisor has the lock.
fn prepare(files: &Files) -> Result<Option<(lock::LockFile, LogFile)>, Fault> {
    // This fails only for the leader of a session, which has none to leave.
    let _ = nix::unistd::setsid();
    for path in [&files.lock, &files.log] {
        path.parent().map_or(Ok(()), |folder| make_folder(folder, 0o755))?;
    }
    let taken = lock::take(&files.lock, std::process::id());
    let taken = taken.map_err(|error| file_fault("cannot lock", &files.lock, &error))?;
    let Taken::Ours(lock) = taken else { return Ok(None) };
    // The record of a former supervisor is out of date.
    let _ = std::fs::remove_file(&files.record);
    let log = LogFile::open(&files.log);
    let log = log.map_err(|error| file_fault("cannot open", &files.log, &error))?;
    Ok(Some((lock, log)))
}

struct Supervisor {
    job: Job,
    log: LogFile,
    record: Record,
    backoff: Backoff,
}

/// The end of a program.
struct Ended {
    code: Option<i32>,
    /// Whether the supervisor was asked to stop it.
    stopped: bool,
}

impl Supervisor {
    async fn run(mut self) -> Result<(), Fault> {
        let mut signals = Signals::new()?;
        let fault = |e: io::Error| Fault::environment(format!("the supervisor: {e}"));
        let (output, writer) = output().map_err(fault)?;
        loop {
            let started = Instant::now();
            self.log.forget_last();
            let ended = match self.start(&writer).await {
                Ok((child, connection)) => {
                    self.set(Record {
                        phase: Phase::Running,
                        pid: child.id(),
                        restarts: self.record.restarts,
                        ..Record::default()
                    });
                    let ended = self.tend(child, &output, &mut signals).await;
                    drop(connection);
                    ended
                }
                Err(error) => {
                    self.log.write(format!("adit: cannot be started: {error}\n").as_bytes());
                    Ended { code: None, stopped: false }
                }
            };
            let next = self.backoff.after(ended.code, started.elapsed());
            if ended.stopped || next == Next::Finished {
                self.log.note("stopped");
                let _ = std::fs::remove_file(&self.job.files.record);
                return Ok(());
            }
            let how = match ended.code {
                Some(code) => format!("exit code {code}"),
                None => "killed".to_owned(),
            };
            let line = self.log.last_line();
            let message = Some(line.strip_prefix("adit: ").unwrap_or(line).to_owned());
            let failed = Record { code: ended.code, message, ..self.record.clone() };
            let Next::Restart(delay) = next else {
                self.log.note(&format!("failed ({how}): not restarted: correct the configuration"));
                self.set(Record { phase: Phase::Failed, pid: None, ..failed });
                return Ok(());
            };
            self.log.note(&format!("failed ({how}): restarted in {} s", delay.as_secs()));
            self.set(Record {
                phase: Phase::Waiting,
                pid: None,
                restarts: failed.restarts.saturating_add(1),
                next: Some(unix_time().0.saturating_add(delay.as_secs())),
                ..failed
            });
            if !wait(delay, &mut signals).await {
                self.log.note("stopped");
                let _ = std::fs::remove_file(&self.job.files.record);
                return Ok(());
            }
        }
    }

    /// Starts the program and gives it the answers.
    async fn start(&self, output: &OwnedFd) -> io::Result<(Child, ChildStdin)> {
        // After an upgrade, this is the new program.
        let program = Some(&self.job.program).filter(|path| path.exists());
        let program = program.map_or(Path::new("/proc/self/exe"), PathBuf::as_path);
        let mut child = tokio::process::Command::new(program)
            .arg0("adit")
            .args(&self.job.arguments)
            .env(SUPERVISED, "1")
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()?;
        let mut line = serde_json::to_vec(&self.job.answers).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut connection =
            child.stdin.take().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        // A program that ends at once does not read them.
        let _ = connection.write_all(&line).await;
        Ok((child, connection))
    }

    /// Copies the program's output to the log, and passes signals on, until the program ends.
    async fn tend(
        &mut self,
        mut child: Child,
        output: &pipe::Receiver,
        signals: &mut Signals,
    ) -> Ended {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let pass = |signal: signal::Signal| {
            // It may have ended just now.
            let _ = pid.map(|pid| kill(pid, signal));
        };
        let (mut stopped, mut limit) = (false, None);
        let code = loop {
            let mut bytes = [0; OUTPUT];
            tokio::select! {
                status = child.wait() => break status.ok().and_then(|status| status.code()),
                signal = signals.next() => match signal {
                    Signal::Terminate | Signal::Interrupt => {
                        stopped = true;
                        limit = Some(tokio::time::Instant::now() + END_LIMIT);
                        pass(signal::SIGTERM);
                    }
                    Signal::Hangup => pass(signal::SIGHUP),
                    Signal::User1 => pass(signal::SIGUSR1),
                    Signal::User2 => pass(signal::SIGUSR2),
                },
                () = at(limit) => {
                    limit = None;
                    pass(signal::SIGKILL);
                }
                ready = output.readable() => {
                    if ready.is_ok() && let Ok(count) = output.try_read(&mut bytes) {
                        self.log.write(bytes.get(..count).unwrap_or_default());
                    }
                }
            }
        };
        let mut bytes = [0; OUTPUT];
        while let Ok(count @ 1..) = output.try_read(&mut bytes) {
            self.log.write(bytes.get(..count).unwrap_or_default());
        }
        Ended { code, stopped }
    }

    fn set(&mut self, record: Record) {
        self.record = record;
        let text = serde_json::to_vec(&self.record).unwrap_or_default();
        // Without it, `adit list` shows less.
        let _ = write_whole(&self.job.files.record, 0o600, &text);
    }
}

/// Returns a pipe for the output of all programs that this process starts one after another.
fn output() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    Ok((pipe::Receiver::from_owned_fd(read)?, write))
}

/// Waits until a time, or forever.
async fn at(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits for the delay before a restart. Returns false if the supervisor is asked to stop.
async fn wait(delay: Duration, signals: &mut Signals) -> bool {
    let end = tokio::time::Instant::now() + delay;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(end) => return true,
            signal = signals.next() => {
                if matches!(signal, Signal::Terminate | Signal::Interrupt) {
                    return false;
                }
            }
        }
    }
}
