//! The data channel's AEADs: sealing from one buffer into another and opening in place, with a detached tag.
//!
//! The nonce of OpenVPN's data channel is the 4-byte packet id followed by the first 8 bytes of the direction's MAC key
//! (`openvpn-wire-protocol`, data channel, AEAD mode).

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce,
    UnboundKey,
};
use std::fmt;

use crate::{Cipher, DirectionKey};

/// Length of an authentication tag in bytes.
pub const TAG_LEN: usize = 16;

/// A failure to seal (wrong lengths) or to open (a wrong tag).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct AeadError;

impl fmt::Display for AeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("authentication failed")
    }
}

impl std::error::Error for AeadError {}

/// Seals packets of one direction.
pub struct SealKey(AeadKey);

/// Opens packets of one direction.
pub struct OpenKey(AeadKey);

struct AeadKey {
    key: LessSafeKey,
    implicit_iv: [u8; 8],
}

impl AeadKey {
    fn new(cipher: Cipher, half: &DirectionKey) -> Result<Self, AeadError> {
        let algorithm: &'static Algorithm = match cipher {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes192Gcm => &AES_192_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let material = half.cipher.get(..cipher.key_len()).ok_or(AeadError)?;
        let unbound = UnboundKey::new(algorithm, material).map_err(|_| AeadError)?;
        let implicit_iv = *half.hmac.first_chunk().ok_or(AeadError)?;
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
    /// Creates a key from the leading bytes of `half` that `cipher` needs.
    pub fn new(cipher: Cipher, half: &DirectionKey) -> Result<Self, AeadError> {
        AeadKey::new(cipher, half).map(Self)
    }

    /// Encrypts `plain` into `out` (of the same length) and writes the tag.
    ///
    /// The caller must never use a `packet_id` twice with one key.
    #[inline]
    pub fn seal(
        &self,
        packet_id: u32,
        aad: &[u8],
        plain: &[u8],
        out: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) -> Result<(), AeadError> {
        let nonce = self.0.nonce(packet_id);
        self.0
            .key
            .seal_out_of_place_scatter(nonce, Aad::from(aad), plain, out, &[], tag)
            .map_err(|_| AeadError)
    }
}

impl OpenKey {
    /// Creates a key from the leading bytes of `half` that `cipher` needs.
    pub fn new(cipher: Cipher, half: &DirectionKey) -> Result<Self, AeadError> {
        AeadKey::new(cipher, half).map(Self)
    }

    /// Decrypts `text` in place. On failure its contents are undefined.
    #[inline]
    pub fn open(
        &self,
        packet_id: u32,
        aad: &[u8],
        tag: &[u8; TAG_LEN],
        text: &mut [u8],
    ) -> Result<(), AeadError> {
        let nonce = self.0.nonce(packet_id);
        self.0
            .key
            .open_in_place_separate_tag(nonce, Aad::from(aad), tag, text)
            .map(|_| ())
            .map_err(|_| AeadError)
    }
}

/// AES-256-GCM whose nonce is a counter: four zero bytes and the counter's eight, in network order. It works in place
/// with a detached tag, for a log with numbered rows.
pub struct CounterKey(LessSafeKey);

impl CounterKey {
    /// Length of the key in bytes.
    pub const LEN: usize = 32;

    /// Creates a key. It must not have been used before with any of the counters that follow.
    ///
    /// # Errors
    /// The crypto library failed.
    pub fn new(key: &[u8; Self::LEN]) -> Result<Self, AeadError> {
        let unbound = UnboundKey::new(&AES_256_GCM, key).map_err(|_| AeadError)?;
        Ok(Self(LessSafeKey::new(unbound)))
    }

    #[inline]
    fn nonce(counter: u64) -> Nonce {
        let [_, _, _, _, nonce @ ..] = u128::from(counter).to_be_bytes();
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts `text` in place and returns the tag.
    ///
    /// The caller must never use a `counter` twice with one key.
    ///
    /// # Errors
    /// The crypto library failed.
    #[inline]
    pub fn seal(
        &self,
        counter: u64,
        aad: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; TAG_LEN], AeadError> {
        let nonce = Self::nonce(counter);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(aad), text);
        tag.map_err(|_| AeadError)?.as_ref().try_into().map_err(|_| AeadError)
    }

    /// Decrypts `text` in place. On failure its contents are undefined.
    ///
    /// # Errors
    /// Text, tag, `aad` or `counter` differ from those that were sealed.
    #[inline]
    pub fn open(
        &self,
        counter: u64,
        aad: &[u8],
        tag: &[u8; TAG_LEN],
        text: &mut [u8],
    ) -> Result<(), AeadError> {
        let nonce = Self::nonce(counter);
        let opened = self.0.open_in_place_separate_tag(nonce, Aad::from(aad), tag, text);
        opened.map(|_| ()).map_err(|_| AeadError)
    }
}

impl fmt::Debug for CounterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CounterKey(..)")
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

    fn half(seed: u8) -> DirectionKey {
        DirectionKey { cipher: [seed; 64], hmac: [seed ^ 0x5a; 64] }
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
                Err(AeadError),
                "packet id, {cipher}"
            );
            let mut copy = text;
            assert_eq!(open.open(9, b"heaD", &tag, &mut copy), Err(AeadError), "aad, {cipher}");
            let mut copy = text;
            copy[1399] ^= 1;
            assert_eq!(open.open(9, b"head", &tag, &mut copy), Err(AeadError), "text, {cipher}");
            let mut bad = tag;
            bad[0] ^= 1;
            let mut copy = text;
            assert_eq!(open.open(9, b"head", &bad, &mut copy), Err(AeadError), "tag, {cipher}");
            let other = OpenKey::new(cipher, &half(8)).unwrap();
            let mut copy = text;
            assert_eq!(other.open(9, b"head", &tag, &mut copy), Err(AeadError), "key, {cipher}");

            open.open(9, b"head", &tag, &mut text).unwrap();
            assert_eq!(text, plain, "{cipher}");
        }
    }

    #[test]
    fn a_counter_key_opens_what_it_sealed_and_nothing_else() {
        let key = CounterKey::new(&[7; 32]).unwrap();
        let counter = 0x0102_0304_0506_0708;
        let mut text = *b"some text of a row";
        let tag = key.seal(counter, b"head", &mut text).unwrap();

        // The nonce has the documented format.
        let mut plain = *b"some text of a row";
        let raw = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).unwrap());
        let nonce = Nonce::assume_unique_for_key([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let same = raw.seal_in_place_separate_tag(nonce, Aad::from(b"head"), &mut plain).unwrap();
        assert_eq!((text, &tag[..]), (plain, same.as_ref()));

        let open = |counter, aad: &[u8], tag: &[u8; 16], mut text: [u8; 18]| {
            key.open(counter, aad, tag, &mut text).map(|()| text)
        };
        assert_eq!(open(counter + 1, b"head", &tag, text), Err(AeadError), "counter");
        assert_eq!(open(counter, b"heaD", &tag, text), Err(AeadError), "aad");
        let mut altered = tag;
        altered[15] ^= 1;
        assert_eq!(open(counter, b"head", &altered, text), Err(AeadError), "tag");
        let mut altered = text;
        altered[0] ^= 1;
        assert_eq!(open(counter, b"head", &tag, altered), Err(AeadError), "text");
        let other = CounterKey::new(&[8; 32]).unwrap();
        assert_eq!(other.open(counter, b"head", &tag, &mut text.clone()), Err(AeadError), "key");
        assert_eq!(open(counter, b"head", &tag, text).as_ref(), Ok(b"some text of a row"));
    }

    #[test]
    fn a_wrong_output_length_is_refused() {
        let seal = SealKey::new(Cipher::Aes256Gcm, &half(1)).unwrap();
        let mut tag = [0u8; TAG_LEN];
        assert_eq!(seal.seal(1, b"", &[0; 10], &mut [0; 9], &mut tag), Err(AeadError));
    }
}
