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

/// Datagrams of this length; the last may be shorter.
#[derive(Copy, Clone)]
pub(super) struct Datagrams(pub usize);

impl RunLayout for Datagrams {
    const LOSSLESS: bool = false;

    fn count(self, run: &[u8]) -> usize {
        run.len().div_ceil(self.0)
    }

    fn longest(self, run: &[u8]) -> usize {
        self.0.min(run.len())
    }

    #[inline]
    fn packets(self, run: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
        run.chunks_mut(self.0)
    }

    fn trains(self, run: &mut [u8]) -> impl Iterator<Item = (usize, &mut [u8])> {
        [(self.0, run)].into_iter()
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

/// Splits off the leading datagrams that share the first one's first bytes.
pub(super) fn split_run(data: &mut [u8], segment: usize, prefix: usize) -> (&mut [u8], &mut [u8]) {
    let lead = data.get(..prefix);
    let same = data.chunks(segment).take_while(|datagram| datagram.get(..prefix) == lead);
    let len = same.map(<[u8]>::len).sum::<usize>().max(segment.min(data.len()));
    data.split_at_mut(len)
}
