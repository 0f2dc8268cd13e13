//! A rate limit without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::Instant;

/// How many tokens a [`TokenBucket`] holds, and the time in which an empty one is full again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    tokens: u64,
    period: Duration,
}

impl Rate {
    /// Creates a bucket of `tokens`, refilled once per `period`.
    #[must_use]
    pub const fn new(tokens: u64, period: Duration) -> Self {
        Self { tokens, period }
    }

    /// Creates a bucket that holds one second's worth of tokens.
    #[must_use]
    pub const fn per_second(tokens: u64) -> Self {
        Self::new(tokens, Duration::from_secs(1))
    }
}

/// A token bucket that any number of threads can share. It starts full.
///
/// This is the generic cell rate algorithm: instead of a count of tokens the bucket stores the time at which all tokens
/// taken so far have been paid back.
#[derive(Debug, Default)]
pub struct TokenBucket {
    paid_at: AtomicU64,
}

impl TokenBucket {
    /// Takes `tokens` unless the bucket is empty, and returns whether it did.
    ///
    /// A request for more tokens than are left succeeds and leaves the bucket in debt, so that an indivisible action may
    /// cost more than the bucket holds.
    pub fn take(&self, now: Instant, tokens: usize, rate: Rate) -> bool {
        let now = now.as_nanos();
        let period = u64::try_from(rate.period.as_nanos()).unwrap_or(u64::MAX);
        let cost = period.saturating_mul(tokens as u64).checked_div(rate.tokens).unwrap_or(period);
        let taken = self.paid_at.fetch_update(Relaxed, Relaxed, |paid_at| {
            let from = paid_at.max(now);
            (from.saturating_sub(now) < period).then(|| from.saturating_add(cost))
        });
        taken.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::per_second(1000);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_full_bucket_at_once_and_then_the_rate() {
        let bucket = TokenBucket::default();
        let taken =
            |after: Duration| (0..1000).filter(|_| bucket.take(at(5) + after, 10, RATE)).count();
        assert_eq!(taken(Duration::ZERO), 100);
        assert_eq!(taken(Duration::from_millis(100)), 10);
        assert_eq!(taken(Duration::from_secs(10)), 100, "a full bucket holds no more");
    }

    #[test]
    fn a_request_for_more_than_the_bucket_holds_leaves_a_debt() {
        let bucket = TokenBucket::default();
        let take = |second| bucket.take(at(second), 3000, RATE);
        assert!(take(10));
        assert!(!take(11));
        assert!(!take(12));
        assert!(take(13));
    }

    #[test]
    fn the_period_is_that_of_the_rate() {
        let bucket = TokenBucket::default();
        let rate = Rate::new(3, Duration::from_secs(60));
        assert_eq!((0..9).filter(|_| bucket.take(at(1), 1, rate)).count(), 3);
        // One every 20 seconds.
        assert_eq!((2..=601).filter(|second| bucket.take(at(*second), 1, rate)).count(), 30);
    }
}
