//! HKDF (RFC 5869) for TLS 1.3's key schedule (RFC 8446, section 7.1). Each HMAC key is computed
//! once, and the first one once for all schedules.
//!
//! The library's own implementation computes the two blocks of a key again for each of the two to
//! four values that it expands from it, which is half of the schedule's cost.

use std::sync::LazyLock;

use aws_lc_rs::hmac;
use rustls::crypto::hmac::Tag;
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use rustls::{CipherSuite, CipherSuiteCommon, SupportedCipherSuite, Tls13CipherSuite};

static SHA256: Schedule =
    Schedule { hash: hmac::HMAC_SHA256, early: LazyLock::new(|| early_secret(hmac::HMAC_SHA256)) };
static SHA384: Schedule =
    Schedule { hash: hmac::HMAC_SHA384, early: LazyLock::new(|| early_secret(hmac::HMAC_SHA384)) };

static SUITES: LazyLock<Vec<Tls13CipherSuite>> = LazyLock::new(|| {
    let all = rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
    all.iter().filter_map(|suite| suite.tls13()).filter_map(with_schedule).collect()
});

/// Returns the same suite with this key schedule; a suite of TLS 1.2 is returned unchanged.
pub(super) fn of(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let ours = SUITES.iter().find(|ours| ours.common.suite == suite.suite());
    ours.map_or(suite, SupportedCipherSuite::Tls13)
}

fn with_schedule(suite: &Tls13CipherSuite) -> Option<Tls13CipherSuite> {
    let hkdf_provider = match suite.common.suite {
        CipherSuite::TLS13_AES_256_GCM_SHA384 => &SHA384,
        CipherSuite::TLS13_AES_128_GCM_SHA256 | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => {
            &SHA256
        }
        // A suite that is not known here keeps its own key schedule.
        _ => return None,
    };
    Some(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: suite.common.confidentiality_limit,
        },
        hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: suite.quic,
    })
}

struct Schedule {
    hash: hmac::Algorithm,
    /// The secret that every schedule without a pre-shared key begins with, the same for all.
    early: LazyLock<hmac::Key>,
}

fn early_secret(hash: hmac::Algorithm) -> hmac::Key {
    let zeros = OkmBlock::new(&[0; OkmBlock::MAX_LEN]);
    extract(hash, None, zeros.as_ref().get(..hash.tag_len()).unwrap_or(&[]))
}

fn extract(hash: hmac::Algorithm, salt: Option<&[u8]>, secret: &[u8]) -> hmac::Key {
    // HMAC pads a short key with zeros, so no salt is equivalent to a salt of zeros.
    let salt = hmac::Key::new(hash, salt.unwrap_or(&[]));
    hmac::Key::new(hash, hmac::sign(&salt, secret).as_ref())
}

impl Hkdf for Schedule {
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        let Some(salt) = salt else { return Box::new(Expander(self.early.clone())) };
        let zeros = OkmBlock::new(&[0; OkmBlock::MAX_LEN]);
        let zeros = zeros.as_ref().get(..self.hash.tag_len()).unwrap_or(&[]);
        Box::new(Expander(extract(self.hash, Some(salt), zeros)))
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        Box::new(Expander(extract(self.hash, salt, secret)))
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        Box::new(Expander(hmac::Key::new(self.hash, okm.as_ref())))
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> Tag {
        Tag::new(hmac::sign(&hmac::Key::new(self.hash, key.as_ref()), message).as_ref())
    }
}

struct Expander(hmac::Key);

impl Expander {
    fn block(&self, before: &[u8], info: &[&[u8]], number: u8) -> Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(before);
        for part in info {
            context.update(part);
        }
        context.update(&[number]);
        Tag::new(context.sign().as_ref())
    }
}

impl HkdfExpander for Expander {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        let mut block = Tag::new(&[]);
        for (index, chunk) in output.chunks_mut(self.hash_len()).enumerate() {
            let number = index.checked_add(1).and_then(|number| u8::try_from(number).ok());
            block = self.block(block.as_ref(), info, number.ok_or(OutputLengthError)?);
            for (to, from) in chunk.iter_mut().zip(block.as_ref()) {
                *to = *from;
            }
        }
        Ok(())
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        OkmBlock::new(self.block(&[], info, 1).as_ref())
    }

    fn hash_len(&self) -> usize {
        self.0.algorithm().tag_len()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    fn expanded(expander: &dyn HkdfExpander, len: usize) -> Option<Vec<u8>> {
        let mut out = vec![0xa5; len];
        expander.expand_slice(&[b"tls13 ", b"", b"derived"], &mut out).ok().map(|()| out)
    }

    #[test]
    fn gives_what_the_librarys_own_gives() {
        for theirs in rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES {
            let ours = of(*theirs);
            assert_eq!(ours.suite(), theirs.suite());
            let Some(theirs) = theirs.tls13() else { continue };
            let ours = ours.tls13().unwrap();
            assert!(!std::ptr::eq(ours, theirs), "each suite of TLS 1.3 is replaced");
            assert_eq!(ours.common.confidentiality_limit, theirs.common.confidentiality_limit);
            let (ours, theirs) = (ours.hkdf_provider, theirs.hkdf_provider);
            let key = OkmBlock::new(&[7; 48]);
            assert_eq!(ours.hmac_sign(&key, b"m").as_ref(), theirs.hmac_sign(&key, b"m").as_ref());
            let salts: [Option<&[u8]>; 3] = [None, Some(&[]), Some(&[9; 200])];
            let pairs = salts.into_iter().flat_map(|salt| {
                [
                    (ours.extract_from_zero_ikm(salt), theirs.extract_from_zero_ikm(salt)),
                    (
                        ours.extract_from_secret(salt, &[5; 32]),
                        theirs.extract_from_secret(salt, &[5; 32]),
                    ),
                ]
            });
            let of_key = (ours.expander_for_okm(&key), theirs.expander_for_okm(&key));
            for (ours, theirs) in pairs.chain([of_key]) {
                assert_eq!(ours.hash_len(), theirs.hash_len());
                let blocks = [&ours, &theirs].map(|expander| expander.expand_block(&[b"a", b"b"]));
                assert_eq!(blocks[0].as_ref(), blocks[1].as_ref());
                let most = 255 * ours.hash_len();
                for len in [0, 1, 12, 16, 32, 48, 49, 200, most] {
                    assert_eq!(expanded(&*ours, len).unwrap(), expanded(&*theirs, len).unwrap());
                }
                assert_eq!(expanded(&*ours, most + 1), None);
            }
        }
    }
}
