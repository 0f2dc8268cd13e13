//! Estimates the size of a difference, and its certainty.

use std::collections::BTreeMap;

use super::series::Series;
use super::{FLOOR, FLOOR_ABSOLUTE, Outcome, Test};
use crate::stats::{ENOUGH, mean, percent, t_quantile, two_sided_p, variance};

/// The logarithm of the factor by which B is better than A, and its certainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) difference: f64,
    /// The square of the standard error.
    pub(super) error: f64,
    pub(super) df: f64,
    pub(super) rounds: (usize, usize),
}

/// A variance between runs, in addition to the noise within them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RunVariance {
    pub(super) variance: f64,
    /// The number of programs in which it was observed.
    count: f64,
}

impl RunVariance {
    /// Returns the drift that the differences of this many unchanged programs show beyond their own errors. It is the
    /// variance at which their squares, each divided by the sum of this variance and its squared error, add up to the
    /// expected value (Paule and Mandel, Journal of Research of the NBS 87, 1982). Figures with little noise have the
    /// most weight. The expected value is `df / (df - 2)`, the mean of Fisher's distribution, rather than 1, because an
    /// error estimated from few rounds is often too small, and would be mistaken for drift.
    pub(super) fn of(estimates: &[Estimate], programs: usize) -> Self {
        let beyond = |variance: f64| -> f64 {
            let each = |e: &Estimate| {
                let error = (variance + e.error).max(1e-12);
                let df = e.df * (error / e.error.max(1e-12)).powi(2);
                e.difference.powi(2) / error - df.max(3.0) / (df.max(3.0) - 2.0)
            };
            estimates.iter().map(each).sum()
        };
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if beyond(middle) > 0.0 { low = middle } else { high = middle }
        }
        Self { variance: low, count: programs as f64 }
    }
}

/// Returns the average of some series, round by round, B against A. Each series is centred first, so that a round in
/// which one of them is missing is no different from the others. `None` with fewer than three rounds in a run.
pub(super) fn estimate(series: &[&Series<'_>]) -> Option<Estimate> {
    let mut rounds: [BTreeMap<u32, Vec<f64>>; 2] = Default::default();
    for logs in series.iter().filter_map(|series| series.logs.as_ref()) {
        let means = [0, 1].map(|run: usize| mean(&logs[run].values().copied().collect::<Vec<_>>()));
        let [Some(a), Some(b)] = means else { continue };
        let centre = f64::midpoint(a, b);
        for (run, logs) in rounds.iter_mut().zip(logs) {
            for (round, log) in logs {
                run.entry(*round).or_default().push(log - centre);
            }
        }
    }
    let [a, b] = rounds.map(|run| run.values().filter_map(|logs| mean(logs)).collect::<Vec<f64>>());
    welch(&a, &b)
}

/// Runs Welch's comparison of two means. Returns `None` with fewer than three figures on a side.
fn welch(a: &[f64], b: &[f64]) -> Option<Estimate> {
    if a.len() < ENOUGH || b.len() < ENOUGH {
        return None;
    }
    let (n_a, n_b) = (a.len() as f64, b.len() as f64);
    let (e_a, e_b) = (variance(a)? / n_a, variance(b)? / n_b);
    let error = e_a + e_b;
    let df = error * error / (e_a * e_a / (n_a - 1.0) + e_b * e_b / (n_b - 1.0));
    // Without any scatter the fraction is 0/0, and the degrees of freedom do not matter.
    let df = if df.is_finite() { df } else { n_a + n_b - 2.0 };
    Some(Estimate { difference: mean(b)? - mean(a)?, error, df, rounds: (a.len(), b.len()) })
}

impl Estimate {
    /// Adds the machine's drift to the error. A drift observed in few programs is itself uncertain, so the degrees of
    /// freedom are Satterthwaite's (Biometrics Bulletin 2, 1946).
    pub(super) fn widened(self, movement: RunVariance) -> Self {
        let error = self.error + movement.variance;
        let parts =
            self.error.powi(2) / self.df + movement.variance.powi(2) / movement.count.max(1.0);
        let df = if parts > 0.0 { error * error / parts } else { self.df };
        Self { error, df, ..self }
    }

    pub(super) fn p(&self) -> f64 {
        match (self.difference.abs() < 1e-12, self.error > 0.0) {
            (true, _) => 1.0,
            (false, false) => 0.0,
            (false, true) => two_sided_p(self.difference / self.error.sqrt(), self.df),
        }
    }

    /// Returns a test whose scenario, point and subject are not yet set.
    pub(super) fn test(&self, relative_to: Option<&str>) -> Test {
        Test {
            scenario: String::new(),
            point: None,
            subject: String::new(),
            what: String::new(),
            better_by_percent: Some(percent(self.difference)),
            uncertainty_percent: Some(percent(t_quantile(0.975, self.df) * self.error.sqrt())),
            sdd_percent: None,
            p: self.p(),
            medians: None,
            rounds: self.rounds,
            relative_to: relative_to.map(str::to_owned),
            outcome: Outcome::Same,
        }
    }
}

/// Applies Holm's method (Scandinavian Journal of Statistics 6, 1979). If there is no difference at all, the
/// probability that any of these tests reports one stays below `alpha`. No difference below the floor is reported.
pub(super) fn holm(mut tests: Vec<&mut Test>, alpha: f64) {
    tests.sort_by(|a, b| a.p.total_cmp(&b.p));
    let count = tests.len();
    for (i, test) in tests.into_iter().enumerate() {
        if test.p > alpha / (count - i) as f64 {
            return;
        }
        let floor = if test.relative_to.is_some() { FLOOR } else { FLOOR_ABSOLUTE };
        let difference = test.better_by_percent.unwrap_or(0.0);
        // A loss of x percent is as far from 0 as the gain that compensates for it.
        let beyond = (difference / 100.0).ln_1p().abs() > (floor / 100.0).ln_1p();
        test.outcome = match beyond {
            true if difference < 0.0 => Outcome::Worse,
            true => Outcome::Better,
            false => Outcome::Same,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(difference: f64, error: f64) -> Estimate {
        Estimate { difference, error, df: 8.0, rounds: (5, 5) }
    }

    /// With equal, well-known errors it is the mean square minus the error: 9e-4 - 1e-4. Programs that moved less than
    /// their noise did not drift. With 8 degrees of freedom a square of 8/6 of its error is no more than expected.
    #[test]
    fn movement_by_hand() {
        let known = |difference: f64| Estimate { df: 1e9, ..estimate(difference, 1e-4) };
        let moved = RunVariance::of(&[known(0.03), known(-0.03)], 2);
        assert!((moved.variance - 8e-4).abs() < 1e-9, "{moved:?}");
        assert!(RunVariance::of(&[known(0.005)], 1).variance < 1e-12);
        assert!(RunVariance::of(&[], 0).variance < 1e-12);
        let square =
            |ratio: f64| RunVariance::of(&[estimate((ratio * 1e-4_f64).sqrt(), 1e-4)], 1).variance;
        assert!(square(1.33) < 1e-12 && square(1.34) > 1e-8);
        // 1e-4 with 8 degrees of freedom and 1e-4 with 2 of them: (2e-4)^2 / (1e-8/8 + 1e-8/2) = 6.4.
        let widened = estimate(0.05, 1e-4).widened(RunVariance { variance: 1e-4, count: 2.0 });
        assert!((widened.error - 2e-4).abs() < 1e-15 && (widened.df - 6.4).abs() < 1e-9);
        // Without an observed variance, nothing is added.
        assert_eq!(
            estimate(0.05, 1e-4).widened(RunVariance::default()).error.to_bits(),
            1e-4_f64.to_bits()
        );
    }
}
