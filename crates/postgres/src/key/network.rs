//! A key of the network, and the keys derived from it.

use std::fmt;

use adit_crypto::{CryptoError, Digest, HmacKey, hkdf_expand_sha256};
use adit_engine::Random;
use zeroize::Zeroizing;

use crate::Generation;

/// A secret that all nodes of a network share and the database never sees. It authenticates the
/// rows of the network and of its nodes. A network has one key at a time. [`super::KeyRing`] also
/// holds the previous ones.
#[derive(Clone, PartialEq, Eq)]
pub struct NetworkKey {
    generation: Generation,
    secret: Zeroizing<[u8; Self::LEN]>,
}

impl NetworkKey {
    /// Length of the secret in bytes.
    pub const LEN: usize = 32;

    /// Length of the secret and its generation in bytes.
    pub(crate) const ENCODED_LEN: usize = 36;

    /// Generates the first key of a network.
    pub fn generate(random: &mut Random) -> Self {
        Self::drawn(Generation::FIRST, random)
    }

    /// Generates a key of the next generation. Returns `None` if no generation number is left.
    pub fn successor(&self, random: &mut Random) -> Option<Self> {
        Some(Self::drawn(self.generation.next()?, random))
    }

    fn drawn(generation: Generation, random: &mut Random) -> Self {
        let mut secret = Zeroizing::new([0; Self::LEN]);
        random.fill(&mut *secret);
        Self { generation, secret }
    }

    /// Returns the key of this generation with these bytes.
    pub fn new(generation: Generation, secret: &[u8; Self::LEN]) -> Self {
        Self { generation, secret: Zeroizing::new(*secret) }
    }

    /// Returns the key's generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the secret itself, for storage.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.secret
    }

    /// Encodes the generation and the secret, for sealing.
    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(Self::ENCODED_LEN));
        out.extend_from_slice(&self.generation.0.to_be_bytes());
        out.extend_from_slice(&*self.secret);
        out
    }

    /// Decodes the result of [`Self::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (generation, secret) = bytes.split_first_chunk()?;
        let generation = Generation(i32::from_be_bytes(*generation));
        let secret = secret.try_into().ok()?;
        (generation >= Generation::FIRST).then(|| Self::new(generation, secret))
    }

    /// Derives a key. The network's key is uniformly random, so it is HKDF's pseudorandom key
    /// directly (RFC 5869, 3.3).
    fn derive(&self, label: &[u8]) -> Result<Zeroizing<[u8; 32]>, CryptoError> {
        let mut out = Zeroizing::new([0; 32]);
        hkdf_expand_sha256(&*self.secret, &[b"adit-pg1 ", label], &mut *out)?;
        Ok(out)
    }

    /// Derives the key of the MACs over nodes' records.
    pub(super) fn node_mac(&self) -> Result<HmacKey, CryptoError> {
        HmacKey::new(Digest::Sha256, &*self.derive(b"node")?)
    }

    /// Derives the key of the MACs over the network's record.
    pub(super) fn network_mac(&self) -> Result<HmacKey, CryptoError> {
        HmacKey::new(Digest::Sha256, &*self.derive(b"network")?)
    }

    /// Derives HPKE's pre-shared key for the secrets of epochs.
    pub(super) fn wrap_key(&self) -> Result<Zeroizing<[u8; 32]>, CryptoError> {
        self.derive(b"wrap")
    }

    /// Derives HPKE's pre-shared key for the next generation's key.
    pub(super) fn rekey_key(&self) -> Result<Zeroizing<[u8; 32]>, CryptoError> {
        self.derive(b"rekey")
    }
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkKey(..)")
    }
}
