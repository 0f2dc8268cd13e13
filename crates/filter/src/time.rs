use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A time on the monotonic clock of the filter's driver, in nanoseconds since any fixed point. The
/// filter has no clock of its own.
#[derive(Copy, Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the time `span` later, or the latest possible time.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns how long ago `earlier` was; zero if it is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
