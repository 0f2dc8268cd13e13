//! Carries counters and limits over to new rules, for rules that are in both rule sets.

use std::collections::HashMap;

use crate::compile::{Filter, FirstIndices};
use crate::lang::rule_text;
use crate::ruleset::{Count, Counter, CounterId, Family, Statement};

/// The identity of a rule: its table, its chain and its text, with the initial values of its counters.
pub(super) type RuleKey<'a> = (Family, &'a str, &'a str, String);

/// A rule's first counter and first limit, and its number of each.
#[derive(Copy, Clone)]
pub(super) struct RuleResources {
    pub(super) first: FirstIndices,
    pub(super) counters: usize,
    pub(super) buckets: usize,
}

impl Filter {
    /// Continues counters and verdicts with their values in `before`, and limits with their remaining tokens, for rules with the same text in the same
    /// chain of the same table. Also continues named counters of the same name. Of several equal rules, the first continues the first. A
    /// counter whose initial value in the file changes restarts at the new value.
    pub(crate) fn carry_on(&mut self, before: &Self) {
        self.carry_verdicts(before);
        let mut known: HashMap<RuleKey<'_>, Vec<RuleResources>> = HashMap::new();
        for (key, own) in before.countable() {
            known.entry(key).or_default().push(own);
        }
        known.values_mut().for_each(|alike| alike.reverse());
        let pairs: Vec<(RuleResources, RuleResources)> = self
            .countable()
            .filter_map(|(key, own)| Some((own, known.get_mut(&key).and_then(Vec::pop)?)))
            .collect();
        let named: HashMap<_, usize> = before.named_counters().collect();
        let named: Vec<(usize, usize)> =
            self.named_counters().filter_map(|(key, own)| Some((own, *named.get(&key)?))).collect();
        let of_rules = pairs.iter().flat_map(|(own, theirs)| {
            let nth = |first: usize, nth| first.saturating_add(nth);
            let (own, theirs, count) = (own.first.counter, theirs.first.counter, own.counters);
            (0..count).map(move |at| (nth(own, at), nth(theirs, at)))
        });
        for (own, theirs) in of_rules.chain(named) {
            self.counts.share(own, &before.counts, theirs);
        }
        for (own, theirs) in &pairs {
            for nth in 0..own.buckets {
                let theirs = before.buckets.get(theirs.first.bucket.saturating_add(nth));
                let own = self.buckets.get_mut(own.first.bucket.saturating_add(nth));
                if let (Some(own), Some(theirs)) = (own, theirs) {
                    own.share(theirs);
                }
            }
        }
    }

    /// Continues the verdicts of base chains of the same name in the same table.
    fn carry_verdicts(&mut self, before: &Self) {
        let theirs: HashMap<_, usize> = before.named_bases().collect();
        let pairs = self.named_bases().filter_map(|(key, own)| Some((own, *theirs.get(&key)?)));
        let pairs: Vec<(usize, usize)> = pairs.collect();
        self.verdicts.share(None, &before.verdicts, None);
        for (own, theirs) in pairs {
            self.verdicts.share(Some(own), &before.verdicts, Some(theirs));
        }
    }

    /// Returns the names of base chains, with their positions among these.
    pub(super) fn named_bases(&self) -> impl Iterator<Item = ((Family, &str, &str), usize)> {
        self.verdicts.chains().iter().enumerate().filter_map(|(at, (table, chain))| {
            let table = self.ruleset.tables.get(*table)?;
            let chain = table.chains.get(chain.0)?;
            Some(((table.family, &*table.name, &*chain.name), at))
        })
    }

    /// Returns the rules that count or limit.
    pub(super) fn countable(&self) -> impl Iterator<Item = (RuleKey<'_>, RuleResources)> {
        let tables = self.ruleset.tables.iter().zip(&self.numbers.rules);
        let chains = tables.flat_map(|(table, numbers)| {
            table.chains.iter().zip(numbers).map(move |(chain, numbers)| (table, chain, numbers))
        });
        chains.flat_map(|(table, chain, numbers)| {
            chain.rules.iter().zip(numbers).filter_map(move |(rule, first)| {
                let count = |is: fn(&Statement) -> bool| {
                    rule.statements.iter().filter(|statement| is(statement)).count()
                };
                let counters = count(|one| matches!(one, Statement::Counter(Counter::Own(_))));
                let buckets = count(|one| matches!(one, Statement::Limit(_)));
                let own = RuleResources { first: *first, counters, buckets };
                (counters > 0 || buckets > 0).then(|| {
                    ((table.family, &*table.name, &*chain.name, rule_text(table, rule)), own)
                })
            })
        })
    }

    pub(super) fn named_counters(
        &self,
    ) -> impl Iterator<Item = ((Family, &str, &str, Count), usize)> {
        self.ruleset.tables.iter().enumerate().flat_map(move |(at, table)| {
            table.counters.iter().enumerate().map(move |(id, counter)| {
                let key = (table.family, &*table.name, &*counter.name, counter.start);
                (key, self.named(at, CounterId(id)))
            })
        })
    }
}
