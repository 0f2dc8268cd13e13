//! Forged control packets.

use adit_engine::UnixTime;
use adit_openvpn::keys::StaticKey;
use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::wrap::{WrapConfig, Wrapper};

use super::bytes::Bytes;

/// Creates a well-formed packet with the ids of a session's sender and receiver, or with an
/// invented one, and with the client's wrapping. In a steadfast script, the attacker does not have
/// the key.
pub(super) fn forged(
    script: &mut Bytes<'_>,
    flags: u8,
    (author, receiver): ([u8; 8], [u8; 8]),
    (client_wrap, steadfast): (&WrapConfig, bool),
) -> Option<Vec<u8>> {
    let made_up = flags & 2 != 0;
    let opcode = script.choose(Opcode::ALL);
    let (key_id, message) = (script.u8() & 7, script.u8());
    let control = Control {
        opcode,
        key_id,
        session: SessionId(if made_up { [script.u8(); 8] } else { author }),
        acks: (flags & 4 != 0)
            .then(|| Acks::from_slice(&[script.u8().into(), script.u8().into()]))
            .flatten()
            .unwrap_or_default(),
        remote: (flags & 8 == 0).then_some(SessionId(receiver)),
        message: (opcode != Opcode::AckV1).then_some(message.into()),
        payload: script.bytes(),
    };
    let wrap = match (client_wrap, steadfast) {
        (WrapConfig::None, _) => WrapConfig::None,
        (_, true) => WrapConfig::TlsCrypt { key: StaticKey::new([0x55; StaticKey::LEN]) },
        (wrap, false) => wrap.clone(),
    };
    let mut wrapper = Wrapper::client(&wrap).ok()?;
    wrapper.set_next_id(1000 + u32::from(script.u8()));
    let mut packet = Vec::new();
    wrapper.seal(&control, UnixTime(1_800_000_000), &mut packet).ok()?;
    Some(packet)
}
