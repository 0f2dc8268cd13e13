//! Shows the progress of a run, as one changing line on a terminal, or else as one line per trial.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::plan::Trial;
use crate::record::{Outcome, Record};

/// The progress of a run as displayed to the user.
pub(super) struct Progress {
    terminal: bool,
    all: usize,
    left: usize,
    begun: Instant,
    done_here: u32,
    line: String,
}

impl Progress {
    /// Creates the display for a run of `all` trials, of which `left` are still to run.
    pub(super) fn new(all: usize, left: usize) -> Self {
        let terminal = stderr().is_terminal();
        Self { terminal, all, left, begun: Instant::now(), done_here: 0, line: String::new() }
    }

    /// Records the start of a trial.
    pub(super) fn begin(&mut self, trial: &Trial) {
        let number = self.all - self.left + 1;
        let round = if trial.a_a { "A/A".to_owned() } else { format!("round {}", trial.key.round) };
        let key = &trial.key;
        let mut name = format!("{} {}", key.scenario, key.point);
        name.truncate(name.trim_end().len());
        self.line = format!("[{number:>3}/{}] {round}  {name}  {}", self.all, key.subject);
        if self.terminal {
            let left = self
                .time_left()
                .map(|left| format!("  {} left", minutes(left)))
                .unwrap_or_default();
            eprint!("\r\x1b[2K{}{left}", self.line);
            // A display that fails is no reason to stop.
            let _ = stderr().flush();
        }
    }

    /// Records the end of a trial.
    pub(super) fn end(&mut self, record: &Record) {
        self.left = self.left.saturating_sub(1);
        self.done_here += 1;
        let worth_a_line = match &record.outcome {
            Outcome::Measured(measurement) => {
                measurement.invalid.first().map(|why| format!("invalid: {why}"))
            }
            Outcome::Skipped(_) => None,
            Outcome::Failed(why) => {
                Some(format!("failed: {}", why.lines().next().unwrap_or_default()))
            }
        };
        match (self.terminal, worth_a_line) {
            (true, None) => {}
            (true, Some(why)) => eprintln!("\r\x1b[2K{}  {why}", self.line),
            (false, why) => {
                let why = why.map(|why| format!("  {why}")).unwrap_or_default();
                eprintln!("{}  {:.1} s{why}", self.line, record.seconds);
            }
        }
    }

    /// Ends the display after the last trial.
    pub(super) fn finish(&self) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
        eprintln!("{} trials in {}", self.done_here, minutes(self.begun.elapsed()));
    }

    fn time_left(&self) -> Option<Duration> {
        let each = self.begun.elapsed().checked_div(self.done_here)?;
        Some(each * u32::try_from(self.left).ok()?)
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
