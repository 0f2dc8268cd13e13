//! Plays a script of events against a server engine and its clients' engines.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../../crates/openvpn/tests/support/script/mod.rs"]
mod script;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    script::sessions(bytes);
}
