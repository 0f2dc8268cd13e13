//! Fuzzes control packets under each wrapping, from unauthenticated senders and within a session;
//! the first byte chooses the wrapping.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let _ = adit_openvpn::wrap::fuzz(bytes);
}
