//! The scripts of a daemon, which run one after another in the order of their events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_engine::Instant;
use adit_runtime::programs::{self, Call, Program, Running};
use adit_runtime::say;
use adit_tinc::node::Script;

use super::duty::program;

/// The number of scripts that wait. Further ones are not run, and counted.
const MAX_WAITING: usize = 1000;

/// The longest time for a script.
const LIMIT: Duration = Duration::from_secs(60);

/// How long it is remembered whether a script exists. Each subnet in a message is an event, and there may be thousands at once.
const REMEMBERED: Duration = Duration::from_millis(100);

/// The scripts that run and wait.
pub(super) struct Scripts {
    folder: PathBuf,
    /// The scripts that existed at the start.
    at_start: BTreeSet<Program>,
    /// Whether scripts existed when they were last looked for.
    found: BTreeMap<PathBuf, bool>,
    /// When that is forgotten.
    forget_at: Instant,
    /// The variables that all scripts get.
    common: Vec<(String, String)>,
    waiting: VecDeque<(PathBuf, Vec<(String, String)>)>,
    running: Option<(PathBuf, Running)>,
    /// The number of scripts that were not run because too many waited.
    skipped: u64,
}

impl Scripts {
    pub(super) fn new(
        folder: PathBuf,
        at_start: BTreeSet<Program>,
        common: Vec<(String, String)>,
    ) -> Self {
        Self {
            folder,
            at_start,
            found: BTreeMap::new(),
            forget_at: Instant::from_nanos(0),
            common,
            waiting: VecDeque::new(),
            running: None,
            skipped: 0,
        }
    }

    /// Returns the number of scripts that were not run because too many waited.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Appends the scripts of an event that exist.
    pub(super) fn push(&mut self, now: Instant, script: &Script) {
        for path in script.paths() {
            let path = self.folder.join(path);
            if self.exists(now, &path) {
                let variables = script.environment().into_iter();
                self.append(
                    path,
                    variables.map(|(name, value)| (name.to_owned(), value)).collect(),
                );
            }
        }
    }

    /// Appends a script, if it exists.
    pub(super) fn push_path(&mut self, now: Instant, path: &str, variables: &[(String, String)]) {
        let path = self.folder.join(path);
        if self.exists(now, &path) {
            self.append(path, variables.to_vec());
        }
    }

    fn append(&mut self, path: PathBuf, variables: Vec<(String, String)>) {
        if self.waiting.len() >= MAX_WAITING {
            self.skipped = self.skipped.saturating_add(1);
            return;
        }
        self.waiting.push_back((path, variables));
    }

    fn exists(&mut self, now: Instant, path: &Path) -> bool {
        if now >= self.forget_at {
            self.found.clear();
            self.forget_at = now + REMEMBERED;
        }
        // If only root can search the folder, this process can't see whether there is a new script.
        let look = || path.try_exists().unwrap_or_else(|_| self.at_start.contains(&program(path)));
        *self.found.entry(path.to_owned()).or_insert_with(look)
    }

    /// Starts the next script unless one runs, and waits for its end. Cancel-safe.
    pub(super) async fn next(&mut self) {
        if self.running.is_none() {
            let Some((path, variables)) = self.waiting.pop_front() else {
                return std::future::pending().await;
            };
            say!(2, "Executing script {}", path.display());
            let running = programs::run(Call {
                program: program(&path),
                args: Vec::new(),
                env: [&self.common[..], &variables].concat(),
                files: Vec::new(),
                timeout: Some(LIMIT),
            });
            self.running = Some((path, running));
        }
        if let Some((path, running)) = &mut self.running {
            let finished = running.await;
            if !finished.status.is_success() {
                tracing::warn!("Script {}: {}", path.display(), finished.status);
            }
            self.running = None;
        }
    }

    /// Returns whether no script runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// Runs none of the scripts that wait, and no longer waits for the one that runs.
    pub(super) fn give_up(&mut self) {
        self.skipped = self.skipped.saturating_add(self.waiting.len() as u64);
        self.waiting.clear();
        self.running = None;
    }

    /// Waits until all scripts have ended.
    pub(super) async fn finish(&mut self) {
        while !self.is_idle() {
            self.next().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many events at once cost one look; a script that is written later runs all the same.
    #[test]
    fn it_is_remembered_for_a_moment_that_there_is_no_script() {
        let dir = tempfile::tempdir().unwrap();
        let mut scripts = Scripts::new(dir.path().to_owned(), BTreeSet::new(), Vec::new());
        let start = Instant::from_nanos(1_000_000_000);
        scripts.push_path(start, "subnet-up", &[]);
        std::fs::write(dir.path().join("subnet-up"), "").unwrap();
        scripts.push_path(start + REMEMBERED / 2, "subnet-up", &[]);
        assert!(scripts.is_idle());
        scripts.push_path(start + REMEMBERED, "subnet-up", &[]);
        assert_eq!(scripts.waiting.len(), 1);
    }
}
