//! The parameters on which the two ends agree: ciphers, peer info, options strings, pushed options,
//! and the messages on the TLS channel that carry them.

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
mod dns;
mod fuzz;
mod message;
mod occ;
mod option;
mod peer_info;
mod pull_filter;
mod push;
mod pushed;
mod route;
mod update;

pub use cipher::{CipherRefused, DataCipher, choose_cipher};
pub use dns::{
    DhcpDns, DnsError, DnsOptions, DnsServer, DnsSettings, DnsTransport, MAX_DNS_ADDRESSES,
    MAX_DNS_DOMAINS, MAX_DNS_SERVERS, MAX_FOREIGN_OPTIONS,
};
#[doc(hidden)]
pub use fuzz::{fuzz, fuzz_filters};
pub use message::{AdvanceTo, AuthFailed, BadMessage, ControlMessage, MAX_MESSAGE, Restart};
pub(crate) use occ::{ETHERNET_EXTRA, STREAM_LENGTH, device_type, link_overhead};
pub use occ::{OptionsString, RemoteOptions};
pub use option::{Change, NotAnOption, PushItem, PushedOption, ReplyItem};
pub(crate) use peer_info::is_peer_info;
pub use peer_info::{BadPeerInfo, IvProto, LocalInfo, MAX_PEER_INFO, PeerInfo};
pub use pull_filter::{FilterAction, PullFilter, PullFilters};
pub use push::{
    PushAssembler, PushError, PushPart, PushTooLong, build_push_reply, build_push_update,
};
pub(crate) use pushed::compression;
pub use pushed::{PushRefused, PushedOptions};
pub(crate) use route::REDIRECT_FLAGS;
pub use route::{Destination, RouteContext, RouteSpec, Via};
pub(crate) use route::{is_host_name, parse_route4, parse_route6};
pub use update::{apply_update, updates};
