//! Fingerprints of certificates in their textual forms.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use aws_lc_rs::digest;

/// Returns the SHA-1 or SHA-256 of a certificate in lower-case hex.
pub(super) fn fingerprint(sha1: bool, der: &[u8]) -> String {
    let algorithm = if sha1 { &digest::SHA1_FOR_LEGACY_USE_ONLY } else { &digest::SHA256 };
    hex(digest::digest(algorithm, der).as_ref())
}

/// Formats a fingerprint as openssl prints it.
pub(super) fn with_colons(fingerprint: &str) -> String {
    let pairs = fingerprint.as_bytes().chunks(2);
    let pairs: Vec<&str> = pairs.filter_map(|pair| std::str::from_utf8(pair).ok()).collect();
    pairs.join(":").to_uppercase()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    text.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
    text
}
