//! When a program that has ended is started again.

use std::time::Duration;

/// The exit code for a wrong configuration, which a restart cannot fix.
const CONFIGURATION: i32 = 2;

/// The delay before the first restart.
const FIRST: Duration = Duration::from_secs(1);

/// The longest delay.
const LONGEST: Duration = Duration::from_secs(300);

/// A program that has run for this long begins with the shortest delay again.
const STABLE: Duration = Duration::from_secs(60);

/// The decision after a program has ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has ended in an orderly way.
    Finished,
    /// It has failed, and would fail again.
    Failed,
    /// It is started again after this delay.
    Restart(Duration),
}

/// Doubles the delay with each failure.
#[derive(Debug)]
pub(super) struct Backoff {
    delay: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { delay: FIRST }
    }
}

impl Backoff {
    /// Decides after the program has ended with an exit code (`None`: by a signal).
    pub(super) fn after(&mut self, code: Option<i32>, ran: Duration) -> Next {
        match code {
            Some(0) => return Next::Finished,
            Some(CONFIGURATION) => return Next::Failed,
            _ => {}
        }
        if ran >= STABLE {
            self.delay = FIRST;
        }
        let delay = self.delay;
        self.delay = delay.saturating_mul(2).min(LONGEST);
        Next::Restart(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn a_failure_is_followed_by_a_restart_that_comes_later_each_time() {
        let mut backoff = Backoff::default();
        let mut delays = Vec::new();
        for _ in 0..11 {
            let Next::Restart(delay) = backoff.after(Some(1), SOON) else { panic!("no restart") };
            delays.push(delay.as_secs());
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(backoff.after(None, STABLE), Next::Restart(FIRST), "it had run for a while");
    }

    #[test]
    fn an_orderly_end_and_a_wrong_configuration_are_final() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.after(Some(0), SOON), Next::Finished);
        assert_eq!(backoff.after(Some(2), STABLE), Next::Failed);
        assert_eq!(backoff.after(None, SOON), Next::Restart(FIRST), "a signal is a failure");
    }
}
