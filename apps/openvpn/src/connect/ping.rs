//! Echo requests that are sent through a tunnel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The identifier and first sequence number of echo requests; any value will do.
const IDENT: u16 = 0xad17;

/// Builds an ICMP echo request with a total length of `len` bytes (at least 48), with the DF bit in
/// IPv4; `None` if the two addresses are of different families.
pub(super) fn echo(from: IpAddr, to: IpAddr, sequence: u16, len: usize) -> Option<Vec<u8>> {
    let len = len.max(48);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Some(echo4(from, to, sequence, len)),
        (IpAddr::V6(from), IpAddr::V6(to)) => Some(echo6(from, to, sequence, len)),
        _ => None,
    }
}

/// Builds an ARP request for `to` (RFC 826) from a made-up station; `None` without IPv4. The owner
/// answers with a frame of at least 42 bytes.
pub(super) fn who_has(from: IpAddr, to: IpAddr) -> Option<Vec<u8>> {
    const OURS: [u8; 6] = [0x02, 0xad, 0x17, 0, 0, 1];
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { return None };
    let mut frame = [&[0xff; 6][..], &OURS, &[0x08, 0x06]].concat();
    // Ethernet and IPv4, with addresses of 6 and 4 bytes; a request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([&OURS[..], &from.octets(), &[0; 6], &to.octets()].concat());
    Some(frame)
}

fn echo4(from: Ipv4Addr, to: Ipv4Addr, sequence: u16, len: usize) -> Vec<u8> {
    let mut header = Vec::with_capacity(len);
    header.extend([0x45, 0]);
    header.extend(short(len).to_be_bytes());
    header.extend(sequence.to_be_bytes());
    // DF, offset 0; TTL 64; protocol 1.
    header.extend([0x40, 0, 64, 1]);
    let body = [from.octets(), to.octets()].concat();
    let sum = checksum(&[&header, &body]);
    header.extend(sum.to_be_bytes());
    header.extend(body);
    header.extend(icmp(8, sequence, len.saturating_sub(20), &[]));
    header
}

fn echo6(from: Ipv6Addr, to: Ipv6Addr, sequence: u16, len: usize) -> Vec<u8> {
    let payload = len.saturating_sub(40);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(short(payload).to_be_bytes());
    packet.extend([58, 64]);
    let addresses = [from.octets(), to.octets()].concat();
    packet.extend(&addresses);
    // The pseudo-header of RFC 8200, section 8.1.
    let mut pseudo = addresses;
    pseudo.extend(u32::from(short(payload)).to_be_bytes());
    pseudo.extend([0, 0, 0, 58]);
    packet.extend(icmp(128, sequence, payload, &pseudo));
    packet
}

fn icmp(kind: u8, sequence: u16, len: usize, pseudo: &[u8]) -> Vec<u8> {
    let mut rest = IDENT.to_be_bytes().to_vec();
    rest.extend(sequence.to_be_bytes());
    rest.resize(len.saturating_sub(4), 0x61);
    let sum = checksum(&[&[kind, 0, 0, 0], &rest, pseudo]);
    let mut message = vec![kind, 0];
    message.extend(sum.to_be_bytes());
    message.extend(rest);
    message
}

fn short(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// Computes the Internet checksum (RFC 1071) of parts; all parts but the last must have an even
/// length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum: u64 = 0;
    for part in parts {
        for pair in part.chunks(2) {
            let high = pair.first().copied().unwrap_or(0);
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u64::from(u16::from_be_bytes([high, low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_for_all_is_as_the_kernel_asks_it() {
        let ip = |text: &str| text.parse().unwrap();
        let frame = who_has(ip("10.8.0.2"), ip("10.8.0.1")).unwrap();
        assert_eq!(frame.len(), 42);
        assert_eq!(frame[28..32], [10, 8, 0, 2]);
        assert_eq!(frame[38..42], [10, 8, 0, 1]);
        assert_eq!(who_has(ip("fd00::2"), ip("fd00::1")), None);
    }

    #[test]
    fn both_checksums_of_an_ipv4_request_verify() {
        let packet =
            echo("10.8.0.2".parse().unwrap(), "10.8.0.1".parse().unwrap(), 7, 100).unwrap();
        assert_eq!(packet.len(), 100);
        assert_eq!(checksum(&[&packet[..20]]), 0);
        assert_eq!(checksum(&[&packet[20..]]), 0);
        assert_eq!((packet[9], packet[20]), (1, 8));
    }

    #[test]
    fn the_checksum_of_an_ipv6_request_covers_the_pseudo_header() {
        let packet = echo("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap(), 7, 100).unwrap();
        assert_eq!(packet.len(), 100);
        let pseudo = [&packet[8..40], &[0, 0, 0, 60, 0, 0, 0, 58]].concat();
        assert_eq!(checksum(&[&pseudo, &packet[40..]]), 0);
    }

    #[test]
    fn families_do_not_mix() {
        assert_eq!(echo("10.8.0.2".parse().unwrap(), "fd00::1".parse().unwrap(), 1, 64), None);
    }
}
