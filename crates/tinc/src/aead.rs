//! The authenticated encryption of SPTPS: ChaCha20 and Poly1305, but not the AEAD of RFC 8439.
//!
//! ChaCha20 is the original form with a 64-bit block counter. Its nonce is the record's sequence number, big-endian. The first
//! 32 bytes of block 0 are the key of Poly1305, and encryption begins with block 1. The tag covers the ciphertext alone,
//! without padding and lengths.

use adit_crypto::constant_time_eq;
use chacha20::ChaCha20Legacy;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use poly1305::universal_hash::{KeyInit, UniversalHash};
use poly1305::{Block, Poly1305};
use zeroize::Zeroizing;

/// Length of a key, bytes.
pub const KEY_LEN: usize = 32;

/// Length of a tag, bytes.
pub const TAG_LEN: usize = 16;

/// Length of a block of ChaCha20, bytes.
const BLOCK: usize = 64;

/// The tag does not belong to this key, sequence number and ciphertext.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Forged;

/// The key of one direction of a session.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; KEY_LEN]>);

impl Key {
    /// Creates a key from its bytes.
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Encrypts `data` in place and returns its tag. No sequence number may be used twice under one key.
    #[must_use]
    pub fn seal(&self, seqno: u32, data: &mut [u8]) -> [u8; TAG_LEN] {
        let (mut cipher, mac) = self.start(seqno);
        cipher.apply_keystream(data);
        authenticate(mac, data)
    }

    /// Verifies the tag, and then decrypts `data` in place.
    ///
    /// # Errors
    /// Fails if the tag is wrong. `data` is then unchanged, so that another key can be tried.
    pub fn open(&self, seqno: u32, data: &mut [u8], tag: &[u8]) -> Result<(), Forged> {
        let (mut cipher, mac) = self.start(seqno);
        let expected = authenticate(mac, data);
        if !constant_time_eq(&expected, tag) {
            return Err(Forged);
        }
        cipher.apply_keystream(data);
        Ok(())
    }

    /// Returns the cipher at block 1, and the MAC with the key from block 0.
    fn start(&self, seqno: u32) -> (ChaCha20Legacy, Poly1305) {
        let nonce = u64::from(seqno).to_be_bytes();
        let mut cipher = ChaCha20Legacy::new((&*self.0).into(), (&nonce).into());
        let mut block = Zeroizing::new([0; BLOCK]);
        cipher.apply_keystream(&mut *block);
        let mut mac_key = Zeroizing::new([0; KEY_LEN]);
        for (to, from) in mac_key.iter_mut().zip(block.iter()) {
            *to = *from;
        }
        (cipher, Poly1305::new((&*mac_key).into()))
    }
}

/// Computes the tag of `data`.
fn authenticate(mut mac: Poly1305, data: &[u8]) -> [u8; TAG_LEN] {
    let (blocks, rest) = Block::slice_as_chunks(data);
    // Several blocks at once, which `compute_unpadded` does not do.
    mac.update(blocks);
    mac.compute_unpadded(rest).into()
}

// Written by hand so that keys never reach a log.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    #[test]
    fn the_vectors_of_the_specification() {
        let key = Key::new([0; 32]);
        assert_eq!(key.seal(0, &mut []).as_slice(), hex("bdd219b8a08ded1aa836efcc8b770dc7"));
        let key = Key::new(std::array::from_fn(|index| u8::try_from(index).unwrap()));
        let mut record = b"\0hello".to_vec();
        let tag = key.seal(2, &mut record);
        record.extend(tag);
        assert_eq!(record, hex("4da2d59b6612bb89f93da1d78a1c38572b26125fa88e"));
        assert_eq!(format!("{key:?}"), "Key(..)");
    }

    proptest! {
        #[test]
        fn data_opens_only_unchanged_under_its_key_and_number(
            plain in proptest::collection::vec(any::<u8>(), 0..200),
            seqno: u32,
            at: prop::sample::Index,
            flip in 1..=255_u8,
        ) {
            let key = Key::new([7; 32]);
            let mut sealed = plain.clone();
            let tag = key.seal(seqno, &mut sealed);
            let mut data = sealed.clone();
            prop_assert_eq!(key.open(seqno.wrapping_add(1), &mut data, &tag), Err(Forged));
            prop_assert_eq!(Key::new([8; 32]).open(seqno, &mut data, &tag), Err(Forged));
            prop_assert_eq!(key.open(seqno, &mut data, &tag[..15]), Err(Forged));
            prop_assert_eq!(&data, &sealed, "a refused record is unchanged");
            let mut altered = [&sealed[..], &tag].concat();
            let at = at.index(altered.len());
            altered[at] ^= flip;
            let (body, other) = altered.split_at_mut(sealed.len());
            prop_assert_eq!(key.open(seqno, body, other), Err(Forged));
            prop_assert_eq!(key.open(seqno, &mut data, &tag), Ok(()));
            prop_assert_eq!(data, plain);
        }
    }
}
