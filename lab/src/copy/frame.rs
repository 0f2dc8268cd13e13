//! The work of a VPN on packets, except for cryptography and checksums of payloads. Super-packets become datagrams of a
//! tunnel, and datagrams become super-packets.
//!
//! ```text
//! datagram:  virtio header 10 | zeroes 14 | packet      24 bytes before each packet, as in OpenVPN's format
//! ```
//!
//! The virtio header describes how the packet was split. Transport checksums are left to the receiving kernel, which
//! trusts its TUN device.

use std::io::IoSlice;

use adit_wire::checksum::Sum;
use adit_wire::ip::{TCP, UDP, V4_LEN, V6_LEN, pseudo_header};
use adit_wire::merge::MAX_PARTS;
use adit_wire::transport::{TCP_LEN, Tcp, UDP_LEN, flags};
use adit_wire::{Gso, VnetHeader};

/// The number of bytes before each packet.
const OVERHEAD: usize = 24;
/// The maximum payload of one train.
const MAX_TRAIN: usize = 65_507;
/// The maximum number of datagrams in one train.
const MAX_COUNT: usize = 64;
/// Room for IPv6 and TCP with all options.
const MAX_HEADER: usize = V6_LEN + 60;
/// The maximum length of a super-packet.
const MAX_LEN: usize = 65_535;

/// A buffer of consecutive datagrams, and their division into trains.
#[derive(Debug, Default)]
pub(super) struct Trains {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

/// A train of datagrams of equal length, except that the last may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    start: usize,
    len: usize,
    /// The length of each datagram but the last.
    pub segment: usize,
    /// The number of packets.
    pub count: usize,
}

impl Trains {
    /// Returns the number of buffered bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Empties the buffer and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    /// Returns the trains with their bytes, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Span, &[u8])> {
        let bytes = |span: &Span| self.bytes.get(span.start..span.start + span.len).unwrap_or(&[]);
        self.spans.iter().map(move |span| (*span, bytes(span)))
    }

    /// Splits a packet from a TUN device into datagrams. `None` if it is malformed.
    pub(super) fn split(&mut self, vnet: &VnetHeader, packet: &[u8]) -> Option<()> {
        let mut lead = [0; OVERHEAD];
        lead.first_chunk_mut::<{ VnetHeader::LEN }>()?.copy_from_slice(&vnet.encode());
        if vnet.gso == Gso::None {
            self.push(&lead, packet, &[]);
            return Some(());
        }
        let shape = Shape::of(vnet, packet)?;
        let (head, payload) = packet.split_at_checked(shape.header_len)?;
        let mut header = [0; MAX_HEADER];
        let header = header.get_mut(..shape.header_len)?;
        header.copy_from_slice(head);
        let chunks = payload.chunks(usize::from(vnet.gso_size).max(1));
        let last = chunks.len().saturating_sub(1);
        let (mut id, mut seq) = (shape.id, shape.seq);
        for (at, chunk) in chunks.enumerate() {
            let mut kept = shape.flags;
            if at != last {
                kept &= !(flags::FIN | flags::PSH);
            }
            if at != 0 {
                kept &= !flags::CWR;
            }
            shape.stamp(header, header.len() + chunk.len(), id, seq, kept)?;
            self.push(&lead, header, chunk);
            (id, seq) = (id.wrapping_add(1), seq.wrapping_add(chunk.len() as u32));
        }
        Some(())
    }

    fn push(&mut self, lead: &[u8], header: &[u8], payload: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(lead);
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(payload);
        let len = self.bytes.len() - start;
        match self.spans.last_mut() {
            Some(span)
                if span.count < MAX_COUNT
                    && len <= span.segment
                    && span.len == span.segment * span.count
                    && span.len + len <= MAX_TRAIN =>
            {
                span.len += len;
                span.count += 1;
            }
            _ => self.spans.push(Span { start, len, segment: len, count: 1 }),
        }
    }
}

/// The relevant header fields of a packet that is split or merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    v6: bool,
    tcp: bool,
    l4: usize,
    header_len: usize,
    id: u16,
    seq: u32,
    flags: u8,
}

impl Shape {
    fn of(vnet: &VnetHeader, packet: &[u8]) -> Option<Self> {
        let v6 = packet.first()? >> 4 == 6;
        let tcp = matches!(vnet.gso, Gso::TcpV4 | Gso::TcpV6);
        let l4 = usize::from(vnet.csum_start);
        let transport = packet.get(l4..)?;
        let (len, seq, flags) = if tcp {
            let tcp = Tcp::parse(transport)?;
            (tcp.header_len, tcp.seq, tcp.flags)
        } else {
            transport.first_chunk::<UDP_LEN>()?;
            (UDP_LEN, 0, 0)
        };
        let id = if v6 { 0 } else { u16::from_be_bytes(*packet.get(4..)?.first_chunk()?) };
        let header_len = l4 + len;
        let shape = Self { v6, tcp, l4, header_len, id, seq, flags };
        (l4 >= V4_LEN && header_len <= MAX_HEADER).then_some(shape)
    }

    /// Writes the fields that differ between segments: lengths, identification, sequence number and flags.
    fn stamp(&self, header: &mut [u8], len: usize, id: u16, seq: u32, flags: u8) -> Option<()> {
        let total = u16::try_from(len).ok()?;
        let l4_len = u16::try_from(len.checked_sub(self.l4)?).ok()?;
        if self.v6 {
            put(header, 4, &u16::try_from(len.checked_sub(V6_LEN)?).ok()?.to_be_bytes())?;
        } else {
            put(header, 2, &total.to_be_bytes())?;
            put(header, 4, &id.to_be_bytes())?;
            put(header, 10, &[0, 0])?;
            let sum = Sum::new().bytes(header.get(..self.l4)?).finish();
            put(header, 10, &sum.to_be_bytes())?;
        }
        if self.tcp {
            put(header, self.l4 + 4, &seq.to_be_bytes())?;
            put(header, self.l4 + 13, &[flags])
        } else {
            put(header, self.l4 + 4, &l4_len.to_be_bytes())
        }
    }

    /// Leaves the transport checksum to the kernel, by setting the field to the sum of the pseudo-header.
    fn leave_checksum(&self, header: &mut [u8], len: usize) -> Option<()> {
        let l4_len = u16::try_from(len.checked_sub(self.l4)?).ok()?;
        let protocol = if self.tcp { TCP } else { UDP };
        let sum = pseudo_header(header, protocol)?.word(l4_len).fold();
        put(header, self.l4 + if self.tcp { 16 } else { 6 }, &sum.to_be_bytes())
    }

    /// Returns whether the headers belong to one flow in the same state; sequence numbers, lengths and PSH may differ.
    fn same_flow(&self, a: &[u8], b: &[u8]) -> bool {
        let ip = if self.v6 {
            a.get(..4) == b.get(..4) && a.get(6..self.l4) == b.get(6..self.l4)
        } else {
            a.get(..2) == b.get(..2)
                && a.get(6..10) == b.get(6..10)
                && a.get(12..self.l4) == b.get(12..self.l4)
        };
        let (ports, after) = (self.l4..self.l4 + 4, self.l4 + TCP_LEN..self.header_len);
        // Acknowledgement number and window.
        let (ack, window) = (self.l4 + 8..self.l4 + 13, self.l4 + 14..self.l4 + 16);
        ip && a.get(ports.clone()) == b.get(ports)
            && (!self.tcp
                || (a.get(ack.clone()) == b.get(ack)
                    && a.get(window.clone()) == b.get(window)
                    && a.get(after.clone()) == b.get(after)))
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes.get_mut(at..at.checked_add(value.len())?)?.copy_from_slice(value);
    Some(())
}

/// Collects datagrams and writes each super-packet as soon as the next datagram does not continue it.
#[derive(Debug, Default)]
pub(super) struct Joiner<'a> {
    run: Option<Run<'a>>,
}

#[derive(Debug)]
struct Run<'a> {
    vnet: VnetHeader,
    shape: Shape,
    first: &'a [u8],
    parts: Vec<&'a [u8]>,
    len: usize,
    next_seq: u32,
    /// The union of the segments' flags; PSH, FIN or a short packet ended the super-packet.
    flags: u8,
    ended: bool,
}

impl<'a> Joiner<'a> {
    /// Adds one datagram; `write` is called with each complete super-packet (virtio header, packet header, payloads).
    pub(super) fn push(&mut self, datagram: &'a [u8], write: &mut impl FnMut(&[IoSlice<'_>])) {
        let Some((lead, packet)) = datagram.split_first_chunk::<OVERHEAD>() else { return };
        let Some(head) = lead.first_chunk::<{ VnetHeader::LEN }>() else { return };
        let vnet = VnetHeader::decode(head);
        if vnet.gso == Gso::None {
            self.flush(write);
            return write(&[IoSlice::new(head), IoSlice::new(packet)]);
        }
        let Some(shape) = Shape::of(&vnet, packet) else { return };
        let payload = packet.get(shape.header_len..).unwrap_or(&[]);
        if !self.run.as_mut().is_some_and(|run| run.join(&vnet, &shape, packet, payload)) {
            self.flush(write);
            self.run = Some(Run::new(vnet, shape, packet, payload));
        }
    }

    /// Writes the pending super-packet, if any.
    pub(super) fn flush(&mut self, write: &mut impl FnMut(&[IoSlice<'_>])) {
        if let Some(run) = self.run.take() {
            run.write(write);
        }
    }
}

impl<'a> Run<'a> {
    fn new(vnet: VnetHeader, shape: Shape, packet: &'a [u8], payload: &'a [u8]) -> Self {
        let mut parts = Vec::with_capacity(MAX_PARTS);
        parts.push(payload);
        Run {
            vnet,
            shape,
            first: packet,
            parts,
            len: packet.len(),
            next_seq: shape.seq.wrapping_add(payload.len() as u32),
            flags: shape.flags,
            ended: ends(&vnet, &shape, payload),
        }
    }

    fn join(
        &mut self,
        vnet: &VnetHeader,
        shape: &Shape,
        packet: &'a [u8],
        payload: &'a [u8],
    ) -> bool {
        let continues = !self.ended
            && *vnet == self.vnet
            && shape.header_len == self.shape.header_len
            && self.parts.len() < MAX_PARTS
            && self.len + payload.len() <= MAX_LEN
            && (!shape.tcp || shape.seq == self.next_seq)
            && (shape.flags ^ self.flags) & !(flags::PSH | flags::FIN | flags::CWR) == 0
            && shape.flags & flags::CWR == 0
            && shape.same_flow(self.first, packet);
        if continues {
            self.parts.push(payload);
            self.len += payload.len();
            self.next_seq = self.next_seq.wrapping_add(payload.len() as u32);
            self.flags |= shape.flags;
            self.ended = ends(vnet, shape, payload);
        }
        continues
    }

    fn write(&self, write: &mut impl FnMut(&[IoSlice<'_>])) {
        let mut header = [0; MAX_HEADER];
        let Some(vnet) =
            header.get_mut(..self.shape.header_len).and_then(|header| self.head(header))
        else {
            return;
        };
        let mut slices = [IoSlice::new(&[]); MAX_PARTS + 2];
        let lead = [vnet.as_slice(), header.get(..self.shape.header_len).unwrap_or(&[])];
        let all = lead.into_iter().chain(self.parts.iter().copied());
        let count = lead.len() + self.parts.len();
        slices.iter_mut().zip(all).for_each(|(slice, part)| *slice = IoSlice::new(part));
        write(slices.get(..count).unwrap_or(&[]));
    }

    /// Writes the headers of the super-packet and returns its virtio header.
    fn head(&self, header: &mut [u8]) -> Option<[u8; VnetHeader::LEN]> {
        let Shape { id, seq, .. } = self.shape;
        header.copy_from_slice(self.first.get(..self.shape.header_len)?);
        self.shape.stamp(header, self.len, id, seq, self.flags)?;
        self.shape.leave_checksum(header, self.len)?;
        let whole = VnetHeader {
            hdr_len: u16::try_from(self.shape.header_len).ok()?,
            gso: if self.parts.len() > 1 { self.vnet.gso } else { Gso::None },
            gso_size: if self.parts.len() > 1 { self.vnet.gso_size } else { 0 },
            needs_csum: true,
            ..self.vnet
        };
        Some(whole.encode())
    }
}

/// Returns whether the same super-packet cannot be continued after this segment.
fn ends(vnet: &VnetHeader, shape: &Shape, payload: &[u8]) -> bool {
    shape.flags & (flags::PSH | flags::FIN) != 0 || payload.len() != usize::from(vnet.gso_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_icount::packets;

    fn joined<'a>(datagrams: impl Iterator<Item = &'a [u8]>) -> Vec<(VnetHeader, Vec<u8>)> {
        let mut writes = Vec::new();
        let mut write = |slices: &[IoSlice<'_>]| {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            let (vnet, packet) = bytes.split_first_chunk().unwrap();
            writes.push((VnetHeader::decode(vnet), packet.to_vec()));
        };
        let mut joiner = Joiner::default();
        datagrams.for_each(|datagram| joiner.push(datagram, &mut write));
        joiner.flush(&mut write);
        writes
    }

    fn datagrams(trains: &Trains) -> Vec<Vec<u8>> {
        trains
            .iter()
            .flat_map(|(span, bytes)| bytes.chunks(span.segment).map(<[u8]>::to_vec))
            .collect()
    }

    #[test]
    fn a_super_packet_is_cut_and_joined_to_itself() {
        let (vnet, packet) = packets::super_packet();
        let mut trains = Trains::default();
        trains.split(&vnet, &packet).unwrap();
        let counts: Vec<usize> = trains.iter().map(|(span, _)| span.count).collect();
        assert_eq!(counts, [46, 3], "no train is longer than a datagram may be");
        let cut = datagrams(&trains);
        assert_eq!(joined(cut.iter().map(Vec::as_slice)), [(vnet, packet)]);
    }

    #[test]
    fn a_loss_leaves_two_parts_that_the_kernel_can_take() {
        let (vnet, packet) = packets::super_packet();
        let mut trains = Trains::default();
        trains.split(&vnet, &packet).unwrap();
        let cut = datagrams(&trains);
        let left = cut.iter().enumerate().filter(|(at, _)| *at != 10);
        let writes = joined(left.map(|(_, datagram)| datagram.as_slice()));
        let lengths: Vec<usize> = writes.iter().map(|(_, packet)| packet.len()).collect();
        assert_eq!(lengths, [40 + 10 * packets::SEGMENT, packet.len() - 11 * packets::SEGMENT]);
        let payload: Vec<u8> =
            writes.iter().flat_map(|(_, packet)| packet[40..].to_vec()).collect();
        let (before, after) = (40..40 + 10 * packets::SEGMENT, 40 + 11 * packets::SEGMENT..);
        assert_eq!(payload, [&packet[before], &packet[after]].concat());
        let seq = |packet: &[u8]| Tcp::parse(&packet[20..]).unwrap().seq;
        assert_eq!(seq(&writes[1].1) - seq(&writes[0].1), 11 * packets::SEGMENT as u32);
    }

    #[test]
    fn a_plain_packet_crosses_untouched() {
        let packet = packets::plain(500);
        let mut trains = Trains::default();
        trains.split(&VnetHeader::default(), &packet).unwrap();
        let cut = datagrams(&trains);
        assert_eq!(cut[0].len(), 500 + OVERHEAD);
        assert_eq!(joined(cut.iter().map(Vec::as_slice)), [(VnetHeader::default(), packet)]);
    }

    #[test]
    fn nonsense_is_left_out() {
        let vnet = VnetHeader {
            gso: Gso::TcpV4,
            gso_size: 0,
            csum_start: 65_000,
            ..VnetHeader::default()
        };
        assert_eq!(Trains::default().split(&vnet, &packets::plain(100)), None);
        assert_eq!(joined([&[0_u8; 3][..], &[0xff; 60][..]].into_iter()), []);
    }
}
