//! A rate limit without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Instant;

/// The capacity of a [`TokenBucket`], and the time in which an empty bucket refills.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Creates a bucket of `tokens` that regains one token per `every`.
    #[must_use]
    pub const fn one_in(every: Duration, tokens: u32) -> Self {
        Self::new(tokens as u64, every.saturating_mul(tokens))
    }

    /// Returns the time in which one token is regained.
    #[must_use]
    pub fn every(self) -> Duration {
        Duration::from_nanos(self.cost(1))
    }

    /// Returns how many tokens [`TokenBucket::take_whole`] can take in any period of this length.
    #[must_use]
    pub fn most_in(self, span: Duration) -> u64 {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.tokens.saturating_add(span.checked_div(self.cost(1)).unwrap_or(u64::MAX))
    }

    fn period(self) -> u64 {
        u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the nanoseconds in which `tokens` are regained.
    fn cost(self, tokens: u64) -> u64 {
        let period = self.period();
        period.saturating_mul(tokens).checked_div(self.tokens).unwrap_or(period)
    }
}

/// A token bucket that any number of threads can share. It starts full.
///
/// This is the generic cell rate algorithm: instead of a count of tokens the bucket stores the time when all tokens taken so far have been
/// paid back.
///
/// ```
/// use std::time::Duration;
///
/// use adit_engine::{Instant, Rate, TokenBucket};
///
/// // Three login attempts at once, and then one a minute.
/// let rate = Rate::one_in(Duration::from_secs(60), 3);
/// let bucket = TokenBucket::new();
/// let now = Instant::from_nanos(1_000_000_000_000);
/// assert!((0..3).all(|_| bucket.take(now, 1, rate)));
/// assert!(!bucket.take(now, 1, rate));
/// assert!(bucket.take(now + Duration::from_secs(60), 1, rate));
/// ```
#[derive(Debug, Default)]
pub struct TokenBucket {
    paid_at: AtomicU64,
}

impl TokenBucket {
    /// Creates a full bucket.
    #[must_use]
    pub const fn new() -> Self {
        Self { paid_at: AtomicU64::new(0) }
    }

    /// Takes `tokens` unless the bucket is empty, and returns whether it did.
    ///
    /// A request for more tokens than are left succeeds and leaves the bucket in debt, so that an indivisible action may
    /// cost more than the bucket holds.
    pub fn take(&self, now: Instant, tokens: usize, rate: Rate) -> bool {
        let now = now.as_nanos();
        let (period, cost) = (rate.period(), rate.cost(tokens as u64));
        let taken = self.paid_at.fetch_update(Relaxed, Relaxed, |paid_at| {
            let from = paid_at.max(now);
            (from.saturating_sub(now) < period).then(|| from.saturating_add(cost))
        });
        taken.is_ok()
    }

    /// Takes one whole token, or returns when one will be available. A bucket that is used only in this way is never in
    /// debt.
    ///
    /// # Errors
    /// Returns the time of the next token.
    pub fn take_whole(&self, now: Instant, rate: Rate) -> Result<(), Instant> {
        let at = now.as_nanos();
        let taken = self.paid_at.fetch_update(Relaxed, Relaxed, |paid_at| {
            (next_whole(paid_at, rate) <= at).then(|| paid_at.max(at).saturating_add(rate.cost(1)))
        });
        taken.map(drop).map_err(|paid_at| Instant::from_nanos(next_whole(paid_at, rate)))
    }

    /// Returns when the next whole token is available: now or later.
    pub fn next_whole(&self, now: Instant, rate: Rate) -> Instant {
        Instant::from_nanos(next_whole(self.paid_at.load(Relaxed), rate)).max(now)
    }

    /// Gives a token back.
    pub fn refund(&self, rate: Rate) {
        let back = |paid_at: u64| Some(paid_at.saturating_sub(rate.cost(1)));
        // The closure always returns a value.
        let _ = self.paid_at.fetch_update(Relaxed, Relaxed, back);
    }

    /// Returns whether all tokens are available, as in a new bucket.
    pub fn is_full(&self, now: Instant) -> bool {
        self.paid_at.load(Relaxed) <= now.as_nanos()
    }
}

fn next_whole(paid_at: u64, rate: Rate) -> u64 {
    paid_at.saturating_sub(rate.period().saturating_sub(rate.cost(1)))
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
        // One token every 20 seconds.
        assert_eq!((2..=601).filter(|second| bucket.take(at(*second), 1, rate)).count(), 30);
    }

    const THREE: Rate = Rate::one_in(Duration::from_secs(1), 3);

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos((1000 + ms) * 1_000_000)
    }

    #[test]
    fn whole_tokens_are_there_at_once_and_then_at_the_rate() {
        let bucket = TokenBucket::default();
        let take = |ms| bucket.take_whole(at_ms(ms), THREE);
        assert!((0..3).all(|_| take(0).is_ok()));
        assert_eq!(take(0), Err(at_ms(1000)));
        assert_eq!(take(999), Err(at_ms(1000)));
        assert_eq!((take(1000), take(1000)), (Ok(()), Err(at_ms(2000))));
        assert_eq!(bucket.next_whole(at_ms(1500), THREE), at_ms(2000));
        assert_eq!((0..100).filter(|ms| take(1001 + ms * 100).is_ok()).count(), 9, "one a second");
        assert!((0..3).all(|_| take(60_000).is_ok()), "full again");
        assert!(take(60_000).is_err());
        bucket.refund(THREE);
        assert!(take(60_000).is_ok() && take(60_000).is_err());
        assert_eq!([62_999, 63_000].map(|ms| bucket.is_full(at_ms(ms))), [false, true]);
    }

    #[test]
    fn no_span_of_time_sees_more_whole_tokens_than_the_rate_says() {
        let bucket = TokenBucket::default();
        let taken: Vec<u64> =
            (0..20_000).filter(|ms| bucket.take_whole(at_ms(*ms), THREE).is_ok()).collect();
        for span in [1, 500, 1000, 2500, 10_000] {
            let most = THREE.most_in(Duration::from_millis(span));
            for start in &taken {
                let inside = taken.iter().filter(|ms| (*start..start + span).contains(*ms));
                assert!(inside.count() as u64 <= most, "{span} ms from {start}");
            }
        }
    }
}
