//! Verification of signatures made with RSA keys of 1024 to 2047 bits, or with SHA-1, for `tls-cert-profile legacy` and
//! `insecure`.
//!
//! The TLS library refuses both. Signatures made with longer keys are still verified by its own algorithms.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::sync::LazyLock;

use aws_lc_rs::digest;
use aws_lc_rs::signature::{self, RsaParameters, UnparsedPublicKey};
use num_bigint::BigUint;
use rustls::SignatureScheme;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::RSAPublicKey;

use super::options::CertProfile;

/// The minimum size of an RSA modulus in bits under `tls-cert-profile legacy`.
pub(super) const LEAST_BITS: u64 = 1024;
/// The minimum size of an RSA modulus in bits for the library's own algorithms.
const STRONG_BITS: u64 = 2048;
/// The maximum size of the public exponent of a weak key in bits. Common exponents are 3, 17 and
/// 65537.
const MAX_EXPONENT_BITS: u64 = 33;

/// `sha1WithRSAEncryption`, for which the library has no name.
const RSA_PKCS1_SHA1: AlgorithmIdentifier = AlgorithmIdentifier::from_slice(&[
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05, 0x05, 0x00,
]);

/// The padding of a message's hash to the length of the modulus.
#[derive(Debug)]
enum Padding {
    Pkcs1(&'static RsaParameters),
    Pss(&'static digest::Algorithm),
}

/// Verifies signatures by keys of [`LEAST_BITS`] or more.
#[derive(Debug)]
struct AnyRsa {
    id: AlgorithmIdentifier,
    scheme: Option<SignatureScheme>,
    padding: Padding,
    /// The library's algorithm for longer keys.
    strong: Option<&'static dyn SignatureVerificationAlgorithm>,
}

impl SignatureVerificationAlgorithm for AnyRsa {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let Ok((_, key)) = RSAPublicKey::from_der(public_key) else { return Err(InvalidSignature) };
        let modulus = BigUint::from_bytes_be(key.modulus);
        match (modulus.bits(), self.strong) {
            (..LEAST_BITS, _) => Err(InvalidSignature),
            (STRONG_BITS.., Some(strong)) => {
                strong.verify_signature(public_key, message, signature)
            }
            _ => match &self.padding {
                Padding::Pkcs1(parameters) => UnparsedPublicKey::new(*parameters, public_key)
                    .verify(message, signature)
                    .map_err(|_| InvalidSignature),
                Padding::Pss(hash) => {
                    let exponent = BigUint::from_bytes_be(key.exponent);
                    verify_pss(&modulus, &exponent, hash, message, signature)
                        .ok_or(InvalidSignature)
                }
            },
        }
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::RSA_ENCRYPTION
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.id
    }
}

/// Verifies a signature with RSASSA-PSS-VERIFY, MGF1 and a salt as long as the hash (RFC 8017,
/// 8.1.2 and 9.1.2). All its input is public.
fn verify_pss(
    modulus: &BigUint,
    exponent: &BigUint,
    hash: &'static digest::Algorithm,
    message: &[u8],
    signature: &[u8],
) -> Option<()> {
    let bytes = |bits: u64| usize::try_from(bits.div_ceil(8)).ok();
    let signed = BigUint::from_bytes_be(signature);
    let odd = modulus.bit(0) && exponent.bit(0);
    if signature.len() != bytes(modulus.bits())?
        || signed >= *modulus
        || !odd
        || !(2..=MAX_EXPONENT_BITS).contains(&exponent.bits())
    {
        return None;
    }
    let bits = modulus.bits().checked_sub(1)?;
    let length = bytes(bits)?;
    let encoded = signed.modpow(exponent, modulus).to_bytes_be();
    let mut padded = vec![0; length.checked_sub(encoded.len())?];
    padded.extend(encoded);
    // The block is maskedDB | H | 0xbc.
    let hash_len = hash.output_len();
    let (rest, trailer) = padded.split_last().map(|(last, rest)| (rest, *last))?;
    let (masked, digest) = rest.split_at_checked(rest.len().checked_sub(hash_len)?)?;
    let spare =
        u32::try_from(u64::try_from(length).ok()?.checked_mul(8)?.checked_sub(bits)?).ok()?;
    let used = 0xff_u8.checked_shr(spare)?;
    if trailer != 0xbc || masked.first()? & !used != 0 {
        return None;
    }
    let mut block = masked.to_vec();
    mask(&mut block, hash, digest);
    *block.first_mut()? &= used;
    // The unmasked DB is zeros | 0x01 | salt.
    let (zeros, salt) = block.split_at_checked(block.len().checked_sub(hash_len)?)?;
    let (one, zeros) = zeros.split_last()?;
    if *one != 1 || zeros.iter().any(|byte| *byte != 0) {
        return None;
    }
    let mut context = digest::Context::new(hash);
    context.update(&[0; 8]);
    context.update(digest::digest(hash, message).as_ref());
    context.update(salt);
    (context.finish().as_ref() == digest).then_some(())
}

/// Applies MGF1 of `seed` to `block` with exclusive or.
fn mask(block: &mut [u8], hash: &'static digest::Algorithm, seed: &[u8]) {
    for (counter, part) in (0_u32..).zip(block.chunks_mut(hash.output_len())) {
        let mut context = digest::Context::new(hash);
        context.update(seed);
        context.update(&counter.to_be_bytes());
        let stream = context.finish();
        part.iter_mut().zip(stream.as_ref()).for_each(|(byte, with)| *byte ^= with);
    }
}

/// Returns the algorithms of a profile; `usual` are the TLS library's.
pub(super) fn algorithms(
    profile: CertProfile,
    usual: WebPkiSupportedAlgorithms,
) -> WebPkiSupportedAlgorithms {
    static LEGACY: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| extended(false));
    static INSECURE: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| extended(true));
    match profile {
        CertProfile::Preferred => usual,
        CertProfile::Legacy => *LEGACY,
        CertProfile::Insecure => *INSECURE,
    }
}

/// Returns the library's algorithms with ours before them, because the first one that fits decides.
/// The list is created once per process.
fn extended(sha1: bool) -> WebPkiSupportedAlgorithms {
    let usual = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
    let strong = |id: AlgorithmIdentifier| {
        usual.all.iter().copied().find(|known| {
            known.signature_alg_id() == id && known.public_key_alg_id() == alg_id::RSA_ENCRYPTION
        })
    };
    let new = |id, scheme, padding| AnyRsa { id, scheme, padding, strong: strong(id) };
    let mut ours = vec![
        new(
            alg_id::RSA_PKCS1_SHA256,
            Some(SignatureScheme::RSA_PKCS1_SHA256),
            Padding::Pkcs1(&signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY),
        ),
        new(
            alg_id::RSA_PKCS1_SHA512,
            Some(SignatureScheme::RSA_PKCS1_SHA512),
            Padding::Pkcs1(&signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY),
        ),
        new(
            alg_id::RSA_PSS_SHA256,
            Some(SignatureScheme::RSA_PSS_SHA256),
            Padding::Pss(&digest::SHA256),
        ),
        new(
            alg_id::RSA_PSS_SHA384,
            Some(SignatureScheme::RSA_PSS_SHA384),
            Padding::Pss(&digest::SHA384),
        ),
    ];
    if sha1 {
        // This algorithm is only for certificates. No handshake is signed with it.
        let padding = Padding::Pkcs1(&signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY);
        ours.push(new(RSA_PKCS1_SHA1, None, padding));
    }
    let ours: &'static [AnyRsa] = Box::leak(ours.into_boxed_slice());
    let of_ours = |algorithm| algorithm as &'static dyn SignatureVerificationAlgorithm;
    let all: Vec<_> = ours.iter().map(of_ours).chain(usual.all.iter().copied()).collect();
    let mapping: Vec<_> = usual
        .mapping
        .iter()
        .map(|&(scheme, known)| {
            let first = ours.iter().find(|ours| ours.scheme == Some(scheme)).map(of_ours);
            let both: Vec<_> = first.into_iter().chain(known.iter().copied()).collect();
            (scheme, &*both.leak())
        })
        .collect();
    WebPkiSupportedAlgorithms { all: all.leak(), mapping: mapping.leak() }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The output of `openssl dgst -sha256 -sigopt rsa_padding_mode:pss -sigopt
    /// rsa_pss_saltlen:digest` and `-sha384` over [`MESSAGE`]; the keys have 1024 and 1025 bits.
    const VECTORS: &str = include_str!("fixtures/weak-rsa.txt");
    const MESSAGE: &[u8] = b"signed by a weak key";

    fn vectors() -> Vec<(AlgorithmIdentifier, Vec<u8>, Vec<u8>)> {
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len() / 2)
                .map(|i| u8::from_str_radix(text.get(2 * i..2 * i + 2).unwrap(), 16).unwrap())
                .collect()
        };
        let vector = |line: &str| {
            let mut words = line.split(' ');
            let id = match words.next().unwrap() {
                "pss256" => alg_id::RSA_PSS_SHA256,
                "pss384" => alg_id::RSA_PSS_SHA384,
                "pkcs256" => alg_id::RSA_PKCS1_SHA256,
                "pkcs512" => alg_id::RSA_PKCS1_SHA512,
                "pkcs1" => RSA_PKCS1_SHA1,
                other => panic!("{other}"),
            };
            (id, hex(words.next().unwrap()), hex(words.next().unwrap()))
        };
        VECTORS.lines().map(vector).collect()
    }

    fn first(
        profile: CertProfile,
        id: AlgorithmIdentifier,
    ) -> Option<&'static dyn SignatureVerificationAlgorithm> {
        let usual = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        let all = algorithms(profile, usual).all;
        all.iter().copied().find(|known| known.signature_alg_id() == id)
    }

    #[test]
    fn signatures_of_openssl_are_right_and_no_others() {
        let vectors = vectors();
        assert!(vectors.len() >= 7);
        for (id, key, signature) in &vectors {
            let algorithm = first(CertProfile::Insecure, *id).unwrap();
            algorithm.verify_signature(key, MESSAGE, signature).unwrap();
            algorithm.verify_signature(key, b"signed by a weak kex", signature).unwrap_err();
            for at in [0, 1, signature.len() / 2, signature.len() - 1] {
                let mut bad = signature.clone();
                bad[at] ^= 1;
                algorithm.verify_signature(key, MESSAGE, &bad).unwrap_err();
            }
            algorithm.verify_signature(key, MESSAGE, &signature[1..]).unwrap_err();
            algorithm.verify_signature(key, MESSAGE, &[]).unwrap_err();
            let longer = [signature.as_slice(), &[0]].concat();
            algorithm.verify_signature(key, MESSAGE, &longer).unwrap_err();
            // The usual algorithms support no such key or signature.
            if let Some(strict) = first(CertProfile::Preferred, *id) {
                strict.verify_signature(key, MESSAGE, signature).unwrap_err();
            }
            let other = vectors.iter().find(|(_, other, _)| other != key).unwrap();
            algorithm.verify_signature(&other.1, MESSAGE, signature).unwrap_err();
        }
        assert!(first(CertProfile::Legacy, RSA_PKCS1_SHA1).is_none());
    }

    #[test]
    fn keys_below_the_least_are_refused() {
        // modulus 2^512 + 1, exponent 3
        let mut key = vec![0x30, 0x46, 0x02, 0x41, 0x01];
        key.extend([0; 63]);
        key.extend([0x01, 0x02, 0x01, 0x03]);
        for (id, ..) in vectors() {
            let algorithm = first(CertProfile::Insecure, id).unwrap();
            algorithm.verify_signature(&key, MESSAGE, &[0; 65]).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(
            key in proptest::collection::vec(any::<u8>(), 0..200),
            signature in proptest::collection::vec(any::<u8>(), 0..200),
            modulus in proptest::collection::vec(any::<u8>(), 128..140),
        ) {
            for id in [alg_id::RSA_PSS_SHA256, alg_id::RSA_PKCS1_SHA512] {
                let algorithm = first(CertProfile::Insecure, id).unwrap();
                let _ = algorithm.verify_signature(&key, MESSAGE, &signature);
            }
            let modulus = BigUint::from_bytes_be(&modulus);
            let exponent = BigUint::from(3_u8);
            let _ = verify_pss(&modulus, &exponent, &digest::SHA384, MESSAGE, &signature);
        }
    }
}
