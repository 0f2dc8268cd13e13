use std::time::Duration;

use adit_engine::Instant;

/// The number of unauthenticated senders that are logged per [`WINDOW`].
const NAMED: u32 = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// Limits how often unauthenticated senders are logged.
///
/// Anyone can send packets from any address at any rate, and could fill the disk if each sender
/// were logged. The counters include all packets.
#[derive(Debug, Default)]
pub(super) struct LogLimiter {
    window: Option<Instant>,
    named: u32,
}

impl LogLimiter {
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        if self.window.is_none_or(|since| now.since(since) >= WINDOW) {
            (self.window, self.named) = (Some(now), 0);
        }
        self.named = self.named.saturating_add(1);
        self.named <= NAMED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_named_a_few_times_a_second() {
        let mut log_limiter = LogLimiter::default();
        let start = Instant::from_nanos(7);
        let allowed =
            |log_limiter: &mut LogLimiter, at| (0..1000).filter(|_| log_limiter.allow(at)).count();
        assert_eq!(allowed(&mut log_limiter, start), 5);
        assert_eq!(allowed(&mut log_limiter, start + WINDOW / 2), 0);
        assert_eq!(allowed(&mut log_limiter, start + WINDOW), 5);
    }
}
