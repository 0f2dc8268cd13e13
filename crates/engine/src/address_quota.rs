//! Quotas for a bounded resource, by the address block of an unauthenticated party.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::Network;

/// One in this many places is reserved for IPv4, because an attacker may have more IPv6 blocks than any table has
/// places.
const RESERVED_FOR_IPV4: usize = 4;

/// Returns the share of a block, in quarters of the share of one IPv4 address.
fn quarters(network: Network) -> usize {
    match network {
        Network::V4(_) | Network::V6Link(_) => 4,
        Network::V6Delegated(_) => 5,
        Network::V6Site(_) => 6,
    }
}

/// Places in a table of fixed size, counted in total and by address block.
///
/// A block's share depends on how many places are free: the fuller the table, the smaller a share, so a dozen blocks
/// cannot fill it. An IPv4 block is one address; IPv6 is counted at /64, /56 and /48 at once, and leaves a reserve for
/// IPv4.
#[derive(Debug)]
pub struct AddressQuota {
    most: usize,
    free_per_place: usize,
    total: usize,
    total_ipv6: usize,
    taken: HashMap<Network, usize>,
}

impl AddressQuota {
    /// Creates a table of `most` places. An IPv4 address or a /64 may each hold one place per `free_per_place` free
    /// places, but always at least one.
    #[must_use]
    pub fn new(most: usize, free_per_place: usize) -> Self {
        let free_per_place = free_per_place.max(1);
        Self { most, free_per_place, total: 0, total_ipv6: 0, taken: HashMap::new() }
    }

    /// Takes a place unless the quota of the address is used up, and returns whether it did.
    #[must_use]
    pub fn take(&mut self, address: IpAddr) -> bool {
        let free = self.free(address);
        let share = |network: Network| {
            let share =
                free.saturating_mul(quarters(network)) / self.free_per_place.saturating_mul(4);
            share.max(1)
        };
        let taken = |network: Network| self.taken.get(&network).copied().unwrap_or(0);
        if free == 0 || Network::around(address).any(|network| taken(network) >= share(network)) {
            return false;
        }
        for network in Network::around(address) {
            *self.taken.entry(network).or_default() += 1;
        }
        self.total += 1;
        self.total_ipv6 += usize::from(is_ipv6(address));
        true
    }

    fn free(&self, address: IpAddr) -> usize {
        let free = self.most.saturating_sub(self.total);
        if is_ipv6(address) {
            let most = self.most - self.most / RESERVED_FOR_IPV4;
            free.min(most.saturating_sub(self.total_ipv6))
        } else {
            free
        }
    }

    /// Releases a place. Has no effect if the address holds none.
    pub fn release(&mut self, address: IpAddr) {
        if !Network::around(address).all(|network| self.taken.contains_key(&network)) {
            return;
        }
        for network in Network::around(address) {
            if let Some(count) = self.taken.get_mut(&network) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.taken.remove(&network);
                }
            }
        }
        self.total = self.total.saturating_sub(1);
        self.total_ipv6 = self.total_ipv6.saturating_sub(usize::from(is_ipv6(address)));
    }

    /// Returns the number of places in use.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Shrinks the table to its contents.
    pub fn shrink_to_fit(&mut self) {
        self.taken.shrink_to_fit();
    }
}

fn is_ipv6(address: IpAddr) -> bool {
    address.to_canonical().is_ipv6()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// The number of handshakes that may be in progress.
    const MOST: usize = 4096;

    fn shares() -> AddressQuota {
        AddressQuota::new(MOST, 7)
    }

    fn v4(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    /// Returns host `n` of a network given by its first four groups.
    fn v6(a: u16, b: u16, site: u16, link: u16) -> IpAddr {
        IpAddr::V6(Ipv6Addr::new(a, b, site, link, 0, 0, 0, 1))
    }

    #[test]
    fn a_dozen_addresses_do_not_fill_the_table() {
        let mut s = shares();
        for n in 0..16 {
            while s.take(v4(n)) {}
        }
        assert!(MOST - s.total() > 300, "{}", s.total());
        assert!((1000..1300).all(|n| s.take(v4(n))), "others still get a place");
    }

    #[test]
    fn one_site_of_ipv6_does_not_fill_the_table() {
        let mut s = shares();
        let taken = (0..=u16::MAX).filter(|link| s.take(v6(0x2001, 0xdb8, 0, *link))).count();
        assert!((100..700).contains(&taken), "{taken}");
        assert!(s.take(v4(1)), "IPv4");
        assert!(s.take(v6(0x2001, 0xdb8, 1, 0)), "another /48");
        // The same within one /56, which has a smaller share.
        let mut s = shares();
        let taken = (0..256).cycle().take(65_536);
        let taken = taken.filter(|link| s.take(v6(0x2001, 0xdb8, 0, *link))).count();
        assert!((100..600).contains(&taken), "{taken}");
        assert!(s.take(v6(0x2001, 0xdb8, 0, 0x100)), "another /56 of the site");
    }

    #[test]
    fn ipv6_leaves_a_reserve_to_ipv4() {
        let mut s = shares();
        let sites = (0..=u16::MAX).filter(|site| s.take(v6(0x2001, 0xdb8, *site, 0))).count();
        assert_eq!(sites, MOST * 3 / 4);
        assert_eq!((0..10_000).filter(|n| s.take(v4(*n))).count(), MOST / 4);
    }

    #[test]
    fn the_total_is_bounded() {
        let mut s = shares();
        assert_eq!((0..10_000).filter(|n| s.take(v4(*n))).count(), MOST);
        assert!(!s.take(v6(0x2001, 0xdb8, 0, 0)));
    }

    #[test]
    fn places_are_given_back_once() {
        let mut s = shares();
        let (a, same, other) =
            (v6(0x2001, 0xdb8, 1, 1), v6(0x2001, 0xdb8, 1, 1), v6(0x2001, 0xdb8, 2, 1));
        let taken = (0..MOST).filter(|_| s.take(a)).count();
        assert!(!s.take(same) && s.take(other));
        s.release(same);
        assert!(s.take(a));
        (0..taken).for_each(|_| s.release(a));
        s.release(other);
        assert_eq!((s.total(), s.total_ipv6, s.taken.len()), (0, 0, 0));
        s.release(other);
        assert_eq!(s.total(), 0, "there was nothing to give back");
        assert!(s.take("::ffff:192.0.2.1".parse().expect("an address")));
        s.release("192.0.2.1".parse().expect("an address"));
        assert_eq!((s.total(), s.total_ipv6), (0, 0));
    }
}
