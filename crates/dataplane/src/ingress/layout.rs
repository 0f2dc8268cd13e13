//! The division of received bytes into runs, and of a run into packets.

use crate::stream::frames::{self, Packets};

/// The division of a run into packets.
pub(super) trait RunLayout: Copy {
    /// Whether the transport never changes, repeats or reorders packets. Then a packet that fails authentication or is repeated means that
    /// there is an attack, or that the ends are out of step.
    const LOSSLESS: bool;
    fn count(self, run: &[u8]) -> usize;
    /// Returns the length of the longest packet.
    fn longest(self, run: &[u8]) -> usize;
    fn packets(self, run: &mut [u8]) -> impl Iterator<Item = &mut [u8]>;
    /// Returns packets that are contiguous, with the length of each except the last of these.
    fn trains(self, run: &mut [u8]) -> impl Iterator<Item = (usize, &mut [u8])>;
}

/// The places of datagrams in a buffer.
#[derive(Copy, Clone)]
pub(crate) struct Datagrams {
    /// The length of each datagram; the last may be shorter.
    segment: usize,
    /// The distance between the starts of two datagrams.
    stride: usize,
}

impl Datagrams {
    /// Creates the places of datagrams of `segment` bytes, which begin `stride` bytes apart, in `data`.
    #[inline]
    pub(crate) fn new(segment: usize, stride: usize, data: &[u8]) -> Self {
        let segment = segment.clamp(1, data.len().max(1));
        Self { segment, stride: stride.max(segment) }
    }

    /// Returns whether there are other bytes between the datagrams.
    #[inline]
    pub(super) fn has_gaps(self) -> bool {
        self.stride > self.segment
    }

    /// Returns the first datagram.
    #[inline]
    pub(super) fn first(self, data: &[u8]) -> &[u8] {
        data.get(..self.segment).unwrap_or(data)
    }

    /// Splits off the leading datagrams that share the first one's first bytes.
    pub(super) fn split_run(self, data: &mut [u8], prefix: usize) -> (&mut [u8], &mut [u8]) {
        let lead = data.get(..prefix);
        let same = data.chunks(self.stride).take_while(|datagram| datagram.get(..prefix) == lead);
        let count = same.count().max(1);
        self.split(data, count)
    }

    /// Splits off this many datagrams, or all if there are fewer.
    pub(super) fn split(self, data: &mut [u8], count: usize) -> (&mut [u8], &mut [u8]) {
        let len = count.saturating_mul(self.stride);
        data.split_at_mut(len.min(data.len()))
    }
}

/// Removes the gap behind a datagram.
#[inline]
fn cut(chunk: &mut [u8], len: usize) -> &mut [u8] {
    let len = len.min(chunk.len());
    chunk.split_at_mut(len).0
}

impl RunLayout for Datagrams {
    const LOSSLESS: bool = false;

    fn count(self, run: &[u8]) -> usize {
        run.len().div_ceil(self.stride)
    }

    fn longest(self, run: &[u8]) -> usize {
        self.segment.min(run.len())
    }

    #[inline]
    fn packets(self, run: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
        run.chunks_mut(self.stride).map(move |chunk| cut(chunk, self.segment))
    }

    fn trains(self, run: &mut [u8]) -> impl Iterator<Item = (usize, &mut [u8])> {
        let whole = run.len().max(1);
        let (step, len) =
            if self.has_gaps() { (self.stride, self.segment) } else { (whole, whole) };
        run.chunks_mut(step).map(move |chunk| (self.segment, cut(chunk, len)))
    }
}

/// This many packets of a stream, each preceded by its length.
#[derive(Copy, Clone)]
pub(super) struct Framed(pub usize);

impl RunLayout for Framed {
    const LOSSLESS: bool = true;

    fn count(self, _: &[u8]) -> usize {
        self.0
    }

    fn longest(self, run: &[u8]) -> usize {
        frames::longest(run)
    }

    #[inline]
    fn packets(self, run: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
        Packets::new(run)
    }

    fn trains(self, run: &mut [u8]) -> impl Iterator<Item = (usize, &mut [u8])> {
        self.packets(run).map(|packet| (packet.len(), packet))
    }
}
