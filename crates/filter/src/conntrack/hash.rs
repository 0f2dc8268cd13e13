/// SipHash-1-3 of a few words with a secret key, as in the standard library's maps: a sender who
/// chooses addresses and ports cannot choose their place in the table. Implemented here because the
/// standard one takes no key of ours and costs twice as much on so few words.
#[derive(Copy, Clone)]
pub(super) struct Seed([u64; 2]);

impl Seed {
    pub(super) fn new(seed: [u8; 16]) -> Self {
        let whole = u128::from_le_bytes(seed);
        Self([whole as u64, (whole >> 64) as u64])
    }

    #[inline]
    pub(super) fn hash<const N: usize>(&self, words: [u64; N]) -> u64 {
        let [k0, k1] = self.0;
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        // The last word contains the length in bytes and the remaining bytes, of which there are
        // none.
        let last = (N as u64).wrapping_mul(8) << 56;
        for word in words.into_iter().chain([last]) {
            v[3] ^= word;
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        round(&mut v);
        round(&mut v);
        round(&mut v);
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[inline]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
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
