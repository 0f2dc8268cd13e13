//! Nothing here: `tests/replay.rs` runs the inputs in `fuzz/corpus/` through the targets in
//! `fuzz/fuzz_targets/`, so that what a fuzzer once found stays found on a stable compiler.

#![forbid(unsafe_code)]
