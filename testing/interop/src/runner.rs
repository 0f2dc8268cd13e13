//! Runs cases on several threads, and then each failed case once more, on its own.
//!
//! The cases share the machine with each other and with other programs, so the machine may cause a failure. A second attempt runs on its
//! own after all others, and the last line names it. More failures than [`MOST_RETRIES`] are not accidental, so none of them runs again.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Failure, Result};

/// If more cases than this fail, none of them runs again.
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
        self.failed.is_empty()
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
        Ok(())
    }
}

impl Ended<'_> {
    /// Returns whether the case runs again.
    pub fn runs_again(&self) -> bool {
        self.attempt == Attempt::First && self.outcome.is_err()
    }
}

/// Runs all cases on `jobs` threads, then those that failed, one at a time. `report` is called for each attempt.
pub fn run(cases: &[Job<'_>], jobs: usize, report: &(dyn Fn(&Ended<'_>) + Sync)) -> Tally {
    let queue: Mutex<VecDeque<&Job<'_>>> = Mutex::new(cases.iter().collect());
    let (tally, failed) = (Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let next = || lock(&queue).pop_front();
                while let Some(case) = next() {
                    let ended = attempt(case, Attempt::First);
                    report(&ended);
                    if ended.runs_again() {
                        lock(&failed).push(case);
                    } else {
                        count(&mut lock(&tally), &ended);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    // More than these fail the run however they end.
    let repeated = if failed.len() > MOST_RETRIES { 0 } else { failed.len() };
    let (again, given_up) = failed.split_at(repeated);
    lock(&tally).failed.extend(given_up.iter().map(|case| case.name.to_owned()));
    for case in again {
        let ended = attempt(case, Attempt::Second);
        report(&ended);
        let mut tally = lock(&tally);
        tally.retried.push(case.name.to_owned());
        count(&mut tally, &ended);
    }
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn attempt<'a>(case: &Job<'a>, attempt: Attempt) -> Ended<'a> {
    let started = Instant::now();
    // A case that panics counts as failed, and the others continue.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&case.run))
        .unwrap_or_else(|_| Err(Failure("the test panicked".to_owned())));
    Ended { name: case.name, attempt, outcome, took: started.elapsed() }
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

    #[test]
    fn a_case_that_fails_runs_once_more_after_the_others_and_is_named() {
        let (late, plain) = (AtomicU32::new(0), AtomicU32::new(0));
        let order = Mutex::new(Vec::new());
        let cases = [fails("late", 1, &late), fails("plain", 0, &plain)];
        let tally = run(&cases, 1, &|ended| {
            lock(&order).push((ended.name.to_owned(), ended.attempt, ended.runs_again()));
        });
        let expected = [
            ("late".to_owned(), Attempt::First, true),
            ("plain".to_owned(), Attempt::First, false),
            ("late".to_owned(), Attempt::Second, false),
        ];
        assert_eq!(*lock(&order), expected);
        assert!(tally.ok());
        assert_eq!(tally.to_string(), "2 passed, 0 failed, 1 ran twice (late)");
    }

    #[test]
    fn a_case_that_fails_twice_fails() {
        let attempts = AtomicU32::new(0);
        let tally = run(&[fails("b", 2, &attempts)], 4, &|_| {});
        assert_eq!(attempts.into_inner(), 2);
        assert!(!tally.ok());
        assert_eq!(tally.to_string(), "0 passed, 1 failed (b), 1 ran twice (b)");
    }

    #[test]
    fn if_more_than_two_cases_fail_none_runs_again() {
        let attempts = [const { AtomicU32::new(0) }; 3];
        let names = ["a", "b", "c"];
        let cases: Vec<Job<'_>> =
            names.iter().zip(&attempts).map(|(name, attempts)| fails(name, 1, attempts)).collect();
        let tally = run(&cases, 1, &|_| {});
        assert!(!tally.ok());
        assert_eq!(tally.to_string(), "0 passed, 3 failed (a, b, c)");
    }

    #[test]
    fn a_panic_is_a_failure_of_its_case_alone() {
        let attempts = AtomicU32::new(0);
        let broken = Job { name: "broken", run: Box::new(|| panic!("out of order")) };
        let tally = run(&[broken, fails("plain", 0, &attempts)], 1, &|_| {});
        assert_eq!((tally.passed, &tally.failed), (1, &vec!["broken".to_owned()]));
        assert_eq!(tally.retried, ["broken"]);
    }
}
