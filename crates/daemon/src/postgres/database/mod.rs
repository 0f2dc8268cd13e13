//! Connections to the database: where it is, who we are there, how the line is protected.

mod bounded;
mod connect;
mod dial;
mod fault;
mod params;
pub(super) mod pooler;
mod service;
mod target;
mod tls;

pub use connect::{Connection, Opened, connect, open};
pub use fault::ConnectFault;
pub use params::Environment;
pub use target::Target;
