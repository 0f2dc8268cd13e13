//! Fuzzes text that is pasted as a token, a fingerprint or an auditor's key file: input that parses is encoded the same
//! way again.
#![cfg_attr(fuzzing, no_main)]

use adit_postgres::key::{AuditorKey, Fingerprint};
use adit_postgres::token::Token;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.to_string(), text.trim());
    }
    if let Ok(print) = text.parse::<Fingerprint>() {
        assert_eq!(print.to_string(), text.to_ascii_lowercase());
    }
    if let Ok(key) = AuditorKey::from_text(&text) {
        let again = AuditorKey::from_text(&key.to_text());
        assert_eq!(again, Ok(key));
    }
}
