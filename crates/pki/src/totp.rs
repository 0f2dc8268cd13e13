//! One-time codes by RFC 6238: HMAC-SHA-1, six digits, steps of 30 seconds, as every authenticator app computes them.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

use std::fmt;

use aws_lc_rs::hmac;
use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{PkiError, issue};

/// The number of digits of a code.
pub(crate) const CODE_DIGITS: usize = 6;
const MODULUS: u32 = 1_000_000;
/// The length of a step, in seconds.
const STEP: u64 = 30;
/// The number of steps by which a phone's clock may be wrong, in either direction.
const TOLERANCE: u64 = 1;
/// The length of a secret in bytes: that of a SHA-1 hash, as RFC 4226 recommends.
const SECRET: usize = 20;
/// The maximum length of the issuer in a URI, so that its QR code fits a terminal.
const MAX_ISSUER: usize = 64;

/// The secret from which a user's app computes codes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TotpSecret(Zeroizing<[u8; SECRET]>);

/// The result of checking a code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CodeCheck {
    /// The code is that of this step, in which none was used yet.
    Valid(u64),
    /// The code is that of a step in which, or after which, a code was used.
    Used,
    /// The code belongs to no step near the present.
    Wrong,
}

impl TotpSecret {
    /// Creates a random secret.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn generate() -> Result<Self, PkiError> {
        Ok(Self(Zeroizing::new(issue::random()?)))
    }

    /// Checks a code at `now` (seconds since 1970). `last` is the step of the last code that was accepted from this user: a
    /// code of that step, or of an earlier one, is not accepted again.
    pub fn check(&self, code: &str, now: u64, last: Option<u64>) -> CodeCheck {
        let Some(code) = parse_code(code) else { return CodeCheck::Wrong };
        let step = now / STEP;
        let mut result = CodeCheck::Wrong;
        // All steps are compared, so that the time does not depend on which one matches.
        for step in step.saturating_sub(TOLERANCE)..=step.saturating_add(TOLERANCE) {
            if self.code(step) == code {
                let fresh = last.is_none_or(|last| step > last);
                match (fresh, result) {
                    (true, CodeCheck::Wrong | CodeCheck::Used) => result = CodeCheck::Valid(step),
                    (false, CodeCheck::Wrong) => result = CodeCheck::Used,
                    _ => {}
                }
            }
        }
        result
    }

    /// Returns the code of a step (RFC 4226, section 5.3).
    fn code(&self, step: u64) -> u32 {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &*self.0);
        let tag = hmac::sign(&key, &step.to_be_bytes());
        let tag = tag.as_ref();
        let offset = usize::from(tag.last().copied().unwrap_or_default() & 0xf);
        let word = offset.checked_add(4).and_then(|end| tag.get(offset..end));
        let word: [u8; 4] = word.and_then(|word| word.try_into().ok()).unwrap_or_default();
        (u32::from_be_bytes(word) & 0x7fff_ffff) % MODULUS
    }

    /// Returns the code that an app shows at `now` (seconds since 1970).
    pub fn code_at(&self, now: u64) -> String {
        format!("{:06}", self.code(now / STEP))
    }

    /// Returns the secret in base32, for typing it into an app.
    pub fn to_base32(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE32_NOPAD.encode(&*self.0))
    }

    /// Returns the `otpauth` URI that apps read from a QR code. `issuer` and `name` tell the user what the code is for.
    pub fn uri(&self, issuer: &str, name: &str) -> Zeroizing<String> {
        let issuer = escaped(if issuer.len() > MAX_ISSUER { "adit" } else { issuer });
        let (name, secret) = (escaped(name), self.to_base32());
        Zeroizing::new(format!(
            "otpauth://totp/{issuer}:{name}?secret={}&issuer={issuer}",
            secret.as_str()
        ))
    }
}

/// Parses exactly six digits.
fn parse_code(code: &str) -> Option<u32> {
    let digits = code.len() == CODE_DIGITS && code.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| code.parse().ok())?
}

/// Escapes everything except the unreserved characters of a URI.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

impl TryFrom<String> for TotpSecret {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let text = Zeroizing::new(text);
        let bytes = BASE32_NOPAD.decode(text.as_bytes()).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| "secret: not base32".to_owned())?;
        let secret = <[u8; SECRET]>::try_from(bytes.as_slice());
        secret
            .map(|secret| Self(Zeroizing::new(secret)))
            .map_err(|_| format!("secret: {} bytes, expected {SECRET}", bytes.len()))
    }
}

impl From<TotpSecret> for String {
    fn from(secret: TotpSecret) -> Self {
        secret.to_base32().to_string()
    }
}

// Written by hand to keep the secret out of logs.
impl fmt::Debug for TotpSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TotpSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The secret of the RFCs' test vectors.
    fn secret() -> TotpSecret {
        TotpSecret(Zeroizing::new(*b"12345678901234567890"))
    }

    /// RFC 4226, appendix D.
    #[test]
    fn vectors_of_rfc_4226() {
        let codes = [
            755_224, 287_082, 359_152, 969_429, 338_314, 254_676, 287_922, 162_583, 399_871,
            520_489,
        ];
        for (step, code) in (0..).zip(codes) {
            assert_eq!(secret().code(step), code, "{step}");
        }
    }

    /// RFC 6238, appendix B: the last six of its eight digits.
    #[test]
    fn vectors_of_rfc_6238() {
        for (now, code) in [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ] {
            assert_eq!(secret().code_at(now), code, "{now}");
            assert_eq!(secret().check(code, now, None), CodeCheck::Valid(now / 30), "{now}");
        }
    }

    #[test]
    fn a_code_is_good_for_one_step_before_and_after_its_own() {
        let (secret, now) = (secret(), 1_111_111_111);
        let code = secret.code_at(now);
        for (at, good) in
            [(now - 60, false), (now - 30, true), (now, true), (now + 30, true), (now + 60, false)]
        {
            let valid = secret.check(&code, at, None) == CodeCheck::Valid(now / 30);
            assert_eq!(valid, good, "{at}");
        }
    }

    #[test]
    fn a_code_works_once_and_so_does_every_earlier_one() {
        let (secret, now) = (secret(), 1_111_111_111);
        let CodeCheck::Valid(step) = secret.check(&secret.code_at(now), now, None) else {
            panic!("the code is valid");
        };
        assert_eq!(secret.check(&secret.code_at(now), now, Some(step)), CodeCheck::Used);
        assert_eq!(secret.check(&secret.code_at(now - 30), now, Some(step)), CodeCheck::Used);
        let next = secret.check(&secret.code_at(now + 30), now, Some(step));
        assert_eq!(next, CodeCheck::Valid(step + 1));
    }

    #[test]
    fn anything_but_six_digits_is_wrong() {
        let (secret, now) = (secret(), 1_234_567_890);
        assert_eq!(secret.check("005924", now, None), CodeCheck::Valid(now / 30));
        for code in ["", "5924", "05924", "0005924", "00592a", "+05924", " 05924", "００5924", "-1"]
        {
            assert_eq!(secret.check(code, now, None), CodeCheck::Wrong, "{code:?}");
        }
        assert_eq!(secret.check(&"0".repeat(1 << 20), now, None), CodeCheck::Wrong);
    }

    #[test]
    fn times_at_the_ends_of_the_clock_are_handled() {
        for now in [0, 29, u64::MAX] {
            let code = secret().code_at(now);
            assert!(matches!(secret().check(&code, now, None), CodeCheck::Valid(_)), "{now}");
        }
    }

    #[test]
    fn a_uri_has_the_secret_and_nothing_that_ends_a_field() {
        let uri = secret().uri("vpn.example.net", "alice@example.net");
        assert_eq!(
            uri.as_str(),
            "otpauth://totp/vpn.example.net:alice%40example.net?secret=\
             GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=vpn.example.net"
        );
        let uri = secret().uri("2001:db8::1", "a");
        assert!(uri.contains("/2001%3Adb8%3A%3A1:a?"), "{}", uri.as_str());
        assert!(secret().uri(&"h".repeat(65), "a").contains("issuer=adit"));
    }

    #[test]
    fn a_secret_survives_its_text_form_and_a_damaged_one_does_not() {
        let secret = TotpSecret::generate().unwrap();
        let text = String::from(secret.clone());
        assert_eq!(TotpSecret::try_from(text.clone()).unwrap(), secret);
        assert!(!format!("{secret:?}").contains(&text));
        for bad in ["", "AAAA", &text[1..], &format!("{text}AAAAAAAA"), "1".repeat(32).as_str()] {
            assert!(TotpSecret::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
