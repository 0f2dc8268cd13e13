//! ChaCha20 and Poly1305 as OpenSSH and tinc combine them, which is not the AEAD of RFC 8439.
//!
//! ChaCha20 is the original form, with a nonce of 64 bits and a block counter of 64 bits. The first 32 bytes of block 0 are the key of Poly1305,
//! and encryption begins with block 1. The tag covers the ciphertext alone, without padding and lengths.

use chacha20::ChaCha20Legacy;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use poly1305::universal_hash::{KeyInit, UniversalHash};
use poly1305::{Block, Poly1305};
use zeroize::Zeroizing;

use crate::aead::{AeadError, TAG_LEN};
use crate::constant_time_eq;

/// Length of a key, bytes.
const KEY_LEN: usize = 32;

/// Length of a block of ChaCha20, bytes.
const BLOCK: usize = 64;

/// The key of one direction.
#[derive(Clone)]
pub struct ChaChaKey(Zeroizing<[u8; KEY_LEN]>);

impl ChaChaKey {
    /// Creates a key from its bytes.
    pub fn new(bytes: &[u8; KEY_LEN]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// Encrypts `data` in place and returns its tag. No nonce may be used twice under one key; it is big-endian.
    pub fn seal(&self, nonce: u64, data: &mut [u8]) -> [u8; TAG_LEN] {
        let (mut cipher, mac) = self.start(nonce);
        cipher.apply_keystream(data);
        authenticate(mac, data)
    }

    /// Verifies the tag, and decrypts `data` in place.
    ///
    /// # Errors
    /// The tag is wrong. `data` is then unchanged.
    pub fn open(&self, nonce: u64, data: &mut [u8], tag: &[u8]) -> Result<(), AeadError> {
        let (mut cipher, mac) = self.start(nonce);
        if !constant_time_eq(&authenticate(mac, data), tag) {
            return Err(AeadError);
        }
        cipher.apply_keystream(data);
        Ok(())
    }

    /// Returns the cipher at block 1, and the MAC with the key from block 0.
    fn start(&self, nonce: u64) -> (ChaCha20Legacy, Poly1305) {
        let nonce = nonce.to_be_bytes();
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
impl std::fmt::Debug for ChaChaKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChaChaKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The encryption of zeros is the keystream from block 1 on (draft-strombergson-chacha-test-vectors-01, TC1: 256-bit key, 20 rounds).
    #[test]
    fn encryption_begins_with_block_one() {
        let mut zeros = [0; 16];
        ChaChaKey::new(&[0; KEY_LEN]).seal(0, &mut zeros);
        let block1 = [
            0x9f, 0x07, 0xe7, 0xbe, 0x55, 0x51, 0x38, 0x7a, 0x98, 0xba, 0x97, 0x7c, 0x73, 0x2d,
            0x08, 0x0d,
        ];
        assert_eq!(zeros, block1);
    }

    #[test]
    fn what_is_not_authentic_stays_as_it_is() {
        let key = ChaChaKey::new(&[7; KEY_LEN]);
        let mut data =
            *b"a record of more than one block of the cipher, which is sixty-four bytes long";
        let plain = data;
        let tag = key.seal(9, &mut data);
        let sealed = data;
        let mut other = tag;
        other[15] ^= 1;
        for (nonce, tag) in [(8, &tag[..]), (9, &other), (9, &tag[..15])] {
            assert_eq!(key.open(nonce, &mut data, tag), Err(AeadError));
            assert_eq!(data, sealed);
        }
        assert_eq!(key.open(9, &mut data, &tag), Ok(()));
        assert_eq!(data, plain);
    }
}
