//! What is said of the database's troubles: each cause once, then their end with what it took.

use std::collections::BTreeSet;

use adit_engine::Instant;

use crate::say;

/// Causes of one outage that are told.
const CAUSES: usize = 16;

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
    sides: [One; 2],
    told: BTreeSet<String>,
    /// Since when not both work, and how many attempts have failed.
    outage: Option<(Instant, u64)>,
}

/// One connection's state.
#[derive(Clone, Debug, Default)]
pub(super) struct One {
    pub(super) up: bool,
    pub(super) opened: u64,
    pub(super) trouble: Option<String>,
}

impl Health {
    pub(super) fn side(&self, side: Side) -> &One {
        &self.sides[side.index()]
    }

    /// A connection could not be opened, or has ended.
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

    /// A connection stands and works.
    pub(super) fn up(&mut self, now: Instant, side: Side) {
        if let Some(line) = self.told_up(now, side) {
            say!(1, "{line}");
        }
    }

    fn told_up(&mut self, now: Instant, side: Side) -> Option<String> {
        let one = &mut self.sides[side.index()];
        one.up = true;
        one.opened = one.opened.saturating_add(1);
        one.trouble = None;
        if !self.sides.iter().all(|one| one.up) {
            return None;
        }
        self.told.clear();
        let (since, failures) = self.outage.take()?;
        let seconds = now.since(since).as_secs_f64();
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
    fn an_outage_is_two_lines_whoever_notices_it() {
        let mut health = Health::default();
        assert_eq!(health.told_up(at(0), Side::Writer), None);
        assert_eq!(health.told_up(at(0), Side::Reader), None, "nothing was wrong before");
        assert!(health.told_down(at(100), Side::Writer, "refused").is_some());
        for n in 0..100 {
            assert_eq!(health.told_down(at(200 + n), Side::Reader, "refused"), None);
            assert_eq!(health.told_down(at(200 + n), Side::Writer, "refused"), None);
        }
        assert_eq!(health.told_up(at(1000), Side::Reader), None, "one of two is not enough");
        let line = health.told_up(at(1100), Side::Writer).unwrap();
        assert_eq!(line, "the database answers again, after 1.0 s and 201 failures");
        assert!(health.told_down(at(2000), Side::Writer, "refused").is_some(), "the next outage");
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
