//! Fuzzes the file of users, and the password field of a client with its codes.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_pki::fuzz(bytes);
}
