//! The server engine.

mod client;
mod config;
mod cookie;
mod engine;
mod event;
mod half_open;
mod handshakes;
mod limiter;
mod naming;
mod pool;
mod push;

pub use config::{Network4, Network6, Offer, ServerConfig, Topology};
pub(crate) use cookie::Cookies;
pub use engine::{Farewell, ServerCounters, ServerEngine};
pub use event::{Addresses, ClientInfo, ServerEvent};
pub(crate) use half_open::HalfOpen;
pub(crate) use limiter::Limiter;
