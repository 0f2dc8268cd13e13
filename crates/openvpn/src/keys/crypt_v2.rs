//! tls-crypt-v2 keys. A server has one key; each client has its own key (Kc), which it sends with
//! its first packet, wrapped for the server (WKc):
//!
//! ```text
//! WKc = tag 32 | AES-256-CTR(Kc 256 | metadata) | length of all of it 2
//! tag = HMAC-SHA256(length 2 | Kc | metadata);  IV = first 16 bytes of the tag
//! ```

use std::fmt;

use adit_crypto::{Aes256Ctr, CryptoError, Digest, DirectionKey, HmacKey};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::file::{self, KeyFileError};
use super::static_key::StaticKey;

/// The maximum length of a wrapped key in bytes, including its length field.
pub const MAX_WKC_LEN: usize = 1024;
/// The maximum length of the metadata in bytes, including its type.
pub const MAX_METADATA_LEN: usize = MAX_WKC_LEN - MIN_WKC_LEN;
/// The length of a wrapped key without metadata.
const MIN_WKC_LEN: usize = TAG_LEN + StaticKey::LEN + 2;
const TAG_LEN: usize = 32;

/// The metadata of a wrapped key, which describes its client.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Metadata {
    /// Type 0: bytes that the operator chose.
    User(Vec<u8>),
    /// Type 1: the time when the key was made, in seconds since 1970.
    Timestamp(u64),
}

impl Metadata {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::User(bytes) => [&[0], bytes.as_slice()].concat(),
            Self::Timestamp(time) => [&[1], time.to_be_bytes().as_slice()].concat(),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Option<Self>, UnwrapError> {
        match bytes.split_first() {
            None => Ok(None),
            Some((0, user)) => Ok(Some(Self::User(user.to_vec()))),
            Some((1, time)) => {
                let time = time.try_into().map_err(|_| UnwrapError::BadMetadata)?;
                Ok(Some(Self::Timestamp(u64::from_be_bytes(time))))
            }
            Some(_) => Err(UnwrapError::BadMetadata),
        }
    }
}

/// The reason why a wrapped key was refused. The fault is the peer's or an unauthenticated
/// sender's.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UnwrapError {
    /// The key is shorter or longer than a wrapped key can be, or than its length field says.
    #[error("the wrapped client key has an impossible length")]
    BadLength,
    /// The key was not wrapped by this server's key, or was altered.
    #[error("the wrapped client key was not made by this server's key, or was altered")]
    BadMac,
    /// The metadata has an unknown type, or the wrong length for its type.
    #[error("the wrapped client key has malformed metadata")]
    BadMetadata,
    /// The cryptographic library failed, which is our fault.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// The reason why a client key could not be wrapped.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WrapKeyError {
    /// The operator gave too much metadata.
    #[error("the metadata has {0} bytes; at most {max} fit", max = MAX_METADATA_LEN - 1)]
    MetadataTooLong(usize),
    /// The cryptographic library failed, which is our fault.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// A server's tls-crypt-v2 key. It wraps and unwraps client keys.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct ServerKey(DirectionKey);

/// The contents of a wrapped key.
#[derive(Clone, Debug)]
pub struct UnwrappedKey {
    /// The client's key.
    pub kc: StaticKey,
    /// The metadata that was wrapped with it, if any.
    pub metadata: Option<Metadata>,
}

impl ServerKey {
    /// The length in bytes.
    pub const LEN: usize = 128;

    const LABEL: &'static str = "OpenVPN tls-crypt-v2 server key";

    /// Makes a key of these bytes.
    pub fn new(bytes: &[u8; Self::LEN]) -> Self {
        let (mut cipher, mut hmac) = ([0; 64], [0; 64]);
        for (to, from) in cipher.iter_mut().chain(&mut hmac).zip(bytes) {
            *to = *from;
        }
        Self(DirectionKey { cipher, hmac })
    }

    /// Makes a new key; `fill` fills its argument with random bytes.
    pub fn generate(fill: impl FnOnce(&mut [u8])) -> Self {
        let mut bytes = Zeroizing::new([0; Self::LEN]);
        fill(bytes.as_mut_slice());
        Self::new(&bytes)
    }

    /// Parses the PEM that `openvpn --genkey tls-crypt-v2-server` writes.
    ///
    /// # Errors
    /// Returns an error that tells the operator what is wrong and how to make a good file.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let bytes = file::decode_pem(text, Self::LABEL)?;
        let bytes: &[u8; Self::LEN] = bytes
            .as_slice()
            .try_into()
            .map_err(|_| KeyFileError::Length { found: bytes.len(), wanted: Self::LEN })?;
        Ok(Self::new(bytes))
    }

    /// Returns the PEM form.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new([self.0.cipher, self.0.hmac].concat());
        file::encode_pem(&bytes, Self::LABEL)
    }

    fn keys(&self) -> Result<(Aes256Ctr, HmacKey), CryptoError> {
        let cipher = self.0.cipher.first_chunk().ok_or(CryptoError)?;
        let hmac: &[u8; 32] = self.0.hmac.first_chunk().ok_or(CryptoError)?;
        Ok((Aes256Ctr::new(cipher)?, HmacKey::new(Digest::Sha256, hmac)?))
    }

    /// Wraps a client's key.
    ///
    /// # Errors
    /// See [`WrapKeyError`].
    pub fn wrap(
        &self,
        kc: &StaticKey,
        metadata: Option<&Metadata>,
    ) -> Result<Vec<u8>, WrapKeyError> {
        let metadata = metadata.map(Metadata::encode).unwrap_or_default();
        if metadata.len() > MAX_METADATA_LEN {
            return Err(WrapKeyError::MetadataTooLong(metadata.len().saturating_sub(1)));
        }
        let (cipher, hmac) = self.keys()?;
        let len = MIN_WKC_LEN.saturating_add(metadata.len());
        let len_field = u16::try_from(len).map_err(|_| CryptoError)?.to_be_bytes();
        let tag = hmac.sign(&[&len_field, kc.as_bytes(), &metadata]);
        let iv = tag.as_bytes().first_chunk().ok_or(CryptoError)?;
        let mut inside = Zeroizing::new(Vec::with_capacity(len));
        inside.extend_from_slice(kc.as_bytes());
        inside.extend_from_slice(&metadata);
        cipher.apply(iv, &mut inside)?;
        Ok([tag.as_bytes(), &inside, &len_field].concat())
    }

    /// Verifies and decrypts a wrapped key that consists of exactly these bytes.
    ///
    /// # Errors
    /// See [`UnwrapError`].
    pub fn unwrap(&self, wkc: &[u8]) -> Result<UnwrappedKey, UnwrapError> {
        if !(MIN_WKC_LEN..=MAX_WKC_LEN).contains(&wkc.len()) {
            return Err(UnwrapError::BadLength);
        }
        let (tag, rest) = wkc.split_first_chunk::<TAG_LEN>().ok_or(UnwrapError::BadLength)?;
        let (inside, len) = rest.split_last_chunk::<2>().ok_or(UnwrapError::BadLength)?;
        if usize::from(u16::from_be_bytes(*len)) != wkc.len() {
            return Err(UnwrapError::BadLength);
        }
        let iv = tag.first_chunk().ok_or(UnwrapError::BadLength)?;
        let mut inside = Zeroizing::new(inside.to_vec());
        let (cipher, hmac) = self.keys()?;
        cipher.apply(iv, &mut inside)?;
        if !hmac.verify(&[len, &inside], tag) {
            return Err(UnwrapError::BadMac);
        }
        let (kc, metadata) =
            inside.split_first_chunk::<{ StaticKey::LEN }>().ok_or(UnwrapError::BadLength)?;
        Ok(UnwrappedKey { kc: StaticKey::new(*kc), metadata: Metadata::parse(metadata)? })
    }

    /// Makes a whole client key: Kc and its wrapped form.
    ///
    /// # Errors
    /// See [`WrapKeyError`].
    pub fn client_key(
        &self,
        kc: StaticKey,
        metadata: Option<&Metadata>,
    ) -> Result<ClientKey, WrapKeyError> {
        let wkc = self.wrap(&kc, metadata)?;
        Ok(ClientKey { kc, wkc })
    }
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerKey(..)")
    }
}

/// A client's tls-crypt-v2 key.
#[derive(Clone)]
pub struct ClientKey {
    /// The key itself (Kc).
    pub kc: StaticKey,
    /// The key wrapped for the server. It is sent in clear.
    pub wkc: Vec<u8>,
}

impl ClientKey {
    const LABEL: &'static str = "OpenVPN tls-crypt-v2 client key";

    /// Parses the PEM that `openvpn --genkey tls-crypt-v2-client` writes.
    ///
    /// # Errors
    /// Returns an error that tells the operator what is wrong and how to make a good file.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let bytes = file::decode_pem(text, Self::LABEL)?;
        let (kc, wkc) = bytes
            .split_first_chunk::<{ StaticKey::LEN }>()
            .ok_or(KeyFileError::Length { found: bytes.len(), wanted: StaticKey::LEN })?;
        if split_wkc(wkc).is_none_or(|(before, _)| !before.is_empty()) {
            return Err(KeyFileError::WrappedKey(wkc.len()));
        }
        Ok(Self { kc: StaticKey::new(*kc), wkc: wkc.to_vec() })
    }

    /// Returns the PEM form.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new([self.kc.as_bytes().as_slice(), &self.wkc].concat());
        file::encode_pem(&bytes, Self::LABEL)
    }
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(..)")
    }
}

/// Splits a packet before the wrapped key at its end, according to the length field in its last two
/// bytes. Returns `None` if no wrapped key can have that length.
pub(crate) fn split_wkc(packet: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = usize::from(u16::from_be_bytes(*packet.last_chunk::<2>()?));
    if !(MIN_WKC_LEN..=MAX_WKC_LEN).contains(&len) {
        return None;
    }
    packet.split_at_checked(packet.len().checked_sub(len)?)
}
