//! Statistics, all pure and with known answers.

mod basic;
mod fit;
mod interval;
mod summary;

pub use basic::{geometric_mean, jain, logs, mean, median, quantile, sd, sorted, variance};
pub use fit::Slope;
pub use interval::Interval;
pub use summary::{AaCell, AaRow, Cell, Growth, Ratio, Row, Summary, Verdict, summarise};
