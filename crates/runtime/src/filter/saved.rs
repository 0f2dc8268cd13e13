//! The connections of a filter, for the process that continues with them.

use adit_filter::Nanos;
use adit_filter::conntrack::{Limits, Resumed, SavedFlows, Tracker};
use serde::{Deserialize, Serialize};

use super::LiveFilter;
use super::address_owners::AddressOwners;
use crate::clock::now;
use crate::say;

/// The connections of a filter and the clients of addresses, for another process. Counters and elements of sets that were added do not pass:
/// as after each start, they begin with those of the rule file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedFilter {
    flows: SavedFlows,
    owners: AddressOwners,
}

impl LiveFilter {
    /// Returns the connections, for another process. Call it when no packets pass any more.
    pub fn save(&self) -> SavedFilter {
        let flows = self.firewall.tracker().save(Nanos(now().as_nanos()));
        SavedFilter { flows, owners: self.owners.clone() }
    }

    /// Continues the connections of another process. Call it before the first packet can pass. The rules of this process decide about
    /// each connection when its next packet arrives.
    pub fn resume(&mut self, saved: SavedFilter) {
        let SavedFilter { flows, owners } = saved;
        self.owners = owners.bounded();
        let resumed = self.firewall.tracker().resume(flows, Nanos(now().as_nanos()));
        say!(1, "filter: {} connections of the former process continue", resumed.continued);
        if resumed.left_out > 0 {
            tracing::warn!(
                "filter: {} connections of the former process do not continue: the table is full",
                resumed.left_out
            );
        }
    }
}

/// Continues arbitrary connections, for the fuzzer, and those that were accepted once more.
#[doc(hidden)]
pub fn fuzz_saved(bytes: &[u8]) {
    let Ok(SavedFilter { flows, owners }) = serde_json::from_slice(bytes) else { return };
    let next_process = |flows: SavedFlows| {
        let tracker = Tracker::new(Limits::default(), [0; 16]);
        let resumed = tracker.resume(flows, FUZZ_TIME);
        (tracker.save(FUZZ_TIME), resumed)
    };
    let (again, first) = next_process(flows);
    let (_, second) = next_process(again);
    assert_eq!(second, Resumed { continued: first.continued, left_out: 0 });
    let _ = owners.bounded().claim("a", &[]);
}

/// The time at which the fuzzer's connections continue, in the middle of the clock.
const FUZZ_TIME: Nanos = Nanos(1 << 60);
