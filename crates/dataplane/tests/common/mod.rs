//! The trivial format's part of the data plane's tests.

mod world;

use crate::trivial::{PlainKey, Trivial};
pub(crate) use world::*;

/// The plain types of the format under test.
pub(crate) type Types = Trivial;

/// Returns the layout of packets that name the peer.
pub(crate) fn layout(peer: u32) -> u16 {
    peer as u16
}

/// Returns the key of a client and a generation.
pub(crate) fn key(client: u8, key_id: u8, at_server: bool) -> Box<PlainKey> {
    let half = |up: bool| client * 16 + key_id * 2 + u8::from(up);
    Box::new(PlainKey { id: key_id, seal: half(!at_server), open: half(at_server), limit: 0 })
}
