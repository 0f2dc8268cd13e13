//! Waits with time limits that hold on a busy machine.
//!
//! A limit of ten seconds means ten seconds on an otherwise idle machine. [`ScaledInstant`] is a clock that runs slower
//! when there are more runnable tasks than processors, by the share that each task gets, and that almost stops while
//! the whole machine is stopped. A program that is stuck still reaches its limit, only later; one that waits for a
//! processor does not.

use std::fs;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};

/// How often the number of runnable tasks is read.
const SAMPLE: Duration = Duration::from_millis(100);
/// The time between two samples in excess of this is not counted, because this process or the machine was stopped.
const LONGEST_SAMPLE: Duration = Duration::from_millis(300);
/// The lower bound of the clock's speed relative to the wall clock, so that every limit ends.
const SLOWEST: f64 = 1.0 / 12.0;

/// A point on the clock of this module, used like [`Instant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScaledInstant(Duration);

impl ScaledInstant {
    /// Returns the current time.
    pub fn now() -> Self {
        Self(reading().total(Instant::now()))
    }

    /// Returns the time elapsed since this point, on this clock.
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    /// Returns the time from `earlier` to this point, or zero if `earlier` is later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for ScaledInstant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// Polls until `seen` returns true.
///
/// # Errors
/// `seen` did not return true within the limit, or it failed.
pub fn until(what: &str, limit: Duration, mut seen: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = ScaledInstant::now();
    while !seen()? {
        if begun.elapsed() >= limit {
            return Err(Failure(format!("not within {} s: {what}", limit.as_secs())));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The time counted up to a sample, and the speed of the clock since then.
#[derive(Debug, Clone, Copy)]
struct Reading {
    counted: Duration,
    at: Instant,
    share: f64,
}

impl Reading {
    fn total(self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(self.at).min(LONGEST_SAMPLE);
        self.counted + since.mul_f64(self.share)
    }

    fn next(self, now: Instant, share: f64) -> Self {
        Self { counted: self.total(now), at: now, share }
    }
}

/// Returns the share of a processor that a task gets when this many are runnable.
fn share(runnable: u32, processors: u32) -> f64 {
    (f64::from(processors) / f64::from(runnable.max(1))).clamp(SLOWEST, 1.0)
}

/// Returns the number of runnable tasks of the whole machine, without the calling one. `text` is /proc/loadavg.
fn runnable(text: &str) -> Option<u32> {
    let tasks = text.split_whitespace().nth(3)?;
    Some(tasks.split('/').next()?.parse::<u32>().ok()?.saturating_sub(1))
}

fn sample() -> f64 {
    let processors = thread::available_parallelism().map_or(1, |number| number.get());
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    match (runnable(&text), u32::try_from(processors)) {
        (Some(runnable), Ok(processors)) => share(runnable, processors),
        _ => 1.0,
    }
}

fn reading() -> MutexGuard<'static, Reading> {
    static CLOCK: LazyLock<Mutex<Reading>> = LazyLock::new(|| {
        thread::spawn(|| {
            loop {
                thread::sleep(SAMPLE);
                let share = sample();
                let mut reading = reading();
                *reading = reading.next(Instant::now(), share);
            }
        });
        let (at, share) = (Instant::now(), sample());
        Mutex::new(Reading { counted: Duration::ZERO, at, share })
    });
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_tasks_that_want_to_run() {
        assert_eq!(runnable("9.68 9.30 6.20 10/184 27734\n"), Some(9));
        assert_eq!(runnable("0.00 0.00 0.00 0/90 1\n"), Some(0));
        assert_eq!(runnable("no such file"), None);
    }

    #[test]
    fn the_clock_runs_at_the_share_that_a_task_gets() {
        assert!((share(0, 2) - 1.0).abs() < 1e-9);
        assert!((share(2, 2) - 1.0).abs() < 1e-9);
        assert!((share(8, 2) - 0.25).abs() < 1e-9);
        assert!((share(4000, 2) - SLOWEST).abs() < 1e-9);
    }

    #[test]
    fn a_busy_machine_and_a_stopped_one_use_up_less_of_a_limit() {
        let begin = Instant::now();
        let after = |ms: u64| begin + Duration::from_millis(ms);
        let idle = Reading { counted: Duration::ZERO, at: begin, share: 1.0 };
        let busy = idle.next(after(100), 0.25);
        assert_eq!(busy.counted, Duration::from_millis(100));
        let idle = busy.next(after(300), 1.0);
        assert_eq!(idle.counted, Duration::from_millis(150));
        // No process ran for a minute, including the sampling.
        let resumed = idle.next(after(60_300), 1.0);
        assert_eq!(resumed.counted, Duration::from_millis(450));
    }

    #[test]
    fn moments_pass_and_limits_end() {
        let before = ScaledInstant::now();
        let failure = until("never", Duration::from_millis(30), || Ok(false)).unwrap_err();
        assert_eq!(failure.0, "not within 0 s: never");
        assert!(before.elapsed() >= Duration::from_millis(30));
        until("at once", Duration::ZERO, || Ok(true)).unwrap();
        assert_eq!(before.saturating_duration_since(ScaledInstant::now()), Duration::ZERO);
    }
}
