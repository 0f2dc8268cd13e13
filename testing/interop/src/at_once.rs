//! Small trials, several at a time.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::failure::{Result, ensure};

/// Calls `trial` with each number below `count`, `jobs` of them at a time. Returns the results in the order of the numbers.
///
/// # Errors
/// Trials failed; the failure has a line or more of each. The others were still made.
pub fn each<T: Send>(
    jobs: usize,
    count: usize,
    trial: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return done;
            }
            done.push((number, trial(number).map_err(|failure| failure.to_string())));
        }
    };
    let mut done = thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|why| resume_unwind(why)));
        joined.flatten().collect::<Vec<_>>()
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for (_, outcome) in done {
        match outcome {
            Ok(result) => results.push(result),
            Err(failure) => failures.push(failure),
        }
    }
    ensure(failures.is_empty(), || failures.join("\n"))?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_all_failures_are_named() {
        assert_eq!(each(3, 10, Ok).unwrap(), Vec::from_iter(0..10));
        let odd = |number: usize| match number % 2 {
            0 => Ok(()),
            _ => Err(format!("{number} is odd").into()),
        };
        assert_eq!(each(2, 5, odd).unwrap_err().to_string(), "1 is odd\n3 is odd");
    }
}
