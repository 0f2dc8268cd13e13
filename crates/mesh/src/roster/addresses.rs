//! The addresses of nodes.
//!
//! The IPv6 address of a node is `fd`, 40 bits of the mesh id, 16 zero bits and 64 bits of the node's first key's hash. Its inviter chooses
//! its IPv4 address from a range, starting at an offset that depends on the key's hash, so simultaneous inviters seldom choose the same
//! address.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::session::{KeyHash, MeshId};

/// Returns the network of a mesh's IPv6 addresses.
pub fn ipv6_net(mesh: &MeshId) -> Ipv6Net {
    let [a, b, c, d, e, ..] = *mesh;
    let prefix = [0xfd, a, b, c, d, e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Ipv6Net::new_assert(Ipv6Addr::from(prefix), 64)
}

/// Returns the IPv6 address of the node with this first key.
pub fn ipv6_of(mesh: &MeshId, first_key: &KeyHash) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(ipv6_net(mesh).addr()) | u128::from(offset(first_key)))
}

/// Returns the first free address of a range, starting at an offset that depends on the key's hash.
pub fn free_ipv4(
    range: Ipv4Net,
    key: &KeyHash,
    is_free: impl Fn(Ipv4Addr) -> bool,
) -> Option<Ipv4Addr> {
    let (first, last) = (u32::from(range.network()), u32::from(range.broadcast()));
    // Skip the network's own address and the broadcast address.
    let size = last.checked_sub(first)?.checked_sub(1).filter(|size| *size > 0)?;
    let start = u32::try_from(offset(key) % u64::from(size)).ok()?;
    let places = (start..size).chain(0..start);
    places
        .map(|place| Ipv4Addr::from(first.saturating_add(1).saturating_add(place)))
        .find(|at| is_free(*at))
}

fn offset(key: &KeyHash) -> u64 {
    key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ipv6_addresses_have_the_mesh_and_the_key_in_them() {
        let mesh = std::array::from_fn(|n| 0xa0 + n as u8);
        let key = std::array::from_fn(|n| n as u8 + 1);
        assert_eq!(ipv6_net(&mesh).to_string(), "fda0:a1a2:a3a4::/64");
        assert_eq!(ipv6_of(&mesh, &key).to_string(), "fda0:a1a2:a3a4:0:102:304:506:708");
    }

    #[test]
    fn all_hosts_of_a_range_are_given_out_and_nothing_else() {
        let range: Ipv4Net = "100.87.1.0/28".parse().unwrap();
        let mut taken = BTreeSet::new();
        for n in 0..14 {
            let address = free_ipv4(range, &[n; 32], |address| !taken.contains(&address)).unwrap();
            assert!(range.contains(&address) && taken.insert(address));
        }
        assert!(!taken.contains(&range.network()) && !taken.contains(&range.broadcast()));
        assert_eq!(free_ipv4(range, &[1; 32], |address| !taken.contains(&address)), None);
        for small in ["100.87.1.0/31", "100.87.1.0/32"] {
            assert_eq!(free_ipv4(small.parse().unwrap(), &[1; 32], |_| true), None);
        }
    }

    #[test]
    fn different_keys_begin_at_different_places() {
        let range: Ipv4Net = "100.87.0.0/16".parse().unwrap();
        let places: BTreeSet<_> =
            (0..50).map(|n| free_ipv4(range, &[n; 32], |_| true).unwrap()).collect();
        assert_eq!(places.len(), 50);
    }
}
