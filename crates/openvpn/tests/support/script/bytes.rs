//! Reads the bytes of a script.

use std::time::Duration;

use adit_sim::{Impairment, Loss};

/// The remaining bytes of a script. After the end, all values are zero.
pub(super) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.next().unwrap_or_default()
    }

    pub(super) fn index(&mut self) -> usize {
        self.u8().into()
    }

    pub(super) fn choose<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[self.index() % N]
    }

    /// Reads a number of up to 127, and that many bytes.
    pub(super) fn bytes(&mut self) -> &'a [u8] {
        let len = self.index() % 128;
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Reads bytes like [`Self::bytes`] and returns them as printable text.
    pub(super) fn text(&mut self) -> String {
        let printable = |byte: &u8| if (b' '..=b'~').contains(byte) { *byte } else { b'?' };
        self.bytes().iter().map(|byte| char::from(printable(byte))).collect()
    }

    /// Reads the impairment of a link.
    pub(super) fn impairment(&mut self) -> Impairment {
        let byte = self.u8();
        Impairment {
            loss: match byte & 3 {
                0 => Loss::None,
                1 => Loss::Random(0.1),
                2 => Loss::Random(0.4),
                _ => Loss::Random(1.0),
            },
            duplicate: f64::from(byte >> 2 & 1) * 0.3,
            reorder: f64::from(byte >> 3 & 1) * 0.3,
            reorder_by: Duration::from_millis(80),
            delay: Duration::from_millis(u64::from(byte >> 4 & 3) * 15),
            jitter: Duration::from_millis(u64::from(byte >> 6 & 1) * 20),
        }
    }

    /// Creates a packet by altering a genuine one.
    pub(super) fn altered(&mut self, packet: &[u8], other: &[u8]) -> Vec<u8> {
        let mut packet = packet.to_vec();
        let (kind, at) = (self.u8() % 8, self.index());
        let at = at % packet.len().max(1);
        match kind {
            0 => {}
            1 => packet.truncate(at),
            2 => {
                let mask = self.u8();
                packet.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= mask);
            }
            3 => packet.extend_from_slice(self.bytes()),
            4 => {
                let first = self.u8();
                packet.iter_mut().take(1).for_each(|byte| *byte = first);
            }
            5 => {
                let value = self.bytes();
                packet.iter_mut().skip(at).zip(value).for_each(|(byte, new)| *byte = *new);
            }
            6 => {
                packet.truncate(at);
                packet.extend(other.iter().skip(at));
            }
            _ => drop(packet.drain(..at)),
        }
        packet
    }
}
