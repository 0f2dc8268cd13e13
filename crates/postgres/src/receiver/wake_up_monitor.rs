//! Finds lost wake-ups with one query for all streams of a node, instead of one poll per stream.
//!
//! The database counts the wake-ups that it sends to a node. If a reader has received as many as were counted, it has
//! missed none, whatever streams they belong to.

use std::time::Duration;

use adit_engine::{Instant, Random, Seed};

use super::jittered;
use crate::queue::later;

/// The interval between two queries, while packets arrive and otherwise.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The minimum interval between two checks of all streams because of a lost wake-up.
const ALL_PAUSE: Duration = Duration::from_millis(500);

/// How often all streams are checked without any other reason.
const ALL_AGAIN: Duration = Duration::from_secs(600);

/// The streams that a reader must check.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum QueryScope {
    /// No stream, because every wake-up was received.
    None,
    /// The streams in which packets have arrived recently.
    Active,
    /// All streams.
    All,
}

/// Compares the wake-ups that a node receives with those that the database counts.
#[derive(Debug)]
pub struct WakeUpMonitor {
    due: Instant,
    asked: bool,
    /// The database's count in the last answer; `None` before the first one on a connection.
    counted: Option<i64>,
    /// The number of wake-ups that the last answer counted and that had not been received by then. They may be in
    /// transit.
    pending: u64,
    /// The number of wake-ups received since the last answer.
    heard: u64,
    /// Whether a check of all streams was postponed.
    owed: bool,
    all_before: Instant,
    all_due: Instant,
    random: Random,
}

impl WakeUpMonitor {
    /// Creates a monitor, which queries at once. `seed` is only for the jitter of its queries.
    pub fn new(now: Instant, seed: impl Into<Seed>) -> Self {
        Self {
            due: now,
            asked: false,
            counted: None,
            pending: 0,
            heard: 0,
            owed: false,
            all_before: now,
            all_due: later(now, ALL_AGAIN),
            random: Random::new(seed),
        }
    }

    /// Counts received wake-ups.
    pub fn received(&mut self, now: Instant, times: u32) {
        self.heard = self.heard.saturating_add(times.into());
        let soon = self.next(now, true);
        self.due = self.due.min(soon);
    }

    /// Returns whether to query the count now. Pass the result to [`Self::answer`]. Each connection needs its own
    /// monitor.
    pub fn ask(&mut self, now: Instant) -> bool {
        let ask = !self.asked && now >= self.due;
        self.asked |= ask;
        ask
    }

    /// Returns when to call [`Self::ask`] again, or `None` while a query is outstanding.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.asked).then_some(self.due)
    }

    /// Processes the database's count. `active` is true if packets have recently arrived in some stream.
    pub fn answer(&mut self, now: Instant, count: i64, active: bool) -> QueryScope {
        self.asked = false;
        let new = count.saturating_sub(self.counted.unwrap_or(count));
        let new = u64::try_from(new).unwrap_or(0);
        let heard = std::mem::take(&mut self.heard);
        let overdue = self.pending.saturating_sub(heard);
        self.pending = new.saturating_sub(heard.saturating_sub(self.pending));
        self.counted = Some(count);
        let silence = new > 0 && heard == 0;
        if silence {
            self.pending = 0;
        }
        self.due = self.next(now, active || self.pending > 0);
        self.owed |= overdue > 0 || silence || now >= self.all_due;
        if !self.owed {
            return QueryScope::None;
        }
        if now < self.all_before {
            return QueryScope::Active;
        }
        self.owed = false;
        (self.all_before, self.all_due) = (later(now, ALL_PAUSE), later(now, ALL_AGAIN));
        QueryScope::All
    }

    fn next(&mut self, now: Instant, active: bool) -> Instant {
        let interval = if active { INTERVAL.0 } else { INTERVAL.1 };
        later(now, jittered(&mut self.random, interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn watch() -> WakeUpMonitor {
        let mut watch = WakeUpMonitor::new(ms(0), [1; 32]);
        assert!(watch.ask(ms(0)) && !watch.ask(ms(0)));
        assert_eq!(watch.answer(ms(0), 1000, false), QueryScope::None, "nothing is known before");
        watch
    }

    #[test]
    fn it_asks_once_in_a_second_and_ten_times_where_something_comes() {
        let mut watch = watch();
        let due = watch.deadline().unwrap();
        assert!((ms(750)..=ms(1250)).contains(&due));
        watch.received(ms(10), 1);
        assert!(watch.deadline().unwrap() <= ms(135), "{:?}", watch.deadline());
        assert!(watch.ask(ms(200)));
        assert_eq!(watch.deadline(), None);
        assert_eq!(watch.answer(ms(200), 1001, true), QueryScope::None);
        assert!((ms(275)..=ms(325)).contains(&watch.deadline().unwrap()));
    }

    #[test]
    fn a_count_without_any_wake_up_is_a_loss_at_once() {
        let mut watch = watch();
        assert_eq!(watch.answer(ms(1000), 1003, false), QueryScope::All);
        assert_eq!(watch.answer(ms(1100), 1003, false), QueryScope::None);
        assert_eq!(watch.answer(ms(1200), 1004, true), QueryScope::Active, "no sooner everywhere");
        assert_eq!(watch.answer(ms(1600), 1004, true), QueryScope::All, "but then");
        assert_eq!(watch.answer(ms(2600), 1004, true), QueryScope::None);
    }

    #[test]
    fn a_wake_up_on_its_way_is_no_loss_and_one_that_does_not_come_is() {
        let mut watch = watch();
        watch.received(ms(900), 1);
        assert_eq!(watch.answer(ms(1000), 1002, true), QueryScope::None);
        watch.received(ms(1001), 1);
        assert_eq!(watch.answer(ms(1100), 1002, true), QueryScope::None);
        watch.received(ms(1150), 1);
        assert_eq!(watch.answer(ms(1200), 1004, true), QueryScope::None);
        assert_eq!(watch.answer(ms(1300), 1004, true), QueryScope::All);
    }

    #[test]
    fn made_up_wake_ups_hide_no_later_loss() {
        let mut watch = watch();
        watch.received(ms(10), 50);
        assert_eq!(watch.answer(ms(1000), 1000, true), QueryScope::None);
        assert_eq!(watch.answer(ms(2000), 1001, false), QueryScope::All);
    }

    #[test]
    fn a_count_that_lies_costs_two_looks_in_a_second() {
        let mut watch = watch();
        let looks = (1..=1000).filter(|at| {
            let count = if at % 2 == 0 { i64::MIN } else { i64::MAX };
            watch.answer(ms(at * 10), count, true) == QueryScope::All
        });
        assert!(looks.count() <= 20);
    }

    #[test]
    fn all_streams_are_looked_at_now_and_then() {
        let mut watch = watch();
        assert_eq!(watch.answer(ms(599_000), 1000, false), QueryScope::None);
        assert_eq!(watch.answer(ms(600_000), 1000, false), QueryScope::All);
        let mut watch = WakeUpMonitor::new(ms(700_000), [1; 32]);
        assert!(watch.ask(ms(700_000)));
        assert_eq!(watch.answer(ms(700_000), 5, false), QueryScope::None);
    }
}
