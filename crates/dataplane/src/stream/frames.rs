//! Framing of packets on a stream: each is preceded by its length, `u16` big-endian. No I/O, no copies.

use crate::format::Format;

/// The number of bytes of a length field.
pub const LENGTH: usize = 2;

/// Packets at the start of a buffer that have the same first bytes, and so one peer and one key.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Run {
    /// The length of the run in bytes, length fields included.
    pub len: usize,
    /// The number of packets in the run.
    pub count: usize,
    /// The kind of bytes that follow.
    pub next: Next,
}

/// The kind of bytes that follow a run.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Next {
    /// A packet with different first bytes.
    Other,
    /// A part of a packet, or no bytes.
    Partial,
    /// A length of 0 or above the maximum.
    Bad,
}

/// Reads the length at the start of `bytes`; `None` if it is incomplete.
#[inline]
fn length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|length| usize::from(u16::from_be_bytes(*length)))
}

/// Returns the packet at the start of `bytes`, if it is complete; `Err` gives the reason why there is none.
#[inline]
fn first(bytes: &[u8], max: usize) -> Result<&[u8], Next> {
    let length = length(bytes).ok_or(Next::Partial)?;
    if length == 0 || length > max {
        return Err(Next::Bad);
    }
    bytes.get(LENGTH..LENGTH.saturating_add(length)).ok_or(Next::Partial)
}

/// Finds the run at the start of `bytes`. `max` is the longest valid packet; with `headerless`, packets belong to one
/// run whatever their first bytes are.
#[inline]
pub fn run<F: Format>(bytes: &[u8], max: usize, headerless: bool) -> Run {
    let mut run = Run { len: 0, count: 0, next: Next::Other };
    let head = match first(bytes, max) {
        Ok(head) => head,
        Err(next) => return Run { next, ..run },
    };
    let prefix = match F::header(head) {
        _ if headerless => 0,
        Some(header) => header.len,
        // Too short for its header, so its peer is unknown and it forms its own run.
        None => return Run { len: LENGTH.saturating_add(head.len()), count: 1, ..run },
    };
    let head = head.get(..prefix);
    let mut rest = bytes;
    run.next = loop {
        match first(rest, max) {
            Ok(packet) if packet.get(..prefix) == head => {
                let taken = LENGTH.saturating_add(packet.len());
                run.len = run.len.saturating_add(taken);
                run.count = run.count.saturating_add(1);
                rest = rest.get(taken..).unwrap_or(&[]);
            }
            Ok(_) => break Next::Other,
            Err(next) => break next,
        }
    };
    run
}

/// The packets of a run, without their lengths.
#[derive(Debug)]
pub struct Packets<'a>(&'a mut [u8]);

impl<'a> Packets<'a> {
    /// Iterates over the packets that [`run`] found.
    pub fn new(run: &'a mut [u8]) -> Self {
        Self(run)
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = &'a mut [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a mut [u8]> {
        let bytes = std::mem::take(&mut self.0);
        let (length, rest) = bytes.split_first_chunk_mut::<LENGTH>()?;
        let (packet, rest) = rest.split_at_mut_checked(u16::from_be_bytes(*length).into())?;
        self.0 = rest;
        Some(packet)
    }
}

/// Returns the length of the longest packet of a run.
pub(crate) fn longest(mut run: &[u8]) -> usize {
    let mut longest = 0;
    while let Some(length) = length(run) {
        longest = longest.max(length);
        run = run.get(LENGTH.saturating_add(length)..).unwrap_or(&[]);
    }
    longest
}

/// Returns how far a send of `sent` bytes has progressed in back-to-back packets: the number of complete packets, and
/// the remaining bytes of the packet that is partly sent.
pub(crate) fn progress(packets: &[u8], sent: usize) -> (usize, usize) {
    let (mut whole, mut end) = (0usize, 0usize);
    while end < sent {
        let rest = packets.get(end..).unwrap_or(&[]);
        let Some(length) = length(rest) else { return (whole, 0) };
        end = end.saturating_add(LENGTH).saturating_add(length);
        if end <= sent {
            whole = whole.saturating_add(1);
        }
    }
    (whole, end.saturating_sub(sent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::trivial::{CONTROL, DATA, Trivial};

    fn framed(packets: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for packet in packets {
            out.extend_from_slice(&(packet.len() as u16).to_be_bytes());
            out.extend_from_slice(packet);
        }
        out
    }

    #[test]
    fn a_run_ends_where_peer_key_or_kind_change() {
        let data = [DATA, 0, 0, 5, 1];
        let other_peer = [DATA, 0, 0, 6, 1];
        let bytes = framed(&[&data, &data, &other_peer]);
        assert_eq!(
            run::<Trivial>(&bytes, 100, false),
            Run { len: 14, count: 2, next: Next::Other }
        );
        assert_eq!(
            run::<Trivial>(&bytes[14..], 100, false),
            Run { len: 7, count: 1, next: Next::Partial }
        );
        // A packet that is too short for its header forms its own run.
        let bytes = framed(&[&[DATA, 0], &data]);
        assert_eq!(run::<Trivial>(&bytes, 100, false), Run { len: 4, count: 1, next: Next::Other });
        // If a packet names no peer, only the first byte counts.
        let bytes = framed(&[&[CONTROL, 1], &[CONTROL, 2], &[CONTROL + 1, 2]]);
        assert_eq!(run::<Trivial>(&bytes, 100, false), Run { len: 8, count: 2, next: Next::Other });
    }

    #[test]
    fn lengths_of_zero_and_above_the_maximum_are_bad() {
        assert_eq!(
            run::<Trivial>(&[0, 0, 1, 2], 100, false),
            Run { len: 0, count: 0, next: Next::Bad }
        );
        assert_eq!(
            run::<Trivial>(&[0, 101], 100, false).next,
            Next::Bad,
            "seen before the packet is there"
        );
        assert_eq!(run::<Trivial>(&[0, 100], 100, false).next, Next::Partial);
        let bytes = [framed(&[&[7]]), vec![0, 0]].concat();
        assert_eq!(run::<Trivial>(&bytes, 100, false), Run { len: 3, count: 1, next: Next::Bad });
        for short in [&[][..], &[0]] {
            assert_eq!(
                run::<Trivial>(short, 100, false),
                Run { len: 0, count: 0, next: Next::Partial }
            );
        }
    }

    #[test]
    fn progress_names_the_packet_that_has_begun() {
        let bytes = framed(&[&[1; 3], &[2; 4]]);
        let left: Vec<_> = (0..=11).map(|sent| progress(&bytes, sent)).collect();
        let first = [(0, 0), (0, 4), (0, 3), (0, 2), (0, 1), (1, 0)];
        assert_eq!(left[..6], first);
        assert_eq!(left[6..], [(1, 5), (1, 4), (1, 3), (1, 2), (1, 1), (2, 0)]);
    }

    proptest! {
        /// Runs cover exactly the whole packets, in order, for any bytes.
        #[test]
        fn runs_are_the_packets_again(
            packets in proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 1..9),
                    Just(vec![DATA, 0, 0, 1, 9]),
                ],
                0..30,
            ),
            cut in 0usize..100,
        ) {
            let whole = framed(&packets.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut bytes = whole[..whole.len().saturating_sub(cut)].to_vec();
            let mut found = Vec::new();
            let mut rest = &mut bytes[..];
            loop {
                let Run { len, count, next } = run::<Trivial>(rest, 100, false);
                let (here, after) = rest.split_at_mut(len);
                let before = found.len();
                found.extend(Packets::new(here).map(|packet| packet.to_vec()));
                prop_assert_eq!(found.len() - before, count);
                rest = after;
                if next != Next::Other {
                    prop_assert_eq!(next, Next::Partial);
                    break;
                }
            }
            prop_assert_eq!(&found[..], &packets[..found.len()]);
            let kept = packets.get(found.len()).map_or(0, |packet| packet.len() + LENGTH);
            prop_assert!(rest.len() < kept.max(1));
        }

        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), max in 0usize..70) {
            let Run { len, count, .. } = run::<Trivial>(&bytes, max, false);
            prop_assert!(len <= bytes.len());
            prop_assert_eq!(Packets::new(&mut bytes[..len]).count(), count);
            let _ = progress(&bytes, max);
        }
    }
}
