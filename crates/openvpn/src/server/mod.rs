//! The server engine.

mod address_limiter;
pub mod auth_token;
mod client;
mod config;
pub(crate) mod cookie;
mod engine;
mod event;
mod half_open;
mod log_limiter;
mod pool;
mod push;
mod responder;
mod start_budget;

pub use config::{
    ClientChecks, ClientUpdate, ExportedKey, Network4, Network6, ReloadableConfig, ServerConfig,
    Topology,
};
pub use engine::{Disconnect, MAX_HANDSHAKES, SavedServer, ServerCounters, ServerEngine};
pub use event::{ClientInfo, ServerEvent, UsedElsewhere};
pub(crate) use responder::{Refused, Responder};
