//! The tables in the project's documents, made only from runs.
//!
//! ```text
//! a run's folder ── publish ──> docs/figures/PLAN.jsonl ──> README.md, docs/benchmarks.md
//! ```
//!
//! A comment in a document defines the figures of each table (`region.rs`); publishing a run stores its summary and writes the
//! tables. So each figure has a revision and a date, and a figure that is older than the code it measured is detected.

mod age;
mod figures;
mod region;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_testbed::failure::{Context, Failure, Result, ensure};

use crate::report::Run;
use crate::subject::workspace;
use figures::Figures;

/// Which run to publish.
///
/// Example: adit-lab publish lab-results/standard-20260301-101500
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The run's folder; without one, write the tables again from the published runs
    dir: Option<PathBuf>,
    /// Write nothing: print how old each table is; exit code 1 if one differs from its run, or is older than the code it measured
    #[arg(long, conflicts_with = "dir")]
    check: bool,
}

/// The documents with tables.
pub const DOCUMENTS: [&str; 2] = ["README.md", "docs/benchmarks.md"];
/// The directory of published runs.
const FOLDER: &str = "docs/figures";

/// Publishes a run, or checks published runs.
///
/// # Errors
/// The run cannot be published, a document names figures that do not exist, or a file cannot be read or written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = workspace()?;
    if arguments.check {
        return check(&root);
    }
    if let Some(dir) = &arguments.dir {
        let figures = Figures::of(&Run::read(dir)?)?;
        let path = kept(&root, &figures.plan)?;
        let folder = path.parent().context("a folder for figures")?;
        std::fs::create_dir_all(folder).context(folder.display())?;
        std::fs::write(&path, figures.to_text()?).context(path.display())?;
        println!("{}", path.display());
    }
    for document in DOCUMENTS {
        let path = root.join(document);
        let old = std::fs::read_to_string(&path).context(path.display())?;
        let new = render(&root, document, &old)?;
        if new != old {
            std::fs::write(&path, new).context(path.display())?;
            println!("{}", path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a document whose tables are rendered from the published runs. The table of a plan that was never published
/// is left unchanged.
fn render(root: &Path, document: &str, text: &str) -> Result<String> {
    let mut plans = BTreeSet::new();
    region::replace(document, text, |region| match published(root, region.plan())? {
        // The conditions of a run are printed once per document.
        Some(figures) => region.table(&figures, plans.insert(figures.plan.clone())).map(Some),
        None => Ok(None),
    })
}

fn check(root: &Path) -> Result<ExitCode> {
    let mut bad = Vec::new();
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(root.join(document)).context(document)?;
        if render(root, document, &text)? != text {
            bad.push(format!("{document}: a table is not what its run says: adit-lab publish"));
        }
        for plan in region::plans(document, &text)? {
            match published(root, &plan)? {
                None => bad.push(format!(
                    "{document}: {plan} was never published: run it, then adit-lab publish"
                )),
                Some(figures) => match age::of(root, &figures.revision) {
                    Ok(age) => {
                        println!(
                            "{document}: {plan} of {}, {}: {age}",
                            figures.date,
                            figures.short()
                        );
                        if age.measured_code > 0 {
                            bad.push(format!(
                                "{document}: {plan} is older than the code it measured"
                            ));
                        }
                    }
                    Err(_) => bad.push(format!(
                        "{document}: {plan} was measured at {}, which this repository does not have",
                        figures.short()
                    )),
                },
            }
        }
    }
    bad.sort();
    bad.dedup();
    bad.iter().for_each(|line| println!("{line}"));
    Ok(if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the path of a plan's last published run. A plan that was run by the path of its file has no name under which
/// to store it.
fn kept(root: &Path, plan: &str) -> Result<PathBuf> {
    let named = !plan.is_empty() && plan.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    ensure(named, || format!("{plan:?} is no plan's name"))?;
    Ok(root.join(FOLDER).join(format!("{plan}.jsonl")))
}

fn published(root: &Path, plan: &str) -> Result<Option<Figures>> {
    let path = kept(root, plan)?;
    match std::fs::read_to_string(&path) {
        Ok(text) => Figures::from_text(&text).context(path.display()).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure(format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_tables_are_what_their_runs_say() {
        let root = workspace().unwrap();
        for document in DOCUMENTS {
            let text = std::fs::read_to_string(root.join(document)).unwrap();
            let new = render(&root, document, &text).unwrap();
            assert!(new == text, "{document}: run adit-lab publish");
        }
    }
}
