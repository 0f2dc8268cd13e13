//! Fuzzes the answer of a name server, which any host on the path may forge: it is bounded, and valid only for the
//! question asked.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_dns::fuzz(bytes);
}
