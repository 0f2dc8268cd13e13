use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The engine's own randomness, from a seed that the driver injects.
pub struct Random(ChaCha20Rng);

impl Random {
    /// A generator that repeats for the same seed.
    pub fn new(seed: [u8; 32]) -> Self {
        Self(ChaCha20Rng::from_seed(seed))
    }

    /// Fresh bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Fills `buf`.
    pub fn fill(&mut self, buf: &mut [u8]) {
        self.0.fill_bytes(buf);
    }

    /// A number in `0..bound`; 0 for a bound of 0. The modulo bias is below 2^-32 for 32-bit bounds.
    pub fn below(&mut self, bound: u32) -> u32 {
        let wide = self.0.next_u64();
        u32::try_from(wide % u64::from(bound.max(1))).unwrap_or(0)
    }
}

// By hand: the state of the generator predicts its output.
impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}
