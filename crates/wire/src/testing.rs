//! Packets for tests, and naive implementations to check the fast ones against.

use crate::transport::flags;
use crate::vnet::{Gso, VnetHeader};

/// Computes a checksum as in RFC 1071, one word at a time.
pub(crate) fn naive_checksum(data: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in data.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub(crate) struct TcpSpec {
    pub v6: bool,
    pub seq: u32,
    pub ack: u32,
    pub id: u16,
    pub flags: u8,
    pub ttl: u8,
    pub tos: u8,
    pub port: u16,
    pub df: bool,
    pub options: Vec<u8>,
}

impl Default for TcpSpec {
    fn default() -> Self {
        Self {
            v6: false,
            seq: 1000,
            ack: 77,
            id: 5,
            flags: flags::ACK,
            ttl: 64,
            tos: 0,
            port: 4000,
            df: false,
            options: Vec::new(),
        }
    }
}

impl TcpSpec {
    /// Builds a packet with all checksums.
    pub(crate) fn build(&self, payload: &[u8]) -> Vec<u8> {
        let mut l4 = Vec::new();
        l4.extend(self.port.to_be_bytes());
        l4.extend(5001u16.to_be_bytes());
        l4.extend(self.seq.to_be_bytes());
        l4.extend(self.ack.to_be_bytes());
        l4.push((((20 + self.options.len()) / 4) << 4) as u8);
        l4.push(self.flags);
        l4.extend([1, 0, 0, 0, 0, 0]);
        l4.extend(&self.options);
        l4.extend(payload);
        let mut packet = ip_packet(self.v6, 6, self.id, &l4);
        if self.v6 {
            packet[0] |= self.tos >> 4;
            packet[1] |= self.tos << 4;
            packet[7] = self.ttl;
        } else {
            packet[1] = self.tos;
            packet[8] = self.ttl;
            packet[6] = if self.df { 0x40 } else { 0 };
        }
        fill_checksums(&mut packet);
        packet
    }

    /// Builds a super-packet as a TUN device returns it: the checksum is partial, and the lengths
    /// are those of the whole super-packet.
    pub(crate) fn super_packet(&self, payload: &[u8], size: u16) -> (VnetHeader, Vec<u8>) {
        let mut packet = self.build(payload);
        let l4 = if self.v6 { 40 } else { 20 };
        let pseudo = pseudo(&packet);
        let sum = !naive_checksum(&pseudo);
        packet[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
        let vnet = VnetHeader {
            needs_csum: true,
            gso: if self.v6 { Gso::TcpV6 } else { Gso::TcpV4 },
            ecn: false,
            hdr_len: (l4 + 20 + self.options.len()) as u16,
            gso_size: size,
            csum_start: l4 as u16,
            csum_offset: 16,
        };
        (vnet, packet)
    }
}

pub(crate) fn udp_packet(v6: bool, id: u16, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut l4 = Vec::new();
    l4.extend(port.to_be_bytes());
    l4.extend(53u16.to_be_bytes());
    l4.extend((payload.len() as u16 + 8).to_be_bytes());
    l4.extend([0, 0]);
    l4.extend(payload);
    let mut packet = ip_packet(v6, 17, id, &l4);
    fill_checksums(&mut packet);
    packet
}

pub(crate) fn udp_super(v6: bool, id: u16, payload: &[u8], size: u16) -> (VnetHeader, Vec<u8>) {
    let mut packet = udp_packet(v6, id, 9, payload);
    let l4 = if v6 { 40 } else { 20 };
    let sum = !naive_checksum(&pseudo(&packet));
    packet[l4 + 6..l4 + 8].copy_from_slice(&sum.to_be_bytes());
    let vnet = VnetHeader {
        needs_csum: true,
        gso: Gso::UdpL4,
        ecn: false,
        hdr_len: l4 as u16 + 8,
        gso_size: size,
        csum_start: l4 as u16,
        csum_offset: 6,
    };
    (vnet, packet)
}

fn ip_packet(v6: bool, protocol: u8, id: u16, l4: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    if v6 {
        packet.extend([0x60, 0, 0, 0]);
        packet.extend((l4.len() as u16).to_be_bytes());
        packet.extend([protocol, 64]);
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    } else {
        packet.extend([0x45, 0]);
        packet.extend((l4.len() as u16 + 20).to_be_bytes());
        packet.extend(id.to_be_bytes());
        packet.extend([0, 0, 64, protocol, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
    }
    packet.extend(l4);
    packet
}

/// Returns the pseudo-header of a packet with correct lengths.
fn pseudo(packet: &[u8]) -> Vec<u8> {
    let (addresses, protocol, l4) = if packet[0] >> 4 == 4 {
        (&packet[12..20], packet[9], 20)
    } else {
        (&packet[8..40], packet[6], 40)
    };
    let mut out = addresses.to_vec();
    out.extend([0, protocol]);
    out.extend(((packet.len() - l4) as u16).to_be_bytes());
    out
}

fn checksum_at(packet: &[u8]) -> (usize, usize) {
    let v4 = packet[0] >> 4 == 4;
    let l4 = if v4 { 20 } else { 40 };
    let protocol = if v4 { packet[9] } else { packet[6] };
    (l4, l4 + if protocol == 6 { 16 } else { 6 })
}

/// Fills in the checksums of a packet without IP options.
pub(crate) fn fill_checksums(packet: &mut [u8]) {
    if packet[0] >> 4 == 4 {
        packet[10..12].fill(0);
        let sum = naive_checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let (l4, at) = checksum_at(packet);
    packet[at..at + 2].fill(0);
    let mut bytes = pseudo(packet);
    bytes.extend(&packet[l4..]);
    let mut sum = naive_checksum(&bytes);
    if at == l4 + 6 && sum == 0 {
        sum = 0xffff;
    }
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

pub(crate) fn transport_checksum_ok(packet: &[u8]) -> bool {
    let (l4, _) = checksum_at(packet);
    let mut bytes = pseudo(packet);
    bytes.extend(&packet[l4..]);
    naive_checksum(&bytes) == 0
}

/// Splits a super-packet without IP options by copying.
pub(crate) fn naive_split(vnet: &VnetHeader, packet: &[u8]) -> Vec<Vec<u8>> {
    let v4 = packet[0] >> 4 == 4;
    let l4 = if v4 { 20 } else { 40 };
    let tcp = vnet.gso != Gso::UdpL4;
    let header = l4 + if tcp { usize::from(packet[l4 + 12] >> 4) * 4 } else { 8 };
    let payload = &packet[header..];
    let mut chunks: Vec<&[u8]> = payload.chunks(usize::from(vnet.gso_size)).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let count = chunks.len();
    let mut out = Vec::new();
    for (i, chunk) in chunks.iter().enumerate() {
        let mut segment = packet[..header].to_vec();
        segment.extend(*chunk);
        let len = segment.len();
        if v4 {
            segment[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            let id = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(i as u16);
            segment[4..6].copy_from_slice(&id.to_be_bytes());
        } else {
            segment[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        }
        if tcp {
            let seq = u32::from_be_bytes(packet[l4 + 4..l4 + 8].try_into().unwrap())
                .wrapping_add((i * usize::from(vnet.gso_size)) as u32);
            segment[l4 + 4..l4 + 8].copy_from_slice(&seq.to_be_bytes());
            if i + 1 < count {
                segment[l4 + 13] &= !(flags::FIN | flags::PSH);
            }
            if i > 0 {
                segment[l4 + 13] &= !flags::CWR;
            }
        } else {
            segment[l4 + 4..l4 + 6].copy_from_slice(&((len - l4) as u16).to_be_bytes());
        }
        fill_checksums(&mut segment);
        out.push(segment);
    }
    out
}

/// Returns the header of a frame with an IP packet and this many VLAN tags, and a virtio header
/// whose offsets count from the start of the frame.
pub(crate) fn behind(vnet: &VnetHeader, v6: bool, tags: usize) -> (Vec<u8>, VnetHeader) {
    let mut header = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in 0..tags {
        header.extend([0x81, 0, 0, tag as u8 + 1]);
    }
    header.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
    let len = header.len() as u16;
    let csum_start = vnet.csum_start + len;
    let hdr_len = vnet.hdr_len + len;
    (header, VnetHeader { csum_start, hdr_len, ..*vnet })
}
