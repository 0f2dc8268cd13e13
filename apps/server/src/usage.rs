//! The traffic of clients with a quota, which survives restarts.

use std::path::PathBuf;
use std::time::Duration;

use adit_pki::Quota;
use adit_runtime::paths::Paths;
use serde::{Deserialize, Serialize};

use super::saved_map::SavedMap;

/// The maximum number of clients whose traffic is counted: as many as one server has.
const MAX_CLIENTS: usize = 65_536;

/// How long changes are collected before they are written. A killed server forgets as much.
const DELAY: Duration = Duration::from_secs(10);

/// The traffic of one client.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counter {
    /// The beginning of the quota's period, in seconds since 1970.
    since: u64,
    /// The bytes in both directions since then.
    bytes: u64,
}

/// The file `usage.json`. Clients are named as in their certificates, because a client keeps its quota when it is renamed.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    pub(super) saved: SavedMap<Counter>,
}

impl Usage {
    /// Returns the path of the file.
    pub(super) fn file(paths: &Paths) -> PathBuf {
        paths.data.join("usage.json")
    }

    pub(super) fn open(paths: &Paths) -> Self {
        Self { saved: SavedMap::open("quotas", Self::file(paths), DELAY) }
    }

    /// Returns the bytes that a client has used in the current period.
    pub(super) fn used(&self, client: &str, quota: Quota, unix: u64) -> u64 {
        let counter = self.saved.read(|counters| counters.get(client).copied().unwrap_or_default());
        // A clock that was set back does not begin another period.
        if quota.per.start(unix) > counter.since { 0 } else { counter.bytes }
    }

    /// Adds traffic of a client.
    pub(super) fn add(&self, client: &str, quota: Quota, bytes: u64, unix: u64) {
        self.saved.change(|counters| {
            let full = counters.len() >= MAX_CLIENTS && !counters.contains_key(client);
            if bytes == 0 || full {
                return false;
            }
            let start = quota.per.start(unix);
            let counter = counters.entry(client.to_owned()).or_default();
            if start > counter.since {
                *counter = Counter { since: start, bytes: 0 };
            }
            counter.bytes = counter.bytes.saturating_add(bytes);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use adit_pki::Period;

    use super::*;
    use crate::testing::folders;

    const DAY: u64 = 86_400;

    #[tokio::test]
    async fn traffic_survives_a_restart_and_ends_with_its_period() {
        let dir = tempfile::tempdir().unwrap();
        let paths = folders(&dir);
        let quota = Quota { bytes: 1000, per: Period::Day };
        let now = 20_000 * DAY + 5;
        let usage = Usage::open(&paths);
        usage.add("a", quota, 300, now);
        usage.add("a", quota, 300, now + 60);
        usage.add("b", quota, 1, now);
        assert_eq!(usage.used("a", quota, now), 600);
        usage.saved.save();
        let again = Usage::open(&paths);
        assert_eq!((again.used("a", quota, now), again.used("c", quota, now)), (600, 0));
        // The clock was set back, and is right again.
        assert_eq!(again.used("a", quota, now - DAY), 600);
        again.add("a", quota, 10, now - DAY);
        assert_eq!(again.used("a", quota, now), 610);
        assert_eq!(again.used("a", quota, now + DAY), 0);
        again.add("a", quota, 7, now + DAY);
        assert_eq!(again.used("a", quota, now + DAY), 7);
        again.saved.retain(|name| name != "a");
        again.saved.save();
        let last = Usage::open(&paths);
        assert_eq!((last.used("a", quota, now + DAY), last.used("b", quota, now)), (0, 1));
    }

    #[tokio::test]
    async fn a_damaged_file_and_a_huge_count_are_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let paths = folders(&dir);
        fs::write(Usage::file(&paths), "torn").unwrap();
        let usage = Usage::open(&paths);
        let quota = Quota { bytes: 1000, per: Period::Month };
        usage.add("a", quota, u64::MAX, 5);
        usage.add("a", quota, u64::MAX, 5);
        assert_eq!(usage.used("a", quota, 5), u64::MAX);
    }
}
