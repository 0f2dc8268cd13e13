//! The TOML format of plans, with the line of each mistake.

use serde::Deserialize;
use toml::Spanned;

use super::axis::ScenarioFile;
use crate::subject::Subject;

/// A whole plan file, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) about: String,
    #[serde(default = "five")]
    pub(super) rounds: Spanned<u32>,
    pub(super) seed: Option<u64>,
    pub(super) a_a: Option<Spanned<AAFile>>,
    #[serde(rename = "scenario")]
    pub(super) scenarios: Vec<Spanned<ScenarioFile>>,
}

fn five() -> Spanned<u32> {
    Spanned::new(0..0, 5)
}

/// The trial that is run against itself first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AAFile {
    pub(super) scenario: Spanned<String>,
    pub(super) subject: Spanned<Subject>,
}
