//! Logs that the table of connections is full, at most once a minute.

use std::time::Duration;

use adit_filter::Nanos;
use adit_filter::conntrack::TrackStats;

/// The minimum interval between two such lines.
const EVERY: Duration = Duration::from_secs(60);

/// The counters and the time of the last log line.
#[derive(Debug, Default)]
pub(super) struct TableFullLog {
    last: Option<Nanos>,
    refused_full: u64,
    refused_source: u64,
    evicted_share: u64,
}

impl TableFullLog {
    /// Returns the line to log, if the counters have changed and the interval has passed.
    pub(super) fn line(&mut self, stats: &TrackStats, now: Nanos) -> Option<String> {
        if self.last.is_some_and(|last| now.since(last) < EVERY) {
            return None;
        }
        let full = stats.refused_full.saturating_sub(self.refused_full);
        let source = stats.refused_source.saturating_sub(self.refused_source);
        let share = stats.evicted_share.saturating_sub(self.evicted_share);
        if full == 0 && source == 0 && share == 0 {
            return None;
        }
        *self = Self {
            last: Some(now),
            refused_full: stats.refused_full,
            refused_source: stats.refused_source,
            evicted_share: stats.evicted_share,
        };
        let mut line = if full == 0 && share == 0 {
            "filter: new connections refused:".to_owned()
        } else {
            format!("filter: flow table full: {} of {} connections:", stats.flows, stats.limit)
        };
        let counts = [
            (full, "new ones refused for lack of space"),
            (source, "from sources with too many unanswered ones"),
            (share, "ended from sources with more than their share"),
        ];
        let parts = counts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts.map(|(count, what)| format!(" {count} {what}")).collect();
        line.push_str(&parts.join(","));
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_a_minute_and_only_if_there_is_news() {
        let mut full = TableFullLog::default();
        let at = |seconds: u64| Nanos(seconds * 1_000_000_000);
        let mut stats = TrackStats { flows: 10, limit: 10, ..TrackStats::default() };
        assert_eq!(full.line(&stats, at(1)), None);
        (stats.refused_full, stats.evicted_share) = (3, 7);
        let said = full.line(&stats, at(2)).unwrap();
        assert_eq!(
            said,
            "filter: flow table full: 10 of 10 connections: 3 new ones refused for lack of space, \
             7 ended from sources with more than their share"
        );
        stats.refused_source = 5;
        assert_eq!(full.line(&stats, at(61)), None, "not within a minute");
        let said = full.line(&stats, at(62)).unwrap();
        assert_eq!(
            said,
            "filter: new connections refused: 5 from sources with too many unanswered ones"
        );
        assert_eq!(full.line(&stats, at(600)), None);
    }
}
