//! The data path without I/O, for measurements: packets, a tunnel in memory, and benchmarks with fixed work whose instructions are counted.
#![forbid(unsafe_code)]

pub mod count;
pub mod gate;
pub mod packets;
pub mod piece;
mod rules;
pub mod tunnel;
