//! Compiled sets and verdict maps: whether a key is a member, and its verdict.

use std::collections::BTreeSet;

use crate::compile::index::{Demand, Index, mixed};
use crate::compile::tree::AnyTree;
use crate::ruleset::{Element, Range, RuleVerdict};

/// A compiled set. Every lookup returns 0 for a key that is not a member, and otherwise one more than the number of the
/// verdict. In a plain set, every member returns 1.
#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    RangeTree(RangeTree),
    HashLookup(HashLookup),
    Ranges(std::sync::Arc<Ranges>),
}

/// Keys of one part: disjoint ranges, found by a tree.
#[derive(Clone, Debug)]
pub(crate) struct RangeTree {
    tree: AnyTree,
    /// The results, each for the numbers from one start to the next.
    found: Vec<u32>,
    greatest: u128,
}

/// Keys of several parts without ranges: a hash table.
#[derive(Clone, Debug)]
pub(crate) struct HashLookup {
    parts: usize,
    /// The parts of all keys, in sequence.
    keys: Vec<u128>,
    found: Vec<u32>,
    /// Element numbers plus one, or 0 for empty slots. The length is a power of two, and at least half of the slots are
    /// empty.
    table: Vec<u32>,
}

/// Keys of several parts with ranges: found by the index, then compared.
#[derive(Debug)]
pub(crate) struct Ranges {
    parts: usize,
    index: Index,
    keys: Vec<Range>,
    found: Vec<u32>,
}

impl Lookup {
    /// Compiles these elements and numbers their verdicts. Where elements overlap, the first takes effect.
    pub(crate) fn new(parts: usize, elements: &[Element]) -> (Self, Vec<RuleVerdict>) {
        let mut verdicts: Vec<RuleVerdict> = Vec::new();
        let mut number = |element: &Element| {
            let Some(verdict) = element.verdict else { return 1 };
            let at = verdicts.iter().position(|known| *known == verdict).unwrap_or_else(|| {
                verdicts.push(verdict);
                verdicts.len().saturating_sub(1)
            });
            (at as u32).saturating_add(1)
        };
        let found: Vec<u32> = elements.iter().map(&mut number).collect();
        let single = |range: &Range| range.first == range.last;
        let lookup = if parts == 1 {
            let key = elements.iter().filter_map(|element| element.key.first().copied());
            Self::RangeTree(RangeTree::new(&key.zip(found).collect::<Vec<_>>()))
        } else if elements.iter().all(|element| element.key.iter().all(single)) {
            Self::HashLookup(HashLookup::new(parts, elements, found))
        } else {
            Self::Ranges(std::sync::Arc::new(Ranges::new(parts, elements, found)))
        };
        (lookup, verdicts)
    }

    /// Looks up a key of several parts.
    #[inline]
    pub(crate) fn find(&self, key: &[u128]) -> u32 {
        match self {
            Self::RangeTree(one) => key.first().map_or(0, |value| one.find(*value)),
            Self::HashLookup(exact) => exact.find(key),
            Self::Ranges(ranges) => ranges.find(key),
        }
    }

    /// Returns the number of bytes on the heap.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::RangeTree(one) => one.size(),
            Self::HashLookup(exact) => {
                let numbers = exact.found.len().saturating_add(exact.table.len());
                exact.keys.len().saturating_mul(16).saturating_add(numbers.saturating_mul(4))
            }
            Self::Ranges(ranges) => {
                let keys = ranges.keys.len().saturating_mul(size_of::<Range>());
                ranges.index.size().saturating_add(keys)
            }
        }
    }
}

impl RangeTree {
    /// Compiles ranges with their results; where they overlap, the first takes effect.
    pub(crate) fn new(ranges: &[(Range, u32)]) -> Self {
        let greatest = ranges.iter().map(|(range, _)| range.last).max().unwrap_or(0);
        let bits = if greatest <= u128::from(u32::MAX) { 32 } else { 128 };
        let mut events: Vec<(u128, usize, bool)> = Vec::with_capacity(ranges.len());
        for (at, (range, _)) in ranges.iter().enumerate() {
            if range.first <= range.last {
                events.push((range.first, at, true));
                events.extend(range.last.checked_add(1).map(|end| (end, at, false)));
            }
        }
        events.sort_unstable();
        let (mut starts, mut found) = (vec![0], vec![0]);
        let mut active = BTreeSet::new();
        let mut events = events.into_iter().peekable();
        while let Some((at, range, begins)) = events.next() {
            if begins {
                active.insert(range);
            } else {
                active.remove(&range);
            }
            if events.peek().is_some_and(|next| next.0 == at) || at > greatest {
                continue;
            }
            let first = active.first().and_then(|range| ranges.get(*range));
            let now = first.map_or(0, |(_, found)| *found);
            if at == 0 {
                found = vec![now];
            } else if found.last() != Some(&now) {
                starts.push(at);
                found.push(now);
            }
        }
        Self { tree: AnyTree::new(bits, starts), found, greatest }
    }

    #[inline]
    pub(crate) fn find(&self, value: u128) -> u32 {
        if value > self.greatest {
            return 0;
        }
        self.found.get(self.tree.find(value)).copied().unwrap_or(0)
    }

    fn size(&self) -> usize {
        self.tree.size().saturating_add(self.found.len().saturating_mul(4))
    }
}

fn hash(key: &[u128]) -> usize {
    let fold = |hash: u64, part: &u128| mixed(mixed(hash ^ *part as u64) ^ (*part >> 64) as u64);
    key.iter().fold(0, fold) as usize
}

impl HashLookup {
    fn new(parts: usize, elements: &[Element], found: Vec<u32>) -> Self {
        let slots = elements.len().saturating_mul(2).max(2).next_power_of_two();
        let mut exact = Self { parts, keys: Vec::new(), found, table: vec![0; slots] };
        for (number, element) in elements.iter().enumerate() {
            let key: Vec<u128> = element.key.iter().map(|range| range.first).collect();
            // Probed before it is stored: of equal keys, the first stays.
            let (slot, known) = exact.probe(&key);
            exact.keys.extend_from_slice(&key);
            if known.is_none()
                && let Some(slot) = exact.table.get_mut(slot)
            {
                *slot = (number as u32).saturating_add(1);
            }
        }
        exact
    }

    /// Returns the slot of the key, or the slot where it would be stored, and the number of the element if it is
    /// present.
    #[inline]
    fn probe(&self, key: &[u128]) -> (usize, Option<usize>) {
        let mask = self.table.len().wrapping_sub(1);
        let mut slot = hash(key) & mask;
        loop {
            let Some(number) = self.table.get(slot).and_then(|one| one.checked_sub(1)) else {
                return (slot, None);
            };
            let at = (number as usize).wrapping_mul(self.parts);
            if self.keys.get(at..at.wrapping_add(self.parts)) == Some(key) {
                return (slot, Some(number as usize));
            }
            slot = slot.wrapping_add(1) & mask;
        }
    }

    #[inline]
    fn find(&self, key: &[u128]) -> u32 {
        self.probe(key).1.and_then(|number| self.found.get(number)).copied().unwrap_or(0)
    }
}

impl Ranges {
    fn new(parts: usize, elements: &[Element], found: Vec<u32>) -> Self {
        let demands = |element: &Element| {
            let demand = |(dim, range): (usize, &Range)| Demand { dim, ranges: vec![*range] };
            element.key.iter().enumerate().map(demand).collect()
        };
        let widest = |part: usize| {
            let last = |element: &Element| element.key.get(part).map(|range| range.last);
            let last = elements.iter().filter_map(last).max().unwrap_or(0);
            if last <= u128::from(u32::MAX) { 32 } else { 128 }
        };
        let bits: Vec<u8> = (0..parts).map(widest).collect();
        let index = Index::new(&bits, &elements.iter().map(demands).collect::<Vec<_>>());
        let keys = elements.iter().flat_map(|element| element.key.iter().copied()).collect();
        Self { parts, index, keys, found }
    }

    fn find(&self, key: &[u128]) -> u32 {
        let confirm = |number: u32| {
            let at = (number as usize).wrapping_mul(self.parts);
            let ranges = self.keys.get(at..at.wrapping_add(self.parts))?;
            let matches = ranges.iter().zip(key).all(|(range, value)| range.contains(*value));
            if matches { self.found.get(number as usize).copied() } else { None }
        };
        self.index.search(|part| key.get(part).copied(), confirm).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn element(key: Vec<Range>, verdict: Option<RuleVerdict>) -> Element {
        Element { key, verdict, lifetime: None, comment: None }
    }

    fn naive(elements: &[Element], key: &[u128]) -> Option<Option<RuleVerdict>> {
        let within = |element: &&Element| {
            element.key.iter().zip(key).all(|(range, value)| range.contains(*value))
        };
        elements.iter().find(within).map(|element| element.verdict)
    }

    fn elements(parts: usize, ranges: bool, wide: bool) -> impl Strategy<Value = Vec<Element>> {
        let scale = move |value: u128| if wide { value << 60 } else { value };
        let range =
            (0u128..30, 0u128..if ranges { 6 } else { 1 }).prop_map(move |(first, more)| Range {
                first: scale(first),
                last: scale(first + more),
            });
        let verdict = prop_oneof![Just(RuleVerdict::Accept), Just(RuleVerdict::Drop)];
        let element = (prop::collection::vec(range, parts), verdict)
            .prop_map(|(key, verdict)| element(key, Some(verdict)));
        prop::collection::vec(element, 0..60)
    }

    fn any_elements() -> impl Strategy<Value = (usize, bool, Vec<Element>)> {
        (1usize..4, any::<bool>(), any::<bool>()).prop_flat_map(|(parts, ranges, wide)| {
            (Just(parts), Just(wide), elements(parts, ranges, wide))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn finds_what_the_list_of_elements_says(
            (parts, wide, elements) in any_elements(),
            keys in prop::collection::vec(prop::collection::vec(0u128..40, 3), 50),
        ) {
            let (lookup, verdicts) = Lookup::new(parts, &elements);
            for mut key in keys {
                key.truncate(parts);
                if wide {
                    key.iter_mut().for_each(|part| *part = (*part << 60) + (*part & 1));
                }
                let found = lookup.find(&key).checked_sub(1).map(|at| verdicts[at as usize]);
                prop_assert_eq!(found, naive(&elements, &key).flatten());
            }
        }
    }

    #[test]
    fn a_value_wider_than_all_members_is_none_of_them() {
        let elements = [element(vec![Range { first: 7, last: u32::MAX.into() }], None)];
        let (lookup, _) = Lookup::new(1, &elements);
        assert_eq!(lookup.find(&[u32::MAX.into()]), 1);
        assert_eq!(lookup.find(&[7 + (1 << 32)]), 0, "cut to 32 bits it would be one");
        let all = [element(vec![Range { first: 0, last: u128::MAX }], None)];
        assert_eq!(Lookup::new(1, &all).0.find(&[u128::MAX]), 1);
        assert_eq!(Lookup::new(1, &[]).0.find(&[0]), 0);
        assert_eq!(Lookup::new(2, &[]).0.find(&[0, 0]), 0);
    }

    #[test]
    fn a_hundred_thousand_elements_are_found() {
        let number = |at: u32| u128::from(at.wrapping_mul(2_654_435_761));
        let one = |at| element(vec![Range::single(number(at))], None);
        let two = |at| element(vec![Range::single(number(at)), Range::single(at.into())], None);
        let prefix = |at| {
            let first = number(at) & !0xff;
            element(vec![Range { first, last: first | 0xff }, Range::single(at.into())], None)
        };
        for (parts, elements) in [
            (1, (0..100_000).map(one).collect::<Vec<_>>()),
            (2, (0..100_000).map(two).collect()),
            (2, (0..100_000).map(prefix).collect()),
        ] {
            let (lookup, _) = Lookup::new(parts, &elements);
            assert!(lookup.size() < 12 << 20, "{parts}: {}", lookup.size());
            for at in (0..100_000).step_by(997) {
                let key = [number(at), at.into()];
                assert_eq!(lookup.find(&key[..parts]), 1);
                assert_eq!(lookup.find(&[number(at) ^ 1 << 31, 100_001][..parts]), 0);
            }
        }
    }
}
