//! From a super-packet to trains of sealed datagrams. No I/O.

use std::mem;

use adit_engine::command::{Framing, InnerMtu, PeerSpec};
use adit_wire::mss;
use adit_wire::split::Segments;

use crate::fragment::{self, Fragments};
use crate::framing;
pub use crate::key::Sealer;
use crate::key::{MAX_OVERHEAD, Seal, SealerKind};
use crate::stats::DropReason;
use crate::stream::frames::LENGTH;

/// Longest payload of one train: an IPv4 packet without its IP and UDP headers.
const MAX_TRAIN: usize = 65_507;
/// Longest packet or frame that the TUN or TAP device hands out, and that is framed.
pub(crate) const MAX_PACKET: usize = 65_536 + adit_wire::ethernet::MAX_HEADER_LEN;

/// Sealed datagrams back to back, in the order of their packet ids, and how they form trains.
#[derive(Debug)]
pub struct Arena {
    buffer: Box<[u8]>,
    used: usize,
    spans: Vec<Span>,
    /// Room for a packet with its compression framing; empty until a peer needs it.
    scratch: Vec<u8>,
}

/// One train: datagrams of equal length, the last may be shorter.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Span {
    start: usize,
    len: usize,
    /// Length of each datagram but the last.
    pub segment: usize,
    /// Datagrams.
    pub count: usize,
}

/// Whether a super-packet was sealed to its end.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Progress {
    /// Yes.
    Done,
    /// The arena is full: send what it holds, clear it, and go on with the same segments.
    Full,
}

/// How one peer wants its packets.
#[derive(Copy, Clone, Debug, Default)]
pub struct Shape {
    framing: Framing,
    /// Longest encapsulated packet, if longer ones are sent in pieces.
    fragment: Option<u16>,
    /// Whether anything is added inside the encryption.
    encapsulated: bool,
    /// Limits for SYNs.
    pub mtu: InnerMtu,
    /// Datagrams per train at most; 1 without GSO.
    pub train: usize,
    /// Each packet behind its length, all in one train without an end.
    pub stream: bool,
}

impl Shape {
    /// What a peer's settings ask for.
    pub fn of(spec: &PeerSpec, train: usize) -> Self {
        let PeerSpec { framing, fragment, mtu, .. } = *spec;
        let encapsulated = framing != Framing::None || fragment.is_some();
        Self { framing, fragment, encapsulated, mtu, train, stream: spec.link.is_stream() }
    }

    /// Bytes that the compression framing adds to a message of ours, which never needs escaping.
    pub(crate) fn stub(&self) -> usize {
        match self.framing {
            Framing::None | Framing::StubV2 => 0,
            Framing::LzoStub | Framing::SwapStub => 1,
        }
    }

    /// Bytes by which a packet may grow when it is sealed, in all its pieces together.
    #[inline]
    fn growth(&self, overhead: usize) -> usize {
        if self.encapsulated { self.added_growth(overhead) } else { overhead }
    }

    // Not worked out beforehand for packets to which nothing is added.
    #[cold]
    fn added_growth(&self, overhead: usize) -> usize {
        let each = overhead.saturating_add(fragment::HEADER);
        let all = if self.fragment.is_some() {
            each.saturating_mul(fragment::MAX_FRAGMENTS)
        } else {
            each
        };
        all.saturating_add(framing::MAX_ADDED)
    }
}

impl Arena {
    /// An arena of `size` bytes; at least one packet of 64 KiB fits.
    pub fn new(size: usize) -> Self {
        const PIECES: usize = fragment::MAX_FRAGMENTS * (MAX_OVERHEAD + fragment::HEADER);
        let size = size.max(MAX_PACKET + PIECES + framing::MAX_ADDED + LENGTH);
        Self { buffer: vec![0; size].into(), used: 0, spans: Vec::new(), scratch: Vec::new() }
    }

    /// Gives back the memory of an empty arena until it is used again.
    pub fn release_memory(&mut self) {
        if self.used == 0 {
            adit_linux::memory::release(&mut self.buffer);
        }
        self.scratch = Vec::new();
    }

    /// Forgets what was sealed.
    pub fn clear(&mut self) {
        self.used = 0;
        self.spans.clear();
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Bytes sealed.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Datagrams sealed.
    pub fn datagrams(&self) -> usize {
        self.spans.iter().map(|span| span.count).sum()
    }

    /// The trains, in order.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The bytes of a train.
    pub fn bytes(&self, span: &Span) -> &[u8] {
        let end = span.start.saturating_add(span.len);
        self.buffer.get(span.start..end).unwrap_or(&[])
    }

    /// Bytes left.
    #[inline]
    pub fn room(&self) -> usize {
        self.buffer.len().saturating_sub(self.used)
    }

    /// Seals one packet to the end of the arena, where there is room for it.
    #[inline(always)]
    fn seal(
        &mut self,
        sealer: &mut impl Seal,
        sequence: &mut u8,
        packet: &[u8],
        shape: &Shape,
    ) -> Option<Result<(), DropReason>> {
        if shape.stream {
            let len = packet.len().saturating_add(shape.growth(sealer.overhead()));
            if len > usize::from(u16::MAX) {
                // Before it has a packet id: on a stream there must be no gap.
                return Some(Err(DropReason::TooLong));
            }
        }
        if shape.encapsulated {
            return self.seal_encapsulated(sealer, sequence, packet, shape);
        }
        self.seal_text(sealer, packet, shape)
    }

    /// Frames a packet, cuts it into pieces if it is too long, and seals these. There is room.
    #[inline(never)]
    fn seal_encapsulated(
        &mut self,
        sealer: &mut impl Seal,
        sequence: &mut u8,
        packet: &[u8],
        shape: &Shape,
    ) -> Option<Result<(), DropReason>> {
        let mut scratch = mem::take(&mut self.scratch);
        scratch.resize(fragment::HEADER + MAX_PACKET + framing::MAX_ADDED, 0);
        let sealed = self.seal_in(&mut scratch, sealer, sequence, packet, shape);
        self.scratch = scratch;
        sealed
    }

    fn seal_in(
        &mut self,
        scratch: &mut [u8],
        sealer: &mut impl Seal,
        sequence: &mut u8,
        packet: &[u8],
        shape: &Shape,
    ) -> Option<Result<(), DropReason>> {
        let framed = scratch.get_mut(fragment::HEADER..)?;
        let len = framing::frame(shape.framing, packet, framed)?.len();
        let text = scratch.get_mut(..len.checked_add(fragment::HEADER)?)?;
        let Some(limit) = shape.fragment else {
            return self.seal_fragment(sealer, text.get(fragment::HEADER..)?, shape);
        };
        let added = sealer.overhead().saturating_add(fragment::HEADER);
        let most = usize::from(limit).saturating_sub(added);
        let Some(mut pieces) = Fragments::new(text, most, sequence) else {
            return Some(Err(DropReason::TooManyFragments));
        };
        while let Some(piece) = pieces.next() {
            if let error @ Err(_) = self.seal_fragment(sealer, piece, shape)? {
                return Some(error);
            }
        }
        Some(Ok(()))
    }

    // One copy of the sealing for all that is dressed.
    #[inline(never)]
    fn seal_fragment(
        &mut self,
        sealer: &mut impl Seal,
        text: &[u8],
        shape: &Shape,
    ) -> Option<Result<(), DropReason>> {
        self.seal_text(sealer, text, shape)
    }

    #[inline(always)]
    fn seal_text(
        &mut self,
        sealer: &mut impl Seal,
        text: &[u8],
        shape: &Shape,
    ) -> Option<Result<(), DropReason>> {
        let lead = if shape.stream { LENGTH } else { 0 };
        let out = self.buffer.get_mut(self.used..)?;
        match sealer.seal(text, out.get_mut(lead..)?) {
            Ok(len) if shape.stream => {
                *out.first_chunk_mut()? = (len as u16).to_be_bytes();
                self.extend(len.saturating_add(lead));
                Some(Ok(()))
            }
            Ok(len) => {
                self.append(len, shape.train);
                Some(Ok(()))
            }
            Err(reason) => Some(Err(reason)),
        }
    }

    /// Adds the datagram just sealed to the last train, or starts another.
    #[inline]
    fn append(&mut self, len: usize, train: usize) {
        let start = self.used;
        self.used = self.used.saturating_add(len);
        if let Some(last) = self.spans.last_mut()
            && last.takes(len, train)
        {
            last.len = last.len.saturating_add(len);
            last.count = last.count.saturating_add(1);
            return;
        }
        self.spans.push(Span { start, len, segment: len, count: 1 });
    }

    /// Adds the packet just sealed to what goes onto a stream.
    #[inline]
    fn extend(&mut self, len: usize) {
        let start = self.used;
        self.used = self.used.saturating_add(len);
        match self.spans.last_mut() {
            Some(last) => {
                last.len = last.len.saturating_add(len);
                last.count = last.count.saturating_add(1);
            }
            None => self.spans.push(Span { start, len, segment: len, count: 1 }),
        }
    }

    /// Seals one packet that is not a TUN device's: a ping, or a message of control. `None` if the
    /// arena is full.
    pub fn message(
        &mut self,
        sealer: &mut Sealer<'_>,
        packet: &[u8],
        shape: &Shape,
    ) -> Option<Result<(), DropReason>> {
        let most = shape.growth(sealer.overhead()).saturating_add(LENGTH);
        if packet.len().saturating_add(most) > self.room() {
            return None;
        }
        match &mut sealer.0 {
            SealerKind::Aead(inner) => self.seal(inner, sealer.1, packet, shape),
            SealerKind::Epoch(inner) => self.seal(inner, sealer.1, packet, shape),
            SealerKind::Block(inner) => self.seal(inner, sealer.1, packet, shape),
        }
    }

    /// Seals the rest of a super-packet. `dropped` hears of each packet that could not be sealed.
    #[inline]
    pub fn egress(
        &mut self,
        segments: &mut Segments<'_>,
        sealer: &mut Sealer<'_>,
        shape: &Shape,
        dropped: impl FnMut(DropReason),
    ) -> Progress {
        match &mut sealer.0 {
            SealerKind::Aead(inner) => self.egress_as(segments, inner, sealer.1, shape, dropped),
            SealerKind::Epoch(inner) => self.egress_as(segments, inner, sealer.1, shape, dropped),
            SealerKind::Block(inner) => self.egress_as(segments, inner, sealer.1, shape, dropped),
        }
    }

    /// [`Self::egress`] in one format.
    #[inline]
    fn egress_as(
        &mut self,
        segments: &mut Segments<'_>,
        sealer: &mut impl Seal,
        sequence: &mut u8,
        shape: &Shape,
        mut dropped: impl FnMut(DropReason),
    ) -> Progress {
        let most = shape.growth(sealer.overhead()).saturating_add(LENGTH);
        let (whole, l2) = (segments.is_whole(), segments.l2());
        loop {
            if segments.longest().saturating_add(most) > self.room() {
                return Progress::Full;
            }
            let Some(segment) = segments.next() else { return Progress::Done };
            if whole {
                // SYNs are never part of a super-packet.
                if let Some(packet) = segment.get_mut(l2..) {
                    mss::clamp(packet, shape.mtu.mss4, shape.mtu.mss6);
                }
            }
            if let Some(Err(reason)) = self.seal(sealer, sequence, segment, shape) {
                dropped(reason);
            }
        }
    }
}

impl Span {
    /// Whether a datagram of `len` may follow: the train is not full, and all before had the same
    /// length, which is not exceeded.
    #[inline]
    fn takes(&self, len: usize, train: usize) -> bool {
        self.count < train
            && len <= self.segment
            && self.len == self.segment.saturating_mul(self.count)
            && self.len.saturating_add(len) <= MAX_TRAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::packet;
    use crate::peer::{KeyOrigin, Tx};
    use adit_crypto::{Cipher, DirectionKey};
    use adit_engine::command::{DataKey, KeyLimits, Protection};
    use adit_wire::VnetHeader;
    use proptest::prelude::*;

    fn key() -> Key {
        let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
        let limits = KeyLimits::default();
        let data = DataKey {
            key_id: 0,
            protection: Protection::Aead(Cipher::Aes128Gcm),
            seal: half.clone(),
            open: half,
            limits,
        };
        Key::new(&data, 64, KeyOrigin::default()).unwrap()
    }

    proptest! {
        /// Every train obeys the kernel's rules, and cutting the trains again gives the datagrams in
        /// the order of their ids.
        #[test]
        fn trains_are_what_the_kernel_takes(
            lens in proptest::collection::vec(prop_oneof![Just(1400usize), 1usize..1500], 1..200),
            train in prop_oneof![Just(64usize), Just(1)],
        ) {
            let key = key();
            let mut tx = Tx::default();
            let mut sealer = key.sealer(&mut tx, Some(3));
            let mut arena = Arena::new(1 << 20);
            let shape = Shape { train, ..Shape::default() };
            for len in &lens {
                arena.message(&mut sealer, &vec![9; *len], &shape).unwrap().unwrap();
            }
            let mut ids = Vec::new();
            let mut again = Vec::new();
            for span in arena.spans() {
                let bytes = arena.bytes(span);
                prop_assert!(bytes.len() <= MAX_TRAIN && span.count <= train);
                prop_assert_eq!(bytes.chunks(span.segment).count(), span.count);
                for datagram in bytes.chunks(span.segment) {
                    let mut copy = datagram.to_vec();
                    ids.push(packet::parse(&mut copy).unwrap().packet_id as usize);
                    again.push(datagram.len() - packet::OVERHEAD);
                }
            }
            prop_assert_eq!(ids, (1..=lens.len()).collect::<Vec<_>>());
            prop_assert_eq!(again, lens);
            prop_assert_eq!(arena.datagrams(), arena.spans().iter().map(|s| s.count).sum::<usize>());
        }
    }

    #[test]
    fn a_full_arena_goes_on_where_it_stopped() {
        let key = key();
        let mut tx = Tx::default();
        let mut sealer = key.sealer(&mut tx, Some(3));
        let mut arena = Arena::new(0);
        let shape = Shape { train: 64, ..Shape::default() };
        let mut total = 0;
        // A UDP super-packet with tiny segments: sealing multiplies its size.
        let mut packet = vec![0u8; 60_028];
        packet[0] = 0x45;
        packet[9] = 17;
        let vnet = VnetHeader {
            needs_csum: true,
            gso: adit_wire::Gso::UdpL4,
            gso_size: 10,
            csum_start: 20,
            csum_offset: 6,
            ..VnetHeader::default()
        };
        let mut segments = Segments::new(&vnet, &mut packet).unwrap();
        let mut rounds = 0;
        loop {
            let progress =
                arena.egress(&mut segments, &mut sealer, &shape, |reason| panic!("{reason}"));
            total += arena.datagrams();
            arena.clear();
            rounds += 1;
            if progress == Progress::Done {
                break;
            }
        }
        assert_eq!((total, rounds > 2), (6000, true));
    }

    #[test]
    fn an_exhausted_key_drops_and_says_so() {
        let key = key();
        key.preset(u64::from(u32::MAX), 0, 0);
        let mut tx = Tx::default();
        let mut sealer = key.sealer(&mut tx, Some(3));
        let mut arena = Arena::new(0);
        let mut packet = vec![0x45u8; 100];
        let vnet = VnetHeader::default();
        let mut drops = Vec::new();
        for _ in 0..3 {
            let mut segments = Segments::new(&vnet, &mut packet).unwrap();
            arena.egress(
                &mut segments,
                &mut sealer,
                &Shape { train: 64, ..Shape::default() },
                |r| {
                    drops.push(r);
                },
            );
        }
        assert_eq!(arena.datagrams(), 1);
        assert_eq!(drops, [DropReason::KeyExhausted; 2]);
    }
}
