//! Peers' certificates that were let in before: what is written in them need not be read again.
//!
//! Subject, serial number, form and purpose depend on the certificate alone, and to read them is as much work as the
//! key exchange. Whether the path to a CA holds, now and by the revocation lists, is checked each time; so is the
//! peer's proof that it has the key.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::sync::{Mutex, PoisonError};

use adit_crypto::sha256;

use super::identity::PeerIdentity;

/// Certificates remembered, of about 600 bytes each. Another in the same place takes it.
const PLACES: usize = 256;

/// SHA-256 of a certificate and of what it was presented as.
type Print = [u8; 32];

type Kept = Box<(Print, PeerIdentity)>;

/// What certificates say that passed all checks, as many as fit.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<Option<Kept>>>);

impl Known {
    /// Under what a certificate is kept.
    pub(super) fn print(der: &[u8], peer_is_server: bool) -> Print {
        sha256(&[&[u8::from(peer_is_server)], der])
    }

    fn place(print: &Print) -> usize {
        let [a, b, ..] = *print;
        usize::from(u16::from_be_bytes([a, b])) % PLACES
    }

    /// What is written in it, if it was let in before.
    pub(super) fn get(&self, print: &Print) -> Option<PeerIdentity> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, identity) = &**kept.get(Self::place(print))?.as_ref()?;
        (of == print).then(|| identity.clone())
    }

    /// It was let in.
    pub(super) fn keep(&self, print: Print, identity: &PeerIdentity) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            kept.resize_with(PLACES, || None);
        }
        if let Some(place) = kept.get_mut(Self::place(&print)) {
            *place = Some(Box::new((print, identity.clone())));
        }
    }

    /// Forgets all of them.
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
        let known = Known::default();
        let print = Known::print(b"der", false);
        assert_eq!(known.get(&print), None);
        known.keep(print, &named("a"));
        assert_eq!(known.get(&print), Some(named("a")));
        for (der, server) in [(&b"der"[..], true), (b"deR", false), (b"der\0", false), (b"", false)]
        {
            assert_eq!(known.get(&Known::print(der, server)), None);
        }
    }

    #[test]
    fn one_that_takes_the_place_of_another_is_not_taken_for_it() {
        let known = Known::default();
        let (mut first, mut second) = ([7; 32], [7; 32]);
        (first[31], second[31]) = (1, 2);
        known.keep(first, &named("first"));
        assert_eq!(known.get(&second), None);
        known.keep(second, &named("second"));
        assert_eq!((known.get(&first), known.get(&second)), (None, Some(named("second"))));
    }

    #[test]
    fn no_more_are_kept_than_there_are_places() {
        let known = Known::default();
        for n in 0..4 * PLACES as u64 {
            known.keep(Known::print(&n.to_be_bytes(), false), &named("a"));
        }
        assert_eq!(known.0.lock().unwrap().len(), PLACES);
        known.release_memory();
        assert_eq!(known.0.lock().unwrap().capacity(), 0);
    }
}
