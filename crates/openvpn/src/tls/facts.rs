//! The contents of verified certificates as plain data, for scripts, plugins and logs.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::fmt;
use std::sync::Arc;

use adit_engine::CertificateFacts;
use num_bigint::BigInt;
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::fingerprint::{fingerprint, hex};
use super::identity::{attributes, format_name};
use super::trust::parse;

/// A certificate as DER, which sessions share.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u8>", into = "Vec<u8>")]
pub struct SharedDer(pub(super) Arc<[u8]>);

impl From<Vec<u8>> for SharedDer {
    fn from(der: Vec<u8>) -> Self {
        Self(der.into())
    }
}

impl From<SharedDer> for Vec<u8> {
    fn from(der: SharedDer) -> Self {
        der.0.to_vec()
    }
}

// Implemented by hand because the bytes say nothing in a log.
impl fmt::Debug for SharedDer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedDer({} bytes)", self.0.len())
    }
}

/// Reads a certificate that has been verified. Parts that cannot be read remain empty.
pub(super) fn facts(der: Arc<[u8]>) -> CertificateFacts {
    let (sha1, sha256) = (fingerprint(true, &der), fingerprint(false, &der));
    let mut facts = CertificateFacts {
        sha1: with_colons(&sha1),
        sha256: with_colons(&sha256),
        ..CertificateFacts::default()
    };
    if let Some(parsed) = parse(&der) {
        facts.subject = format_name(parsed.subject()).unwrap_or_default();
        facts.attributes = attributes(parsed.subject());
        let serial = parsed.raw_serial();
        facts.serial_decimal = BigInt::from_signed_bytes_be(serial).to_string();
        facts.serial_hex = with_colons(&hex(without_sign(serial)));
        facts.email = email(&parsed);
    }
    facts.der = der;
    facts
}

/// The names of a certificate that is not verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The subject in OpenVPN's form; empty if it is not text.
    pub subject: String,
    /// The DER of the subject.
    pub subject_der: Vec<u8>,
    /// The DER of the issuer.
    pub issuer_der: Vec<u8>,
    /// The serial number in upper-case hex.
    pub serial: String,
}

/// Returns the names of a certificate, such as one on a token. `None` if it is not a certificate.
pub fn names(der: &[u8]) -> Option<CertificateNames> {
    let parsed = parse(der)?;
    Some(CertificateNames {
        subject: format_name(parsed.subject()).unwrap_or_default(),
        subject_der: parsed.subject().as_raw().to_vec(),
        issuer_der: parsed.issuer().as_raw().to_vec(),
        serial: hex(without_sign(parsed.raw_serial())).to_ascii_uppercase(),
    })
}

/// Removes the zero byte that makes a number positive.
fn without_sign(number: &[u8]) -> &[u8] {
    match number {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    }
}

/// Returns the last mail address among the subject's alternative names, as OpenVPN does.
pub(super) fn email(certificate: &X509Certificate<'_>) -> Option<String> {
    let names = certificate.subject_alternative_name().ok()??;
    last_mail(&names.value.general_names)
}

/// Returns the last mail address among the names.
pub(super) fn last_mail(names: &[GeneralName<'_>]) -> Option<String> {
    let mut mails = names.iter().filter_map(|name| match name {
        GeneralName::RFC822Name(mail) => Some((*mail).to_owned()),
        _ => None,
    });
    mails.next_back()
}

/// Separates the bytes of a hexadecimal number with colons.
fn with_colons(hex: &str) -> String {
    let pairs = hex.as_bytes().chunks(2);
    let pairs: Vec<&str> = pairs.filter_map(|pair| std::str::from_utf8(pair).ok()).collect();
    pairs.join(":")
}
