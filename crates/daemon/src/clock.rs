//! The two clocks, in the engine's types.

use adit_engine::{Instant, UnixTime};

/// Wall time, for certificates and log lines.
pub fn unix_time() -> UnixTime {
    UnixTime(adit_linux::clock::unix_time())
}

/// Now, on the boot clock.
pub fn now() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}
