//! Fuzzes the framing of records inside TLS, in portions of any size.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_openvpn::records::fuzz(bytes);
}
