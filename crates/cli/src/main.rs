//! The `adit` command: argument parsing and printing, nothing else.

#![forbid(unsafe_code)]

mod args;

fn main() {}
