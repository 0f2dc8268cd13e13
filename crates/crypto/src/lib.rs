//! The AEADs, key derivations and MACs of adit behind one small interface.
//!
//! The implementation is aws-lc-rs, and RustCrypto for what it lacks. Apart from this crate, neither the data path nor the protocols refer to them.

#![forbid(unsafe_code)]

pub mod aead;
pub mod block;
pub mod chacha20;
mod cipher;
mod ctr;
mod digest;
pub mod epoch;
mod key;
mod prf;
mod scrub;
pub mod sign;
#[cfg(test)]
mod tests;
pub mod text;

pub use block::BlockCipher;
pub use cipher::Cipher;
pub use ctr::{Aes256Ctr, aes256_ctr};
pub use digest::{
    Digest, HmacKey, HmacStream, Mac, constant_time_eq, hash, hkdf_expand_sha256, hmac, sha256,
};
pub use key::DirectionKey;
pub use prf::tls1_prf;
pub use scrub::{scrub_packet_stack, scrub_stack};

/// A failure of the cryptographic library: a bug or a fault of the machine, never caused by the peer.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct CryptoError;

impl std::fmt::Display for CryptoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the cryptographic library failed")
    }
}

impl std::error::Error for CryptoError {}

/// Gathers the entropy that the library needs before its first random number.
///
/// This takes tens of milliseconds. A server calls it before it listens, so that its first client's handshake is not
/// delayed.
///
/// # Errors
/// No entropy is available.
pub fn gather_entropy() -> Result<(), CryptoError> {
    aws_lc_rs::rand::fill(&mut [0; 1]).map_err(|_| CryptoError)
}
