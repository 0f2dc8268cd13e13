//! The client engine.

mod config;
mod event;

pub use config::{ClientConfig, Credentials, Remote};
pub use event::{ClientEvent, Route, Stop, TunnelConfig};
