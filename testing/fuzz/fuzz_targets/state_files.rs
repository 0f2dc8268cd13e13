//! Fuzzes undo logs of changes to the machine, a resolv.conf, leases, the files in which programs
//! answer, and keys and connections that pass from one process to the next. The first byte selects one of them.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    match bytes.split_first() {
        Some((2, rest)) => adit_app_openvpn::openvpn::fuzz_leases(rest),
        Some((3, rest)) => adit_app_openvpn::openvpn::fuzz_answers(rest),
        Some((4, rest)) => adit_openvpn_data::fuzz_saved_key(rest),
        Some((5, rest)) => adit_runtime::filter::fuzz_saved(rest),
        _ => adit_runtime::host::fuzz(bytes),
    }
}
