//! The answer of a name server, which anybody on the way may forge: bounded, and only to the question asked.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_dns::fuzz(bytes);
}
