//! The invitation token: a text that an operator copies once to the joining node. It contains only a one-time secret; see [`JoinKey`].
//!
//! ```text
//!   adit1-BASE64URL(version 2 | secret, 24 bytes | invitation's role | checksum, 4 bytes)
//! ```

mod admission;

use std::fmt;
use std::str::FromStr;

use adit_crypto::{CryptoError, text};
use adit_engine::Random;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

pub use self::admission::{Admission, AdmissionError, JoinKey, Request, admit};

const PREFIX: &str = "adit1-";
const VERSION: u8 = 2;
const DOMAIN: &[u8] = b"adit-pg1 text";

/// The maximum length of a role's name in PostgreSQL in bytes.
pub const MAX_ROLE: usize = 63;

/// The maximum length of a text that is parsed.
const MAX_TEXT: usize = 256;

/// The one-time secret of an invitation.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinSecret(Zeroizing<[u8; Self::LEN]>);

impl JoinSecret {
    /// The length in bytes.
    pub const LEN: usize = 24;

    /// Generates a new secret.
    pub fn generate(random: &mut Random) -> Self {
        let mut secret = Self(Zeroizing::new([0; Self::LEN]));
        random.fill(&mut *secret.0);
        secret
    }

    /// Returns the password of the invitation's role.
    pub fn password(&self) -> Zeroizing<String> {
        Zeroizing::new(URL_SAFE_NO_PAD.encode(*self.0))
    }

    /// Derives the key that opens and proves the rest of the invitation.
    ///
    /// # Errors
    /// Fails if the library fails.
    pub fn key(&self) -> Result<JoinKey, CryptoError> {
        JoinKey::of(self)
    }
}

// Implemented by hand to keep secrets out of the logs.
impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret(..)")
    }
}

/// A token that admits one more node. Its `Display` is the secret text itself, which only the requesting user may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The role that may join once.
    pub role: String,
    /// The secret, from which its password is derived.
    pub secret: JoinSecret,
}

/// The reason why a text is not a token.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text is not a token.
    #[error("a token begins with adit1-")]
    Prefix,
    /// The text was mistyped or truncated.
    #[error("the token is damaged: copy all of it, to its last character")]
    Damaged,
    /// A later version of adit created the token.
    #[error("the token's version is not supported by this adit")]
    Version,
    /// The role's name is invalid.
    #[error("the token names no invitation")]
    Role,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_TEXT));
        bytes.push(VERSION);
        bytes.extend_from_slice(&*self.secret.0);
        bytes.extend_from_slice(self.role.as_bytes());
        write!(f, "{PREFIX}{}", *checked_text(&bytes))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim().strip_prefix(PREFIX).ok_or(TokenError::Prefix)?;
        let bytes = from_checked_text(text).ok_or(TokenError::Damaged)?;
        let (version, rest) = bytes.split_first().ok_or(TokenError::Damaged)?;
        if *version != VERSION {
            return Err(TokenError::Version);
        }
        let (secret, role) = rest.split_first_chunk().ok_or(TokenError::Damaged)?;
        let role = std::str::from_utf8(role).ok().filter(|role| is_role(role));
        Ok(Self {
            role: role.ok_or(TokenError::Role)?.to_owned(),
            secret: JoinSecret(Zeroizing::new(*secret)),
        })
    }
}

fn is_role(role: &str) -> bool {
    (1..=MAX_ROLE).contains(&role.len())
        && role.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Encodes bytes and their checksum as text for URLs and files.
pub(crate) fn checked_text(bytes: &[u8]) -> Zeroizing<String> {
    text::encode(DOMAIN, bytes)
}

/// Decodes the result of [`checked_text`].
pub(crate) fn from_checked_text(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    text::decode(DOMAIN, text, MAX_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        let mut random = Random::new([3; 32]);
        Token { role: "adit_t1_join_0a1b2c3d".into(), secret: JoinSecret::generate(&mut random) }
    }

    const TEXT: &str = "adit1-ApBKZFJM48hzuUoRQCUSx2lOct6u0auDemFkaXRfdDFfam9pbl8wYTFiMmMzZNcTvj0";

    #[test]
    fn a_token_is_this_text_and_reads_back() {
        assert_eq!(token().to_string(), TEXT);
        assert_eq!(TEXT.parse(), Ok(token()));
        assert_eq!(format!("  {TEXT}\n").parse(), Ok(token()), "as it is pasted");
        assert!(TEXT.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
    }

    /// With this prefix, the encoding never changes, whatever bytes are generated.
    #[test]
    fn a_token_of_another_build_reads_and_writes_back() {
        let text = "adit1-AjhVU6ojoksU2LvC3_YGJ39ETgSXl65-BGFkaXRfdDFfam9pbl8wYTFiMmMzZJQByg8";
        let token: Token = text.parse().unwrap();
        assert_eq!(token.role, "adit_t1_join_0a1b2c3d");
        assert_eq!(token.to_string(), text);
    }

    #[test]
    fn a_character_changed_lost_or_swapped_anywhere_is_noticed() {
        for at in PREFIX.len()..TEXT.len() {
            let (head, tail) = TEXT.split_at(at);
            let other = if tail.starts_with('A') { "B" } else { "A" };
            let changed = format!("{head}{other}{}", &tail[1..]);
            let lost = format!("{head}{}", &tail[1..]);
            let cut = head.to_owned();
            for bad in [changed, lost, cut] {
                assert_eq!(bad.parse::<Token>(), Err(TokenError::Damaged), "at {at}: {bad}");
            }
        }
    }

    #[test]
    fn each_part_refuses_alone() {
        let text = |bytes: &[u8]| format!("{PREFIX}{}", *checked_text(bytes));
        let good = from_checked_text(&TEXT[PREFIX.len()..]).unwrap();
        assert_eq!(text(&good), TEXT);
        let role = |role: &[u8]| text(&[&good[..25], role].concat());
        let long = "a".repeat(MAX_ROLE);
        assert_eq!(role(long.as_bytes()).parse::<Token>().unwrap().role, long);
        let cases = [
            (TokenError::Prefix, TEXT[1..].to_owned()),
            (TokenError::Prefix, String::new()),
            (TokenError::Damaged, PREFIX.to_owned()),
            (TokenError::Damaged, format!("{PREFIX}{}", "A".repeat(300))),
            (TokenError::Damaged, text(&[])),
            (TokenError::Damaged, text(&good[..24])),
            (TokenError::Version, text(&[&[1], &good[1..]].concat())),
            (TokenError::Role, role(b"")),
            (TokenError::Role, role(format!("{long}a").as_bytes())),
            (TokenError::Role, role(b"adit\"; DROP")),
            (TokenError::Role, role(&[0xff])),
        ];
        for (refusal, bad) in cases {
            assert_eq!(bad.parse::<Token>(), Err(refusal), "{bad}");
        }
    }

    #[test]
    fn secrets_stand_in_no_debug() {
        let shown = format!("{:?}", token());
        assert!(!shown.contains(token().secret.password().as_str()));
        assert_eq!(shown, "Token { role: \"adit_t1_join_0a1b2c3d\", secret: JoinSecret(..) }");
    }

    #[test]
    fn a_password_is_long_and_plain() {
        let password = token().secret.password();
        assert_eq!(password.len(), 32);
        assert!(password.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
    }
}
