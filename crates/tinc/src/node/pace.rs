//! How soon a connection is read again.
//!
//! A node under traffic pays more for the wake-up than for the message: the code and the tables of the topology are no longer in the caches, and
//! afterwards the traffic's are not. A stream of announcements is therefore read at intervals, several at a time. The first ones are read at
//! once, and so is everything on a connection that brings what cannot wait.

use std::time::Duration;

use adit_engine::{Instant, Rate, TokenBucket};

/// How often a connection is read that brings nothing but what can wait.
const READS: Rate = Rate::one_in(Duration::from_millis(50), 10);

/// How soon a connection is read again.
#[derive(Debug, Default)]
pub(super) struct Pace {
    reads: TokenBucket,
    urgent: bool,
}

impl Pace {
    /// The bytes being handled hold something that cannot wait.
    pub(super) fn hurry(&mut self) {
        self.urgent = true;
    }

    /// The bytes that were read are handled. Returns when to read the next ones.
    pub(super) fn next_read(&mut self, now: Instant) -> Instant {
        if std::mem::take(&mut self.urgent) {
            self.reads = TokenBucket::new();
        } else {
            // A driver that has more than it takes at once does not wait.
            let _ = self.reads.take_whole(now, READS);
        }
        self.reads.next_whole(now, READS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads as soon as allowed, for a second. Returns the number of reads.
    fn reads_in_a_second(pace: &mut Pace, start: Instant, urgent: impl Fn(usize) -> bool) -> usize {
        let end = start + Duration::from_secs(1);
        let (mut now, mut reads) = (start, 0);
        while now < end {
            if urgent(reads) {
                pace.hurry();
            }
            reads += 1;
            // Something arrives every millisecond.
            now = pace.next_read(now).max(now + Duration::from_millis(1));
        }
        reads
    }

    #[test]
    fn a_stream_of_what_can_wait_is_read_at_intervals() {
        let (mut pace, start) = (Pace::default(), Instant::from_nanos(1_000_000_000_000));
        assert_eq!(reads_in_a_second(&mut pace, start, |_| false), 10 + 19);
        let next = start + Duration::from_secs(1);
        assert_eq!(reads_in_a_second(&mut pace, next, |_| false), 20);
        let later = start + Duration::from_secs(3);
        assert_eq!(reads_in_a_second(&mut pace, later, |_| false), 10 + 19, "after a pause");
    }

    #[test]
    fn what_cannot_wait_delays_nothing_on_its_connection() {
        let (mut pace, start) = (Pace::default(), Instant::from_nanos(1_000_000_000_000));
        assert_eq!(reads_in_a_second(&mut pace, start, |read| read % 10 == 0), 1000);
    }

    #[test]
    fn reading_more_often_leaves_no_debt() {
        let (mut pace, start) = (Pace::default(), Instant::from_nanos(1_000_000_000_000));
        for _ in 0..1000 {
            pace.next_read(start);
        }
        assert_eq!(pace.next_read(start), start + Duration::from_millis(50));
    }
}
