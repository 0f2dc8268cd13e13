//! Straight lines through points.

use serde::Serialize;

use super::{Interval, t_quantile};

/// A straight line fitted by least squares: `y = intercept + slope * x`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slope {
    /// The increase of `y` for one unit of `x`.
    pub slope: f64,
    /// `y` at 0.
    pub intercept: f64,
    /// The slope's standard error.
    pub error: f64,
    /// The slope's 95 % interval, by Student's distribution with two degrees of freedom fewer than points.
    pub interval: Interval,
    /// The number of points.
    pub points: usize,
}

/// Returns the line through `(x, y)` with the least squares. `None` for fewer than three points or if all have the same
/// `x`.
pub fn line(points: &[(f64, f64)]) -> Option<Slope> {
    let n = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    if spread <= 0.0 {
        return None;
    }
    let slope = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / spread;
    let intercept = mean_y - slope * mean_x;
    let left: f64 = points.iter().map(|(x, y)| (y - intercept - slope * x).powi(2)).sum();
    let error = (left / (n - 2.0) / spread).sqrt();
    let half = t_quantile(0.975, n - 2.0) * error;
    let interval = Interval { low: slope - half, high: slope + half };
    Some(Slope { slope, intercept, error, interval, points: points.len() })
}

/// Fits the logarithms, so that the slope is the exponent of `y = c * x^slope`. `None` if a figure is not positive.
pub fn log_log(points: &[(f64, f64)]) -> Option<Slope> {
    let logs = points.iter().map(|(x, y)| (*x > 0.0 && *y > 0.0).then(|| (x.ln(), y.ln())));
    line(&logs.collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// x 1..5, y 2 4 5 4 5: slope 6/10, intercept 2.2, residual squares 2.4, error sqrt(2.4/3/10), t(0.975, 3) = 3.1824.
    #[test]
    fn a_line_by_hand() {
        let got = line(&[(1.0, 2.0), (2.0, 4.0), (3.0, 5.0), (4.0, 4.0), (5.0, 5.0)]).unwrap();
        assert!((got.slope - 0.6).abs() < 1e-12 && (got.intercept - 2.2).abs() < 1e-12);
        assert!((got.error - 0.08_f64.sqrt()).abs() < 1e-12);
        assert!((got.interval.high - (0.6 + 3.1824 * 0.282_843)).abs() < 1e-4, "{got:?}");
        assert_eq!(got.points, 5);
    }

    #[test]
    fn no_line_through_too_little() {
        assert_eq!(line(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(line(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(log_log(&[(1.0, 1.0), (2.0, 0.0), (3.0, 3.0)]), None);
    }

    #[test]
    fn the_exponent_of_a_power() {
        let points: Vec<(f64, f64)> =
            [1.0_f64, 5.0, 20.0, 50.0, 100.0].iter().map(|n| (*n, 3.0 * n.powf(1.5))).collect();
        let got = log_log(&points).unwrap();
        assert!((got.slope - 1.5).abs() < 1e-9 && (got.intercept - 3.0_f64.ln()).abs() < 1e-9);
    }
}
