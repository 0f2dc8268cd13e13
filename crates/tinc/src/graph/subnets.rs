//! The subnets of all nodes, and the lookup of the node that has an address.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Full;
use crate::name::NodeName;
use crate::subnet::{Network, Subnet, SubnetAddress};

/// The number of subnets that a table can have.
pub const MAX_SUBNETS: usize = 131_072;

/// The subnets of all nodes.
#[derive(Clone, Debug, Default)]
pub struct SubnetTable {
    by_owner: BTreeMap<NodeName, BTreeSet<Subnet>>,
    by_network: BTreeMap<Network, BTreeSet<(Subnet, NodeName)>>,
    /// The lengths of prefixes in the table, the longest first, and how many networks have each.
    lengths: BTreeMap<Reverse<u8>, usize>,
    count: usize,
    refused: u64,
    version: u64,
}

impl SubnetTable {
    /// Adds a subnet. Returns whether it is new.
    ///
    /// # Errors
    /// The table is full.
    pub fn insert(&mut self, owner: &NodeName, subnet: Subnet) -> Result<bool, Full> {
        if self.contains(owner, &subnet) {
            return Ok(false);
        }
        if self.count >= MAX_SUBNETS {
            self.refused = self.refused.saturating_add(1);
            return Err(Full);
        }
        self.count = self.count.saturating_add(1);
        self.version = self.version.wrapping_add(1);
        self.by_owner.entry(owner.clone()).or_default().insert(subnet);
        let owners = self.by_network.entry(subnet.network()).or_default();
        if owners.is_empty() {
            let networks = self.lengths.entry(Reverse(subnet.prefix())).or_default();
            *networks = networks.saturating_add(1);
        }
        owners.insert((subnet, owner.clone()));
        Ok(true)
    }

    /// Removes a subnet. Returns whether it was there.
    pub fn remove(&mut self, owner: &NodeName, subnet: &Subnet) -> bool {
        let Some(owned) = self.by_owner.get_mut(owner) else { return false };
        if !owned.remove(subnet) {
            return false;
        }
        if owned.is_empty() {
            self.by_owner.remove(owner);
        }
        self.count = self.count.saturating_sub(1);
        self.version = self.version.wrapping_add(1);
        let Some(owners) = self.by_network.get_mut(&subnet.network()) else { return true };
        owners.remove(&(*subnet, owner.clone()));
        if owners.is_empty() {
            self.by_network.remove(&subnet.network());
            let length = Reverse(subnet.prefix());
            let left = self.lengths.get(&length).map_or(0, |networks| networks.saturating_sub(1));
            if left == 0 {
                self.lengths.remove(&length);
            } else {
                self.lengths.insert(length, left);
            }
        }
        true
    }

    /// Returns whether a node has a subnet.
    pub fn contains(&self, owner: &NodeName, subnet: &Subnet) -> bool {
        self.by_owner.get(owner).is_some_and(|owned| owned.contains(subnet))
    }

    /// Returns the subnets of a node, in the order of lookup.
    pub fn of(&self, owner: &NodeName) -> impl Iterator<Item = &Subnet> {
        self.by_owner.get(owner).into_iter().flatten()
    }

    /// Returns the number of subnets with the same addresses, whatever their weights and owners.
    pub fn rivals(&self, subnet: &Subnet) -> usize {
        self.by_network.get(&subnet.network()).map_or(0, BTreeSet::len)
    }

    /// Returns the number of subnets.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no subnets.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of subnets that were not stored because the table was full.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns a number that changes with each change of the table.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the first subnet of each network whose owner is reachable, with this owner. The longest of these networks that contains an address
    /// has the subnet that [`SubnetTable::lookup`] returns for it.
    pub fn winners(
        &self,
        is_reachable: impl Fn(&NodeName) -> bool,
    ) -> impl Iterator<Item = (&Subnet, &NodeName)> {
        self.by_network.values().filter_map(move |owners| {
            let winner = owners.iter().find(|(_, owner)| is_reachable(owner));
            winner.map(|(subnet, owner)| (subnet, owner))
        })
    }

    /// Returns the node that has an address, and its subnet. Of all subnets that contain the address, the first one whose owner is reachable
    /// wins: by the longest prefix, then the bytes of the subnet's address, then the weight, then the owner's name. If no owner is reachable, the
    /// last one is returned, so that the sender can be notified.
    pub fn lookup(
        &self,
        address: SubnetAddress,
        is_reachable: impl Fn(&NodeName) -> bool,
    ) -> Option<(&NodeName, &Subnet)> {
        let mut last = None;
        for Reverse(prefix) in self.lengths.keys() {
            let Some(network) = Network::around(address, *prefix) else { continue };
            for (subnet, owner) in self.by_network.get(&network).into_iter().flatten() {
                if is_reachable(owner) {
                    return Some((owner, subnet));
                }
                last = Some((owner, subnet));
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn table(rows: &[(&str, &str)]) -> SubnetTable {
        let mut table = SubnetTable::default();
        for (owner, subnet) in rows {
            assert_eq!(table.insert(&name(owner), subnet.parse().unwrap()), Ok(true));
        }
        table
    }

    fn owner_of(table: &SubnetTable, address: &str, down: &[&str]) -> Option<String> {
        let subnet: Subnet = address.parse().unwrap();
        let up = |owner: &NodeName| !down.contains(&owner.as_str());
        table.lookup(subnet.address(), up).map(|(owner, _)| owner.to_string())
    }

    /// Specification 6.2.
    #[test]
    fn the_longest_prefix_then_the_weight_then_the_name_decides() {
        let table = table(&[
            ("a", "10.0.0.0/8"),
            ("b", "10.1.0.0/16#20"),
            ("c", "10.1.0.0/16"),
            ("d", "10.1.0.0/16"),
            ("e", "0.0.0.0/0"),
            ("f", "fd00::/8"),
            ("g", "02:00:00:00:00:01"),
        ]);
        let owner = |address, down: &[&str]| owner_of(&table, address, down);
        assert_eq!(owner("10.1.2.3", &[]).as_deref(), Some("c"));
        assert_eq!(owner("10.1.2.3", &["c"]).as_deref(), Some("d"));
        assert_eq!(owner("10.1.2.3", &["c", "d"]).as_deref(), Some("b"));
        assert_eq!(owner("10.1.2.3", &["b", "c", "d"]).as_deref(), Some("a"));
        assert_eq!(owner("10.1.2.3", &["a", "b", "c", "d", "e"]).as_deref(), Some("e"), "the last");
        assert_eq!(owner("192.0.2.1", &[]).as_deref(), Some("e"));
        assert_eq!(owner("fd00::1", &[]).as_deref(), Some("f"));
        assert_eq!(owner("fe00::1", &[]), None);
        assert_eq!(owner("2:0:0:0:0:1", &[]).as_deref(), Some("g"));
        assert_eq!(owner("2:0:0:0:0:2", &[]), None);
    }

    #[test]
    fn a_subnet_is_stored_once_and_removed_only_if_it_is_equal() {
        let mut table = table(&[("a", "10.1.2.3/16"), ("a", "10.1.0.0/16"), ("b", "10.1.0.0/16")]);
        let subnet = |text: &str| text.parse::<Subnet>().unwrap();
        assert_eq!(table.insert(&name("a"), subnet("10.1.0.0/16")), Ok(false));
        assert!(!table.remove(&name("a"), &subnet("10.1.0.0/16#5")));
        assert!(!table.remove(&name("c"), &subnet("10.1.0.0/16")));
        assert!(table.remove(&name("a"), &subnet("10.1.0.0/16")));
        assert_eq!(owner_of(&table, "10.1.9.9", &[]).as_deref(), Some("b"));
        assert_eq!(table.of(&name("a")).count(), 1);
        let version = table.version();
        assert!(table.remove(&name("b"), &subnet("10.1.0.0/16")));
        assert_ne!(table.version(), version);
        assert!(table.remove(&name("a"), &subnet("10.1.2.3/16")));
        assert!(table.is_empty() && table.lengths.is_empty() && table.by_network.is_empty());
    }

    #[test]
    fn a_full_table_refuses_and_counts() {
        let mut table = SubnetTable::default();
        let host = |number: u32| Subnet::host(SubnetAddress::V4(Ipv4Addr::from_bits(number)));
        for number in 0..u32::try_from(MAX_SUBNETS).unwrap() {
            table.insert(&name("a"), host(number)).unwrap();
        }
        assert_eq!(table.insert(&name("b"), host(0)), Err(Full));
        assert_eq!(table.insert(&name("a"), host(0)), Ok(false), "known ones remain known");
        assert_eq!((table.len(), table.refused()), (MAX_SUBNETS, 1));
    }

    proptest! {
        /// A search through all subnets in their order finds the same.
        #[test]
        fn the_lookup_agrees_with_a_search(
            rows in proptest::collection::vec((0..4_u8, 0..64_u32, 26..33_u8, 0..3_i32), 0..30),
            address in 0..64_u32,
            down in 0..16_u8,
        ) {
            let mut table = SubnetTable::default();
            let mut all = BTreeSet::new();
            for (owner, bits, prefix, weight) in rows {
                let owner = name(&format!("n{owner}"));
                let subnet: Subnet =
                    format!("{}/{prefix}#{weight}", Ipv4Addr::from_bits(bits)).parse().unwrap();
                table.insert(&owner, subnet).unwrap();
                all.insert((subnet, owner));
            }
            let address = SubnetAddress::V4(Ipv4Addr::from_bits(address));
            let up = |owner: &NodeName| {
                let number: u8 = owner.as_str()[1..].parse().unwrap();
                down & (1 << number) == 0
            };
            let matching = || all.iter().filter(|(subnet, _)| subnet.contains(address));
            let expected = matching().find(|(_, owner)| up(owner)).or_else(|| matching().next_back());
            let found = table.lookup(address, up).map(|(owner, subnet)| (*subnet, owner.clone()));
            prop_assert_eq!(found, expected.cloned());
            let winners = table.winners(up).filter(|(subnet, _)| subnet.contains(address));
            let winner = winners.max_by_key(|(subnet, _)| subnet.prefix());
            let winner = winner.map(|(subnet, owner)| (*subnet, owner.clone()));
            prop_assert_eq!(winner.as_ref(), matching().find(|(_, owner)| up(owner)));
            for (subnet, owner) in &all {
                prop_assert!(table.remove(owner, subnet));
            }
            prop_assert!(table.is_empty() && table.lengths.is_empty());
        }
    }
}
