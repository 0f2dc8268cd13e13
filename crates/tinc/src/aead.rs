//! The authenticated encryption of SPTPS.
//!
//! tinc has one cipher: [ChaCha20 and Poly1305](adit_crypto::chacha20), but not the AEAD of RFC 8439. Its nonce is the record's sequence number.
//!
//! Two nodes of adit, and nodes that are configured for it, use AES-256-GCM instead, without associated data. Its nonce is the sequence number
//! as well, after 8 zero bytes.

use std::sync::Arc;

use adit_crypto::aead::CounterKey;
use adit_crypto::chacha20::ChaChaKey;
use zeroize::Zeroizing;

/// Length of a key, bytes.
pub const KEY_LEN: usize = 32;

/// Length of a tag, bytes.
pub const TAG_LEN: usize = 16;

/// The number of AES-256-GCM in OpenSSL, by which tinc names the ciphers of tinc 1.0.
pub const AES_256_GCM_NUMBER: i32 = 901;

/// A cipher of sessions.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cipher {
    /// tinc's cipher.
    #[default]
    ChaCha20Poly1305,
    /// AES-256-GCM, which tinc lacks.
    Aes256Gcm,
}

impl std::fmt::Display for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
            Self::Aes256Gcm => "AES-256-GCM",
        })
    }
}

/// The cryptographic library failed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Failed;

/// The tag does not belong to this key, sequence number and ciphertext.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Forged;

/// The key of one direction of a session.
#[derive(Clone)]
pub struct Key(Inner);

#[derive(Clone)]
enum Inner {
    ChaCha20(ChaChaKey),
    Aes(Arc<CounterKey>),
}

impl Key {
    /// Creates a key from its bytes.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn new(cipher: Cipher, bytes: [u8; KEY_LEN]) -> Result<Self, Failed> {
        let bytes = Zeroizing::new(bytes);
        Ok(Self(match cipher {
            Cipher::ChaCha20Poly1305 => Inner::ChaCha20(ChaChaKey::new(&bytes)),
            Cipher::Aes256Gcm => Inner::Aes(Arc::new(CounterKey::new(&bytes).map_err(|_| Failed)?)),
        }))
    }

    /// Returns the cipher.
    pub const fn cipher(&self) -> Cipher {
        match self.0 {
            Inner::ChaCha20(_) => Cipher::ChaCha20Poly1305,
            Inner::Aes(_) => Cipher::Aes256Gcm,
        }
    }

    /// Encrypts `data` in place and returns its tag. No sequence number may be used twice under one key.
    ///
    /// # Errors
    /// The cryptographic library failed. `data` is then undefined, and must not be sent.
    #[inline]
    pub fn seal(&self, seqno: u32, data: &mut [u8]) -> Result<[u8; TAG_LEN], Failed> {
        match &self.0 {
            Inner::ChaCha20(key) => Ok(key.seal(seqno.into(), data)),
            Inner::Aes(key) => key.seal(seqno.into(), &[], data).map_err(|_| Failed),
        }
    }

    /// Verifies the tag, and decrypts `data` in place.
    ///
    /// # Errors
    /// Fails if the tag is wrong. `data` is then undefined.
    #[inline]
    pub fn open(&self, seqno: u32, data: &mut [u8], tag: &[u8]) -> Result<(), Forged> {
        match &self.0 {
            Inner::ChaCha20(key) => key.open(seqno.into(), data, tag).map_err(|_| Forged),
            Inner::Aes(key) => {
                let tag = tag.try_into().map_err(|_| Forged)?;
                key.open(seqno.into(), &[], tag, data).map_err(|_| Forged)
            }
        }
    }
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

    const CIPHERS: [Cipher; 2] = [Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm];

    fn key(cipher: Cipher, bytes: [u8; KEY_LEN]) -> Key {
        let key = Key::new(cipher, bytes).unwrap();
        assert_eq!(key.cipher(), cipher);
        key
    }

    #[test]
    fn the_vectors_of_the_specification() {
        let zero = key(Cipher::ChaCha20Poly1305, [0; 32]);
        let tag = zero.seal(0, &mut []).unwrap();
        assert_eq!(tag.as_slice(), hex("bdd219b8a08ded1aa836efcc8b770dc7"));
        let counted = std::array::from_fn(|index| u8::try_from(index).unwrap());
        let counted = key(Cipher::ChaCha20Poly1305, counted);
        let mut record = b"\0hello".to_vec();
        let tag = counted.seal(2, &mut record).unwrap();
        record.extend(tag);
        assert_eq!(record, hex("4da2d59b6612bb89f93da1d78a1c38572b26125fa88e"));
        assert_eq!(format!("{counted:?}"), "Key(..)");
    }

    /// Test cases 13 and 14 of the specification of GCM (McGrew and Viega): a zero key and a zero nonce, and so the sequence number 0.
    #[test]
    fn aes_is_that_of_its_specification() {
        let zero = key(Cipher::Aes256Gcm, [0; 32]);
        let tag = zero.seal(0, &mut []).unwrap();
        assert_eq!(tag.as_slice(), hex("530f8afbc74536b9a963b4f1c4cb738b"));
        let mut block = [0; 16];
        let tag = zero.seal(0, &mut block).unwrap();
        assert_eq!(block.as_slice(), hex("cea7403d4d606b6e074ec5d3baf39d18"));
        assert_eq!(tag.as_slice(), hex("d0d1c8a799996bf0265b98b5d48ab919"));
    }

    /// Specification 18.2: the nonce is 8 zero bytes, and the sequence number in network order.
    #[test]
    fn the_nonce_of_aes_is_the_sequence_number() {
        let other = CounterKey::new(&[7; 32]).unwrap();
        let (mut one, mut two) = (*b"record", *b"record");
        let tag = key(Cipher::Aes256Gcm, [7; 32]).seal(0x0102_0304, &mut one).unwrap();
        assert_eq!(other.seal(0x0102_0304, &[], &mut two), Ok(tag));
        assert_eq!(one, two);
    }

    proptest! {
        #[test]
        fn data_opens_only_unchanged_under_its_key_and_number(
            plain in proptest::collection::vec(any::<u8>(), 0..200),
            seqno: u32,
            at: prop::sample::Index,
            flip in 1..=255_u8,
        ) {
            for cipher in CIPHERS {
                let right = key(cipher, [7; 32]);
                let mut sealed = plain.clone();
                let tag = right.seal(seqno, &mut sealed).unwrap();
                let open = |key: &Key, seqno: u32, data: &[u8], tag: &[u8]| {
                    let mut data = data.to_vec();
                    key.open(seqno, &mut data, tag).map(|()| data)
                };
                prop_assert_eq!(open(&right, seqno.wrapping_add(1), &sealed, &tag), Err(Forged));
                prop_assert_eq!(open(&key(cipher, [8; 32]), seqno, &sealed, &tag), Err(Forged));
                prop_assert_eq!(open(&right, seqno, &sealed, &tag[..15]), Err(Forged));
                for other in CIPHERS.into_iter().filter(|other| *other != cipher) {
                    prop_assert_eq!(open(&key(other, [7; 32]), seqno, &sealed, &tag), Err(Forged));
                }
                let mut altered = [&sealed[..], &tag].concat();
                let at = at.index(altered.len());
                altered[at] ^= flip;
                let (body, other) = altered.split_at(sealed.len());
                prop_assert_eq!(open(&right, seqno, body, other), Err(Forged));
                prop_assert_eq!(open(&right, seqno, &sealed, &tag), Ok(plain.clone()));
            }
        }
    }
}
