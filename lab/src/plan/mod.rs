//! Plans. A plan defines the scenarios, points and subjects of a run, the number of rounds, and the order of the trials.
//!
//! `smoke`, `standard`, `full`, `transports` and `workers` are plan files like those that any user can write
//! (`lab/plans/`); `docs/lab.md` describes the format.

mod axis;
mod check;
mod file;
mod kind;
mod order;

pub use axis::{Axis, Clientele, Hostile, Outer, Packet, Pattern, Settings, Storm, Workload};
pub use kind::{ALL as KINDS, Description, Kind};
pub use order::Trial;

use std::path::Path;

use adit_testbed::failure::{Context, Failure, Result};

use crate::record::Point;
use crate::subject::Subject;

/// The built-in plans: name and text.
pub const PRESETS: [(&str, &str); 16] = [
    ("smoke", include_str!("../../plans/smoke.toml")),
    ("standard", include_str!("../../plans/standard.toml")),
    ("full", include_str!("../../plans/full.toml")),
    ("transports", include_str!("../../plans/transports.toml")),
    ("hostile", include_str!("../../plans/hostile.toml")),
    ("hostile-smoke", include_str!("../../plans/hostile-smoke.toml")),
    ("bridge", include_str!("../../plans/bridge.toml")),
    ("mesh", include_str!("../../plans/mesh.toml")),
    ("tinc", include_str!("../../plans/tinc.toml")),
    ("workers", include_str!("../../plans/workers.toml")),
    ("management", include_str!("../../plans/management.toml")),
    ("scrape", include_str!("../../plans/scrape.toml")),
    ("rules", include_str!("../../plans/rules.toml")),
    ("postgres", include_str!("../../plans/postgres.toml")),
    ("postgres-growth", include_str!("../../plans/postgres-growth.toml")),
    ("postgres-soak", include_str!("../../plans/postgres-soak.toml")),
];

/// A plan: the scenarios to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The name of the plan, for the folder of results.
    pub name: String,
    /// The purpose of the plan, in a line or two.
    pub about: String,
    /// The text that it was read from.
    pub text: String,
    /// The seed of the order of trials; taken from the clock if not given.
    pub seed: Option<u64>,
    /// The number of rounds of a scenario that gives none, and of the A/A trials.
    pub rounds: u32,
    /// The trial that is run against itself, once in each round.
    pub a_a: Option<AA>,
    /// The scenarios, in the order of the file.
    pub scenarios: Vec<Scenario>,
}

/// A trial that is run against itself, so any difference is noise.
#[derive(Debug, Clone, PartialEq)]
pub struct AA {
    /// The scenario whose first point is taken.
    pub scenario: String,
    /// The subject of both sides.
    pub subject: Subject,
}

/// One scenario of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The name. It is unique in its plan.
    pub name: String,
    /// The kind of its trials.
    pub kind: Kind,
    /// The number of times that each trial is repeated.
    pub rounds: u32,
    /// The subjects that are measured; empty for kinds without subjects.
    pub subjects: Vec<Subject>,
    /// All combinations of the axes' values.
    pub points: Vec<(Point, Settings)>,
}

impl Plan {
    /// Returns the plan with this name, or the one in the file at this path.
    ///
    /// # Errors
    /// The file cannot be read, or is not a plan; the error names the file and line.
    pub fn load(name: &str) -> Result<Self> {
        if let Some((_, text)) = PRESETS.iter().find(|(preset, _)| *preset == name) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure(format!(
                "{name}: {error}; write smoke, standard, full, transports, workers or the path of a plan's file"
            ))
        })?;
        Self::parse(name, &text)
    }

    /// Reads a plan; `origin` precedes the line number in messages.
    ///
    /// # Errors
    /// The text is not a plan; the error names the line of the mistake.
    pub fn parse(origin: &str, text: &str) -> Result<Self> {
        let file: file::File = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| check::line_of(text, span.start));
            Failure(format!("{origin}:{line}: {}", error.message()))
        })?;
        check::plan(file, text).map_err(|mistake| {
            Failure(format!("{origin}:{}: {}", check::line_of(text, mistake.at), mistake.what))
        })
    }

    /// Returns every subject that any scenario names, without duplicates.
    pub fn subjects(&self) -> Vec<Subject> {
        let named = self.scenarios.iter().flat_map(|scenario| scenario.subjects.iter());
        let mut all: Vec<Subject> =
            named.chain(self.a_a.iter().map(|a_a| &a_a.subject)).cloned().collect();
        all.sort();
        all.dedup();
        all
    }

    /// Retains only the scenarios with these names.
    ///
    /// # Errors
    /// No scenario has one of the names.
    pub fn only(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            self.scenarios.iter().find(|scenario| scenario.name == *name).context(format!(
                "{}: no scenario is called {name:?}; there are {}",
                self.name,
                self.scenarios.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ")
            ))?;
        }
        self.scenarios.retain(|scenario| names.contains(&scenario.name));
        let kept = |a_a: &AA| self.scenarios.iter().any(|scenario| scenario.name == a_a.scenario);
        if !self.a_a.as_ref().is_some_and(kept) {
            self.a_a = None;
        }
        Ok(())
    }
}
