//! IP packets to seal: ordinary ones, and a super-packet as a TUN device with offloads delivers it.

use adit_wire::checksum::Sum;
use adit_wire::{Gso, VnetHeader};

const SOURCE: [u8; 4] = [10, 9, 0, 1];
const DESTINATION: [u8; 4] = [10, 9, 0, 2];
const IP_LEN: usize = 20;
const TCP_LEN: usize = 20;

/// The payload of each segment of [`super_packet`] except the last.
pub const SEGMENT: usize = 1360;
/// The length of [`super_packet`]: the maximum length of an IPv4 packet.
pub const SUPER_LEN: usize = 65_535;

/// The smallest packet: an IPv4 header.
pub const SMALLEST: usize = IP_LEN;

/// Builds an IPv4 packet of `size` bytes with an arbitrary UDP header. `size` is limited to the range of IPv4,
/// [`SMALLEST`] to [`SUPER_LEN`].
pub fn plain(size: usize) -> Vec<u8> {
    let mut packet = header(size.clamp(SMALLEST, SUPER_LEN), 17);
    fill(&mut packet, IP_LEN);
    packet
}

/// Builds a TCP super-packet of [`SUPER_LEN`] bytes and its virtio header: 49 segments, of which the last is shorter.
/// The checksum is left to the code that splits the packet.
pub fn super_packet() -> (VnetHeader, Vec<u8>) {
    let mut packet = header(SUPER_LEN, 6);
    let mut pseudo = Sum::new().bytes(&SOURCE).bytes(&DESTINATION).word(6);
    pseudo = pseudo.word((SUPER_LEN - IP_LEN) as u16);
    let [high, low] = pseudo.fold().to_be_bytes();
    // Ports, sequence number, acknowledgement, 20 bytes of header with ACK and PSH, window, checksum, urgent.
    let tcp = [
        0x13, 0x88, 0x13, 0x89, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0x50, 0x18, 0x20, 0, high, low, 0, 0,
    ];
    packet.iter_mut().skip(IP_LEN).zip(tcp).for_each(|(to, from)| *to = from);
    fill(&mut packet, IP_LEN + TCP_LEN);
    let vnet = VnetHeader {
        needs_csum: true,
        gso: Gso::TcpV4,
        ecn: false,
        hdr_len: (IP_LEN + TCP_LEN) as u16,
        gso_size: SEGMENT as u16,
        csum_start: IP_LEN as u16,
        csum_offset: 16,
    };
    (vnet, packet)
}

/// Builds a valid IPv4 header with DF set, as for TCP, followed by zeroes.
fn header(len: usize, protocol: u8) -> Vec<u8> {
    let [high, low] = (len as u16).to_be_bytes();
    let mut packet = vec![0; len];
    let mut head = [0x45, 0, high, low, 0, 1, 0x40, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let addresses = SOURCE.into_iter().chain(DESTINATION);
    head.iter_mut().skip(12).zip(addresses).for_each(|(to, from)| *to = from);
    let sum = Sum::new().bytes(&head).finish().to_be_bytes();
    head.iter_mut().skip(10).zip(sum).for_each(|(to, from)| *to = from);
    packet.iter_mut().zip(head).for_each(|(to, from)| *to = from);
    packet
}

/// Fills in a payload in which no long sequence repeats.
fn fill(packet: &mut [u8], from: usize) {
    let mut state = 0x2545_f491_u32;
    for byte in packet.iter_mut().skip(from) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_wire::ip::{Ip, header_checksum_ok};
    use adit_wire::merge::Merger;
    use adit_wire::split::Segments;

    #[test]
    fn a_plain_packet_has_the_length_asked_for_and_a_right_header() {
        for size in [64, 512, 1400, 9000] {
            let packet = plain(size);
            assert_eq!((packet.len(), header_checksum_ok(&packet)), (size, true));
            assert_eq!(Ip::parse(&packet).unwrap().destination.to_string(), "10.9.0.2");
        }
    }

    #[test]
    fn the_super_packet_splits_and_merges_back_to_itself() {
        let (vnet, original) = super_packet();
        let mut packet = original.clone();
        let mut segments = Segments::new(&vnet, &mut packet).unwrap();
        let mut cut = Vec::new();
        while let Some(segment) = segments.next() {
            cut.push(segment.to_vec());
        }
        assert_eq!(cut.len(), 49);
        let mut merger = Merger::new(true, true);
        cut.iter().for_each(|segment| merger.push(segment));
        let writes: Vec<_> = merger.writes().collect();
        assert_eq!(writes.len(), 1, "every checksum was right and everything fits together");
        let payload: Vec<u8> = writes[0].bodies().flatten().copied().collect();
        assert_eq!(payload, original[IP_LEN + TCP_LEN..]);
    }
}
