//! Fuzzes the record of an epoch from any sender: input that parses is encoded to the same bytes again.
#![cfg_attr(fuzzing, no_main)]

use adit_postgres::key::epoch::EpochRecord;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    if let Ok(record) = EpochRecord::parse(bytes) {
        assert_eq!(record.encode().as_deref(), Ok(bytes));
    }
}
