//! Ed25519 signatures (RFC 8032).

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

use crate::{CryptoError, sha256};

/// Length of the secret seed, bytes.
pub const SEED_LEN: usize = 32;

/// Length of the public key, bytes.
pub const PUBLIC_LEN: usize = 32;

/// Length of a signature, bytes.
pub const SIGNATURE_LEN: usize = 64;

/// A key that signs.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    seed: Zeroizing<[u8; SEED_LEN]>,
    public: [u8; PUBLIC_LEN],
}

impl SigningKey {
    /// Creates the key from a seed of 32 random bytes.
    ///
    /// # Errors
    /// The library failed.
    pub fn from_seed(seed: &[u8; SEED_LEN]) -> Result<Self, CryptoError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| CryptoError)?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| CryptoError)?;
        Ok(Self { pair, seed: Zeroizing::new(*seed), public })
    }

    /// Returns the seed that the key was derived from. It is secret.
    pub fn seed(&self) -> &[u8; SEED_LEN] {
        &self.seed
    }

    /// Returns the SHA-256 of the public key: the key's name in a mesh.
    pub fn public_hash(&self) -> [u8; 32] {
        sha256(&[&self.public()])
    }

    /// Returns the public key, which verifies its signatures.
    pub fn public(&self) -> [u8; PUBLIC_LEN] {
        self.public
    }

    /// Signs a message. The same message always gets the same signature.
    ///
    /// # Errors
    /// The library failed.
    pub fn sign(&self, message: &[u8]) -> Result<[u8; SIGNATURE_LEN], CryptoError> {
        let signature = self.pair.try_sign(message).map_err(|_| CryptoError)?;
        signature.as_ref().try_into().map_err(|_| CryptoError)
    }
}

// Written by hand so that keys never reach a log.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// Returns whether `signature` is a valid signature of `message` under `public`.
#[must_use]
pub fn verify(public: &[u8; PUBLIC_LEN], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(message, signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
    }

    /// RFC 8032, 7.1, test 2.
    #[test]
    fn the_second_vector_of_the_rfc() {
        let seed = hex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb");
        let key = SigningKey::from_seed(&seed).unwrap();
        let public = hex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
        assert_eq!(key.public(), public);
        let expected: [u8; 64] =
            hex("92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00");
        assert_eq!(key.sign(&[0x72]).unwrap(), expected);
        assert!(verify(&public, &[0x72], &expected));
    }

    #[test]
    fn another_key_message_or_signature_is_refused() {
        let key = SigningKey::from_seed(&[7; 32]).unwrap();
        let signature = key.sign(b"yes").unwrap();
        assert!(verify(&key.public(), b"yes", &signature));
        assert!(!verify(&key.public(), b"yet", &signature));
        assert!(!verify(&SigningKey::from_seed(&[8; 32]).unwrap().public(), b"yes", &signature));
        for at in 0..SIGNATURE_LEN {
            let mut other = signature;
            other[at] ^= 1;
            assert!(!verify(&key.public(), b"yes", &other), "byte {at}");
        }
        assert!(!verify(&key.public(), b"yes", &signature[..63]));
        assert_eq!(format!("{key:?}"), "SigningKey(..)");
    }
}
