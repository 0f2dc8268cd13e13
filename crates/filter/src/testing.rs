//! Packets for tests, built in a simple way.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) const V4_A: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
pub(crate) const V4_B: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
pub(crate) const V6_A: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 1);
pub(crate) const V6_B: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 2, 0, 0, 0, 2);

/// Computes a checksum as in RFC 1071, a word at a time.
pub(crate) fn naive_checksum(data: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in data.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Builds an IPv4 packet; `frag` is the word of flags and fragment offset.
pub(crate) fn v4_of(
    src: Ipv4Addr,
    dst: Ipv4Addr,
    id: u16,
    frag: u16,
    protocol: u8,
    l4: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((l4.len() as u16 + 20).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(frag.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(src.octets());
    packet.extend(dst.octets());
    packet.extend(l4);
    fix_v4(&mut packet);
    packet
}

/// Fills in an IPv4 header's checksum.
pub(crate) fn fix_v4(packet: &mut [u8]) {
    let len = usize::from(packet[0] & 0xf) * 4;
    packet[10..12].fill(0);
    let sum = naive_checksum(&packet[..len]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Builds an IPv6 packet with the extension headers `chain` (type, and body after the next header
/// byte) before the rest.
pub(crate) fn v6_of(
    src: Ipv6Addr,
    dst: Ipv6Addr,
    chain: &[(u8, &[u8])],
    last: u8,
    l4: &[u8],
) -> Vec<u8> {
    let len = chain.iter().map(|(_, body)| body.len() + 1).sum::<usize>() + l4.len();
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((len as u16).to_be_bytes());
    packet.extend([chain.first().map_or(last, |(kind, _)| *kind), 64]);
    packet.extend(src.octets());
    packet.extend(dst.octets());
    for (at, (_, body)) in chain.iter().enumerate() {
        packet.push(chain.get(at + 1).map_or(last, |(kind, _)| *kind));
        packet.extend(*body);
    }
    packet.extend(l4);
    packet
}

/// Builds an IPv4 or IPv6 packet between the usual hosts.
pub(crate) fn ip(v6: bool, protocol: u8, l4: &[u8]) -> Vec<u8> {
    if v6 { v6_of(V6_A, V6_B, &[], protocol, l4) } else { v4_of(V4_A, V4_B, 7, 0, protocol, l4) }
}

/// Fills in the checksum of `l4` at offset `at`, for the usual hosts.
fn summed(v6: bool, protocol: u8, mut l4: Vec<u8>, at: usize) -> Vec<u8> {
    let mut pseudo = Vec::new();
    if v6 {
        pseudo.extend(V6_A.octets());
        pseudo.extend(V6_B.octets());
    } else {
        pseudo.extend(V4_A.octets());
        pseudo.extend(V4_B.octets());
    }
    pseudo.extend([0, protocol]);
    pseudo.extend((l4.len() as u16).to_be_bytes());
    if protocol == 1 {
        pseudo.clear();
    }
    l4[at..at + 2].fill(0);
    pseudo.extend(&l4);
    let sum = match naive_checksum(&pseudo) {
        0 if protocol == 17 => 0xffff,
        sum => sum,
    };
    l4[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    l4
}

/// Builds a TCP segment from port 4000 to port 80.
pub(crate) fn tcp(v6: bool, seq: u32, ack: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut l4 = vec![0x0f, 0xa0, 0, 80];
    l4.extend(seq.to_be_bytes());
    l4.extend(ack.to_be_bytes());
    l4.extend([0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    l4.extend(payload);
    summed(v6, 6, l4, 16)
}

/// Builds a UDP datagram from port 4000 to port 53.
pub(crate) fn udp(v6: bool, payload: &[u8]) -> Vec<u8> {
    let mut l4 = vec![0x0f, 0xa0, 0, 53];
    l4.extend((payload.len() as u16 + 8).to_be_bytes());
    l4.extend([0, 0]);
    l4.extend(payload);
    summed(v6, 17, l4, 6)
}

/// Builds an ICMP or ICMPv6 message.
pub(crate) fn icmp(v6: bool, kind: u8, code: u8, rest: u32, payload: &[u8]) -> Vec<u8> {
    let mut l4 = vec![kind, code, 0, 0];
    l4.extend(rest.to_be_bytes());
    l4.extend(payload);
    summed(v6, if v6 { 58 } else { 1 }, l4, 2)
}

/// Builds a frame around `payload`, tagged with id 7 for each type but the last.
pub(crate) fn ether(types: &[u16], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa];
    for (at, kind) in types.iter().enumerate() {
        frame.extend(kind.to_be_bytes());
        if at + 1 < types.len() {
            frame.extend([0x20, 7 + at as u8]);
        }
    }
    frame.extend(payload);
    frame
}

/// Fragments a packet at `cuts` (offsets into the fragmentable part, multiples of eight).
pub(crate) fn pieces(packet: &[u8], id: u32, cuts: &[usize]) -> Vec<Vec<u8>> {
    let v6 = packet[0] >> 4 == 6;
    let body = &packet[if v6 { 40 } else { 20 }..];
    let mut bounds = vec![0];
    bounds.extend(cuts.iter().copied().filter(|cut| *cut > 0 && *cut < body.len()));
    bounds.push(body.len());
    bounds.dedup();
    bounds
        .windows(2)
        .map(|pair| piece(packet, id, pair[0], &body[pair[0]..pair[1]], pair[1] < body.len()))
        .collect()
}

/// Builds one fragment of `packet` with any contents.
pub(crate) fn piece(packet: &[u8], id: u32, offset: usize, data: &[u8], more: bool) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        let mut header = vec![0];
        header.extend((offset as u16 | u16::from(more)).to_be_bytes());
        header.extend(id.to_be_bytes());
        let src = Ipv6Addr::from(*packet[8..].first_chunk::<16>().unwrap());
        let dst = Ipv6Addr::from(*packet[24..].first_chunk::<16>().unwrap());
        return v6_of(src, dst, &[(44, &header)], packet[6], data);
    }
    let mut piece = packet[..20].to_vec();
    piece[2..4].copy_from_slice(&(data.len() as u16 + 20).to_be_bytes());
    piece[4..6].copy_from_slice(&(id as u16).to_be_bytes());
    let word = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
    piece[6..8].copy_from_slice(&word.to_be_bytes());
    piece.extend(data);
    fix_v4(&mut piece);
    piece
}
