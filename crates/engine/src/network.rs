use std::net::{IpAddr, Ipv6Addr};

/// A block of addresses that one party may hold alone: what shares and limits of strangers are counted by.
///
/// An IPv4 address counts by itself. Of IPv6 a host has a /64 to choose its addresses from, and a site a /48 or /56.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Network {
    /// One IPv4 address.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address.
    V6Link([u8; 8]),
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

    /// Returns the /48 around this network; of an IPv4 address the address itself.
    #[must_use]
    pub fn site(self) -> Self {
        match self {
            Self::V6Link([a, b, c, d, e, f, ..]) => Self::V6Site([a, b, c, d, e, f]),
            other => other,
        }
    }

    /// Whether it is a block of IPv6 addresses.
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
    }
}
