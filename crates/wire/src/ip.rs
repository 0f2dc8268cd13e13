//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{self, Sum};
use crate::field::{get8, get16};

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// The length of an IPv6 header.
pub const V6_LEN: usize = 40;
/// Length of an IPv4 header without options.
pub const V4_LEN: usize = 20;

/// The relevant fields of an IP header.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Ip {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IPv4 protocol, or the IPv6 next header (which may be an extension header).
    pub protocol: u8,
    /// The offset of the payload.
    pub header_len: usize,
    /// Length of the whole packet according to the header; never more than the number of bytes present.
    pub total_len: usize,
    /// Whether this is a fragment (for IPv6: unknown, because extension headers are not walked).
    pub fragment: bool,
}

impl Ip {
    /// Parses a header; `None` if the bytes are not IP or are fewer than the header claims.
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet, false),
            6 => Self::parse_v6(packet, false),
            _ => None,
        }
    }

    /// Parses a header as [`Ip::parse`] does, for a TCP super-packet: a packet too long for the length field has zero
    /// there (Linux' "BIG TCP") and ends where `packet` ends.
    #[inline]
    pub fn parse_super(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet, true),
            6 => Self::parse_v6(packet, true),
            _ => None,
        }
    }

    #[inline]
    fn parse_v4(packet: &[u8], zero_is_all: bool) -> Option<Self> {
        let header: &[u8; V4_LEN] = packet.first_chunk()?;
        let [first, _, l0, l1, _, _, f0, f1, _, protocol, _, _, a, b, c, d, e, f, g, h] = *header;
        let header_len = usize::from(first & 0x0f).wrapping_mul(4);
        let total_len = match u16::from_be_bytes([l0, l1]) {
            0 if zero_is_all => packet.len(),
            stated => usize::from(stated),
        };
        if header_len < V4_LEN || header_len > total_len || total_len > packet.len() {
            return None;
        }
        Some(Self {
            source: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            destination: IpAddr::V4(Ipv4Addr::new(e, f, g, h)),
            protocol,
            header_len,
            total_len,
            fragment: u16::from_be_bytes([f0, f1]) & 0x3fff != 0,
        })
    }

    #[inline]
    fn parse_v6(packet: &[u8], zero_is_all: bool) -> Option<Self> {
        let header: &[u8; V6_LEN] = packet.first_chunk()?;
        let (fixed, addresses) = header.split_first_chunk::<8>()?;
        let (source, destination) = addresses.split_first_chunk::<16>()?;
        let [_, _, _, _, l0, l1, protocol, _] = *fixed;
        let total_len = match u16::from_be_bytes([l0, l1]) {
            0 if zero_is_all => packet.len(),
            stated => usize::from(stated).wrapping_add(V6_LEN),
        };
        if total_len > packet.len() {
            return None;
        }
        Some(Self {
            source: IpAddr::V6(Ipv6Addr::from(*source)),
            destination: IpAddr::V6(Ipv6Addr::from(*destination.first_chunk()?)),
            protocol,
            header_len: V6_LEN,
            total_len,
            fragment: false,
        })
    }
}

/// Returns the sum of the pseudo-header (addresses and protocol) without its length field. `None` if the packet is too
/// short to be IP.
#[inline]
pub fn pseudo_header(packet: &[u8], protocol: u8) -> Option<Sum> {
    let addresses = match packet.first()? >> 4 {
        4 => packet.get(12..V4_LEN)?,
        6 => packet.get(8..V6_LEN)?,
        _ => return None,
    };
    Some(Sum::new().bytes(addresses).word(u16::from(protocol)))
}

/// Returns whether the IPv4 header checksum is valid. IPv6 has none and always passes.
#[inline]
pub fn header_checksum_ok(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let len = usize::from(packet.first().copied().unwrap_or(0) & 0x0f).wrapping_mul(4);
            packet.get(..len).is_some_and(|header| Sum::new().bytes(header).fold() == 0xffff)
        }
        Some(6) => true,
        _ => false,
    }
}

/// Returns the IPv4 identification field.
#[inline]
pub(crate) fn v4_id(packet: &[u8]) -> Option<u16> {
    get16(packet, 4)
}

/// Returns whether the IPv4 "don't fragment" bit is set.
#[inline]
pub(crate) fn v4_df(packet: &[u8]) -> bool {
    get8(packet, 6).is_some_and(|byte| byte & 0x40 != 0)
}

/// Returns the type of service of an IPv4 packet, or the traffic class of an IPv6 packet; `None` for other bytes.
pub fn tos(packet: &[u8]) -> Option<u8> {
    let [first, second]: [u8; 2] = *packet.first_chunk()?;
    match first >> 4 {
        4 => Some(second),
        6 => Some((first << 4) | (second >> 4)),
        _ => None,
    }
}

/// Decrements the TTL of an IPv4 packet or the hop limit of an IPv6 packet, unless it is at most 1. Returns whether it
/// did; `None` for other bytes.
pub fn decrement_ttl(packet: &mut [u8]) -> Option<bool> {
    match packet {
        [0x40..=0x4f, _, _, _, _, _, _, _, ttl, protocol, c0, c1, ..] => {
            if *ttl <= 1 {
                return Some(false);
            }
            let before = u16::from_be_bytes([*ttl, *protocol]);
            *ttl = ttl.saturating_sub(1);
            let after = u16::from_be_bytes([*ttl, *protocol]);
            let sum = checksum::update(u16::from_be_bytes([*c0, *c1]), before, after);
            [*c0, *c1] = sum.to_be_bytes();
            Some(true)
        }
        [0x60..=0x6f, _, _, _, _, _, _, limit, ..] => {
            if *limit <= 1 {
                return Some(false);
            }
            *limit = limit.saturating_sub(1);
            Some(true)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_packet_loses_one_hop_and_keeps_its_checksum() {
        let mut v4 = [0x45, 0, 0, 20, 0, 0, 0, 0, 3, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = Sum::new().bytes(&v4).finish();
        v4[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut v6 = [0; V6_LEN];
        (v6[0], v6[7]) = (0x60, 3);
        for left in [2, 1] {
            assert_eq!((decrement_ttl(&mut v4), decrement_ttl(&mut v6)), (Some(true), Some(true)));
            assert_eq!((v4[8], v6[7]), (left, left));
            assert!(header_checksum_ok(&v4));
        }
        for ttl in [1, 0] {
            (v4[8], v6[7]) = (ttl, ttl);
            let (before4, before6) = (v4, v6);
            assert_eq!(
                (decrement_ttl(&mut v4), decrement_ttl(&mut v6)),
                (Some(false), Some(false))
            );
            assert_eq!((v4, v6), (before4, before6));
        }
        for other in [&mut [][..], &mut [0x45; 11], &mut [0x60; 7], &mut [0x50; 40]] {
            assert_eq!(decrement_ttl(other), None);
        }
    }

    #[test]
    fn both_versions_have_a_type_of_service() {
        assert_eq!(tos(&[0x45, 0xb8, 0]), Some(0xb8));
        assert_eq!(tos(&[0x6b, 0x8f, 0xff]), Some(0xb8));
        assert_eq!(tos(&[0x60, 0x0f]), Some(0));
        for other in [&[][..], &[0x45], &[0x05, 0xb8], &[0xff; 40]] {
            assert_eq!(tos(other), None);
        }
    }

    #[test]
    fn short_and_lying_headers_are_no_packets() {
        assert_eq!(Ip::parse(&[]), None);
        assert_eq!(Ip::parse(&[0x45; 19]), None);
        let mut packet = [0u8; 24];
        packet[0] = 0x45;
        packet[3] = 24;
        assert!(Ip::parse(&packet).is_some());
        packet[3] = 25;
        assert_eq!(Ip::parse(&packet), None, "longer than the bytes at hand");
        packet[3] = 19;
        assert_eq!(Ip::parse(&packet), None, "shorter than its header");
        packet[3] = 24;
        packet[0] = 0x44;
        assert_eq!(Ip::parse(&packet), None, "header length below 20");
        packet[0] = 0x55;
        assert_eq!(Ip::parse(&packet), None, "version 5");
    }

    #[test]
    fn a_super_packet_may_be_too_long_for_its_length_field() {
        let mut packet = vec![0u8; 70_000];
        packet[0] = 0x45;
        assert_eq!(Ip::parse(&packet), None, "shorter than its header");
        assert_eq!(Ip::parse_super(&packet).map(|ip| ip.total_len), Some(70_000));
        packet[3] = 40;
        assert_eq!(Ip::parse_super(&packet).map(|ip| ip.total_len), Some(40), "it says so");
        packet[..4].copy_from_slice(&[0x60, 0, 0, 0]);
        assert_eq!(Ip::parse(&packet).map(|ip| ip.total_len), Some(40));
        assert_eq!(Ip::parse_super(&packet).map(|ip| ip.total_len), Some(70_000));
    }

    proptest! {
        #[test]
        fn lengths_never_exceed_the_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(ip) = Ip::parse(&bytes) {
                prop_assert!(ip.header_len <= ip.total_len && ip.total_len <= bytes.len());
            }
        }
    }
}
