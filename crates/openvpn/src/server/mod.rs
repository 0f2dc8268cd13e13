//! The server engine.

mod client;
mod config;
pub(crate) mod cookie;
mod engine;
mod event;
mod half_open;
mod limiter;
mod naming;
mod pool;
mod push;
mod responder;
mod starts;

pub use config::{Network4, Network6, Offer, ServerConfig, Topology};
pub use engine::{Farewell, ServerCounters, ServerEngine};
pub use event::{Addresses, ClientInfo, ServerEvent, UsedElsewhere};
pub(crate) use responder::{Refused, Responder};
