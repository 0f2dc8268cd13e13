//! Fuzzes the conversation with a management client. The first byte selects the kind of program, whether there is a
//! password, and the length of the pieces in which the rest arrives.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_app_openvpn::openvpn::fuzz_management(bytes);
}
