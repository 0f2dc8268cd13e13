//! Fuzzes the payload of a notification, which any role in the database may send: input that parses is encoded the same
//! way again.
#![cfg_attr(fuzzing, no_main)]

use adit_postgres::receiver::Hint;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(hint) = Hint::parse(&text) {
        assert_eq!(hint.to_string(), text);
        assert!(hint.stream.0 > 0 && hint.leaf.0 > 0);
    }
}
