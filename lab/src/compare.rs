//! `adit-lab compare A B`: is B slower than A?
//!
//! A and B are the folders of two runs, say before and after a change. What is asked of them, and how:
//!
//! 1. **What is compared.** On a shared machine absolute figures drift from hour to hour, for all subjects alike. So wherever both runs
//!    have the same reference (`openvpn`, else the first peer or bound) at the same point, what is compared is the logarithm of the *ratio to the
//!    reference in the same round*. Where there is no reference (in memory, scenarios of adit alone) the absolute figures are compared, and labelled so.
//! 2. **Who is judged.** Subjects whose name begins with `adit`. All others are the same programs in both runs: what they moved by is
//!    the machine's drift and is shown as such.
//! 3. **Fewer and stronger questions first.** Five rounds that scatter by 2 % cannot answer a hundred questions about 3 %. The figures are
//!    gathered into four *aspects* (speed, CPU, latency, memory), each averaged round by round over all points of a scenario: a slower
//!    build is slower at every point, while noise is not. Three families of tests share the 5 % of false alarms that one comparison may
//!    give: each aspect over all scenarios ([`ALPHA_OVERALL`]; Stouffer's sum of the scenarios' signed tests), each aspect of each scenario
//!    ([`ALPHA_SCENARIO`]), each figure of each row ([`ALPHA_ROW`]). Within a family by Holm's method.
//! 4. **The test** is Welch's: the two runs may scatter differently. To its squared error is added, per aspect or figure, the variance that the
//!    unchanged programs show between the two runs beyond their own noise inside each: if they moved, adit may have moved as much without
//!    being any different. Where that variance was seen in two or three programs only it is itself uncertain, and the test knows. So the more peers and
//!    bounds a plan has, the more its comparison can tell.
//! 5. **A floor.** Less than [`FLOOR`] percent (absolute figures: [`FLOOR_ABSOLUTE`]) is never called slower, however sure.
//! 6. **Counts** (`stuck`, `misconfigured`, `refused`, `survived` and whatever is zero in some round) have no ratio: B is worse where all
//!    rounds of A agree and every round of B is worse than they.
//! 7. **Instruction counts** repeat, so that any difference above [`FLOOR_INSTRUCTIONS`] percent is one.
//!
//! The exit code is 1 where B is slower (or otherwise worse) than A by these rules, 0 where not, also where it is faster.

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
/// For each aspect of each scenario.
pub const ALPHA_SCENARIO: f64 = 0.03;
/// For each figure of each row.
pub const ALPHA_ROW: f64 = 0.01;
/// In percent: what is never called slower where ratios to a reference are compared.
pub const FLOOR: f64 = 2.0;
/// In percent: the same for absolute figures, which nothing holds still.
pub const FLOOR_ABSOLUTE: f64 = 5.0;
/// In percent: the same for instruction counts.
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

/// Compares two runs and prints the answer; its first line is the verdict. The exit code is 1 where B is slower than A.
///
/// # Errors
/// Where a folder is not that of a run.
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

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The result in one sentence.
    pub verdict: String,
    /// Whether B is slower or otherwise worse anywhere.
    pub worse: bool,
    /// Each aspect over all scenarios.
    pub overall: Vec<Test>,
    /// Each aspect of each scenario.
    pub scenarios: Vec<Test>,
    /// Each figure of each row.
    pub rows: Vec<Test>,
    /// How many of the rows' figures differ by no more than the smallest detectable difference that the two runs print, and of how many:
    /// what two runs of the same build should agree in, except for one in twenty or so.
    pub within_sdd: (usize, usize),
    /// The movement of the programs that are the same in both runs, in absolute figures.
    pub drift: Vec<Test>,
    /// Warnings that precede the comparison.
    pub warnings: Vec<String>,
}

/// One question and its answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Test {
    /// The scenario; empty over all scenarios.
    pub scenario: String,
    /// The row's point, as text; None for more than a row.
    pub point: Option<String>,
    /// The subject.
    pub subject: String,
    /// An aspect (`speed`, `CPU`, `latency`, `memory`) or one of [`crate::metric::ALL`].
    pub what: String,
    /// By how many percent B is better than A; negative where it is worse. (Half the CPU time is 100 % better.) None of counts.
    pub better_by_percent: Option<f64>,
    /// The difference that B alone must exceed to be significant at 5 %, in percent: half the width of its 95 %
    /// interval.
    pub uncertainty_percent: Option<f64>,
    /// The larger of the smallest detectable differences that the two runs print for this figure, in percent; for rows.
    pub sdd_percent: Option<f64>,
    /// The probability of such a difference between runs of the same build.
    pub p: f64,
    /// The median of A and of B, for rows.
    pub medians: Option<(f64, f64)>,
    /// Rounds of A and of B.
    pub rounds: (usize, usize),
    /// The subject to which the compared ratios are; None where absolute figures were compared.
    pub relative_to: Option<String>,
    /// The outcome.
    pub outcome: Outcome,
}

/// The verdict on B compared with A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Better, beyond what these runs can tell.
    Better,
    /// Worse, beyond what these runs can tell.
    Worse,
    /// No difference beyond what these runs can tell.
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
