//! Fuzzing of certificates from peers, of revocation lists and of PEM files.

use std::sync::OnceLock;
use std::time::Duration;

use adit_engine::{MAX_GROUPS, is_group_name};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::identity::PeerIdentity;
use super::options::{CertProfile, NameType, Pem, RemoteCertTls, VerifyOptions};
use super::trust::{Trust, parse};
use super::{key, pem, weak_rsa};

/// The authority. It signed certificates for [`NAMES`] and for "revoked". Its key no longer exists.
const CA: &[u8] = include_bytes!("ca.der");
/// All names for which the authority signed certificates, except the revoked one.
const NAMES: [&str; 5] =
    ["client", "server.example", "rsa client", "fuzz intermediate", "below the intermediate"];
const NOW: u64 = 1_800_000_000;
/// The maximum number of certificates in one input.
const MAX_PARTS: usize = 12;

fn armoured(label: &str, der: &[u8]) -> Pem {
    let text = STANDARD.encode(der);
    Pem::new(
        label,
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n").into_bytes(),
    )
}

fn trust(flags: u8, crl: Option<&Pem>) -> Option<Trust> {
    let name = match flags >> 4 & 3 {
        0 => None,
        1 => Some(("client".to_owned(), NameType::Name)),
        2 => Some(("cl".to_owned(), NameType::NamePrefix)),
        _ => Some(("CN=client, O=Example, OU=staff".to_owned(), NameType::Subject)),
    };
    let side = if flags & 1 == 0 { RemoteCertTls::Client } else { RemoteCertTls::Server };
    let verify = VerifyOptions {
        name,
        remote_cert_tls: (flags & 4 != 0).then_some(side),
        netscape: (flags & 8 != 0).then_some(side),
        ..VerifyOptions::default()
    };
    let profile = if flags & 2 == 0 { CertProfile::Preferred } else { CertProfile::Insecure };
    let provider = default_provider();
    let algorithms = weak_rsa::algorithms(profile, provider.signature_verification_algorithms);
    let now = i64::try_from(NOW).unwrap_or_default();
    let ca = armoured("CERTIFICATE", CA);
    Trust::new(&ca, (crl, None), (verify, profile), algorithms, now, &mut Vec::new()).ok()
}

/// Returns trust settings with no revocation list and ordinary requirements, created once.
fn plain() -> &'static Option<Trust> {
    static TRUST: OnceLock<Option<Trust>> = OnceLock::new();
    TRUST.get_or_init(|| trust(0, None))
}

/// Splits the input into parts, each preceded by its length.
fn parts(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (part, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
        parts.push(part);
        bytes = rest;
        if parts.len() >= MAX_PARTS {
            break;
        }
    }
    parts
}

/// Interprets the first byte as the requirements and the second as the kind of the remaining bytes.
pub fn fuzz(bytes: &[u8]) {
    let _ = judge(bytes);
}

/// Presents the input as a chain, and returns the accepted name.
fn judge(bytes: &[u8]) -> Option<String> {
    let ([flags, kind], rest) = bytes.split_first_chunk()?;
    let parts = parts(rest);
    match kind % 3 {
        0 => presented(*flags, &parts, None),
        1 => {
            let (list, chain) = parts.split_first()?;
            presented(*flags, chain, Some(&armoured("X509 CRL", list)))
        }
        _ => {
            files(rest);
            None
        }
    }
}

/// Presents a chain. Only names that the authority signed may be accepted, and never the revoked
/// one.
fn presented(flags: u8, chain: &[&[u8]], list: Option<&Pem>) -> Option<String> {
    let (leaf, others) = chain.split_first()?;
    if let Some(parsed) = parse(leaf)
        && let Ok(identity) = PeerIdentity::new(&parsed, leaf, &[])
    {
        sound(&identity);
    }
    let own;
    let trust = match (flags, list) {
        (0 | 1, None) => plain().as_ref(),
        _ => {
            own = trust(flags, list);
            own.as_ref()
        }
    };
    let trust = trust?;
    let leaf = CertificateDer::from(*leaf);
    let others: Vec<CertificateDer<'_>> =
        others.iter().map(|der| CertificateDer::from(*der)).collect();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
    match trust.check(&leaf, &others, flags & 1 == 1, now) {
        Ok(identity) => {
            sound(&identity);
            let known = NAMES.contains(&identity.common_name.as_str());
            // With a revocation list from another issuer, no peer is accepted.
            assert!(known || list.is_none() && identity.common_name == "revoked", "{identity:?}");
            Some(identity.common_name)
        }
        Err(refused) => {
            assert!(!refused.to_string().is_empty());
            None
        }
    }
}

fn sound(identity: &PeerIdentity) {
    let prints = |text: &str| !text.chars().any(char::is_control);
    assert!(prints(&identity.subject) && prints(&identity.common_name), "{identity:?}");
    assert!((1..=64).contains(&identity.common_name.len()), "{identity:?}");
    assert!(identity.units.len() <= MAX_GROUPS, "{identity:?}");
    assert!(identity.units.iter().all(|unit| is_group_name(unit)), "{identity:?}");
    assert_eq!(identity.fingerprint.len(), 64);
}

/// Parses the bytes as an operator's files.
fn files(bytes: &[u8]) {
    let file = Pem::new("file", bytes);
    for der in pem::certificates(&file).unwrap_or_default() {
        let _ = parse(&der);
    }
    let _ = key::load(&file, None);
    let _ = super::revocation::read_revocation_lists(&file, 0, &mut Vec::new());
    let verify = (VerifyOptions::default(), CertProfile::Preferred);
    let algorithms = default_provider().signature_verification_algorithms;
    let _ = Trust::new(&file, (None, Some(&file)), verify, algorithms, 0, &mut Vec::new());
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seeds_are_what_they_are_called() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testing/fuzz/corpus/certificates");
        let named = |name: &str| judge(&std::fs::read(folder.join(name)).expect("a seed"));
        for (seed, name) in [
            ("client", Some("client")),
            ("subject", Some("client")),
            ("server", Some("server.example")),
            ("rsa-insecure", Some("rsa client")),
            ("intermediate", Some("below the intermediate")),
            ("of-itself", None),
            ("revoked", None),
            ("revoked-old-list", None),
            ("not-revoked", Some("client")),
            ("revoked-without-a-list", Some("revoked")),
            ("list-of-extensions", Some("client")),
        ] {
            assert_eq!(named(seed).as_deref(), name, "{seed}");
        }
    }
}
