/// Bytes of the stack that are overwritten: more than what derives and installs keys uses, which is more where nothing is
/// inlined.
const DEPTH: usize = if cfg!(debug_assertions) { 256 << 10 } else { 128 << 10 };

/// The same where packets alone are sealed and opened.
const PACKET_DEPTH: usize = if cfg!(debug_assertions) { 256 << 10 } else { 32 << 10 };

/// Overwrites the part of the stack below the caller, where functions that have returned left copies of secrets: a value
/// that is moved stays where it was. Call it after work with keys, from not deeper than that work was called from.
#[inline(never)]
pub fn scrub_stack() {
    let mut stack = [0_u8; DEPTH];
    // What is looked at is really written.
    std::hint::black_box(&mut stack);
}

/// As [`scrub_stack`], after packets were sealed or opened, which takes less of the stack.
#[inline(never)]
pub fn scrub_packet_stack() {
    let mut stack = [0_u8; PACKET_DEPTH];
    std::hint::black_box(&mut stack);
}
