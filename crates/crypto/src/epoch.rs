//! The keys of the epoch data format: a chain of secrets, and an AEAD key derived from each.
//!
//! Each direction begins with epoch 1, whose secret is the first 32 bytes of its cipher key. All
//! derivations use HKDF-Expand with SHA-256 and labels in the format of TLS 1.3 labels, with the
//! prefix `ovpn ` (`openvpn-wire-protocol`, data channel, epoch format).

use std::fmt;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce,
    UnboundKey,
};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::aead::{AeadError, TAG_LEN};
use crate::{Cipher, DirectionKey, hkdf_expand_sha256};

const SECRET_LEN: usize = 32;
const NONCE_LEN: usize = 12;
const PREFIX: &[u8] = b"ovpn ";

/// The secret of one epoch and direction.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EpochSecret([u8; SECRET_LEN]);

/// The AEAD key of one epoch and direction. Seals or opens.
pub struct EpochKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

fn expand_label(secret: &[u8; SECRET_LEN], label: &[u8], out: &mut [u8]) -> Result<(), AeadError> {
    let out_len = u16::try_from(out.len()).map_err(|_| AeadError)?;
    let label_len =
        u8::try_from(PREFIX.len().saturating_add(label.len())).map_err(|_| AeadError)?;
    // The context is empty, so its length is the last byte.
    let lead = [out_len.to_be_bytes().as_slice(), &[label_len]].concat();
    hkdf_expand_sha256(secret, &[&lead, PREFIX, label, &[0]], out).map_err(|_| AeadError)
}

impl EpochSecret {
    /// Returns the secret of epoch 1.
    ///
    /// # Errors
    /// None in practice: the type guarantees a key of sufficient length.
    pub fn first(half: &DirectionKey) -> Result<Self, AeadError> {
        half.cipher.first_chunk().copied().map(Self).ok_or(AeadError)
    }

    /// Makes a secret of bytes that [`Self::as_bytes`] returned.
    pub const fn new(bytes: [u8; SECRET_LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub const fn as_bytes(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }

    /// Derives the secret of the next epoch.
    ///
    /// # Errors
    /// [`AeadError`]: the library failed.
    pub fn next(&self) -> Result<Self, AeadError> {
        let mut next = Self([0; SECRET_LEN]);
        expand_label(&self.0, b"datakey upd", &mut next.0)?;
        Ok(next)
    }

    /// Derives the key that protects the packets of this epoch.
    ///
    /// # Errors
    /// [`AeadError`]: the library failed.
    pub fn key(&self, cipher: Cipher) -> Result<EpochKey, AeadError> {
        let algorithm: &'static Algorithm = match cipher {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes192Gcm => &AES_192_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let mut material = Zeroizing::new([0; 32]);
        let material = material.get_mut(..cipher.key_len()).ok_or(AeadError)?;
        expand_label(&self.0, b"data_key", material)?;
        let unbound = UnboundKey::new(algorithm, material).map_err(|_| AeadError)?;
        let mut iv = [0; NONCE_LEN];
        expand_label(&self.0, b"data_iv", &mut iv)?;
        Ok(EpochKey { key: LessSafeKey::new(unbound), iv })
    }
}

impl EpochKey {
    /// Computes the nonce: the first 8 bytes of the IV are XORed with the packet id, and the rest
    /// is unchanged.
    #[inline]
    fn nonce(&self, packet_id: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, id) in nonce.iter_mut().zip(packet_id.to_be_bytes()) {
            *byte ^= id;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts `plain` into `out` (of the same length) and writes the tag. `packet_id` consists of
    /// epoch and counter, as on the wire, and must never be used twice with one key.
    ///
    /// # Errors
    /// [`AeadError`]: the lengths differ.
    #[inline]
    pub fn seal(
        &self,
        packet_id: u64,
        aad: &[u8],
        plain: &[u8],
        out: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) -> Result<(), AeadError> {
        let nonce = self.nonce(packet_id);
        self.key
            .seal_out_of_place_scatter(nonce, Aad::from(aad), plain, out, &[], tag)
            .map_err(|_| AeadError)
    }

    /// Decrypts `text` in place. On failure its contents are undefined.
    ///
    /// # Errors
    /// [`AeadError`]: the packet is not authentic.
    #[inline]
    pub fn open(
        &self,
        packet_id: u64,
        aad: &[u8],
        tag: &[u8; TAG_LEN],
        text: &mut [u8],
    ) -> Result<(), AeadError> {
        let nonce = self.nonce(packet_id);
        self.key
            .open_in_place_separate_tag(nonce, Aad::from(aad), tag, text)
            .map(|_| ())
            .map_err(|_| AeadError)
    }
}

// Written by hand so that keys never reach a log.
impl fmt::Debug for EpochSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpochSecret(..)")
    }
}

impl fmt::Debug for EpochKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpochKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the key used in test_ssl.c of the reference implementation.
    fn vector_key() -> DirectionKey {
        let text = b"abcdefgh01234567ABCDEFGHjkuchenl";
        let at = |i: usize| text[i % 32] ^ i as u8;
        DirectionKey { cipher: std::array::from_fn(at), hmac: std::array::from_fn(|i| at(i + 64)) }
    }

    const PLAIN: &[u8] = b"The quick little fox jumps over the bureaucratic hurdles";

    fn at_epoch(epoch: u16) -> EpochSecret {
        let mut secret = EpochSecret::first(&vector_key()).unwrap();
        for _ in 1..epoch {
            secret = secret.next().unwrap();
        }
        secret
    }

    #[test]
    fn the_reference_implementations_vector_of_epoch_4() {
        let key = at_epoch(4).key(Cipher::Aes256Gcm).unwrap();
        let aad = [7, 0, 0, 0x17, 0, 4, 0, 0, 0, 0, 0, 1];
        let (mut text, mut tag) = ([0; PLAIN.len()], [0; TAG_LEN]);
        key.seal(0x0004_0000_0000_0001, &aad, PLAIN, &mut text, &mut tag).unwrap();
        let hex: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0ffff5913d39d75b18573b5748589a7d");
        key.open(0x0004_0000_0000_0001, &aad, &tag, &mut text).unwrap();
        assert_eq!(text, PLAIN);
    }

    #[test]
    fn a_key_opens_its_own_epoch_packet_and_bytes_only() {
        for cipher in Cipher::ALL {
            let key = at_epoch(2).key(cipher).unwrap();
            let (mut text, mut tag) = ([0; PLAIN.len()], [0; TAG_LEN]);
            key.seal(5, b"head", PLAIN, &mut text, &mut tag).unwrap();
            let open = |key: &EpochKey, id, aad: &[u8], tag: [u8; TAG_LEN], flip: u8| {
                let mut copy = text;
                copy[3] ^= flip;
                key.open(id, aad, &tag, &mut copy)
            };
            let mut bad = tag;
            bad[15] ^= 1;
            assert_eq!(open(&key, 5, b"head", tag, 0), Ok(()), "{cipher}");
            assert_eq!(open(&key, 6, b"head", tag, 0), Err(AeadError), "packet id, {cipher}");
            assert_eq!(open(&key, 5, b"heaD", tag, 0), Err(AeadError), "aad, {cipher}");
            assert_eq!(open(&key, 5, b"head", bad, 0), Err(AeadError), "tag, {cipher}");
            assert_eq!(open(&key, 5, b"head", tag, 1), Err(AeadError), "text, {cipher}");
            let other = at_epoch(3).key(cipher).unwrap();
            assert_eq!(open(&other, 5, b"head", tag, 0), Err(AeadError), "epoch, {cipher}");
        }
    }
}
