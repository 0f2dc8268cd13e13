//! A cache of valid signatures on certificates and revocation lists.
//!
//! A peer presents the same certificate in every renegotiation and on every return, and verifying
//! its issuer's signature again is a tenth of a handshake's cost. Whether a signature is valid
//! depends on key, text and signature alone. Checks that depend on more (time, revocation, purpose,
//! names) are made each time, and so is that of the peer's own signature, which differs in every
//! handshake.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::sync::{Arc, Mutex, PoisonError};

use super::revocation::Restored;
use adit_crypto::sha256;
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

/// The number of slots, 32 KiB in all. A new signature replaces the one in its slot.
const PLACES: usize = 1024;

/// SHA-256 of a valid signature and of everything that its validity depends on. All zeros: an empty
/// slot.
type Sha256 = [u8; 32];

const EMPTY: Sha256 = [0; 32];

/// The valid signatures, as many as fit.
#[derive(Debug, Default)]
struct SignatureCache(Mutex<Vec<Sha256>>);

impl SignatureCache {
    fn place(digest: &Sha256) -> usize {
        let [a, b, ..] = *digest;
        usize::from(u16::from_be_bytes([a, b])) % PLACES
    }

    fn has(&self, digest: &Sha256) -> bool {
        let digests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        digests.get(Self::place(digest)) == Some(digest) && *digest != EMPTY
    }

    fn keep(&self, digest: Sha256) {
        let mut digests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if digests.is_empty() {
            digests.resize(PLACES, EMPTY);
        }
        if let Some(place) = digests.get_mut(Self::place(&digest)) {
            *place = digest;
        }
    }
}

/// An algorithm that does not verify again a signature that was valid before.
#[derive(Debug)]
pub(super) struct CachingVerifier {
    algorithm: &'static dyn SignatureVerificationAlgorithm,
    cache: Arc<SignatureCache>,
    /// Rewritten texts with those that were signed instead.
    restored: Arc<[Restored]>,
}

impl CachingVerifier {
    /// Wraps these algorithms around one shared cache.
    pub(super) fn all(
        algorithms: &[&'static dyn SignatureVerificationAlgorithm],
        restored: Vec<Restored>,
    ) -> Vec<Self> {
        let (cache, restored) =
            (Arc::<SignatureCache>::default(), Arc::<[Restored]>::from(restored));
        let with =
            |&algorithm: &_| Self { algorithm, cache: cache.clone(), restored: restored.clone() };
        algorithms.iter().map(with).collect()
    }
}

impl SignatureVerificationAlgorithm for CachingVerifier {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let restored = self.restored.iter().find(|restored| restored.rewritten == message);
        let message = restored.map_or(message, |restored| restored.signed.as_slice());
        let (key_id, id) = (self.public_key_alg_id(), self.signature_alg_id());
        let parts = [&key_id, &*id, public_key, message, signature];
        // The lengths separate the parts.
        let lengths = parts.map(|part| u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        let [key_id, id, public_key, message, signature] = parts;
        let digest = sha256(&[lengths.as_flattened(), key_id, id, public_key, message, signature]);
        if self.cache.has(&digest) {
            return Ok(());
        }
        self.algorithm.verify_signature(public_key, message, signature)?;
        self.cache.keep(digest);
        Ok(())
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.signature_alg_id()
    }

    fn fips(&self) -> bool {
        self.algorithm.fips()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustls::pki_types::alg_id;

    use super::*;

    /// Accepts a signature that is the message reversed, and counts its calls.
    #[derive(Debug)]
    struct Backwards(AtomicUsize, AlgorithmIdentifier);

    impl SignatureVerificationAlgorithm for Backwards {
        fn verify_signature(
            &self,
            _: &[u8],
            text: &[u8],
            s: &[u8],
        ) -> Result<(), InvalidSignature> {
            self.0.fetch_add(1, Ordering::Relaxed);
            text.iter().rev().eq(s).then_some(()).ok_or(InvalidSignature)
        }

        fn public_key_alg_id(&self) -> AlgorithmIdentifier {
            alg_id::ECDSA_P256
        }

        fn signature_alg_id(&self) -> AlgorithmIdentifier {
            self.1
        }
    }

    fn backwards(id: AlgorithmIdentifier) -> &'static Backwards {
        Box::leak(Box::new(Backwards(AtomicUsize::new(0), id)))
    }

    #[test]
    fn what_was_right_is_not_computed_again_and_what_differs_in_anything_is() {
        let [first, second] = [alg_id::ECDSA_SHA256, alg_id::ECDSA_SHA384].map(backwards);
        let both = CachingVerifier::all(&[first, second], Vec::new());
        let asked = || (first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed));
        let [one, other] = both.as_slice() else { panic!("two") };
        for _ in 0..3 {
            one.verify_signature(b"key", b"text", b"txet").unwrap();
        }
        assert_eq!(asked(), (1, 0));
        one.verify_signature(b"yek", b"text", b"txet").unwrap();
        assert_eq!(asked(), (2, 0), "another key");
        one.verify_signature(b"key", b"texts", b"stxet").unwrap();
        assert_eq!(asked(), (3, 0), "another text");
        one.verify_signature(b"key", b"text", b"text").unwrap_err();
        assert_eq!(asked(), (4, 0), "another signature");
        one.verify_signature(b"keyt", b"ext", b"txet").unwrap_err();
        assert_eq!(asked(), (5, 0), "the same bytes, divided otherwise");
        other.verify_signature(b"key", b"text", b"txet").unwrap();
        assert_eq!(asked(), (5, 1), "another algorithm");
    }

    #[test]
    fn what_was_wrong_is_asked_again() {
        let algorithm = backwards(alg_id::ECDSA_SHA256);
        let all = CachingVerifier::all(&[algorithm], Vec::new());
        let one = all.first().unwrap();
        for _ in 0..3 {
            one.verify_signature(b"key", b"text", b"text").unwrap_err();
        }
        assert_eq!(algorithm.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_memory_is_bounded_and_an_empty_place_is_no_signature() {
        let cache = SignatureCache::default();
        assert!(!cache.has(&EMPTY) && !cache.has(&[7; 32]));
        for n in 0..u32::from(u16::MAX) {
            cache.keep(sha256(&[&n.to_be_bytes()]));
        }
        cache.keep([7; 32]);
        assert!(cache.has(&[7; 32]) && !cache.has(&[8; 32]) && !cache.has(&EMPTY));
        assert_eq!(cache.0.lock().unwrap().len(), PLACES);
    }
}
