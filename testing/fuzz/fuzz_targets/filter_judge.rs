//! Rule sets and packets out of the bytes: the compiled rules, with and without what they remember of
//! flows, must decide, count and log as the rules as they are written.
#![cfg_attr(fuzzing, no_main)]

use adit_filter::oracle::{Seen, compare};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    compare(bytes, &mut Seen::default());
}
