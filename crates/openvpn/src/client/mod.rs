//! The client engine.

mod config;
mod engine;
mod event;
mod remotes;

pub use config::{ClientConfig, Credentials, Remote};
pub use engine::ClientEngine;
pub use event::{ClientEvent, Route, Stop, TunnelConfig};
pub(crate) use remotes::{Next, Remotes};

/// Why a client or a point begins again when the machine reaches the other end another way.
pub(crate) const PATH_CHANGED: &str = "the network changed";
