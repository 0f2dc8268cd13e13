//! Nothing here: `tests/replay.rs` runs the inputs in `testing/fuzz/corpus/` through the targets in
//! `testing/fuzz/fuzz_targets/`, so that what a fuzzer once found stays found on a stable compiler.

#![forbid(unsafe_code)]
