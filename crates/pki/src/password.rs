//! Passwords of users, stored as Argon2id hashes.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

use std::fmt;

use argon2::password_hash::{PasswordHash as Phc, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use serde::{Deserialize, Serialize};

use crate::{PkiError, issue};

/// The minimum length of a new password, in characters.
const MIN_CHARS: usize = 8;
/// The maximum length of a new password, in bytes.
const MAX_BYTES: usize = 128;
/// The maximum length of what is hashed, in bytes: a password, or a password that is followed by a code.
pub(crate) const MAX_HASHED: usize = 192;

/// The memory for one hash, in KiB, and the number of passes: OWASP's parameters for one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
/// The most that a stored hash may require, so that a damaged file cannot exhaust the memory.
const MAX_MEMORY_KIB: u32 = 64 * 1024;
const MAX_PASSES: u32 = 16;
const MAX_LANES: u32 = 4;
/// The minimum length of a hash without its salt and parameters, in bytes.
const MIN_OUTPUT: usize = 16;
/// The maximum length of a stored hash with its salt and parameters, in bytes.
const MAX_STORED: usize = 256;

/// Beginnings that have a meaning in OpenVPN's password field: the answers to challenges, and tokens.
const RESERVED: [&str; 3] = ["SCRV1:", "CRV1:", "SESS_ID_"];

/// An Argon2id hash with its salt and parameters, in the PHC string format.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PasswordHash(String);

impl PasswordHash {
    /// Hashes a new password.
    ///
    /// # Errors
    /// The password is too short, too long, or has characters that a client cannot send.
    pub fn new(password: &str) -> Result<Self, PkiError> {
        check_new(password)?;
        Self::hash(password.as_bytes())
    }

    /// Creates the hash of a random password that no user has. A login under an unknown name is verified against it, so
    /// that it takes as long as one under a known name.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn of_no_user() -> Result<Self, PkiError> {
        Self::hash(&issue::random::<32>()?)
    }

    fn hash(password: &[u8]) -> Result<Self, PkiError> {
        let failed = |error: argon2::password_hash::Error| PkiError::Crypto(error.to_string());
        let salt = SaltString::encode_b64(&issue::random::<16>()?).map_err(failed)?;
        let params = Params::new(MEMORY_KIB, PASSES, 1, None)
            .map_err(|error| PkiError::Crypto(error.to_string()))?;
        let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        Ok(Self(hasher.hash_password(password, &salt).map_err(failed)?.to_string()))
    }

    /// Returns whether this is the password's hash. Needs about 19 MiB and tens of milliseconds, so it belongs on a thread
    /// that may block. A password that is much too long is not hashed.
    pub fn verify(&self, password: &str) -> bool {
        if password.len() > MAX_HASHED {
            return false;
        }
        let Ok(stored) = Phc::new(&self.0) else { return false };
        Argon2::default().verify_password(password.as_bytes(), &stored).is_ok()
    }
}

impl TryFrom<String> for PasswordHash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = |why: &str| Err(format!("password hash: {why}"));
        if text.len() > MAX_STORED {
            return bad("too long");
        }
        let Ok(stored) = Phc::new(&text) else { return bad("not in the PHC string format") };
        if stored.algorithm != argon2::ARGON2ID_IDENT {
            return bad("not Argon2id");
        }
        let Ok(params) = Params::try_from(&stored) else { return bad("unknown parameters") };
        if params.m_cost() > MAX_MEMORY_KIB
            || params.t_cost() > MAX_PASSES
            || params.p_cost() > MAX_LANES
        {
            return bad("its parameters need too much memory or time");
        }
        if stored.hash.is_none_or(|hash| hash.len() < MIN_OUTPUT) || stored.salt.is_none() {
            return bad("incomplete");
        }
        Ok(Self(text))
    }
}

impl From<PasswordHash> for String {
    fn from(hash: PasswordHash) -> Self {
        hash.0
    }
}

// Written by hand because a hash can be attacked offline.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

/// Checks whether a password can be set.
fn check_new(password: &str) -> Result<(), PkiError> {
    let bad = |why| Err(PkiError::BadPassword(why));
    if password.chars().count() < MIN_CHARS {
        return bad("it has fewer than 8 characters");
    }
    if password.len() > MAX_BYTES {
        return bad("it is longer than 128 bytes");
    }
    if password.chars().any(char::is_control) {
        return bad("it has a control character, which clients cannot send");
    }
    if RESERVED.iter().any(|reserved| password.starts_with(reserved)) {
        return bad("it begins like an answer to a challenge or like a token");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_verifies_and_any_other_does_not() {
        for password in ["correct horse", "pässwörter", "пароль-пароль", "with space at end "]
        {
            let hash = PasswordHash::new(password).unwrap();
            assert!(hash.verify(password), "{password}");
            for other in ["", "correct hors", "correct horse ", "Correct horse", "passworter"] {
                assert!(!hash.verify(other), "{password}: {other}");
            }
            let stored = String::from(hash.clone());
            assert!(stored.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{stored}");
            assert_eq!(PasswordHash::try_from(stored).unwrap(), hash);
        }
    }

    #[test]
    fn two_hashes_of_a_password_have_two_salts() {
        let [one, other] = [0; 2].map(|_| PasswordHash::new("correct horse").unwrap());
        assert_ne!(one, other);
        assert!(!format!("{one:?}").contains("argon2"));
    }

    #[test]
    fn each_rule_for_a_new_password_refuses_alone() {
        for (password, why) in [
            ("seven77", "fewer than 8"),
            (&*"x".repeat(129), "longer than 128"),
            ("line\nbreak", "control"),
            ("nul\0inside", "control"),
            ("SCRV1:abcdef", "challenge"),
            ("CRV1:abcdefg", "challenge"),
            ("SESS_ID_AT_x", "token"),
        ] {
            let error = PasswordHash::new(password).unwrap_err().to_string();
            assert!(error.contains(why), "{password:?}: {error}");
        }
        PasswordHash::new(&"x".repeat(128)).unwrap();
    }

    /// The hash belongs to this very password, so only the length check refuses it.
    #[test]
    fn a_password_that_is_too_long_is_not_hashed() {
        let long = "x".repeat(MAX_HASHED + 1);
        let hash = PasswordHash::hash(long.as_bytes()).unwrap();
        assert!(!hash.verify(&long));
    }

    #[test]
    fn a_stored_hash_cannot_ask_for_too_much() {
        let tail = "$c2FsdHNhbHRzYWx0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let parse = |head: &str| PasswordHash::try_from(format!("{head}{tail}"));
        parse("$argon2id$v=19$m=19456,t=2,p=1").unwrap();
        for (head, why) in [
            ("$argon2i$v=19$m=19456,t=2,p=1", "not Argon2id"),
            ("$argon2id$v=19$m=65537,t=2,p=1", "too much"),
            ("$argon2id$v=19$m=19456,t=17,p=1", "too much"),
            ("$argon2id$v=19$m=19456,t=2,p=5", "too much"),
            ("$argon2id$v=19$m=x,t=2,p=1", "parameters"),
            ("", "PHC"),
        ] {
            let error = parse(head).unwrap_err();
            assert!(error.contains(why), "{head}: {error}");
        }
        let bare = PasswordHash::try_from("$argon2id$v=19$m=19456,t=2,p=1".to_owned());
        assert!(bare.unwrap_err().contains("incomplete"));
        let long = format!("$argon2id$v=19$m=19456,t=2,p=1{}", "x".repeat(256));
        assert!(PasswordHash::try_from(long).unwrap_err().contains("too long"));
    }
}
