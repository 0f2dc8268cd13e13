//! The protocol of tinc 1.1, version 17.7: keys, SPTPS sessions, configuration files, invitations, messages between neighbours, and
//! the topology that these describe.
//!
//! Everything here is sans-IO. Time, randomness and packets are inputs; decisions and packets are outputs.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used)
)]

pub mod aead;
pub mod autoconnect;
pub mod base64;
pub mod config;
pub mod graph;
pub mod invitation;
pub mod join;
pub mod keys;
pub mod legacy;
pub mod meta;
pub mod name;
pub mod node;
pub mod route;
pub mod socks4;
pub mod sptps;
pub mod subnet;
#[cfg(test)]
mod testing;
