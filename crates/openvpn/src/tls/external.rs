//! A private key that is not in this process: with a front end, or in a token.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt;
use std::sync::Arc;

use adit_crypto::{Digest, hash};
use rustls::crypto::SecureRandom;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use x509_parser::certificate::X509Certificate;
use x509_parser::public_key::PublicKey;

/// Signs with a private key that this process does not have.
pub trait KeyHolder: fmt::Debug + Send + Sync {
    /// Returns whether the holder makes signatures of this form.
    fn makes(&self, form: SignatureForm) -> bool;

    /// Signs. It may take as long as a person does, and the control thread waits for it.
    ///
    /// # Errors
    /// Says why there is no signature.
    fn sign(&self, form: SignatureForm, data: &[u8]) -> Result<Vec<u8>, String>;
}

/// The form of a signature, and of the data for it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SignatureForm {
    /// ECDSA of a digest.
    Ecdsa,
    /// RSA of a DigestInfo, to which the holder adds the padding of PKCS#1 version 1.5.
    Pkcs1,
    /// RSA of a digest, to which the holder adds the padding of PSS, with a salt as long as the digest.
    Pss(Digest),
    /// RSA of a block that is as long as the modulus.
    Raw,
}

/// The kind of the key, from its certificate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// RSA with this number of bits.
    Rsa(usize),
    Ec(SignatureScheme, Digest),
}

/// A key with its holder.
#[derive(Debug)]
pub(super) struct ExternalKey {
    holder: Arc<dyn KeyHolder>,
    kind: Kind,
    random: &'static dyn SecureRandom,
}

/// The schemes of RSA keys, the preferred ones first.
const RSA: [(SignatureScheme, Digest, bool); 6] = [
    (SignatureScheme::RSA_PSS_SHA256, Digest::Sha256, true),
    (SignatureScheme::RSA_PSS_SHA384, Digest::Sha384, true),
    (SignatureScheme::RSA_PSS_SHA512, Digest::Sha512, true),
    (SignatureScheme::RSA_PKCS1_SHA256, Digest::Sha256, false),
    (SignatureScheme::RSA_PKCS1_SHA384, Digest::Sha384, false),
    (SignatureScheme::RSA_PKCS1_SHA512, Digest::Sha512, false),
];

impl ExternalKey {
    /// Creates the key of a certificate. `None` if keys of its kind are not supported.
    pub(super) fn new(
        certificate: &X509Certificate<'_>,
        holder: Arc<dyn KeyHolder>,
        random: &'static dyn SecureRandom,
    ) -> Option<Self> {
        let spki = certificate.public_key();
        let kind = match spki.parsed().ok()? {
            PublicKey::RSA(key) => Kind::Rsa(key.key_size()),
            PublicKey::EC(_) => {
                let curve = spki.algorithm.parameters.as_ref()?.as_oid().ok()?.to_id_string();
                match curve.as_str() {
                    "1.2.840.10045.3.1.7" => {
                        Kind::Ec(SignatureScheme::ECDSA_NISTP256_SHA256, Digest::Sha256)
                    }
                    "1.3.132.0.34" => {
                        Kind::Ec(SignatureScheme::ECDSA_NISTP384_SHA384, Digest::Sha384)
                    }
                    "1.3.132.0.35" => {
                        Kind::Ec(SignatureScheme::ECDSA_NISTP521_SHA512, Digest::Sha512)
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(Self { holder, kind, random })
    }

    fn signer(&self, scheme: SignatureScheme, digest: Digest, padding: Padding) -> Box<dyn Signer> {
        let (holder, random) = (Arc::clone(&self.holder), self.random);
        Box::new(ExternalSigner { holder, random, scheme, digest, padding })
    }
}

impl SigningKey for ExternalKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let bits = match self.kind {
            Kind::Ec(scheme, digest) => {
                let fits = offered.contains(&scheme);
                return fits.then(|| self.signer(scheme, digest, Padding::Ecdsa));
            }
            Kind::Rsa(bits) => bits,
        };
        RSA.into_iter().filter(|(scheme, ..)| offered.contains(scheme)).find_map(
            |(scheme, digest, pss)| {
                let form = if pss { SignatureForm::Pss(digest) } else { SignatureForm::Pkcs1 };
                let padding = match (self.holder.makes(form), self.holder.makes(SignatureForm::Raw))
                {
                    (true, _) if pss => Padding::Pss,
                    (true, _) => Padding::Pkcs1,
                    // What the holder cannot do is done here.
                    (false, true) if pss => Padding::OwnPss(bits),
                    (false, true) => Padding::OwnPkcs1(bits),
                    (false, false) => return None,
                };
                Some(self.signer(scheme, digest, padding))
            },
        )
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self.kind {
            Kind::Rsa(_) => SignatureAlgorithm::RSA,
            Kind::Ec(..) => SignatureAlgorithm::ECDSA,
        }
    }
}

/// How the padding is made.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Padding {
    Ecdsa,
    Pkcs1,
    Pss,
    /// Made here, for a modulus with this number of bits.
    OwnPkcs1(usize),
    OwnPss(usize),
}

#[derive(Debug)]
struct ExternalSigner {
    holder: Arc<dyn KeyHolder>,
    random: &'static dyn SecureRandom,
    scheme: SignatureScheme,
    digest: Digest,
    padding: Padding,
}

impl Signer for ExternalSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let hashed = hash(self.digest, &[message]);
        let hashed = hashed.as_bytes();
        let unfit = || Error::General("the key is too short for this signature".into());
        let (form, data) = match self.padding {
            Padding::Ecdsa => (SignatureForm::Ecdsa, hashed.to_vec()),
            Padding::Pss => (SignatureForm::Pss(self.digest), hashed.to_vec()),
            Padding::Pkcs1 => (SignatureForm::Pkcs1, digest_info(self.digest, hashed)),
            Padding::OwnPkcs1(bits) => {
                let block = pad_pkcs1(&digest_info(self.digest, hashed), bits);
                (SignatureForm::Raw, block.ok_or_else(unfit)?)
            }
            Padding::OwnPss(bits) => {
                let mut salt = vec![0; hashed.len()];
                self.random.fill(&mut salt).map_err(|_| Error::FailedToGetRandomBytes)?;
                let block = pad_pss(self.digest, hashed, &salt, bits);
                (SignatureForm::Raw, block.ok_or_else(unfit)?)
            }
        };
        self.holder.sign(form, &data).map_err(Error::General)
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// Returns the DigestInfo of a digest (RFC 8017, 9.2).
fn digest_info(digest: Digest, hashed: &[u8]) -> Vec<u8> {
    let (number, total, length) = match digest {
        Digest::Sha384 => (2, 0x41, 0x30),
        Digest::Sha512 => (3, 0x51, 0x40),
        _ => (1, 0x31, 0x20),
    };
    let mut info = vec![0x30, total, 0x30, 0x0d, 0x06, 0x09];
    info.extend([0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, number]);
    info.extend([0x05, 0x00, 0x04, length]);
    info.extend_from_slice(hashed);
    info
}

/// Pads a DigestInfo to the length of the modulus (EMSA-PKCS1-v1_5, RFC 8017, 9.2).
fn pad_pkcs1(info: &[u8], bits: usize) -> Option<Vec<u8>> {
    let ones = bits.div_ceil(8).checked_sub(info.len())?.checked_sub(3)?;
    if ones < 8 {
        return None;
    }
    let mut block = vec![0, 1];
    block.extend(std::iter::repeat_n(0xff, ones));
    block.push(0);
    block.extend_from_slice(info);
    Some(block)
}

/// Pads a digest to the length of the modulus (EMSA-PSS, RFC 8017, 9.1.1).
fn pad_pss(digest: Digest, hashed: &[u8], salt: &[u8], bits: usize) -> Option<Vec<u8>> {
    let used_bits = bits.checked_sub(1)?;
    let length = used_bits.div_ceil(8);
    let masked = length.checked_sub(hashed.len())?.checked_sub(1)?;
    let zeros = masked.checked_sub(salt.len())?.checked_sub(1)?;
    let seed = hash(digest, &[&[0; 8], hashed, salt]);
    let seed = seed.as_bytes();
    let mut block = vec![0; zeros];
    block.push(1);
    block.extend_from_slice(salt);
    let mask =
        (0_u32..).flat_map(|count| hash(digest, &[seed, &count.to_be_bytes()]).as_bytes().to_vec());
    block.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    // The bits above those of the modulus less one are zero.
    let unused = length.checked_mul(8)?.checked_sub(used_bits)?;
    if let Some(first) = block.first_mut() {
        *first &= 0xff_u8.checked_shr(u32::try_from(unused).ok()?)?;
    }
    block.extend_from_slice(seed);
    block.push(0xbc);
    // A modulus with one bit more than whole bytes has a byte more than the padding.
    let missing = bits.div_ceil(8).checked_sub(block.len())?;
    Some(std::iter::repeat_n(0, missing).chain(block).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pkcs1_fills_the_modulus() {
        let hashed = hash(Digest::Sha256, &[b"abc"]);
        let info = digest_info(Digest::Sha256, hashed.as_bytes());
        assert_eq!(info.len(), 51);
        let block = pad_pkcs1(&info, 2048).unwrap();
        assert_eq!((block.len(), &block[..3], block[256 - 52]), (256, &[0, 1, 0xff][..], 0));
        assert!(pad_pkcs1(&info, 480).is_none());
        assert_eq!(digest_info(Digest::Sha384, &[0; 48]).len(), 67);
        assert_eq!(digest_info(Digest::Sha512, &[0; 64]).len(), 83);
    }

    #[test]
    fn pss_has_its_marks() {
        let hashed = hash(Digest::Sha256, &[b"abc"]);
        for bits in [1024, 2041, 2048, 2049] {
            let block = pad_pss(Digest::Sha256, hashed.as_bytes(), &[7; 32], bits).unwrap();
            assert_eq!(block.len(), bits.div_ceil(8), "{bits}");
            assert_eq!(block.last(), Some(&0xbc));
            let unused = 8 * block.len() - (bits - 1);
            let top = u16::from_be_bytes([block[0], block[1]]);
            assert_eq!(top >> (16 - unused), 0, "{bits}");
        }
        assert!(pad_pss(Digest::Sha512, &[0; 64], &[0; 64], 1024).is_none());
    }
}
