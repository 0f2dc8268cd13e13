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
mod update;

pub use cipher::{CipherRefused, DataCipher, choose_cipher};
pub use message::{AdvanceTo, AuthFailed, BadMessage, ControlMessage, MAX_MESSAGE, Restart};
pub(crate) use occ::{ETHERNET_EXTRA, STREAM_LENGTH, device_type};
pub use occ::{OptionsString, RemoteOptions};
pub use peer_info::{BadPeerInfo, IvProto, LocalInfo, MAX_PEER_INFO, PeerInfo};
pub use pull::{FilterAction, PullFilter, PullFilters};
pub use push::{PushAssembler, PushError, PushTooLong, build_push_reply, build_push_update};
pub(crate) use pushed::{NOT_COMPRESSED, compression, without_secrets};
pub use pushed::{PushRefused, PushedOptions};
pub(crate) use route::REDIRECT_FLAGS;
pub use route::{Destination, RouteContext, RouteSpec, Via};
pub(crate) use route::{parse_route4, parse_route6};
pub use update::{apply_update, updates};

/// For the fuzzer: everything here that reads what a peer wrote.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    for message in ControlMessage::parse_record(bytes).flatten() {
        let again = message.encode();
        if again.len() <= MAX_MESSAGE {
            assert_eq!(ControlMessage::parse(&again).as_ref(), Ok(&message));
        }
        let (ControlMessage::PushReply(part) | ControlMessage::PushUpdate(part)) = message else {
            continue;
        };
        let Ok(Some(options)) = PushAssembler::default().add(&part) else { continue };
        if let Ok(pushed) = PushedOptions::parse(&options, &PullFilters::default()) {
            let context = pushed.route_context(None);
            let _ = pushed.routes4.iter().filter_map(|route| route.resolve(&context)).count();
            let _ = pushed.routes6.iter().filter_map(|route| route.resolve(&context)).count();
        }
        if let Ok((after, _)) = apply_update(&options, &options, &PullFilters::default()) {
            let _ = updates(&options, &after);
        }
        if let Ok(messages) = build_push_reply(&options) {
            let mut assembler = PushAssembler::default();
            let parts = messages.iter().filter_map(|message| message.strip_prefix("PUSH_REPLY,"));
            let whole = parts.filter_map(|part| assembler.add(part).ok().flatten()).last();
            assert_eq!(whole.unwrap_or_default(), options);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let occ = RemoteOptions::parse(text);
        if let Ok(info) = PeerInfo::parse(text) {
            let _ = (info.proto(), info.max_mtu());
            let all = adit_crypto::Cipher::ALL.map(DataCipher::Aead);
            let _ = choose_cipher(&all, &info, occ.cipher(), None);
        }
    }
}
