//! ICMP (RFC 792) and ICMPv6 (RFC 4443) messages that report an error about a packet to its sender and quote the start
//! of that packet.

use std::net::IpAddr;

use crate::checksum::Sum;
use crate::ip::{ICMP, ICMPV6, V4_LEN, V6_LEN};

/// The length of the longest message over IPv6: its smallest MTU (RFC 4443 2.4 (c)).
pub const MAX_V6: usize = 1280;
/// The length of the longest message over IPv4 (RFC 1812 4.3.2.3).
pub const MAX_V4: usize = 576;

const ICMP_LEN: usize = 8;
const DONT_FRAGMENT: u8 = 0x40;
const TTL: u8 = 64;

/// The error to report.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Message {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// The four bytes after the checksum: an MTU, or zero.
    pub rest: u32,
}

/// Writes an IP packet that reports an error about `packet` (from its IP header on) to `to` and quotes as much of it as
/// fits into `longest` bytes in total. Returns the length; `None` if the addresses are of different families or `out`
/// is too short.
///
/// The caller checks that `to` may receive errors; see [`is_host`].
pub fn write(
    packet: &[u8],
    message: Message,
    from: IpAddr,
    to: IpAddr,
    longest: usize,
    out: &mut [u8],
) -> Option<usize> {
    let header_len = if to.is_ipv4() { V4_LEN } else { V6_LEN };
    let room = longest.checked_sub(header_len)?.checked_sub(ICMP_LEN)?;
    let quote = packet.get(..packet.len().min(room))?;
    let total = header_len.checked_add(ICMP_LEN)?.checked_add(quote.len())?;
    let (header, body) = out.get_mut(..total)?.split_at_mut_checked(header_len)?;
    let (fixed, quoted) = body.split_first_chunk_mut::<ICMP_LEN>()?;
    let [r0, r1, r2, r3] = message.rest.to_be_bytes();
    *fixed = [message.kind, message.code, 0, 0, r0, r1, r2, r3];
    quoted.copy_from_slice(quote);
    let protocol = if to.is_ipv4() { ICMP } else { ICMPV6 };
    let pseudo = ip_header(from, to, protocol, body.len(), header)?;
    // The sum of ICMPv6 includes the pseudo-header; that of ICMP does not.
    let start = if to.is_ipv4() { Sum::new() } else { pseudo };
    let sum = start.bytes(body).finish().to_be_bytes();
    body.get_mut(2..4)?.copy_from_slice(&sum);
    Some(total)
}

/// Writes the IP header, without options, of an answer of `len` bytes and returns the sum over the pseudo-header.
/// `None` if the addresses are of different families or `out` is too short.
pub fn ip_header(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    len: usize,
    out: &mut [u8],
) -> Option<Sum> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header: &mut [u8; V4_LEN] = out.first_chunk_mut()?;
            let [l0, l1] = u16::try_from(len.checked_add(V4_LEN)?).ok()?.to_be_bytes();
            let ([a, b, c, d], [e, f, g, h]) = (from.octets(), to.octets());
            *header = [
                0x45,
                0,
                l0,
                l1,
                0,
                0,
                DONT_FRAGMENT,
                0,
                TTL,
                protocol,
                0,
                0,
                a,
                b,
                c,
                d,
                e,
                f,
                g,
                h,
            ];
            let sum = Sum::new().bytes(header).finish().to_be_bytes();
            header.get_mut(10..12)?.copy_from_slice(&sum);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header: &mut [u8; V6_LEN] = out.first_chunk_mut()?;
            let (fixed, addresses) = header.split_first_chunk_mut::<8>()?;
            let [l0, l1] = u16::try_from(len).ok()?.to_be_bytes();
            *fixed = [0x60, 0, 0, 0, l0, l1, protocol, TTL];
            let (source, destination) = addresses.split_first_chunk_mut::<16>()?;
            *source = from.octets();
            destination.copy_from_slice(&to.octets());
        }
        _ => return None,
    }
    Some(crate::ip::pseudo_header(out, protocol)?.word(u16::try_from(len).ok()?))
}

/// Returns whether an address belongs to a single host, which may receive errors (RFC 1122 3.2.2, RFC 4443 2.4 (e)):
/// not zero, multicast, broadcast or loopback.
pub fn is_host(address: IpAddr) -> bool {
    let special = match address {
        // "This network" and the former class E, which includes the broadcast address.
        IpAddr::V4(v4) => matches!(v4.octets(), [0 | 240.., ..]),
        IpAddr::V6(v6) => v6.is_unspecified(),
    };
    !(special || address.is_multicast() || address.is_loopback())
}

/// Returns whether a message of this type is an error or acts as one. It is never answered with an error; otherwise two hosts could
/// exchange errors forever. An unknown type counts as an error.
pub fn is_error(v4: bool, kind: u8) -> bool {
    if v4 {
        // Echo, router discovery, timestamp, information, address mask.
        !matches!(kind, 0 | 8..=10 | 13..=18)
    } else {
        // A redirect is not an error, but is not answered either (RFC 4443 2.4 (e.2)).
        kind < 128 || kind == 137
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::Ip;
    use crate::testing::{naive_checksum, udp_packet};

    #[test]
    fn as_much_is_quoted_as_fits() {
        let message = Message { kind: 3, code: 1, rest: 0x0102_0304 };
        let mut out = [0; MAX_V6];
        for (v6, longest, len, want) in [
            (false, MAX_V4, 1000, MAX_V4),
            (false, MAX_V4, 100, 100 + 28 + 28),
            (true, MAX_V6, 1400, MAX_V6),
            (true, MAX_V6, 100, 100 + 48 + 48),
        ] {
            let packet = udp_packet(v6, 1, 2, &vec![7; len]);
            let ip = Ip::parse(&packet).unwrap();
            let (from, to) = (ip.destination, ip.source);
            let n = write(&packet, message, from, to, longest, &mut out).unwrap();
            assert_eq!(n, want);
            let answer = &out[..n];
            let ip = Ip::parse(answer).unwrap();
            assert_eq!((ip.source, ip.destination, ip.total_len), (from, to, n));
            let body = &answer[ip.header_len..];
            assert_eq!(body[..2], [3, 1]);
            assert_eq!(body[4..8], [1, 2, 3, 4]);
            assert_eq!(body[8..], packet[..n - ip.header_len - 8]);
            if v6 {
                let len = (body.len() as u32).to_be_bytes();
                let pseudo = [&answer[8..40], &len, &[0, 0, 0, ICMPV6], body].concat();
                assert_eq!((ip.protocol, naive_checksum(&pseudo)), (ICMPV6, 0));
            } else {
                assert_eq!(naive_checksum(&answer[..20]), 0);
                assert_eq!((ip.protocol, naive_checksum(body)), (ICMP, 0));
            }
            assert_eq!(write(&packet, message, from, to, longest, &mut [0; 40]), None, "no room");
            let other = if v6 { "10.0.0.1" } else { "fd00::1" }.parse().unwrap();
            assert_eq!(write(&packet, message, other, to, longest, &mut out), None);
        }
    }

    #[test]
    fn only_single_hosts_are_told() {
        let host = |text: &str| is_host(text.parse().unwrap());
        assert!(host("10.0.0.1") && host("fd00::1") && host("fe80::1") && host("223.255.255.255"));
        for nobody in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1"] {
            assert!(!host(nobody), "{nobody}");
        }
        for nobody in ["255.255.255.255", "::", "::1", "ff02::1"] {
            assert!(!host(nobody), "{nobody}");
        }
    }

    #[test]
    fn errors_are_told_from_questions() {
        for kind in [3, 4, 5, 11, 12, 40, 255] {
            assert!(is_error(true, kind), "{kind}");
        }
        assert!(!is_error(true, 0) && !is_error(true, 8) && !is_error(true, 13));
        for kind in [1, 2, 3, 4, 127, 137] {
            assert!(is_error(false, kind), "{kind}");
        }
        assert!(!is_error(false, 128) && !is_error(false, 135));
    }
}
