//! Runs cases on several threads, and repeats those that measure wall-clock time.
//!
//! A failure is final, except for the cases that [`WALL_CLOCK`] names with a reason. Each of these runs again,
//! after all others and alone. Every second attempt is counted and named in the last line, and more than
//! [`MOST_RETRIES`] of them fail the run, since that many are not accidental.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Failure, Result};

/// Cases that may run a second time: the name of a case, and the part of it that depends on the machine's other work.
pub const WALL_CLOCK: &[(&str, &str)] = &[(
    "many-clients/16-over-udp-and-tcp",
    "compares percentiles of round trips that are measured one after the other",
)];

/// More second attempts than this fail the run.
pub const MOST_RETRIES: usize = 2;

/// One case of a run.
pub struct Job<'a> {
    /// Its name, which is unique.
    pub name: &'a str,
    /// The work. It returns a short description of its observations.
    pub run: Box<dyn Fn() -> Result<String> + Send + Sync + 'a>,
}

/// The number of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The only one, or the first of two.
    First,
    /// The second one.
    Second,
}

/// The result of an attempt.
pub struct Ended<'a> {
    /// The case.
    pub name: &'a str,
    /// The number of the attempt.
    pub attempt: Attempt,
    /// Its observations, or the reason for its failure.
    pub outcome: Result<String>,
    /// The duration.
    pub took: Duration,
    /// Whether the case runs again.
    pub again: bool,
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of cases that passed, including at the second attempt.
    pub passed: usize,
    /// The cases that failed.
    pub failed: Vec<String>,
    /// The cases that ran a second time, in the order of their failures.
    pub retried: Vec<String>,
}

impl Tally {
    /// Returns whether the run as a whole has passed.
    pub fn ok(&self) -> bool {
        self.failed.is_empty() && self.retried.len() <= MOST_RETRIES
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed.len())?;
        if !self.failed.is_empty() {
            write!(f, " ({})", self.failed.join(", "))?;
        }
        if !self.retried.is_empty() {
            write!(f, ", {} ran twice ({})", self.retried.len(), self.retried.join(", "))?;
        }
        if self.retried.len() > MOST_RETRIES {
            write!(f, ", more than {MOST_RETRIES} ran twice: the run fails")?;
        }
        Ok(())
    }
}

/// Runs all cases on `jobs` threads, then those of `wall_clock` that failed, one at a time. `report` is called for each attempt.
pub fn run(
    cases: &[Job<'_>],
    jobs: usize,
    wall_clock: &[(&str, &str)],
    report: &(dyn Fn(&Ended<'_>) + Sync),
) -> Tally {
    let queue: Mutex<VecDeque<&Job<'_>>> = Mutex::new(cases.iter().collect());
    let (tally, again) = (Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let next = || lock(&queue).pop_front();
                while let Some(case) = next() {
                    let may = wall_clock.iter().any(|(name, _)| *name == case.name);
                    let ended = attempt(case, Attempt::First, may);
                    report(&ended);
                    if ended.again {
                        lock(&tally).retried.push(case.name.to_owned());
                        lock(&again).push(case);
                    } else {
                        count(&mut lock(&tally), &ended);
                    }
                }
            });
        }
    });
    for case in again.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let ended = attempt(case, Attempt::Second, false);
        report(&ended);
        count(&mut lock(&tally), &ended);
    }
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn attempt<'a>(case: &Job<'a>, attempt: Attempt, may_run_again: bool) -> Ended<'a> {
    let started = Instant::now();
    // A case that panics counts as failed, and the others continue.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&case.run))
        .unwrap_or_else(|_| Err(Failure("the test panicked".to_owned())));
    let again = may_run_again && outcome.is_err();
    Ended { name: case.name, attempt, outcome, took: started.elapsed(), again }
}

fn count(tally: &mut Tally, ended: &Ended<'_>) {
    match &ended.outcome {
        Ok(_) => tally.passed += 1,
        Err(_) => tally.failed.push(ended.name.to_owned()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Creates a case that fails this many times and then passes.
    fn fails<'a>(name: &'a str, times: u32, attempts: &'a AtomicU32) -> Job<'a> {
        let run = move || match attempts.fetch_add(1, Ordering::SeqCst) {
            attempt if attempt < times => Err(Failure("late".to_owned())),
            _ => Ok(String::new()),
        };
        Job { name, run: Box::new(run) }
    }

    const LISTED: &[(&str, &str)] = &[("a", "why"), ("b", "why"), ("c", "why")];

    #[test]
    fn a_case_that_is_not_listed_fails_at_its_first_failure() {
        let attempts = AtomicU32::new(0);
        let tally = run(&[fails("plain", 1, &attempts)], 2, LISTED, &|_| {});
        assert_eq!(attempts.into_inner(), 1);
        assert!(!tally.ok());
        assert_eq!(tally.to_string(), "0 passed, 1 failed (plain)");
    }

    #[test]
    fn a_listed_case_runs_once_more_after_the_others_and_is_named() {
        let (listed, plain) = (AtomicU32::new(0), AtomicU32::new(0));
        let order = Mutex::new(Vec::new());
        let cases = [fails("a", 1, &listed), fails("plain", 0, &plain)];
        let tally = run(&cases, 1, LISTED, &|ended| {
            lock(&order).push((ended.name.to_owned(), ended.attempt, ended.again));
        });
        let expected = [
            ("a".to_owned(), Attempt::First, true),
            ("plain".to_owned(), Attempt::First, false),
            ("a".to_owned(), Attempt::Second, false),
        ];
        assert_eq!(*lock(&order), expected);
        assert!(tally.ok());
        assert_eq!(tally.to_string(), "2 passed, 0 failed, 1 ran twice (a)");
    }

    #[test]
    fn a_listed_case_that_fails_twice_fails() {
        let attempts = AtomicU32::new(0);
        let tally = run(&[fails("b", 2, &attempts)], 4, LISTED, &|_| {});
        assert_eq!(attempts.into_inner(), 2);
        assert!(!tally.ok());
        assert_eq!(tally.to_string(), "0 passed, 1 failed (b), 1 ran twice (b)");
    }

    #[test]
    fn more_than_two_second_attempts_fail_the_run_although_all_pass() {
        let attempts = [const { AtomicU32::new(0) }; 3];
        let names = ["a", "b", "c"];
        let cases: Vec<Job<'_>> =
            names.iter().zip(&attempts).map(|(name, attempts)| fails(name, 1, attempts)).collect();
        let tally = run(&cases, 1, LISTED, &|_| {});
        assert!(!tally.ok());
        let told =
            "3 passed, 0 failed, 3 ran twice (a, b, c), more than 2 ran twice: the run fails";
        assert_eq!(tally.to_string(), told);
        let two = Tally { retried: vec!["a".into(), "b".into()], ..Tally::default() };
        assert!(two.ok());
    }

    #[test]
    fn a_panic_is_a_failure_of_its_case_alone() {
        let attempts = AtomicU32::new(0);
        let broken = Job { name: "broken", run: Box::new(|| panic!("out of order")) };
        let tally = run(&[broken, fails("plain", 0, &attempts)], 1, LISTED, &|_| {});
        assert_eq!((tally.passed, tally.failed), (1, vec!["broken".to_owned()]));
    }

    #[test]
    fn every_listed_name_has_a_reason() {
        for (name, why) in WALL_CLOCK {
            assert!(!name.is_empty() && why.split(' ').count() > 3, "{name}: {why}");
        }
    }
}
