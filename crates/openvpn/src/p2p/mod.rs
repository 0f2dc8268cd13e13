//! Point-to-point tunnels: there is no server and no client, no options are pushed, and both ends
//! have addresses of their own.
//!
//! [`StaticEngine`] is for a shared key without TLS (`secret`), [`PeerEngine`] for TLS
//! (`tls-server`, `tls-client` without `pull`). Both report the client's events
//! ([`crate::client::ClientEvent`]): to the rest of the program each end is a client of the other.

mod config;
mod negotiate;
mod occ;
mod peer;
mod pending_streams;
mod static_key;

pub use config::{Ifconfig4, PeerConfig, PeerTls, RemotePolicy, StaticConfig, TunnelAddrs};
pub use peer::PeerEngine;
pub use static_key::StaticEngine;
