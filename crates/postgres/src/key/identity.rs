//! The keys of a node and of an auditor.

use std::fmt;
use std::str::FromStr;

use adit_crypto::sign::{SigningKey, verify};
use adit_crypto::{CryptoError, sha256};
use adit_engine::Random;
use zeroize::Zeroizing;

use super::NetworkKey;
use super::wrap;
use crate::NodeId;

/// The error for bytes that are not a valid key.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: {0}")]
pub struct KeyError(pub(super) &'static str);

/// The secret that opens the wraps of epochs' secrets: the seed of an X-Wing key (ML-KEM-768 and X25519).
#[derive(Clone, PartialEq, Eq)]
pub struct SealSecret(Zeroizing<[u8; Self::LEN]>);

impl SealSecret {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// Generates a new key.
    pub fn generate(random: &mut Random) -> Self {
        let mut seed = Self(Zeroizing::new([0; Self::LEN]));
        random.fill(&mut *seed.0);
        seed
    }

    /// Returns the key with these bytes.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// Returns the secret itself, for storage.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns the public key that others wrap secrets with.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn public(&self) -> Result<SealPublic, KeyError> {
        wrap::public(&self.0).map(SealPublic).ok_or(KeyError("the library refuses the seed"))
    }
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for SealSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealSecret(..)")
    }
}

/// The public key for wrapping secrets for one reader.
#[derive(Clone, PartialEq, Eq)]
pub struct SealPublic(Vec<u8>);

impl SealPublic {
    /// Length in bytes.
    pub const LEN: usize = 1216;

    /// Checks that the bytes are a valid key.
    ///
    /// # Errors
    /// Fails if the length is wrong or numbers are out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.len() != Self::LEN {
            return Err(KeyError("a key to seal with has 1216 bytes"));
        }
        if !wrap::is_public(bytes) {
            return Err(KeyError("a number in the key to seal with is out of range"));
        }
        Ok(Self(bytes.to_vec()))
    }

    /// Returns the bytes as the database stores them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns a short digest to store and compare, for pinning an auditor.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(sha256(&[b"adit-pg1 auditor", &self.0]))
    }
}

impl fmt::Debug for SealPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealPublic(")?;
        for byte in self.0.iter().take(4) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("..)")
    }
}

/// The secret keys of a node.
#[derive(Debug)]
pub struct NodeKeys {
    sign: SigningKey,
    seal: SealSecret,
}

impl NodeKeys {
    /// Length of both secrets in bytes.
    pub const LEN: usize = 64;

    /// Generates new keys.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn generate(random: &mut Random) -> Result<Self, CryptoError> {
        let mut bytes = Zeroizing::new([0; Self::LEN]);
        random.fill(&mut *bytes);
        Self::from_bytes(&bytes)
    }

    /// Returns the keys with these bytes: the signing seed, then the seed for opening wraps.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, CryptoError> {
        let (sign, seal) = bytes.split_at(32);
        let sign = Zeroizing::new(<[u8; 32]>::try_from(sign).map_err(|_| CryptoError)?);
        let seal = Zeroizing::new(<[u8; 32]>::try_from(seal).map_err(|_| CryptoError)?);
        Ok(Self { sign: SigningKey::from_seed(&sign)?, seal: SealSecret::from_bytes(&seal) })
    }

    /// Returns the secrets, for storage.
    pub fn to_bytes(&self) -> Zeroizing<[u8; Self::LEN]> {
        let mut out = Zeroizing::new([0; Self::LEN]);
        let secrets = self.sign.seed().iter().chain(self.seal.as_bytes());
        for (to, from) in out.iter_mut().zip(secrets) {
            *to = *from;
        }
        out
    }

    /// Returns the public keys that identify this node to others.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn public(&self, id: NodeId) -> Result<NodePublic, KeyError> {
        Ok(NodePublic { id, sign: self.sign.public(), seal: self.seal.public()? })
    }

    /// Returns this node as a reader.
    pub fn reader(&self, id: NodeId) -> Reader<'_> {
        Reader { id, seal: &self.seal }
    }

    pub(super) fn signing(&self) -> &SigningKey {
        &self.sign
    }
}

/// A reader that opens wraps: a node, or the auditor.
#[derive(Copy, Clone, Debug)]
pub struct Reader<'a> {
    pub(super) id: NodeId,
    pub(super) seal: &'a SealSecret,
}

impl Reader<'_> {
    /// Returns the number that the reader's wraps are stored under.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the reader's public key as stored in the database, or `None` if the library failed.
    pub fn public(&self) -> Option<Vec<u8>> {
        self.seal.public().ok().map(|public| public.as_bytes().to_vec())
    }
}

/// The public keys of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePublic {
    /// The node's number.
    pub id: NodeId,
    /// The Ed25519 key that verifies the node's records.
    pub sign: [u8; 32],
    /// The key that wraps secrets for the node.
    pub seal: SealPublic,
}

impl NodePublic {
    /// Returns a short digest of both keys, to store and compare.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(sha256(&[b"adit-pg1 fingerprint", &self.sign, self.seal.as_bytes()]))
    }

    /// Returns whether the node signed the message.
    pub(super) fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        verify(&self.sign, message, signature)
    }
}

/// The digest of a node's keys that is pinned, formatted as hexadecimal digits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        const BAD: KeyError = KeyError("a fingerprint is 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(BAD);
        }
        let mut bytes = [0; 32];
        for (to, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| BAD)?;
            *to = u8::from_str_radix(pair, 16).map_err(|_| BAD)?;
        }
        Ok(Self(bytes))
    }
}

/// The secrets of an auditor. An auditor reads every stream and authenticates the nodes with the network's key.
///
/// The holder could also admit a node, as any node can, so keep it where no one else can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditorKey {
    seal: SealSecret,
    network: NetworkKey,
}

impl AuditorKey {
    /// The first line of the auditor's file.
    const TITLE: &str = "adit postgres auditor key 1";

    /// Generates an auditor for the network with this key.
    pub fn generate(network: &NetworkKey, random: &mut Random) -> Self {
        Self { seal: SealSecret::generate(random), network: network.clone() }
    }

    /// Returns the public key for the network's settings.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn public(&self) -> Result<SealPublic, KeyError> {
        self.seal.public()
    }

    /// Returns the auditor as a reader.
    pub fn reader(&self) -> Reader<'_> {
        Reader { id: NodeId::AUDITOR, seal: &self.seal }
    }

    /// Returns the network's key at the time when this auditor was created.
    pub fn network(&self) -> &NetworkKey {
        &self.network
    }

    /// Formats the auditor's file: a title, and one line of text.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut secrets = Zeroizing::new(Vec::with_capacity(68));
        secrets.extend_from_slice(self.seal.as_bytes());
        secrets.extend_from_slice(&self.network.encode());
        let line = crate::token::checked_text(&secrets);
        Zeroizing::new(format!("{}\n{}\n", Self::TITLE, *line))
    }

    /// Parses the auditor's file.
    ///
    /// # Errors
    /// Fails if the file has another format or is damaged.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        const BAD: KeyError = KeyError("not an auditor's key file, or damaged");
        let mut lines = text.lines();
        if lines.next() != Some(Self::TITLE) {
            return Err(BAD);
        }
        let secrets = crate::token::from_checked_text(lines.next().ok_or(BAD)?).ok_or(BAD)?;
        if lines.next().is_some() {
            return Err(BAD);
        }
        let (seal, network) = secrets.split_first_chunk::<32>().ok_or(BAD)?;
        let network = NetworkKey::decode(network).ok_or(BAD)?;
        Ok(Self { seal: SealSecret::from_bytes(seal), network })
    }
}
