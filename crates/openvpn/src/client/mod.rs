//! The client engine.

pub mod challenge;
mod config;
mod engine;
mod event;
mod remotes;

pub use config::{ClientAuth, ClientConfig, Credentials, Remote};
pub use engine::ClientEngine;
pub use event::{ClientEvent, Route, TunnelConfig};
pub(crate) use remotes::{Next, Remotes};
