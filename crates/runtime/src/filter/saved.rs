//! The state of a filter, for the process that continues with it.

use std::sync::Arc;

use adit_filter::firewall::{Firewall, Limits, SavedState};
use adit_filter::{Filter, Nanos, lang};
use serde::{Deserialize, Serialize};

use super::LiveFilter;
use super::address_owners::AddressOwners;
use crate::clock::now;
use crate::say;

/// The connections, counters and added elements of a filter and the clients of addresses, for another process. Rules that
/// `adit filter reload FILE` applied do not pass: as after each start, those of the configured file are in force.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedFilter {
    state: SavedState,
    owners: AddressOwners,
}

impl LiveFilter {
    /// Returns the state, for another process. Call it when no packets pass any more.
    pub fn save(&self) -> SavedFilter {
        let state = self.firewall.save(Nanos(now().as_nanos()));
        SavedFilter { state, owners: self.owners.clone() }
    }

    /// Continues with the state of another process. Call it before the first packet can pass. The rules of this process decide
    /// about each connection when its next packet arrives.
    pub fn resume(&mut self, saved: SavedFilter) {
        let SavedFilter { state, owners } = saved;
        self.owners = owners.bounded();
        let resumed = self.firewall.resume(state, Nanos(now().as_nanos()));
        say!(1, "filter: {} connections of the former process continue", resumed.flows.continued);
        if resumed.flows.left_out > 0 {
            tracing::warn!(
                "filter: {} connections of the former process do not continue: the table is full",
                resumed.flows.left_out
            );
        }
        if resumed.elements > 0 {
            say!(1, "filter: {} added elements of the former process remain", resumed.elements);
        }
        if resumed.elements_left_out > 0 {
            tracing::warn!(
                "filter: {} added elements of the former process are gone: the rules have no such set, or it has no room",
                resumed.elements_left_out
            );
        }
    }
}

/// Continues an arbitrary state, for the fuzzer, and what was accepted of it once more.
#[doc(hidden)]
pub fn fuzz_saved(bytes: &[u8]) {
    let Ok(SavedFilter { state, owners }) = serde_json::from_slice(bytes) else { return };
    let next_process = |state: SavedState| {
        let firewall = fuzz_firewall();
        let resumed = firewall.resume(state, FUZZ_TIME);
        (firewall.save(FUZZ_TIME), resumed)
    };
    let (again, first) = next_process(state);
    let (_, second) = next_process(again);
    assert_eq!((second.flows.continued, second.flows.left_out), (first.flows.continued, 0));
    assert_eq!((second.elements, second.elements_left_out), (first.elements, 0));
    let _ = owners.bounded().claim("a", &[]);
}

/// Returns the firewall of the fuzzer, whose rules have counters, a limit and sets that change.
fn fuzz_firewall() -> Arc<Firewall> {
    let mut no_includes = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let filter = lang::parse("rules.nft", FUZZ_RULES, &mut no_includes)
        .ok()
        .and_then(|ruleset| Filter::compile(ruleset).ok())
        .unwrap_or_else(|| unreachable!("the rules are constant"));
    Firewall::new(filter, Limits::default(), [0; 16])
}

/// The time at which the fuzzer's connections continue, in the middle of the clock.
const FUZZ_TIME: Nanos = Nanos(1 << 60);

const FUZZ_RULES: &str = "table inet vpn {
    set hosts { type ipv4_addr; flags timeout; }
    set nets { type ipv4_addr; flags interval; auto-merge; }
    set pairs { type inet_proto . inet_service; size 4; }
    counter all { }
    chain forward {
        type filter hook forward priority 0; policy drop;
        counter name all
        ip saddr @hosts counter accept
        ip saddr @nets limit rate 5/second accept
        ip protocol . th dport @pairs counter accept
    }
}
";
