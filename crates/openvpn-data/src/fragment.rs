//! Fragments inside the tunnel (`fragment`). A packet too large for one datagram is sent as several, each sealed
//! separately, and reassembled at the other end.
//!
//! ```text
//! u32, low bits first:  kind 2 | sequence 8 | piece 5 | size / 4, 14
//! kind 0: whole, the rest is zero.  1: a piece, not the last.  2: the last piece; size is that of the
//! others.  3: never sent.
//! ```

use std::mem;
use std::time::Duration;

use adit_engine::Instant;

use adit_dataplane::MAX_PACKET;
pub use adit_dataplane::format::Origin;

/// The number of bytes before each packet or fragment.
pub const HEADER: usize = 4;
/// The maximum number of fragments of one packet, because the fragment number has 5 bits.
pub const MAX_FRAGMENTS: usize = 32;
/// The maximum number of incomplete packets of one peer.
pub const MAX_WAITING: usize = 25;
/// The maximum number of bytes of one peer's incomplete packets. Beyond it the oldest packet is dropped.
pub const MAX_HELD: usize = 256 << 10;
/// How long a packet may stay incomplete.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// All fragments of a packet were sealed within this many packet ids. Sequence numbers repeat after 256 packets of at
/// least two fragments each, so fragments that are further apart belong to two packets.
const MAX_SPREAD: u64 = 256;

const WHOLE: u32 = 0;
const PIECE: u32 = 1;
const LAST: u32 = 2;

/// A parsed fragment header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Header {
    Whole,
    /// One of several fragments. `size` is 0 unless it is the last.
    Fragment {
        sequence: u8,
        number: u8,
        last: bool,
        size: usize,
    },
}

impl Header {
    fn parse(word: [u8; HEADER]) -> Option<Self> {
        let word = u32::from_be_bytes(word);
        let [_, _, low, lowest] = (word >> 2).to_be_bytes();
        let number = low & 0x1f;
        match word & 3 {
            WHOLE if lowest == 0 && number == 0 => Some(Self::Whole),
            kind @ (PIECE | LAST) => Some(Self::Fragment {
                sequence: lowest,
                number,
                last: kind == LAST,
                size: (word >> 13 & 0xfffc) as usize,
            }),
            _ => None,
        }
    }

    fn encode(self) -> [u8; HEADER] {
        match self {
            Self::Whole => [0; HEADER],
            Self::Fragment { sequence, number, last, size } => {
                let kind = if last { LAST } else { PIECE };
                // A size that does not fit is never returned by `fragment_size`.
                let size = if last { u32::try_from(size / 4).unwrap_or(0) & 0x3fff } else { 0 };
                (kind | u32::from(sequence) << 2 | u32::from(number & 0x1f) << 10 | size << 15)
                    .to_be_bytes()
            }
        }
    }
}

/// Returns the length of every fragment but the last for a packet of `len` bytes, if fragments carry at most `most`: a
/// multiple of 4, and reduced if the last fragment would otherwise be very short.
fn fragment_size(len: usize, most: usize) -> usize {
    let full = most & !3;
    let (whole, rest) = match full {
        0 => return 0,
        _ => (len.div_euclid(full), len.rem_euclid(full)),
    };
    let most_of_one = full.saturating_mul(3) / 4;
    if whole == 0 || rest == 0 || rest >= most_of_one {
        return full;
    }
    let pieces = whole.saturating_add(1);
    len.div_ceil(pieces).next_multiple_of(4).min(full)
}

/// A packet that is being split into datagrams.
///
/// The text begins with [`HEADER`] bytes that are not part of the packet. Each fragment's header overwrites the end of
/// the previous fragment, which was already sealed.
#[derive(Debug)]
pub struct Fragments<'t> {
    text: &'t mut [u8],
    sequence: u8,
    size: usize,
    count: usize,
    next: usize,
}

impl<'t> Fragments<'t> {
    /// Splits the packet after the first [`HEADER`] bytes of `text` into fragments of at most `most` bytes. Returns
    /// `None` if that takes more than [`MAX_FRAGMENTS`]. `sequence` is advanced if it is used.
    pub fn new(text: &'t mut [u8], most: usize, sequence: &mut u8) -> Option<Self> {
        let len = text.len().checked_sub(HEADER)?;
        if len <= most {
            return Some(Self { text, sequence: 0, size: len, count: 1, next: 0 });
        }
        let size = fragment_size(len, most);
        if size == 0 {
            return None;
        }
        let count = len.div_ceil(size);
        if count > MAX_FRAGMENTS {
            return None;
        }
        *sequence = sequence.wrapping_add(1);
        Some(Self { text, sequence: *sequence, size, count, next: 0 })
    }

    /// Returns the number of datagrams that the packet is split into.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the next fragment with its header. It must be sealed before the following one is requested.
    #[expect(clippy::should_implement_trait, reason = "an Iterator cannot lend")]
    pub fn next(&mut self) -> Option<&[u8]> {
        if self.next >= self.count {
            return None;
        }
        let start = self.next.checked_mul(self.size)?;
        let end = start.checked_add(self.size)?.checked_add(HEADER)?.min(self.text.len());
        let header = match self.count {
            1 => Header::Whole,
            _ => Header::Fragment {
                sequence: self.sequence,
                number: u8::try_from(self.next).ok()?,
                last: self.next.saturating_add(1) == self.count,
                size: self.size,
            },
        };
        self.next = self.next.saturating_add(1);
        let piece = self.text.get_mut(start..end)?;
        *piece.first_chunk_mut()? = header.encode();
        Some(piece)
    }
}

/// The result of adding a received fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum FragmentResult<'t> {
    /// A packet that was not fragmented.
    Whole(&'t mut [u8]),
    /// The fragment completed a packet, which is now in the passed buffer.
    Complete,
    /// A fragment of a packet that is still incomplete.
    Waiting,
    /// The header is invalid, or fragments contradict each other.
    Bad,
}

/// A packet with missing fragments.
#[derive(Debug)]
struct PartialPacket {
    sequence: u8,
    origin: Origin,
    size: usize,
    /// A bit for each fragment that has arrived.
    here: u32,
    /// The number of fragments and the total length, once the last fragment has arrived.
    end: Option<(u32, usize)>,
    text: Vec<u8>,
}

/// The incomplete packets of one peer.
#[derive(Debug, Default)]
pub struct Reassembler {
    /// Oldest first; at most [`MAX_WAITING`].
    partial: Vec<PartialPacket>,
    /// The size of all texts together; at most [`MAX_HELD`].
    held: usize,
    /// The number of packets dropped because a fragment was missing, since the last [`Self::take_lost`].
    lost: usize,
}

impl Reassembler {
    /// Processes one authenticated text. If it completes a packet, the packet is put into `out`, whose memory is reused
    /// for the next packet.
    pub fn push<'t>(
        &mut self,
        text: &'t mut [u8],
        origin: Origin,
        out: &mut Vec<u8>,
    ) -> FragmentResult<'t> {
        let Some((header, body)) = text.split_first_chunk_mut::<HEADER>() else {
            return FragmentResult::Bad;
        };
        match Header::parse(*header) {
            None => FragmentResult::Bad,
            Some(Header::Whole) => FragmentResult::Whole(body),
            Some(Header::Fragment { sequence, number, last, size }) => {
                let size = if last { size } else { body.len() };
                let piece = Fragment { sequence, number, last, size, body };
                match self.piece(&piece, origin, out) {
                    Some(true) => FragmentResult::Complete,
                    Some(false) => FragmentResult::Waiting,
                    None => FragmentResult::Bad,
                }
            }
        }
    }

    /// Returns the number of packets that were dropped as incomplete since the last call.
    pub fn take_lost(&mut self) -> usize {
        mem::take(&mut self.lost)
    }

    fn piece(&mut self, piece: &Fragment<'_>, origin: Origin, out: &mut Vec<u8>) -> Option<bool> {
        let (start, end) = piece.place()?;
        self.expire(origin.now);
        let at = match self.find(piece.sequence, origin)? {
            Some(at) => at,
            None => self.begin(piece, origin, out),
        };
        let partial = self.partial.get_mut(at)?;
        if !partial.agrees(piece) {
            self.forget(at);
            return None;
        }
        let before = partial.text.len();
        if before < end {
            partial.text.resize(end, 0);
        }
        partial.text.get_mut(start..end)?.copy_from_slice(piece.body);
        partial.here |= piece.bit();
        if piece.last {
            partial.end = Some((u32::from(piece.number).saturating_add(1), end));
        }
        let complete = partial.is_complete();
        self.held = self.held.saturating_add(end.saturating_sub(before));
        if complete {
            let done = self.partial.remove(at);
            self.held = self.held.saturating_sub(done.text.len());
            *out = done.text;
        }
        while self.held > MAX_HELD {
            self.forget(0);
        }
        Some(complete)
    }

    /// Finds the packet that a fragment belongs to, and evicts an old packet with the same number. Returns `None` if
    /// the fragment itself is old.
    fn find(&mut self, sequence: u8, origin: Origin) -> Option<Option<usize>> {
        let Some(at) = self.partial.iter().position(|partial| partial.sequence == sequence) else {
            return Some(None);
        };
        let waiting = self.partial.get(at)?.origin;
        if waiting.key == origin.key {
            if waiting.packet_id.abs_diff(origin.packet_id) < MAX_SPREAD {
                return Some(Some(at));
            }
            if origin.packet_id < waiting.packet_id {
                return None;
            }
        }
        self.forget(at);
        Some(None)
    }

    fn begin(&mut self, piece: &Fragment<'_>, origin: Origin, out: &mut Vec<u8>) -> usize {
        if self.partial.len() >= MAX_WAITING {
            self.forget(0);
        }
        let mut text = mem::take(out);
        text.clear();
        let Fragment { sequence, size, .. } = *piece;
        self.partial.push(PartialPacket { sequence, origin, size, here: 0, end: None, text });
        self.partial.len().saturating_sub(1)
    }

    fn expire(&mut self, now: Instant) {
        while self.partial.first().is_some_and(|first| now.since(first.origin.now) > TIMEOUT) {
            self.forget(0);
        }
    }

    fn forget(&mut self, at: usize) {
        if at < self.partial.len() {
            let gone = self.partial.remove(at);
            self.held = self.held.saturating_sub(gone.text.len());
            self.lost = self.lost.saturating_add(1);
        } else {
            // No packet is incomplete, so no bytes are held.
            self.held = 0;
        }
    }
}

struct Fragment<'t> {
    sequence: u8,
    number: u8,
    last: bool,
    size: usize,
    body: &'t [u8],
}

impl Fragment<'_> {
    /// Returns the fragment's position in its packet; `None` if no packet can have this fragment.
    fn place(&self) -> Option<(usize, usize)> {
        let start = usize::from(self.number).checked_mul(self.size)?;
        let end = start.checked_add(self.body.len())?;
        let sound = !self.body.is_empty() && self.body.len() <= self.size && end <= MAX_PACKET;
        sound.then_some((start, end))
    }

    fn bit(&self) -> u32 {
        1u32.checked_shl(self.number.into()).unwrap_or(0)
    }
}

impl PartialPacket {
    /// Returns whether a fragment can belong to this packet: it has the size of the others, is not yet present, and does not follow the
    /// last.
    fn agrees(&self, piece: &Fragment<'_>) -> bool {
        let number = u32::from(piece.number);
        let behind = self.here.checked_shr(number).unwrap_or(0);
        self.size == piece.size
            && behind & 1 == 0
            && self.end.is_none_or(|(count, _)| number < count)
            && !(piece.last && behind != 0)
    }

    fn is_complete(&self) -> bool {
        self.end
            .is_some_and(|(count, len)| self.here.count_ones() == count && self.text.len() == len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn origin(packet_id: u64) -> Origin {
        Origin { key: 0, packet_id, now: Instant::from_nanos(1) }
    }

    /// Builds a packet whose bytes identify the packet and their position.
    fn packet(number: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (number * 31 + i * 7 + i / 251) as u8).collect()
    }

    fn cut(packet: &[u8], most: usize, sequence: &mut u8) -> Vec<Vec<u8>> {
        let mut text = [&[0; HEADER], packet].concat();
        let mut pieces = Fragments::new(&mut text, most, sequence).expect("pieces");
        let mut out = Vec::new();
        while let Some(piece) = pieces.next() {
            out.push(piece.to_vec());
        }
        assert_eq!(out.len(), pieces.count());
        out
    }

    fn join(reassembler: &mut Reassembler, text: &[u8], origin: Origin) -> Option<Vec<u8>> {
        let (mut text, mut out) = (text.to_vec(), Vec::new());
        match reassembler.push(&mut text, origin, &mut out) {
            FragmentResult::Whole(packet) => Some(packet.to_vec()),
            FragmentResult::Complete => Some(out),
            FragmentResult::Waiting | FragmentResult::Bad => None,
        }
    }

    #[test]
    fn the_forms_on_the_wire() {
        let mut sequence = 4;
        assert_eq!(cut(b"abc", 100, &mut sequence), [b"\0\0\0\0abc".to_vec()]);
        assert_eq!(sequence, 4, "whole packets have no number");
        let pieces = cut(&packet(0, 250), 101, &mut sequence);
        assert_eq!(sequence, 5);
        let words: Vec<u32> =
            pieces.iter().map(|p| u32::from_be_bytes(*p.first_chunk().unwrap())).collect();
        // 250 bytes in three fragments of 84 bytes and a shorter one: kind, number 5, fragment; the size in the last.
        assert_eq!(words, [1 | 5 << 2, 1 | 5 << 2 | 1 << 10, 2 | 5 << 2 | 2 << 10 | 21 << 15]);
    }

    #[test]
    fn a_small_rest_is_shared_among_all() {
        for (len, most, size) in
            [(1500, 1300, 752), (1400, 1300, 700), (2600, 1300, 1300), (2500, 1300, 1300)]
        {
            assert_eq!(fragment_size(len, most), size, "{len} in pieces of {most}");
        }
        assert_eq!(fragment_size(100, 3), 0);
    }

    /// Once, a size too small for a fragment caused a division by zero.
    #[test]
    fn cve_2023_46849_no_size_of_pieces_divides_by_zero() {
        for most in (0..16).chain([usize::MAX - 1, usize::MAX]) {
            for len in [0, 1, 3, 4, 5, 99, 100, 1500, 65_535] {
                let (mut sequence, mut text) = (0, vec![7; HEADER + len]);
                let Some(mut pieces) = Fragments::new(&mut text, most, &mut sequence) else {
                    assert!(len > most, "{len} in pieces of {most}");
                    continue;
                };
                let count = pieces.count();
                assert_eq!(std::iter::from_fn(|| pieces.next().map(<[u8]>::len)).count(), count);
            }
        }
    }

    #[test]
    fn headers_that_are_never_sent_are_bad() {
        let mut reassembler = Reassembler::default();
        let mut out = Vec::new();
        let mut bad = |word: u32, body: &[u8]| {
            let mut text = [&word.to_be_bytes(), body].concat();
            reassembler.push(&mut text, origin(1), &mut out) == FragmentResult::Bad
        };
        assert!(bad(3, b"abcd"), "a kind that is never sent");
        assert!(bad(1 << 2, b"abcd"), "a whole packet with a number");
        assert!(bad(1 << 10, b"abcd"), "a whole packet with a piece");
        assert!(bad(1, b""), "an empty piece");
        assert!(bad(2, b"abcd"), "a last piece of which the others have no size");
        assert!(bad(2 | 1 << 15, b"abcde"), "a last piece larger than the others");
        assert!(bad(2 | 31 << 10 | 0x3fff << 15, b"abcd"), "beyond the longest packet");
        assert_eq!(reassembler.push(&mut [0, 0, 0], origin(1), &mut out), FragmentResult::Bad);
        assert!(reassembler.partial.is_empty());
    }

    #[test]
    fn pieces_that_contradict_each_other_end_the_packet() {
        let mut sequence = 0;
        let pieces = cut(&packet(0, 250), 100, &mut sequence);
        for twist in 0..3 {
            let mut reassembler = Reassembler::default();
            let mut out = Vec::new();
            let mut second = pieces[1].clone();
            match twist {
                0 => second = pieces[0].clone(),
                1 => second.truncate(60),
                _ => second.push(0),
            }
            let mut first = pieces[0].clone();
            assert_eq!(reassembler.push(&mut first, origin(1), &mut out), FragmentResult::Waiting);
            assert_eq!(reassembler.push(&mut second, origin(2), &mut out), FragmentResult::Bad);
            assert_eq!(
                (reassembler.partial.len(), reassembler.held, reassembler.take_lost()),
                (0, 0, 1)
            );
        }
    }

    #[test]
    fn a_number_that_comes_again_does_not_mix_two_packets() {
        // All fragments in between are lost: 256 packets later the number is the same.
        let (mut sequence, mut later) = (0, 0);
        let old = cut(&packet(1, 150), 100, &mut sequence);
        let new = cut(&packet(2, 150), 100, &mut later);
        let mut reassembler = Reassembler::default();
        assert_eq!(join(&mut reassembler, &old[0], origin(1)), None);
        assert_eq!(join(&mut reassembler, &new[1], origin(514)), None, "of another packet");
        assert_eq!(join(&mut reassembler, &old[1], origin(2)), None, "of the one given up");
        assert_eq!(join(&mut reassembler, &new[0], origin(513)), Some(packet(2, 150)));
        // Another key starts with the same ids.
        assert_eq!(join(&mut reassembler, &old[0], origin(1)), None);
        let next = Origin { key: 1, ..origin(2) };
        assert_eq!(join(&mut reassembler, &new[1], next), None);
        assert_eq!(reassembler.take_lost(), 2);
    }

    #[test]
    fn what_waits_is_bounded_in_number_time_and_bytes() {
        let mut reassembler = Reassembler::default();
        let mut sequence = 0;
        for number in 0..100u64 {
            let pieces = cut(&packet(0, 150), 100, &mut sequence);
            join(&mut reassembler, &pieces[0], origin(number));
        }
        assert_eq!((reassembler.partial.len(), reassembler.take_lost()), (MAX_WAITING, 75));
        let late = Origin { now: Instant::from_nanos(2) + TIMEOUT, ..origin(200) };
        join(&mut reassembler, &cut(&packet(0, 150), 100, &mut sequence)[0], late);
        assert_eq!((reassembler.partial.len(), reassembler.take_lost()), (1, 25));
        let mut most = 0;
        for number in 0..100u64 {
            let pieces = cut(&packet(0, 60_000), 2000, &mut sequence);
            for piece in pieces.iter().skip(1) {
                join(&mut reassembler, piece, Origin { packet_id: 300 + number, ..late });
            }
            most = most.max(reassembler.held);
            assert_eq!(
                reassembler.held,
                reassembler.partial.iter().map(|p| p.text.len()).sum::<usize>()
            );
        }
        assert!(most <= MAX_HELD && most > MAX_HELD - 64_000, "{most}");
    }

    #[test]
    fn what_takes_too_many_pieces_is_refused() {
        let mut text = vec![0; HEADER + 33 * 40];
        assert!(Fragments::new(&mut text, 40, &mut 0).is_none());
        assert!(Fragments::new(&mut text[..HEADER + 32 * 40], 40, &mut 0).is_some());
        assert!(Fragments::new(&mut text, 3, &mut 0).is_none());
        assert!(Fragments::new(&mut [0; 3], 40, &mut 0).is_none());
    }

    proptest! {
        #[test]
        fn what_is_cut_comes_together(len in 0usize..9000, most in 300usize..9500, start: u8) {
            let (mut sequence, mut reassembler) = (start, Reassembler::default());
            let pieces = cut(&packet(3, len), most, &mut sequence);
            let (last, rest) = pieces.split_last().unwrap();
            for (i, piece) in rest.iter().enumerate() {
                prop_assert!(piece.len() <= most + HEADER);
                prop_assert_eq!(piece.len() % 4, 0);
                prop_assert_eq!(join(&mut reassembler, piece, origin(i as u64)), None);
            }
            prop_assert_eq!(join(&mut reassembler, last, origin(99)), Some(packet(3, len)));
            prop_assert_eq!((reassembler.held, reassembler.take_lost()), (0, 0));
        }

        /// Loss, reordering and repetition, over more packets than there are sequence numbers: every reassembled packet
        /// equals one that was sent.
        #[test]
        fn no_packet_comes_out_wrong(
            lens in proptest::collection::vec(1usize..600, 300..700),
            fate in proptest::collection::vec((0u8..10, 0usize..40, any::<u16>()), 50..200),
        ) {
            let (mut sequence, mut id) = (0, 0u64);
            let mut wire = Vec::new();
            for (number, len) in lens.iter().enumerate() {
                for piece in cut(&packet(number, *len), 60, &mut sequence) {
                    id += 1;
                    wire.push((id, piece));
                }
            }
            for (i, (kind, near, far)) in fate.iter().enumerate() {
                let at = (i * 7919 + usize::from(*far)) % wire.len();
                let other = (at + near) % wire.len();
                match kind {
                    0..6 => wire.swap(at, other),
                    6 => { let copy = wire[at].clone(); wire.insert(other, copy); }
                    // A long loss, of more packets than there are numbers.
                    7 => { wire.drain(at..(at + 700).min(wire.len())); }
                    _ => { wire.remove(at); }
                }
                if wire.len() < 10 { break; }
            }
            let mut reassembler = Reassembler::default();
            for (id, piece) in wire {
                if let Some(out) = join(&mut reassembler, &piece, origin(id)) {
                    prop_assert!(
                        lens.iter().enumerate().any(|(n, len)| packet(n, *len) == out),
                        "a packet of {} bytes that was never sent", out.len()
                    );
                }
                prop_assert!(reassembler.partial.len() <= MAX_WAITING && reassembler.held <= MAX_HELD);
            }
        }

        #[test]
        fn nothing_received_panics(
            texts in proptest::collection::vec(
                (0u32..4, 0u32..4, 0u32..32, 0u32..0x4000, 0usize..50, 0u64..600), 0..200)
        ) {
            let (mut reassembler, mut out) = (Reassembler::default(), Vec::new());
            for (kind, sequence, number, size, len, id) in texts {
                let word = kind | sequence << 2 | number << 10 | size << 15;
                let mut text = [&word.to_be_bytes()[..], &vec![7; len]].concat();
                let _ = reassembler.push(&mut text, origin(id), &mut out);
                prop_assert!(reassembler.held <= MAX_HELD);
            }
        }
    }
}
