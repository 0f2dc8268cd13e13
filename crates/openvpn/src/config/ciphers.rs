//! The ciphers of the data channel. As in openvpn, a CBC cipher is used only if `data-ciphers` or
//! `data-ciphers-fallback` names it. A cipher that only `cipher` names is announced to the peer but not used.

use super::ConfigError;
use super::raw_config::RawConfig;
use super::reader::Location;
use crate::negotiate::DataCipher;

/// Returns the ciphers of `data-ciphers`, which may be negotiated, in order of preference.
pub(super) fn allowed(raw: &mut RawConfig) -> Result<Vec<DataCipher>, ConfigError> {
    const DEFAULT: &str = "AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305";
    let (list, location) = match raw.data_ciphers.clone() {
        Some((list, location)) => (list.replace("DEFAULT", DEFAULT), Some(location)),
        None => (DEFAULT.to_owned(), None),
    };
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for name in list.split(':').filter(|name| !name.is_empty()) {
        let (name, optional) = match name.strip_prefix('?') {
            Some(name) => (name, true),
            None => (name, false),
        };
        match DataCipher::from_name(name) {
            Some(cipher) if !found.contains(&cipher) => found.push(cipher),
            Some(_) => {}
            None if optional => {}
            None => missing.push(name.to_owned()),
        }
    }
    compatible(raw, &mut found);
    let Some(location) = location else { return Ok(found) };
    if found.is_empty() {
        if let Some(name) = missing.iter().find(|name| has_small_blocks(name)) {
            return Err(small_blocks(name, "data-ciphers", &location));
        }
        return Err(location.error(
            "data-ciphers",
            format!("none of {list} is supported"),
            format!(
                "add AES-256-GCM, which every peer since 2.4 has; supported are {}",
                supported()
            ),
        ));
    }
    if !missing.is_empty() {
        raw.options.warnings.push(format!(
            "{}:{}: data-ciphers: {} left out: not supported",
            location.file,
            location.line,
            missing.join(" and ")
        ));
    }
    for cipher in &found {
        needs_digest(raw, *cipher, "data-ciphers", &location)?;
    }
    Ok(found)
}

/// Applies `compat-mode` below 2.5, which allows the negotiation of `cipher`.
fn compatible(raw: &mut RawConfig, found: &mut Vec<DataCipher>) {
    if raw.compatible_with.is_none_or(|version| version >= 20_500) {
        return;
    }
    let Some((name, location)) = raw.cipher.clone() else { return };
    if let Some(cipher) = DataCipher::from_name(&name)
        && !found.contains(&cipher)
        && needs_digest(raw, cipher, "cipher", &location).is_ok()
    {
        found.push(cipher);
    }
}

/// Warns about a `cipher` that is never used, because openvpn negotiates only the ciphers of `data-ciphers`.
pub(super) fn named_in_vain(raw: &mut RawConfig, found: &[DataCipher]) {
    let Some((name, location)) = raw.cipher.clone() else { return };
    if raw.fallback.is_some() || raw.secret.is_some() {
        return;
    }
    let cipher = DataCipher::from_name(&name);
    if cipher.is_some_and(|cipher| found.contains(&cipher)) {
        return;
    }
    let known = match cipher {
        Some(_) => {
            "is not in data-ciphers, from which the cipher is negotiated: add it there, or write \
                    data-ciphers-fallback for a peer that does not negotiate"
        }
        None if has_small_blocks(&name) => {
            "is too weak (SWEET32) and not supported: another is negotiated"
        }
        None => "is not supported: another is negotiated",
    };
    raw.options
        .warnings
        .push(format!("{}:{}: cipher {name} {known}", location.file, location.line));
}

fn supported() -> String {
    DataCipher::names().collect::<Vec<_>>().join(", ")
}

/// Returns the cipher of `data-ciphers-fallback`, for peers that do not negotiate.
///
/// In a point-to-point tunnel `cipher` is a fallback too, as in openvpn, because versions up to 2.5 do not negotiate
/// there.
pub(super) fn fallback(
    raw: &mut RawConfig,
    two_points: bool,
) -> Result<Option<DataCipher>, ConfigError> {
    const NAME: &str = "data-ciphers-fallback";
    let Some((name, location)) = raw.fallback.clone() else {
        let old = raw.compatible_with.is_some_and(|version| version < 20_400);
        let by_cipher = raw.cipher.clone().filter(|_| (two_points || old) && raw.secret.is_none());
        return Ok(by_cipher.and_then(|(name, location)| {
            DataCipher::from_name(&name)
                .filter(|cipher| needs_digest(raw, *cipher, "cipher", &location).is_ok())
        }));
    };
    if has_small_blocks(&name) {
        return Err(small_blocks(&name, NAME, &location));
    }
    let found = DataCipher::from_name(&name);
    match found {
        Some(cipher) => needs_digest(raw, cipher, NAME, &location)?,
        None => raw.options.warnings.push(format!(
            "{}:{}: {NAME}: {name} is not supported; peers that have no other are refused",
            location.file, location.line
        )),
    }
    Ok(found)
}

/// Returns whether a cipher has 64-bit blocks, which reveal plaintext after some gigabytes (SWEET32).
fn has_small_blocks(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["BF-", "DES-", "DES3-", "CAST5-", "RC2-", "RC4-", "IDEA-"]
        .iter()
        .any(|small| name.starts_with(small))
}

fn small_blocks(name: &str, directive: &str, location: &Location) -> ConfigError {
    location.error(
        directive,
        format!("{name} is too weak: its blocks are small (SWEET32), and it is not supported"),
        "write AES-256-CBC, and cipher AES-256-CBC in the configuration of the old peer",
    )
}

/// Checks that a cipher other than an AEAD has a digest from `auth`. Without one, any host on the path could inject
/// packets into the tunnel.
fn needs_digest(
    raw: &mut RawConfig,
    cipher: DataCipher,
    directive: &str,
    location: &Location,
) -> Result<(), ConfigError> {
    if cipher.is_aead() {
        return Ok(());
    }
    if raw.options.session.auth == "none" {
        return Err(raw.error(
            "auth",
            format!("packets under {cipher} would not be authenticated"),
            format!("write auth SHA256, at both ends, or leave {cipher} out of {directive}"),
        ));
    }
    if cipher == DataCipher::Block(None) {
        raw.options.warnings.push(format!(
            "{}:{}: {directive}: none: what goes through the tunnel can be READ by anybody on the way",
            location.file, location.line
        ));
    }
    Ok(())
}

/// Returns the cipher for the options string. Its presence there does not enable it.
pub(super) fn named(raw: &RawConfig) -> String {
    match (&raw.fallback, &raw.cipher) {
        (Some((name, _)), _) | (None, Some((name, _))) => name.to_ascii_uppercase(),
        (None, None) => "BF-CBC".into(),
    }
}
