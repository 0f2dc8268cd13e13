//! Which peer owns which addresses: destinations that are sent to it, and the only sources accepted
//! from it (WireGuard's allowed-ips).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use adit_engine::PeerId;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;

/// Longest-prefix tables for both families.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    v4: PrefixMap<Ipv4Net, PeerId>,
    v6: PrefixMap<Ipv6Net, PeerId>,
    owned: Owned,
}

/// Prefixes of [`PAGE`] peers whose ids are neighbours.
type Page = Vec<Option<Arc<[IpNet]>>>;

const PAGE: u32 = 64;

/// What each peer owns, in pages: whoever publishes other routes copies one of them, and not a list for each peer.
#[derive(Clone, Debug, Default)]
struct Owned(HashMap<u32, Arc<Page>>);

impl Owned {
    /// Returns what the peer owned before.
    fn set(&mut self, peer: PeerId, prefixes: Vec<IpNet>) -> Option<Arc<[IpNet]>> {
        let (number, at) = (peer.0 / PAGE, (peer.0 % PAGE) as usize);
        let page = match prefixes.is_empty() {
            true => self.0.get_mut(&number)?,
            false => self.0.entry(number).or_insert_with(|| Arc::new(vec![None; PAGE as usize])),
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
    /// The peer that owns an address.
    #[inline]
    pub fn owner(&self, address: IpAddr) -> Option<PeerId> {
        match address {
            IpAddr::V4(ip) => self.v4.get_lpm(&Ipv4Net::from(ip)).map(|(_, peer)| *peer),
            IpAddr::V6(ip) => self.v6.get_lpm(&Ipv6Net::from(ip)).map(|(_, peer)| *peer),
        }
    }

    /// Replaces what a peer owns. A prefix of another peer moves to this one.
    pub fn set(&mut self, peer: PeerId, prefixes: Vec<IpNet>) {
        self.remove(peer);
        for prefix in &prefixes {
            match prefix.trunc() {
                IpNet::V4(net) => self.v4.insert(net, peer),
                IpNet::V6(net) => self.v6.insert(net, peer),
            };
        }
        self.owned.set(peer, prefixes);
    }

    /// Forgets a peer.
    pub fn remove(&mut self, peer: PeerId) {
        let Some(prefixes) = self.owned.set(peer, Vec::new()) else { return };
        for prefix in prefixes.iter() {
            // Unless the prefix has moved to another peer since.
            match prefix.trunc() {
                IpNet::V4(net) if self.v4.get(&net) == Some(&peer) => {
                    self.v4.remove(&net);
                }
                IpNet::V6(net) if self.v6.get(&net) == Some(&peer) => {
                    self.v6.remove(&net);
                }
                _ => {}
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
            entries in proptest::collection::vec((0u32..4, 0u8..8, 0u8..=32), 0..20), probe: u8,
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
            let address: IpAddr = [probe, 0, 0, 0].into();
            // The list: longest prefix, and among equal ones the last that was set.
            let expected = nets.iter().flat_map(|(peer, p)| p.iter().map(move |net| (net, peer)))
                .filter(|(net, _)| net.contains(&address))
                .max_by_key(|(net, peer)| (net.prefix_len(), peer.0))
                .map(|(_, peer)| *peer);
            prop_assert_eq!(routes.owner(address), expected);
        }
    }
}
