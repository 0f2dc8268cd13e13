//! Counters, verdicts and limits that continue in another process of the same machine, such as a newer version of the
//! program. As after a reload, they continue for rules, chains and named counters that are in both rule sets.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Filter;
use super::carry_over::RuleKey;
use crate::Nanos;
use crate::ruleset::{Count, Family};

/// The counts of a [`Filter`], for another process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedCounts {
    rules: Vec<SavedRule>,
    named: Vec<SavedCounter>,
    chains: Vec<SavedChain>,
    /// The accepted and dropped packets about which no chain decided.
    unchained: [u64; 2],
}

/// A rule's counters and limits, in the order of its statements.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRule {
    family: Family,
    table: String,
    chain: String,
    /// The text of the rule, with the initial values of its counters.
    rule: String,
    counts: Vec<Count>,
    /// The time at which the bucket of each limit was empty, by the machine's clock.
    limits: Vec<i64>,
}

/// A named counter.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedCounter {
    family: Family,
    table: String,
    name: String,
    start: Count,
    count: Count,
}

/// The accepted and dropped packets of a base chain.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedChain {
    family: Family,
    table: String,
    chain: String,
    verdicts: [u64; 2],
}

impl Filter {
    /// Returns the counts that all evaluators have flushed, for another process.
    pub(crate) fn save_counts(&self) -> SavedCounts {
        let rule = |(key, own): (RuleKey<'_>, super::carry_over::RuleResources)| {
            let (family, table, chain, rule) = key;
            let numbers =
                |first: usize, count| (0..count).map(move |nth| first.saturating_add(nth));
            SavedRule {
                family,
                table: table.to_owned(),
                chain: chain.to_owned(),
                rule,
                counts: numbers(own.first.counter, own.counters)
                    .filter_map(|number| self.counts.get(number))
                    .collect(),
                limits: numbers(own.first.bucket, own.buckets)
                    .filter_map(|number| Some(self.buckets.get(number)?.empty_at()))
                    .collect(),
            }
        };
        let named = self.named_counters().filter_map(|((family, table, name, start), number)| {
            let count = self.counts.get(number)?;
            let (table, name) = (table.to_owned(), name.to_owned());
            Some(SavedCounter { family, table, name, start, count })
        });
        let verdicts = self.verdicts();
        let of = |at: usize| verdicts.get(at).map_or([0; 2], |one| [one.accepted, one.dropped]);
        let chains = self.named_bases().map(|((family, table, chain), at)| {
            let (table, chain) = (table.to_owned(), chain.to_owned());
            SavedChain { family, table, chain, verdicts: of(at.saturating_add(1)) }
        });
        SavedCounts {
            rules: self.countable().map(rule).collect(),
            named: named.collect(),
            chains: chains.collect(),
            unchained: of(0),
        }
    }

    /// Continues with the counts of another process. Of several equal rules, the first continues the first.
    pub(crate) fn resume_counts(&self, saved: &SavedCounts, now: Nanos) {
        let mut known: HashMap<RuleKey<'_>, Vec<&SavedRule>> = HashMap::new();
        for rule in saved.rules.iter().rev() {
            let key = (rule.family, &*rule.table, &*rule.chain, rule.rule.clone());
            known.entry(key).or_default().push(rule);
        }
        for (key, own) in self.countable() {
            let Some(theirs) = known.get_mut(&key).and_then(Vec::pop) else { continue };
            for (nth, count) in theirs.counts.iter().take(own.counters).enumerate() {
                self.counts.set(own.first.counter.saturating_add(nth), *count);
            }
            for (nth, empty_at) in theirs.limits.iter().take(own.buckets).enumerate() {
                if let Some(bucket) = self.buckets.get(own.first.bucket.saturating_add(nth)) {
                    bucket.set_empty_at(*empty_at, now);
                }
            }
        }
        let named = saved.named.iter();
        let named: HashMap<_, Count> = named
            .map(|one| ((one.family, &*one.table, &*one.name, one.start), one.count))
            .collect();
        for (key, own) in self.named_counters() {
            if let Some(count) = named.get(&key) {
                self.counts.set(own, *count);
            }
        }
        let chains = saved.chains.iter();
        let chains: HashMap<_, [u64; 2]> =
            chains.map(|one| ((one.family, &*one.table, &*one.chain), one.verdicts)).collect();
        self.verdicts.set(None, saved.unchained);
        for (key, own) in self.named_bases() {
            if let Some(verdicts) = chains.get(&key) {
                self.verdicts.set(Some(own), *verdicts);
            }
        }
    }
}
