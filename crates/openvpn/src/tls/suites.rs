//! The names of cipher suites and groups.
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::{CipherSuite, NamedGroup, SupportedCipherSuite};

use super::error::TlsConfigError;
use super::secp521r1::SECP521R1;

/// The suites that can be negotiated, as (IANA number, OpenSSL's name, IANA's name).
pub(super) const SUITES: &[(CipherSuite, &str, &str)] = &[
    (CipherSuite::TLS13_AES_256_GCM_SHA384, "TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
    (CipherSuite::TLS13_AES_128_GCM_SHA256, "TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
    (
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_CHACHA20_POLY1305_SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
];

/// The groups that `tls-groups` accepts.
pub const GROUP_NAMES: [&str; 6] =
    ["X25519MLKEM768", "SecP256r1MLKEM768", "X25519", "secp256r1", "secp384r1", "secp521r1"];

/// Returns the suites of TLS 1.3 and those of TLS 1.2 under OpenVPN's names, most preferred first.
pub fn suite_names() -> (Vec<String>, Vec<String>) {
    let names = |tls13: bool| {
        let name = |suite: SupportedCipherSuite| {
            let iana = SUITES.iter().find(|(known, ..)| *known == suite.suite());
            let iana = iana.map_or_else(String::new, |(_, _, iana)| (*iana).to_owned());
            if tls13 { iana } else { iana.replace('_', "-") }
        };
        supported(tls13).into_iter().map(name).collect()
    };
    (names(true), names(false))
}

/// Returns OpenSSL's name for a suite, which is also the name in OpenVPN's log.
pub(super) fn openssl_name(suite: CipherSuite) -> String {
    SUITES
        .iter()
        .find(|(known, _, _)| *known == suite)
        .map_or_else(|| format!("{suite:?}"), |(_, name, _)| (*name).to_owned())
}

/// Returns the name of a group as `tls-groups` accepts it.
pub(super) fn group_name(group: NamedGroup) -> String {
    match group {
        NamedGroup::secp256r1 => "secp256r1".into(),
        NamedGroup::secp384r1 => "secp384r1".into(),
        other => format!("{other:?}"),
    }
}

/// Returns every suite of one protocol version, most preferred first.
fn supported(tls13: bool) -> Vec<SupportedCipherSuite> {
    aws_lc_rs::DEFAULT_CIPHER_SUITES
        .iter()
        .copied()
        .filter(|suite| matches!(suite, SupportedCipherSuite::Tls13(_)) == tls13)
        .collect()
}

/// Returns the suites that `list` names, in the order of the list, or all suites if there is no
/// list.
///
/// OpenSSL's keywords that exclude none of our suites (`DEFAULT`, `HIGH`, `!aNULL`) are accepted.
/// Names of suites that we do not support are omitted with a warning, as long as one suite remains.
pub(super) fn choose(
    directive: &'static str,
    list: Option<&str>,
    tls13: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<SupportedCipherSuite>, TlsConfigError> {
    let all = supported(tls13);
    let Some(list) = list else { return Ok(all) };
    let mut chosen: Vec<SupportedCipherSuite> = Vec::new();
    let mut skipped = Vec::new();
    for word in list.split(':').map(str::trim).filter(|word| !word.is_empty()) {
        // `!X`, `-X`, `+X` and `@STRENGTH` only order or remove suites; all of ours are ECDHE with
        // AEAD.
        if let Some(removed) = word.strip_prefix(['!', '-']) {
            chosen.retain(|suite| !named(*suite, removed));
            continue;
        }
        let known: Vec<_> = match word.to_ascii_uppercase().as_str() {
            "DEFAULT" | "ALL" | "HIGH" | "ECDHE" | "KECDHE" | "EECDH" | "KEECDH" | "AESGCM" => {
                all.clone()
            }
            _ if word.starts_with(['@', '+']) => continue,
            _ => all.iter().copied().filter(|suite| named(*suite, word)).collect(),
        };
        if known.is_empty() {
            skipped.push(word);
        }
        for suite in known {
            if !chosen.contains(&suite) {
                chosen.push(suite);
            }
        }
    }
    // TLS 1.3 has its own suites, so while it is allowed, an outdated list still leaves those.
    if chosen.is_empty() && !tls13 {
        warnings.push(format!(
            "{directive}: no suite in \"{list}\" is supported: TLS 1.2 is not offered, TLS 1.3 is"
        ));
        return Ok(chosen);
    }
    if chosen.is_empty() {
        let names: Vec<_> = all.iter().map(|suite| openssl_name(suite.suite())).collect();
        return Err(TlsConfigError::new(
            directive,
            format!("\"{list}\" names no suite that is supported; these are: {}", names.join(":")),
        ));
    }
    if !skipped.is_empty() {
        warnings.push(format!("{directive}: not supported and left out: {}", skipped.join(":")));
    }
    Ok(chosen)
}

/// Returns whether `name` is the suite's name in OpenSSL's or IANA's spelling (with `_` or `-`).
fn named(suite: SupportedCipherSuite, name: &str) -> bool {
    SUITES.iter().any(|(known, openssl, iana)| {
        *known == suite.suite()
            && (openssl.eq_ignore_ascii_case(name)
                || iana.eq_ignore_ascii_case(&name.replace('-', "_")))
    })
}

/// Returns the groups that `list` names, in the order of the list. The default is the TLS library's
/// order, with the hybrid group first.
pub(super) fn groups(
    list: &str,
    warnings: &mut Vec<String>,
) -> Result<Vec<&'static dyn SupportedKxGroup>, TlsConfigError> {
    let mut chosen: Vec<&'static dyn SupportedKxGroup> = Vec::new();
    let mut skipped = Vec::new();
    for word in list.split(':').map(str::trim).filter(|word| !word.is_empty()) {
        let group: &'static dyn SupportedKxGroup = match word.to_ascii_lowercase().as_str() {
            "x25519mlkem768" => kx_group::X25519MLKEM768,
            "secp256r1mlkem768" => kx_group::SECP256R1MLKEM768,
            "x25519" => kx_group::X25519,
            "secp256r1" | "prime256v1" | "p-256" => kx_group::SECP256R1,
            "secp384r1" | "p-384" => kx_group::SECP384R1,
            "secp521r1" | "p-521" => SECP521R1,
            _ => {
                skipped.push(word);
                continue;
            }
        };
        if !chosen.iter().any(|have| have.name() == group.name()) {
            chosen.push(group);
        }
    }
    if chosen.is_empty() {
        return Err(TlsConfigError::new(
            "tls-groups",
            format!(
                "\"{list}\" names no group that is supported; these are: {}",
                GROUP_NAMES.join(":")
            ),
        ));
    }
    if !skipped.is_empty() {
        warnings.push(format!("tls-groups: not supported and left out: {}", skipped.join(":")));
    }
    Ok(chosen)
}
