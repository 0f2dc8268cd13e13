//! Bytes by which tests recognise what they have sent.
//!
//! The pattern's period is no power of two, so that a block that is missing or comes twice shows. It is copied and compared in large pieces,
//! because the tests handle gigabytes of it.

use std::iter::from_fn;
use std::sync::LazyLock;

/// The number of bytes after which the pattern repeats.
const PERIOD: u8 = 251;

/// The number of periods in [`BLOCK`].
const PERIODS: usize = 256;

static BLOCK: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..PERIOD).collect::<Vec<u8>>().repeat(PERIODS));

/// Returns this many bytes of the pattern from a position on.
pub fn bytes(position: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    pieces(position, len).for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Returns whether these are the bytes of the pattern from a position on.
pub fn matches(position: usize, mut bytes: &[u8]) -> bool {
    pieces(position, bytes.len()).all(|piece| match bytes.strip_prefix(piece) {
        Some(rest) => {
            bytes = rest;
            true
        }
        None => false,
    })
}

fn pieces(mut position: usize, mut len: usize) -> impl Iterator<Item = &'static [u8]> {
    from_fn(move || {
        let (_, rest) = BLOCK.split_at_checked(position % usize::from(PERIOD))?;
        let piece = rest.get(..len).unwrap_or(rest);
        position += piece.len();
        len -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_the_same_wherever_it_begins() {
        let period = usize::from(PERIOD);
        let whole = bytes(0, 3 * period * PERIODS);
        assert!(whole.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % period));
        for (position, len) in [(0, 0), (1, 0), (250, 1), (251, 2), (70_000, 100_000)] {
            let part = &whole[position..position + len];
            assert_eq!(bytes(position, len), part);
            assert!(matches(position, part));
        }
        assert!(!matches(1, &whole));
        let mut altered = whole;
        altered[150_000] ^= 1;
        assert!(!matches(0, &altered));
    }
}
