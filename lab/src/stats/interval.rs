//! Intervals, and the smallest difference that a number of rounds can detect.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;

use super::{logs, mean, sd, sorted, t_quantile};

/// From `low` to `high`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Returns whether it contains `x`.
    pub fn contains(&self, x: f64) -> bool {
        self.low <= x && x <= self.high
    }

    fn hull(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { low: f(self.low), high: f(self.high) }
    }
}

/// The number of resamples that a bootstrap draws.
pub const RESAMPLES: u32 = 10_000;

/// Returns the 95 % interval that is printed next to a median: the hull of [`bootstrap_median`] and [`student`]'s, both
/// on logarithms if all figures are positive (so that the interval of the inverse ratio is the inverse of the
/// interval). `None` for fewer than two figures.
///
/// Both are needed. The percentile bootstrap of the median of five figures is exactly their range, because the smallest figure is the
/// median of 5.8 % of all resamples; whatever the distribution, that range contains the true median in 1 - 2/2^5 = 93.75 % of all runs.
/// With three figures it is only 75 %, with seven 87.5 % (the second smallest to the second largest). A bootstrap of so few figures cannot
/// do better: it never goes beyond the figures that it has. Student's interval does, but assumes the shape of the noise. At each end the
/// wider of the two is used.
pub fn interval_of_median(figures: &[f64]) -> Option<Interval> {
    let both = |figures: &[f64]| Some(bootstrap_median(figures)?.hull(student(figures)?));
    match logs(figures) {
        Some(logs) => both(&logs).map(|interval| interval.map(f64::exp)),
        None => both(figures),
    }
}

/// Returns the 95 % percentile interval of the bootstrapped median, from [`RESAMPLES`] resamples with a fixed seed.
/// `None` if there are no figures.
pub fn bootstrap_median(figures: &[f64]) -> Option<Interval> {
    let figures = sorted(figures);
    if figures.is_empty() {
        return None;
    }
    let middles = resampled_middles(figures.len());
    let mut medians: Vec<(f64, u32)> = middles
        .iter()
        .filter_map(|((low, high), count)| {
            Some((f64::midpoint(*figures.get(*low)?, *figures.get(*high)?), *count))
        })
        .collect();
    medians.sort_by(|a, b| a.0.total_cmp(&b.0));
    let low = cut(medians.iter())?;
    let high = cut(medians.iter().rev())?;
    Some(Interval { low, high })
}

/// Returns the first value at which 2.5 % of the resamples are reached.
fn cut<'a>(medians: impl Iterator<Item = &'a (f64, u32)>) -> Option<f64> {
    let mut seen = 0;
    let mut medians = medians.skip_while(|(_, count)| {
        seen += count;
        seen * 40 < RESAMPLES
    });
    medians.next().map(|(median, _)| *median)
}

/// The number of times that two order statistics were the middle of a resample (twice the same if `n` is odd).
type MedianCounts = BTreeMap<(usize, usize), u32>;

/// Returns the resampled middles. A resample's median depends on the figures only through their order, so one draw per
/// `n` serves all of a run's figures.
fn resampled_middles(n: usize) -> Arc<MedianCounts> {
    static DRAWN: LazyLock<Mutex<BTreeMap<usize, Arc<MedianCounts>>>> =
        LazyLock::new(Mutex::default);
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    drawn.entry(n).or_insert_with(|| Arc::new(draw_middles(n))).clone()
}

fn draw_middles(n: usize) -> MedianCounts {
    let mut random = ChaCha8Rng::seed_from_u64(n as u64);
    let mut middles = MedianCounts::new();
    let mut places = vec![0; n];
    for _ in 0..RESAMPLES {
        for place in &mut places {
            // The upper half of the product is uniform over 0..n except for a bias of n / 2^32.
            *place = ((u64::from(random.next_u32()) * n as u64) >> 32) as usize;
        }
        places.sort_unstable();
        *middles.entry((places[(n - 1) / 2], places[n / 2])).or_default() += 1;
    }
    middles
}

/// Returns the 95 % interval of the mean by Student's distribution. `None` for fewer than two figures.
pub fn student(figures: &[f64]) -> Option<Interval> {
    let n = figures.len() as f64;
    let (mean, sd) = (mean(figures)?, sd(figures)?);
    let half = t_quantile(0.975, n - 1.0) * sd / n.sqrt();
    Some(Interval { low: mean - half, high: mean + half })
}

/// Returns the smallest difference between two runs of `n` rounds each that a two-sided test at 5 % finds in 80 % of
/// all cases: `(t(0.975) + t(0.8)) * sd * sqrt(2/n)`, both quantiles with `2(n - 1)` degrees of freedom. `sd` is the
/// standard deviation of the logarithms of one round's figure, and the result is a logarithm too: see [`percent`].
/// `None` for fewer than two rounds.
pub fn smallest_detectable(sd: f64, n: usize) -> Option<f64> {
    if n < 2 {
        return None;
    }
    let n = n as f64;
    let df = 2.0 * (n - 1.0);
    Some((t_quantile(0.975, df) + t_quantile(0.8, df)) * sd * (2.0 / n).sqrt())
}

/// Returns a difference of logarithms as a change in percent: 0.0953 is 10 %.
pub fn percent(log: f64) -> f64 {
    log.exp_m1() * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: Interval, low: f64, high: f64) {
        assert!((got.low - low).abs() < 5e-4 && (got.high - high).abs() < 5e-4, "{got:?}");
    }

    /// P(the smallest of n is the median of a resample) = P(Binomial(n, 1/n) > n/2) for odd n: 0.0579 for 5, 0.0102 for 7.
    #[test]
    fn the_bootstrap_draws_what_the_binomial_says() {
        let share = |n: usize| f64::from(draw_middles(n)[&(0, 0)]) / f64::from(RESAMPLES);
        assert!((share(3) - 7.0 / 27.0).abs() < 0.015, "{}", share(3));
        assert!((share(5) - 0.0579).abs() < 0.007, "{}", share(5));
        assert!((share(7) - 0.0102).abs() < 0.003, "{}", share(7));
    }

    /// Therefore the interval of five figures is their range, and that of seven ends at the second smallest and the
    /// second largest.
    #[test]
    fn the_bootstrap_of_few_is_made_of_order_statistics() {
        let of = |figures: &[f64]| bootstrap_median(figures).unwrap();
        near(of(&[5.0, 1.0, 3.0, 2.0, 4.0]), 1.0, 5.0);
        near(of(&[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), 2.0, 6.0);
        near(of(&[9.0]), 9.0, 9.0);
        assert_eq!(bootstrap_median(&[]), None);
        assert_eq!(bootstrap_median(&[1.0, 2.0, 4.0]), bootstrap_median(&[4.0, 2.0, 1.0]));
    }

    /// For 101 figures 1..101 the bootstrap's standard error of the median is about 101 * sqrt(1/4/101) = 5.02 places:
    /// 51 -+ 9.8.
    #[test]
    fn the_bootstrap_of_many_nears_the_normal() {
        let figures: Vec<f64> = (1..=101).map(f64::from).collect();
        let got = bootstrap_median(&figures).unwrap();
        assert!((40.0..=42.5).contains(&got.low) && (59.5..=62.0).contains(&got.high), "{got:?}");
    }

    /// 1 2 3 4 5: mean 3, sd sqrt(2.5), t(0.975, 4) = 2.7764: 3 -+ 2.7764 * 0.70711.
    #[test]
    fn students_interval() {
        near(student(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap(), 1.0367, 4.9633);
        assert_eq!(student(&[1.0]), None);
    }

    #[test]
    fn the_printed_interval_is_the_wider_at_each_end() {
        // Logarithms 0 0 0 0 ln 2: Student's upper end is 0.1386 + 2.7764 * 0.31 / sqrt 5 = 0.5235, below the
        // bootstrap's ln 2; its lower end is 0.1386 - 0.3849 = -0.2463, below the bootstrap's 0.
        let got = interval_of_median(&[1.0, 1.0, 1.0, 1.0, 2.0]).unwrap();
        near(got, (-0.2463_f64).exp(), 2.0);
        // The interval of the inverse figures is the inverse interval.
        let inverse = interval_of_median(&[1.0, 1.0, 1.0, 1.0, 0.5]).unwrap();
        near(inverse, 0.5, 0.2463_f64.exp());
        // If a figure is zero, the interval is computed on the figures themselves.
        near(interval_of_median(&[0.0, 0.0, 0.0]).unwrap(), 0.0, 0.0);
    }

    /// 2 % noise and five rounds: (2.30600 + 0.88889) * 0.02 * sqrt(0.4) = 0.040412, or 4.12 %.
    #[test]
    fn the_smallest_detectable_difference() {
        let got = smallest_detectable(0.02, 5).unwrap();
        assert!((got - 0.040_412).abs() < 1e-5, "{got}");
        assert!((percent(got) - 4.124).abs() < 1e-3);
        assert_eq!(smallest_detectable(0.02, 1), None);
    }
}
