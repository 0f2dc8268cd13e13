//! The test world of the engines: links that delay, lose, reorder and duplicate, on virtual time.
//!
//! Even the network is sans-IO and seeded: the same seed loses the same packets, so a failure found
//! in one of a thousand runs is a failure that repeats.

#![forbid(unsafe_code)]

mod impairment;
mod pipe;

pub use impairment::{Impairment, Loss};
pub use pipe::{Pipe, PipeCounters};
