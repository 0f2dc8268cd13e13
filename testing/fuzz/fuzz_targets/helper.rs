//! Fuzzes requests to the helper process from a network process that an attacker controls.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_runtime::helper::fuzz(bytes);
}
