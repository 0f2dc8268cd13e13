//! Runs programs: short ones to completion, and daemons whose logs are watched.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::{Context, Failure, Result};
use crate::wait::ScaledInstant;

/// Runs a program to completion and returns its output.
///
/// # Errors
/// The program could not be started, or it failed; then the error includes its output.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    output(command)
}

/// Runs a prepared command to completion and returns its standard output.
///
/// # Errors
/// As [`run`].
pub fn output(mut command: Command) -> Result<String> {
    let shown = command_line(&command);
    let done = command.stdin(Stdio::null()).output().context(&shown)?;
    check_status(&shown, &done)
}

/// Runs a command like [`output`], with data on standard input.
///
/// # Errors
/// As [`run`].
pub fn run_with_input(mut command: Command, input: impl AsRef<[u8]>) -> Result<String> {
    let shown = command_line(&command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context(&shown)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that exits before it has read everything reports the reason in its status.
        let _ = stdin.write_all(input.as_ref());
    }
    let done = child.wait_with_output().context(&shown)?;
    check_status(&shown, &done)
}

fn check_status(shown: &str, done: &Output) -> Result<String> {
    let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&done.stderr);
    Err(Failure(format!("{shown}: {}: {} {}", done.status, stderr.trim(), stdout.trim())))
}

/// Returns the command as a user would type it.
pub fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// A running daemon whose log lines are kept. It is killed on drop.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    shown: String,
    child: Child,
    log: Arc<Log>,
}

#[derive(Debug, Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grown: Condvar,
}

impl Daemon {
    /// Starts a daemon; `name` is for messages.
    ///
    /// # Errors
    /// The program could not be started.
    pub fn spawn(name: &str, mut command: Command) -> Result<Self> {
        let shown = command_line(&command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(&shown)?;
        let log = Arc::new(Log::default());
        if let Some(stdout) = child.stdout.take() {
            Log::follow(&log, stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            Log::follow(&log, stderr);
        }
        Ok(Self { name: name.to_owned(), shown, child, log })
    }

    /// Waits for a log line that contains `needle`, from the beginning of the log, and returns it.
    ///
    /// # Errors
    /// The line did not appear in time, or the daemon ended without it; then the error includes the end of its log.
    pub fn wait_for(&mut self, needle: &str, limit: Duration) -> Result<String> {
        self.wait_for_nth(needle, 1, limit)
    }

    /// Waits until at least `count` log lines contain `needle` and returns the last of these.
    ///
    /// # Errors
    /// As [`Daemon::wait_for`].
    pub fn wait_for_nth(&mut self, needle: &str, count: usize, limit: Duration) -> Result<String> {
        let end = ScaledInstant::now() + limit;
        loop {
            let ended = self.child.try_wait()?;
            let lines = self.log.lock();
            if let Some(line) = lines.iter().filter(|l| l.contains(needle)).nth(count.max(1) - 1) {
                return Ok(line.clone());
            }
            let left = end.saturating_duration_since(ScaledInstant::now());
            // After the process has ended, its last lines may still be in the pipe.
            let ended = ended.filter(|_| Arc::strong_count(&self.log) == 1);
            if left.is_zero() || ended.is_some() {
                drop(lines);
                let why = match ended {
                    Some(status) => format!("it ended with {status}"),
                    None => format!("not within {} s", limit.as_secs()),
                };
                let times =
                    if count > 1 { format!(" for the {count}th time") } else { String::new() };
                return Err(self.failure(&format!("never logged \"{needle}\"{times}: {why}")));
            }
            // Wakes up even without a new line, to notice a process that has ended.
            let pause = left.min(Duration::from_millis(100));
            drop(self.log.grown.wait_timeout(lines, pause).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits for a log line that contains one of these lower-case texts, ignoring case, and returns it.
    ///
    /// # Errors
    /// None appeared in time.
    pub fn wait_for_any(&self, texts: &[&str], limit: Duration) -> Result<String> {
        let end = ScaledInstant::now() + limit;
        let fits = |line: &&String| {
            let line = line.to_lowercase();
            texts.iter().any(|text| line.contains(text))
        };
        loop {
            if let Some(line) = self.log.lock().iter().find(fits) {
                return Ok(line.clone());
            }
            if ScaledInstant::now() >= end {
                return Err(
                    self.failure(&format!("logged none of {texts:?} in {} s", limit.as_secs()))
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Counts the log lines so far that contain `needle`.
    pub fn count(&self, needle: &str) -> usize {
        self.log.lock().iter().filter(|line| line.contains(needle)).count()
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.log.lock().join("\n")
    }

    /// Returns a failure of this daemon with its command and the relevant lines at the end of its log.
    pub fn failure(&self, what: &str) -> Failure {
        let lines = self.log.lock();
        let noise = ["peer info:", "VERIFY OK", "VERIFY EKU", "VERIFY KU", "net_", "++ "];
        let relevant: Vec<&str> = lines
            .iter()
            .map(String::as_str)
            .filter(|line| !noise.iter().any(|word| line.contains(word)))
            .collect();
        let tail =
            relevant.get(relevant.len().saturating_sub(30)..).unwrap_or_default().join("\n    ");
        Failure(format!("{}: {what}\n    $ {}\n    {tail}", self.name, self.shown))
    }

    /// Returns its process id, in the sandbox.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The process no longer exists.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("process id")?;
        kill(Pid::from_raw(pid), signal).context(format!("{}: {signal}", self.name))
    }

    /// Returns the exit status, if the process has ended.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end of the process and of its log.
    ///
    /// # Errors
    /// It is still running after `limit`.
    pub fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let end = ScaledInstant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.drain_log();
                return Ok(status);
            }
            if ScaledInstant::now() >= end {
                return Err(self.failure(&format!("still runs after {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits, for at most a second, until the last lines of an ended process are in the log. A child of the process may keep the pipe open.
    fn drain_log(&self) {
        let end = ScaledInstant::now() + Duration::from_secs(1);
        while Arc::strong_count(&self.log) > 1 && ScaledInstant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the process with SIGTERM and checks that it ended in an orderly way.
    ///
    /// # Errors
    /// It does not end, or does not end by exit 0 or SIGTERM.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let status = self.wait_exit(Duration::from_secs(10))?;
        if status.success() || status.signal() == Some(Signal::SIGTERM as i32) {
            return Ok(());
        }
        Err(self.failure(&format!("ended with {status} after SIGTERM")))
    }

    /// Returns user and system time of all its threads, in seconds.
    ///
    /// # Errors
    /// The process no longer exists.
    pub fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(self.child.id())
    }

    /// Returns the resident memory in KiB.
    ///
    /// # Errors
    /// The process no longer exists.
    pub fn rss_kib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().context("VmRSS")
    }
}

/// Returns a figure of a process's memory in KiB, such as `Pss` or `Pss_Anon`, as /proc/PID/smaps_rollup names it.
///
/// # Errors
/// The process no longer exists, or there is no such figure.
pub fn memory_kib(pid: u32, figure: &str) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let value = |line: &str| line.strip_prefix(figure)?.strip_prefix(':').map(str::to_owned);
    let value = rollup.lines().find_map(value).context(format!("no {figure}"))?;
    value.trim().trim_end_matches(" kB").parse().context(figure)
}

/// Returns user and system time of all threads of a process, in seconds.
///
/// # Errors
/// The process no longer exists.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may contain anything; utime and stime are 14 and 15.
    let after = stat.rsplit_once(") ").map(|(_, after)| after).unwrap_or_default();
    let fields: Vec<u64> = after.split(' ').skip(11).take(2).flat_map(str::parse).collect();
    let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100);
    Ok(fields.iter().sum::<u64>() as f64 / hertz as f64)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A failure here means that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Log {
    fn follow(log: &Arc<Self>, stream: impl Read + Send + 'static) {
        let log = Arc::clone(log);
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(std::result::Result::ok) {
                log.lock().push(line);
                log.grown.notify_all();
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Daemon {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Daemon::spawn("sh", command).unwrap()
    }

    #[test]
    fn finds_the_line_and_the_nth_line() {
        let mut daemon = shell("echo ready 1; sleep 0.1; echo ready 2 >&2; sleep 60");
        assert_eq!(daemon.wait_for("ready", Duration::from_secs(10)).unwrap(), "ready 1");
        assert_eq!(daemon.wait_for_nth("ready", 2, Duration::from_secs(10)).unwrap(), "ready 2");
        assert_eq!(daemon.count("ready"), 2);
    }

    #[test]
    fn says_that_the_daemon_ended_and_what_it_said_last() {
        let mut daemon = shell("echo cannot bind; exit 3");
        let failure = daemon.wait_for("ready", Duration::from_secs(10)).unwrap_err().0;
        assert!(failure.contains("exit status: 3") && failure.contains("cannot bind"), "{failure}");
    }

    #[test]
    fn a_dropped_daemon_is_gone() {
        let daemon = shell("exec sleep 60");
        let pid = daemon.pid();
        drop(daemon);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn reads_its_own_figures() {
        let daemon =
            shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; sleep 60");
        let mut daemon = daemon;
        daemon.wait_for("done", Duration::from_secs(30)).unwrap();
        assert!(daemon.cpu_seconds().unwrap() > 0.0);
        assert!(daemon.rss_kib().unwrap() > 100);
        assert!(memory_kib(daemon.pid(), "Pss_Anon").unwrap() > 0);
    }
}
