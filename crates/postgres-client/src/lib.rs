//! Connections to PostgreSQL: the address of the database, our role, and the protection of the connection.

#![forbid(unsafe_code)]

mod backoff;
mod connect;
mod connect_fault;
mod dial;
mod mask_secrets;
mod message_limit;
pub mod operator;
mod params;
pub mod pooler;
mod service;
mod target;
mod tls;

pub use backoff::{Backoff, Jitter};
pub use connect::{Connection, NewConnection, connect, open};
pub use connect_fault::ConnectFault;
pub use mask_secrets::mask_secrets;
pub use params::Environment;
pub use target::Target;
