//! Sets whose members come and go: a connected client's addresses, a group's.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::compile::lookup::One;
use crate::compile::segments::merged;
use crate::ruleset::Range;

/// Addresses from `first` to `last`, of one family.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct IpRange {
    /// The lowest.
    pub first: IpAddr,
    /// The highest.
    pub last: IpAddr,
}

impl From<IpAddr> for IpRange {
    fn from(address: IpAddr) -> Self {
        Self { first: address, last: address }
    }
}

impl IpRange {
    /// All addresses that share the first `length` bits of `address`; all bits if there are fewer.
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

    /// Whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        // Addresses of one family only are compared; IPv4's come before all of IPv6's.
        self.first <= address && address <= self.last
    }

    /// As numbers, if it is of the family asked for.
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

/// The members of all such sets at one time.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub generation: u32,
    /// By slot.
    sets: Vec<Arc<One>>,
}

impl Live {
    pub fn empty(generation: u32, slots: usize) -> Self {
        let empty = Arc::new(One::new(&[]));
        Self { generation, sets: vec![empty; slots] }
    }

    pub fn replace(&mut self, generation: u32, slots: &[(usize, bool)], addresses: &[IpRange]) {
        self.generation = generation;
        for (slot, v6) in slots {
            if let Some(set) = self.sets.get_mut(*slot) {
                let ranges = addresses.iter().filter_map(|range| range.of(*v6));
                let ranges = merged(ranges.collect()).into_iter().map(|range| (range, 1));
                *set = Arc::new(One::new(&ranges.collect::<Vec<_>>()));
            }
        }
    }

    #[inline]
    pub fn has(&self, slot: u32, value: u128) -> bool {
        self.sets.get(slot as usize).is_some_and(|set| set.find(value) != 0)
    }
}

/// Which rules and members are in force. No two filters of a process share one, so that a flow's
/// memo of an earlier filter is never taken for this one's.
#[derive(Debug)]
pub(crate) struct Generation {
    now: AtomicU32,
    change: Mutex<()>,
}

static LAST: AtomicU32 = AtomicU32::new(0);

fn next() -> u32 {
    loop {
        // 0 is what an empty memo has.
        let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if next != 0 {
            return next;
        }
    }
}

impl Generation {
    pub fn new() -> Self {
        Self { now: AtomicU32::new(next()), change: Mutex::new(()) }
    }

    #[inline]
    pub fn get(&self) -> u32 {
        self.now.load(Ordering::Acquire)
    }

    /// Lets `change` put the next generation in place, one caller after the other.
    pub fn advance(&self, change: impl FnOnce(u32)) {
        let _one = self.change.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let generation = next();
        change(generation);
        self.now.store(generation, Ordering::Release);
    }
}
