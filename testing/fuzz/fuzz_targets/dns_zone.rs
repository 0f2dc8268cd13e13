//! Fuzzes queries to the DNS server of a mesh node. Every answer is a message, fits into a
//! datagram, and has the query's id.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_dns::zone::fuzz(bytes);
}
