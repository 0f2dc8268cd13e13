use std::fmt;

use adit_crypto::DirectionKey;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::file::{self, KeyFileError};

/// A shared key of 2048 bits, in two halves, each with 64 bytes for a cipher and 64 bytes for a
/// MAC.
///
/// It is the key of tls-auth and tls-crypt (`openvpn --genkey secret`), and the Kc of tls-crypt-v2.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct StaticKey([u8; Self::LEN]);

/// The half of a [`StaticKey`] that we send with (`key-direction`).
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Direction {
    /// 0: send with the first half, receive with the second.
    Normal,
    /// 1: send with the second half, receive with the first.
    Inverse,
}

impl StaticKey {
    /// The length in bytes.
    pub const LEN: usize = 256;

    const BEGIN: &'static str = "-----BEGIN OpenVPN Static key V1-----";
    const END: &'static str = "-----END OpenVPN Static key V1-----";

    /// Makes a key of these bytes.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Makes a new key; `fill` fills its argument with random bytes.
    pub fn generate(fill: impl FnOnce(&mut [u8])) -> Self {
        let mut key = Self([0; Self::LEN]);
        fill(&mut key.0);
        key
    }

    /// Parses a key file: 512 hex digits between the two marker lines. White space, blank lines,
    /// comments and anything outside the markers are skipped.
    ///
    /// # Errors
    /// Returns an error that tells the operator what is wrong and how to make a good file.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let hex = file::between(text, Self::BEGIN, Self::END)?;
        let mut key = Self([0; Self::LEN]);
        file::decode_hex(hex, &mut key.0)?;
        Ok(key)
    }

    /// Returns the key file as `openvpn --genkey secret` writes it.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = String::with_capacity(700);
        text.push_str("#\n# 2048 bit OpenVPN static key\n#\n");
        text.push_str(Self::BEGIN);
        for (index, byte) in self.0.iter().enumerate() {
            if index % 16 == 0 {
                text.push('\n');
            }
            file::push_hex(&mut text, *byte);
        }
        text.push('\n');
        text.push_str(Self::END);
        text.push('\n');
        Zeroizing::new(text)
    }

    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns key 0 and key 1, each with 64 bytes for the cipher and 64 bytes for the MAC.
    pub(crate) fn halves(&self) -> [DirectionKey; 2] {
        let mut halves = [0, 1].map(|_| DirectionKey { cipher: [0; 64], hmac: [0; 64] });
        let parts = halves.iter_mut().flat_map(|half| [&mut half.cipher, &mut half.hmac]);
        for (to, from) in parts.zip(self.0.chunks_exact(64)) {
            to.copy_from_slice(from);
        }
        halves
    }

    /// Returns the two halves as (sending, receiving).
    pub(crate) fn directed(&self, direction: Direction) -> (DirectionKey, DirectionKey) {
        let [first, second] = self.halves();
        match direction {
            Direction::Normal => (first, second),
            Direction::Inverse => (second, first),
        }
    }

    /// Combines two keys by byte-wise exclusive or. Dynamic tls-crypt mixes its exported key with
    /// the configured one in this way.
    pub(crate) fn xor(&self, other: &Self) -> Self {
        let mut mixed = self.clone();
        for (byte, mask) in mixed.0.iter_mut().zip(&other.0) {
            *byte ^= mask;
        }
        mixed
    }
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for StaticKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StaticKey(..)")
    }
}
