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

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: [Cipher; 3] = [Cipher::Aes256Gcm, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];

    fn choose(
        info: &str,
        occ: Option<&str>,
        fallback: Option<Cipher>,
    ) -> Result<Cipher, CipherRefused> {
        choose_cipher(&SERVER, &PeerInfo::parse(info).unwrap(), occ, fallback)
    }

    #[test]
    fn the_servers_order_decides() {
        let got = choose("IV_CIPHERS=CHACHA20-POLY1305:AES-128-GCM\n", None, None);
        assert_eq!(got, Ok(Cipher::Aes128Gcm));
        // A 2.4 client
        assert_eq!(choose("IV_NCP=2\n", Some("BF-CBC"), None), Ok(Cipher::Aes256Gcm));
    }

    #[test]
    fn the_options_string_counts_as_an_offer() {
        assert_eq!(choose("", Some("AES-128-GCM"), None), Ok(Cipher::Aes128Gcm));
        let got = choose("IV_CIPHERS=AES-256-CBC\n", Some("CHACHA20-POLY1305"), None);
        assert_eq!(got, Ok(Cipher::ChaCha20Poly1305));
    }

    #[test]
    fn the_fallback_is_for_those_that_name_none() {
        assert_eq!(choose("", None, Some(Cipher::Aes192Gcm)), Ok(Cipher::Aes192Gcm));
        assert_eq!(choose("", Some("AES-192-GCM"), Some(Cipher::Aes192Gcm)), Ok(Cipher::Aes192Gcm));
        assert!(choose("", Some("BF-CBC"), Some(Cipher::Aes192Gcm)).is_err());
        assert!(choose("IV_CIPHERS=AES-256-CBC\n", None, Some(Cipher::Aes192Gcm)).is_err());
        assert!(choose("", None, None).is_err());
    }

    #[test]
    fn a_refusal_says_what_was_offered() {
        let refused = choose("IV_CIPHERS=AES-256-CBC:BF-CBC\n", Some("BF-CBC"), None).unwrap_err();
        assert!(refused.to_string().contains("AES-256-CBC:BF-CBC"), "{refused}");
        assert!(refused.to_string().contains("data-ciphers"), "{refused}");
    }
}
