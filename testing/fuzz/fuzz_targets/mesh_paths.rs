//! Fuzzes path messages of the mesh: input that can be decoded is encoded to the same bytes again.
#![cfg_attr(fuzzing, no_main)]

use adit_mesh::path::{Probe, Record};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    if let Ok(record) = Record::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
    if let Ok(probe) = Probe::decode(bytes) {
        assert_eq!(probe.encode(), bytes);
        assert_eq!(Probe::tag_of(bytes), Some(probe.tag));
    }
}
