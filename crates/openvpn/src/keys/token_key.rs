use adit_crypto::{CryptoError, Digest, HmacKey};
use zeroize::Zeroizing;

use super::file::{self, KeyFileError};

const LABEL: &str = "OpenVPN auth-token server key";

/// The part of the key that authenticates tokens. The rest of the file is unused, as in OpenVPN.
const HMAC_KEY: std::ops::Range<usize> = 64..96;

/// `auth-gen-token-secret`: the key that authenticates a server's tokens.
#[derive(Clone)]
pub struct TokenKey {
    bytes: Zeroizing<[u8; Self::LEN]>,
}

impl TokenKey {
    /// The length of the key in bytes.
    pub const LEN: usize = 128;

    /// Creates a key from its bytes.
    pub fn new(bytes: &[u8; Self::LEN]) -> Self {
        Self { bytes: Zeroizing::new(*bytes) }
    }

    /// Parses the file that `openvpn --genkey auth-token` writes.
    ///
    /// # Errors
    /// [`KeyFileError`], the operator's fault.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let bytes = file::decode_pem(text, LABEL)?;
        let key = bytes.as_slice().try_into();
        let wrong = KeyFileError::Length { found: bytes.len(), wanted: Self::LEN };
        key.map(Self::new).map_err(|_| wrong)
    }

    /// Returns the file's text.
    pub fn to_pem(&self) -> Zeroizing<String> {
        file::encode_pem(self.bytes.as_slice(), LABEL)
    }

    /// Returns the key for the tokens' code.
    ///
    /// # Errors
    /// None in practice: HMAC accepts every key.
    pub(crate) fn hmac(&self) -> Result<HmacKey, CryptoError> {
        HmacKey::new(Digest::Sha256, self.bytes.get(HMAC_KEY).ok_or(CryptoError)?)
    }
}

// Implemented by hand to keep the key out of the logs.
impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(..)")
    }
}
