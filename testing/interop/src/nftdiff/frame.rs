//! Frames built byte by byte, and the addresses of the two sides. No code is shared with the code under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A side of the filter, and its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `ta`
    A,
    /// `tb`
    B,
}

impl Side {
    /// Returns the other side.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Returns its interface.
    pub fn interface(self) -> &'static str {
        match self {
            Self::A => "ta",
            Self::B => "tb",
        }
    }

    /// Returns the hardware address of that interface.
    pub fn router_mac(self) -> [u8; 6] {
        [2, 0xad, 0x17, 0, self as u8 + 0xa, 1]
    }

    /// Returns the hardware address of the host on this side.
    pub fn host_mac(self) -> [u8; 6] {
        [2, 0xad, 0x17, 0, self as u8 + 0xa, 2]
    }
}

/// EtherType of IPv4, `ip`.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6, `ip6`.
pub const IPV6: u16 = 0x86dd;
/// EtherType of ARP, `arp`.
pub const ARP: u16 = 0x0806;

/// Builds a frame with an Ethernet header.
pub fn ethernet(source: [u8; 6], destination: [u8; 6], ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(14 + body.len());
    frame.extend(destination);
    frame.extend(source);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(body);
    frame
}

/// Builds a frame with an IP packet from a router's neighbour on this side.
pub fn to_router(side: Side, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet.first().is_some_and(|byte| byte >> 4 == 6) { IPV6 } else { IPV4 };
    ethernet(side.host_mac(), side.router_mac(), ethertype, packet)
}

/// Returns the checksum of RFC 1071.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The sender and the receiver of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The source.
    pub from: IpAddr,
    /// The destination, of the same family.
    pub to: IpAddr,
}

impl Ends {
    /// Returns the opposite direction.
    pub fn reversed(self) -> Self {
        Self { from: self.to, to: self.from }
    }

    fn pseudo(self, protocol: u8, length: usize) -> Vec<u8> {
        let mut pseudo = Vec::new();
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                pseudo.extend(from.octets());
                pseudo.extend(to.octets());
                pseudo.extend([0, protocol]);
                pseudo.extend((length as u16).to_be_bytes());
            }
            (from, to) => {
                pseudo.extend(v6(from).octets());
                pseudo.extend(v6(to).octets());
                pseudo.extend((length as u32).to_be_bytes());
                pseudo.extend([0, 0, 0, protocol]);
            }
        }
        pseudo
    }

    /// Returns ICMP's protocol number for this family.
    pub fn icmp(self) -> u8 {
        if self.from.is_ipv4() { 1 } else { 58 }
    }

    /// Writes the checksum of a transport header whose own field is zero.
    fn seal(self, protocol: u8, at: usize, segment: &mut [u8]) {
        let pseudo = if protocol == 1 { Vec::new() } else { self.pseudo(protocol, segment.len()) };
        let mut sum = checksum(&[&pseudo, segment]);
        if protocol == 17 && sum == 0 {
            sum = 0xffff;
        }
        segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The variable parts of a TCP header.
#[derive(Debug, Clone, Default)]
pub struct Tcp {
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// FIN, SYN, ...
    pub flags: u8,
    /// Window, unscaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Padded to four bytes.
    pub options: Vec<u8>,
    /// Bytes of payload.
    pub payload: Vec<u8>,
}

impl Tcp {
    /// Builds the segment with its checksum.
    pub fn bytes(&self, ends: Ends) -> Vec<u8> {
        let mut options = self.options.clone();
        while !options.len().is_multiple_of(4) {
            options.push(1);
        }
        let mut segment = Vec::new();
        segment.extend(self.ports.0.to_be_bytes());
        segment.extend(self.ports.1.to_be_bytes());
        segment.extend(self.seq.to_be_bytes());
        segment.extend(self.ack.to_be_bytes());
        segment.push((((20 + options.len()) / 4) << 4) as u8);
        segment.push(self.flags);
        segment.extend(self.window.to_be_bytes());
        segment.extend([0, 0]);
        segment.extend(self.urgent.to_be_bytes());
        segment.extend(options);
        segment.extend(&self.payload);
        ends.seal(6, 16, &mut segment);
        segment
    }
}

/// Builds a UDP datagram with its checksum.
pub fn udp(ends: Ends, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(ports.0.to_be_bytes());
    segment.extend(ports.1.to_be_bytes());
    segment.extend((8 + payload.len() as u16).to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    ends.seal(17, 6, &mut segment);
    segment
}

/// Builds an ICMP or ICMPv6 message with its checksum.
pub fn icmp(ends: Ends, kind: u8, code: u8, rest: u32, payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![kind, code, 0, 0];
    segment.extend(rest.to_be_bytes());
    segment.extend(payload);
    ends.seal(ends.icmp(), 2, &mut segment);
    segment
}

/// The fields of an IP header other than its addresses.
#[derive(Debug, Clone)]
pub struct Ip {
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// IPv4: identification.
    pub id: u16,
    /// IPv4: don't fragment.
    pub df: bool,
    /// IPv6: flow label.
    pub flow: u32,
    /// IPv4: options, padded to four bytes.
    pub options: Vec<u8>,
    /// IPv6: extension headers, number and body; the body's length is 6 more than a multiple of 8.
    pub extensions: Vec<(u8, Vec<u8>)>,
}

impl Default for Ip {
    fn default() -> Self {
        Self {
            ttl: 64,
            tos: 0,
            id: 0,
            df: true,
            flow: 0,
            options: Vec::new(),
            extensions: Vec::new(),
        }
    }
}

impl Ip {
    /// Builds the packet.
    pub fn packet(&self, ends: Ends, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match (ends.from, ends.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.v4(from, to, protocol, payload),
            (from, to) => self.v6(v6(from), v6(to), protocol, payload),
        }
    }

    fn v4(&self, from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut options = self.options.clone();
        while !options.len().is_multiple_of(4) {
            options.push(0);
        }
        let header = 20 + options.len();
        let mut packet = vec![0x40 | (header / 4) as u8, self.tos];
        packet.extend(((header + payload.len()) as u16).to_be_bytes());
        packet.extend(self.id.to_be_bytes());
        packet.extend([if self.df { 0x40 } else { 0 }, 0, self.ttl, protocol, 0, 0]);
        packet.extend(from.octets());
        packet.extend(to.octets());
        packet.extend(options);
        seal_v4(&mut packet, header);
        packet.extend(payload);
        packet
    }

    fn v6(&self, from: Ipv6Addr, to: Ipv6Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        for (index, (_, extension)) in self.extensions.iter().enumerate() {
            let next = self.extensions.get(index + 1).map_or(protocol, |(number, _)| *number);
            body.extend([next, ((extension.len() + 2) / 8).saturating_sub(1) as u8]);
            body.extend(extension);
        }
        body.extend(payload);
        let first = self.extensions.first().map_or(protocol, |(number, _)| *number);
        let word = 6 << 28 | u32::from(self.tos) << 20 | self.flow & 0xf_ffff;
        let mut packet = word.to_be_bytes().to_vec();
        packet.extend((body.len() as u16).to_be_bytes());
        packet.extend([first, self.ttl]);
        packet.extend(from.octets());
        packet.extend(to.octets());
        packet.extend(body);
        packet
    }
}

/// Writes an IPv4 header's checksum.
pub fn seal_v4(packet: &mut [u8], header: usize) {
    packet[10..12].fill(0);
    let sum = checksum(&[&packet[..header]]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// One fragment of a packet.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// The number of bytes before it, a multiple of 8.
    pub offset: usize,
    /// The number of its bytes.
    pub length: usize,
    /// Whether more fragments follow.
    pub more: bool,
}

/// Builds a fragment of an IP packet; bytes beyond the end of the packet are zero.
pub fn piece(packet: &[u8], id: u32, piece: Piece) -> Vec<u8> {
    let is_v6 = packet[0] >> 4 == 6;
    let header = if is_v6 { 40 } else { usize::from(packet[0] & 15) * 4 };
    let byte = |at: usize| packet.get(header + at).copied().unwrap_or(0);
    let data: Vec<u8> = (piece.offset..piece.offset + piece.length).map(byte).collect();
    let mut made = packet[..header].to_vec();
    let word = piece.offset as u16 | u16::from(piece.more);
    if is_v6 {
        made[4..6].copy_from_slice(&(8 + data.len() as u16).to_be_bytes());
        made[6] = 44;
        made.extend([packet[6], 0]);
        made.extend(word.to_be_bytes());
        made.extend(id.to_be_bytes());
    } else {
        made[2..4].copy_from_slice(&((header + data.len()) as u16).to_be_bytes());
        made[4..6].copy_from_slice(&(id as u16).to_be_bytes());
        let word = (piece.offset / 8) as u16 | u16::from(piece.more) << 13;
        made[6..8].copy_from_slice(&word.to_be_bytes());
        seal_v4(&mut made, header);
    }
    made.extend(data);
    made
}

/// Returns the frame as a router's rules see it: with a decremented TTL and an adjusted IPv4 checksum, which is correct
/// only if it was correct before.
pub fn counted_down(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    match frame.get(14).map(|byte| byte >> 4) {
        Some(4) if frame.len() >= 34 => {
            frame[22] = frame[22].saturating_sub(1);
            // The update of RFC 1141, for a word that decreases by 0x0100.
            let sum = u32::from(u16::from_be_bytes([frame[24], frame[25]])) + 0x0100;
            let sum = (sum & 0xffff) + (sum >> 16);
            frame[24..26].copy_from_slice(&(sum as u16).to_be_bytes());
        }
        Some(6) if frame.len() >= 54 => frame[21] = frame[21].saturating_sub(1),
        _ => {}
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_counted_down_keeps_a_right_checksum() {
        let ends =
            Ends { from: Ipv4Addr::new(10, 0, 0, 1).into(), to: Ipv4Addr::new(10, 0, 0, 2).into() };
        for ttl in [2, 64, 255] {
            let packet = Ip { ttl, ..Ip::default() }.packet(ends, 17, &udp(ends, (1, 2), b"x"));
            let frame = counted_down(&to_router(Side::A, &packet));
            assert_eq!(checksum(&[&frame[14..34]]), 0);
            assert_eq!(frame[22], ttl - 1);
        }
    }
}
