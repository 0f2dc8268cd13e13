//! Splitting a super-packet into its segments.
//!
//! Segments are made in place. Each header is written directly before its payload, over the tail of the previous
//! segment, which is no longer needed by then.
//!
//! ```text
//! read:      [ header | payload 1 | payload 2 | payload 3 ]
//! next #1:   [ header | payload 1 ]
//! next #2:           ...[ header  | payload 2 ]
//! ```
//!
//! The Ethernet header of a frame is part of the header that is repeated; the offsets below count from the IP header.

use crate::checksum::Sum;
use crate::field::{get8, get16, put8, put16, put32};
use crate::ip::{TCP, UDP, V4_LEN, V6_LEN, pseudo_header, v4_id};
use crate::transport::{Tcp, UDP_LEN, flags};
use crate::vnet::{Gso, VnetHeader};

/// Space for the headers of a segment: Ethernet with tags, then IPv4 and TCP with all options, or IPv6 with a few
/// extension headers.
const MAX_HEADER: usize = 192;

/// Offsets in an IPv4 header.
const LEN: usize = 2;
const ID: usize = 4;
const CHECKSUM: usize = 10;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;

/// A packet and its virtio header contradict each other. The packet is dropped.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Malformed;

/// The segments of one super-packet, in order. A segment is valid until the next one is made.
#[derive(Debug)]
pub struct Segments<'a> {
    packet: &'a mut [u8],
    l2: usize,
    cut: Option<SplitState>,
    done: bool,
}

/// How to split the packet; only for super-packets.
#[derive(Debug)]
struct SplitState {
    header: [u8; MAX_HEADER],
    header_len: usize,
    /// The offset of the IP header.
    l2: usize,
    /// The offset of the transport header from the IP header.
    l4: usize,
    tcp: bool,
    v6: bool,
    /// Payload bytes per segment, at least 1.
    size: usize,
    /// The offset of the next payload.
    at: usize,
    id: u16,
    seq: u32,
    tcp_flags: u8,
    first: bool,
    pseudo: Sum,
    /// IPv4: the sum of the header fields that all segments share.
    ip_sum: Sum,
}

impl<'a> Segments<'a> {
    /// Prepares to split `packet` as `vnet` describes. A plain packet yields itself, with its checksum completed if the
    /// kernel left that to adit.
    pub fn new(vnet: &VnetHeader, packet: &'a mut [u8]) -> Result<Self, Malformed> {
        Self::behind(vnet, packet, 0)
    }

    /// Prepares to split as [`Self::new`] does, for a packet whose IP header follows `l2` bytes: those of an Ethernet
    /// header, which each segment repeats. `vnet` counts from the start of the frame.
    pub fn behind(vnet: &VnetHeader, packet: &'a mut [u8], l2: usize) -> Result<Self, Malformed> {
        let cut = match vnet.gso {
            Gso::None => {
                if vnet.needs_csum {
                    finish_checksum(vnet, packet).ok_or(Malformed)?;
                }
                None
            }
            _ => Some(SplitState::new(vnet, packet, l2).ok_or(Malformed)?),
        };
        Ok(Self { packet, l2, cut, done: false })
    }

    /// Returns the number of bytes before the IP header of each segment.
    pub fn l2(&self) -> usize {
        self.l2
    }

    /// Returns the whole super-packet with the headers of its first segment, for routing and filtering.
    pub fn packet(&self) -> &[u8] {
        self.packet
    }

    /// Returns whether there is exactly one packet, which is not split.
    pub fn is_whole(&self) -> bool {
        self.cut.is_none()
    }

    /// Returns the length of the longest remaining segment.
    #[inline]
    pub fn longest(&self) -> usize {
        match &self.cut {
            None => self.packet.len(),
            Some(cut) => cut.header_len.saturating_add(cut.size).min(self.packet.len()),
        }
    }

    /// Returns the next segment.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "an Iterator cannot lend")]
    pub fn next(&mut self) -> Option<&mut [u8]> {
        if self.done {
            return None;
        }
        let Some(cut) = &mut self.cut else {
            self.done = true;
            return Some(self.packet);
        };
        let left = self.packet.len().saturating_sub(cut.at);
        let take = left.min(cut.size);
        self.done = take == left;
        let start = cut.at.checked_sub(cut.header_len)?;
        let end = cut.at.checked_add(take)?;
        let segment = self.packet.get_mut(start..end)?;
        cut.stamp(segment, self.done)?;
        cut.at = end;
        Some(segment)
    }
}

/// Completes the transport checksum of a plain packet.
fn finish_checksum(vnet: &VnetHeader, packet: &mut [u8]) -> Option<()> {
    let start = usize::from(vnet.csum_start);
    let field = start.checked_add(usize::from(vnet.csum_offset))?;
    // The field already holds the pseudo-header's sum, so it is summed with the rest.
    get16(packet, field)?;
    let sum = Sum::new().bytes(packet.get(start..)?).finish();
    // Zero means "none" in UDP; elsewhere both representations are equivalent.
    let is_udp = usize::from(vnet.csum_offset) == UDP_CHECKSUM;
    put16(packet, field, if is_udp && sum == 0 { 0xffff } else { sum })
}

impl SplitState {
    fn new(vnet: &VnetHeader, frame: &[u8], l2: usize) -> Option<Self> {
        let packet = frame.get(l2..)?;
        let v6 = match packet.first()? >> 4 {
            4 => false,
            6 => true,
            _ => return None,
        };
        let tcp = match (vnet.gso, v6) {
            (Gso::TcpV4, false) | (Gso::TcpV6, true) => true,
            (Gso::UdpL4, _) => false,
            _ => return None,
        };
        let l4 = usize::from(vnet.csum_start).checked_sub(l2)?;
        let size = usize::from(vnet.gso_size);
        let ip_len = if v6 { V6_LEN } else { V4_LEN };
        if size == 0 || l4 < ip_len || (!v6 && l4 != usize::from(get8(packet, 0)? & 15) << 2) {
            return None;
        }
        // The device's `hdr_len` is only a hint: the headers themselves show where they end.
        let transport = packet.get(l4..)?;
        let (len, seq, tcp_flags) = if tcp {
            let tcp = Tcp::parse(transport)?;
            (tcp.header_len, tcp.seq, tcp.flags)
        } else {
            transport.first_chunk::<UDP_LEN>()?;
            (UDP_LEN, 0, 0)
        };
        let header_len = l2.checked_add(l4)?.checked_add(len)?;
        let mut header = [0; MAX_HEADER];
        header.get_mut(..header_len)?.copy_from_slice(frame.get(..header_len)?);
        let ip = header.get_mut(l2..l2.checked_add(l4)?)?;
        if !v6 {
            for varies in [LEN, ID, CHECKSUM] {
                put16(ip, varies, 0)?;
            }
        }
        let ip_sum = Sum::new().bytes(ip);
        Some(Self {
            header,
            header_len,
            l2,
            l4,
            tcp,
            v6,
            size,
            at: header_len,
            id: if v6 { 0 } else { v4_id(packet)? },
            seq,
            tcp_flags,
            first: true,
            pseudo: pseudo_header(packet, if tcp { TCP } else { UDP })?,
            ip_sum,
        })
    }

    /// Writes the headers of the segment whose payload is already in `segment`.
    #[inline]
    fn stamp(&mut self, segment: &mut [u8], last: bool) -> Option<()> {
        let payload = segment.len().checked_sub(self.header_len)?;
        segment.get_mut(..self.header_len)?.copy_from_slice(self.header.get(..self.header_len)?);
        let packet = segment.get_mut(self.l2..)?;
        let len = u16::try_from(packet.len()).ok()?;
        let l4_len = len.checked_sub(u16::try_from(self.l4).ok()?)?;
        if self.v6 {
            put16(packet, 4, len.checked_sub(V6_LEN as u16)?)?;
        } else {
            put16(packet, LEN, len)?;
            put16(packet, ID, self.id)?;
            put16(packet, CHECKSUM, self.ip_sum.word(len).word(self.id).finish())?;
            self.id = self.id.wrapping_add(1);
        }
        let transport = packet.get_mut(self.l4..)?;
        let sum_at = if self.tcp {
            put32(transport, 4, self.seq)?;
            put8(transport, 13, self.segment_flags(last))?;
            self.seq = self.seq.wrapping_add(u32::try_from(payload).ok()?);
            16
        } else {
            put16(transport, 4, l4_len)?;
            6
        };
        put16(transport, sum_at, 0)?;
        let sum = self.pseudo.word(l4_len).bytes(transport).finish();
        self.first = false;
        put16(transport, sum_at, if !self.tcp && sum == 0 { 0xffff } else { sum })
    }

    fn segment_flags(&self, last: bool) -> u8 {
        let mut kept = self.tcp_flags;
        if !last {
            kept &= !(flags::FIN | flags::PSH);
        }
        if !self.first {
            kept &= !flags::CWR;
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TcpSpec, naive_split, transport_checksum_ok, udp_packet};
    use proptest::prelude::*;

    fn split(vnet: &VnetHeader, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut copy = packet.to_vec();
        let mut segments = Segments::new(vnet, &mut copy).unwrap();
        let mut out = Vec::new();
        while let Some(segment) = segments.next() {
            out.push(segment.to_vec());
        }
        out
    }

    #[test]
    fn flags_belong_to_the_first_or_last_segment() {
        let spec = TcpSpec {
            flags: flags::ACK | flags::PSH | flags::FIN | flags::CWR | flags::ECE,
            ..TcpSpec::default()
        };
        let (vnet, packet) = spec.super_packet(&[7; 2500], 1000);
        let flags_of: Vec<u8> = split(&vnet, &packet).iter().map(|packet| packet[33]).collect();
        let middle = flags::ACK | flags::ECE;
        assert_eq!(flags_of, [middle | flags::CWR, middle, middle | flags::PSH | flags::FIN]);
    }

    #[test]
    fn a_lying_hdr_len_changes_nothing() {
        let (mut vnet, packet) = TcpSpec::default().super_packet(&[7; 2500], 1000);
        let right = split(&vnet, &packet);
        vnet.hdr_len = 9999;
        assert_eq!(split(&vnet, &packet), right);
    }

    #[test]
    fn a_plain_packet_gets_its_checksum() {
        for v6 in [false, true] {
            let spec = TcpSpec { v6, ..TcpSpec::default() };
            let (mut vnet, packet) = spec.super_packet(&[7; 33], 1000);
            vnet.gso = Gso::None;
            let out = split(&vnet, &packet);
            assert_eq!(out.len(), 1);
            assert!(transport_checksum_ok(&out[0]));
        }
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_ffff() {
        // The payload is chosen so that the sum is 0.
        let mut packet = udp_packet(false, 1, 2, &[0, 0]);
        let l4 = 20;
        put16(&mut packet, l4 + 6, 0).unwrap();
        let pseudo = pseudo_header(&packet, UDP).unwrap().word(10);
        let missing = pseudo.bytes(&packet[l4..]).finish();
        put16(&mut packet, l4 + 8, missing).unwrap();
        put16(&mut packet, l4 + 6, pseudo.fold()).unwrap();
        let vnet = VnetHeader {
            needs_csum: true,
            csum_start: 20,
            csum_offset: 6,
            ..VnetHeader::default()
        };
        assert_eq!(get16(&split(&vnet, &packet)[0], l4 + 6), Some(0xffff));
    }

    #[test]
    fn nonsense_from_the_device_is_malformed() {
        let (good, packet) = TcpSpec::default().super_packet(&[7; 2500], 1000);
        let bad = [
            VnetHeader { gso_size: 0, ..good },
            VnetHeader { gso: Gso::TcpV6, ..good },
            VnetHeader { gso: Gso::Other(3), ..good },
            VnetHeader { csum_start: 16, ..good },
            VnetHeader { csum_start: 60000, ..good },
            VnetHeader { gso: Gso::None, csum_offset: 60000, ..good },
        ];
        for vnet in bad {
            assert_eq!(
                Segments::new(&vnet, &mut packet.clone()).err(),
                Some(Malformed),
                "{vnet:?}"
            );
        }
        assert!(Segments::new(&good, &mut packet.clone()[..30]).is_err(), "no TCP header");
    }

    #[test]
    fn headers_without_payload_are_one_segment() {
        let (vnet, packet) = TcpSpec::default().super_packet(&[], 1000);
        assert_eq!(split(&vnet, &packet).len(), 1);
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_splitter(
            v6: bool, udp: bool, len in 0usize..6000, size in 1u16..1500, seq: u32, id: u16,
            flags: u8, words in 0usize..10,
        ) {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let (vnet, packet) = if udp {
                crate::testing::udp_super(v6, id, &payload, size)
            } else {
                TcpSpec { v6, seq, id, flags, options: vec![1; words * 4], ..TcpSpec::default() }
                    .super_packet(&payload, size)
            };
            prop_assert_eq!(split(&vnet, &packet), naive_split(&vnet, &packet));
        }

        /// A frame's segments are those of its packet, each preceded by the frame's header.
        #[test]
        fn frames_are_cut_like_their_packets(
            v6: bool, udp: bool, len in 0usize..6000, size in 1u16..1500, tags in 0usize..3,
        ) {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let (vnet, packet) = if udp {
                crate::testing::udp_super(v6, 9, &payload, size)
            } else {
                TcpSpec { v6, ..TcpSpec::default() }.super_packet(&payload, size)
            };
            let (header, vnet_behind) = crate::testing::behind(&vnet, v6, tags);
            let mut frame = [header.clone(), packet.clone()].concat();
            let mut segments = Segments::behind(&vnet_behind, &mut frame, header.len()).unwrap();
            for expected in split(&vnet, &packet) {
                let segment = segments.next().unwrap();
                prop_assert_eq!(&segment[..header.len()], &header[..]);
                prop_assert_eq!(&segment[header.len()..], &expected[..]);
            }
            prop_assert!(segments.next().is_none());
            // A plain packet for which only the checksum is missing.
            let plain = VnetHeader { gso: Gso::None, ..vnet };
            let plain_behind = VnetHeader { gso: Gso::None, ..vnet_behind };
            let mut frame = [header.clone(), packet.clone()].concat();
            let mut segments = Segments::behind(&plain_behind, &mut frame, header.len()).unwrap();
            prop_assert_eq!(&segments.next().unwrap()[header.len()..], &split(&plain, &packet)[0][..]);
        }

        #[test]
        fn no_frame_panics(
            header: [u8; 10], bytes in proptest::collection::vec(any::<u8>(), 0..200), l2 in 0usize..30,
        ) {
            let vnet = VnetHeader::decode(&header);
            let mut copy = bytes;
            if let Ok(mut segments) = Segments::behind(&vnet, &mut copy, l2) {
                while segments.next().is_some() {}
            }
        }

        #[test]
        fn no_input_panics(header: [u8; 10], bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let vnet = VnetHeader::decode(&header);
            let mut copy = bytes;
            if let Ok(mut segments) = Segments::new(&vnet, &mut copy) {
                while segments.next().is_some() {}
            }
        }
    }
}
