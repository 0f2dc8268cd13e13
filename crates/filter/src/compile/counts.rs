//! Counters: totals shared by all evaluators, and the counts of one evaluator since its last flush.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ruleset::{ChainId, Count, CounterId};

/// The owner of a counter.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Owner {
    /// The rule's handle, and the index of its counter.
    Rule(u32, usize),
    /// The table, and the index of its named counter.
    Named(usize, CounterId),
}

/// Packets and bytes. A rule that replaces an equal one shares its counter.
type Total = Arc<(AtomicU64, AtomicU64)>;

#[derive(Debug, Default)]
pub(crate) struct Totals {
    owners: Vec<Owner>,
    totals: Vec<Total>,
}

impl Totals {
    pub(super) fn len(&self) -> usize {
        self.totals.len()
    }

    pub(super) fn push(&mut self, owner: Owner, start: Count) {
        self.owners.push(owner);
        let total = (AtomicU64::new(start.packets), AtomicU64::new(start.bytes));
        self.totals.push(Arc::new(total));
    }

    /// Makes a counter share another one's past and future counts.
    pub(super) fn share(&mut self, own: usize, other: &Self, theirs: usize) {
        if let (Some(own), Some(theirs)) = (self.totals.get_mut(own), other.totals.get(theirs)) {
            *own = Arc::clone(theirs);
        }
    }

    pub(super) fn read(&self) -> Counts {
        let counts = self.owners.iter().copied().zip(self.totals.iter().map(read));
        Counts { by_owner: counts.collect() }
    }

    /// Returns a counter's value, by number.
    pub(super) fn get(&self, counter: usize) -> Option<Count> {
        self.totals.get(counter).map(read)
    }

    /// Sets a counter, by number.
    pub(super) fn set(&self, counter: usize, count: Count) {
        if let Some(total) = self.totals.get(counter) {
            total.0.store(count.packets, Ordering::Relaxed);
            total.1.store(count.bytes, Ordering::Relaxed);
        }
    }

    /// Returns the totals by number.
    #[cfg(any(test, feature = "oracle"))]
    pub(super) fn list(&self) -> Vec<Count> {
        let by_owner = self.read().by_owner;
        self.owners.iter().filter_map(|owner| by_owner.get(owner).copied()).collect()
    }

    pub(super) fn add(&self, pending: &mut Pending) {
        for counter in pending.touched.drain(..) {
            let Some(count) = pending.counts.get_mut(counter as usize) else { continue };
            let Count { packets, bytes } = std::mem::take(count);
            if let Some(total) = self.totals.get(counter as usize) {
                total.0.fetch_add(packets, Ordering::Relaxed);
                total.1.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }
}

fn read(total: &Total) -> Count {
    Count { packets: total.0.load(Ordering::Relaxed), bytes: total.1.load(Ordering::Relaxed) }
}

/// The verdicts of base chains. The first entry is for packets to which no chain applies, which are accepted.
#[derive(Debug)]
pub(crate) struct VerdictTotals {
    chains: Vec<(usize, ChainId)>,
    /// Accepted and dropped packets. A chain that replaces one of the same name shares its counters.
    totals: Vec<Arc<[AtomicU64; 2]>>,
}

/// The packets about which a base chain has decided. Super-packets count once.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct ChainVerdicts {
    /// The index of its table, and its own; `None` for packets to which no chain applies.
    pub chain: Option<(usize, ChainId)>,
    /// Packets that it accepted as the last chain.
    pub accepted: u64,
    /// Packets that it dropped or rejected.
    pub dropped: u64,
}

impl VerdictTotals {
    pub(super) fn new(chains: Vec<(usize, ChainId)>) -> Self {
        let totals = (0..=chains.len()).map(|_| Arc::default()).collect();
        Self { chains, totals }
    }

    /// Returns the number of a chain's counter of accepted packets; that of dropped ones follows.
    pub(super) fn first(&self, table: usize, chain: ChainId) -> u32 {
        let at = self.chains.iter().position(|known| *known == (table, chain));
        at.map_or(0, |at| at.saturating_add(1).saturating_mul(2)) as u32
    }

    pub(super) fn chains(&self) -> &[(usize, ChainId)] {
        &self.chains
    }

    /// Makes the counters of a chain, or those without a chain (`None`), share other ones' past and future counts.
    pub(super) fn share(&mut self, own: Option<usize>, other: &Self, theirs: Option<usize>) {
        let at = |chain: Option<usize>| chain.map_or(0, |at| at.saturating_add(1));
        if let (Some(own), Some(theirs)) =
            (self.totals.get_mut(at(own)), other.totals.get(at(theirs)))
        {
            *own = Arc::clone(theirs);
        }
    }

    /// Sets the accepted and dropped packets of a chain, or those without a chain (`None`).
    pub(super) fn set(&self, chain: Option<usize>, counts: [u64; 2]) {
        let at = chain.map_or(0, |at| at.saturating_add(1));
        for (total, count) in self.totals.get(at).into_iter().flat_map(|two| two.iter()).zip(counts)
        {
            total.store(count, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Vec<ChainVerdicts> {
        let chains = std::iter::once(None).chain(self.chains.iter().copied().map(Some));
        let totals = chains.zip(&self.totals).map(|(chain, totals)| {
            let [accepted, dropped] = totals.each_ref().map(|total| total.load(Ordering::Relaxed));
            ChainVerdicts { chain, accepted, dropped }
        });
        totals.collect()
    }

    pub(super) fn add(&self, pending: &mut Pending) {
        let pending = pending.verdicts.as_chunks_mut::<2>().0;
        for (totals, pending) in self.totals.iter().zip(pending) {
            for (total, pending) in totals.iter().zip(pending) {
                if *pending != 0 {
                    total.fetch_add(std::mem::take(pending), Ordering::Relaxed);
                }
            }
        }
    }
}

/// The values of all counters at one instant.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    by_owner: HashMap<Owner, Count>,
}

impl Counts {
    /// Returns the count of the first unnamed counter of the rule with this handle.
    pub fn rule(&self, handle: u32) -> Option<Count> {
        self.rule_nth(handle, 0)
    }

    /// Returns the count of the rule's nth unnamed counter; see [`Counts::rule`].
    pub fn rule_nth(&self, handle: u32, nth: usize) -> Option<Count> {
        self.by_owner.get(&Owner::Rule(handle, nth)).copied()
    }

    /// Returns the count of a counter of the table at this index.
    pub fn named(&self, table: usize, counter: CounterId) -> Option<Count> {
        self.by_owner.get(&Owner::Named(table, counter)).copied()
    }
}

/// The counts of one evaluator since its last flush: 16 bytes per counter and base chain.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The verdicts of base chains; see [`VerdictTotals::first`].
    verdicts: Vec<u64>,
    counts: Vec<Count>,
    /// The counters that are not zero.
    touched: Vec<u32>,
}

impl Pending {
    pub(super) fn new(counters: usize, verdicts: &VerdictTotals) -> Self {
        Self {
            verdicts: vec![0; verdicts.totals.len().saturating_mul(2)],
            counts: vec![Count::default(); counters],
            touched: Vec::with_capacity(counters),
        }
    }

    /// Counts a verdict.
    #[inline]
    pub(crate) fn decided(&mut self, verdict: u32) {
        if let Some(count) = self.verdicts.get_mut(verdict as usize) {
            *count = count.wrapping_add(1);
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, counter: usize, packets: u64, bytes: u64) {
        let Some(count) = self.counts.get_mut(counter) else { return };
        if count.packets == 0 {
            self.touched.push(counter as u32);
        }
        count.packets = count.packets.wrapping_add(packets.max(1));
        count.bytes = count.bytes.wrapping_add(bytes);
    }
}
