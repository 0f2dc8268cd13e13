//! An empty library: `tests/replay.rs` runs the inputs in `testing/fuzz/corpus/` through the
//! targets in `testing/fuzz/fuzz_targets/`, so that a stable compiler checks every former
//! finding of a fuzzer.

#![forbid(unsafe_code)]
