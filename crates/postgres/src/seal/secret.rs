//! An epoch's secret, and the keys derived from it.

use std::fmt;

use adit_crypto::aead::CounterKey;
use adit_crypto::{CryptoError, Digest, HmacKey, hkdf_expand_sha256, hmac};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::Audit;

/// The secret of an epoch: 32 random bytes that only its readers receive.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EpochSecret([u8; Self::LEN]);

impl EpochSecret {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// Creates a secret from these bytes, which must be random.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, to be wrapped to a reader.
    pub const fn expose(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Derives the key of the packets. The hash of the epoch's record and signature and the audit policy are inputs, so
    /// a reader that accepted a forged record could not open any packet.
    pub(super) fn packet_key(
        &self,
        audit: Audit,
        record_hash: &[u8; 32],
    ) -> Result<CounterKey, CryptoError> {
        let mut key = Zeroizing::new([0; CounterKey::LEN]);
        let info: [&[u8]; 2] = [b"adit-pg1 packet ", audit.as_str().as_bytes()];
        self.derive(record_hash, &info, &mut *key)?;
        CounterKey::new(&key).map_err(|_| CryptoError)
    }

    /// Derives the key of the chain.
    pub(super) fn chain_key(&self, record_hash: &[u8; 32]) -> Result<HmacKey, CryptoError> {
        let mut key = Zeroizing::new([0; 32]);
        self.derive(record_hash, &[b"adit-pg2 chain"], &mut *key)?;
        HmacKey::new(Digest::Sha256, &*key)
    }

    /// Implements HKDF of RFC 5869 with SHA-256.
    fn derive(&self, salt: &[u8; 32], info: &[&[u8]], out: &mut [u8]) -> Result<(), CryptoError> {
        let extracted = hmac(Digest::Sha256, salt, &[&self.0])?;
        hkdf_expand_sha256(extracted.as_bytes(), info, out)
    }
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for EpochSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpochSecret(..)")
    }
}
