//! Reports the database's outages: each cause once, and at the end the duration.

use std::collections::BTreeSet;
use std::time::Duration;

use adit_engine::Instant;

use adit_runtime::say;

/// The maximum number of causes to report for one outage.
const CAUSES: usize = 16;

/// How long both connections must work before an outage is over.
const SETTLED: Duration = Duration::from_secs(1);

/// The two connections of a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Writer,
    Reader,
}

impl Side {
    fn index(self) -> usize {
        match self {
            Self::Writer => 0,
            Self::Reader => 1,
        }
    }
}

/// Both connections' state.
#[derive(Debug, Default)]
pub(super) struct Health {
    sides: [ConnectionHealth; 2],
    told: BTreeSet<String>,
    /// Since when reading or writing has failed, and the number of failed attempts.
    outage: Option<(Instant, u64)>,
    /// Since when both connections work.
    both: Instant,
}

/// One connection's state.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionHealth {
    pub(super) up: bool,
    pub(super) opened: u64,
    pub(super) trouble: Option<String>,
}

impl Health {
    pub(super) fn side(&self, side: Side) -> &ConnectionHealth {
        &self.sides[side.index()]
    }

    /// Records that a connection could not be opened, or has ended.
    pub(super) fn down(&mut self, now: Instant, side: Side, cause: &str) {
        if let Some(line) = self.told_down(now, side, cause) {
            tracing::warn!("{line}");
        }
    }

    fn told_down(&mut self, now: Instant, side: Side, cause: &str) -> Option<String> {
        self.sides[side.index()].up = false;
        self.sides[side.index()].trouble = Some(cause.to_owned());
        let (_, failures) = self.outage.get_or_insert((now, 0));
        *failures = failures.saturating_add(1);
        let tell = self.told.len() < CAUSES && self.told.insert(cause.to_owned());
        tell.then(|| format!("{cause}; trying again until it works"))
    }

    /// Records that a connection is established and works.
    pub(super) fn up(&mut self, now: Instant, side: Side) {
        let one = &mut self.sides[side.index()];
        one.up = true;
        one.opened = one.opened.saturating_add(1);
        one.trouble = None;
        self.both = now;
    }

    /// Logs the end of an outage, once it is certain.
    pub(super) fn log_outage_end(&mut self, now: Instant) {
        if let Some(line) = self.outage_report(now) {
            say!(1, "{line}");
        }
    }

    fn outage_report(&mut self, now: Instant) -> Option<String> {
        if !self.sides.iter().all(|one| one.up) || now.since(self.both) < SETTLED {
            return None;
        }
        let (since, failures) = self.outage.take()?;
        self.told.clear();
        let seconds = self.both.since(since).as_secs_f64();
        Some(format!("the database answers again, after {seconds:.1} s and {failures} failures"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn an_outage_is_two_lines_whichever_task_notices_it() {
        let mut health = Health::default();
        health.up(at(0), Side::Writer);
        health.up(at(0), Side::Reader);
        assert_eq!(health.outage_report(at(5000)), None, "nothing was wrong before");
        assert!(health.told_down(at(6000), Side::Writer, "refused").is_some());
        for n in 0..100 {
            assert_eq!(health.told_down(at(6000 + n), Side::Reader, "refused"), None);
            assert_eq!(health.told_down(at(6000 + n), Side::Writer, "refused"), None);
        }
        health.up(at(7000), Side::Reader);
        assert_eq!(health.outage_report(at(9000)), None, "one of two is not enough");
        health.up(at(9500), Side::Writer);
        assert_eq!(health.outage_report(at(10_499)), None, "not yet certain");
        let line = health.outage_report(at(10_500)).unwrap();
        assert_eq!(line, "the database answers again, after 3.5 s and 201 failures");
        assert!(health.told_down(at(20_000), Side::Writer, "refused").is_some(), "the next outage");
    }

    #[test]
    fn connections_that_end_at_once_are_one_outage_and_one_line() {
        let mut health = Health::default();
        health.up(at(0), Side::Reader);
        let mut told = 0;
        for n in 0..100 {
            health.up(at(n * 900), Side::Writer);
            told += health.outage_report(at(n * 900 + 400)).iter().count();
            told += health.told_down(at(n * 900 + 500), Side::Writer, "locked").iter().count();
        }
        assert_eq!(told, 1);
    }

    #[test]
    fn causes_that_take_turns_are_told_once_each_and_not_for_ever() {
        let mut health = Health::default();
        let mut told = 0;
        for n in 0..1000 {
            told += health.told_down(at(n), Side::Writer, &format!("cause {n}")).iter().count();
            told += health.told_down(at(n), Side::Reader, "refused").iter().count();
        }
        assert_eq!(told, CAUSES);
    }
}
