//! The state of a firewall that continues in another process of the same machine, such as a newer version of the program.

use serde::{Deserialize, Serialize};

use super::{Firewall, lock, sets_of};
use crate::Nanos;
use crate::compile::{Filter, SavedCounts};
use crate::conntrack::{self, SavedFlows};
use crate::elements::{Elements, SavedElements};

/// The connections, counters, limits and changed elements of a [`Firewall`], for another process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedState {
    flows: SavedFlows,
    counts: SavedCounts,
    elements: SavedElements,
}

/// The result of [`Firewall::resume`].
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Resumed {
    /// The connections.
    pub flows: conntrack::Resumed,
    /// The number of added elements that are members of this process's sets.
    pub elements: u64,
    /// The number of added elements that are not: the rules have no such set, or there is no room.
    pub elements_left_out: u64,
}

impl Firewall {
    /// Returns the state for another process. Call it when no packets pass any more and all workers are gone, because they
    /// have counts of their own.
    pub fn save(&self, now: Nanos) -> SavedState {
        SavedState {
            flows: self.tracker.save(now),
            counts: self.filter.load().save_counts(),
            elements: lock(&self.known).elements.save(now),
        }
    }

    /// Continues with the state of another process, as after a reload of its rules with those of this firewall. Call it
    /// before the first packet can pass: counters that continue start from their values in the other process.
    pub fn resume(&self, saved: SavedState, now: Nanos) -> Resumed {
        let SavedState { flows, counts, elements } = saved;
        let mut known = lock(&self.known);
        let rules = self.filter.load_full();
        let (elements, added) = Elements::restore(elements, now);
        known.elements = elements;
        known.elements.adopt(sets_of(&rules));
        // Sets that were changed must be in a form that can change again, which takes a second compilation.
        let ruleset = rules.ruleset().clone();
        if let Ok(filter) = Filter::compile_with(ruleset, &|name| known.elements.knows(name)) {
            self.install(filter, &known);
        }
        self.filter.load().resume_counts(&counts, now);
        let elements = known.elements.totals().added;
        Resumed {
            flows: self.tracker.resume(flows, now),
            elements,
            elements_left_out: added.saturating_sub(elements),
        }
    }
}
