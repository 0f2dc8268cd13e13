//! An epoch's secret, and the keys it gives.

use std::fmt;

use adit_crypto::aead::CounterKey;
use adit_crypto::{CryptoError, Digest, HmacKey, hkdf_expand_sha256, hmac};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::Audit;

/// 32 random bytes that only the readers of an epoch learn.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EpochSecret([u8; Self::LEN]);

impl EpochSecret {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// A secret of these bytes, to be random.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes, to be wrapped to a reader.
    pub const fn expose(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The key of the packets. The hash of the epoch's record and signature goes in, and the audit policy beside it: who
    /// was made to believe in another record opens nothing.
    pub(super) fn packet_key(
        &self,
        audit: Audit,
        record_hash: &[u8; 32],
    ) -> Result<CounterKey, CryptoError> {
        let mut key = Zeroizing::new([0; CounterKey::LEN]);
        let info: [&[u8]; 2] = [b"adit-pg1 packet ", audit.word().as_bytes()];
        self.derive(record_hash, &info, &mut *key)?;
        CounterKey::new(&key).map_err(|_| CryptoError)
    }

    /// The key of the chain.
    pub(super) fn chain_key(&self, record_hash: &[u8; 32]) -> Result<HmacKey, CryptoError> {
        let mut key = Zeroizing::new([0; 32]);
        self.derive(record_hash, &[b"adit-pg2 chain"], &mut *key)?;
        HmacKey::new(Digest::Sha256, &*key)
    }

    /// HKDF of RFC 5869 with SHA-256.
    fn derive(&self, salt: &[u8; 32], info: &[&[u8]], out: &mut [u8]) -> Result<(), CryptoError> {
        let extracted = hmac(Digest::Sha256, salt, &[&self.0])?;
        hkdf_expand_sha256(extracted.as_bytes(), info, out)
    }
}

// By hand: keys never reach a log.
impl fmt::Debug for EpochSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpochSecret(..)")
    }
}
