use std::fmt;

use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;

use crate::CryptoError;

/// AES-256 in counter mode: the cipher of tls-crypt.
pub struct Aes256Ctr(EncryptingKey);

impl Aes256Ctr {
    /// Expands a key.
    ///
    /// # Errors
    /// The library failed. The cause is a bug or the machine, never the peer.
    pub fn new(key: &[u8; 32]) -> Result<Self, CryptoError> {
        let key = UnboundCipherKey::new(&AES_256, key).map_err(|_| CryptoError)?;
        EncryptingKey::ctr(key).map(Self).map_err(|_| CryptoError)
    }

    /// Encrypts or decrypts in place; the 128-bit big-endian counter starts at `iv`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn apply(&self, iv: &[u8; 16], data: &mut [u8]) -> Result<(), CryptoError> {
        // The library refuses an empty buffer.
        if data.is_empty() {
            return Ok(());
        }
        let iv = EncryptionContext::Iv128(FixedLength::from(iv));
        self.0.less_safe_encrypt(data, iv).map(|_| ()).map_err(|_| CryptoError)
    }
}

// Written by hand so that keys never reach a log.
impl fmt::Debug for Aes256Ctr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aes256Ctr(..)")
    }
}

/// Applies AES-256-CTR in one step, in place.
///
/// # Errors
/// As [`Aes256Ctr::new`].
pub fn aes256_ctr(key: &[u8; 32], iv: &[u8; 16], data: &mut [u8]) -> Result<(), CryptoError> {
    Aes256Ctr::new(key)?.apply(iv, data)
}
