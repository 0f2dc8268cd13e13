#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::fmt::Write as _;

use adit_engine::{MAX_GROUPS, is_group_name};
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Any;
use x509_parser::extensions::ParsedExtension;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Name;

use super::facts::{SharedDer, email, last_mail};
use super::fingerprint::{fingerprint, hex};
use super::options::NameField;

/// The maximum length of a common name in bytes, as in X.509 and OpenVPN.
const MAX_COMMON_NAME: usize = 64;
/// The maximum length of a stored subject in bytes.
const MAX_SUBJECT: usize = 2048;

/// The identity in a verified certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerIdentity {
    /// The subject in OpenVPN's form, `C=..., O=..., CN=...`.
    pub subject: String,
    /// The subject's common name, or the parts of the certificate that replace it (`x509-username-field`).
    pub common_name: String,
    /// The serial number in lower-case hex.
    pub serial: String,
    /// The SHA-256 of the DER in lower-case hex.
    pub fingerprint: String,
    /// The end of validity in seconds since 1970.
    pub not_after: u64,
    /// The key and signature in OpenVPN's form, `256 bits ECprime256v1, signature:
    /// ecdsa-with-SHA256`.
    pub key: String,
    /// The subject's organizational units that can be names of groups, at most
    /// [`adit_engine::MAX_GROUPS`].
    pub units: Vec<String>,
    /// The weaknesses of an accepted certificate; usually empty.
    pub weakness: String,
    /// The subjects of the CAs on the path, from the issuer's to the root's.
    pub issuers: Vec<String>,
    /// The certificates of these CAs.
    pub issuer_certificates: Vec<SharedDer>,
}

/// OpenSSL's short names of attributes, which operators write in `verify-x509-name`.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.45", "x500UniqueIdentifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.72", "role"),
    ("2.5.4.97", "organizationIdentifier"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.2.840.113549.1.9.2", "unstructuredName"),
    ("1.2.840.113549.1.9.8", "unstructuredAddress"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.3.6.1.4.1.311.60.2.1.1", "jurisdictionL"),
    ("1.3.6.1.4.1.311.60.2.1.2", "jurisdictionST"),
    ("1.3.6.1.4.1.311.60.2.1.3", "jurisdictionC"),
];

/// Returns whether this is the short name of an attribute.
pub(super) fn is_short_name(name: &str) -> bool {
    SHORT_NAMES.iter().any(|(_, short)| *short == name)
}

/// The reason why a name must not reach a log, a file name or a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadName(pub(super) &'static str);

/// Formats `name` in OpenVPN's form: `C=DE, O=x + OU=y, CN=z`, with control characters and
/// backslashes escaped. An equals sign that would make a value look like a further attribute
/// (`CN=x, O\3Dy`) is escaped too, so different names have different texts.
pub(super) fn format_name(name: &X509Name<'_>) -> Result<String, BadName> {
    let mut text = String::new();
    for rdn in name.iter() {
        for (attribute, first) in
            rdn.iter().zip(std::iter::once(true).chain(std::iter::repeat(false)))
        {
            if !text.is_empty() {
                text.push_str(if first { ", " } else { " + " });
            }
            let oid = attribute.attr_type().to_id_string();
            let short = SHORT_NAMES.iter().find(|(known, _)| *known == oid);
            text.push_str(short.map_or(oid.as_str(), |(_, short)| short));
            text.push('=');
            escape(&attribute_text(attribute.attr_value())?, &mut text);
            if text.len() > MAX_SUBJECT {
                return Err(BadName("its subject is too long"));
            }
        }
    }
    Ok(text)
}

fn escape(value: &str, out: &mut String) {
    for (at, c) in value.char_indices() {
        match c {
            '\\' => out.push_str("\\\\"),
            '=' if ends_like_an_attribute(value.get(..at).unwrap_or_default()) => {
                out.push_str("\\3D");
            }
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\{:02X}", u32::from(c));
            }
            // These include line separators beyond ASCII, which some log viewers treat as line
            // breaks.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\{{{:X}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

/// Returns whether the text ends in a separator and an attribute's name.
fn ends_like_an_attribute(text: &str) -> bool {
    let before = text.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
    before.len() < text.len() && (before.ends_with(", ") || before.ends_with(" + "))
}

fn attribute_text(value: &Any<'_>) -> Result<String, BadName> {
    const ODD: BadName = BadName("its subject has text in a broken encoding");
    let data = value.data;
    let text = match value.header.tag().0 {
        // UTF8String, NumericString, PrintableString, IA5String, VisibleString.
        12 | 18 | 19 | 22 | 26 => std::str::from_utf8(data).map_err(|_| ODD)?.to_owned(),
        // TeletexString, which in practice contains Latin-1.
        20 => data.iter().map(|byte| char::from(*byte)).collect(),
        // BMPString.
        30 => {
            let pairs = data.chunks_exact(2);
            if !pairs.remainder().is_empty() {
                return Err(ODD);
            }
            let units: Vec<u16> = pairs
                .filter_map(|pair| pair.first_chunk().map(|pair| u16::from_be_bytes(*pair)))
                .collect();
            String::from_utf16(&units).map_err(|_| ODD)?
        }
        // UniversalString.
        28 => {
            let quads = data.chunks_exact(4);
            if !quads.remainder().is_empty() {
                return Err(ODD);
            }
            quads
                .map(|quad| quad.first_chunk().and_then(|q| char::from_u32(u32::from_be_bytes(*q))))
                .collect::<Option<String>>()
                .ok_or(ODD)?
        }
        _ => return Err(BadName("its subject has a value that is no text")),
    };
    if text.contains('\0') {
        return Err(BadName("its subject has a NUL character"));
    }
    Ok(text)
}

/// Returns the attributes of a name in order, with their short names. Attributes that are no text are left out.
pub(super) fn attributes(name: &X509Name<'_>) -> Vec<(String, String)> {
    let texts = name.iter_attributes().filter_map(|attribute| {
        let oid = attribute.attr_type().to_id_string();
        let short = SHORT_NAMES.iter().find(|(known, _)| *known == oid);
        let short = short.map_or(oid.as_str(), |(_, short)| short).to_owned();
        Some((short, attribute_text(attribute.attr_value()).ok()?))
    });
    texts.collect()
}

/// Returns the name of a certificate's owner: the common name or, with `x509-username-field`, the values of the fields,
/// joined by underscores.
fn owner(certificate: &X509Certificate<'_>, fields: &[NameField]) -> Result<String, BadName> {
    const MISSING: BadName =
        BadName("it lacks the field that x509-username-field names; issue one with it");
    if fields.is_empty() {
        return common_name(certificate.subject());
    }
    let mut values = Vec::new();
    for field in fields {
        let value = match field {
            NameField::Attribute(name) => {
                let all = attributes(certificate.subject());
                all.into_iter().rfind(|(short, _)| short == name).map(|(_, text)| text)
            }
            NameField::Serial => Some(hex(serial(certificate))),
            NameField::SubjectMail => email(certificate),
            NameField::IssuerMail => certificate.extensions().iter().find_map(|extension| {
                match extension.parsed_extension() {
                    ParsedExtension::IssuerAlternativeName(names) => {
                        last_mail(&names.general_names)
                    }
                    _ => None,
                }
            }),
        };
        values.push(value.filter(|value| !value.is_empty()).ok_or(MISSING)?);
    }
    plain_name(values.join("_"))
}

/// Returns the serial number without DER's sign byte, which is not part of it.
fn serial<'a>(certificate: &'a X509Certificate<'_>) -> &'a [u8] {
    match certificate.raw_serial() {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    }
}

/// Returns the last common name, as OpenVPN does.
fn common_name(name: &X509Name<'_>) -> Result<String, BadName> {
    let Some(attribute) = name.iter_common_name().last() else {
        return Err(BadName("its subject has no common name; issue one with CN=NAME"));
    };
    plain_name(attribute_text(attribute.attr_value())?)
}

fn plain_name(text: String) -> Result<String, BadName> {
    if text.is_empty() {
        return Err(BadName("its common name is empty"));
    }
    if text.len() > MAX_COMMON_NAME {
        return Err(BadName("its common name is longer than 64 bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err(BadName("its common name has a control character"));
    }
    Ok(text)
}

/// Returns the units of a certificate, each once. A unit that is not a valid group name is omitted,
/// but the certificate is still accepted.
fn units(name: &X509Name<'_>) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    let texts = name.iter_organizational_unit().map(|unit| attribute_text(unit.attr_value()));
    for unit in texts.flatten().filter(|unit| is_group_name(unit)) {
        if units.len() < MAX_GROUPS && !units.contains(&unit) {
            units.push(unit);
        }
    }
    units
}

impl PeerIdentity {
    pub(super) fn new(
        certificate: &X509Certificate<'_>,
        der: &[u8],
        fields: &[NameField],
    ) -> Result<Self, BadName> {
        let subject = certificate.subject();
        Ok(Self {
            subject: format_name(subject)?,
            common_name: owner(certificate, fields)?,
            serial: hex(serial(certificate)),
            fingerprint: fingerprint(false, der),
            not_after: u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0),
            key: describe_key(certificate),
            units: units(subject),
            weakness: super::trust::weakness(certificate).unwrap_or_default(),
            issuers: Vec::new(),
            issuer_certificates: Vec::new(),
        })
    }
}

/// OpenSSL's short names of curves, by their OIDs.
const CURVES: &[(&str, &str)] = &[
    ("1.2.840.10045.3.1.7", "prime256v1"),
    ("1.3.132.0.34", "secp384r1"),
    ("1.3.132.0.35", "secp521r1"),
];

/// OpenSSL's short names of signature algorithms.
const SIGNATURES: &[(&str, &str)] = &[
    ("1.2.840.10045.4.3.2", "ecdsa-with-SHA256"),
    ("1.2.840.10045.4.3.3", "ecdsa-with-SHA384"),
    ("1.2.840.10045.4.3.4", "ecdsa-with-SHA512"),
    ("1.2.840.113549.1.1.10", "RSASSA-PSS"),
    ("1.2.840.113549.1.1.11", "RSA-SHA256"),
    ("1.2.840.113549.1.1.12", "RSA-SHA384"),
    ("1.2.840.113549.1.1.13", "RSA-SHA512"),
    ("1.3.101.112", "ED25519"),
];

fn describe_key(certificate: &X509Certificate<'_>) -> String {
    let short = |names: &[(&str, &str)], oid: &str| {
        let found = names.iter().find(|(known, _)| *known == oid);
        found.map_or(oid, |(_, name)| *name).to_owned()
    };
    let spki = certificate.public_key();
    let algorithm = spki.algorithm.algorithm.to_id_string();
    let key = match spki.parsed() {
        Ok(PublicKey::RSA(key)) => format!("{} bits RSA", key.key_size()),
        Ok(PublicKey::EC(point)) => {
            let curve = spki.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
            let curve = curve.map(|oid| oid.to_id_string()).unwrap_or_default();
            // The point has whole bytes, but a coordinate of P-521 does not.
            let bits = if curve == "1.3.132.0.35" { 521 } else { point.key_size() };
            format!("{bits} bits EC{}", short(CURVES, &curve))
        }
        _ if algorithm == "1.3.101.112" => "253 bits ED25519".into(),
        _ => algorithm,
    };
    let signature = certificate.signature_algorithm.algorithm.to_id_string();
    format!("{key}, signature: {}", short(SIGNATURES, &signature))
}
