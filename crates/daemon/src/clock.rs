//! The two clocks, in the engine's types.

use std::time::SystemTime;

use adit_engine::UnixTime;

/// Wall time, for certificates and log lines.
pub fn unix_time() -> UnixTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    UnixTime(since.map_or(0, |since| since.as_secs()))
}
