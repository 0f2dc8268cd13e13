//! Tunnel addresses: who has which, and which one a returning client gets back.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_engine::PeerId;
use ipnet::IpNet;

use super::config::{Network4, Network6};

/// Names whose former address is remembered.
const MAX_REMEMBERED: usize = 65_536;

/// The addresses of one client.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ipv4: Option<Ipv4Addr>,
    pub(super) ipv6: Option<Ipv6Addr>,
}

/// Why there is no address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum NoLease {
    /// All are taken.
    Exhausted,
    /// The fixed address is outside the network, or the server's own.
    Unsuitable,
}

#[derive(Debug)]
pub(super) struct Pool {
    network4: Option<Network4>,
    network6: Option<Network6>,
    taken: HashMap<IpAddr, PeerId>,
    remembered: HashMap<String, Lease>,
    next4: u32,
    next6: u128,
}

impl Pool {
    pub(super) fn new(
        network4: Option<Network4>,
        network6: Option<Network6>,
        leases: &[(String, IpNet)],
    ) -> Self {
        let next4 = network4.as_ref().map_or(0, |n| n.first.into());
        let next6 = network6.as_ref().map_or(0, |n| n.first.into());
        let (taken, remembered) = (HashMap::new(), HashMap::new());
        let mut pool = Self { network4, network6, taken, remembered, next4, next6 };
        pool.reserve(leases);
        pool
    }

    /// Keeps addresses for names, as if these had had them before.
    pub(super) fn reserve(&mut self, leases: &[(String, IpNet)]) {
        for (name, net) in leases {
            if self.remembered.len() >= MAX_REMEMBERED && !self.remembered.contains_key(name) {
                continue;
            }
            let lease = self.remembered.entry(name.clone()).or_default();
            match net.addr() {
                IpAddr::V4(v4) => lease.ipv4 = Some(v4),
                IpAddr::V6(v6) => lease.ipv6 = Some(v6),
            }
        }
    }

    /// Gives `peer` its addresses: the fixed ones, else the ones `name` had, else free ones.
    pub(super) fn lease(
        &mut self,
        peer: PeerId,
        name: &str,
        fixed: Lease,
    ) -> Result<Lease, NoLease> {
        let former = self.remembered.get(name).copied().unwrap_or_default();
        let ipv4 = match self.network4.clone() {
            Some(network) => Some(self.ipv4(&network, fixed.ipv4, former.ipv4)?),
            None => None,
        };
        let ipv6 = match self.network6.clone() {
            Some(network) => Some(self.ipv6(&network, fixed.ipv6, former.ipv6)?),
            None => None,
        };
        let lease = Lease { ipv4, ipv6 };
        for address in lease.addresses() {
            self.taken.insert(address, peer);
        }
        if self.remembered.len() < MAX_REMEMBERED || self.remembered.contains_key(name) {
            self.remembered.insert(name.to_owned(), lease);
        }
        Ok(lease)
    }

    /// Takes a lease back.
    pub(super) fn release(&mut self, peer: PeerId, lease: Lease) {
        for address in lease.addresses() {
            if self.taken.get(&address) == Some(&peer) {
                self.taken.remove(&address);
            }
        }
    }

    /// All remembered leases, for keeping them over a restart.
    pub(super) fn remembered(&self) -> impl Iterator<Item = (&str, Lease)> {
        self.remembered.iter().map(|(name, lease)| (name.as_str(), *lease))
    }

    fn ipv4(
        &mut self,
        network: &Network4,
        fixed: Option<Ipv4Addr>,
        former: Option<Ipv4Addr>,
    ) -> Result<Ipv4Addr, NoLease> {
        if let Some(fixed) = fixed {
            return self.fixed(fixed.into(), IpNet::V4(network.server)).map(|()| fixed);
        }
        let (first, last) = (u32::from(network.first), u32::from(network.last));
        let usable = |address: Ipv4Addr| {
            (first..=last).contains(&address.into()) && address != network.server.addr()
        };
        if let Some(former) = former.filter(|&a| usable(a) && !self.taken.contains_key(&a.into())) {
            return Ok(former);
        }
        // Addresses of absent clients are spared while others are left, so that they find theirs.
        let spared: HashSet<_> = self.remembered.values().filter_map(|l| l.ipv4).collect();
        let after = self.next4.clamp(first, last);
        let candidates = || (after..=last).chain(first..after).map(Ipv4Addr::from);
        let free = |a: &Ipv4Addr| usable(*a) && !self.taken.contains_key(&(*a).into());
        let address = candidates()
            .find(|a| free(a) && !spared.contains(a))
            .or_else(|| candidates().find(free))
            .ok_or(NoLease::Exhausted)?;
        self.next4 = u32::from(address).wrapping_add(1);
        Ok(address)
    }

    fn ipv6(
        &mut self,
        network: &Network6,
        fixed: Option<Ipv6Addr>,
        former: Option<Ipv6Addr>,
    ) -> Result<Ipv6Addr, NoLease> {
        if let Some(fixed) = fixed {
            return self.fixed(fixed.into(), IpNet::V6(network.server)).map(|()| fixed);
        }
        let usable = |a: Ipv6Addr| {
            network.server.contains(&a) && a != network.server.addr() && a >= network.first
        };
        if let Some(former) = former.filter(|&a| usable(a) && !self.taken.contains_key(&a.into())) {
            return Ok(former);
        }
        // More candidates than can be taken at once: one of them is free.
        let attempts = self.taken.len() as u128 + 2;
        let first = u128::from(network.first);
        let address = (0..attempts)
            .filter_map(|n| self.next6.checked_add(n))
            .chain((0..attempts).filter_map(|n| first.checked_add(n)))
            .map(Ipv6Addr::from)
            .find(|&a| usable(a) && !self.taken.contains_key(&a.into()))
            .ok_or(NoLease::Exhausted)?;
        self.next6 = u128::from(address).wrapping_add(1);
        Ok(address)
    }

    fn fixed(&self, address: IpAddr, network: IpNet) -> Result<(), NoLease> {
        if !network.contains(&address) || address == network.addr() {
            return Err(NoLease::Unsuitable);
        }
        if self.taken.contains_key(&address) { Err(NoLease::Exhausted) } else { Ok(()) }
    }
}

impl Lease {
    /// The addresses as host prefixes.
    pub(super) fn prefixes(self) -> Vec<IpNet> {
        self.addresses().map(IpNet::from).collect()
    }

    fn addresses(self) -> impl Iterator<Item = IpAddr> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(last: &str) -> Pool {
        let network4 = Network4 {
            server: "10.9.0.1/24".parse().expect("net"),
            first: "10.9.0.2".parse().expect("ip"),
            last: last.parse().expect("ip"),
        };
        let network6 = Network6 {
            server: "fd00::1/64".parse().expect("net"),
            first: "fd00::1000".parse().expect("ip"),
        };
        Pool::new(Some(network4), Some(network6), &[])
    }

    fn v4(lease: Result<Lease, NoLease>) -> String {
        lease.expect("a lease").ipv4.expect("ipv4").to_string()
    }

    #[test]
    fn an_address_reserved_later_is_spared() {
        let mut pool = pool("10.9.0.3");
        pool.reserve(&[("fixed".into(), "10.9.0.2/32".parse().expect("net"))]);
        let lease = pool.lease(PeerId(1), "other", Lease::default()).expect("free");
        assert_eq!(lease.ipv4, Some("10.9.0.3".parse().expect("ip")));
    }

    #[test]
    fn a_returning_client_finds_its_address() {
        let mut p = pool("10.9.0.20");
        let alice = p.lease(PeerId(1), "alice", Lease::default()).expect("lease");
        p.release(PeerId(1), alice);
        assert_eq!(v4(p.lease(PeerId(2), "bob", Lease::default())), "10.9.0.3");
        assert_eq!(p.lease(PeerId(3), "alice", Lease::default()), Ok(alice));
    }

    #[test]
    fn an_exhausted_pool_says_so_and_recovers() {
        let mut p = pool("10.9.0.3");
        let a = p.lease(PeerId(1), "a", Lease::default()).expect("lease");
        p.lease(PeerId(2), "b", Lease::default()).expect("lease");
        assert_eq!(p.lease(PeerId(3), "c", Lease::default()), Err(NoLease::Exhausted));
        p.release(PeerId(1), a);
        assert_eq!(v4(p.lease(PeerId(3), "c", Lease::default())), "10.9.0.2");
    }

    #[test]
    fn a_release_by_the_former_owner_does_not_free_the_new_ones() {
        let mut p = pool("10.9.0.2");
        let old = p.lease(PeerId(1), "a", Lease::default()).expect("lease");
        p.release(PeerId(1), old);
        p.lease(PeerId(2), "b", Lease::default()).expect("lease");
        p.release(PeerId(1), old);
        assert_eq!(p.lease(PeerId(3), "c", Lease::default()), Err(NoLease::Exhausted));
    }

    #[test]
    fn fixed_addresses_are_checked() {
        let mut p = pool("10.9.0.20");
        let fixed = |text: &str| Lease { ipv4: text.parse().ok(), ipv6: None };
        assert_eq!(v4(p.lease(PeerId(1), "a", fixed("10.9.0.77"))), "10.9.0.77");
        assert_eq!(p.lease(PeerId(2), "b", fixed("10.9.0.77")), Err(NoLease::Exhausted));
        assert_eq!(p.lease(PeerId(2), "b", fixed("10.8.0.5")), Err(NoLease::Unsuitable));
        assert_eq!(p.lease(PeerId(2), "b", fixed("10.9.0.1")), Err(NoLease::Unsuitable));
    }
}
