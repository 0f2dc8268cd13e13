//! A run's folder, with its records so far and the file for further ones.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use adit_testbed::failure::{Context, Result, ensure};

use crate::record::{Record, TRIALS, TrialKey};
use crate::report::manifest;

/// The folder of one run.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    resumed: bool,
}

impl Folder {
    /// Creates this folder, or one under `lab-results` named after the plan and the time.
    ///
    /// # Errors
    /// The folder already contains a run, or cannot be written.
    pub(super) fn create(path: Option<PathBuf>, plan: &str) -> Result<Self> {
        let path = match path {
            Some(path) => path,
            None => {
                let format =
                    time::macros::format_description!("[year][month][day]-[hour][minute][second]");
                let now = time::OffsetDateTime::now_utc().format(format).context("the time")?;
                Path::new("lab-results").join(format!("{plan}-{now}"))
            }
        };
        ensure(!path.join(TRIALS).exists(), || {
            let dir = path.display();
            format!(
                "{dir} holds a run already: adit-lab run --resume {dir}, or name another folder"
            )
        })?;
        fs::create_dir_all(&path).context(path.display())?;
        Ok(Self { path, resumed: false })
    }

    /// Opens the folder of an interrupted run.
    ///
    /// # Errors
    /// The folder contains no run.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        ensure(path.join(manifest::FILE).exists(), || {
            format!("{}: no run is here", path.display())
        })?;
        let folder = Self { path, resumed: true };
        folder.drop_half_a_line()?;
        Ok(folder)
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the run is resumed.
    pub(super) fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Returns the trials that already have a record.
    ///
    /// # Errors
    /// A line is not a record.
    pub(super) fn records(&self) -> Result<BTreeSet<TrialKey>> {
        let path = self.path.join(TRIALS);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(BTreeSet::new());
            }
            Err(error) => return Err(error).context(path.display()),
        };
        let mut keys = BTreeSet::new();
        for (number, line) in text.lines().enumerate() {
            let record: Record =
                serde_json::from_str(line).context(format!("{}:{}", path.display(), number + 1))?;
            keys.insert(record.key);
        }
        Ok(keys)
    }

    /// Appends a line durably, so that it is not lost if the run is killed immediately afterwards.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn append(&self, record: &Record) -> Result<()> {
        let path = self.path.join(TRIALS);
        let mut file =
            OpenOptions::new().create(true).append(true).open(&path).context(path.display())?;
        let line = serde_json::to_string(record).context("a record")? + "\n";
        file.write_all(line.as_bytes()).context(path.display())
    }

    /// Removes the incomplete last line of a run that was killed while writing.
    fn drop_half_a_line(&self) -> Result<()> {
        let path = self.path.join(TRIALS);
        let Ok(text) = fs::read(&path) else { return Ok(()) };
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            let file = File::options().write(true).open(&path).context(path.display())?;
            file.set_len(whole as u64).context(path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Outcome, Point};

    fn record(round: u32) -> Record {
        let key = TrialKey {
            scenario: "s".to_owned(),
            point: Point::default(),
            subject: "adit".to_owned(),
            round,
        };
        let outcome = Outcome::Skipped("not here".to_owned());
        Record { key, kind: "latency".to_owned(), a_a: false, started_ms: 1, seconds: 0.5, outcome }
    }

    #[test]
    fn a_killed_run_goes_on_after_its_last_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(Some(dir.path().join("run")), "x").unwrap();
        folder.append(&record(1)).unwrap();
        folder.append(&record(2)).unwrap();
        fs::write(folder.path().join(manifest::FILE), "{}").unwrap();
        let trials = folder.path().join(TRIALS);
        let mut half = OpenOptions::new().append(true).open(&trials).unwrap();
        half.write_all(b"{\"key\":{\"scen").unwrap();
        let folder = Folder::open(folder.path().to_owned()).unwrap();
        let rounds: Vec<u32> = folder.records().unwrap().into_iter().map(|key| key.round).collect();
        assert_eq!(rounds, [1, 2]);
        folder.append(&record(3)).unwrap();
        assert_eq!(folder.records().unwrap().len(), 3);
    }

    #[test]
    fn a_folder_with_a_run_is_not_taken_for_another() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(Some(dir.path().to_owned()), "x").unwrap();
        folder.append(&record(1)).unwrap();
        let refused = Folder::create(Some(dir.path().to_owned()), "x").unwrap_err().to_string();
        assert!(refused.contains("--resume"), "{refused}");
        assert!(Folder::open(dir.path().join("nothing")).is_err());
    }
}
