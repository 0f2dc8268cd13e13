//! Derives rule sets and packets from the input. The compiled rules, with and without their cached verdicts of flows,
//! must decide, count and log like the rules in the source.
#![cfg_attr(fuzzing, no_main)]

use adit_filter::oracle::{Coverage, compare};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    compare(bytes, &mut Coverage::default());
}
