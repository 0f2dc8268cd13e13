//! Connections to the database: where it is, who we are there, how the line is protected.

mod connect;
mod fault;
mod target;
mod tls;

pub use connect::{Connection, Opened, connect, open};
pub use fault::ConnectFault;
pub use target::Target;
