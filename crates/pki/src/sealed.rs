//! Files that only a passphrase opens: Argon2id and AES-256-GCM.
//!
//! ```text
//! "adit-sealed 1\n"  memory, KiB  passes  salt  nonce  sealed content, with its tag
//!        14               4         4      16    12
//! ```
//!
//! Numbers are in big endian. Everything before the content is authenticated with it.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::{PkiError, issue};

const MAGIC: &[u8; 14] = b"adit-sealed 1\n";
const SALT: usize = 16;
/// The length of everything before the content.
const HEAD: usize = MAGIC.len() + 4 + 4 + SALT + NONCE_LEN;

/// The memory for the key, in KiB, and the number of passes: RFC 9106's second recommendation, for one lane. This module's tests need less.
const MEMORY_KIB: u32 = if cfg!(test) { 256 } else { 64 * 1024 };
const PASSES: u32 = 3;
/// The most that a file may require, so that it cannot exhaust the memory.
const MAX_MEMORY_KIB: u32 = 1024 * 1024;
const MAX_PASSES: u32 = 32;

/// The minimum length of a new passphrase, in characters.
const MIN_CHARS: usize = 10;
/// The maximum length of a passphrase, in bytes.
const MAX_BYTES: usize = 1024;

/// Seals a content under a passphrase.
///
/// # Errors
/// The passphrase is too short or too long, or the cryptographic library failed.
pub fn seal(passphrase: &str, content: &[u8]) -> Result<Vec<u8>, PkiError> {
    if passphrase.chars().count() < MIN_CHARS || passphrase.len() > MAX_BYTES {
        return Err(PkiError::BadSetting(
            "passphrase",
            format!("use {MIN_CHARS} characters or more, up to {MAX_BYTES} bytes"),
        ));
    }
    let (salt, nonce): ([u8; SALT], [u8; NONCE_LEN]) = (issue::random()?, issue::random()?);
    let mut sealed = Vec::with_capacity(HEAD.saturating_add(content.len()).saturating_add(16));
    sealed.extend_from_slice(MAGIC);
    sealed.extend_from_slice(&MEMORY_KIB.to_be_bytes());
    sealed.extend_from_slice(&PASSES.to_be_bytes());
    sealed.extend_from_slice(&salt);
    sealed.extend_from_slice(&nonce);
    let head = sealed.clone();
    let key = key(passphrase, &salt, MEMORY_KIB, PASSES)?;
    let mut text = Zeroizing::new(content.to_vec());
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = key
        .seal_in_place_separate_tag(nonce, Aad::from(&head), &mut text)
        .map_err(|_| failed("the content cannot be sealed"))?;
    sealed.extend_from_slice(&text);
    sealed.extend_from_slice(tag.as_ref());
    Ok(sealed)
}

/// Opens a file that [`seal`] made.
///
/// # Errors
/// The file is of another kind or version, the passphrase is wrong, or the file was altered.
pub fn open(passphrase: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, PkiError> {
    let bad = |why: &str| PkiError::BadSetting("sealed file", why.into());
    let (head, content) =
        sealed.split_at_checked(HEAD).ok_or_else(|| bad("it is too short to be one"))?;
    let (memory, passes, salt, nonce) =
        parse(head).ok_or_else(|| bad("it is of another kind, or made by a later version"))?;
    if memory > MAX_MEMORY_KIB || passes > MAX_PASSES || passphrase.len() > MAX_BYTES {
        return Err(bad("it requires more memory or time than any such file"));
    }
    let key = key(passphrase, &salt, memory, passes)?;
    let mut content = Zeroizing::new(content.to_vec());
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = key
        .open_in_place(nonce, Aad::from(head), &mut content)
        .map_err(|_| bad("the passphrase is wrong, or the file was altered"))?
        .len();
    content.truncate(opened);
    Ok(content)
}

type Head = (u32, u32, [u8; SALT], [u8; NONCE_LEN]);

fn parse(head: &[u8]) -> Option<Head> {
    let rest = head.strip_prefix(MAGIC)?;
    let (memory, rest) = rest.split_first_chunk()?;
    let (passes, rest) = rest.split_first_chunk()?;
    let (salt, rest) = rest.split_first_chunk()?;
    let nonce = rest.try_into().ok()?;
    Some((u32::from_be_bytes(*memory), u32::from_be_bytes(*passes), *salt, nonce))
}

fn key(
    passphrase: &str,
    salt: &[u8; SALT],
    memory: u32,
    passes: u32,
) -> Result<LessSafeKey, PkiError> {
    let params = Params::new(memory, passes, 1, Some(32)).map_err(failed)?;
    let mut key = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.as_bytes(), salt, &mut *key)
        .map_err(failed)?;
    let key = UnboundKey::new(&AES_256_GCM, &*key).map_err(|_| failed("no key"))?;
    Ok(LessSafeKey::new(key))
}

fn failed(error: impl std::fmt::Display) -> PkiError {
    PkiError::Crypto(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSPHRASE: &str = "correct horse battery";

    #[test]
    fn what_was_sealed_opens_with_the_passphrase_alone() {
        for content in [&b""[..], b"x", &[7; 100_000]] {
            let sealed = seal(PASSPHRASE, content).unwrap();
            assert_eq!(open(PASSPHRASE, &sealed).unwrap().as_slice(), content);
        }
        let sealed = seal(PASSPHRASE, b"secret").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_ne!(sealed, seal(PASSPHRASE, b"secret").unwrap());
        let error = open("correct horse batterz", &sealed).unwrap_err().to_string();
        assert!(error.contains("passphrase is wrong"), "{error}");
        for bad in ["", "too short", &"x".repeat(MAX_BYTES + 1)] {
            assert!(seal(bad, b"").is_err());
        }
    }

    #[test]
    fn an_altered_file_does_not_open() {
        let sealed = seal(PASSPHRASE, b"secret").unwrap();
        // The parameters' high bytes would ask for more memory than there is, which is refused before.
        let places = [0, MAGIC.len() + 3, MAGIC.len() + 7, 22, 38, HEAD, sealed.len() - 1];
        for at in places {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert!(open(PASSPHRASE, &altered).is_err(), "{at}");
        }
        for end in [0, 5, HEAD - 1, HEAD, sealed.len() - 1] {
            assert!(open(PASSPHRASE, &sealed[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_file_cannot_ask_for_all_memory_or_time() {
        let sealed = seal(PASSPHRASE, b"").unwrap();
        for at in [MAGIC.len(), MAGIC.len() + 4] {
            let mut greedy = sealed.clone();
            greedy[at] = 0x7f;
            let error = open(PASSPHRASE, &greedy).unwrap_err().to_string();
            assert!(error.contains("more memory or time"), "{error}");
        }
    }
}
