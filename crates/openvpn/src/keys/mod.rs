//! Key files, key method 2 and the data keys.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

mod crypt_v2;
mod data;
mod file;
mod method2;
mod static_key;
mod token_key;

pub(crate) use crypt_v2::split_wkc;
pub use crypt_v2::{
    ClientKey, MAX_METADATA_LEN, MAX_WKC_LEN, Metadata, ServerKey, UnwrapError, UnwrappedKey,
    WrapKeyError,
};
pub use data::{DATA_KEYS_LABEL, DYNAMIC_TLS_CRYPT_LABEL, DataKeys, EXPORTED_LEN, PrfInput, Role};
pub use file::KeyFileError;
pub use method2::{KeyMethod2, KeyMethod2Error, MAX_MESSAGE_LEN, Randoms};
pub use static_key::{Direction, StaticKey};
pub use token_key::TokenKey;

/// Parses key method 2 messages and key files, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    method2::fuzz(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = StaticKey::parse(text);
        let _ = ServerKey::parse(text);
        let _ = ClientKey::parse(text);
        let _ = TokenKey::parse(text);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::{unhex, vectors};
