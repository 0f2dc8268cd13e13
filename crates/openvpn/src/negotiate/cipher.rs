use std::fmt;

use adit_crypto::{BlockCipher, Cipher, Digest};
use serde::{Deserialize, Serialize};

use super::PeerInfo;
use crate::data_format::{BlockSuite, Protection};

/// A data cipher that a name in `data-ciphers` denotes.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DataCipher {
    /// An AEAD cipher.
    Aead(Cipher),
    /// CBC, authenticated by the digest of `auth`; `None` is the cipher `none`, which only
    /// authenticates.
    Block(Option<BlockCipher>),
}

impl DataCipher {
    /// Returns the names of all ciphers, AEADs first, without `none`.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Cipher::ALL.map(Cipher::name).into_iter().chain(BlockCipher::ALL.map(BlockCipher::name))
    }

    /// Returns the name that OpenVPN uses in cipher negotiation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aead(cipher) => cipher.name(),
            Self::Block(Some(cipher)) => cipher.name(),
            Self::Block(None) => "none",
        }
    }

    /// Returns the name that OpenVPN uses in its options string.
    pub const fn options_name(self) -> &'static str {
        match self {
            Self::Block(None) => "[null-cipher]",
            _ => self.name(),
        }
    }

    /// Parses a name of either kind, case-insensitively.
    pub fn from_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("none") || name == "[null-cipher]" {
            return Some(Self::Block(None));
        }
        let aead = Cipher::from_name(name).map(Self::Aead);
        aead.or_else(|| BlockCipher::from_name(name).map(|cipher| Self::Block(Some(cipher))))
    }

    /// Returns whether the cipher itself authenticates packets.
    pub const fn is_aead(self) -> bool {
        matches!(self, Self::Aead(_))
    }

    /// Returns the packet format. For an AEAD it is the ordinary format or, with `epoch`, that of
    /// 2.7. For other ciphers it is CBC with the digest that `auth` names.
    pub fn protection(self, auth: &str, epoch: bool) -> Protection {
        match self {
            Self::Aead(cipher) if epoch => Protection::Epoch(cipher),
            Self::Aead(cipher) => Protection::Aead(cipher),
            Self::Block(cipher) => {
                Protection::Block(BlockSuite { cipher, digest: Digest::from_name(auth) })
            }
        }
    }
}

impl TryFrom<String> for DataCipher {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::from_name(&name).ok_or_else(|| format!("unknown cipher {name:?}"))
    }
}

impl From<DataCipher> for String {
    fn from(cipher: DataCipher) -> Self {
        cipher.name().to_owned()
    }
}

impl From<Cipher> for DataCipher {
    fn from(cipher: Cipher) -> Self {
        Self::Aead(cipher)
    }
}

impl From<Protection> for DataCipher {
    fn from(protection: Protection) -> Self {
        match protection {
            Protection::Aead(cipher) | Protection::Epoch(cipher) => Self::Aead(cipher),
            Protection::Block(suite) | Protection::Static(suite) => Self::Block(suite.cipher),
        }
    }
}

impl PartialEq<Cipher> for DataCipher {
    fn eq(&self, other: &Cipher) -> bool {
        *self == Self::Aead(*other)
    }
}

impl fmt::Display for DataCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why no cipher can be agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CipherRefused {
    /// The ciphers that the peer offers, for the log.
    pub offered: Vec<String>,
    /// The ciphers that we allow.
    pub allowed: Vec<DataCipher>,
}

impl fmt::Display for CipherRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed: Vec<_> = self.allowed.iter().map(|cipher| cipher.name()).collect();
        let offered =
            if self.offered.is_empty() { "none".to_owned() } else { self.offered.join(":") };
        write!(
            f,
            "no common cipher: the peer offers {offered}, allowed are {} \
             (add one of the peer's to data-ciphers)",
            allowed.join(":")
        )
    }
}

impl std::error::Error for CipherRefused {}

/// Returns the server's choice: the first cipher in its own list that the client supports.
///
/// `occ` is the `cipher` of the client's options string. A client that cannot negotiate supports
/// only that one; `fallback` (`data-ciphers-fallback`) replaces it if the client names none.
///
/// # Errors
/// [`CipherRefused`]: AUTH_FAILED with "Data channel cipher negotiation failed (no shared cipher)".
pub fn choose_cipher(
    allowed: &[DataCipher],
    info: &PeerInfo,
    occ: Option<&str>,
    fallback: Option<DataCipher>,
) -> Result<DataCipher, CipherRefused> {
    let mut offered = info.ciphers();
    let negotiates = !offered.is_empty();
    if let Some(occ) = occ {
        offered.push(occ);
    }
    let found = allowed
        .iter()
        .copied()
        .find(|cipher| offered.iter().any(|name| DataCipher::from_name(name) == Some(*cipher)));
    if let Some(cipher) = found {
        return Ok(cipher);
    }
    // The fallback is for peers that do not negotiate and do not name their cipher. With a peer
    // that names another cipher, neither end could open the other's packets.
    match fallback {
        Some(cipher)
            if !negotiates
                && occ.is_none_or(|name| DataCipher::from_name(name) == Some(cipher)) =>
        {
            Ok(cipher)
        }
        _ => Err(CipherRefused {
            offered: offered.into_iter().map(str::to_owned).collect(),
            allowed: allowed.to_vec(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: [DataCipher; 3] = [
        DataCipher::Aead(Cipher::Aes256Gcm),
        DataCipher::Aead(Cipher::Aes128Gcm),
        DataCipher::Aead(Cipher::ChaCha20Poly1305),
    ];

    fn choose(
        info: &str,
        occ: Option<&str>,
        fallback: Option<Cipher>,
    ) -> Result<DataCipher, CipherRefused> {
        let fallback = fallback.map(DataCipher::Aead);
        choose_cipher(&SERVER, &PeerInfo::parse(info).unwrap(), occ, fallback)
    }

    #[test]
    fn the_servers_order_decides() {
        let got = choose("IV_CIPHERS=CHACHA20-POLY1305:AES-128-GCM\n", None, None);
        assert_eq!(got, Ok(Cipher::Aes128Gcm.into()));
        // A client of version 2.4.
        assert_eq!(choose("IV_NCP=2\n", Some("BF-CBC"), None), Ok(Cipher::Aes256Gcm.into()));
    }

    #[test]
    fn the_options_string_counts_as_an_offer() {
        assert_eq!(choose("", Some("AES-128-GCM"), None), Ok(Cipher::Aes128Gcm.into()));
        let got = choose("IV_CIPHERS=AES-256-CBC\n", Some("CHACHA20-POLY1305"), None);
        assert_eq!(got, Ok(Cipher::ChaCha20Poly1305.into()));
    }

    #[test]
    fn the_fallback_is_for_those_that_name_none() {
        assert_eq!(choose("", None, Some(Cipher::Aes192Gcm)), Ok(Cipher::Aes192Gcm.into()));
        assert_eq!(
            choose("", Some("AES-192-GCM"), Some(Cipher::Aes192Gcm)),
            Ok(Cipher::Aes192Gcm.into())
        );
        assert!(choose("", Some("BF-CBC"), Some(Cipher::Aes192Gcm)).is_err());
        assert!(choose("IV_CIPHERS=AES-256-CBC\n", None, Some(Cipher::Aes192Gcm)).is_err());
        assert!(choose("", None, None).is_err());
    }

    #[test]
    fn a_refusal_says_what_was_offered() {
        let refused = choose("IV_CIPHERS=AES-256-CBC:BF-CBC\n", Some("BF-CBC"), None).unwrap_err();
        assert!(refused.to_string().contains("AES-256-CBC:BF-CBC"), "{refused}");
        assert!(refused.to_string().contains("data-ciphers"), "{refused}");
    }

    #[test]
    fn cbc_is_for_those_that_name_it_and_only_where_it_is_allowed() {
        const CBC: DataCipher = DataCipher::Block(Some(BlockCipher::Aes256Cbc));
        let info = |text| PeerInfo::parse(text).unwrap();
        let both = [DataCipher::Aead(Cipher::Aes256Gcm), CBC];
        // The options string of an old client contains its `cipher`.
        assert_eq!(choose_cipher(&both, &info(""), Some("AES-256-CBC"), None), Ok(CBC));
        assert!(choose_cipher(&both[..1], &info(""), Some("AES-256-CBC"), None).is_err());
        assert_eq!(choose_cipher(&both[..1], &info(""), Some("AES-256-CBC"), Some(CBC)), Ok(CBC));
        let new = info("IV_CIPHERS=AES-256-CBC:AES-256-GCM\n");
        assert_eq!(choose_cipher(&both, &new, None, None), Ok(both[0]), "ours decides");
        let none = DataCipher::Block(None);
        assert_eq!(choose_cipher(&[none], &info(""), Some("[null-cipher]"), None), Ok(none));
        assert!(choose_cipher(&both, &info("IV_CIPHERS=none\n"), None, Some(CBC)).is_err());
    }

    #[test]
    fn names_go_both_ways() {
        for name in DataCipher::names().chain(["none"]) {
            let cipher = DataCipher::from_name(&name.to_ascii_lowercase()).unwrap();
            assert_eq!(cipher.name(), name);
            assert_eq!(DataCipher::from_name(cipher.options_name()), Some(cipher));
        }
        // Ciphers with blocks of 64 bits.
        for name in ["BF-CBC", "DES-EDE3-CBC", "CAST5-CBC", "RC2-CBC", "DES-CBC"] {
            assert_eq!(DataCipher::from_name(name), None);
        }
    }
}
