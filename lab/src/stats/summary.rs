//! The summary of a run's trials, from which tables and bars are drawn.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Interval, Slope};
use crate::record::Point;

/// The summary of a whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The rows, ordered by scenario, point and subject; numbers in points are in numeric order.
    pub rows: Vec<Row>,
    /// A/A: the same subject run twice.
    pub a_a: Vec<AaRow>,
    /// The growth of CPU and memory with the number of clients, in scenarios of the kind `growth`.
    pub growth: Vec<Growth>,
    /// Warnings that precede all figures, such as that A/A found a difference.
    pub warnings: Vec<String>,
}

/// One subject at one point of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The scenario's name.
    pub scenario: String,
    /// The scenario's kind.
    pub kind: String,
    /// The point on its axes.
    pub point: Point,
    /// The subject.
    pub subject: String,
    /// Whether the ratios of this scenario and point are to this subject.
    pub is_reference: bool,
    /// The metrics, by the names of [`crate::metric::ALL`]; empty if nothing was measured.
    pub values: BTreeMap<String, Cell>,
    /// The rounds that count: the valid ones, or only the unmarked ones if there are at least three of them.
    pub rounds: Vec<u32>,
    /// The valid rounds in which the hypervisor took more than 1 % of the machine's time.
    pub marked: Vec<u32>,
    /// The rounds that do not count because they are invalid or failed, with the reasons.
    pub not_counted: Vec<(u32, String)>,
    /// The reason why it was not run, if it was not.
    pub skipped: Option<String>,
    /// The reason why this result must not be used; `None` if it may be. Its figures are shown in any case.
    pub invalid: Option<String>,
}

/// One metric of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// The median over the rounds that count.
    pub median: f64,
    /// Its 95 % interval; `None` for fewer than two rounds.
    pub interval: Option<Interval>,
    /// The figure of each round that counts.
    pub by_round: BTreeMap<u32, f64>,
    /// The smallest detectable difference in percent, the larger of this row's own and that of A/A; `None` for fewer
    /// than two rounds or if a figure is not positive.
    pub sdd_percent: Option<f64>,
    /// The ratio to the reference, if there is one and the metric has a better direction.
    pub ratio: Option<Ratio>,
}

/// The ratio of a subject's figure to the reference's of the same round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// The subject that it is compared with.
    pub reference: String,
    /// The median of the rounds' ratios.
    pub median: f64,
    /// Its 95 % interval; `None` for fewer than two pairs.
    pub interval: Option<Interval>,
    /// The number of rounds that both have.
    pub pairs: usize,
    /// The smallest detectable difference to the ratio of another run of as many rounds, in percent.
    pub sdd_percent: Option<f64>,
    /// The verdict on the difference.
    pub verdict: Verdict,
}

/// Whether the subject is better than the reference, and whether the data shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Better than the reference, beyond the noise.
    Ahead,
    /// Worse than the reference, beyond the noise.
    Behind,
    /// The interval contains 1, or the difference is not above the smallest detectable one.
    InsideTheNoise,
    /// At least one of the two has no valid result.
    Invalid,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Ahead => "ahead",
            Self::Behind => "behind",
            Self::InsideTheNoise => "inside the noise",
            Self::Invalid => "invalid",
        })
    }
}

/// The same subject run twice at the same point, in turns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AaRow {
    /// The scenario's name.
    pub scenario: String,
    /// The point on its axes.
    pub point: Point,
    /// The subject, without the `#a` and `#b` that distinguish the two sides of a round in `trials.jsonl`.
    pub subject: String,
    /// The metrics with a direction, by the names of [`crate::metric::ALL`].
    pub values: BTreeMap<String, AaCell>,
}

/// One metric of A/A.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AaCell {
    /// The number of pairs.
    pub pairs: usize,
    /// The median of `#b` over `#a` of the same round.
    pub ratio: f64,
    /// Its 95 % interval; `None` for fewer than two pairs.
    pub interval: Option<Interval>,
    /// The smallest detectable difference in percent.
    pub sdd_percent: Option<f64>,
    /// Whether A differs from A, which does not happen on a steady machine.
    pub different: bool,
}

/// The growth of one metric with the number of clients.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Growth {
    /// The scenario's name.
    pub scenario: String,
    /// The point without its `clients`.
    pub point: Point,
    /// The subject.
    pub subject: String,
    /// A metric of [`crate::metric::ALL`].
    pub metric: String,
    /// `(clients, figure)` of all rounds that count.
    pub points: Vec<(f64, f64)>,
    /// The fit of the figure against the clients, in the metric's unit per client.
    pub linear: Slope,
    /// The fit of the logarithms, whose slope is 1 if the figure is proportional to the number of clients.
    pub log_log: Option<Slope>,
    /// Whether the whole interval of the log-log slope is above 1.
    pub above_linear: bool,
}
