//! Makes an engine a running program: sockets, timers, names, the TUN device and the routes,
//! privileges, logs and the control socket.
//!
//! From the outside inward: [`openvpn::main`] (the drop-in command line), [`connect::run`] (a friendly
//! client), [`server::Service`] (what `adit server` runs), [`control`] (how other processes look
//! at and steer a running one). Beneath them [`driver`] joins a sans-IO engine to the data plane,
//! and [`host`] changes the machine's addresses and routes and undoes what it changed.

#![forbid(unsafe_code)]

pub mod authorize;
pub mod bridge;
pub mod client;
mod clock;
pub mod connect;
pub mod control;
pub mod driver;
mod expiry;
pub mod fault;
pub mod filter;
pub mod helper;
pub mod host;
pub mod log;
pub mod managed_server;
pub mod openvpn;
mod plane_backend;
pub mod port_share;
pub mod postgres;
mod privileges;
pub mod proxy;
mod random;
pub mod server;
mod signals;
mod worker_count;

pub use adit_linux::terminal;
pub use adit_linux::zeroizing_alloc::ZeroizingAllocator;
