//! Seeded randomness, the same on every machine, so a seed identifies a failing case.

use std::ops::RangeInclusive;

/// `SplitMix64`, for which any seed is suitable.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `range`.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (first, last) = (*range.start(), *range.end());
        let count = last.saturating_sub(first).wrapping_add(1);
        if count == 0 { self.bits() } else { first + self.bits() % count }
    }

    /// Returns an index below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.bits() % (count.max(1) as u64)).unwrap_or(0)
    }

    /// Returns true with this probability in percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.bits() % 100 < chance
    }

    /// Returns a random element of `values`, which must not be empty.
    pub fn pick<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        &values[self.below(values.len())]
    }

    /// Returns 16 bits.
    pub fn word(&mut self) -> u16 {
        self.bits() as u16
    }

    /// Returns this many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }
}
