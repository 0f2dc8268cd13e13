//! What the two ends agree on: ciphers, peer info, options strings, pushed options, and the
//! messages on the TLS channel that carry them.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

mod cipher;
mod message;
mod occ;
mod peer_info;
mod pull;
mod push;
mod pushed;
mod route;

pub use cipher::{CipherRefused, choose_cipher};
pub use message::{AdvanceTo, AuthFailed, BadMessage, ControlMessage, MAX_MESSAGE, Restart};
pub use occ::{OptionsString, RemoteOptions};
pub use peer_info::{BadPeerInfo, IvProto, LocalInfo, MAX_PEER_INFO, PeerInfo};
pub use pull::{FilterAction, PullFilter, PullFilters};
pub use push::{PushAssembler, PushError, PushTooLong, build_push_reply};
pub use pushed::{PushRefused, PushedOptions};
pub use route::{Destination, RouteContext, RouteSpec, Via};
pub(crate) use route::{parse_route4, parse_route6};
