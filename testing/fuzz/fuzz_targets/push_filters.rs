//! Fuzzes pushed options with `pull-filter` lines and `route-nopull`: the result equals that without filters, masked.
//! The first byte chooses the kinds to leave out.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_openvpn::negotiate::fuzz_filters(bytes);
}
