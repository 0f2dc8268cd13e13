use std::fmt;

use adit_crypto::Cipher;

use super::PeerInfo;

/// Why no cipher can be agreed upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CipherRefused {
    /// What the peer offers, for the log.
    pub offered: Vec<String>,
    /// What we allow.
    pub allowed: Vec<Cipher>,
}

impl fmt::Display for CipherRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed: Vec<_> = self.allowed.iter().map(|cipher| cipher.name()).collect();
        let offered =
            if self.offered.is_empty() { "none".to_owned() } else { self.offered.join(":") };
        write!(
            f,
            "no common cipher: the peer offers {offered}, allowed are {} \
             (add one of the peer's to data-ciphers)",
            allowed.join(":")
        )
    }
}

impl std::error::Error for CipherRefused {}

/// The server's choice: the first of its own list that the client has.
///
/// `occ` is the `cipher` of the client's options string. A client that cannot negotiate has only
/// that one; `fallback` (`data-ciphers-fallback`) stands in where it names none.
///
/// # Errors
/// [`CipherRefused`]: AUTH_FAILED with "Data channel cipher negotiation failed (no shared cipher)".
pub fn choose_cipher(
    allowed: &[Cipher],
    info: &PeerInfo,
    occ: Option<&str>,
    fallback: Option<Cipher>,
) -> Result<Cipher, CipherRefused> {
    let mut offered = info.ciphers();
    let negotiates = !offered.is_empty();
    if let Some(occ) = occ {
        offered.push(occ);
    }
    let found = allowed
        .iter()
        .copied()
        .find(|cipher| offered.iter().any(|name| Cipher::from_name(name) == Some(*cipher)));
    if let Some(cipher) = found {
        return Ok(cipher);
    }
    // The fallback is for peers that know nothing of negotiation and say nothing of their cipher.
    // One that names another cipher would only exchange packets neither side can open.
    match fallback {
        Some(cipher)
            if !negotiates && occ.is_none_or(|name| Cipher::from_name(name) == Some(cipher)) =>
        {
            Ok(cipher)
        }
        _ => Err(CipherRefused {
            offered: offered.into_iter().map(str::to_owned).collect(),
            allowed: allowed.to_vec(),
        }),
    }
}
