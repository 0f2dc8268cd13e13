//! `limit rate`: a lock-free token bucket whose tokens are nanoseconds.
//!
//! The stored value is the time when the bucket was empty. The present tokens are the time since then, up to the bucket's size.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::Nanos;
use crate::ruleset::Limit;

/// The bucket's size in packets if the file specifies no burst.
const DEFAULT_BURST: u128 = 5;

#[derive(Debug)]
pub(crate) struct TokenBucket {
    limit: Limit,
    /// The bucket's size: a packet bucket holds `burst` packets; a byte bucket holds the bytes of
    /// one period plus `burst`, as in nftables.
    size: i64,
    /// Shared with the same limit in the rules that replace these.
    empty_at: Arc<AtomicI64>,
}

impl TokenBucket {
    pub(crate) fn new(limit: Limit) -> Self {
        let burst = u128::from(limit.burst);
        let size = if limit.bytes {
            nanoseconds(limit, u128::from(limit.rate).saturating_add(burst))
        } else {
            nanoseconds(limit, if burst == 0 { DEFAULT_BURST } else { burst })
        };
        Self { limit, size, empty_at: Arc::new(AtomicI64::new(i64::MIN / 2)) }
    }

    /// Continues with the tokens of another bucket of the same limit.
    pub(crate) fn share(&mut self, other: &Self) {
        self.empty_at = Arc::clone(&other.empty_at);
    }

    /// Returns the time when the bucket was empty, as [`Self::set_empty_at`] takes it.
    pub(crate) fn empty_at(&self) -> i64 {
        self.empty_at.load(Ordering::Relaxed)
    }

    /// Sets the time when the bucket was empty. A time in the future empties it now.
    pub(crate) fn set_empty_at(&self, empty_at: i64, now: Nanos) {
        self.empty_at.store(empty_at.min(moment(now)), Ordering::Relaxed);
    }

    /// Returns the cost of a packet. A super-packet costs as much as its segments, but at most a
    /// full bucket; otherwise it could never pass.
    fn cost(&self, segments: u64, bytes: u64) -> i64 {
        let units = if self.limit.bytes { bytes } else { segments };
        let cost = nanoseconds(self.limit, u128::from(units));
        if segments > 1 { cost.min(self.size) } else { cost }
    }

    fn tokens(&self, empty_at: i64, now: i64) -> i64 {
        now.saturating_sub(empty_at).clamp(0, self.size)
    }

    /// Returns whether the statement matches; takes tokens if there are enough.
    pub(crate) fn take(&self, now: Nanos, segments: u64, bytes: u64) -> bool {
        let (now, cost) = (moment(now), self.cost(segments, bytes));
        let mut empty_at = self.empty_at.load(Ordering::Relaxed);
        loop {
            let tokens = self.tokens(empty_at, now);
            if tokens < cost {
                return self.limit.over;
            }
            let left = now.saturating_sub(tokens.saturating_sub(cost));
            let swapped = self.empty_at.compare_exchange_weak(
                empty_at,
                left,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return !self.limit.over,
                Err(other) => empty_at = other,
            }
        }
    }

    /// Returns whether the statement matches as long as the rate is not exceeded.
    pub(crate) const fn matches_below(&self) -> bool {
        !self.limit.over
    }

    /// Returns whether the statement would match, without taking tokens.
    pub(crate) fn would(&self, now: Nanos, segments: u64, bytes: u64) -> bool {
        let tokens = self.tokens(self.empty_at.load(Ordering::Relaxed), moment(now));
        (tokens >= self.cost(segments, bytes)) != self.limit.over
    }
}

/// Returns the time that the rate needs for this many units; at most half of the range, so that
/// adding it to a time cannot overflow. Packets are rounded one by one, bytes together, as in
/// nftables.
fn nanoseconds(limit: Limit, units: u128) -> i64 {
    let (per, rate) = (u128::from(limit.per), u128::from(limit.rate.max(1)));
    let all = if limit.bytes {
        per.saturating_mul(units).checked_div(rate)
    } else {
        per.checked_div(rate).map(|one| one.saturating_mul(units))
    };
    all.map_or(0, |all| all.min(i64::MAX as u128 / 2) as i64)
}

fn moment(now: Nanos) -> i64 {
    i64::try_from(now.0).unwrap_or(i64::MAX)
}
