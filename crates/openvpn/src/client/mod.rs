//! The client engine.

mod config;
mod engine;
mod event;
mod remotes;

pub use config::{ClientConfig, Credentials, Remote};
pub use engine::ClientEngine;
pub use event::{ClientEvent, Route, Stop, TunnelConfig};
pub(crate) use remotes::{Next, Remotes};

/// The reason why a client or a point-to-point end restarts when the path to the other end changes.
pub(crate) const PATH_CHANGED: &str = "the network changed";
