//! `adit-lab compare A B` determines whether B is slower than A.
//!
//! A and B are the folders of two runs, for example before and after a change. The rules of the comparison:
//!
//! 1. **What is compared.** On a shared machine absolute figures drift from hour to hour, for all subjects alike. So if both runs
//!    have the same reference (`openvpn`, else the first peer or bound) at the same point, the comparison uses the logarithm of the *ratio to the
//!    reference in the same round*. Without a reference (in memory, scenarios of adit alone) the absolute figures are compared, and labelled as such.
//! 2. **Which subjects are judged.** Subjects whose name begins with `adit`. All others are the same programs in both
//!    runs, so their differences are the machine's drift and are shown as such.
//! 3. **Fewer and stronger tests first.** Five rounds that scatter by 2 % cannot answer a hundred questions about 3 %.
//!    The figures are gathered into four *aspects* (speed, CPU, latency, memory), each averaged round by round over all
//!    points of a scenario, because a slower build is slower at every point, while noise is not. Three families of
//!    tests share the 5 % of false alarms that one comparison may produce: each aspect over all scenarios
//!    ([`ALPHA_OVERALL`]; Stouffer's sum of the scenarios' signed tests), each aspect of each scenario
//!    ([`ALPHA_SCENARIO`]), each figure of each row ([`ALPHA_ROW`]). Within a family, Holm's method applies.
//! 4. **The test** is Welch's, because the two runs may scatter differently. The variance that the unchanged programs
//!    show between the two runs, beyond their own noise within each, is added to its squared error, per aspect or
//!    figure, because if they drifted, adit may have drifted as much without any change. If only two or three programs
//!    show that variance, it is itself uncertain, and the test accounts for it. So the more peers and bounds a plan
//!    has, the smaller the differences that its comparison can detect.
//! 5. **A floor.** Less than [`FLOOR`] percent (absolute figures: [`FLOOR_ABSOLUTE`]) is never called slower, however certain.
//! 6. **Counts** (`stuck`, `misconfigured`, `refused`, `survived` and any figure that is zero in some round) have no
//!    ratio. B is worse if all rounds of A agree and every round of B is worse.
//! 7. **Instruction counts** repeat exactly, so any difference above [`FLOOR_INSTRUCTIONS`] percent is significant.
//!
//! The exit code is 1 if B is slower (or otherwise worse) than A by these rules, otherwise 0, even if B is faster.

mod estimate;
mod judge;
mod load;
mod markdown;
mod series;
mod wording;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use adit_testbed::failure::{Context, Result};
use serde::Serialize;

pub use judge::compare;

/// The share of false alarms for each aspect over all scenarios.
pub const ALPHA_OVERALL: f64 = 0.01;
/// The share of false alarms for each aspect of each scenario.
pub const ALPHA_SCENARIO: f64 = 0.03;
/// The share of false alarms for each figure of each row.
pub const ALPHA_ROW: f64 = 0.01;
/// The slowdown in percent up to which B is never called slower, for ratios to a reference.
pub const FLOOR: f64 = 2.0;
/// The same limit for absolute figures, which drift with the machine.
pub const FLOOR_ABSOLUTE: f64 = 5.0;
/// The same limit for instruction counts.
pub const FLOOR_INSTRUCTIONS: f64 = 0.5;

/// Which two runs to compare.
///
/// Example: adit-lab compare results/before results/after
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The folder of the run before.
    pub a: PathBuf,
    /// The folder of the run after.
    pub b: PathBuf,
    /// Print JSON instead of Markdown.
    #[arg(long)]
    pub json: bool,
}

/// Compares two runs and prints the result; its first line is the verdict. The exit code is 1 if B is slower than A.
///
/// # Errors
/// A folder does not contain a run.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (a, b) = (load::Run::read(&arguments.a)?, load::Run::read(&arguments.b)?);
    let mut comparison = compare(&a.summary, &b.summary);
    comparison.warnings.splice(0..0, load::differences(&a, &b));
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&comparison).context("the comparison")?);
    } else {
        print!("{}", markdown::render(&comparison));
    }
    Ok(if comparison.worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The result in one sentence.
    pub verdict: String,
    /// Whether B is slower or otherwise worse anywhere.
    pub worse: bool,
    /// The tests of each aspect over all scenarios.
    pub overall: Vec<Test>,
    /// The tests of each aspect of each scenario.
    pub scenarios: Vec<Test>,
    /// The tests of each figure of each row.
    pub rows: Vec<Test>,
    /// The number of figures in rows that differ by no more than the smallest detectable difference printed by the two
    /// runs, and the number of all such figures. Two runs of the same build should agree in all but about one in
    /// twenty.
    pub within_sdd: (usize, usize),
    /// The drift of the programs that are the same in both runs, in absolute figures.
    pub drift: Vec<Test>,
    /// Warnings about the comparison.
    pub warnings: Vec<String>,
}

/// One test and its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Test {
    /// The scenario; empty over all scenarios.
    pub scenario: String,
    /// The row's point, as text; `None` for more than one row.
    pub point: Option<String>,
    /// The subject.
    pub subject: String,
    /// An aspect (`speed`, `CPU`, `latency`, `memory`) or one of [`crate::metric::ALL`].
    pub what: String,
    /// The percentage by which B is better than A; negative if it is worse. (Half the CPU time is 100 % better.) `None`
    /// for counts.
    pub better_by_percent: Option<f64>,
    /// The difference in percent that this test on its own must exceed to be significant at 5 %, which is half the
    /// width of its 95 % interval.
    pub uncertainty_percent: Option<f64>,
    /// The larger of the two smallest detectable differences that the runs print for this figure, in percent; for rows
    /// only.
    pub sdd_percent: Option<f64>,
    /// The probability of a difference of this size between runs of the same build.
    pub p: f64,
    /// The median of A and of B, for rows.
    pub medians: Option<(f64, f64)>,
    /// The number of rounds of A and of B.
    pub rounds: (usize, usize),
    /// The reference of the compared ratios; `None` if absolute figures were compared.
    pub relative_to: Option<String>,
    /// The outcome.
    pub outcome: Outcome,
}

/// The verdict on B compared with A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Better, by more than the uncertainty of these runs.
    Better,
    /// Worse, by more than the uncertainty of these runs.
    Worse,
    /// No difference beyond the uncertainty of these runs.
    Same,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::Same => "-",
        })
    }
}
