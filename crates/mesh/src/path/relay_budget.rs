//! The budgets of a relay for each pair of members and for all of them.

use std::collections::HashMap;

use adit_engine::{Instant, Rate, TokenBucket};

use super::KeyHash;

/// The maximum number of pairs with their own budget. A new pair replaces one whose budget is full.
pub const MAX_PAIRS: usize = 16_384;

/// The budgets of a relay, in bytes.
#[derive(Debug)]
pub struct RelayBudget {
    per_pair: Rate,
    in_all: Rate,
    pairs: HashMap<(KeyHash, KeyHash), TokenBucket>,
    all: TokenBucket,
    counters: RelayCounters,
}

/// The counters of a relay.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayCounters {
    /// Bytes that were within the budgets.
    pub forwarded: u64,
    /// Packets that exceeded the budget of their pair.
    pub over_pair: u64,
    /// Packets that exceeded the budget of all pairs.
    pub over_all: u64,
    /// Packets of pairs for which the table had no room.
    pub no_room: u64,
}

impl RelayBudget {
    /// Creates full budgets: bytes for each pair of members and for all pairs.
    pub fn new(per_pair: Rate, in_all: Rate) -> Self {
        Self {
            per_pair,
            in_all,
            pairs: HashMap::new(),
            all: TokenBucket::new(),
            counters: RelayCounters::default(),
        }
    }

    /// Charges a packet between two members to their budget, which is the same for both directions. Returns whether the
    /// relay may forward it.
    pub fn take(&mut self, now: Instant, from: &KeyHash, to: &KeyHash, bytes: usize) -> bool {
        let pair = (*from.min(to), *from.max(to));
        if !self.pairs.contains_key(&pair) && self.pairs.len() >= MAX_PAIRS {
            // This costs at most one pass per packet of a new pair, and only while the table is full of active pairs.
            self.pairs.retain(|_, bucket| !bucket.is_full(now));
            if self.pairs.len() >= MAX_PAIRS {
                self.counters.no_room += 1;
                return false;
            }
        }
        let bucket = self.pairs.entry(pair).or_default();
        // Check the pair's budget first, so a pair over its budget takes nothing from the others.
        if !bucket.take(now, bytes, self.per_pair) {
            self.counters.over_pair += 1;
            return false;
        }
        if !self.all.take(now, bytes, self.in_all) {
            self.counters.over_all += 1;
            return false;
        }
        self.counters.forwarded += bytes as u64;
        true
    }

    /// Forgets the budgets of a revoked member.
    pub fn forget(&mut self, member: &KeyHash) {
        self.pairs.retain(|(a, b), _| a != member && b != member);
    }

    /// Returns the counters.
    pub fn counters(&self) -> RelayCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Instant = Instant::from_nanos(100_000_000_000);
    const A: KeyHash = [1; 32];
    const B: KeyHash = [2; 32];
    const C: KeyHash = [3; 32];

    fn budget(pair: u64, all: u64) -> RelayBudget {
        RelayBudget::new(Rate::per_second(pair), Rate::per_second(all))
    }

    #[test]
    fn a_pair_has_one_budget_for_both_directions() {
        let mut budget = budget(1000, 1_000_000);
        assert!((0..5).all(|_| budget.take(NOW, &A, &B, 100)));
        assert!((0..5).all(|_| budget.take(NOW, &B, &A, 100)));
        assert!(!budget.take(NOW, &A, &B, 100));
        assert!(budget.take(NOW, &A, &C, 100), "another pair");
        assert!(budget.take(NOW + Duration::from_millis(100), &A, &B, 100));
        assert_eq!(
            budget.counters(),
            RelayCounters { forwarded: 1200, over_pair: 1, ..Default::default() }
        );
    }

    #[test]
    fn all_pairs_together_have_a_budget_that_one_greedy_pair_does_not_use_up() {
        let mut budget = budget(1000, 1600);
        let greedy = (0..100).filter(|_| budget.take(NOW, &A, &B, 100)).count();
        assert_eq!(greedy, 10);
        let other = (0..100).filter(|_| budget.take(NOW, &A, &C, 100)).count();
        assert_eq!(other, 6);
        let RelayCounters { over_pair, over_all, .. } = budget.counters();
        assert_eq!((over_pair, over_all), (90 + 90, 4));
    }

    #[test]
    fn the_table_is_bounded_and_idle_pairs_make_room() {
        let mut budget = budget(1000, u64::MAX / 4);
        let member = |number: usize| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&number.to_be_bytes());
            hash
        };
        assert!((0..MAX_PAIRS).all(|n| budget.take(NOW, &A, &member(n), 1)));
        assert!(!budget.take(NOW, &A, &member(MAX_PAIRS), 1));
        assert_eq!(budget.counters().no_room, 1);
        assert!(budget.take(NOW, &A, &member(0), 1), "known pairs are served");
        assert!(budget.take(NOW + Duration::from_secs(2), &A, &member(MAX_PAIRS), 1));
        assert_eq!(budget.pairs.len(), 1);
        budget.forget(&A);
        assert!(budget.pairs.is_empty());
    }
}
