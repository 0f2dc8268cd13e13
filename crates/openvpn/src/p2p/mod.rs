//! Point-to-point tunnels between two equal ends. No options are pushed, and both ends have
//! configured addresses.
//!
//! [`StaticEngine`] is for a shared key without TLS (`secret`), [`PeerEngine`] for TLS
//! (`tls-server`, `tls-client` without `pull`). Both report a client's events
//! ([`crate::client::ClientEvent`]), so the rest of the program treats each end as a client.

mod config;
mod negotiate;
mod occ;
mod peer;
mod pending_streams;
mod static_key;

pub use config::{Ifconfig4, PeerConfig, PeerTls, RemotePolicy, StaticConfig, TunnelAddrs};
pub use peer::PeerEngine;
pub use static_key::StaticEngine;
