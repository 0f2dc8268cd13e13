//! The command lines of `adit openvpn`, the drop-in replacement for openvpn, and `adit connect`, and the client's run loop.

#![forbid(unsafe_code)]

mod client;
mod config_files;
pub mod connect;
mod helper_duty;
mod host_process;
pub mod openvpn;
pub mod plugin_host;
pub mod token_host;

pub use helper_duty::{CONNECT, OPENVPN};
