//! Runs the trials of each kind.
//!
//! [`Runner::run`] is the only entry point. Each trial makes new tunnels, so that none inherits another's state; the
//! many hosts of a star are kept for the whole run.

pub mod connections;
pub mod control;
mod growth;
mod handshake_load;
mod hostile;
mod latency;
mod loss;
mod management;
mod memory;
pub mod overload;
mod polled;
mod postgres;
pub mod processes;
mod relay;
mod runner;
mod scrape;
mod soak;
mod throughput;
mod tinc_control;
mod trains;
mod trial_run;
mod udp;
mod volume;

pub use runner::Runner;
