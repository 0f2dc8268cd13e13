//! The wall clock and the boot clock, in the engine's types.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use adit_engine::{Instant, UnixTime};

/// Returns the wall time, for certificates and log lines.
pub fn unix_time() -> UnixTime {
    UnixTime(adit_linux::clock::unix_time())
}

/// Returns the wall time in nanoseconds, for records that are compared with other captures.
pub fn unix_time_nanos() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// How many nanoseconds a test has set [`now`] forward; otherwise 0.
static ADVANCED: AtomicU64 = AtomicU64::new(0);

/// Returns the current time on the boot clock.
pub fn now() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime() + ADVANCED.load(Relaxed))
}

/// Sets [`now`] forward, as if the host had been suspended. All other clocks are unchanged. This is for a test that has
/// a process of its own.
#[doc(hidden)]
pub fn advance_for_test(time: Duration) {
    ADVANCED.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
}

/// Detects that the wall clock was set forward, because a host without a clock battery starts in the past.
///
/// Backward steps are ignored, because packet timestamps must not go back and an engine uses the wall clock for nothing
/// else.
#[derive(Copy, Clone, Debug)]
pub struct WallClock {
    at: Instant,
    unix: UnixTime,
}

/// The minimum step in seconds. Smaller ones are rounding errors.
const STEP: u64 = 2;

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl WallClock {
    /// Records the current time.
    pub fn new() -> Self {
        Self { at: now(), unix: unix_time() }
    }

    /// Returns the wall time if it has advanced more than the boot clock since the last call.
    pub fn wall_clock_jump(&mut self) -> Option<UnixTime> {
        self.look(now(), unix_time())
    }

    fn look(&mut self, now: Instant, unix: UnixTime) -> Option<UnixTime> {
        let expected = self.unix.0.saturating_add(now.since(self.at).as_secs());
        if unix.0 < expected.saturating_add(STEP) {
            return None;
        }
        (self.at, self.unix) = (now, unix);
        Some(unix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_step_forward_is_a_jump() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut wall = WallClock { at: at(100), unix: UnixTime(1000) };
        assert_eq!(wall.look(at(160), UnixTime(1060)), None);
        assert_eq!(wall.look(at(160), UnixTime(1061)), None);
        assert_eq!(wall.look(at(160), UnixTime(5)), None);
        assert_eq!(wall.look(at(161), UnixTime(9000)), Some(UnixTime(9000)));
        assert_eq!(wall.look(at(162), UnixTime(9001)), None);
    }
}
