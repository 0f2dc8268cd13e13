//! Tunnels between two points: no server and no client, nothing pushed, both ends with addresses of
//! their own.
//!
//! [`StaticEngine`] is for a shared key without TLS (`secret`), [`PeerEngine`] for TLS between two
//! (`tls-server`, `tls-client` without `pull`). Both speak the client's events
//! ([`crate::client::ClientEvent`]): to the rest of the program each end is a client of the other.

mod agree;
mod config;
mod lobby;
mod occ;
mod peer;
mod secret;

pub use config::{Ends, Inside4, PeerConfig, PeerTls, Reach, StaticConfig};
pub use peer::PeerEngine;
pub use secret::StaticEngine;
