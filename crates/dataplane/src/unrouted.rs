//! Reports destinations without a route, for a control plane that connects to peers on demand.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use adit_engine::Instant;

/// The maximum number of destinations reported within [`REPEAT`].
const MAX_RECENT: usize = 16;

/// The time after which a destination is reported again.
const REPEAT: Duration = Duration::from_secs(1);

/// The last reported destinations.
#[derive(Debug, Default)]
pub(crate) struct Unrouted {
    recent: Mutex<VecDeque<(IpAddr, Instant)>>,
}

impl Unrouted {
    /// Returns whether to report a destination. Only packets that are dropped cost a lock, and none waits for it.
    pub(crate) fn is_due(&self, now: Instant, destination: IpAddr) -> bool {
        let Ok(mut recent) = self.recent.try_lock() else { return false };
        while recent.front().is_some_and(|(_, at)| now.since(*at) >= REPEAT) {
            recent.pop_front();
        }
        let fits = recent.len() < MAX_RECENT;
        let due = fits && !recent.iter().any(|(known, _)| *known == destination);
        if due {
            recent.push_back((destination, now));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_reported_once_a_second_and_few_at_once() {
        let unrouted = Unrouted::default();
        let start = Instant::from_nanos(1_000_000_000_000);
        let host = |n: u8| IpAddr::from([192, 0, 2, n]);
        assert!(unrouted.is_due(start, host(1)));
        assert!(!unrouted.is_due(start + REPEAT / 2, host(1)));
        let others = (2..100).filter(|n| unrouted.is_due(start + REPEAT / 2, host(*n))).count();
        assert_eq!(others, MAX_RECENT - 1);
        assert!(unrouted.is_due(start + REPEAT, host(1)));
        assert!(!unrouted.is_due(start + REPEAT, host(99)), "the others are still recent");
    }
}
