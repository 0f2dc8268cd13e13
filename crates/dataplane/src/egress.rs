//! Turns a super-packet into trains of sealed datagrams. No I/O.

use std::mem;

use adit_engine::command::{InnerMtu, PeerSpec};
use adit_wire::mss;
use adit_wire::split::Segments;

use crate::format::{Format, Seal, SealBurst, Sealer as _};
pub use crate::key::Sealer;
use crate::stats::DropReason;
use crate::stream::frames::LENGTH;

/// Longest payload of one train: an IPv4 packet without its IP and UDP headers.
const MAX_TRAIN: usize = 65_507;
/// The longest packet or frame that the TUN or TAP device delivers and that is framed.
pub const MAX_PACKET: usize = 65_536 + adit_wire::ethernet::MAX_HEADER_LEN;

/// Sealed datagrams back to back, in the order of their packet ids, and how they form trains.
#[derive(Debug)]
pub struct Arena {
    buffer: Box<[u8]>,
    used: usize,
    spans: Vec<TrainSpan>,
    /// Room for an encapsulated packet; empty until a peer needs it.
    scratch: Vec<u8>,
}

/// One train: datagrams of equal length, of which the last may be shorter.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct TrainSpan {
    start: usize,
    len: usize,
    /// Length of each datagram but the last.
    pub segment: usize,
    /// The number of datagrams.
    pub count: usize,
}

/// Whether all of a super-packet was sealed.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum SealProgress {
    /// The whole super-packet was sealed.
    Done,
    /// The arena is full: send its contents, clear it, and continue with the same segments.
    Full,
}

/// The parameters for sealing one peer's packets.
#[derive(Copy, Clone, Debug, Default)]
pub struct PacketShape<F: Format> {
    /// The bytes added inside the encryption.
    encapsulation: Option<F::Encapsulation>,
    /// The limits on the MSS of SYNs.
    pub mtu: InnerMtu,
    /// The maximum number of datagrams per train; 1 without GSO.
    pub train: usize,
    /// Each packet is preceded by its length, and all form one train of unlimited length.
    pub stream: bool,
}

impl<F: Format> PacketShape<F> {
    /// Returns the parameters that a peer's settings require.
    pub fn of(spec: &PeerSpec<F::Types>, train: usize) -> Self {
        let encapsulation = F::encapsulation(spec);
        Self { encapsulation, mtu: spec.mtu, train, stream: spec.link.is_stream() }
    }

    /// Returns the bytes that encapsulation adds to our own in-band message.
    pub(crate) fn message_growth(&self) -> usize {
        self.encapsulation.map_or(0, F::message_growth)
    }

    /// Returns the bytes by which a packet may grow when it is sealed, in all its fragments
    /// together.
    #[inline]
    fn growth(&self, overhead: usize) -> usize {
        match self.encapsulation {
            Some(encapsulation) => Self::encapsulated_growth(encapsulation, overhead),
            None => overhead,
        }
    }

    // Not computed in advance for packets to which nothing is added.
    #[cold]
    fn encapsulated_growth(encapsulation: F::Encapsulation, overhead: usize) -> usize {
        F::growth(encapsulation, overhead)
    }
}

impl Arena {
    /// Creates an arena of `size` bytes; at least one packet of 64 KiB fits.
    pub fn new<F: Format>(size: usize) -> Self {
        let size = size.max(const { MAX_PACKET + F::MAX_GROWTH + LENGTH });
        Self { buffer: vec![0; size].into(), used: 0, spans: Vec::new(), scratch: Vec::new() }
    }

    /// Releases the memory of an empty arena until it is used again.
    pub fn release_memory(&mut self) {
        if self.used == 0 {
            adit_linux::memory::release(&mut self.buffer);
        }
        self.scratch = Vec::new();
    }

    /// Discards all sealed datagrams.
    pub fn clear(&mut self) {
        self.used = 0;
        self.spans.clear();
    }

    /// Returns whether the arena holds no datagrams.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the number of sealed bytes.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns the number of sealed datagrams.
    pub fn datagrams(&self) -> usize {
        self.spans.iter().map(|span| span.count).sum()
    }

    /// Returns the trains, in order.
    pub fn spans(&self) -> &[TrainSpan] {
        &self.spans
    }

    /// Returns the bytes of a train.
    pub fn bytes(&self, span: &TrainSpan) -> &[u8] {
        let end = span.start.saturating_add(span.len);
        self.buffer.get(span.start..end).unwrap_or(&[])
    }

    /// Returns the number of bytes left.
    #[inline]
    pub fn room(&self) -> usize {
        self.buffer.len().saturating_sub(self.used)
    }

    /// Seals one packet to the end of the arena, which has room for it.
    #[inline(always)]
    fn seal<F: Format>(
        &mut self,
        sealer: &mut impl Seal,
        tx: &mut F::Tx,
        packet: &[u8],
        shape: &PacketShape<F>,
    ) -> Result<(), DropReason> {
        if shape.stream {
            let len = packet.len().saturating_add(shape.growth(sealer.overhead()));
            if len > usize::from(u16::MAX) {
                // Checked before it has a packet id: on a stream there must be no gap.
                return Err(DropReason::TooLong);
            }
        }
        match shape.encapsulation {
            Some(encapsulation) => self.seal_encapsulated(sealer, tx, packet, shape, encapsulation),
            None => self.seal_text(sealer, packet, shape),
        }
    }

    /// Encapsulates a packet and seals the result, or its fragments. The arena has room for them.
    #[inline(never)]
    fn seal_encapsulated<F: Format>(
        &mut self,
        sealer: &mut impl Seal,
        tx: &mut F::Tx,
        packet: &[u8],
        shape: &PacketShape<F>,
        encapsulation: F::Encapsulation,
    ) -> Result<(), DropReason> {
        let mut scratch = mem::take(&mut self.scratch);
        let overhead = sealer.overhead();
        let sealed = F::encapsulate(encapsulation, tx, packet, overhead, &mut scratch, |text| {
            self.seal_fragment(sealer, text, shape)
        });
        self.scratch = scratch;
        sealed
    }

    // One copy of the sealing code serves all encapsulated packets.
    #[inline(never)]
    fn seal_fragment<F: Format>(
        &mut self,
        sealer: &mut impl Seal,
        text: &[u8],
        shape: &PacketShape<F>,
    ) -> Result<(), DropReason> {
        self.seal_text(sealer, text, shape)
    }

    #[inline(always)]
    fn seal_text<F: Format>(
        &mut self,
        sealer: &mut impl Seal,
        text: &[u8],
        shape: &PacketShape<F>,
    ) -> Result<(), DropReason> {
        let lead = if shape.stream { LENGTH } else { 0 };
        let out = self.buffer.get_mut(self.used..).unwrap_or(&mut []);
        let len = sealer.seal(text, out.get_mut(lead..).unwrap_or(&mut []))?;
        if shape.stream {
            if let Some(length) = out.first_chunk_mut() {
                *length = (len as u16).to_be_bytes();
            }
            self.extend(len.saturating_add(lead));
        } else {
            self.append(len, shape.train);
        }
        Ok(())
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
        self.spans.push(TrainSpan { start, len, segment: len, count: 1 });
    }

    /// Adds the packet just sealed to the stream's train.
    #[inline]
    fn extend(&mut self, len: usize) {
        let start = self.used;
        self.used = self.used.saturating_add(len);
        match self.spans.last_mut() {
            Some(last) => {
                last.len = last.len.saturating_add(len);
                last.count = last.count.saturating_add(1);
            }
            None => self.spans.push(TrainSpan { start, len, segment: len, count: 1 }),
        }
    }

    /// Seals one packet that did not come from the TUN device: a ping or a control message. Returns `None` if the arena
    /// is full.
    pub fn message<F: Format>(
        &mut self,
        sealer: &mut Sealer<'_, F>,
        packet: &[u8],
        shape: &PacketShape<F>,
    ) -> Option<Result<(), DropReason>> {
        let Sealer { key, tx } = sealer;
        key.run(Message { arena: self, tx: &mut **tx, packet, shape })
    }

    /// Seals the rest of a super-packet. Calls `dropped` for each packet that could not be sealed.
    #[inline]
    pub fn egress<F: Format>(
        &mut self,
        segments: &mut Segments<'_>,
        sealer: &mut Sealer<'_, F>,
        shape: &PacketShape<F>,
        dropped: impl FnMut(DropReason),
    ) -> SealProgress {
        let Sealer { key, tx } = sealer;
        key.run(SuperPacket { arena: self, tx: &mut **tx, segments, shape, dropped })
    }
}

/// [`Arena::message`] for one kind of key.
struct Message<'b, F: Format> {
    arena: &'b mut Arena,
    tx: &'b mut F::Tx,
    packet: &'b [u8],
    shape: &'b PacketShape<F>,
}

impl<F: Format> SealBurst for Message<'_, F> {
    type Output = Option<Result<(), DropReason>>;

    fn run(self, sealer: &mut impl Seal) -> Self::Output {
        let Self { arena, tx, packet, shape } = self;
        let most = shape.growth(sealer.overhead()).saturating_add(LENGTH);
        if packet.len().saturating_add(most) > arena.room() {
            return None;
        }
        Some(arena.seal(sealer, tx, packet, shape))
    }
}

/// [`Arena::egress`] for one kind of key.
struct SuperPacket<'b, 's, F: Format, D> {
    arena: &'b mut Arena,
    tx: &'b mut F::Tx,
    segments: &'b mut Segments<'s>,
    shape: &'b PacketShape<F>,
    dropped: D,
}

impl<F: Format, D: FnMut(DropReason)> SealBurst for SuperPacket<'_, '_, F, D> {
    type Output = SealProgress;

    #[inline]
    fn run(self, sealer: &mut impl Seal) -> SealProgress {
        let Self { arena, tx, segments, shape, mut dropped } = self;
        let most = shape.growth(sealer.overhead()).saturating_add(LENGTH);
        let (whole, l2) = (segments.is_whole(), segments.l2());
        loop {
            if segments.longest().saturating_add(most) > arena.room() {
                return SealProgress::Full;
            }
            let Some(segment) = segments.next() else { return SealProgress::Done };
            if whole {
                // SYNs are never part of a super-packet.
                if let Some(packet) = segment.get_mut(l2..) {
                    mss::clamp(packet, shape.mtu.mss4, shape.mtu.mss6);
                }
            }
            if let Err(reason) = arena.seal(sealer, tx, segment, shape) {
                dropped(reason);
            }
        }
    }
}

impl TrainSpan {
    /// Returns whether a datagram of `len` bytes may be appended: the train is not full, all previous datagrams have
    /// the same length, and `len` does not exceed it.
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
    use crate::peer::{KeyOrigin, Tx};
    use crate::trivial::{OVERHEAD, PlainKey, Trivial};
    use adit_engine::{Link, SocketId};
    use adit_wire::VnetHeader;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering::Relaxed;

    fn spec() -> PeerSpec<Trivial> {
        let link = Link::datagram(SocketId(0), None, ([192, 0, 2, 1], 1194).into());
        PeerSpec { layout: 3, ..PeerSpec::plain(link) }
    }

    fn key() -> Key<Trivial> {
        let plain = PlainKey { id: 0, seal: 1, open: 1, limit: 0 };
        Key::new(&plain, 64, KeyOrigin::default()).unwrap()
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
            let mut sealer = key.sealer(&mut tx, &spec());
            let mut arena = Arena::new::<Trivial>(1 << 20);
            let shape = PacketShape { train, ..PacketShape::default() };
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
                    let id: [u8; 4] = datagram[4..8].try_into().unwrap();
                    ids.push(u32::from_be_bytes(id) as usize);
                    again.push(datagram.len() - OVERHEAD);
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
        let mut sealer = key.sealer(&mut tx, &spec());
        let mut arena = Arena::new::<Trivial>(0);
        let shape = PacketShape { train: 64, ..PacketShape::default() };
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
            if progress == SealProgress::Done {
                break;
            }
        }
        assert_eq!((total, rounds > 2), (6000, true));
    }

    #[test]
    fn an_exhausted_key_drops_and_says_so() {
        let key = key();
        key.format.next_id.store(u32::MAX - 1, Relaxed);
        let mut tx = Tx::default();
        let mut sealer = key.sealer(&mut tx, &spec());
        let mut arena = Arena::new::<Trivial>(0);
        let mut packet = vec![0x45u8; 100];
        let vnet = VnetHeader::default();
        let mut drops = Vec::new();
        for _ in 0..3 {
            let mut segments = Segments::new(&vnet, &mut packet).unwrap();
            arena.egress(
                &mut segments,
                &mut sealer,
                &PacketShape { train: 64, ..PacketShape::default() },
                |r| {
                    drops.push(r);
                },
            );
        }
        assert_eq!(arena.datagrams(), 1);
        assert_eq!(drops, [DropReason::KeyExhausted; 2]);
    }
}
