//! Tokens that replace a password in later authentications (`auth-gen-token`).
//!
//! ```text
//! "SESS_ID_AT_" base64(session id 12 | time of the first token 8 | time of this token 8 | code 32)
//! code = HMAC-SHA256(user name | session id | time of the first token | time of this token)
//! ```
//!
//! The server keeps nothing: the token itself proves that its owner has authenticated as this user. Tokens that replace
//! each other have the same session id and the time of the first one, which limits how long the password may be
//! replaced.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

use std::time::Duration;

use adit_crypto::CryptoError;
use adit_engine::UnixTime;
use adit_engine::auth::TokenState;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::keys::TokenKey;

/// The beginning of every token. A password that begins with it is a token.
pub const TOKEN_PREFIX: &str = "SESS_ID_AT_";

/// The length of a session id in bytes.
pub const SESSION_ID_LEN: usize = 12;
const CODE_LEN: usize = 32;
/// The length of a token in bytes before base64.
const LEN: usize = SESSION_ID_LEN + 8 + 8 + CODE_LEN;
/// The length of a token's base64.
const TEXT_LEN: usize = LEN / 3 * 4;

/// `auth-gen-token`.
#[derive(Clone, Debug)]
pub struct TokenPolicy {
    /// `auth-gen-token-secret`, or a random key.
    pub key: TokenKey,
    /// The time for which tokens replace a password; `None` for no limit.
    pub lifetime: Option<Duration>,
    /// How often a token is renewed. A token that was not renewed for twice this time has expired.
    pub renewal: Duration,
    /// `external-auth`: the other checks decide even if a token is valid.
    pub external: bool,
}

/// The data in a token.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The id that tokens which replace each other have in common.
    pub session: [u8; SESSION_ID_LEN],
    /// The time when the first of these tokens was made.
    pub initial: UnixTime,
    /// The time when this token was made.
    pub renewed: UnixTime,
}

impl Token {
    /// Returns the token for a user, as it is pushed.
    ///
    /// # Errors
    /// None in practice: HMAC accepts every key.
    pub fn encode(&self, key: &TokenKey, username: &str) -> Result<Zeroizing<String>, CryptoError> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(LEN));
        bytes.extend_from_slice(&self.signed());
        let code = key.hmac()?.sign(&[username.as_bytes(), &self.signed()]);
        bytes.extend_from_slice(code.as_bytes());
        let mut text =
            Zeroizing::new(String::with_capacity(TOKEN_PREFIX.len().saturating_add(TEXT_LEN)));
        text.push_str(TOKEN_PREFIX);
        STANDARD.encode_string(bytes.as_slice(), &mut text);
        Ok(text)
    }

    /// Returns the id of the session in base64, as scripts get it.
    pub fn session_id(&self) -> String {
        STANDARD.encode(self.session)
    }

    fn signed(&self) -> Vec<u8> {
        let (initial, renewed) = (self.initial.0.to_be_bytes(), self.renewed.0.to_be_bytes());
        [self.session.as_slice(), &initial, &renewed].concat()
    }

    /// Parses a token without checking its code, which is the second part of the result.
    fn decode(text: &str) -> Option<(Self, [u8; CODE_LEN])> {
        let base64 = text.strip_prefix(TOKEN_PREFIX).filter(|text| text.len() == TEXT_LEN)?;
        let bytes = Zeroizing::new(STANDARD.decode(base64).ok()?);
        let (session, rest) = bytes.split_first_chunk()?;
        let (initial, rest) = rest.split_first_chunk()?;
        let (renewed, code) = rest.split_first_chunk()?;
        let (initial, renewed) = (u64::from_be_bytes(*initial), u64::from_be_bytes(*renewed));
        let token =
            Self { session: *session, initial: UnixTime(initial), renewed: UnixTime(renewed) };
        Some((token, code.try_into().ok()?))
    }
}

impl TokenPolicy {
    /// Returns whether a password is a token, valid or not.
    pub fn is_token(password: &str) -> bool {
        password.starts_with(TOKEN_PREFIX)
    }

    /// Checks a token. It is returned if it is authentic, even if it has expired.
    ///
    /// # Errors
    /// None in practice: HMAC accepts every key.
    pub fn verify(
        &self,
        text: &str,
        username: &str,
        now: UnixTime,
    ) -> Result<(TokenState, Option<Token>), CryptoError> {
        let Some((token, code)) = Token::decode(text) else {
            return Ok((TokenState::Invalid, None));
        };
        let (key, signed) = (self.key.hmac()?, token.signed());
        // Compute both codes, so that the time does not depend on the result.
        let own = key.verify(&[username.as_bytes(), &signed], &code);
        let nameless = key.verify(&[&signed], &code);
        let state = match (own, nameless, self.is_valid_at(&token, now)) {
            (true, _, true) => TokenState::Authenticated,
            (true, _, false) => TokenState::Expired,
            (false, true, true) => TokenState::AuthenticatedEmptyUser,
            (false, true, false) => TokenState::ExpiredEmptyUser,
            (false, false, _) => return Ok((TokenState::Invalid, None)),
        };
        Ok((state, Some(token)))
    }

    /// Returns whether a token has neither expired nor been made in the future.
    fn is_valid_at(&self, token: &Token, now: UnixTime) -> bool {
        let before =
            |since: UnixTime, limit: u64| now.0.checked_sub(since.0).is_some_and(|age| age < limit);
        let unused = self.renewal.as_secs().saturating_mul(2);
        before(token.renewed, unused)
            && self.lifetime.is_none_or(|limit| before(token.initial, limit.as_secs()))
    }
}

/// Checks a token from any bytes, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let key = TokenKey::new(&[7; TokenKey::LEN]);
    let renewal = Duration::from_secs(3600);
    let policy = TokenPolicy { key, lifetime: None, renewal, external: false };
    let text = String::from_utf8_lossy(bytes);
    let now = UnixTime(1_800_000_000);
    if let Ok((state, Some(token))) = policy.verify(&text, "alice", now) {
        // Only the owner of the key can make one. The corpus contains one.
        assert!(matches!(state, TokenState::Authenticated | TokenState::Expired), "{state:?}");
        let again = token.encode(&policy.key, "alice").ok();
        assert_eq!(again.as_ref().map(|again| again.as_str()), Some(text.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    fn policy() -> TokenPolicy {
        TokenPolicy {
            key: TokenKey::new(&[7; TokenKey::LEN]),
            lifetime: Some(Duration::from_secs(1000)),
            renewal: Duration::from_secs(100),
            external: false,
        }
    }

    fn token(initial: u64, renewed: u64) -> Token {
        Token {
            session: [9; SESSION_ID_LEN],
            initial: UnixTime(initial),
            renewed: UnixTime(renewed),
        }
    }

    fn state(policy: &TokenPolicy, text: &str, username: &str, now: u64) -> TokenState {
        policy.verify(text, username, UnixTime(now)).unwrap().0
    }

    #[test]
    fn a_token_belongs_to_its_user_and_to_its_key() {
        let policy = policy();
        let text = token(NOW.0, NOW.0).encode(&policy.key, "alice").unwrap();
        assert_eq!(text.len(), TOKEN_PREFIX.len() + 80);
        let read = policy.verify(&text, "alice", NOW).unwrap();
        assert_eq!(read, (TokenState::Authenticated, Some(token(NOW.0, NOW.0))));
        for other in ["bob", "", "alice ", "Alice"] {
            assert_eq!(state(&policy, &text, other, NOW.0), TokenState::Invalid, "{other:?}");
        }
        let foreign = TokenPolicy { key: TokenKey::new(&[8; TokenKey::LEN]), ..policy };
        assert_eq!(state(&foreign, &text, "alice", NOW.0), TokenState::Invalid);
    }

    /// Each limit alone makes a token expire, and so does a time in the future.
    #[test]
    fn a_token_expires_by_its_lifetime_and_without_renewal() {
        let policy = policy();
        let at = |initial, renewed, now| {
            let text = token(initial, renewed).encode(&policy.key, "alice").unwrap();
            state(&policy, &text, "alice", now)
        };
        assert_eq!(at(0, 900, 999), TokenState::Authenticated);
        assert_eq!(at(0, 900, 1000), TokenState::Expired, "the lifetime");
        assert_eq!(at(800, 800, 999), TokenState::Authenticated);
        assert_eq!(at(800, 800, 1000), TokenState::Expired, "not renewed");
        assert_eq!(at(800, 1001, 1000), TokenState::Expired, "from the future");
        let forever = TokenPolicy { lifetime: None, ..policy.clone() };
        let text = token(0, 90_000).encode(&policy.key, "alice").unwrap();
        assert_eq!(state(&forever, &text, "alice", 90_100), TokenState::Authenticated);
    }

    #[test]
    fn a_token_without_a_user_is_told_from_a_wrong_one() {
        let policy = policy();
        let text = token(NOW.0, NOW.0).encode(&policy.key, "").unwrap();
        assert_eq!(state(&policy, &text, "", NOW.0), TokenState::Authenticated);
        assert_eq!(state(&policy, &text, "bob", NOW.0), TokenState::AuthenticatedEmptyUser);
        assert_eq!(state(&policy, &text, "bob", NOW.0 + 500), TokenState::ExpiredEmptyUser);
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let policy = policy();
        let text = token(NOW.0, NOW.0).encode(&policy.key, "alice").unwrap();
        for at in 0..text.len() {
            let mut other = text.as_bytes().to_vec();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert_eq!(state(&policy, &other, "alice", NOW.0), TokenState::Invalid, "{other}");
        }
        for len in 0..text.len() {
            assert_eq!(state(&policy, &text[..len], "alice", NOW.0), TokenState::Invalid);
        }
        assert_eq!(state(&policy, &format!("{}=", *text), "alice", NOW.0), TokenState::Invalid);
    }

    /// With `external-auth`, a password that began like a token but was too short terminated the server.
    #[test]
    fn cve_2026_13122_tokens_of_any_length_have_no_session_unless_they_are_authentic() {
        let policy = TokenPolicy { external: true, ..policy() };
        let authentic = token(NOW.0, NOW.0).encode(&policy.key, "alice").unwrap();
        for len in 0..200 {
            for filler in ["A", "=", "\u{e4}", "\0"] {
                let text = format!("{TOKEN_PREFIX}{}", filler.repeat(len));
                assert!(TokenPolicy::is_token(&text));
                let read = policy.verify(&text, "alice", NOW).unwrap();
                assert_eq!(read, (TokenState::Invalid, None), "{text}");
            }
            let cut = authentic.get(..len.min(authentic.len() - 1)).unwrap();
            assert_eq!(policy.verify(cut, "alice", NOW).unwrap(), (TokenState::Invalid, None));
        }
    }

    #[test]
    fn a_key_file_reads_back() {
        let pem = policy().key.to_pem();
        let key = TokenKey::parse(&pem).unwrap();
        assert_eq!(*key.to_pem(), *pem);
        let cut = pem.replacen("BwcH", "", 1);
        assert!(TokenKey::parse(&cut).unwrap_err().to_string().contains("instead of 128"));
        assert!(TokenKey::parse("").is_err());
    }
}
