//! Which client an address belongs to, so that a client with many addresses has one share of the table.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

/// A client's number; 0 is none. More clients than that share numbers, and so shares.
pub(super) type Owner = u16;

/// Asked once for each new flow, and by no other packet.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Whether there is any: without clients, as on a bridge, nothing is asked.
    some: AtomicBool,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By network and its length.
    prefixes: HashMap<(IpAddr, u8), Owner>,
    /// How many networks of each length there are, of IPv4 and IPv6.
    lengths: [BTreeMap<u8, usize>; 2],
    numbers: HashMap<String, Owner>,
    last: Owner,
}

/// The network that an address is in.
fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
            IpAddr::V4((address.to_bits() & !host).into())
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(length.into()).unwrap_or(0);
            IpAddr::V6((address.to_bits() & !host).into())
        }
    }
}

impl Owners {
    /// A client has this network from now on, or nobody has.
    pub fn set(&self, address: IpAddr, length: u8, client: Option<&str>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let place = (network(address, length), length);
        let count = |known: &mut Known| {
            let [v4, v6] = &mut known.lengths;
            let lengths = if address.is_ipv4() { v4 } else { v6 };
            *lengths.entry(length).or_insert(0)
        };
        let now = match client {
            Some(client) => {
                let owner = known.number(client);
                let new = known.prefixes.insert(place, owner).is_none();
                count(&mut known).saturating_add(new.into())
            }
            None => {
                let gone = known.prefixes.remove(&place).is_some();
                count(&mut known).saturating_sub(gone.into())
            }
        };
        let [v4, v6] = &mut known.lengths;
        let lengths = if address.is_ipv4() { v4 } else { v6 };
        match now {
            0 => lengths.remove(&length),
            now => lengths.insert(length, now),
        };
        self.some.store(!known.prefixes.is_empty(), Ordering::Relaxed);
    }

    /// Whose an address is: of the smallest network that it is in.
    pub(super) fn of(&self, address: impl FnOnce() -> IpAddr) -> Owner {
        if !self.some.load(Ordering::Relaxed) {
            return 0;
        }
        let address = address();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let [v4, v6] = &known.lengths;
        let lengths = if address.is_ipv4() { v4 } else { v6 };
        let mut found = lengths.keys().rev().filter_map(|length| {
            known.prefixes.get(&(network(address, *length), *length)).copied()
        });
        found.next().unwrap_or(0)
    }
}

impl Known {
    /// Numbers are kept: a client that comes back has the flows that it left counted as its own.
    fn number(&mut self, client: &str) -> Owner {
        if let Some(number) = self.numbers.get(client) {
            return *number;
        }
        let number = self.last.checked_add(1).unwrap_or(1);
        if self.numbers.len() >= usize::from(Owner::MAX) {
            // Who was here before counts as someone else: no more than a share is lost.
            self.numbers.clear();
        }
        self.last = number;
        self.numbers.insert(client.to_owned(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_network_counts_and_numbers_are_kept() {
        let owners = Owners::default();
        let of = |text: &str| owners.of(|| text.parse().unwrap());
        let set = |text: &str, length, client| owners.set(text.parse().unwrap(), length, client);
        assert_eq!(of("10.8.0.2"), 0);
        set("10.8.0.2", 32, Some("alice"));
        set("10.9.0.0", 16, Some("alice"));
        set("fd00::2", 128, Some("alice"));
        set("10.9.1.0", 24, Some("bob"));
        let alice = of("10.8.0.2");
        assert!(alice != 0 && [of("10.9.0.1"), of("fd00::2")] == [alice; 2]);
        assert!(of("10.9.1.7") != alice && of("10.9.1.7") != 0);
        assert_eq!([of("10.8.0.3"), of("fd00::3")], [0; 2]);
        set("10.9.1.0", 24, None);
        assert_eq!(of("10.9.1.7"), alice);
        for (text, length) in [("10.8.0.2", 32), ("10.9.0.0", 16), ("fd00::2", 128)] {
            set(text, length, None);
        }
        assert_eq!(of("10.9.0.1"), 0);
        assert!(owners.known.read().unwrap().lengths.iter().all(BTreeMap::is_empty));
        set("10.8.0.9", 32, Some("alice"));
        assert_eq!(of("10.8.0.9"), alice);
    }
}
