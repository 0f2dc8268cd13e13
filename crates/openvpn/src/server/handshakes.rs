//! How many handshakes may be under way, in all and from one network.

use std::collections::HashMap;
use std::net::IpAddr;

/// Handshakes at once.
const MAX_HANDSHAKES: usize = 4096;
/// Each /32 or /64 may have one handshake for so many places that are free: the fuller the table,
/// the smaller a network's share, so that a dozen networks do not fill it.
const FREE_PER_HANDSHAKE: usize = 7;

/// A /32 or a /64: what one customer of a provider commonly has.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Network(u128);

impl Network {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(u128::from(u32::from(v4))),
            // The highest bit keeps the families apart: no IPv4 address is that large.
            IpAddr::V6(v6) => Self((u128::from(v6) >> 64) | 1 << 127),
        }
    }
}

/// Counts handshakes under way.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    total: usize,
    by_network: HashMap<Network, usize>,
}

impl Handshakes {
    /// Counts one more if there is room for it.
    pub(super) fn begin(&mut self, address: IpAddr) -> bool {
        let of_network = self.by_network.get(&Network::of(address)).copied().unwrap_or(0);
        let free = MAX_HANDSHAKES.saturating_sub(self.total);
        if free == 0 || of_network >= (free / FREE_PER_HANDSHAKE).max(1) {
            return false;
        }
        self.total += 1;
        self.by_network.insert(Network::of(address), of_network + 1);
        true
    }

    /// One has ended, with or without a session.
    pub(super) fn end(&mut self, address: IpAddr) {
        let network = Network::of(address);
        if let Some(count) = self.by_network.get_mut(&network) {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.by_network.remove(&network);
            }
        }
    }

    /// Makes the table as small as what is in it.
    pub(super) fn rest(&mut self) {
        self.by_network.shrink_to_fit();
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one network gets of an empty table.
    const MAX_PER_NETWORK: usize = 512;

    #[test]
    fn a_dozen_networks_do_not_fill_the_table() {
        let mut h = Handshakes::default();
        for n in 0..16u32 {
            while h.begin(IpAddr::V4(n.into())) {}
        }
        assert!(MAX_HANDSHAKES - h.total() > 300, "{}", h.total());
        assert!((1000..1300u32).all(|n| h.begin(IpAddr::V4(n.into()))), "others still connect");
    }

    #[test]
    fn counts_by_network_and_forgets_what_has_ended() {
        let mut h = Handshakes::default();
        let a: IpAddr = "2001:db8::1".parse().expect("ip");
        let same: IpAddr = "2001:db8::2".parse().expect("ip");
        let other: IpAddr = "2001:db8:1::1".parse().expect("ip");
        (0..MAX_PER_NETWORK).for_each(|_| assert!(h.begin(a)));
        assert!(!h.begin(same));
        assert!(h.begin(other));
        h.end(same);
        assert!(h.begin(a));
        (0..MAX_PER_NETWORK).for_each(|_| h.end(a));
        h.end(other);
        assert_eq!((h.total(), h.by_network.len()), (0, 0));
        h.end(other);
        assert_eq!(h.total(), 0, "an end without a beginning counts nothing");
    }

    #[test]
    fn the_total_is_bounded() {
        let mut h = Handshakes::default();
        let begun = (0..10_000u32).filter(|&n| h.begin(IpAddr::V4(n.into()))).count();
        assert_eq!(begun, MAX_HANDSHAKES);
    }
}
