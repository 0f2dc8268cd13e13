//! Straight lines through points.

use serde::Serialize;

use super::Interval;

/// A straight line fitted by least squares: `y = intercept + slope * x`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slope {
    /// What one unit of `x` adds to `y`.
    pub slope: f64,
    /// `y` at 0.
    pub intercept: f64,
    /// The slope's standard error.
    pub error: f64,
    /// The slope's 95 % interval.
    pub interval: Interval,
    /// How many points.
    pub points: usize,
}
