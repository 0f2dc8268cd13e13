//! Subnets: the addresses behind a node, as `ADDRESS[/PREFIX][#WEIGHT]`.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

/// Length of the longest subnet in a message, bytes.
pub const MAX_TEXT: usize = 63;

/// The weight of a subnet that names none.
pub const DEFAULT_WEIGHT: i32 = 10;

/// The reason why a text is not a subnet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// The address is none of the three kinds.
    #[error(
        "'{0}' is not a subnet: write an IPv4, IPv6 or MAC address, and perhaps /PREFIX and #WEIGHT"
    )]
    Address(String),
    /// The prefix is too long, not a number, or belongs to a MAC address.
    #[error("'{0}' is not the length of this address's prefix")]
    Prefix(String),
    /// The weight is not a number.
    #[error("'{0}' is not a weight: write a number")]
    Weight(String),
    /// The text is too long.
    #[error("a subnet of {0} characters is too long")]
    TooLong(usize),
    /// A configured subnet has bits after its prefix.
    #[error("the address has bits after its prefix: write {0}")]
    HostBits(Subnet),
}

/// The address of a subnet. The order of the kinds and their bytes decides which of two equally specific subnets is looked at
/// first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubnetAddress {
    /// A MAC address.
    Mac([u8; 6]),
    /// An IPv4 network.
    V4(Ipv4Addr),
    /// An IPv6 network.
    V6(Ipv6Addr),
}

impl SubnetAddress {
    const fn bits(self) -> u8 {
        match self {
            Self::Mac(_) => 48,
            Self::V4(_) => 32,
            Self::V6(_) => 128,
        }
    }

    /// Returns the address in the lowest bits of a number.
    fn number(self) -> u128 {
        match self {
            Self::Mac(bytes) => {
                bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
            }
            Self::V4(address) => address.to_bits().into(),
            Self::V6(address) => address.to_bits(),
        }
    }
}

impl From<IpAddr> for SubnetAddress {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(address),
        }
    }
}

impl fmt::Display for SubnetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac([a, b, c, d, e, g]) => {
                write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
            }
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => address.fmt(f),
        }
    }
}

/// Addresses behind a node. Two subnets are equal if all bits of their addresses, their prefixes and their weights are.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subnet {
    address: SubnetAddress,
    prefix: u8,
    weight: i32,
}

impl Subnet {
    /// Creates the subnet of one address.
    pub fn host(address: SubnetAddress) -> Self {
        Self { address, prefix: address.bits(), weight: DEFAULT_WEIGHT }
    }

    /// Reads the value of `Subnet` in a host file, where the bits after the prefix must be zero.
    ///
    /// # Errors
    /// Fails if the text is not a subnet.
    pub fn from_config(text: &str) -> Result<Self, SubnetError> {
        let subnet: Self = text.parse()?;
        let shift = u32::from(subnet.address.bits().saturating_sub(subnet.prefix));
        let network = subnet.address.number().checked_shr(shift).unwrap_or(0);
        let network = network.checked_shl(shift).unwrap_or(0);
        if network == subnet.address.number() {
            return Ok(subnet);
        }
        let address = match subnet.address {
            SubnetAddress::V4(_) => {
                SubnetAddress::V4(Ipv4Addr::from_bits(u32::try_from(network).unwrap_or(0)))
            }
            SubnetAddress::V6(_) => SubnetAddress::V6(Ipv6Addr::from_bits(network)),
            mac @ SubnetAddress::Mac(_) => mac,
        };
        Err(SubnetError::HostBits(Self { address, ..subnet }))
    }

    /// Returns the address, with any bits after the prefix.
    pub fn address(&self) -> SubnetAddress {
        self.address
    }

    /// Returns the number of bits that an address must share with the subnet.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Returns the network without the bits after the prefix; `None` if the subnet is a MAC address.
    pub fn ip_net(&self) -> Option<IpNet> {
        let address: IpAddr = match self.address {
            SubnetAddress::V4(address) => address.into(),
            SubnetAddress::V6(address) => address.into(),
            SubnetAddress::Mac(_) => return None,
        };
        Some(IpNet::new(address, self.prefix).ok()?.trunc())
    }

    /// Returns the weight. Of equal subnets the one with the lowest weight is used.
    pub fn weight(&self) -> i32 {
        self.weight
    }

    /// Returns whether the subnet contains an address. Only the bits of the prefix are compared.
    pub fn contains(&self, address: SubnetAddress) -> bool {
        Network::around(address, self.prefix) == Some(self.network())
    }

    /// Returns what all addresses in the subnet have in common.
    pub(crate) fn network(&self) -> Network {
        Network::of(self.address, self.prefix)
    }
}

/// The common bits of the addresses in a subnet.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Network {
    /// The number of bits in an address, which differs between the kinds.
    kind: u8,
    prefix: u8,
    bits: u128,
}

impl Network {
    fn of(address: SubnetAddress, prefix: u8) -> Self {
        let kind = address.bits();
        let shift = u32::from(kind.saturating_sub(prefix));
        Self { kind, prefix, bits: address.number().checked_shr(shift).unwrap_or(0) }
    }

    /// Returns the network with a prefix of this length that contains an address; `None` if addresses of its kind are shorter.
    pub(crate) fn around(address: SubnetAddress, prefix: u8) -> Option<Self> {
        (prefix <= address.bits()).then(|| Self::of(address, prefix))
    }
}

/// The order of lookup: the longest prefix first, then the bytes of the address, then the weight.
impl Ord for Subnet {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |subnet: &Self| (std::cmp::Reverse(subnet.prefix), subnet.address, subnet.weight);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Subnet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    /// Reads a subnet of a message, whose bits after the prefix may be set.
    fn from_str(text: &str) -> Result<Self, SubnetError> {
        if text.len() > MAX_TEXT {
            return Err(SubnetError::TooLong(text.len()));
        }
        let (rest, weight) = match text.split_once('#') {
            None => (text, DEFAULT_WEIGHT),
            Some((rest, weight)) => {
                (rest, weight.parse().map_err(|_| SubnetError::Weight(weight.to_owned()))?)
            }
        };
        let (address, prefix) = match rest.split_once('/') {
            None => (rest, None),
            Some((address, prefix)) => (address, Some(prefix)),
        };
        let bad_address = || SubnetError::Address(text.to_owned());
        let address = match address.parse::<IpAddr>() {
            Ok(address) => SubnetAddress::from(address),
            Err(_) => SubnetAddress::Mac(parse_mac(address).ok_or_else(bad_address)?),
        };
        let Some(prefix) = prefix else {
            return Ok(Self { address, prefix: address.bits(), weight });
        };
        let bad_prefix = || SubnetError::Prefix(prefix.to_owned());
        let length: u8 = prefix.parse().map_err(|_| bad_prefix())?;
        if length > address.bits() || matches!(address, SubnetAddress::Mac(_)) {
            return Err(bad_prefix());
        }
        Ok(Self { address, prefix: length, weight })
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        if self.prefix != self.address.bits() {
            write!(f, "/{}", self.prefix)?;
        }
        if self.weight != DEFAULT_WEIGHT {
            write!(f, "#{}", self.weight)?;
        }
        Ok(())
    }
}

/// Reads a MAC address, whose parts have one or two digits.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut parts = text.split(':').map(|part| {
        let digits = matches!(part.len(), 1 | 2) && part.bytes().all(|b| b.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    });
    let mut mac = [0; 6];
    for byte in &mut mac {
        *byte = parts.next()??;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap()
    }

    #[test]
    fn networks_have_no_bits_after_the_prefix() {
        let of = |text: &str| subnet(text).ip_net().map(|network| network.to_string());
        assert_eq!(of("10.1.2.3/16#5").as_deref(), Some("10.1.0.0/16"));
        assert_eq!(of("fd00::1").as_deref(), Some("fd00::1/128"));
        assert_eq!(of("02:00:00:00:00:01"), None);
    }

    /// Specification 2.6.
    #[test]
    fn a_subnet_is_written_in_its_shortest_form() {
        let forms = [
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3/32#10", "10.1.2.3"),
            ("10.1.2.3/8#-7", "10.1.2.3/8#-7"),
            ("fd00::/8", "fd00::/8"),
            ("fd00:0:0::1/128#3", "fd00::1#3"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2:0:5e:0:1:A", "02:00:5e:00:01:0a"),
            ("02:00:5e:00:01:0a#1", "02:00:5e:00:01:0a#1"),
        ];
        for (text, written) in forms {
            assert_eq!(subnet(text).to_string(), written);
            assert_eq!(subnet(written), subnet(text));
        }
    }

    #[test]
    fn what_is_no_subnet_is_refused_with_its_reason() {
        let bad = |text: &str| text.parse::<Subnet>().unwrap_err();
        for text in [
            "",
            "10.1",
            "10.1.2.3.4",
            "alice",
            "1:2:3:4:5",
            "1:2:3:4:5:6:7:",
            "1:2:3:4:5:123",
            "1:2:3:4:5:+6",
        ] {
            assert_eq!(bad(text), SubnetError::Address(text.to_owned()));
        }
        for (text, prefix) in
            [("10.0.0.0/33", "33"), ("::/129", "129"), ("10.0.0.0/", ""), ("1:2:3:4:5:6/48", "48")]
        {
            assert_eq!(bad(text), SubnetError::Prefix(prefix.to_owned()));
        }
        assert_eq!(bad("10.0.0.0#x"), SubnetError::Weight("x".to_owned()));
        assert_eq!(bad(&format!("10.0.0.0#{}", "0".repeat(60))), SubnetError::TooLong(69));
    }

    #[test]
    fn only_a_configured_subnet_must_end_with_zero_bits() {
        assert_eq!(Subnet::from_config("10.1.0.0/16"), Ok(subnet("10.1.0.0/16")));
        assert_eq!(Subnet::from_config("0.0.0.0/0"), Ok(subnet("0.0.0.0/0")));
        assert_eq!(Subnet::from_config("::/0"), Ok(subnet("::/0")));
        let error = Subnet::from_config("10.1.2.3/16#5").unwrap_err();
        assert_eq!(error, SubnetError::HostBits(subnet("10.1.0.0/16#5")));
        assert_eq!(error.to_string(), "the address has bits after its prefix: write 10.1.0.0/16#5");
        assert!(Subnet::from_config("fd00::1/64").is_err());
        let loose = subnet("10.1.2.3/16");
        assert_ne!(loose, subnet("10.1.0.0/16"), "all bits count for equality");
        assert!(
            loose.contains(SubnetAddress::V4(Ipv4Addr::new(10, 1, 9, 9))),
            "but not for a lookup"
        );
        assert!(!loose.contains(SubnetAddress::V4(Ipv4Addr::new(10, 2, 2, 3))));
        assert!(!subnet("0.0.0.0/0").contains(SubnetAddress::V6(Ipv6Addr::LOCALHOST)));
    }

    /// Specification 6.2.
    #[test]
    fn longer_prefixes_then_addresses_then_weights_come_first() {
        let ordered =
            ["10.0.0.9", "10.0.0.0/24#1", "10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/8", "0.0.0.0/0"];
        assert!(ordered.map(subnet).is_sorted());
    }

    proptest! {
        #[test]
        fn every_subnet_is_read_as_it_was_written(bits: u128, prefix in 0..129_u8, weight: i32, kind in 0..3) {
            let address = match kind {
                0 => SubnetAddress::V4(Ipv4Addr::from_bits(bits as u32)),
                1 => SubnetAddress::V6(Ipv6Addr::from_bits(bits)),
                _ => SubnetAddress::Mac(bits.to_be_bytes()[..6].try_into().unwrap()),
            };
            let prefix = if kind == 2 { 48 } else { prefix.min(address.bits()) };
            let subnet = Subnet { address, prefix, weight };
            prop_assert_eq!(subnet.to_string().parse(), Ok(subnet));
            prop_assert!(subnet.contains(address));
        }

        #[test]
        fn no_text_panics(text in "[0-9a-f:./#-]{0,70}") {
            if let Ok(subnet) = text.parse::<Subnet>() {
                prop_assert_eq!(subnet.to_string().parse(), Ok(subnet));
            }
            let _ = Subnet::from_config(&text);
        }
    }
}
