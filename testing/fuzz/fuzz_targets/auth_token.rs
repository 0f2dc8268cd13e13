//! Fuzzes tokens that a client sends instead of its password, and challenges that a server sends.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_openvpn::server::auth_token::fuzz(bytes);
    adit_openvpn::client::challenge::fuzz(bytes);
}
