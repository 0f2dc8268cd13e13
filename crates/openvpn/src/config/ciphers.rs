//! Ciphers of the data channel. As in stock, CBC is for who asks for it by name, in `data-ciphers` or
//! `data-ciphers-fallback`; `cipher` alone is only told to the peer.

use super::ConfigError;
use super::draft::Draft;
use super::reader::Place;
use crate::negotiate::DataCipher;

/// `data-ciphers`: what may be negotiated, most wanted first.
pub(super) fn allowed(draft: &mut Draft) -> Result<Vec<DataCipher>, ConfigError> {
    const DEFAULT: &str = "AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305";
    let (list, place) = match draft.data_ciphers.clone() {
        Some((list, place)) => (list.replace("DEFAULT", DEFAULT), Some(place)),
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
    compatible(draft, &mut found);
    let Some(place) = place else { return Ok(found) };
    if found.is_empty() {
        if let Some(name) = missing.iter().find(|name| has_small_blocks(name)) {
            return Err(small_blocks(name, "data-ciphers", &place));
        }
        return Err(place.error(
            "data-ciphers",
            format!("none of {list} is supported"),
            format!(
                "add AES-256-GCM, which every peer since 2.4 has; supported are {}",
                supported()
            ),
        ));
    }
    if !missing.is_empty() {
        draft.warnings.push(format!(
            "{}:{}: data-ciphers: {} left out: not supported",
            place.file,
            place.line,
            missing.join(" and ")
        ));
    }
    for cipher in &found {
        needs_digest(draft, *cipher, "data-ciphers", &place)?;
    }
    Ok(found)
}

/// `compat-mode` below 2.5: `cipher` may be negotiated.
fn compatible(draft: &mut Draft, found: &mut Vec<DataCipher>) {
    if draft.compatible_with.is_none_or(|version| version >= 20_500) {
        return;
    }
    let Some((name, place)) = draft.cipher.clone() else { return };
    if let Some(cipher) = DataCipher::from_name(&name)
        && !found.contains(&cipher)
        && needs_digest(draft, cipher, "cipher", &place).is_ok()
    {
        found.push(cipher);
    }
}

/// Warns of a `cipher` that is never used: openvpn negotiates by `data-ciphers` alone.
pub(super) fn named_in_vain(draft: &mut Draft, found: &[DataCipher]) {
    let Some((name, place)) = draft.cipher.clone() else { return };
    if draft.fallback.is_some() || draft.secret.is_some() {
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
    draft.warnings.push(format!("{}:{}: cipher {name} {known}", place.file, place.line));
}

fn supported() -> String {
    DataCipher::names().collect::<Vec<_>>().join(", ")
}

/// `data-ciphers-fallback`: for peers that negotiate nothing.
///
/// Between two points `cipher` is it too, as in stock: up to 2.5 there is no negotiation between them.
pub(super) fn fallback(
    draft: &mut Draft,
    two_points: bool,
) -> Result<Option<DataCipher>, ConfigError> {
    const NAME: &str = "data-ciphers-fallback";
    let Some((name, place)) = draft.fallback.clone() else {
        let old = draft.compatible_with.is_some_and(|version| version < 20_400);
        let by_cipher =
            draft.cipher.clone().filter(|_| (two_points || old) && draft.secret.is_none());
        return Ok(by_cipher.and_then(|(name, place)| {
            DataCipher::from_name(&name)
                .filter(|cipher| needs_digest(draft, *cipher, "cipher", &place).is_ok())
        }));
    };
    if has_small_blocks(&name) {
        return Err(small_blocks(&name, NAME, &place));
    }
    let found = DataCipher::from_name(&name);
    match found {
        Some(cipher) => needs_digest(draft, cipher, NAME, &place)?,
        None => draft.warnings.push(format!(
            "{}:{}: {NAME}: {name} is not supported; peers that have no other are refused",
            place.file, place.line
        )),
    }
    Ok(found)
}

/// Ciphers that give away what they encrypt after some gigabytes (SWEET32).
fn has_small_blocks(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["BF-", "DES-", "DES3-", "CAST5-", "RC2-", "RC4-", "IDEA-"]
        .iter()
        .any(|small| name.starts_with(small))
}

fn small_blocks(name: &str, directive: &str, place: &Place) -> ConfigError {
    place.error(
        directive,
        format!("{name} is too weak: its blocks are small (SWEET32), and it is not supported"),
        "write AES-256-CBC, and cipher AES-256-CBC in the configuration of the old peer",
    )
}

/// What is no AEAD is authenticated by the digest of `auth`, and must be: else anybody on the way
/// could write into the tunnel.
fn needs_digest(
    draft: &mut Draft,
    cipher: DataCipher,
    directive: &str,
    place: &Place,
) -> Result<(), ConfigError> {
    if cipher.is_aead() {
        return Ok(());
    }
    if draft.auth.as_deref() == Some("none") {
        return Err(draft.error(
            "auth",
            format!("packets under {cipher} would not be authenticated"),
            format!("write auth SHA256, at both ends, or leave {cipher} out of {directive}"),
        ));
    }
    if cipher == DataCipher::Block(None) {
        draft.warnings.push(format!(
            "{}:{}: {directive}: none: what goes through the tunnel can be READ by anybody on the way",
            place.file, place.line
        ));
    }
    Ok(())
}

/// What the options string names: it enables nothing by itself.
pub(super) fn named(draft: &Draft) -> String {
    match (&draft.fallback, &draft.cipher) {
        (Some((name, _)), _) | (None, Some((name, _))) => name.to_ascii_uppercase(),
        (None, None) => "BF-CBC".into(),
    }
}
