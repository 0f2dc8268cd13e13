//! Fuzzes messages on the TLS channel: pushed options, peer info, options strings.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_openvpn::negotiate::fuzz(bytes);
}
