use siphasher::sip::SipHasher13;

/// SipHash-1-3 of a few words with a secret key, so that a sender who chooses addresses and ports cannot choose
/// their place in the table.
#[derive(Copy, Clone)]
pub(super) struct Seed(SipHasher13);

impl Seed {
    pub(super) fn new(seed: [u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(&seed))
    }

    #[inline]
    pub(super) fn hash<const N: usize>(&self, words: [u64; N]) -> u64 {
        self.0.hash(words.map(u64::to_le_bytes).as_flattened())
    }
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{DefaultHasher, Hasher};

    #[test]
    fn it_is_the_standard_librarys() {
        let mut standard = DefaultHasher::new();
        let words = [1, 0x8000_0000_0000_0000, u64::MAX, 0, 0x0123_4567_89ab_cdef];
        for word in words {
            standard.write(&word.to_le_bytes());
        }
        assert_eq!(Seed::new([0; 16]).hash(words), standard.finish());
        let mut standard = DefaultHasher::new();
        standard.write(&7u64.to_le_bytes());
        assert_eq!(Seed::new([0; 16]).hash([7]), standard.finish());
    }

    #[test]
    fn another_seed_gives_another_order() {
        let (one, other) = (Seed::new([1; 16]), Seed::new([2; 16]));
        assert!((0..64).any(|word| one.hash([word]) & 7 != other.hash([word]) & 7));
    }
}
