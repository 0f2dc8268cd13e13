//! The certificates of the `ca` file.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use rustls::pki_types::{CertificateDer, TrustAnchor};

use super::leaf::{is_self_issued, least_bits, rsa_bits, weakness};
use super::{date, parse, subject};
use crate::tls::error::TlsConfigError;
use crate::tls::facts::SharedDer;
use crate::tls::fingerprint::fingerprint;
use crate::tls::options::{CertProfile, Pem};

#[derive(Debug)]
pub(in crate::tls) struct Anchor {
    pub(super) name: String,
    pub(super) anchor: TrustAnchor<'static>,
    pub(super) der: SharedDer,
    /// The SHA-1 and SHA-256 hashes of the certificate.
    pub(super) fingerprints: [String; 2],
    pub(in crate::tls) not_before: i64,
    pub(in crate::tls) not_after: i64,
}

impl Anchor {
    pub(super) fn is_valid(&self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// Reads one certificate of the `ca` file, and returns whether it is self-issued.
pub(super) fn read_authority(
    ca: &Pem,
    der: &[u8],
    profile: CertProfile,
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<(Anchor, bool), TlsConfigError> {
    let fail = |text: String| TlsConfigError::new(&ca.origin, text);
    let parsed =
        parse(der).ok_or_else(|| fail("a certificate in it is damaged; copy it again".into()))?;
    let name = subject(&parsed);
    let least = least_bits(profile);
    if let Some(bits) = rsa_bits(&parsed).filter(|bits| *bits < least) {
        return Err(fail(format!(
            "the key of CA \"{name}\" has {bits} bits and {least} is the least; make a new CA"
        )));
    }
    if let Some(weakness) = weakness(&parsed) {
        warnings.push(format!(
            "{}: CA \"{name}\" has {weakness}, which can be broken: who breaks it can pose as any peer; \
             accepted by tls-cert-profile, make a new CA",
            ca.origin
        ));
    }
    if let Ok(Some(constraints)) = parsed.basic_constraints()
        && !constraints.value.ca
    {
        return Err(fail(format!(
            "\"{name}\" is not a CA's certificate; `ca` wants the one that signed the peers'"
        )));
    }
    let (not_before, not_after) =
        (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    if now > not_after {
        warnings.push(format!(
            "{}: CA \"{name}\" expired at {}; every peer that it signed will be refused",
            ca.origin,
            date(not_after)
        ));
    } else if now < not_before {
        warnings.push(format!(
            "{}: CA \"{name}\" is valid from {} and the clock says {}; peers will be refused",
            ca.origin,
            date(not_before),
            date(now)
        ));
    }
    let self_issued = is_self_issued(&parsed);
    let der = CertificateDer::from(der);
    let anchor = webpki::anchor_from_trusted_cert(&der)
        .map_err(|error| fail(format!("CA \"{name}\" cannot be used: {error:?}")))?
        .to_owned();
    let fingerprints = [true, false].map(|sha1| fingerprint(sha1, &der));
    let der = SharedDer(der.as_ref().into());
    Ok((Anchor { name, anchor, der, fingerprints, not_before, not_after }, self_issued))
}

pub(super) fn subject_der(der: &[u8]) -> Vec<u8> {
    parse(der).map(|parsed| parsed.subject().as_raw().to_vec()).unwrap_or_default()
}
