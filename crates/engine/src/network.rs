use std::net::{IpAddr, Ipv6Addr};

/// A block of addresses that may be under the control of a single party. Quotas of unauthenticated senders are counted
/// in this unit.
///
/// Each IPv4 address is a block of its own. An IPv6 host can choose addresses from a /64, and a site from a /48 or /56.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Network {
    /// One IPv4 address.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address.
    V6Link([u8; 8]),
    /// The first 56 bits of an IPv6 address. Many providers delegate such a network to a household.
    V6Delegated([u8; 7]),
    /// The first 48 bits of an IPv6 address.
    V6Site([u8; 6]),
}

impl Network {
    /// Returns the /32 or /64 of an address. An IPv4 address mapped into IPv6 counts as IPv4.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.octets()),
            IpAddr::V6(v6) => {
                let [a, b, c, d, e, f, g, h, ..] = v6.octets();
                Self::V6Link([a, b, c, d, e, f, g, h])
            }
        }
    }

    /// Returns every block around an address, the smallest first: a /64, a /56 and a /48, or the one IPv4 address.
    pub fn around(address: IpAddr) -> impl Iterator<Item = Self> {
        let smallest = Self::of(address);
        let delegated = match smallest {
            Self::V6Link([a, b, c, d, e, f, g, _]) => {
                Some(Self::V6Delegated([a, b, c, d, e, f, g]))
            }
            _ => None,
        };
        let site = smallest.is_ipv6().then(|| smallest.site());
        [Some(smallest), delegated, site].into_iter().flatten()
    }

    /// Returns the /48 around this network; for an IPv4 address, the address itself.
    #[must_use]
    pub fn site(self) -> Self {
        match self {
            Self::V6Link([a, b, c, d, e, f, ..]) | Self::V6Delegated([a, b, c, d, e, f, _]) => {
                Self::V6Site([a, b, c, d, e, f])
            }
            other => other,
        }
    }

    /// Returns whether it is a block of IPv6 addresses.
    #[must_use]
    pub fn is_ipv6(self) -> bool {
        !matches!(self, Self::V4(_))
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, prefix): (&[u8], u8) = match self {
            Self::V4(v4) => return IpAddr::from(*v4).fmt(f),
            Self::V6Link(bytes) => (bytes, 64),
            Self::V6Delegated(bytes) => (bytes, 56),
            Self::V6Site(bytes) => (bytes, 48),
        };
        let mut whole = [0; 16];
        whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        write!(f, "{}/{prefix}", Ipv6Addr::from(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_party_are_one_network() {
        let of = |text: &str| Network::of(text.parse().expect("an address"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("2001:db8:1:2::1").site(), of("2001:db8:1:ffff::1").site());
        assert_ne!(of("2001:db8:1:2::1").site(), of("2001:db8:2:2::1").site());
        let shown = ["192.0.2.1", "2001:db8:1:2:3::1"].map(|text| of(text).to_string());
        assert_eq!(shown, ["192.0.2.1", "2001:db8:1:2::/64"]);
        assert_eq!(of("2001:db8:1:2::1").site().to_string(), "2001:db8:1::/48");
        let around = |text: &str| -> Vec<_> {
            let networks = Network::around(text.parse().expect("an address"));
            networks.map(|network| (network.to_string(), network.site().to_string())).collect()
        };
        let site = "2001:db8:1::/48".to_string();
        let blocks = ["2001:db8:1:203::/64", "2001:db8:1:200::/56", "2001:db8:1::/48"];
        let blocks = blocks.map(|block| (block.to_string(), site.clone()));
        assert_eq!(around("2001:db8:1:203::1"), blocks);
        let alone = "192.0.2.1".to_string();
        assert_eq!(around("::ffff:192.0.2.1"), [(alone.clone(), alone)]);
    }
}
