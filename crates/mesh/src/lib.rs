//! A mesh of nodes without a central server: signed membership, sessions between members, and path selection.
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
