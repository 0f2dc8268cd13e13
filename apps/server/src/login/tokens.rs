//! Tokens that replace the password and the code of a user with codes when the client connects again. Without them, it would
//! repeat a code that was used.
//!
//! ```text
//! "SESS_ID_adit_" base64(time of the login 8 | HMAC-SHA256 32)
//! ```
//!
//! The server keeps nothing: the HMAC covers the user, the client, the revision of the user's password and codes, and the
//! time, so a token ends with each of them.
//!
//! These are not the tokens of `auth-gen-token`, which the engine issues for `adit openvpn` (`server/auth_token.rs` in
//! `crates/openvpn`). Those have the format of OpenVPN's server, so that servers with the same key accept each other's. It has no
//! room for a certificate and a revision, and the engine that checks it knows no users. OpenVPN's tokens are renewed during
//! a session, while those here end at a fixed time after the login.

use std::fs;
use std::path::PathBuf;

use adit_crypto::{Digest, HmacKey};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::helper::files;
use adit_runtime::paths::Paths;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The beginning of every token. No password begins with it.
const PREFIX: &str = "SESS_ID_adit_";
/// The time for which a token replaces a login, in seconds.
const LIFETIME: u64 = 12 * 3600;
const KEY: usize = 32;
const MAC: usize = 32;

/// The key of the tokens. The file `token.key` keeps it, so that tokens survive a restart of the server.
pub(crate) struct Tokens(HmacKey);

impl Tokens {
    /// Returns the path of the key.
    pub(crate) fn file(paths: &Paths) -> PathBuf {
        paths.data.join("token.key")
    }

    /// Reads the key, or creates one.
    pub(crate) fn open(paths: &Paths) -> Result<Self, Fault> {
        let path = Self::file(paths);
        let key = match fs::read(&path).map(Zeroizing::new) {
            Ok(key) if key.len() == KEY => key,
            // Without the former key, users log in again.
            _ => {
                let mut key = Zeroizing::new(vec![0; KEY]);
                adit_runtime::random::generator()?.fill(&mut key);
                let written = files::replace(&path, &key);
                written.map_err(|error| file_fault("cannot write", &path, &error))?;
                key
            }
        };
        let key = HmacKey::new(Digest::Sha256, &key);
        Ok(Self(key.map_err(|error| Fault::ours(format!("cannot make tokens: {error}")))?))
    }

    /// Returns the token of a user, by name and revision, who logged in at `issued` (seconds since 1970) with this client's
    /// certificate.
    pub(crate) fn issue(
        &self,
        (name, revision): (&str, u32),
        client: &str,
        issued: u64,
    ) -> Zeroizing<String> {
        let mut bytes = issued.to_be_bytes().to_vec();
        let revision = revision.to_be_bytes();
        let mac = self.0.sign(&parts(name, client, &revision, &issued.to_be_bytes()));
        bytes.extend_from_slice(mac.as_bytes());
        let mut text = Zeroizing::new(PREFIX.to_owned());
        STANDARD.encode_string(&bytes, &mut text);
        text
    }

    /// Returns whether a password is a token, valid or not.
    pub(crate) fn is_token(password: &str) -> bool {
        password.starts_with(PREFIX)
    }

    /// Returns the time of the login if a token of a login on this server is valid at `now`. `revision` is that of the user,
    /// if the user exists.
    pub(super) fn verify(
        &self,
        token: &str,
        user: (&str, Option<u32>),
        client: &str,
        now: u64,
    ) -> Option<u64> {
        self.verify_within(token, user, client, (now, LIFETIME))
    }

    /// Does the same as [`Self::verify`], for tokens with another lifetime in seconds.
    pub(crate) fn verify_within(
        &self,
        token: &str,
        (name, revision): (&str, Option<u32>),
        client: &str,
        (now, lifetime): (u64, u64),
    ) -> Option<u64> {
        let bytes = STANDARD.decode(token.strip_prefix(PREFIX)?).ok()?;
        let (issued, mac) = bytes.split_first_chunk::<8>()?;
        // The same work for an unknown user.
        let of_user = revision.unwrap_or_default().to_be_bytes();
        let valid = mac.len() == MAC && self.0.verify(&parts(name, client, &of_user, issued), mac);
        let issued = u64::from_be_bytes(*issued);
        let fresh = now.checked_sub(issued).is_some_and(|age| age < lifetime);
        (valid && fresh && revision.is_some()).then_some(issued)
    }
}

/// Returns the text under the HMAC. Names contain no NUL, and the other parts have fixed lengths.
fn parts<'a>(
    name: &'a str,
    client: &'a str,
    revision: &'a [u8; 4],
    issued: &'a [u8; 8],
) -> [&'a [u8]; 6] {
    [name.as_bytes(), b"\0", client.as_bytes(), b"\0", revision, issued]
}

// Written by hand because it holds a key.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folders;

    const NOW: u64 = 1_795_000_000;
    const ALICE: (&str, u32) = ("alice", 3);

    /// In each case only one part differs.
    #[test]
    fn a_token_is_valid_for_its_user_client_revision_and_time_only() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&folders(&dir)).unwrap();
        let token = tokens.issue(ALICE, "laptop", NOW);
        assert!(Tokens::is_token(&token) && token.len() < 128);
        let alice = ("alice", Some(3));
        assert_eq!(tokens.verify(&token, alice, "laptop", NOW), Some(NOW));
        let last = NOW + LIFETIME - 1;
        assert_eq!(tokens.verify(&token, alice, "laptop", last), Some(NOW));
        for (user, client, now) in [
            (("bob", Some(3)), "laptop", NOW),
            (("alice", Some(4)), "laptop", NOW),
            (("alice", None), "laptop", NOW),
            (alice, "phone", NOW),
            (alice, "laptop", NOW + LIFETIME),
            (alice, "laptop", NOW - 1),
        ] {
            assert_eq!(tokens.verify(&token, user, client, now), None, "{user:?} {client} {now}");
        }
        // The revision of an unknown user is taken as 0.
        let first = tokens.issue(("alice", 0), "laptop", NOW);
        assert_eq!(tokens.verify(&first, ("alice", None), "laptop", NOW), None);
    }

    #[test]
    fn an_altered_token_is_not_valid() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&folders(&dir)).unwrap();
        let token = tokens.issue(ALICE, "laptop", NOW);
        let verify = |text: &str| tokens.verify(text, ("alice", Some(3)), "laptop", NOW);
        for at in 0..token.len() {
            let mut altered = token.as_bytes().to_vec();
            altered[at] = if altered[at] == b'B' { b'C' } else { b'B' };
            assert_eq!(verify(std::str::from_utf8(&altered).unwrap()), None, "{at}");
            assert_eq!(verify(&token[..at]), None, "{at}");
        }
        for text in ["", PREFIX, &format!("{PREFIX}AAAA"), &format!("{}AAAA", *token)] {
            assert_eq!(verify(text), None, "{text}");
        }
    }

    #[test]
    fn tokens_survive_a_restart_but_not_a_new_key() {
        let dir = tempfile::tempdir().unwrap();
        let paths = folders(&dir);
        let token = Tokens::open(&paths).unwrap().issue(ALICE, "laptop", NOW);
        let verify = |tokens: &Tokens| tokens.verify(&token, ("alice", Some(3)), "laptop", NOW);
        assert_eq!(verify(&Tokens::open(&paths).unwrap()), Some(NOW));
        fs::write(Tokens::file(&paths), "short").unwrap();
        assert_eq!(verify(&Tokens::open(&paths).unwrap()), None);
        assert_eq!(fs::read(Tokens::file(&paths)).unwrap().len(), KEY);
    }
}
