//! The server engine.

mod config;
mod event;

pub use config::{Network4, Network6, ServerConfig};
pub use event::{ClientInfo, ServerEvent};
