//! Plays a script of events against two ends without a server.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../../crates/openvpn/tests/support/script/mod.rs"]
mod script;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    script::pair(bytes);
}
