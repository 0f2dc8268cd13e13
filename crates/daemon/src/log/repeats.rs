use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use adit_engine::Instant;

/// How many pairs of peer and reason are remembered; further ones are logged as they come.
pub const REPEAT_LIMIT: usize = 1024;

/// How long a repetition is only counted.
const QUIET: Duration = Duration::from_secs(60);

/// Failures that repeat: logged once per peer and reason, then counted.
///
/// A scanner that fails a thousand handshakes a minute leaves two lines, not a full disk.
#[derive(Debug, Default)]
pub struct Repeats {
    seen: HashMap<(Option<IpAddr>, String), Count>,
}

#[derive(Debug)]
struct Count {
    since: Instant,
    left_out: u64,
}

/// What to do with a failure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Log it.
    First,
    /// Log it, with how many were left out since.
    After(u64),
    /// Leave it out.
    Repeated,
}

impl Repeats {
    /// Counts a failure of a peer (`None`: of nobody in particular).
    pub fn count(&mut self, now: Instant, peer: Option<IpAddr>, reason: &str) -> Seen {
        let key = (peer, reason.to_owned());
        if let Some(count) = self.seen.get_mut(&key) {
            if now.since(count.since) < QUIET {
                count.left_out = count.left_out.saturating_add(1);
                return Seen::Repeated;
            }
            let left_out = std::mem::take(&mut count.left_out);
            count.since = now;
            return if left_out == 0 { Seen::First } else { Seen::After(left_out) };
        }
        if self.seen.len() >= REPEAT_LIMIT {
            self.seen.retain(|_, count| now.since(count.since) < QUIET);
        }
        if self.seen.len() < REPEAT_LIMIT {
            self.seen.insert(key, Count { since: now, left_out: 0 });
        }
        Seen::First
    }
}

impl Repeats {
    /// What was left out of runs that have ended: peer, reason, how often. Call it now and then.
    pub fn overdue(&mut self, now: Instant) -> Vec<(Option<IpAddr>, String, u64)> {
        let mut overdue = Vec::new();
        self.seen.retain(|(peer, reason), count| {
            let over = now.since(count.since) >= QUIET;
            if over && count.left_out > 0 {
                overdue.push((*peer, reason.clone(), count.left_out));
            }
            !over
        });
        if self.seen.is_empty() {
            // Nothing else would make it smaller.
            self.seen = HashMap::new();
        }
        overdue
    }
}

impl Seen {
    /// The line to log for `text`, if any.
    pub fn line(self, text: &str) -> Option<String> {
        match self {
            Self::First => Some(text.to_owned()),
            Self::After(count) => Some(format!("{text} ({count} more like this were not logged)")),
            Self::Repeated => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_failure_is_logged_once_and_then_counted() {
        let mut repeats = Repeats::default();
        let peer = Some(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(repeats.count(at(0), peer, "bad key"), Seen::First);
        assert_eq!(repeats.count(at(1), peer, "bad key"), Seen::Repeated);
        assert_eq!(repeats.count(at(2), peer, "bad key"), Seen::Repeated);
        assert_eq!(repeats.count(at(3), peer, "expired"), Seen::First);
        assert_eq!(repeats.count(at(61), peer, "bad key"), Seen::After(2));
        assert_eq!(repeats.count(at(200), peer, "bad key"), Seen::First);
    }

    #[test]
    fn the_end_of_a_run_is_told_once() {
        let mut repeats = Repeats::default();
        let peer = Some(IpAddr::from([192, 0, 2, 1]));
        repeats.count(at(0), peer, "bad key");
        repeats.count(at(1), peer, "bad key");
        assert!(repeats.overdue(at(59)).is_empty());
        assert_eq!(repeats.overdue(at(60)), [(peer, "bad key".to_owned(), 1)]);
        assert!(repeats.overdue(at(61)).is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_forgets() {
        let mut repeats = Repeats::default();
        for n in 0..(REPEAT_LIMIT as u32 * 3) {
            let peer = Some(IpAddr::from(n.to_be_bytes()));
            assert_eq!(repeats.count(at(0), peer, "x"), Seen::First);
        }
        assert_eq!(repeats.seen.len(), REPEAT_LIMIT);
        assert_eq!(repeats.count(at(100), None, "x"), Seen::First);
        assert_eq!(repeats.seen.len(), 1);
    }
}
