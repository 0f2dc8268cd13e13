//! The stations behind the device, which the node announces in switch mode.

use std::collections::HashMap;
use std::time::Duration;

use adit_engine::Instant;
use adit_wire::ethernet::Mac;

use crate::subnet::{Subnet, SubnetAddress};

/// The number of stations that are learnt. Each becomes a subnet that all nodes of the net store.
pub const MAX_STATIONS: usize = 8192;

/// The time between two searches for stations that sent nothing, unless they are forgotten sooner.
pub const EXPIRY_INTERVAL: Duration = Duration::from_secs(10);

/// The stations behind the device, and when each sent its last frame.
#[derive(Debug, Default)]
pub(super) struct Stations {
    seen: HashMap<Mac, Instant>,
    /// The last one that was learnt, until it is announced.
    learnt: Option<Mac>,
    /// When the next search is due. There is none without stations.
    due: Option<Instant>,
    refused: u64,
}

impl Stations {
    pub(super) fn learn(&mut self, mac: Mac, now: Instant, keep: Duration) {
        if let Some(seen) = self.seen.get_mut(&mac) {
            *seen = now;
            return;
        }
        if self.learnt.is_some() {
            return;
        }
        if self.seen.len() >= MAX_STATIONS {
            self.refused = self.refused.saturating_add(1);
            return;
        }
        self.seen.insert(mac, now);
        self.learnt = Some(mac);
        self.due = self.due.or(Some(next_search(now, keep)));
    }

    pub(super) fn take_learnt(&mut self) -> Option<Mac> {
        self.learnt.take()
    }

    /// Takes over when each station was heard elsewhere.
    pub(super) fn refresh(&mut self, heard: impl Fn(Mac) -> Option<Instant>) {
        for (mac, seen) in &mut self.seen {
            *seen = heard(*mac).map_or(*seen, |heard| heard.max(*seen));
        }
    }

    /// Removes the stations that sent nothing for `keep`.
    pub(super) fn expire(&mut self, now: Instant, keep: Duration) -> Vec<Mac> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let old = self.seen.extract_if(|_, seen| now.since(*seen) >= keep);
        let mut gone: Vec<Mac> = old.map(|(mac, _)| mac).collect();
        gone.sort_unstable();
        // One that was not announced need not be withdrawn.
        if let Some(learnt) = self.learnt.filter(|learnt| gone.contains(learnt)) {
            gone.retain(|mac| *mac != learnt);
            self.learnt = None;
        }
        self.due = (!self.seen.is_empty()).then(|| next_search(now, keep));
        gone
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn forget(&mut self, mac: Mac) -> bool {
        let announced = self.learnt != Some(mac);
        if !announced {
            self.learnt = None;
        }
        self.seen.remove(&mac).is_some() && announced
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}

/// Returns the subnets that are stations.
pub(super) fn of(subnets: &[Subnet]) -> Vec<Subnet> {
    let is_station = |subnet: &&Subnet| matches!(subnet.address(), SubnetAddress::Mac(_));
    subnets.iter().filter(is_station).copied().collect()
}

#[allow(clippy::arithmetic_side_effects)] // The sum is saturated.
fn next_search(now: Instant, keep: Duration) -> Instant {
    now + keep.min(EXPIRY_INTERVAL)
}
