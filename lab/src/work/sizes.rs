//! The sizes of the datagrams.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The sizes of datagrams, each given as the size of its whole IP packet inside the tunnel (including IP and UDP
/// headers), so that IPv4 and IPv6 put the same load on a tunnel. Written `64`, `imix`, `jumbo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Sizes {
    /// All have the same size, 64 to 65,000 bytes.
    Fixed(u16),
    /// Seven of 64, four of 576 and one of 1400 bytes in a fixed mixed order. This is the usual simple Internet mix,
    /// except that its largest size of 1500 would measure each tunnel's fragmentation instead of its speed.
    Imix,
    /// 8900 bytes, which are fragmented inside the tunnel unless its MTU is larger, and lost if any fragment is lost.
    Jumbo,
}

/// The minimum size. It has room for the headers, the number and the intended time. In IPv6, 64 bytes leave 16 for them.
const SMALLEST: u16 = 64;
const LARGEST: u16 = 65_000;
const IMIX: [usize; 12] = [64, 576, 64, 64, 576, 64, 1400, 64, 576, 64, 576, 64];
const JUMBO: usize = 8900;

impl Sizes {
    /// Returns the UDP payload size of the flow's datagram with this number, sent to this address.
    pub fn payload(&self, number: u64, to: IpAddr) -> usize {
        let packet = match self {
            Self::Fixed(size) => usize::from(*size),
            Self::Imix => {
                let place = usize::try_from(number % IMIX.len() as u64).unwrap_or_default();
                IMIX.get(place).copied().unwrap_or(JUMBO)
            }
            Self::Jumbo => JUMBO,
        };
        packet - if to.is_ipv6() { 48 } else { 28 }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Imix => f.write_str("imix"),
            Self::Jumbo => f.write_str("jumbo"),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "imix" => Ok(Self::Imix),
            "jumbo" => Ok(Self::Jumbo),
            _ => text
                .parse()
                .ok()
                .filter(|size| (SMALLEST..=LARGEST).contains(size))
                .map(Sizes::Fixed)
                .ok_or_else(|| {
                    format!("'{text}' is no packet size: write imix, jumbo, or bytes from {SMALLEST} to {LARGEST}")
                }),
        }
    }
}

impl TryFrom<String> for Sizes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Sizes> for String {
    fn from(sizes: Sizes) -> Self {
        sizes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    #[test]
    fn sizes_are_those_of_ip_packets() {
        assert_eq!(Sizes::Fixed(64).payload(0, V4), 36);
        assert_eq!(Sizes::Fixed(64).payload(9, V6), 16);
        assert_eq!(Sizes::Jumbo.payload(0, V4), 8872);
    }

    #[test]
    fn the_mix_is_seven_to_four_to_one() {
        let packets: Vec<usize> = (0..24).map(|n| Sizes::Imix.payload(n, V4) + 28).collect();
        let count = |size| packets.iter().filter(|packet| **packet == size).count();
        assert_eq!((count(64), count(576), count(1400)), (14, 8, 2));
    }

    #[test]
    fn reads_what_it_writes_and_says_what_else_to_write() {
        for text in ["64", "1400", "imix", "jumbo"] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
        for text in ["63", "65001", "-1", "", "IMIX"] {
            assert!(text.parse::<Sizes>().unwrap_err().contains("write imix"), "{text}");
        }
    }
}
