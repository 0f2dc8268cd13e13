//! The CPU time of other programs on the machine during a trial and just before it.
//!
//! A run has its own pid namespace, so /proc shows only the run's processes. /proc/stat counts the whole machine, and the difference
//! belongs to other programs. The kernel's own work on packets is counted for neither.

use std::fs;
use std::time::{Duration, Instant};

use super::proc::{Machine, spent};

/// The share of the machine taken by other programs above which a trial is marked.
pub const FOREIGN_MARK: f64 = 0.03;
/// The share of the pause before a trial in which programs waited for a CPU, above which the trial is marked.
pub const PRESSURE_MARK: f64 = 0.05;
/// The pause before a trial.
const PAUSE: Duration = Duration::from_millis(100);

/// Processor time so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processors {
    machine: Machine,
    /// The share of this run's processes, in ticks.
    own: u64,
}

impl Processors {
    /// Returns the current times; `None` if /proc does not contain them.
    pub fn look() -> Option<Self> {
        let own = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
            let is_process = entry.file_name().to_str()?.parse::<u32>().is_ok();
            let text = is_process.then(|| fs::read(entry.path().join("stat")).ok()).flatten()?;
            spent(&String::from_utf8_lossy(&text))
        });
        let own = own.sum();
        Some(Self { machine: Machine::look().ok()?, own })
    }

    /// Returns the share of the machine's time that other programs took since `earlier`, 0 to 1.
    pub fn foreign_since(self, earlier: Self) -> f64 {
        let busy = self.machine.busy.saturating_sub(earlier.machine.busy);
        let own = self.own.saturating_sub(earlier.own);
        let total = self.machine.total.saturating_sub(earlier.machine.total).max(1);
        busy.saturating_sub(own) as f64 / total as f64
    }
}

/// Pauses, and returns the share of the pause in which some program waited for a processor, 0 to 1. Because this run is
/// idle meanwhile, this shows how much other programs compete. Returns 0 if the kernel does not record it.
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

/// Parses the `some` line of a pressure file, which ends in `total=MICROSECONDS`.
fn total_of(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let (_, micros) = line.rsplit_once("total=")?;
    Some(Duration::from_micros(micros.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_foreign() {
        let at = |total, busy, own| {
            let machine = Machine { total, busy, ..Machine::default() };
            Processors { machine, own }
        };
        let earlier = at(1000, 400, 300);
        let later = at(1200, 500, 380);
        assert!((later.foreign_since(earlier) - 0.1).abs() < 1e-9);
        // A tick may be counted for a process before it is counted for the machine.
        let ours = at(1200, 500, 420);
        assert!(ours.foreign_since(earlier).abs() < 1e-9);
        assert!(earlier.foreign_since(earlier).abs() < 1e-9);
    }

    #[test]
    fn reads_what_the_kernel_writes() {
        let some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0.00 total=0\n";
        assert_eq!(total_of(some), Some(Duration::from_micros(2500)));
        assert_eq!(total_of(""), None);
        assert!(
            Processors::look()
                .is_some_and(|now| now.machine.total >= now.machine.busy && now.machine.busy > 0)
        );
    }
}
