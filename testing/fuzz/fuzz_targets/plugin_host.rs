//! Fuzzes messages of the process in which plugins run, and the files that plugins write.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    adit_app_openvpn::plugin_host::fuzz(bytes);
}
