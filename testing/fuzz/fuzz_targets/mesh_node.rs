//! Fuzzes the records about relays and endpoints that members of a mesh exchange.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_mesh::node::fuzz(bytes);
}
