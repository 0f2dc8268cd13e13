//! Packets on the wire: opcodes, session ids, control packets.
//!
//! Every packet starts with `opcode << 3 | key_id`. In a control packet the sender's session id
//! follows and then, within the wrapping if there is one:
//!
//! ```text
//! n 1 | acknowledged id 4 * n | receiver's session id 8 (only if n > 0) | id 4 (not in ACK_V1) | TLS bytes
//! ```

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

mod control;
mod header;

pub(crate) use control::split_front;
pub use control::{Acks, Control};
pub use header::{Header, KEY_ID_MASK, Opcode, SessionId};

/// The reason why bytes are not a packet. The fault is the peer's or an unauthenticated sender's.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PacketError {
    /// The packet ends too early.
    #[error("the packet is too short")]
    TooShort,
    /// The opcode does not exist, is obsolete (1 and 2), or is not allowed in this place.
    #[error("opcode {0} is unknown or out of place")]
    BadOpcode(u8),
    /// The packet is a hard reset with a key id other than 0.
    #[error("a reset with key id {0} instead of 0")]
    BadKeyId(u8),
    /// The session id is all zeros.
    #[error("the session id is zero")]
    ZeroSession,
    /// The packet has more than [`Acks::MAX`] acknowledgements.
    #[error("{0} acknowledgements in one packet")]
    TooManyAcks(u8),
}

/// Parses the bytes, for the fuzzer, and checks that encoding the result gives the same bytes.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(control) = Control::parse(bytes) {
        let mut again = Vec::new();
        control.encode(&mut again);
        // Trailing bytes of an ACK_V1 are ignored, as in OpenVPN.
        let kept = bytes.get(..again.len());
        assert_eq!(kept, Some(again.as_slice()), "a parsed packet is written back as it was");
        assert!(again.len() == bytes.len() || control.opcode == Opcode::AckV1);
    }
}

#[cfg(test)]
mod tests;
