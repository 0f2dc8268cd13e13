//! A mesh of nodes that need no server: signed membership, sessions between members, the choice of paths.
//!
//! Everything here is sans-IO: time, randomness and packets come in, decisions and packets go out.

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
