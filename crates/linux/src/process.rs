//! Information about this and other processes from /proc, and daemonizing.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

/// Clock ticks per second in /proc, fixed for user space on every architecture of Rust's std.
const USER_HZ: u64 = 100;

/// Processor time and memory of a process.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time in user mode, all threads together.
    pub user: Duration,
    /// Time in the kernel on its behalf.
    pub system: Duration,
    /// Resident memory (`VmRSS`), bytes.
    pub rss: u64,
}

/// Returns the [`Usage`] of this process, with times to the microsecond.
pub fn usage() -> io::Result<Usage> {
    let times = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let time = |t: nix::sys::time::TimeVal| {
        Duration::new(t.tv_sec() as u64, 0) + Duration::from_micros(t.tv_usec() as u64)
    };
    let rss = status_field("self", "VmRSS:")?.saturating_mul(1024);
    Ok(Usage { user: time(times.user_time()), system: time(times.system_time()), rss })
}

/// Returns the [`Usage`] of another process, with times to the clock tick (usually 10 ms).
pub fn usage_of(pid: u32) -> io::Result<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain spaces and parentheses itself; fields 14 and 15 of the
    // line (proc(5)) are the twelfth and thirteenth after it.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11);
    let mut ticks = || -> io::Result<Duration> {
        let ticks: u64 = fields.next().and_then(|t| t.parse().ok()).ok_or_else(|| bad("stat"))?;
        Ok(Duration::from_micros(ticks.saturating_mul(1_000_000 / USER_HZ)))
    };
    let (user, system) = (ticks()?, ticks()?);
    let rss = status_field(&pid.to_string(), "VmRSS:")?.saturating_mul(1024);
    Ok(Usage { user, system, rss })
}

/// Returns how many threads this process has.
pub fn threads() -> io::Result<usize> {
    Ok(status_field("self", "Threads:")? as usize)
}

fn status_field(pid: &str, name: &str) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    value.ok_or_else(|| bad(name))
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/proc has no readable {what}"))
}

/// Opens a descriptor of a process, which becomes readable when the process ends. Call it before the process can have been waited for.
///
/// # Errors
/// There is no such process, or the kernel is older than Linux 5.3.
pub fn open_process(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits until the process of a descriptor from [`open_process`] has ended, but no longer than `patience`. Returns whether it has.
///
/// # Errors
/// The descriptor cannot be watched.
pub fn wait_for_end(process: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let limit = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Sets the scheduling priority (-20 highest, 19 lowest) of the calling thread and of the threads
/// that it starts later.
pub fn set_nice(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// Continues in the background: in a child process without a terminal, with its standard streams on
/// /dev/null. The calling process exits with 0. Fails while other threads are running, because the
/// child would not have them.
///
/// `stay` keeps the working directory (otherwise it is `/`), so that relative file names still
/// work.
pub fn daemonize(stay: bool) -> io::Result<()> {
    refuse_threads()?;
    Ok(nix::unistd::daemon(stay, false)?)
}

/// Continues in the background like [`daemonize`], in the working directory `/`, but the calling process waits until the child
/// is ready. It prints the child's lines to standard error, and exits with 0 after [`StartReport::ready`] and with 1 if the
/// child ends before that.
///
/// # Errors
/// Other threads are running, or the kernel refuses a new process.
#[allow(unsafe_code)]
pub fn detach() -> io::Result<StartReport> {
    refuse_threads()?;
    let (read, write) = crate::fd_store::pipe()?;
    // SAFETY: this process has one thread, so no lock is held in the child, which may therefore do all that the parent may.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { .. } => {
            drop(write);
            std::process::exit(wait_for_start(File::from(read), &mut io::stderr()));
        }
        nix::unistd::ForkResult::Child => {
            drop(read);
            nix::unistd::setsid()?;
            std::env::set_current_dir("/")?;
            let null = File::options().read(true).write(true).open("/dev/null")?;
            nix::unistd::dup2_stdin(&null)?;
            nix::unistd::dup2_stdout(&null)?;
            nix::unistd::dup2_stderr(&null)?;
            Ok(StartReport { pipe: File::from(write) })
        }
    }
}

/// The connection to the process that waits in [`detach`]. Dropping it reports a failed start.
#[derive(Debug)]
pub struct StartReport {
    pipe: File,
}

/// The message of [`StartReport::ready`]. No line contains it.
const READY: u8 = 0;

impl StartReport {
    /// Makes the waiting process print a line.
    pub fn note(&mut self, line: &str) {
        let mut line = line.replace('\0', "");
        line.push('\n');
        // The waiting process may have been killed.
        let _ = self.pipe.write_all(line.as_bytes());
    }

    /// Ends the waiting process with 0.
    pub fn ready(mut self) {
        let _ = self.pipe.write_all(&[READY]);
    }
}

/// Prints what a child reports, and returns the exit code that follows from it.
fn wait_for_start(mut pipe: File, out: &mut impl Write) -> i32 {
    let mut bytes = [0; 4096];
    loop {
        let count = match pipe.read(&mut bytes) {
            Ok(0) | Err(_) => return 1,
            Ok(count) => count,
        };
        let read = bytes.get(..count).unwrap_or_default();
        let mut parts = read.split(|byte| *byte == READY);
        // It is not a failure if the reader has closed the stream.
        let _ = out.write_all(parts.next().unwrap_or_default());
        if parts.next().is_some() {
            return 0;
        }
    }
}

fn refuse_threads() -> io::Result<()> {
    let threads = threads()?;
    if threads != 1 {
        let text = format!("cannot go to the background while {threads} threads run");
        return Err(io::Error::other(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_usage_grows_and_agrees_with_proc() {
        let start = usage().unwrap();
        let mut sum = 0u64;
        while usage().unwrap().user + usage().unwrap().system
            < start.user + start.system + Duration::from_millis(30)
        {
            sum = (0..100_000u64).fold(sum, |a, b| a.wrapping_add(b * b));
        }
        std::hint::black_box(sum);
        let (mine, other) = (usage().unwrap(), usage_of(std::process::id()).unwrap());
        assert!(mine.rss > 100_000 && other.rss > 100_000);
        // Ticks are coarse, and other tests are running.
        let total = |u: Usage| u.user + u.system;
        assert!(total(other) + Duration::from_millis(100) >= total(mine));
        assert!(total(other) > Duration::ZERO);
    }

    #[test]
    fn the_end_of_a_process_is_noticed() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = open_process(child.id()).unwrap();
        assert!(!wait_for_end(&process, Duration::from_millis(1)).unwrap());
        drop(child.stdin.take());
        assert!(wait_for_end(&process, Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
        assert!(open_process(0).is_err());
    }

    #[test]
    fn a_process_that_is_gone_has_no_usage() {
        // Above the kernel's highest process id (2^22).
        assert_eq!(usage_of(4_194_305).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        let folder = tempfile::tempdir().unwrap();
        // The process has the link's name. A copy would be busy while a child of another test has it open for writing.
        let path = folder.path().join("a) b (");
        std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
        let mut child = std::process::Command::new(&path).arg("60").spawn().unwrap();
        let usage = usage_of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(usage.user < Duration::from_secs(1) && usage.rss > 0, "{usage:?}");
    }

    #[test]
    fn a_process_with_threads_stays_in_the_foreground() {
        assert!(daemonize(true).unwrap_err().to_string().contains("threads"));
        assert!(detach().unwrap_err().to_string().contains("threads"));
    }

    #[test]
    fn a_start_succeeds_only_if_the_child_is_ready() {
        let started = |work: fn(StartReport)| {
            let (read, write) = crate::fd_store::pipe().unwrap();
            work(StartReport { pipe: File::from(write) });
            let mut out = Vec::new();
            let code = wait_for_start(File::from(read), &mut out);
            (code, String::from_utf8(out).unwrap())
        };
        assert_eq!(started(StartReport::ready), (0, String::new()));
        assert_eq!(started(drop), (1, String::new()));
        let warned = started(|mut report| {
            report.note("a warning\0");
            report.ready();
        });
        assert_eq!(warned, (0, "a warning\n".to_owned()));
        assert_eq!(started(|mut report| report.note("no")), (1, "no\n".to_owned()));
    }
}
