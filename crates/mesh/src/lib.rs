//! A mesh of nodes that need no server: signed membership, sessions between members, the choice of paths.
//!
//! Everything here is sans-IO. Time, randomness and packets are inputs; decisions and packets are outputs.

#![forbid(unsafe_code)]

pub mod directory;
pub mod join;
pub mod node;
pub mod path;
pub mod roster;
pub mod session;
pub mod sync;
pub mod token;
mod wire;
