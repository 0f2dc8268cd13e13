//! A pool of clients in one process that performs handshakes with a real server at a rate independent of the server.
//!
//! ```text
//!  schedule (intended times) -> ClientPool (client engines, a socket each, one thread) -> Arrivals -> steps, recovery
//!                                        |
//!                                        +-> Applied (what each client received) -> pushed::check
//! ```
//!
//! The clients are adit's engines for every server, so the cost of a client is the same for each subject and is not
//! mistaken for the server's limit. It is measured separately (`getrusage` of the thread).

pub mod arrivals;
mod client_loop;
pub mod client_pool;
pub mod config;
pub mod hosts;
pub mod load_generator;
pub mod profile;
pub mod pushed;
pub mod schedule;
pub mod server;
pub mod steps;

pub use arrivals::{Arrival, LoadOutcome};
pub use client_pool::{ClientPool, Hosts};
pub use load_generator::LoadGenerator;
pub use server::Server;
