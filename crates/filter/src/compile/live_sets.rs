//! Sets whose members change: the addresses of a connected client or of a group.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::compile::lookup::RangeTree;
use crate::compile::segments::merged;
use crate::compile::sorted::SortedKeys;
use crate::ruleset::Range;

/// The addresses of one family from `first` to `last`.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct IpRange {
    /// The lowest address.
    pub first: IpAddr,
    /// The highest address.
    pub last: IpAddr,
}

impl From<IpAddr> for IpRange {
    fn from(address: IpAddr) -> Self {
        Self { first: address, last: address }
    }
}

impl IpRange {
    /// Creates the range of addresses that share the first `length` bits of `address`; all bits if
    /// there are fewer.
    pub fn prefix(address: IpAddr, length: u8) -> Self {
        match address {
            IpAddr::V4(address) => {
                let rest = u32::MAX.checked_shr(length.into()).unwrap_or(0);
                let bits = address.to_bits();
                Self {
                    first: IpAddr::V4((bits & !rest).into()),
                    last: IpAddr::V4((bits | rest).into()),
                }
            }
            IpAddr::V6(address) => {
                let rest = u128::MAX.checked_shr(length.into()).unwrap_or(0);
                let bits = address.to_bits();
                Self {
                    first: IpAddr::V6((bits & !rest).into()),
                    last: IpAddr::V6((bits | rest).into()),
                }
            }
        }
    }

    /// Returns whether `address` is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        // Addresses are compared within one family only; IPv4 addresses precede all IPv6 addresses.
        self.first <= address && address <= self.last
    }

    /// Returns the range as numbers, if it is of the requested family.
    fn of(self, v6: bool) -> Option<Range> {
        match (self.first, self.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) if !v6 => {
                Some(Range { first: first.to_bits().into(), last: last.to_bits().into() })
            }
            (IpAddr::V6(first), IpAddr::V6(last)) if v6 => {
                Some(Range { first: first.to_bits(), last: last.to_bits() })
            }
            _ => None,
        }
    }
}

/// The members of all sets with changing members, at one instant.
#[derive(Clone, Debug)]
pub(crate) struct LiveSets {
    pub generation: u32,
    /// The sets by slot.
    sets: Vec<Arc<DynamicSet>>,
}

/// A set with changing elements.
#[derive(Debug)]
enum DynamicSet {
    Addresses(RangeTree),
    Elements(SortedKeys),
}

impl LiveSets {
    pub(crate) fn new(generation: u32, addresses: usize, elements: Vec<SortedKeys>) -> Self {
        let empty = Arc::new(DynamicSet::Addresses(RangeTree::new(&[])));
        let elements = elements.into_iter().map(|set| Arc::new(DynamicSet::Elements(set)));
        let sets = std::iter::repeat_n(empty, addresses).chain(elements).collect();
        Self { generation, sets }
    }

    /// Changes a set of elements.
    pub(crate) fn change(
        &mut self,
        generation: u32,
        slot: usize,
        change: impl FnOnce(&mut SortedKeys),
    ) {
        self.generation = generation;
        if let Some(set) = self.sets.get_mut(slot)
            && let DynamicSet::Elements(now) = &**set
        {
            let mut next = now.clone();
            change(&mut next);
            *set = Arc::new(DynamicSet::Elements(next));
        }
    }

    pub(crate) fn replace(
        &mut self,
        generation: u32,
        slots: &[(usize, bool)],
        addresses: &[IpRange],
    ) {
        self.generation = generation;
        for (slot, v6) in slots {
            if let Some(set) = self.sets.get_mut(*slot) {
                let ranges = addresses.iter().filter_map(|range| range.of(*v6));
                let ranges = merged(ranges.collect()).into_iter().map(|range| (range, 1));
                let ranges: Vec<_> = ranges.collect();
                *set = Arc::new(DynamicSet::Addresses(RangeTree::new(&ranges)));
            }
        }
    }

    #[inline]
    pub(crate) fn has(&self, slot: u32, value: u128) -> bool {
        self.sets.get(slot as usize).is_some_and(|set| match &**set {
            DynamicSet::Addresses(set) => set.find(value) != 0,
            DynamicSet::Elements(set) => set.has(&[value]),
        })
    }

    /// Returns whether a key of several parts is a member, as [`Self::has`] does for a single
    /// value.
    pub(crate) fn has_key(&self, slot: u32, key: &[u128]) -> bool {
        self.sets.get(slot as usize).is_some_and(|set| match &**set {
            DynamicSet::Addresses(_) => false,
            DynamicSet::Elements(set) => set.has(key),
        })
    }
}

/// The number of the rules and members in force. It is unique among the filters of a process, so that a flow's cached verdict of an earlier
/// filter is never used for this one.
#[derive(Debug)]
pub(crate) struct Generation {
    now: AtomicU32,
    change: Mutex<()>,
}

static LAST: AtomicU32 = AtomicU32::new(0);

fn next() -> u32 {
    loop {
        // 0 is the number of an empty cache.
        let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if next != 0 {
            return next;
        }
    }
}

impl Generation {
    pub(super) fn new() -> Self {
        Self { now: AtomicU32::new(next()), change: Mutex::new(()) }
    }

    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.now.load(Ordering::Acquire)
    }

    /// Lets `change` install the next generation, one caller at a time.
    pub(super) fn advance(&self, change: impl FnOnce(u32)) {
        let _one = self.change.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let generation = next();
        change(generation);
        self.now.store(generation, Ordering::Release);
    }
}
