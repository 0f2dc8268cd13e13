//! What other programs did on the machine while a trial ran, and just before it.
//!
//! A run lives in a pid namespace of its own, so that /proc shows its own processes and nothing else, while /proc/stat
//! counts the whole machine: what is left over belongs to others. The kernel's own work, which packets cause, counts for neither.

use std::fs;
use std::time::{Duration, Instant};

/// A trial during which other programs took a larger share of the machine than this is marked.
pub const FOREIGN_MARK: f64 = 0.03;
/// A trial before which programs waited for a CPU for a larger share of the pause than this is marked.
pub const PRESSURE_MARK: f64 = 0.05;
/// The pause before a trial.
const PAUSE: Duration = Duration::from_millis(100);

/// Processor time so far, in the kernel's ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processors {
    /// All time of all processors.
    total: u64,
    /// In programs and in the kernel on their behalf.
    busy: u64,
    /// The part of `busy` that this run's processes had.
    own: u64,
}

impl Processors {
    /// The times now; `None` where /proc does not tell.
    #[must_use]
    pub fn look() -> Option<Processors> {
        let own = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
            let is_process = entry.file_name().to_str()?.parse::<u32>().is_ok();
            let text = is_process.then(|| fs::read(entry.path().join("stat")).ok()).flatten()?;
            spent(&String::from_utf8_lossy(&text))
        });
        let own = own.sum();
        let (total, busy) = machine(&fs::read_to_string("/proc/stat").ok()?)?;
        Some(Processors { total, busy, own })
    }

    /// The share of the machine's time that other programs took since `earlier`, 0 to 1.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn foreign_since(self, earlier: Processors) -> f64 {
        let busy = self.busy.saturating_sub(earlier.busy);
        let own = self.own.saturating_sub(earlier.own);
        let total = self.total.saturating_sub(earlier.total).max(1);
        busy.saturating_sub(own) as f64 / total as f64
    }
}

/// Pauses, and returns the share of the pause in which some program waited for a processor, 0 to 1: with nothing of this run's
/// to do, that is what others do to each other. 0 where the kernel keeps no such account.
#[must_use]
pub fn pressure() -> f64 {
    let Some(before) = waited() else { return 0.0 };
    let started = Instant::now();
    std::thread::sleep(PAUSE);
    let after = waited().unwrap_or(before);
    after.saturating_sub(before).as_secs_f64() / started.elapsed().as_secs_f64()
}

fn waited() -> Option<Duration> {
    total_of(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

/// The `some` line of a pressure file ends in `total=MICROSECONDS`.
fn total_of(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let (_, micros) = line.rsplit_once("total=")?;
    Some(Duration::from_micros(micros.trim().parse().ok()?))
}

/// All time and busy time of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, then
/// guests, whose time is in user's.
fn machine(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<u64> = line.split_whitespace().take(8).flat_map(str::parse).collect();
    let [user, nice, system, ..] = times.as_slice() else { return None };
    Some((times.iter().sum(), user + nice + system))
}

/// utime, stime, cutime and cstime of /proc/PID/stat: a process's own time and that of its children that have ended.
fn spent(text: &str) -> Option<u64> {
    let (_, after) = text.rsplit_once(") ")?;
    let times: Vec<u64> = after.split(' ').skip(11).take(4).flat_map(str::parse).collect();
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_foreign() {
        let earlier = Processors { total: 1000, busy: 400, own: 300 };
        let later = Processors { total: 1200, busy: 500, own: 380 };
        assert!((later.foreign_since(earlier) - 0.1).abs() < 1e-9);
        // A tick may be counted for a process before it is counted for the machine.
        let ours = Processors { total: 1200, busy: 500, own: 420 };
        assert!(ours.foreign_since(earlier).abs() < 1e-9);
        assert!(earlier.foreign_since(earlier).abs() < 1e-9);
    }

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(machine("cpu  10 2 8 70 1 3 4 2 0 0\ncpu0 1 1\n"), Some((100, 20)));
        assert_eq!(machine("cpu0 1 1\n"), None);
        let text =
            "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 900 0 3 0 250 130 7 9 20 0 3 0 12345\n";
        assert_eq!(spent(text), Some(396));
        assert_eq!(spent("4711 (short) R 1 2"), None);
        let some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0.00 total=0\n";
        assert_eq!(total_of(some), Some(Duration::from_micros(2500)));
        assert_eq!(total_of(""), None);
        assert!(Processors::look().is_some_and(|now| now.total >= now.busy && now.busy > 0));
    }
}
