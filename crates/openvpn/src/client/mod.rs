//! The client engine.

mod config;
mod engine;
mod event;
mod remotes;

pub use config::{ClientConfig, Credentials, Remote};
pub use engine::ClientEngine;
pub use event::{ClientEvent, Route, TunnelConfig};
pub(crate) use remotes::{Next, Remotes};
