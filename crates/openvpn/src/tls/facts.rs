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
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::fingerprint::{fingerprint, hex};
use super::identity::{attributes, format_name};
use super::trust::parse;

/// A certificate as DER, which sessions share.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedDer(pub(super) Arc<[u8]>);

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
        facts.serial_hex = with_colons(&hex(match serial {
            [0, rest @ ..] if !rest.is_empty() => rest,
            all => all,
        }));
        facts.email = email(&parsed);
    }
    facts.der = der;
    facts
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
