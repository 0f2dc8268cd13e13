//! The OpenVPN protocol as sans-IO engines: a client and a server.
//!
//! From the wire inward: [`packet`] (headers and control packets), [`wrap`] (tls-auth, tls-crypt, tls-crypt-v2),
//! `reliable` (ordered, acknowledged control messages), [`tls`], [`keys`] (key method 2 and the data keys),
//! [`data_format`] (types shared with the data plane), [`negotiate`] (ciphers, peer info, options strings, push),
//! `session`, and the engines [`client`], [`server`] and, for point-to-point tunnels, [`p2p`]; [`records`] implements
//! sessions for other protocols, without key method 2 and options. [`config`] reads OpenVPN's command line and config
//! files.

#![forbid(unsafe_code)]

pub mod client;
pub mod config;
#[cfg(test)]
mod constant_time;
pub mod data_format;
pub mod keys;
pub mod negotiate;
pub mod p2p;
pub mod packet;
mod reason;
pub mod records;
mod reliable;
pub mod server;
pub mod session;
pub mod tls;
pub mod wrap;

pub use reason::{Blame, Reason};
