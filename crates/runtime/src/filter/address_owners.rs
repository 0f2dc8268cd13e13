//! The last client of each address. The address's connections belong to it, even while it is away.

use std::collections::HashMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The maximum number of recorded addresses. Beyond it, all are forgotten and then count as another client's.
const MAX_OWNERS: usize = 1 << 16;

/// The owners, by address or network.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddressOwners {
    hosts: HashMap<IpNet, String>,
    networks: HashMap<IpNet, String>,
    /// Whether addresses were forgotten. If so, the owner of an address without an entry is
    /// unknown.
    forgotten: bool,
}

impl AddressOwners {
    /// Records that a client has these addresses now. Returns those that another client had before.
    pub(super) fn claim(&mut self, name: &str, prefixes: &[IpNet]) -> Vec<IpNet> {
        let taken = prefixes.iter().map(IpNet::trunc).filter(|net| self.is_of_another(name, net));
        let taken: Vec<IpNet> = taken.collect();
        for net in &taken {
            if is_host(net) {
                drop(self.hosts.remove(net));
            } else {
                self.hosts.retain(|host, _| !net.contains(host));
            }
            self.networks.retain(|other, _| !net.contains(other));
        }
        let all = self.hosts.len().saturating_add(self.networks.len());
        if all.saturating_add(prefixes.len()) > MAX_OWNERS {
            *self = Self { forgotten: true, ..Self::default() };
        }
        for net in prefixes.iter().map(IpNet::trunc) {
            let kind = if is_host(&net) { &mut self.hosts } else { &mut self.networks };
            kind.insert(net, name.to_owned());
        }
        taken
    }

    /// Returns these owners, or none if there are too many.
    pub(super) fn bounded(self) -> Self {
        if self.hosts.len().saturating_add(self.networks.len()) > MAX_OWNERS {
            return Self { forgotten: true, ..Self::default() };
        }
        self
    }

    /// Returns the addresses that a client has now or had last.
    pub(super) fn of(&self, name: &str) -> Vec<IpNet> {
        let all = self.hosts.iter().chain(&self.networks);
        let mut nets: Vec<IpNet> =
            all.filter(|(_, owner)| *owner == name).map(|(net, _)| *net).collect();
        nets.sort_unstable();
        nets
    }

    fn is_of_another(&self, name: &str, net: &IpNet) -> bool {
        let mut known = false;
        // A single address contains no other networks, and there may be very many addresses.
        if !is_host(net) {
            let mut parts = self.hosts.iter().chain(&self.networks);
            if parts.any(|(part, owner)| {
                known |= net.contains(part);
                net.contains(part) && owner != name
            }) {
                return true;
            }
        }
        let around = self.networks.iter().filter(|(other, _)| other.contains(net));
        let around = around.max_by_key(|(other, _)| other.prefix_len()).map(|(_, owner)| owner);
        match self.hosts.get(net).or(around) {
            Some(owner) => owner != name,
            None => self.forgotten && !known,
        }
    }
}

fn is_host(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn what_another_client_had_is_told_once() {
        let mut owners = AddressOwners::default();
        let (a, b) = (nets(&["10.8.0.2/32", "fd00::2/128"]), nets(&["10.8.0.3/32"]));
        assert!(owners.claim("alice", &a).is_empty() && owners.claim("bob", &b).is_empty());
        assert!(owners.claim("alice", &a).is_empty(), "back again");
        assert_eq!(owners.claim("bob", &a), a);
        assert!(owners.claim("bob", &a).is_empty());
        assert!(owners.of("alice").is_empty());
        assert_eq!(owners.of("bob"), nets(&["10.8.0.2/32", "10.8.0.3/32", "fd00::2/128"]));
    }

    #[test]
    fn networks_and_addresses_in_them_overlap() {
        let mut owners = AddressOwners::default();
        let (wide, one) = (nets(&["10.50.0.0/16"]), nets(&["10.50.3.1/32"]));
        assert!(owners.claim("alice", &wide).is_empty());
        assert!(owners.claim("alice", &one).is_empty(), "its own");
        assert_eq!(owners.claim("bob", &nets(&["10.50.3.0/24"])), nets(&["10.50.3.0/24"]));
        assert_eq!(owners.claim("carol", &one), one);
        assert_eq!(owners.claim("alice", &wide), wide);
        assert_eq!(owners.of("carol"), []);
        // If a part of a network moves, the rest stays with its owner.
        assert_eq!(owners.claim("dave", &one), one);
        assert!(owners.claim("dave", &one).is_empty());
        let other = nets(&["10.50.9.9/32"]);
        assert_eq!(owners.claim("dave", &other), other);
    }

    #[test]
    fn what_was_forgotten_counts_as_another_s() {
        let mut owners = AddressOwners::default();
        let host = |number: u32| IpNet::from(std::net::IpAddr::from(number.to_be_bytes()));
        for number in 0..MAX_OWNERS as u32 {
            assert!(owners.claim("alice", &[host(number)]).is_empty());
        }
        assert!(owners.claim("bob", &[host(1 << 24)]).is_empty());
        assert_eq!(owners.claim("alice", &[host(0)]), [host(0)]);
        assert!(owners.claim("alice", &[host(0)]).is_empty());
    }
}
