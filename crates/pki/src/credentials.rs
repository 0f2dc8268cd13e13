//! The password field of a client: a password, possibly with a one-time code.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

use std::fmt;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

use crate::RecoveryHash;
use crate::password::MAX_HASHED;
use crate::recovery::RECOVERY_LENGTH;
use crate::totp::CODE_DIGITS;

/// The maximum length of the field, in bytes. The answer to a challenge contains a password and a code in base64.
const MAX_FIELD: usize = 512;
/// The maximum length of the answer to a challenge. The longest one that is accepted is a recovery code.
const MAX_ANSWER: usize = 64;

/// The beginning of an answer to a `static-challenge`: `SCRV1:` and the password and the answer, both in base64.
const CHALLENGE: &str = "SCRV1:";

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A password with a code, as a client sent them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The password.
    pub password: Zeroizing<String>,
    /// The one-time code or recovery code.
    pub code: Option<Zeroizing<String>>,
}

/// The reason why a password field cannot be read.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BadCredentials {
    /// The field, the password or the answer is too long. Nothing of it is hashed.
    TooLong,
    /// The answer to the challenge does not have the form `SCRV1:BASE64:BASE64`.
    BadAnswer,
}

impl fmt::Display for BadCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the password is too long",
            Self::BadAnswer => "the answer to the challenge is malformed",
        })
    }
}

impl std::error::Error for BadCredentials {}

impl Credentials {
    /// Reads a field. An app that knows `static-challenge` sends the code separately. For an app that does not, the user
    /// types the code after the password; it is only looked for if `has_code`: the user has codes.
    ///
    /// # Errors
    /// The field is too long or malformed. This does not depend on `has_code`, so an error says nothing about the user.
    pub fn parse(field: &str, has_code: bool) -> Result<Self, BadCredentials> {
        if field.len() > MAX_FIELD {
            return Err(BadCredentials::TooLong);
        }
        match field.strip_prefix(CHALLENGE) {
            Some(answer) => Self::of_answer(answer),
            None if field.len() > MAX_HASHED => Err(BadCredentials::TooLong),
            None if has_code => Ok(Self::split(field)),
            None => Ok(Self { password: Zeroizing::new(field.to_owned()), code: None }),
        }
    }

    fn of_answer(answer: &str) -> Result<Self, BadCredentials> {
        let (password, code) = answer.split_once(':').ok_or(BadCredentials::BadAnswer)?;
        let (password, code) = (decode(password)?, decode(code)?);
        if password.len() > MAX_HASHED || code.len() > MAX_ANSWER {
            return Err(BadCredentials::TooLong);
        }
        // Apps show codes in two groups, and some users type the space.
        let code: Zeroizing<String> = Zeroizing::new(code.chars().filter(|c| *c != ' ').collect());
        Ok(Self { password, code: (!code.is_empty()).then_some(code) })
    }

    /// Splits a password from the code after it. Without a code, all of it is the password.
    fn split(field: &str) -> Self {
        let at = |length: usize| field.len().checked_sub(length);
        let tail = |length| at(length).and_then(|at| field.split_at_checked(at));
        let digits = |code: &str| code.bytes().all(|byte| byte.is_ascii_digit());
        let recovery = tail(RECOVERY_LENGTH).filter(|(_, code)| RecoveryHash::of(code).is_some());
        let split = recovery.or_else(|| tail(CODE_DIGITS).filter(|(_, code)| digits(code)));
        let (password, code) = match split {
            Some((password, code)) => (password, Some(Zeroizing::new(code.to_owned()))),
            None => (field, None),
        };
        Self { password: Zeroizing::new(password.to_owned()), code }
    }
}

fn decode(text: &str) -> Result<Zeroizing<String>, BadCredentials> {
    let bytes = BASE64.decode(text).map_err(|_| BadCredentials::BadAnswer)?;
    let text = String::from_utf8(bytes).map_err(|_| BadCredentials::BadAnswer)?;
    Ok(Zeroizing::new(text))
}

// Written by hand to keep both out of logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("code", &self.code.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(field: &str, has_code: bool) -> Result<(String, Option<String>), BadCredentials> {
        let read = Credentials::parse(field, has_code)?;
        Ok((read.password.to_string(), read.code.map(|code| code.to_string())))
    }

    fn answer(password: &str, code: &str) -> String {
        format!("SCRV1:{}:{}", BASE64.encode(password), BASE64.encode(code))
    }

    #[test]
    fn an_answer_to_a_challenge_has_two_parts() {
        let expected = Ok(("päss:word 123456".to_owned(), Some("654321".to_owned())));
        for has_code in [true, false] {
            assert_eq!(parts(&answer("päss:word 123456", "654321"), has_code), expected);
            assert_eq!(parts(&answer("päss:word 123456", "654 321"), has_code), expected);
        }
        assert_eq!(parts("SCRV1:cGFzcw:MTIzNDU2", true), parts("SCRV1:cGFzcw==:MTIzNDU2", true));
        assert_eq!(parts(&answer("pass", ""), true), Ok(("pass".into(), None)));
        assert_eq!(parts("SCRV1::", true), Ok((String::new(), None)));
    }

    #[test]
    fn a_malformed_answer_is_refused() {
        for field in [
            "SCRV1:",
            "SCRV1:cGFzcw==",
            "SCRV1:cGFzcw==:MTIzNDU2:",
            "SCRV1:cGFzcw==:MTIz!",
            "SCRV1:cGFzcw==:MTIzN",
            "SCRV1:p:MTIzNDU2",
            "SCRV1:/w==:MTIzNDU2",
            "SCRV1:cGFzcw==:\u{661}",
        ] {
            assert_eq!(parts(field, true), Err(BadCredentials::BadAnswer), "{field}");
        }
    }

    #[test]
    fn each_length_is_bounded_alone() {
        let long = |n| "x".repeat(n);
        assert_eq!(parts(&long(192), false), Ok((long(192), None)));
        assert_eq!(parts(&answer(&long(192), "1"), true), Ok((long(192), Some("1".into()))));
        assert_eq!(parts(&answer(&long(193), "1"), true), Err(BadCredentials::TooLong));
        // The end of these looks like a code, and the error is the same without one.
        for has_code in [true, false] {
            let field = format!("{}123456", long(187));
            assert_eq!(parts(&field, has_code), Err(BadCredentials::TooLong));
            let field = format!("SCRV1:{}:", long(512));
            assert_eq!(parts(&field, has_code), Err(BadCredentials::TooLong));
        }
        assert_eq!(parts(&answer("p", &long(64)), true), Ok(("p".into(), Some(long(64)))));
        assert_eq!(parts(&answer("p", &long(65)), true), Err(BadCredentials::TooLong));
    }

    #[test]
    fn a_code_may_follow_the_password() {
        let with = |field: &str| parts(field, true).unwrap();
        assert_eq!(with("secret-pass123456"), ("secret-pass".into(), Some("123456".into())));
        assert_eq!(with("123456"), (String::new(), Some("123456".into())));
        let recovery = "abcd-efgh-2345-67zz";
        let both = format!("secret{recovery}");
        assert_eq!(with(&both), ("secret".into(), Some(recovery.into())));
        for whole in ["secret-pass", "secret12345", "", "päss12345é", "é12345"] {
            assert_eq!(with(whole), (whole.to_owned(), None), "{whole}");
        }
        // A user without codes may have a password that ends with digits.
        assert_eq!(parts("secret123456", false), Ok(("secret123456".into(), None)));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let read = Credentials::parse(&answer("hunter22", "123456"), true).unwrap();
        let shown = format!("{read:?}");
        assert!(!shown.contains("hunter22") && !shown.contains("123456"), "{shown}");
    }
}
