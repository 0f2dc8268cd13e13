//! Fuzzes messages of key method 2, and key files.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_openvpn::keys::fuzz(bytes);
}
