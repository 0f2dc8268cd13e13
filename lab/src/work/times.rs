//! A distribution of times.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::record::Latency;

/// The longest time that is distinguished from longer ones.
const LONGEST: Duration = Duration::from_secs(100);

/// A histogram that yields a [`Latency`], with three significant digits from 1 µs to 100 s.
#[derive(Debug, Clone)]
pub struct Times {
    nanos: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

impl Times {
    /// Creates an empty histogram.
    ///
    /// # Panics
    /// Never: the bounds are constants that the histogram accepts.
    pub fn new() -> Self {
        let longest = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX);
        Self { nanos: Histogram::new_with_bounds(1_000, longest, 3).expect("constant bounds") }
    }

    /// Adds one time in nanoseconds; longer times are recorded as the longest.
    pub fn record(&mut self, nanos: u64) {
        self.nanos.saturating_record(nanos);
    }

    /// Returns the number of recorded times.
    pub fn count(&self) -> u64 {
        self.nanos.len()
    }

    /// Returns the quantile at this share (0 to 1), in milliseconds; 0 if no time was recorded.
    pub fn at(&self, share: f64) -> f64 {
        self.nanos.value_at_quantile(share) as f64 / 1e6
    }

    /// Returns the times for a record, with the number of probes that never came back.
    pub fn latency(&self, lost: u64) -> Latency {
        let quantiles = match self.count() {
            0 => Vec::new(),
            _ => shares().map(|share| (share, self.at(share))).collect(),
        };
        Latency { count: self.count(), lost, quantiles }
    }
}

/// Returns the quantiles at which a distribution is recorded: every 0.02 up to 0.9, then in decreasing steps up to the
/// maximum.
fn shares() -> impl Iterator<Item = f64> {
    let steps = |range: std::ops::RangeInclusive<u32>, whole: u32| {
        range.map(move |part| f64::from(part) / f64::from(whole))
    };
    steps(0..=44, 50)
        .chain(steps(90..=98, 100))
        .chain(steps(990..=998, 1000))
        .chain(steps(9990..=9999, 10_000))
        .chain([1.0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantiles_of_a_thousand_different_times() {
        let mut times = Times::new();
        for millis in 1..=1000_u64 {
            times.record(millis * 1_000_000);
        }
        let latency = times.latency(7);
        assert_eq!((latency.count, latency.lost), (1000, 7));
        for (share, expected) in
            [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)]
        {
            let found = latency.at(share).unwrap();
            assert!((found - expected).abs() <= expected / 500.0, "{share}: {found}");
        }
        assert!(latency.quantiles.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{latency:?}");
    }

    #[test]
    fn none_has_no_quantiles_and_the_longest_is_not_lost() {
        assert_eq!(Times::new().latency(3), Latency { count: 0, lost: 3, quantiles: Vec::new() });
        let mut times = Times::new();
        times.record(u64::MAX);
        assert_eq!(times.count(), 1);
        assert!(times.at(1.0) >= 100_000.0);
    }
}
