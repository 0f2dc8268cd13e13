//! The key exchange over P-521, which rustls lacks and some installers choose (`ecdh-curve secp521r1`).

use aws_lc_rs::agreement::{
    ECDH_P521, EphemeralPrivateKey, PublicKey, UnparsedPublicKey, agree_ephemeral,
};
use aws_lc_rs::rand::SystemRandom;
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// The group secp521r1.
pub(super) static SECP521R1: &dyn SupportedKxGroup = &Secp521r1;

/// The first byte of an uncompressed point, the only form that TLS allows (RFC 8446, section 4.2.8.2).
const UNCOMPRESSED: u8 = 4;

#[derive(Debug)]
struct Secp521r1;

impl SupportedKxGroup for Secp521r1 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let started = EphemeralPrivateKey::generate(&ECDH_P521, &SystemRandom::new())
            .and_then(|private| Ok((private.compute_public_key()?, private)));
        let (public, private) = started.map_err(|_| Error::FailedToGetRandomBytes)?;
        Ok(Box::new(Exchange { private, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

struct Exchange {
    private: EphemeralPrivateKey,
    public: PublicKey,
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let refused = || Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);
        if peer.first() != Some(&UNCOMPRESSED) {
            return Err(refused());
        }
        let peer = UnparsedPublicKey::new(&ECDH_P521, peer);
        agree_ephemeral(self.private, peer, refused(), |secret| Ok(SharedSecret::from(secret)))
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_ref()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_derive_one_secret_and_refuse_other_points() {
        let (one, other) = (SECP521R1.start().unwrap(), SECP521R1.start().unwrap());
        let (public, far) = (one.pub_key().to_vec(), other.pub_key().to_vec());
        assert_eq!(public.len(), 133);
        let secrets = [one.complete(&far).unwrap(), other.complete(&public).unwrap()];
        assert_eq!(secrets[0].secret_bytes(), secrets[1].secret_bytes());
        let refused = |point: &[u8]| SECP521R1.start().unwrap().complete(point).is_err();
        let mut off_the_curve = public.clone();
        off_the_curve[100] ^= 1;
        // A compressed point is valid, but not in TLS.
        let compressed = [&[2 | (public[132] & 1)][..], &public[1..67]].concat();
        for point in [&off_the_curve, &compressed, &public[..132].to_vec(), &Vec::new()] {
            assert!(refused(point), "{} bytes", point.len());
        }
    }
}
