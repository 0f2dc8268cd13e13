//! A cache of peers' certificates that were accepted, so that their fields need not be parsed
//! again.
//!
//! Subject, serial number, form and purpose depend on the certificate alone, and reading them is as
//! much work as the key exchange. Whether a path to a CA exists at the present time and under the
//! revocation lists is checked each time; so is the peer's proof that it has the key.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::sync::{Mutex, PoisonError};

use adit_crypto::sha256;

use super::identity::PeerIdentity;

/// The number of slots, of about 600 bytes each. A new certificate replaces the one in its slot.
const PLACES: usize = 256;

/// SHA-256 of a certificate and of the role that it was presented for.
type Sha256 = [u8; 32];

type Entry = Box<(Sha256, PeerIdentity)>;

/// The identities in certificates that passed all checks, as many as fit.
#[derive(Debug, Default)]
pub(super) struct CertCache(Mutex<Vec<Option<Entry>>>);

impl CertCache {
    /// Returns the key under which a certificate is cached.
    pub(super) fn digest(der: &[u8], peer_is_server: bool) -> Sha256 {
        sha256(&[&[u8::from(peer_is_server)], der])
    }

    fn place(digest: &Sha256) -> usize {
        let [a, b, ..] = *digest;
        usize::from(u16::from_be_bytes([a, b])) % PLACES
    }

    /// Returns the identity in the certificate, if it was accepted before.
    pub(super) fn get(&self, digest: &Sha256) -> Option<PeerIdentity> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, identity) = &**kept.get(Self::place(digest))?.as_ref()?;
        (of == digest).then(|| identity.clone())
    }

    /// Records a certificate that was accepted.
    pub(super) fn keep(&self, digest: Sha256, identity: &PeerIdentity) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            kept.resize_with(PLACES, || None);
        }
        if let Some(place) = kept.get_mut(Self::place(&digest)) {
            *place = Some(Box::new((digest, identity.clone())));
        }
    }

    /// Clears the cache.
    pub(super) fn release_memory(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn named(name: &str) -> PeerIdentity {
        PeerIdentity { common_name: name.into(), ..PeerIdentity::default() }
    }

    #[test]
    fn one_is_known_as_what_it_came_as_and_by_every_byte() {
        let cache = CertCache::default();
        let digest = CertCache::digest(b"der", false);
        assert_eq!(cache.get(&digest), None);
        cache.keep(digest, &named("a"));
        assert_eq!(cache.get(&digest), Some(named("a")));
        for (der, server) in [(&b"der"[..], true), (b"deR", false), (b"der\0", false), (b"", false)]
        {
            assert_eq!(cache.get(&CertCache::digest(der, server)), None);
        }
    }

    #[test]
    fn one_that_takes_the_place_of_another_is_not_taken_for_it() {
        let cache = CertCache::default();
        let (mut first, mut second) = ([7; 32], [7; 32]);
        (first[31], second[31]) = (1, 2);
        cache.keep(first, &named("first"));
        assert_eq!(cache.get(&second), None);
        cache.keep(second, &named("second"));
        assert_eq!((cache.get(&first), cache.get(&second)), (None, Some(named("second"))));
    }

    #[test]
    fn no_more_are_kept_than_there_are_places() {
        let cache = CertCache::default();
        for n in 0..4 * PLACES as u64 {
            cache.keep(CertCache::digest(&n.to_be_bytes(), false), &named("a"));
        }
        assert_eq!(cache.0.lock().unwrap().len(), PLACES);
        cache.release_memory();
        assert_eq!(cache.0.lock().unwrap().capacity(), 0);
    }
}
