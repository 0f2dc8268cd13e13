//! Tracks which client holds each tunnel address, and which address a returning client gets back.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_engine::{PeerId, auth};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::config::{Network4, Network6, Topology};

/// The maximum number of names whose last address is recorded.
const MAX_REMEMBERED: usize = 65_536;

/// A name that no certificate has.
const NO_NAME: &str = "";

/// The addresses of one client.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) ipv4: Option<Ipv4Addr>,
    pub(super) ipv6: Option<Ipv6Addr>,
}

/// The fixed addresses of a client.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) ipv4: Option<Ipv4Addr>,
    pub(super) ipv6: Option<Ipv6Addr>,
    /// Whether the addresses may be outside the server's networks.
    pub(super) anywhere: bool,
}

impl Fixed {
    /// Returns the fixed addresses in a client's parameters.
    pub(super) fn of(grant: &auth::ClientParams) -> Self {
        Self {
            ipv4: grant.ifconfig4.map(|(address, _)| address).or(grant.ipv4),
            ipv6: grant.ifconfig6.map(|(net, _)| net.addr()).or(grant.ipv6),
            anywhere: grant.ifconfig4.is_some() || grant.ifconfig6.is_some(),
        }
    }
}

/// The reason why a client gets no address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum NoLease {
    /// All addresses are taken.
    Exhausted,
    /// Another session holds the fixed address.
    Held(PeerId),
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
        let first4 = network4.as_ref().and_then(|n| n.pool).map(|(first, _)| first);
        let next4 = first4.map_or(0, u32::from);
        let next6 = network6.as_ref().map_or(0, |n| n.first.into());
        let (taken, remembered) = (HashMap::new(), HashMap::new());
        let mut pool = Self { network4, network6, taken, remembered, next4, next6 };
        pool.reserve(leases);
        pool
    }

    /// Records addresses for names, as if the names had held them before.
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

    /// Gives `peer` its addresses. These are the fixed addresses, else those that `name` had last,
    /// else free ones.
    pub(super) fn lease(
        &mut self,
        peer: PeerId,
        name: &str,
        fixed: Fixed,
    ) -> Result<Lease, NoLease> {
        let former = self.remembered.get(name).copied().unwrap_or_default();
        let ipv4 = match (fixed.ipv4, self.network4.clone()) {
            (Some(address), network) => {
                self.fixed(address.into(), network.map(|n| n.server.into()), fixed.anywhere)?;
                Some(address)
            }
            (None, Some(network)) => match network.pool {
                Some(pool) => Some(self.ipv4(&network, pool, former.ipv4)?),
                None => None,
            },
            (None, None) => None,
        };
        let ipv6 = match (fixed.ipv6, self.network6.clone()) {
            (Some(address), network) => {
                self.fixed(address.into(), network.map(|n| n.server.into()), fixed.anywhere)?;
                Some(address)
            }
            (None, Some(network)) => Some(self.ipv6(&network, former.ipv6)?),
            (None, None) => None,
        };
        let lease = Lease { ipv4, ipv6 };
        for address in lease.addresses() {
            self.taken.insert(address, peer);
        }
        // The configuration already contains a fixed address, so it need not be recorded here.
        let lent = Lease {
            ipv4: ipv4.filter(|_| fixed.ipv4.is_none()),
            ipv6: ipv6.filter(|_| fixed.ipv6.is_none()),
        };
        let known = self.remembered.contains_key(name);
        if lent != Lease::default() && (known || self.remembered.len() < MAX_REMEMBERED) {
            self.remembered.insert(name.to_owned(), lent);
        }
        Ok(lease)
    }

    /// Gives `peer` its fixed addresses or free ones, which are not recorded for any name.
    pub(super) fn lease_once(&mut self, peer: PeerId, fixed: Fixed) -> Result<Lease, NoLease> {
        let lease = self.lease(peer, NO_NAME, fixed);
        self.remembered.remove(NO_NAME);
        lease
    }

    /// Gives `peer` the addresses that it had in another process. Returns false if one of them is taken.
    pub(super) fn restore(&mut self, peer: PeerId, lease: Lease) -> bool {
        if lease.addresses().any(|address| self.taken.contains_key(&address)) {
            return false;
        }
        self.taken.extend(lease.addresses().map(|address| (address, peer)));
        true
    }

    /// Releases the addresses of a lease.
    pub(super) fn release(&mut self, peer: PeerId, lease: Lease) {
        for address in lease.addresses() {
            if self.taken.get(&address) == Some(&peer) {
                self.taken.remove(&address);
            }
        }
    }

    /// Shrinks the tables to their contents. The names are kept, so that each gets its address
    /// back.
    pub(super) fn release_memory(&mut self) {
        self.taken.shrink_to_fit();
        self.remembered.shrink_to_fit();
    }

    /// Returns all recorded leases, so that they can be kept across a restart.
    pub(super) fn remembered(&self) -> impl Iterator<Item = (&str, Lease)> {
        self.remembered.iter().map(|(name, lease)| (name.as_str(), *lease))
    }

    fn ipv4(
        &mut self,
        network: &Network4,
        (first, last): (Ipv4Addr, Ipv4Addr),
        former: Option<Ipv4Addr>,
    ) -> Result<Ipv4Addr, NoLease> {
        // With net30, the third address of each block of four is a client's, and the second is its
        // far end.
        let (step, first, last) = match network.topology {
            Topology::Net30 => (4, (u32::from(first) & !3) | 2, last.into()),
            Topology::Subnet | Topology::P2p => (1, first.into(), last.into()),
        };
        let usable = |address: Ipv4Addr| {
            let number = u32::from(address);
            (first..=last).contains(&number)
                && number.wrapping_sub(first) % step == 0
                && address != network.server.addr()
        };
        if let Some(former) = former.filter(|&a| usable(a) && !self.taken.contains_key(&a.into())) {
            return Ok(former);
        }
        // Addresses recorded for absent clients are skipped while others are free, so that those
        // clients get theirs back.
        let spared: HashSet<_> = self.remembered.values().filter_map(|l| l.ipv4).collect();
        let after = self.next4.clamp(first, last.max(first));
        let after = after.saturating_add((step - after.wrapping_sub(first) % step) % step);
        let by = step as usize;
        let candidates =
            || (after..=last).step_by(by).chain((first..after).step_by(by)).map(Ipv4Addr::from);
        let free = |a: &Ipv4Addr| usable(*a) && !self.taken.contains_key(&(*a).into());
        let address = candidates()
            .find(|a| free(a) && !spared.contains(a))
            .or_else(|| candidates().find(free))
            .ok_or(NoLease::Exhausted)?;
        self.next4 = u32::from(address).wrapping_add(step);
        Ok(address)
    }

    fn ipv6(&mut self, network: &Network6, former: Option<Ipv6Addr>) -> Result<Ipv6Addr, NoLease> {
        let usable = |a: Ipv6Addr| {
            network.server.contains(&a) && a != network.server.addr() && a >= network.first
        };
        if let Some(former) = former.filter(|&a| usable(a) && !self.taken.contains_key(&a.into())) {
            return Ok(former);
        }
        // There are more candidates than taken addresses, so one of them is free.
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

    fn fixed(
        &self,
        address: IpAddr,
        network: Option<IpNet>,
        anywhere: bool,
    ) -> Result<(), NoLease> {
        let inside = network.is_some_and(|network| network.contains(&address));
        if !(inside || anywhere) || network.is_some_and(|network| network.addr() == address) {
            return Err(NoLease::Unsuitable);
        }
        self.taken.get(&address).map_or(Ok(()), |holder| Err(NoLease::Held(*holder)))
    }
}

impl Lease {
    /// Returns the addresses as host prefixes.
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
        let network4 = Network4::subnet(
            "10.9.0.1/24".parse().expect("net"),
            "10.9.0.2".parse().expect("ip"),
            last.parse().expect("ip"),
        );
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
        let lease = pool.lease(PeerId(1), "other", Fixed::default()).expect("free");
        assert_eq!(lease.ipv4, Some("10.9.0.3".parse().expect("ip")));
    }

    #[test]
    fn a_returning_client_finds_its_address() {
        let mut p = pool("10.9.0.20");
        let alice = p.lease(PeerId(1), "alice", Fixed::default()).expect("lease");
        p.release(PeerId(1), alice);
        assert_eq!(v4(p.lease(PeerId(2), "bob", Fixed::default())), "10.9.0.3");
        assert_eq!(p.lease(PeerId(3), "alice", Fixed::default()), Ok(alice));
    }

    /// `ifconfig-ipv6-pool` names the first address.
    #[test]
    fn addresses_of_ipv6_follow_the_first_one() {
        let mut pool = pool("10.9.0.20");
        let mut lease = |n: u32, name| {
            let lease = pool.lease(PeerId(n), name, Fixed::default()).expect("lease");
            lease.ipv6.expect("ipv6").to_string()
        };
        assert_eq!([lease(1, "alice"), lease(2, "bob")], ["fd00::1000", "fd00::1001"]);
    }

    #[test]
    fn an_exhausted_pool_says_so_and_recovers() {
        let mut p = pool("10.9.0.3");
        let a = p.lease(PeerId(1), "a", Fixed::default()).expect("lease");
        p.lease(PeerId(2), "b", Fixed::default()).expect("lease");
        assert_eq!(p.lease(PeerId(3), "c", Fixed::default()), Err(NoLease::Exhausted));
        p.release(PeerId(1), a);
        assert_eq!(v4(p.lease(PeerId(3), "c", Fixed::default())), "10.9.0.2");
    }

    #[test]
    fn a_release_by_the_former_owner_does_not_free_the_new_ones() {
        let mut p = pool("10.9.0.2");
        let old = p.lease(PeerId(1), "a", Fixed::default()).expect("lease");
        p.release(PeerId(1), old);
        p.lease(PeerId(2), "b", Fixed::default()).expect("lease");
        p.release(PeerId(1), old);
        assert_eq!(p.lease(PeerId(3), "c", Fixed::default()), Err(NoLease::Exhausted));
    }

    #[test]
    fn fixed_addresses_are_checked() {
        let mut p = pool("10.9.0.20");
        let fixed = |text: &str| Fixed { ipv4: text.parse().ok(), ..Fixed::default() };
        assert_eq!(v4(p.lease(PeerId(1), "a", fixed("10.9.0.77"))), "10.9.0.77");
        assert_eq!(p.lease(PeerId(2), "b", fixed("10.9.0.77")), Err(NoLease::Held(PeerId(1))));
        assert_eq!(p.lease(PeerId(2), "b", fixed("10.8.0.5")), Err(NoLease::Unsuitable));
        assert_eq!(p.lease(PeerId(2), "b", fixed("10.9.0.1")), Err(NoLease::Unsuitable));
    }

    #[test]
    fn an_address_by_ifconfig_push_may_lie_outside_and_is_not_remembered() {
        let mut p = pool("10.9.0.3");
        let outside = Fixed { ipv4: "10.20.0.9".parse().ok(), anywhere: true, ..Fixed::default() };
        assert_eq!(v4(p.lease(PeerId(1), "a", outside)), "10.20.0.9");
        assert!(p.remembered().all(|(_, lease)| lease.ipv4.is_none()));
        let server = Fixed { ipv4: "10.9.0.1".parse().ok(), anywhere: true, ..Fixed::default() };
        assert_eq!(p.lease(PeerId(2), "b", server), Err(NoLease::Unsuitable));
    }

    fn net30(first: &str, last: &str) -> Pool {
        let network4 = Network4 {
            topology: Topology::Net30,
            ..Network4::subnet(
                "10.9.0.1/24".parse().expect("net"),
                first.parse().expect("ip"),
                last.parse().expect("ip"),
            )
        };
        Pool::new(Some(network4), None, &[])
    }

    /// The addresses that openvpn 2.6 assigns with `server 10.9.0.0 255.255.255.0` and `topology
    /// net30`.
    #[test]
    fn net30_gives_every_client_four_addresses() {
        let mut p = net30("10.9.0.4", "10.9.0.251");
        let mut lease = |n| v4(p.lease(PeerId(n), &format!("c{n}"), Fixed::default()));
        assert_eq!(
            (lease(1), lease(2), lease(3)),
            ("10.9.0.6".into(), "10.9.0.10".into(), "10.9.0.14".into())
        );
        let rest = (4..63).filter(|n| !lease(*n).is_empty()).count();
        assert_eq!(rest, 59, "62 places in all, of 10.9.0.4/30 to 10.9.0.248/30");
        assert_eq!(p.lease(PeerId(99), "x", Fixed::default()), Err(NoLease::Exhausted));
        p.release(PeerId(2), Lease { ipv4: "10.9.0.10".parse().ok(), ipv6: None });
        assert_eq!(v4(p.lease(PeerId(99), "x", Fixed::default())), "10.9.0.10");
    }

    #[test]
    fn net30_finds_the_first_place_from_any_beginning() {
        let mut p = net30("10.9.0.5", "10.9.0.14");
        let mut lease = |n| p.lease(PeerId(n), &format!("c{n}"), Fixed::default());
        assert_eq!(v4(lease(1)), "10.9.0.6");
        assert_eq!(v4(lease(2)), "10.9.0.10");
        assert_eq!(v4(lease(3)), "10.9.0.14");
        assert_eq!(lease(4), Err(NoLease::Exhausted));
    }
}
