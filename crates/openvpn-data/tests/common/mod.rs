//! OpenVPN's part of the data plane's tests.
#![allow(dead_code, unused_imports, reason = "each test file uses a part")]

#[path = "../../../dataplane/tests/common/world.rs"]
mod world;

use adit_crypto::{Cipher, DirectionKey};
use adit_openvpn::data_format::{DataKey, KeyLimits, OpenVpn, PacketLayout, Protection};
pub(crate) use world::*;

/// The plain types of the format under test.
pub(crate) type Types = OpenVpn;

/// Returns the layout of packets that name the peer, if any.
pub(crate) fn layout(wire_id: impl Into<Option<u32>>) -> PacketLayout {
    PacketLayout { wire_id: wire_id.into(), ..PacketLayout::default() }
}

/// Returns the key material of a client and a generation; `up` is the key that the client seals
/// with.
fn half(client: u8, key_id: u8, up: bool) -> DirectionKey {
    let byte = client * 16 + key_id * 2 + u8::from(up);
    DirectionKey { cipher: [byte; 64], hmac: [!byte; 64] }
}

pub(crate) fn key(client: u8, key_id: u8, at_server: bool) -> Box<DataKey> {
    Box::new(DataKey {
        key_id,
        protection: Protection::Aead(Cipher::Aes256Gcm),
        seal: half(client, key_id, !at_server),
        open: half(client, key_id, at_server),
        limits: KeyLimits::default(),
    })
}
