//! Joins a sans-IO engine to sockets, timers, names and the data plane.

mod dial;
mod timer;

pub use dial::{AddressBook, ResolveRetry, resolve};
