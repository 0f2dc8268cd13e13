use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use zeroize::Zeroize;

/// The number of bytes generated at once.
const BUFFER: usize = 480;

/// The seed of a [`Random`]. It is zeroized on drop.
pub struct Seed(Box<[u8; Self::LEN]>);

impl Seed {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// Creates a seed that `fill` writes in place, so that no other copy exists.
    ///
    /// # Errors
    /// Fails as `fill` does.
    pub fn try_with<E>(fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut seed = Self(Box::new([0; Self::LEN]));
        fill(seed.0.as_mut_slice())?;
        Ok(seed)
    }
}

impl From<[u8; Self::LEN]> for Seed {
    fn from(mut bytes: [u8; Self::LEN]) -> Self {
        let seed = Self(Box::new(bytes));
        bytes.zeroize();
        seed
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// The engine's own random generator, from a seed that the driver injects. The same seed gives the same bytes.
///
/// Fast key erasure (D. J. Bernstein, "Fast-key-erasure random-number generators", 2017): each block of output begins
/// with the key of the next block, which replaces the current key, and bytes are erased as they are returned. A copy of
/// the state does not reveal any bytes returned earlier.
pub struct Random {
    /// On the heap, so that moving the generator leaves no copy of its state behind.
    state: Box<State>,
}

struct State {
    /// The key of the next block.
    key: [u8; Seed::LEN],
    buffer: [u8; BUFFER],
    /// The number of bytes of the buffer that were returned.
    used: usize,
}

impl Random {
    /// Creates a generator that gives the same bytes for the same seed.
    pub fn new(seed: impl Into<Seed>) -> Self {
        let seed = seed.into();
        let mut state = Box::new(State { key: [0; Seed::LEN], buffer: [0; BUFFER], used: BUFFER });
        state.key.copy_from_slice(seed.0.as_slice());
        Self { state }
    }

    /// Returns new random bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    /// Fills `buf` with random bytes.
    pub fn fill(&mut self, mut buf: &mut [u8]) {
        while !buf.is_empty() {
            if self.state.used >= BUFFER {
                self.state.refill();
            }
            let State { buffer, used, .. } = &mut *self.state;
            let left = buffer.get_mut(*used..).unwrap_or_default();
            let count = left.len().min(buf.len());
            let (now, later) = buf.split_at_mut(count);
            for (to, from) in now.iter_mut().zip(left) {
                *to = std::mem::take(from);
            }
            *used = used.saturating_add(count);
            buf = later;
        }
    }

    /// Returns a number in `0..bound`; 0 for a bound of 0. The modulo bias is below 2^-32 for 32-bit bounds.
    pub fn below(&mut self, bound: u32) -> u32 {
        let wide = u64::from_le_bytes(self.bytes());
        u32::try_from(wide % u64::from(bound.max(1))).unwrap_or(0)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.key.zeroize();
        self.buffer.zeroize();
    }
}

impl State {
    fn refill(&mut self) {
        let mut stream = ChaCha20Rng::from_seed(self.key);
        stream.fill_bytes(&mut self.key);
        stream.fill_bytes(&mut self.buffer);
        self.used = 0;
        // The library does not wipe its state. The read afterwards keeps the compiler from removing the write.
        stream = ChaCha20Rng::from_seed([0; Seed::LEN]);
        std::hint::black_box(&mut stream);
    }
}

// Written by hand because the state of the generator predicts its output.
impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes_in_whatever_portions() {
        let (mut whole, mut portions) = (Random::new([7; 32]), Random::new([7; 32]));
        let mut expected = [0; 5000];
        whole.fill(&mut expected);
        let mut got = Vec::new();
        while got.len() < expected.len() {
            let mut portion = vec![0; (got.len() % 97 + 1).min(expected.len() - got.len())];
            portions.fill(&mut portion);
            got.extend(portion);
        }
        assert_eq!(got, expected);
        assert_ne!(Random::new([8; 32]).bytes::<32>(), Random::new([7; 32]).bytes::<32>());
    }

    #[test]
    fn what_was_given_out_cannot_be_computed_from_the_state() {
        let mut random = Random::new([7; 32]);
        let given: Vec<[u8; 16]> = (0..100).map(|_| random.bytes()).collect();
        // The state does not contain the returned bytes, and they cannot be derived from its key.
        let State { key, buffer, used } = &*random.state;
        assert!(buffer[..*used].iter().all(|byte| *byte == 0));
        let state = [key.as_slice(), buffer].concat();
        let mut later = Random::new(*key);
        let later: Vec<u8> = later.bytes::<8192>().to_vec();
        for block in &given {
            assert!(!state.windows(16).any(|bytes| bytes == block));
            assert!(!later.windows(16).any(|bytes| bytes == block));
        }
        assert_ne!(*key, [7; 32], "the seed is gone");
    }
}
