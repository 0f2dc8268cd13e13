//! Programs in the background, which outlive the terminal: systemd keeps them running where it is the init system, and a supervisor of our
//! own elsewhere.
//!
//! ```text
//!   adit up ─┬─ systemctl start adit-connect@NAME            systemd, if it knows the unit and there is no --dir
//!            └─ supervisor, one for each program ── adit connect
//! ```
//!
//! Both restart a program that has failed, unless its configuration is wrong (exit code 2). Whether a tunnel is up, both ways, is
//! asked at the program's control socket.

mod backoff;
mod child;
mod supervisor;
mod systemd;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, pidfd_send_signal};
use serde::{Deserialize, Serialize};

pub(crate) use child::SupervisorEnd;
pub use child::adopt;
pub use supervisor::main;
use supervisor::{Files, Job, Reply};

use crate::control::{self, Request, Response, StatusReport};
use crate::fault::{Fault, file_fault};
use crate::lock;
use crate::log_file;
use crate::paths::Paths;
use crate::prompts::Answers;

/// How often the state of a program is looked at while waiting for it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a supervisor may take to end. It kills its program after thirty seconds.
const END_PATIENCE: Duration = Duration::from_secs(40);

/// The number of log lines that are searched for the reason of a failure.
const SEARCHED: usize = 20;

/// The program that keeps another one running.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manager {
    /// The init system.
    Systemd,
    /// A supervisor of our own, with its process id.
    Supervisor(u32),
}

/// The state of a program.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It does not run.
    #[default]
    Stopped,
    /// It runs in the background.
    Running,
    /// It runs, but not in the background.
    Foreground,
    /// It has failed, and will be started again.
    Waiting,
    /// It has failed, and will not be started again.
    Failed,
}

/// A program's state, as its manager knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The program that keeps it running.
    pub manager: Option<Manager>,
    /// The state.
    pub phase: Phase,
    /// Its process id.
    pub pid: Option<u32>,
    /// The number of restarts after failures.
    pub restarts: u32,
    /// The time of the next restart in seconds since 1970.
    pub next: Option<u64>,
    /// The exit code of the last failure. `None` if a signal has ended the program.
    pub code: Option<i32>,
    /// The reason of the last failure.
    pub message: Option<String>,
    /// Whether it starts when the machine does.
    pub at_boot: bool,
}

/// A program that can run in the background.
#[derive(Clone, Debug)]
pub struct Service {
    unit: &'static str,
    instance: Option<String>,
    arguments: Vec<String>,
    socket: PathBuf,
    files: Files,
    /// Whether its files are where the unit expects them.
    has_unit: bool,
}

/// The reason why a program is not up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotUp {
    /// It has failed.
    Failed(State),
    /// It was stopped meanwhile.
    Stopped,
    /// It is not up yet, after the time that was allowed. It keeps trying.
    NotYet,
}

impl Service {
    /// Describes a program: its unit (a template if there is an `instance`), the arguments of `adit`, and its control socket.
    pub fn new(
        paths: &Paths,
        unit: &'static str,
        instance: Option<&str>,
        arguments: Vec<String>,
        socket: PathBuf,
    ) -> Self {
        let name = match instance {
            Some(instance) => format!("{unit}-{instance}"),
            None => unit.to_owned(),
        };
        let name = name.trim_start_matches("adit-");
        let folder = paths.run.join("background");
        let files = Files {
            lock: folder.join(format!("{name}.lock")),
            record: folder.join(format!("{name}.json")),
            log: paths.log_folder().join(format!("{name}.log")),
        };
        Self {
            unit,
            instance: instance.map(str::to_owned),
            arguments,
            socket,
            files,
            has_unit: paths.dir.is_none(),
        }
    }

    /// Returns the name of the unit.
    pub fn unit(&self) -> String {
        match &self.instance {
            Some(instance) => format!("{}@{instance}.service", self.unit),
            None => format!("{}.service", self.unit),
        }
    }

    /// Returns whether systemd keeps it running, or would.
    pub fn uses_systemd(&self) -> bool {
        let supervised = lock::holder(&self.files.lock).is_some();
        !supervised && self.has_unit && systemd::runs() && systemd::knows(&self.unit())
    }

    /// Returns the report of the running program, whatever keeps it running.
    pub fn report(&self) -> Option<Box<StatusReport>> {
        match control::request(&self.socket, &Request::Status) {
            Ok(Response::Status(report)) => Some(report),
            _ => None,
        }
    }

    /// Returns its state.
    ///
    /// # Errors
    /// systemd cannot be asked.
    pub fn state(&self) -> Result<State, Fault> {
        let state = if self.uses_systemd() {
            systemd::state(&self.unit())?
        } else {
            supervisor::state(&self.files)
        };
        if !matches!(state.phase, Phase::Stopped | Phase::Failed) {
            return Ok(state);
        }
        Ok(match self.report() {
            Some(report) => State {
                phase: Phase::Foreground,
                pid: Some(report.pid),
                at_boot: state.at_boot,
                ..State::default()
            },
            None => state,
        })
    }

    /// Starts it. `answers` are those to the questions that it will ask; a unit of systemd cannot get any.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, answers: Answers) -> Result<(), Fault> {
        if self.uses_systemd() {
            return systemd::systemctl(&["start", &self.unit()]).map(drop);
        }
        let program = std::env::current_exe()
            .map_err(|error| Fault::environment(format!("cannot find this program: {error}")))?;
        let job =
            Job { program, arguments: self.arguments.clone(), files: self.files.clone(), answers };
        match supervisor::start(&job)? {
            // Another `adit up` was faster.
            Reply::Started | Reply::Held => Ok(()),
            Reply::Failed(fault) => Err(fault),
        }
    }

    /// Stops it, and waits for its end. Returns whether it was running, or waiting for a restart.
    ///
    /// # Errors
    /// It cannot be stopped.
    pub fn stop(&self) -> Result<bool, Fault> {
        let state = self.state()?;
        match state.manager {
            _ if state.phase == Phase::Foreground => self.stop_foreground().map(|()| true),
            Some(Manager::Systemd) => {
                systemd::systemctl(&["stop", &self.unit()])?;
                if state.phase == Phase::Failed {
                    systemd::systemctl(&["reset-failed", &self.unit()])?;
                }
                Ok(!matches!(state.phase, Phase::Stopped | Phase::Failed))
            }
            Some(Manager::Supervisor(pid)) => self.stop_supervisor(pid).map(|()| true),
            None => {
                let _ = std::fs::remove_file(&self.files.record);
                Ok(false)
            }
        }
    }

    fn stop_supervisor(&self, pid: u32) -> Result<(), Fault> {
        let holds = || lock::holder(&self.files.lock) == Some(pid);
        let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        // The descriptor belongs to this process even if its id is given to another one.
        if let Ok(process) = open(process)
            && holds()
        {
            pidfd_send_signal(process, Signal::TERM).map_err(|e| {
                Fault::environment(format!("supervisor {pid}: cannot be stopped: {e}"))
            })?;
        }
        wait_for(END_PATIENCE, || !holds()).then_some(()).ok_or_else(|| {
            Fault::environment(format!("supervisor {pid} does not end; end it with: kill -9 {pid}"))
        })
    }

    fn stop_foreground(&self) -> Result<(), Fault> {
        if let Response::Error { message } = control::request(&self.socket, &Request::Stop)? {
            return Err(Fault::environment(message));
        }
        let ended = wait_for(END_PATIENCE, || self.report().is_none());
        ended.then_some(()).ok_or_else(|| {
            Fault::environment(format!("{}: the process does not end", self.socket.display()))
        })
    }

    /// Waits until the program's report satisfies `is_up`.
    ///
    /// # Errors
    /// It is not up within `patience`.
    pub fn wait(
        &self,
        patience: Duration,
        is_up: impl Fn(&StatusReport) -> bool,
    ) -> Result<Box<StatusReport>, NotUp> {
        let started = Instant::now();
        loop {
            if let Some(report) = self.report()
                && is_up(&report)
            {
                return Ok(report);
            }
            match self.state() {
                Ok(state) if matches!(state.phase, Phase::Waiting | Phase::Failed) => {
                    return Err(NotUp::Failed(state));
                }
                Ok(State { phase: Phase::Stopped, .. }) => return Err(NotUp::Stopped),
                _ if started.elapsed() >= patience => return Err(NotUp::NotYet),
                _ => sleep(LOOK_EVERY),
            }
        }
    }

    /// Starts it at every boot from now on, or no longer.
    ///
    /// # Errors
    /// systemd does not run, does not know the unit, or the files are in a folder of their own. The fault names the remedy.
    pub fn set_at_boot(&self, on: bool) -> Result<(), Fault> {
        let unit = self.unit();
        let command = format!("adit {}", self.arguments.join(" "));
        if !self.has_unit {
            return Err(Fault::operator(format!(
                "--dir: {unit} is for /etc/adit only; let the machine run at its start: {command}"
            )));
        }
        if !systemd::runs() {
            return Err(Fault::operator(format!(
                "systemd does not run here, so nothing can be enabled for the start of the machine; let its own \
                 init system, or the entry point of the container, run: {command}"
            )));
        }
        if !systemd::knows(&unit) {
            let file = self.unit_file();
            return Err(Fault::operator(format!(
                "systemd does not know {file}: install adit's package, or copy packaging/{file} to \
                 /etc/systemd/system and run: systemctl daemon-reload"
            )));
        }
        systemd::systemctl(&["-q", if on { "enable" } else { "disable" }, &unit]).map(drop)
    }

    fn unit_file(&self) -> String {
        let at = if self.instance.is_some() { "@" } else { "" };
        format!("{}{at}.service", self.unit)
    }

    /// Returns a note if systemd runs, but does not know the unit, so that a supervisor is used.
    pub fn note(&self) -> Option<String> {
        let unknown = self.has_unit && systemd::runs() && !systemd::knows(&self.unit());
        unknown.then(|| {
            format!(
                "systemd does not know {}: adit's own supervisor keeps it running until the machine stops",
                self.unit_file()
            )
        })
    }

    /// Returns the last warning in its log, without its time.
    pub fn last_warning(&self) -> Option<String> {
        let text = if self.uses_systemd() {
            systemd::last_lines(&self.unit())?
        } else {
            let mut text = Vec::new();
            log_file::print(&self.files.log, SEARCHED, false, &mut text, || {}).ok()?;
            String::from_utf8_lossy(&text).into_owned()
        };
        text.lines()
            .rev()
            .find_map(|line| line.split_once("warning: "))
            .map(|(_, text)| text.to_owned())
    }

    /// Prints the last lines of its log to `out`, and then those that follow if `follows` is true. With systemd, this process becomes
    /// `journalctl` instead.
    ///
    /// # Errors
    /// There is no log, or it cannot be read. A reader of `out` that is gone is no error.
    pub fn print_log(&self, lines: usize, follows: bool, out: &mut dyn Write) -> Result<(), Fault> {
        if self.uses_systemd() {
            let error = systemd::show_log(&self.unit(), lines, follows);
            return Err(Fault::environment(format!("journalctl cannot be started: {error}")));
        }
        let path = &self.files.log;
        match log_file::print(path, lines, follows, out, || sleep(LOOK_EVERY)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Fault::operator(format!(
                "there is no log yet ({}): it begins when the program is started in the background",
                path.display()
            ))),
            other => other.map_err(|error| file_fault("cannot read", path, &error)),
        }
    }
}

fn open(process: Pid) -> rustix::io::Result<OwnedFd> {
    rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())
}

/// Waits for a condition. Returns whether it holds.
fn wait_for(patience: Duration, condition: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if started.elapsed() >= patience {
            return false;
        }
        sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests;
