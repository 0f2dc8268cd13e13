//! Revocation lists.
//!
//! By default, `openssl ca -gencrl` creates lists of version 1, or without extensions. OpenVPN accepts them, but webpki
//! reads only lists of version 2 with extensions. This module checks the others ([`PlainList`]) with the same rules,
//! using the original bytes.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashSet;
use std::iter::once;
use std::time::Duration;

use rustls::pki_types::{SignatureVerificationAlgorithm, UnixTime};
use webpki::{Cert, CertRevocationList, Error, OwnedCertRevocationList, VerifiedPath};
use x509_parser::asn1_rs::{Any, FromDer};

use super::error::TlsConfigError;
use super::options::Pem;
use super::pem;
use super::trust::{date, parse};

/// The revocation lists of a configuration.
#[derive(Debug, Default)]
pub(super) struct RevocationLists {
    /// The lists that webpki checks.
    pub(super) lists: Vec<CertRevocationList<'static>>,
    plain: Vec<PlainList>,
}

/// A list without extensions.
#[derive(Debug)]
struct PlainList {
    /// The authority's name. Like all names here, it lacks the header of its sequence.
    issuer: Vec<u8>,
    next_update: UnixTime,
    /// The serial numbers of revoked certificates, without leading zeros.
    serials: HashSet<Vec<u8>>,
    /// The bytes that the authority signed.
    signed: Vec<u8>,
    signature: Vec<u8>,
    /// The algorithm identifier of the signature, without the header of its sequence.
    algorithm: Vec<u8>,
}

impl RevocationLists {
    /// Adds the lists from another file.
    pub(super) fn extend(&mut self, other: Self) {
        self.lists.extend(other.lists);
        self.plain.extend(other.plain);
    }

    /// Returns whether webpki can decide on its own.
    pub(super) fn is_complete(&self) -> bool {
        self.plain.is_empty()
    }

    /// Checks the certificates of a path against the lists that webpki does not read. With `deny`, every certificate
    /// needs a list, either here or in webpki.
    pub(super) fn check(
        &self,
        path: &VerifiedPath<'_>,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        deny: bool,
        now: UnixTime,
    ) -> Result<(), Error> {
        if self.is_complete() {
            return Ok(());
        }
        let certificates: Vec<&Cert<'_>> =
            once(&**path.end_entity()).chain(path.intermediate_certificates()).collect();
        let issuers = certificates.iter().skip(1).map(|issuer| Some(*issuer)).chain([None]);
        for (certificate, issuer) in certificates.iter().zip(issuers) {
            match self.plain.iter().find(|list| list.issuer == certificate.issuer()) {
                Some(list) => {
                    match issuer {
                        Some(issuer) => {
                            check_key_usage(issuer)?;
                            let key = issuer.subject_public_key_info();
                            list.check_signature(contents(&key).unwrap_or_default(), algorithms)?;
                        }
                        None => {
                            let key = &path.anchor().subject_public_key_info;
                            list.check_signature(key, algorithms)?;
                        }
                    }
                    list.check_serial(certificate.serial(), now)?;
                }
                None if deny && !self.covers(certificate) => {
                    return Err(Error::UnknownRevocationStatus);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Returns whether webpki has a list for the certificate. A list that is restricted to some of its authority's
    /// certificates does not count.
    fn covers(&self, certificate: &Cert<'_>) -> bool {
        self.lists.iter().any(|list| {
            list.issuer() == certificate.issuer() && list.issuing_distribution_point().is_none()
        })
    }
}

/// Refuses an authority whose key usage does not include signing lists.
fn check_key_usage(issuer: &Cert<'_>) -> Result<(), Error> {
    let der = issuer.der();
    let usage = parse(&der).ok_or(Error::BadDer)?;
    match usage.key_usage() {
        Ok(Some(usage)) if !usage.value.crl_sign() => Err(Error::IssuerNotCrlSigner),
        Ok(_) => Ok(()),
        Err(_) => Err(Error::BadDer),
    }
}

impl PlainList {
    /// Reads a list without extensions. Returns `None` if the list has extensions or cannot be parsed.
    fn read(der: &[u8]) -> Option<Result<Self, Error>> {
        let Ok(([], parsed)) = x509_parser::parse_x509_crl(der) else { return None };
        if !parsed.extensions().is_empty() {
            return None;
        }
        let revoked = || parsed.iter_revoked_certificates();
        // A critical extension names another authority or is unknown.
        if revoked().any(|entry| entry.extensions().iter().any(|extension| extension.critical)) {
            return Some(Err(Error::UnsupportedIndirectCrl));
        }
        let tbs = &parsed.tbs_cert_list;
        if tbs.signature != parsed.signature_algorithm {
            return Some(Err(Error::SignatureAlgorithmMismatch));
        }
        if parsed.signature_value.unused_bits != 0 {
            return Some(Err(Error::BadDer));
        }
        let next_update = parsed.next_update().map(|next| u64::try_from(next.timestamp()));
        let Some(Ok(next_update)) = next_update else { return Some(Err(Error::BadDer)) };
        let (_, list) = Any::from_der(der).ok()?;
        let algorithm = contents(list.data.strip_prefix(tbs.as_ref())?)?;
        Some(Ok(Self {
            issuer: contents(parsed.issuer().as_raw())?.to_vec(),
            next_update: UnixTime::since_unix_epoch(Duration::from_secs(next_update)),
            serials: revoked().map(|entry| canonical(entry.raw_serial()).to_vec()).collect(),
            signed: tbs.as_ref().to_vec(),
            signature: parsed.signature_value.data.to_vec(),
            algorithm: algorithm.to_vec(),
        }))
    }

    /// Verifies the signature with the authority's key, which is a SubjectPublicKeyInfo without the header of its
    /// sequence.
    fn check_signature(
        &self,
        key: &[u8],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Error> {
        let (bits, kind) = Any::from_der(key).map_err(|_| Error::BadDer)?;
        let Some([0, point @ ..]) = contents(bits) else { return Err(Error::BadDer) };
        let fits = |algorithm: &&&dyn SignatureVerificationAlgorithm| {
            *algorithm.signature_alg_id() == *self.algorithm
                && *algorithm.public_key_alg_id() == *kind.data
        };
        let algorithm =
            algorithms.iter().find(fits).ok_or(Error::InvalidCrlSignatureForPublicKey)?;
        algorithm
            .verify_signature(point, &self.signed, &self.signature)
            .map_err(|_| Error::InvalidCrlSignatureForPublicKey)
    }

    fn check_serial(&self, serial: &[u8], time: UnixTime) -> Result<(), Error> {
        let next_update = self.next_update;
        if time >= next_update {
            return Err(Error::CrlExpired { time, next_update });
        }
        if self.serials.contains(canonical(serial)) { Err(Error::CertRevoked) } else { Ok(()) }
    }
}

/// Returns the contents of the first DER element, without its header.
fn contents(der: &[u8]) -> Option<&[u8]> {
    Any::from_der(der).ok().map(|(_, element)| element.data)
}

/// Returns a serial number without leading zeros.
fn canonical(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    serial.get(zeros..).unwrap_or_default()
}

/// Returns every list in `crl`. It must contain at least one.
pub(super) fn read_revocation_lists(
    crl: &Pem,
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<RevocationLists, TlsConfigError> {
    let fail = |text: String| TlsConfigError::new(&crl.origin, text);
    let mut found = RevocationLists::default();
    for block in pem::blocks(crl)?.iter().filter(|block| block.label == "X509 CRL") {
        let refuse = |error| {
            fail(match error {
                Error::UnsupportedDeltaCrl | Error::UnsupportedIndirectCrl => {
                    "a partial or indirect revocation list; make a complete one".into()
                }
                other => format!("a revocation list in it cannot be read ({other:?})"),
            })
        };
        match PlainList::read(&block.der) {
            Some(list) => found.plain.push(list.map_err(refuse)?),
            None => {
                let list = OwnedCertRevocationList::from_der(&block.der).map_err(refuse)?;
                found.lists.push(CertRevocationList::Owned(list));
            }
        }
        if let Ok((_, parsed)) = x509_parser::parse_x509_crl(&block.der)
            && let Some(next) = parsed.next_update()
            && next.timestamp() <= now
        {
            warnings.push(format!(
                "{}: the revocation list expired at {}; every peer will be refused until there is a \
                 new one (`easyrsa gen-crl`)",
                crl.origin,
                date(next.timestamp())
            ));
        }
    }
    if found.lists.is_empty() && found.plain.is_empty() {
        return Err(fail(
            "no revocation list in it; make one with `easyrsa gen-crl`, or leave `crl-verify` out"
                .into(),
        ));
    }
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn serial_numbers_are_compared_without_leading_zeros() {
        let serials = [&[][..], &[0], &[0, 0x80, 1], &[0x80, 1], &[1, 0]].map(canonical);
        assert_eq!(serials, [&[][..], &[], &[0x80, 1], &[0x80, 1], &[1, 0]]);
    }

    proptest! {
        #[test]
        fn nothing_in_a_file_panics(der in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (PlainList::read(&der), contents(&der));
        }
    }
}
