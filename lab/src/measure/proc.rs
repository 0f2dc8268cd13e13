//! Reads the figures of a process and of the machine from /proc and the kernel's clocks.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use adit_testbed::failure::{Context, Result};
use nix::time::ClockId;
use nix::unistd::Pid;

/// A process under observation. Its figures remain when it ends.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    clock: ClockId,
    /// The CPU seconds so far, of all its threads, including those that have ended.
    pub(super) cpu: f64,
    /// The ticks in user mode and in the kernel so far, by which the CPU time is split.
    pub(super) ticks: Ticks,
    /// The scheduler's figures by thread, including threads that have ended.
    threads: HashMap<u32, Scheduled>,
    /// The proportional set size in KiB; 0 once the process has ended.
    pub(super) pss_kib: u64,
    /// The part of it that is not backed by a file, in KiB, which is memory that the process allocated itself. 0 once
    /// it has ended.
    pub(super) anon_kib: u64,
    /// Open file descriptors; 0 once it has ended.
    pub(super) fds: u64,
    /// Whether it has ended.
    pub(super) ended: bool,
}

/// The division of CPU time, in ticks of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    pub(super) user: u64,
    pub(super) system: u64,
}

/// The scheduler's figures of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Scheduled {
    /// Nanoseconds in which it was ready to run but had no CPU.
    pub(super) wait: u64,
    /// The number of times that it was scheduled: its context switches, voluntary or not.
    pub(super) switches: u64,
}

impl Process {
    /// Begins to observe a process.
    pub(super) fn new(pid: u32) -> Result<Self> {
        let gone = || format!("process {pid} cannot be watched");
        let raw = i32::try_from(pid).context(gone())?;
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(raw)).context(gone())?;
        let mut process = Self {
            pid,
            clock,
            cpu: 0.0,
            ticks: Ticks::default(),
            threads: HashMap::new(),
            pss_kib: 0,
            anon_kib: 0,
            fds: 0,
            ended: false,
        };
        process.look_at_clock();
        process.look();
        process.look_at_memory();
        Ok(process)
    }

    /// Updates the exact CPU time with one system call.
    pub(super) fn look_at_clock(&mut self) {
        if let Ok(time) = self.clock.now() {
            self.cpu = self.cpu.max(Duration::from(time).as_secs_f64());
        }
    }

    /// Updates the figures of a few small files in /proc.
    pub(super) fn look(&mut self) {
        if self.ended {
            return;
        }
        match self.file("stat").as_deref().and_then(stat) {
            Some((state, ticks)) if !matches!(state, 'Z' | 'X') => self.ticks = ticks,
            _ => {
                self.ended = true;
                (self.pss_kib, self.anon_kib, self.fds) = (0, 0, 0);
                return;
            }
        }
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        for entry in threads.flatten() {
            let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // A thread that ends between the two calls keeps its last figures.
            let text = fs::read_to_string(entry.path().join("schedstat")).ok();
            if let (Some(id), Some(now)) = (id, text.as_deref().and_then(schedstat)) {
                self.threads.insert(id, now);
            }
        }
    }

    /// Updates the memory figures, which takes longer because the kernel walks through the pages.
    pub(super) fn look_at_memory(&mut self) {
        if self.ended {
            return;
        }
        let rollup = self.file("smaps_rollup").unwrap_or_default();
        if let Some(pss) = kib(&rollup, "Pss:") {
            self.pss_kib = pss;
            self.anon_kib = kib(&rollup, "Pss_Anon:").unwrap_or(0);
        }
        if let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", self.pid)) {
            self.fds = entries.count() as u64;
        }
    }

    /// Returns the sums over all threads.
    pub(super) fn scheduled(&self) -> Scheduled {
        self.threads.values().fold(Scheduled::default(), |sum, thread| Scheduled {
            wait: sum.wait + thread.wait,
            switches: sum.switches + thread.switches,
        })
    }

    fn file(&self, name: &str) -> Option<String> {
        let bytes = fs::read(format!("/proc/{}/{name}", self.pid)).ok()?;
        // A program's name may not be valid UTF-8.
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The machine's time in ticks, of all CPUs together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// The total number of ticks.
    pub(super) total: u64,
    /// The ticks in programs, and in the kernel on their behalf.
    pub(super) busy: u64,
    /// The ticks that the hypervisor took.
    pub(super) steal: u64,
}

impl Machine {
    /// Reads the current times.
    pub(super) fn look() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        machine(&text).context("/proc/stat has no line of the CPUs")
    }

    /// Returns the share that the hypervisor took since `earlier`, 0 to 1.
    pub(super) fn steal_since(self, earlier: Self) -> f64 {
        let total = self.total.saturating_sub(earlier.total).max(1);
        self.steal.saturating_sub(earlier.steal) as f64 / total as f64
    }
}

/// Returns the state and the times of /proc/PID/stat.
fn stat(text: &str) -> Option<(char, Ticks)> {
    // The second field is the program's name in parentheses, and may contain anything, including parentheses.
    let (_, after) = text.rsplit_once(") ")?;
    let state = after.chars().next()?;
    let [user, system, ..] = times(after)?;
    Some((state, Ticks { user, system }))
}

/// Parses utime, stime, cutime and cstime, which are fields 14 to 17; `after` begins with field 3.
fn times(after: &str) -> Option<[u64; 4]> {
    let mut times = after.split(' ').skip(11).map(str::parse::<u64>);
    let mut next = || times.next()?.ok();
    Some([next()?, next()?, next()?, next()?])
}

/// Parses the time of a process and of its ended children from /proc/PID/stat, in ticks.
pub(super) fn spent(text: &str) -> Option<u64> {
    let (_, after) = text.rsplit_once(") ")?;
    Some(times(after)?.iter().sum())
}

/// Parses a thread's schedstat: time on a CPU (which lags by up to a tick, so the process's clock is used instead),
/// time spent waiting, and the number of turns.
fn schedstat(text: &str) -> Option<Scheduled> {
    let mut fields = text.split_whitespace().skip(1).map(str::parse::<u64>);
    Some(Scheduled { wait: fields.next()?.ok()?, switches: fields.next()?.ok()? })
}

/// Returns a line of smaps_rollup in KiB.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Parses the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, then guests, whose time
/// is included in user's.
fn machine(text: &str) -> Option<Machine> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<u64> = line.split_whitespace().take(8).flat_map(str::parse).collect();
    let [user, nice, system, _, _, _, _, steal] = *times.as_slice() else { return None };
    Some(Machine { total: times.iter().sum(), busy: user + nice + system, steal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_times_behind_any_name() {
        let text = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 900 0 3 0 250 130 7 9 20 0 3 0 12345 100 200\n";
        assert_eq!(stat(text), Some(('S', Ticks { user: 250, system: 130 })));
        assert_eq!(spent(text), Some(396));
        assert_eq!(stat("4711 (short) R 1 2"), None);
        assert_eq!(stat(""), None);
        assert_eq!(spent("4711 (short) R 1 2"), None);
    }

    #[test]
    fn reads_waiting_and_turns() {
        let expected = Scheduled { wait: 456, switches: 78 };
        assert_eq!(schedstat("123456789 456 78\n"), Some(expected));
        assert_eq!(schedstat("123456789 456\n"), None);
    }

    #[test]
    fn reads_the_proportional_set_size_and_no_other() {
        let text = "55cb71d07000-7ffec890e000 ---p 00000000 00:00 0    [rollup]\n\
            Rss:                1780 kB\nPss:                 276 kB\nPss_Anon:            104 kB\n";
        assert_eq!(kib(text, "Pss:"), Some(276));
        assert_eq!(kib(text, "Pss_Anon:"), Some(104));
        assert_eq!(kib("Rss:                1780 kB\n", "Pss:"), None);
    }

    #[test]
    fn reads_what_the_hypervisor_took() {
        let earlier =
            machine("cpu  100 10 50 800 20 0 10 10 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n").unwrap();
        assert_eq!(earlier, Machine { total: 1000, busy: 160, steal: 10 });
        let later = machine("cpu  200 20 90 1600 40 0 20 30 55 0\n").unwrap();
        assert_eq!(later, Machine { total: 2000, busy: 310, steal: 30 });
        assert!((later.steal_since(earlier) - 0.02).abs() < 1e-9);
        assert!(later.steal_since(later).abs() < 1e-9);
        assert_eq!(machine("intr 1 2 3\n"), None);
    }

    #[test]
    fn sees_itself_and_notices_an_end() {
        let mut own = Process::new(std::process::id()).unwrap();
        assert!(own.pss_kib > 100 && own.fds >= 3 && !own.ended);
        let before = own.cpu;
        let mut sum = 0u64;
        // Runs until this process's own clock has advanced, which assumes nothing about the machine's speed.
        while own.cpu < before + 0.02 {
            (0..10_000u64).for_each(|n| sum = sum.wrapping_mul(31).wrapping_add(n));
            own.look_at_clock();
        }
        assert_ne!(sum, 1);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut other = Process::new(child.id()).unwrap();
        assert!(!other.ended);
        child.kill().unwrap();
        child.wait().unwrap();
        other.look_at_clock();
        other.look();
        assert!(other.ended && other.pss_kib == 0 && other.cpu >= 0.0);
        assert!(Process::new(child.id()).is_err());
    }
}
