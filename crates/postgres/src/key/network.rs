//! The network's key, and what is derived from it.

use std::fmt;

use adit_crypto::{CryptoError, Digest, HmacKey, hkdf_expand_sha256};
use adit_engine::Random;
use zeroize::Zeroizing;

/// What all nodes of a network share and the database never sees. It vouches for the network's row and the nodes'.
#[derive(Clone, PartialEq, Eq)]
pub struct NetworkKey(Zeroizing<[u8; Self::LEN]>);

impl NetworkKey {
    /// Length, bytes.
    pub const LEN: usize = 32;

    /// A new one.
    pub fn generate(random: &mut Random) -> Self {
        let mut key = Self(Zeroizing::new([0; Self::LEN]));
        random.fill(&mut *key.0);
        key
    }

    /// The key of these bytes.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// The secret itself, to be kept.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The key is random throughout, so it is HKDF's pseudorandom key as it stands (RFC 5869, 3.3).
    fn derive(&self, label: &[u8]) -> Result<Zeroizing<[u8; 32]>, CryptoError> {
        let mut out = Zeroizing::new([0; 32]);
        hkdf_expand_sha256(&*self.0, &[b"adit-pg1 ", label], &mut *out)?;
        Ok(out)
    }

    /// MACs over nodes' records.
    pub(super) fn node_mac(&self) -> Result<HmacKey, CryptoError> {
        HmacKey::new(Digest::Sha256, &*self.derive(b"node")?)
    }

    /// MACs over the network's record.
    pub(super) fn network_mac(&self) -> Result<HmacKey, CryptoError> {
        HmacKey::new(Digest::Sha256, &*self.derive(b"network")?)
    }

    /// HPKE's pre-shared key.
    pub(super) fn wrap_key(&self) -> Result<Zeroizing<[u8; 32]>, CryptoError> {
        self.derive(b"wrap")
    }
}

// By hand: keys never reach a log.
impl fmt::Debug for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkKey(..)")
    }
}
