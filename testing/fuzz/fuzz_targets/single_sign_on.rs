//! Fuzzes the answers of an OpenID Connect provider, its keys, and ID tokens with their claims.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_app_server::fuzz_single_sign_on(bytes);
}
