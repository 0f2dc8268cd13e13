//! Recovery codes: each replaces one one-time code, for a user who has lost the phone.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

use std::fmt;

use aws_lc_rs::digest;
use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{PkiError, issue};

/// The number of codes that a user gets.
pub(crate) const RECOVERY_CODES: usize = 8;
/// The length of a code with its hyphens: four groups of four characters.
pub(crate) const RECOVERY_LENGTH: usize = 19;
/// The random bytes of a code. 80 bits cannot be guessed, so a fast hash is sufficient.
const RANDOM: usize = 10;
const GROUP: usize = 4;

/// The SHA-256 hash of a recovery code, in hex.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecoveryHash(String);

impl RecoveryHash {
    /// Creates a code. Returns it with its hash.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn generate() -> Result<(Zeroizing<String>, Self), PkiError> {
        let random = Zeroizing::new(issue::random::<RANDOM>()?);
        let text = Zeroizing::new(BASE32_NOPAD.encode(&*random).to_ascii_lowercase());
        let mut code = Zeroizing::new(String::with_capacity(RECOVERY_LENGTH));
        for (at, c) in text.chars().enumerate() {
            if at > 0 && at.is_multiple_of(GROUP) {
                code.push('-');
            }
            code.push(c);
        }
        let hash = Self::of(&code).ok_or_else(|| PkiError::Crypto("recovery code".into()))?;
        Ok((code, hash))
    }

    /// Returns the hash of a text that has the form of a code, in lower or upper case.
    pub fn of(text: &str) -> Option<Self> {
        if text.len() != RECOVERY_LENGTH {
            return None;
        }
        let mut hash = digest::Context::new(&digest::SHA256);
        for (at, byte) in text.bytes().enumerate() {
            let hyphen = at % (GROUP + 1) == GROUP;
            match byte.to_ascii_lowercase() {
                b'-' if hyphen => {}
                byte @ (b'a'..=b'z' | b'2'..=b'7') if !hyphen => hash.update(&[byte]),
                _ => return None,
            }
        }
        Some(Self(issue::hex(hash.finish().as_ref())))
    }
}

impl TryFrom<String> for RecoveryHash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 64 && text.bytes().all(hex) {
            Ok(Self(text))
        } else {
            Err("recovery code: not a SHA-256 hash in hex".into())
        }
    }
}

impl From<RecoveryHash> for String {
    fn from(hash: RecoveryHash) -> Self {
        hash.0
    }
}

impl fmt::Debug for RecoveryHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecoveryHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_by_its_hash_in_either_case() {
        let (code, hash) = RecoveryHash::generate().unwrap();
        assert_eq!(code.len(), RECOVERY_LENGTH);
        assert_eq!(RecoveryHash::of(&code), Some(hash.clone()));
        assert_eq!(RecoveryHash::of(&code.to_ascii_uppercase()), Some(hash.clone()));
        assert_ne!(RecoveryHash::of("aaaa-aaaa-aaaa-aaaa"), Some(hash.clone()));
        assert_eq!(RecoveryHash::try_from(String::from(hash.clone())), Ok(hash));
    }

    #[test]
    fn other_forms_are_no_codes() {
        assert!(RecoveryHash::of("abcd-efgh-2345-67zz").is_some());
        for text in [
            "",
            "abcd-efgh-2345-67z",
            "abcd-efgh-2345-67zzz",
            "abcdxefgh-2345-67zz",
            "abcd-efgh-2345-67z1",
            "abcd-efgh-2345-67z-",
            "abcd-efgh-2345-67zä",
            "-bcd-efgh-2345-67zz",
        ] {
            assert_eq!(RecoveryHash::of(text), None, "{text}");
        }
        for bad in ["", "00", &"g".repeat(64), &"A".repeat(64)] {
            assert!(RecoveryHash::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
