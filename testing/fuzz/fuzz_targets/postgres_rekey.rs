//! Fuzzes the record of a rekey from any sender, and a node's key file: input that parses is encoded the same way
//! again.
#![cfg_attr(fuzzing, no_main)]

use adit_postgres::Generation;
use adit_postgres::key::rekey::RekeyRecord;
use adit_postgres::key::{KeyRing, NetworkKey};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    if let Ok(record) = RekeyRecord::parse(bytes) {
        assert_eq!(record.encode().as_deref(), Ok(bytes));
    }
    let first = NetworkKey::new(Generation::FIRST, &[7; NetworkKey::LEN]);
    if let Ok(ring) = KeyRing::from_text(first.clone(), &String::from_utf8_lossy(bytes)) {
        assert_eq!(KeyRing::from_text(first, &ring.to_text()), Ok(ring));
    }
}
