//! The Internet checksum (RFC 1071): whole, partial, and incremental (RFC 1624).

/// A ones' complement sum that has not been folded yet.
///
/// Words are added in the machine's byte order and swapped once at the end, which RFC 1071 section
/// 2(B) allows. The 64-bit sum also defers the carries to the end.
#[derive(Copy, Clone, Debug, Default)]
#[must_use]
pub struct Sum(u64);

/// Bytes per step of the wide loop.
const STRIDE: usize = 64;

impl Sum {
    /// Creates an empty sum.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds `data`, which must start at an even offset within the summed bytes. The sum of up to
    /// 2^32 bytes is exact.
    #[inline]
    pub fn bytes(self, data: &[u8]) -> Self {
        // Eight independent lanes, which the compiler keeps in vector registers.
        let mut lanes = [0u64; 8];
        let (strides, rest) = data.as_chunks::<STRIDE>();
        for stride in strides {
            let (low, high) = stride.split_at(STRIDE / 2);
            for half in [low, high] {
                for (lane, word) in lanes.iter_mut().zip(half.as_chunks::<4>().0) {
                    *lane = lane.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
                }
            }
        }
        let mut sum = lanes.iter().fold(self.0, |sum, lane| sum.wrapping_add(*lane));
        let (words, rest) = rest.as_chunks::<4>();
        for word in words {
            sum = sum.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
        }
        let mut last = [0u8; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        Self(sum.wrapping_add(u64::from(u32::from_ne_bytes(last))))
    }

    /// Adds one 16-bit field.
    #[inline]
    pub fn word(self, value: u16) -> Self {
        Self(self.0.wrapping_add(u64::from(value.to_be())))
    }

    /// Returns the sum folded to 16 bits but not inverted: the value of a checksum field whose
    /// computation is left to the kernel or the device.
    #[inline]
    pub fn fold(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff).wrapping_add(self.0 >> 32);
        let sum = (sum & 0xffff).wrapping_add(sum >> 16);
        let sum = (sum & 0xffff).wrapping_add(sum >> 16);
        let sum = (sum & 0xffff).wrapping_add(sum >> 16);
        u16::from_be((sum & 0xffff) as u16)
    }

    /// Returns the checksum: the inverted sum.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }
}

/// Returns the checksum after one 16-bit field changed from `from` to `to` (RFC 1624, equation 3).
#[inline]
pub fn update(checksum: u16, from: u16, to: u16) -> u16 {
    Sum::new().word(!checksum).word(!from).word(to).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::naive_checksum;
    use proptest::prelude::*;

    #[test]
    fn rfc_1071_example() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::new().bytes(&data).fold(), 0xddf2);
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_loop(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(Sum::new().bytes(&data).finish(), naive_checksum(&data));
        }

        #[test]
        fn may_be_taken_in_even_pieces(
            data in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..200,
        ) {
            let (a, b) = data.split_at((cut * 2).min(data.len() & !1));
            prop_assert_eq!(Sum::new().bytes(a).bytes(b).finish(), naive_checksum(&data));
        }

        #[test]
        fn incremental_update_is_as_good_as_a_new_sum(
            mut data in proptest::collection::vec(any::<u8>(), 20..60), to in any::<u16>(),
        ) {
            data[0] = 0x45; // an all-zero packet has two representations of its checksum
            let before = naive_checksum(&data);
            let from = u16::from_be_bytes([data[10], data[11]]);
            data[10..12].copy_from_slice(&to.to_be_bytes());
            prop_assert_eq!(update(before, from, to), naive_checksum(&data));
        }
    }
}
