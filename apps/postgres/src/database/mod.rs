//! Connections to the database, with its address, our role, and the protection of the connection.

mod connect;
mod connect_fault;
mod dial;
mod message_limit;
mod params;
pub(super) mod pooler;
mod service;
mod target;
mod tls;

pub use connect::{Connection, NewConnection, connect, open};
pub use connect_fault::ConnectFault;
pub use params::Environment;
pub use target::Target;
