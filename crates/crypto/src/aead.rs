//! The data channel's AEADs: sealing out of place, opening in place, the tag apart from the text.
//!
//! The nonce of OpenVPN's data channel is the 4-byte packet id followed by the first 8 bytes of the
//! direction's MAC key (`openvpn-wire-protocol`, data channel, AEAD mode).

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce,
    UnboundKey,
};
use std::fmt;

use crate::{Cipher, KeyHalf};

/// Length of an authentication tag in bytes.
pub const TAG_LEN: usize = 16;

/// The crypto library refused: bad lengths when sealing, a wrong tag when opening.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("authentication failed")
    }
}

impl std::error::Error for Refused {}

/// Seals packets of one direction.
pub struct SealKey(Half);

/// Opens packets of one direction.
pub struct OpenKey(Half);

struct Half {
    key: LessSafeKey,
    implicit_iv: [u8; 8],
}

impl Half {
    fn new(cipher: Cipher, half: &KeyHalf) -> Result<Self, Refused> {
        let algorithm: &'static Algorithm = match cipher {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes192Gcm => &AES_192_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let material = half.cipher.get(..cipher.key_len()).ok_or(Refused)?;
        let unbound = UnboundKey::new(algorithm, material).map_err(|_| Refused)?;
        let implicit_iv = *half.hmac.first_chunk().ok_or(Refused)?;
        Ok(Self { key: LessSafeKey::new(unbound), implicit_iv })
    }

    #[inline]
    fn nonce(&self, packet_id: u32) -> Nonce {
        let wide = (u128::from(packet_id) << 64) | u128::from(u64::from_be_bytes(self.implicit_iv));
        let [_, _, _, _, nonce @ ..] = wide.to_be_bytes();
        Nonce::assume_unique_for_key(nonce)
    }
}

impl SealKey {
    /// Prepares a key; it takes the leading bytes of `half` that `cipher` needs.
    pub fn new(cipher: Cipher, half: &KeyHalf) -> Result<Self, Refused> {
        Half::new(cipher, half).map(Self)
    }

    /// Encrypts `plain` into `out` (of the same length) and writes the tag.
    ///
    /// A `packet_id` must never be used twice with one key; the caller's counter sees to it.
    #[inline]
    pub fn seal(
        &self,
        packet_id: u32,
        aad: &[u8],
        plain: &[u8],
        out: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) -> Result<(), Refused> {
        let nonce = self.0.nonce(packet_id);
        self.0
            .key
            .seal_out_of_place_scatter(nonce, Aad::from(aad), plain, out, &[], tag)
            .map_err(|_| Refused)
    }
}

impl OpenKey {
    /// Prepares a key; it takes the leading bytes of `half` that `cipher` needs.
    pub fn new(cipher: Cipher, half: &KeyHalf) -> Result<Self, Refused> {
        Half::new(cipher, half).map(Self)
    }

    /// Decrypts `text` in place. On failure its contents are garbage.
    #[inline]
    pub fn open(
        &self,
        packet_id: u32,
        aad: &[u8],
        tag: &[u8; TAG_LEN],
        text: &mut [u8],
    ) -> Result<(), Refused> {
        let nonce = self.0.nonce(packet_id);
        self.0
            .key
            .open_in_place_separate_tag(nonce, Aad::from(aad), tag, text)
            .map(|_| ())
            .map_err(|_| Refused)
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(..)")
    }
}

impl fmt::Debug for OpenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(seed: u8) -> KeyHalf {
        KeyHalf { cipher: [seed; 64], hmac: [seed ^ 0x5a; 64] }
    }

    #[test]
    fn every_cipher_opens_what_it_sealed_and_nothing_else() {
        for cipher in Cipher::ALL {
            let seal = SealKey::new(cipher, &half(7)).unwrap();
            let open = OpenKey::new(cipher, &half(7)).unwrap();
            let plain = [0xabu8; 1400];
            let mut text = [0u8; 1400];
            let mut tag = [0u8; TAG_LEN];
            seal.seal(9, b"head", &plain, &mut text, &mut tag).unwrap();
            assert_ne!(text, plain, "{cipher}");

            let mut copy = text;
            assert_eq!(
                open.open(10, b"head", &tag, &mut copy),
                Err(Refused),
                "packet id, {cipher}"
            );
            let mut copy = text;
            assert_eq!(open.open(9, b"heaD", &tag, &mut copy), Err(Refused), "aad, {cipher}");
            let mut copy = text;
            copy[1399] ^= 1;
            assert_eq!(open.open(9, b"head", &tag, &mut copy), Err(Refused), "text, {cipher}");
            let mut bad = tag;
            bad[0] ^= 1;
            let mut copy = text;
            assert_eq!(open.open(9, b"head", &bad, &mut copy), Err(Refused), "tag, {cipher}");
            let other = OpenKey::new(cipher, &half(8)).unwrap();
            let mut copy = text;
            assert_eq!(other.open(9, b"head", &tag, &mut copy), Err(Refused), "key, {cipher}");

            open.open(9, b"head", &tag, &mut text).unwrap();
            assert_eq!(text, plain, "{cipher}");
        }
    }

    #[test]
    fn a_wrong_output_length_is_refused() {
        let seal = SealKey::new(Cipher::Aes256Gcm, &half(1)).unwrap();
        let mut tag = [0u8; TAG_LEN];
        assert_eq!(seal.seal(1, b"", &[0; 10], &mut [0; 9], &mut tag), Err(Refused));
    }
}
