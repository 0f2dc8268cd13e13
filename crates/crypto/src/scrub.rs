/// The number of bytes of the stack to overwrite: more than key derivation and installation use. Without inlining, they
/// use more.
const DEPTH: usize = if cfg!(debug_assertions) { 256 << 10 } else { 128 << 10 };

/// The same for work that only seals and opens packets.
const PACKET_DEPTH: usize = if cfg!(debug_assertions) { 256 << 10 } else { 32 << 10 };

/// Overwrites the part of the stack below the caller, where functions that have returned left copies of secrets: moving
/// a value does not erase its previous location. Call it after work with keys, from the same stack depth as that work
/// or above.
#[inline(never)]
pub fn scrub_stack() {
    let mut stack = [0_u8; DEPTH];
    // Prevents the compiler from removing the writes.
    std::hint::black_box(&mut stack);
}

/// Overwrites the stack like [`scrub_stack`], but only as far as sealing and opening packets uses it.
#[inline(never)]
pub fn scrub_packet_stack() {
    let mut stack = [0_u8; PACKET_DEPTH];
    std::hint::black_box(&mut stack);
}
