//! A node's keys and an auditor's.

use std::fmt;
use std::str::FromStr;

use adit_crypto::sign::{SigningKey, verify};
use adit_crypto::{CryptoError, sha256};
use adit_engine::Random;
use zeroize::Zeroizing;

use super::NetworkKey;
use super::wrap;
use crate::NodeId;

/// Not a key.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: {0}")]
pub struct KeyError(pub(super) &'static str);

/// What opens the wraps of epochs' secrets: the seed of an X-Wing key (ML-KEM-768 and X25519).
#[derive(Clone, PartialEq, Eq)]
pub struct SealSecret(Zeroizing<[u8; Self::LEN]>);

impl SealSecret {
    /// Length, bytes.
    pub const LEN: usize = 32;

    /// A new one.
    pub fn generate(random: &mut Random) -> Self {
        let mut seed = Self(Zeroizing::new([0; Self::LEN]));
        random.fill(&mut *seed.0);
        seed
    }

    /// The key of these bytes.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// The secret itself, to be kept.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// What others wrap with.
    ///
    /// # Errors
    /// The library failed.
    pub fn public(&self) -> Result<SealPublic, KeyError> {
        wrap::public(&self.0).map(SealPublic).ok_or(KeyError("the library refuses the seed"))
    }
}

// By hand: keys never reach a log.
impl fmt::Debug for SealSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealSecret(..)")
    }
}

/// What secrets are wrapped with for one reader.
#[derive(Clone, PartialEq, Eq)]
pub struct SealPublic(Vec<u8>);

impl SealPublic {
    /// Length, bytes.
    pub const LEN: usize = 1216;

    /// Checks that it is one.
    ///
    /// # Errors
    /// Another length, or numbers out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.len() != Self::LEN {
            return Err(KeyError("a key to seal with has 1216 bytes"));
        }
        if !wrap::is_public(bytes) {
            return Err(KeyError("a number in the key to seal with is out of range"));
        }
        Ok(Self(bytes.to_vec()))
    }

    /// As in the database.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// In short, to remember and to compare: what is pinned of an auditor.
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

/// A node's own keys.
#[derive(Debug)]
pub struct NodeKeys {
    sign: SigningKey,
    seal: SealSecret,
}

impl NodeKeys {
    /// Length of both secrets, bytes.
    pub const LEN: usize = 64;

    /// New ones.
    ///
    /// # Errors
    /// The library failed.
    pub fn generate(random: &mut Random) -> Result<Self, CryptoError> {
        let mut bytes = Zeroizing::new([0; Self::LEN]);
        random.fill(&mut *bytes);
        Self::from_bytes(&bytes)
    }

    /// The keys of these bytes: the seed to sign, then that to open with.
    ///
    /// # Errors
    /// The library failed.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, CryptoError> {
        let (sign, seal) = bytes.split_at(32);
        let sign = Zeroizing::new(<[u8; 32]>::try_from(sign).map_err(|_| CryptoError)?);
        let seal = Zeroizing::new(<[u8; 32]>::try_from(seal).map_err(|_| CryptoError)?);
        Ok(Self { sign: SigningKey::from_seed(&sign)?, seal: SealSecret::from_bytes(&seal) })
    }

    /// The secrets, to be kept.
    pub fn to_bytes(&self) -> Zeroizing<[u8; Self::LEN]> {
        let mut out = Zeroizing::new([0; Self::LEN]);
        let secrets = self.sign.seed().iter().chain(self.seal.as_bytes());
        for (to, from) in out.iter_mut().zip(secrets) {
            *to = *from;
        }
        out
    }

    /// What the others know this node by.
    ///
    /// # Errors
    /// The library failed.
    pub fn public(&self, id: NodeId) -> Result<NodePublic, KeyError> {
        Ok(NodePublic { id, sign: self.sign.public(), seal: self.seal.public()? })
    }

    /// This node as a reader.
    pub fn reader(&self, id: NodeId) -> Reader<'_> {
        Reader { id, seal: &self.seal }
    }

    pub(super) fn signing(&self) -> &SigningKey {
        &self.sign
    }
}

/// Someone who opens wraps: a node, or the auditor.
#[derive(Copy, Clone, Debug)]
pub struct Reader<'a> {
    pub(super) id: NodeId,
    pub(super) seal: &'a SealSecret,
}

impl Reader<'_> {
    /// The number that its wraps are under.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its public key, as in the database; `None` if the library failed.
    pub fn public(&self) -> Option<Vec<u8>> {
        self.seal.public().ok().map(|public| public.as_bytes().to_vec())
    }
}

/// A node's public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePublic {
    /// Whose.
    pub id: NodeId,
    /// Verifies its records: an Ed25519 key.
    pub sign: [u8; 32],
    /// Wraps secrets for it.
    pub seal: SealPublic,
}

impl NodePublic {
    /// Both keys in short, to remember and to compare.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(sha256(&[b"adit-pg1 fingerprint", &self.sign, self.seal.as_bytes()]))
    }

    /// Whether the node signed that.
    pub(super) fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        verify(&self.sign, message, signature)
    }
}

/// A node's keys in short: what is pinned. Written in hexadecimal digits.
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

/// What an auditor holds: it reads every stream, and knows the nodes by the network's key.
///
/// Anyone who has it could also vouch for a node, as any node can: it belongs where no one else reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditorKey {
    seal: SealSecret,
    network: NetworkKey,
}

impl AuditorKey {
    /// First line of its file.
    const TITLE: &str = "adit postgres auditor key 1";

    /// A new one for the network of that key.
    pub fn generate(network: &NetworkKey, random: &mut Random) -> Self {
        Self { seal: SealSecret::generate(random), network: network.clone() }
    }

    /// What the network's record names.
    ///
    /// # Errors
    /// The library failed.
    pub fn public(&self) -> Result<SealPublic, KeyError> {
        self.seal.public()
    }

    /// The auditor as a reader.
    pub fn reader(&self) -> Reader<'_> {
        Reader { id: NodeId::AUDITOR, seal: &self.seal }
    }

    /// The network's key when this one was made.
    pub fn network(&self) -> &NetworkKey {
        &self.network
    }

    /// Its file: a title and one line of text.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut secrets = Zeroizing::new(Vec::with_capacity(68));
        secrets.extend_from_slice(self.seal.as_bytes());
        secrets.extend_from_slice(&self.network.encode());
        let line = crate::token::checked_text(&secrets);
        Zeroizing::new(format!("{}\n{}\n", Self::TITLE, *line))
    }

    /// Reads its file.
    ///
    /// # Errors
    /// Not such a file, or damaged.
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
