//! The addresses that each peer owns: the destinations routed to it, and the only sources accepted from it (WireGuard's allowed-ips).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use adit_engine::PeerId;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::{Prefix, PrefixMap};

/// Longest-prefix tables for both families.
///
/// ```
/// use adit_dataplane::Routes;
/// use adit_engine::PeerId;
///
/// let mut routes = Routes::default();
/// routes.set(PeerId(1), vec!["10.8.0.0/24".parse()?, "fd00::/64".parse()?]);
/// routes.set(PeerId(2), vec!["10.8.0.7/32".parse()?]);
/// assert_eq!(routes.owner("10.8.0.6".parse()?), Some(PeerId(1)));
/// assert_eq!(routes.owner("10.8.0.7".parse()?), Some(PeerId(2)), "the longest prefix decides");
/// assert_eq!(routes.owner("192.0.2.1".parse()?), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Routes {
    v4: Family<u32, Ipv4Net>,
    v6: Family<u128, Ipv6Net>,
    owned: PeerRoutes,
}

/// The routes of one address family. Single addresses, which most peers have and which always win, are kept apart from prefixes. Publishing
/// routes copies all prefixes, but only a part of the addresses.
#[derive(Clone, Debug)]
struct Family<A, P: Prefix> {
    hosts: [Arc<Hosts<A>>; PARTS],
    /// The empty table that all parts without hosts share. Thirty-two separate tables could keep thirty-two pages of memory in use.
    none: Arc<Hosts<A>>,
    /// The number of entries. If it is 0, lookups skip the table.
    entered: usize,
    prefixes: PrefixMap<P, PeerId>,
}

type Hosts<A> = HashMap<A, PeerId, BuildHasherDefault<Mixer>>;

/// The number of parts of a family's addresses. More would make small tables slower to copy.
const PARTS: usize = 16;

impl<A, P: Prefix> Default for Family<A, P>
where
    PrefixMap<P, PeerId>: Default,
{
    fn default() -> Self {
        let none = Arc::<Hosts<A>>::default();
        let hosts = std::array::from_fn(|_| Arc::clone(&none));
        Self { hosts, none, entered: 0, prefixes: PrefixMap::default() }
    }
}

/// Hashes addresses. It needs no secret, because we assign all of them. The sender of a packet chooses which address is
/// looked up, but not which addresses are entered.
#[derive(Clone, Copy, Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u128(word.into());
    }

    #[inline]
    fn write_u128(&mut self, word: u128) {
        self.0 = mix(word, self.0);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Mixes two words: both halves of their 128-bit product depend on all bits of both.
#[inline]
pub(crate) fn mix(word: u128, with: u64) -> u64 {
    let (low, high) = (word as u64 ^ 0x9e37_79b9_7f4a_7c15, (word >> 64) as u64 ^ with);
    let product = u128::from(low).wrapping_mul(u128::from(high ^ 0xd6e8_feb8_6659_fd93));
    product as u64 ^ (product >> 64) as u64
}

/// Returns an address's part, from hash bits that the tables themselves do not use.
#[inline]
fn part(mut mixer: Mixer, address: &impl std::hash::Hash) -> usize {
    address.hash(&mut mixer);
    (mixer.finish() >> 40) as usize % PARTS
}

impl<A: Copy + Eq + std::hash::Hash, P: Prefix + Copy> Family<A, P> {
    #[inline]
    fn owner(&self, address: A, as_prefix: impl FnOnce() -> P) -> Option<PeerId> {
        if self.entered > 0
            && let Some(hosts) = self.hosts.get(part(Mixer::default(), &address))
            && let Some(peer) = hosts.get(&address)
        {
            return Some(*peer);
        }
        self.prefixes.get_lpm(&as_prefix()).map(|(_, peer)| *peer)
    }

    /// Inserts a prefix. `host`: the address, if the prefix is a single one.
    fn insert(&mut self, host: Option<A>, prefix: P, peer: PeerId) {
        let Some(address) = host else {
            self.prefixes.insert(prefix, peer);
            return;
        };
        if let Some(hosts) = self.hosts.get_mut(part(Mixer::default(), &address)) {
            let former = Arc::make_mut(hosts).insert(address, peer);
            self.entered = self.entered.saturating_add(usize::from(former.is_none()));
        }
    }

    fn release_memory(&mut self) {
        if self.prefixes.is_empty() {
            self.prefixes = PrefixMap::default();
        }
    }

    /// Removes a prefix, unless it has since moved to another peer.
    fn remove(&mut self, host: Option<A>, prefix: P, peer: PeerId) {
        let Some(address) = host else {
            if self.prefixes.get(&prefix) == Some(&peer) {
                self.prefixes.remove(&prefix);
            }
            return;
        };
        if let Some(part) = self.hosts.get_mut(part(Mixer::default(), &address))
            && part.get(&address) == Some(&peer)
        {
            let hosts = Arc::make_mut(part);
            hosts.remove(&address);
            self.entered = self.entered.saturating_sub(1);
            if hosts.is_empty() {
                // A new table: the old one would keep its peak size.
                *part = Arc::clone(&self.none);
            }
        }
    }
}

fn host_v4(net: Ipv4Net) -> Option<u32> {
    (net.prefix_len() == 32).then(|| net.addr().into())
}

fn host_v6(net: Ipv6Net) -> Option<u128> {
    (net.prefix_len() == 128).then(|| net.addr().into())
}

/// The prefixes of [`PAGE`] peers with consecutive ids.
type Page = Vec<Option<Arc<[IpNet]>>>;

const PAGE: u32 = 32;

/// The addresses of each peer, in pages: a change of routes copies one page instead of a list of all peers.
#[derive(Clone, Debug, Default)]
struct PeerRoutes(HashMap<u32, Arc<Page>>);

impl PeerRoutes {
    /// Replaces a peer's prefixes and returns the previous ones.
    fn set(&mut self, peer: PeerId, prefixes: Vec<IpNet>) -> Option<Arc<[IpNet]>> {
        let (number, at) = (peer.0 / PAGE, (peer.0 % PAGE) as usize);
        let page = if prefixes.is_empty() {
            self.0.get_mut(&number)?
        } else {
            self.0.entry(number).or_insert_with(|| Arc::new(vec![None; PAGE as usize]))
        };
        let page = Arc::make_mut(page);
        let new = (!prefixes.is_empty()).then(|| prefixes.into());
        let old = std::mem::replace(page.get_mut(at)?, new);
        if page.iter().all(Option::is_none) {
            self.0.remove(&number);
        }
        old
    }
}

impl Routes {
    /// Returns the peer that owns an address.
    #[inline]
    pub fn owner(&self, address: IpAddr) -> Option<PeerId> {
        match address {
            IpAddr::V4(ip) => self.v4.owner(ip.into(), || ip.into()),
            IpAddr::V6(ip) => self.v6.owner(ip.into(), || ip.into()),
        }
    }

    /// Returns whether a peer owns any prefix.
    pub(crate) fn has_any(&self, peer: PeerId) -> bool {
        let page = self.owned.0.get(&(peer.0 / PAGE));
        page.and_then(|page| page.get((peer.0 % PAGE) as usize)).is_some_and(Option::is_some)
    }

    /// Replaces the prefixes that a peer owns. A prefix of another peer moves to this one.
    pub fn set(&mut self, peer: PeerId, prefixes: Vec<IpNet>) {
        self.remove(peer);
        for prefix in &prefixes {
            match prefix.trunc() {
                IpNet::V4(net) => self.v4.insert(host_v4(net), net, peer),
                IpNet::V6(net) => self.v6.insert(host_v6(net), net, peer),
            }
        }
        self.owned.set(peer, prefixes);
    }

    /// Shrinks the tables to their contents.
    pub fn release_memory(&mut self) {
        self.owned.0.shrink_to_fit();
        self.v4.release_memory();
        self.v6.release_memory();
    }

    /// Removes a peer and its prefixes.
    pub fn remove(&mut self, peer: PeerId) {
        let Some(prefixes) = self.owned.set(peer, Vec::new()) else { return };
        for prefix in prefixes.iter() {
            match prefix.trunc() {
                IpNet::V4(net) => self.v4.remove(host_v4(net), net, peer),
                IpNet::V6(net) => self.v6.remove(host_v6(net), net, peer),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(routes: &Routes, address: &str) -> Option<u32> {
        routes.owner(address.parse().unwrap()).map(|peer| peer.0)
    }

    fn set(routes: &mut Routes, peer: u32, prefixes: &[&str]) {
        routes.set(PeerId(peer), prefixes.iter().map(|p| p.parse().unwrap()).collect());
    }

    #[test]
    fn the_longest_prefix_owns() {
        let mut routes = Routes::default();
        set(&mut routes, 1, &["10.0.0.0/8", "fd00::/16", "0.0.0.0/0"]);
        set(&mut routes, 2, &["10.1.0.0/16", "10.1.2.3/32", "fd00:0:0:1::/64"]);
        set(&mut routes, 3, &["10.1.2.0/24"]);
        assert_eq!(owner(&routes, "10.2.0.1"), Some(1));
        assert_eq!(owner(&routes, "10.1.0.1"), Some(2));
        assert_eq!(owner(&routes, "10.1.2.3"), Some(2));
        assert_eq!(owner(&routes, "10.1.2.4"), Some(3));
        assert_eq!(owner(&routes, "192.0.2.1"), Some(1));
        assert_eq!(owner(&routes, "fd00::1:0:0:1"), Some(1));
        assert_eq!(owner(&routes, "fd00:0:0:1::1"), Some(2));
        assert_eq!(owner(&routes, "2001:db8::1"), None);
    }

    #[test]
    fn a_prefix_moves_and_its_former_owner_cannot_take_it_along() {
        let mut routes = Routes::default();
        set(&mut routes, 1, &["10.0.0.5/32"]);
        set(&mut routes, 2, &["10.0.0.5/32"]);
        assert_eq!(owner(&routes, "10.0.0.5"), Some(2));
        routes.remove(PeerId(1));
        assert_eq!(owner(&routes, "10.0.0.5"), Some(2));
        set(&mut routes, 2, &["10.0.0.6/32"]);
        assert_eq!(owner(&routes, "10.0.0.5"), None);
    }

    #[test]
    fn pages_without_an_owner_are_gone() {
        let mut routes = Routes::default();
        for peer in 0..1000 {
            set(&mut routes, peer, &["10.0.0.0/8"]);
            let published = routes.clone();
            routes.remove(PeerId(peer));
            assert_eq!(owner(&published, "10.0.0.1"), Some(peer));
            assert_eq!(owner(&routes, "10.0.0.1"), None);
            assert!(routes.owned.0.is_empty());
        }
        routes.remove(PeerId(7));
        assert!(routes.owned.0.is_empty());
    }

    #[test]
    fn a_single_address_is_found_among_many_and_what_was_published_stays() {
        let mut routes = Routes::default();
        set(&mut routes, 0, &["10.8.0.0/16", "fd08::/64"]);
        // Consecutive addresses, or every fourth, as pools assign them.
        let nets = |n: u32| {
            let v4 = IpNet::from(IpAddr::from((0x0a08_0000 + 4 * n).to_be_bytes()));
            let v6 = IpNet::from(IpAddr::from(((0xfd08 << 112) + u128::from(n)).to_be_bytes()));
            vec![v4, v6]
        };
        for peer in 1..=5000 {
            routes.set(PeerId(peer), nets(peer));
        }
        let published = routes.clone();
        (1..=5000).filter(|n| n % 2 == 0).for_each(|peer| routes.remove(PeerId(peer)));
        for peer in 1..=5000 {
            for net in nets(peer) {
                assert_eq!(published.owner(net.addr()), Some(PeerId(peer)));
                let left = if peer % 2 == 0 { 0 } else { peer };
                assert_eq!(routes.owner(net.addr()), Some(PeerId(left)));
            }
        }
        assert_eq!(owner(&routes, "10.8.0.1"), Some(0));
        for parts in
            [published.v4.hosts.map(|part| part.len()), published.v6.hosts.map(|part| part.len())]
        {
            assert!(parts.iter().all(|len| (200..450).contains(len)), "{parts:?}");
        }
        (1..=5000).for_each(|peer| routes.remove(PeerId(peer)));
        assert!(routes.v4.hosts.iter().all(|part| part.capacity() == 0));
        assert_eq!((published.v4.entered, routes.v4.entered, routes.v6.entered), (5000, 0, 0));
        // An address that is set again or moves to another peer still counts once.
        (1..=3).for_each(|peer| routes.set(PeerId(peer), nets(9)));
        assert_eq!((routes.v4.entered, routes.owner(nets(9)[0].addr())), (1, Some(PeerId(3))));
    }

    #[test]
    fn host_bits_do_not_matter() {
        let mut routes = Routes::default();
        set(&mut routes, 1, &["10.8.0.1/24"]);
        assert_eq!(owner(&routes, "10.8.0.200"), Some(1));
        set(&mut routes, 1, &[]);
        assert_eq!(owner(&routes, "10.8.0.200"), None);
    }

    proptest! {
        #[test]
        fn agrees_with_a_list(
            entries in proptest::collection::vec((0u32..4, 0u8..8, 0u8..=32), 0..20), probe in (0u8..8, 0u8..2),
        ) {
            let mut routes = Routes::default();
            let mut nets: Vec<(PeerId, Vec<IpNet>)> = (0..4).map(|i| (PeerId(i), vec![])).collect();
            for (peer, octet, len) in entries {
                let net: Ipv4Net = Ipv4Net::new([octet << 5, 0, 0, 0].into(), len).unwrap();
                nets[peer as usize].1.push(IpNet::V4(net));
            }
            for (peer, prefixes) in &nets {
                routes.set(*peer, prefixes.clone());
            }
            let address: IpAddr = [probe.0 << 5, 0, 0, probe.1].into();
            // The reference: the longest prefix wins, and among equal prefixes the last that was set.
            let expected = nets.iter().flat_map(|(peer, p)| p.iter().map(move |net| (net, peer)))
                .filter(|(net, _)| net.contains(&address))
                .max_by_key(|(net, peer)| (net.prefix_len(), peer.0))
                .map(|(_, peer)| *peer);
            prop_assert_eq!(routes.owner(address), expected);
        }
    }
}
