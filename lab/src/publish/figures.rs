//! The stored part of a published run: its origin, and each figure with its interval.

use std::collections::BTreeMap;

use adit_testbed::failure::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::record::Outcome;
use crate::report::{Run, date, kib};
use crate::stats::Verdict;

/// A published run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    /// The plan's name.
    pub(super) plan: String,
    /// The source's full hash.
    pub(super) revision: String,
    /// The date, as in `2026-03-01`.
    pub(super) date: String,
    /// Processor, cores, memory and kernel.
    pub(super) machine: String,
    /// The command that repeats the run.
    pub(super) command: String,
    /// The version of each subject.
    pub(super) versions: BTreeMap<String, String>,
    /// The number of measured trials.
    pub(super) trials: usize,
    /// The number of rounds of each trial.
    pub(super) rounds: u32,
    /// Warnings that precede all figures.
    pub(super) warnings: Vec<String>,
    /// All valid results; each has a separate line in the file.
    #[serde(skip)]
    pub(super) results: Vec<PublishedRow>,
}

/// One subject at one point of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PublishedRow {
    pub(super) scenario: String,
    pub(super) point: BTreeMap<String, String>,
    pub(super) subject: String,
    pub(super) values: BTreeMap<String, Value>,
}

/// A figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Value {
    pub(super) median: f64,
    /// Both ends of the 95 % interval.
    pub(super) interval: Option<[f64; 2]>,
    pub(super) ratio: Option<RatioToReference>,
}

/// The ratio of a figure to the reference's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RatioToReference {
    pub(super) reference: String,
    pub(super) median: f64,
    /// Both ends of the 95 % interval.
    pub(super) interval: Option<[f64; 2]>,
    /// Whether the difference is beyond the noise.
    pub(super) certain: bool,
}

impl Figures {
    /// Returns the stored part of a run.
    ///
    /// # Errors
    /// The run is not of a revision that others can check out, is not finished, or contains a failed trial.
    pub(super) fn of(run: &Run) -> Result<Self> {
        let manifest = &run.manifest;
        let source = manifest.source.as_ref().filter(|source| !source.dirty);
        let source = source
            .context("this run is of sources that no revision has: commit, build and run again")?;
        let finished = manifest.finished_ms.is_some();
        ensure(finished, || "this run was interrupted: adit-lab run --resume it".to_owned())?;
        let failed = |record: &&crate::record::Record| matches!(record.outcome, Outcome::Failed(_));
        let broken = run.records.iter().filter(failed).count();
        ensure(broken == 0, || format!("{broken} trials of this run failed: its report says why"))?;
        let measured =
            |record: &&crate::record::Record| matches!(record.outcome, Outcome::Measured(_));
        let machine = &manifest.machine;
        let versions = manifest.subjects.iter();
        Ok(Self {
            plan: manifest.plan.name.clone(),
            revision: source.hash.clone(),
            date: date(manifest.started_ms).chars().take("2026-03-01".len()).collect(),
            machine: format!(
                "{}, {} cores, {}, Linux {}",
                machine.cpu,
                machine.cores,
                kib(machine.memory_kib),
                machine.kernel
            ),
            command: format!(
                "adit-lab run {} --rounds {} --seed {}",
                manifest.plan.name, manifest.rounds, manifest.seed
            ),
            versions: versions.map(|(name, entry)| (name.clone(), entry.version.clone())).collect(),
            trials: run.records.iter().filter(measured).count(),
            rounds: manifest.rounds,
            warnings: run.summary.warnings.clone(),
            results: results(run),
        })
    }

    /// Returns the text of the file: the run in its first line, then a line for each result.
    ///
    /// # Errors
    /// A figure cannot be represented in JSON.
    pub(super) fn to_text(&self) -> Result<String> {
        let mut lines = vec![serde_json::to_string(self).context("the run")?];
        for result in &self.results {
            lines.push(serde_json::to_string(result).context("a result")?);
        }
        Ok(lines.join("\n") + "\n")
    }

    /// Parses the output of [`Self::to_text`].
    ///
    /// # Errors
    /// A line is malformed.
    pub(super) fn from_text(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let run = lines.next().context("an empty file")?;
        let mut figures: Self = serde_json::from_str(run).context("line 1")?;
        for (at, line) in lines.enumerate() {
            let result = serde_json::from_str(line).context(format!("line {}", at + 2))?;
            figures.results.push(result);
        }
        Ok(figures)
    }

    /// Returns the abbreviated revision.
    pub(super) fn short(&self) -> &str {
        self.revision.get(..8).unwrap_or(&self.revision)
    }
}

fn results(run: &Run) -> Vec<PublishedRow> {
    let rows = run.summary.rows.iter().filter(|row| row.invalid.is_none() && row.skipped.is_none());
    let ends = |interval: Option<crate::stats::Interval>| interval.map(|i| [i.low, i.high]);
    let published = rows.map(|row| {
        let values = row.values.iter().map(|(name, cell)| {
            let ratio = cell.ratio.as_ref().map(|ratio| RatioToReference {
                reference: ratio.reference.clone(),
                median: ratio.median,
                interval: ends(ratio.interval),
                certain: matches!(ratio.verdict, Verdict::Ahead | Verdict::Behind),
            });
            (name.clone(), Value { median: cell.median, interval: ends(cell.interval), ratio })
        });
        PublishedRow {
            scenario: row.scenario.clone(),
            point: row.point.0.clone(),
            subject: row.subject.clone(),
            values: values.collect(),
        }
    });
    published.collect()
}
