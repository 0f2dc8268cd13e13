//! Fuzzes messages of the process that loads PKCS#11 modules, ids of certificates on tokens, and tokens' signatures.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_app_openvpn::token_host::fuzz(bytes);
}
