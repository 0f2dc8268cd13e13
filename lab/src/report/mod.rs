//! The reports of a run, as pure functions of `trials.jsonl` and `manifest.json`.
//!
//! ```text
//! trials.jsonl ─┐            ┌─ tables ─> Document ─┬─> report.md
//! manifest.json ┴─> Run ─────┤                      ├─> report.html
//!                            └─ figures ────────────┘
//! ```
//!
//! The plots are SVG written here, not by a plotting library. Classes instead of colours let the page's style sheet
//! apply its light or dark theme, each mark has a tooltip, each plot has a description in words, and the page is
//! self-contained.

pub mod manifest;

mod chart;
mod document;
mod ends;
mod figures;
mod html;
mod kinds;
mod layout;
mod markdown;
mod notes;
mod number;
mod order;
mod svg;
mod tables;
mod traces;
mod trains;
mod validity;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_testbed::failure::{Context, Result};

pub use manifest::Manifest;
pub(crate) use number::{date, kib, number, times_with_interval, with_interval};

use crate::record::{Record, TRIALS};
use crate::stats::{Summary, summarise};

/// Which run to report.
///
/// Example: adit-lab report results/2026-03-01-standard
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The run's folder, with its trials.jsonl and its manifest.json.
    pub dir: PathBuf,
}

/// Writes the reports of a run and names them.
///
/// # Errors
/// See [`write()`].
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    write(&arguments.dir)?;
    println!("{}", arguments.dir.join("report.md").display());
    println!("{}", arguments.dir.join("report.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Reads `DIR/trials.jsonl` and `DIR/manifest.json`, and writes `DIR/report.md` and `DIR/report.html`.
///
/// # Errors
/// The folder does not contain a run, or cannot be written.
pub fn write(dir: &Path) -> Result<()> {
    let run = Run::read(dir)?;
    let document = document::Document::of(&run);
    let put = |name: &str, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).context(path.display())
    };
    put("report.md", markdown::render(&document))?;
    put("report.html", html::render(&document, &run)?)
}

/// Returns the results of a run in a few sentences.
///
/// # Errors
/// As [`write()`].
pub fn headline(dir: &Path) -> Result<String> {
    let document = document::Document::of(&Run::read(dir)?);
    let lines = document.headline.iter().map(|line| line.sentences.join(" "));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// A run as read from its folder.
pub(crate) struct Run {
    pub(crate) manifest: Manifest,
    pub(crate) records: Vec<Record>,
    pub(crate) summary: Summary,
    /// The numbers of the lines that are not records. A run that is killed leaves an incomplete line.
    torn: Vec<usize>,
}

impl Run {
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let manifest = Manifest::read(dir)?;
        let path = dir.join(TRIALS);
        let text = std::fs::read(&path).context(path.display())?;
        Ok(Self::new(manifest, &String::from_utf8_lossy(&text)))
    }

    fn new(manifest: Manifest, trials: &str) -> Self {
        let mut records = Vec::new();
        let mut torn = Vec::new();
        for (i, line) in trials.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(record) => records.push(record),
                Err(_) => torn.push(i + 1),
            }
        }
        let summary = summarise(&records);
        Self { manifest, records, summary, torn }
    }
}
