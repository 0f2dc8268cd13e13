//! SPTPS, the encrypted sessions of tinc 1.1.
//!
//! A session has two forms with the same handshake. A [`Stream`] runs over a TCP connection: between neighbours, and to accept
//! an invitation. A [`Datagram`] session carries packets between any two nodes. Its handshake travels in messages between
//! neighbours, because its packets may be lost and reordered.
//!
//! ```text
//!     initiator                        responder
//!        KEX  ───────────╲ ╱───────────  KEX       nonce, ephemeral public key; neither side waits
//!                         ╳
//!        SIG  ◄──────────╱ ╲──────────►
//!             ────────────────────────►  verifies, derives the keys, is established
//!             ◄────────────────────────  SIG
//!   verifies, is established
//! ```
//!
//! In a rekey the same messages are sealed under the old keys. Each side then sends an ACK, the last record under its old key: the initiator after it
//! has verified the responder, and the responder with its SIG, or to another node of adit only when it has the initiator's ACK, so that neither side
//! ever seals under a key that the other does not know yet.
//!
//! # The cipher
//!
//! tinc has one cipher. Nodes may be configured for another one, and two nodes of adit agree on AES-256-GCM for their [`Datagram`] sessions: see
//! [`CipherChoice`]. Both sides sign and derive keys with a label that names the cipher, so sides that disagree get no session. An offer is also
//! marked in the nonce of the KEX, which both sides sign. A node between them can remove the words that offer AES from the messages that carry
//! the handshake, but not the mark, so it cannot make two sides that offer AES use ChaCha20.

use std::sync::Arc;

use crate::aead::Cipher;
use crate::keys::{PrivateKey, PublicKey};

mod datagram;
mod handshake;
mod numbers;
mod stream;
#[cfg(test)]
mod tests;
mod window;

pub use datagram::{DATAGRAM_OVERHEAD, Datagram, ReceiveKeys, SharedSession};
pub use numbers::Numbers;
pub use stream::{Received, STREAM_OVERHEAD, Stream};
pub use window::{ReplayWindow, WindowSize};

/// The label of the sessions in which invitations are accepted.
pub const INVITATION_LABEL: &[u8] = b"tinc invitation";

/// The type of handshake records. Lower types are the application's, higher ones are invalid.
const HANDSHAKE: u8 = 128;

/// The number of records after which a session seals nothing more. Sequence numbers have 32 bits and never restart, so a rekey does
/// not help: both sides need a new session.
const HARD_LIMIT: u32 = u32::MAX - 0xffff;

/// Which side of a session a node is. A rekey does not change it, whichever side starts it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that opened the TCP connection, or asked for the session.
    Initiator,
    /// The other side.
    Responder,
}

impl Role {
    const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// How a session gets its cipher.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CipherChoice {
    /// Both sides are configured for it.
    Fixed(Cipher),
    /// AES-256-GCM if the peer offers it as well, otherwise ChaCha20-Poly1305. Only for [`Datagram`] sessions.
    Agree,
}

impl Default for CipherChoice {
    fn default() -> Self {
        Self::Fixed(Cipher::default())
    }
}

/// The facts that both sides know before a session begins.
#[derive(Clone, Debug)]
pub struct Params {
    /// This side's role.
    pub role: Role,
    /// This node's key.
    pub key: Arc<PrivateKey>,
    /// The other node's key.
    pub peer: PublicKey,
    /// The purpose of the session. Both sides must use the same label.
    pub label: Vec<u8>,
    /// How the session gets its cipher.
    pub cipher: CipherChoice,
}

/// Returns the label of a session between neighbours. The initiator is the side that opened the TCP connection.
pub fn meta_label(initiator: &str, responder: &str) -> Vec<u8> {
    format!("tinc TCP key expansion {initiator} {responder}\0").into_bytes()
}

/// Returns the label of a session for packets. The initiator is the side that asked for the session.
pub fn data_label(initiator: &str, responder: &str) -> Vec<u8> {
    format!("tinc UDP key expansion {initiator} {responder}\0").into_bytes()
}

/// The reason why a record is refused or cannot be sent. It ends a stream; a datagram is dropped.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A record or handshake message does not have its only valid length, or is shorter than any record.
    #[error("a record of {0} bytes has the wrong length")]
    Length(usize),
    /// The peer's KEX has an unknown version.
    #[error("version {0} of the key exchange is not supported")]
    Version(u8),
    /// The peer does not have the expected key, or uses another label.
    #[error("the peer's signature is wrong: its key is not the expected one")]
    Signature,
    /// The peer is the expected one, but uses another cipher.
    #[error(
        "the peer uses {peer}, and this node {own}: set SPTPSCipher to the same value in both host files"
    )]
    OtherCipher {
        /// This side's cipher.
        own: Cipher,
        /// The peer's cipher.
        peer: Cipher,
    },
    /// Both sides offer AES-256-GCM, but the peer's offer did not arrive with its handshake record.
    #[error(
        "the peer's offer of AES-256-GCM was removed on the way: a node between both tampers with handshakes"
    )]
    OfferRemoved,
    /// The peer's ephemeral key is not a point of the curve, or makes the shared secret zero.
    #[error("the peer's ephemeral key is not usable")]
    EphemeralKey,
    /// A handshake message arrived at a moment when none is expected.
    #[error("unexpected handshake message")]
    UnexpectedHandshake,
    /// A record of the application arrived where only handshake records are allowed, or the other way round.
    #[error("unexpected record of type {0}")]
    UnexpectedType(u8),
    /// A record was altered, or sealed under another key.
    #[error("the record is not authentic")]
    Forged,
    /// A record was received before, or is older than the replay window.
    #[error("record {0} is repeated or too old")]
    Replayed(u32),
    /// A record is further ahead than the replay window is long.
    #[error("record {0} is too far ahead")]
    TooFarAhead(u32),
    /// A record before the first keys does not have the next sequence number.
    #[error("handshake record {0} is out of order")]
    OutOfOrder(u32),
    /// The session has no keys yet.
    #[error("the session is not established")]
    NotEstablished,
    /// A handshake is in progress, so no other can start.
    #[error("a handshake is in progress")]
    HandshakeInProgress,
    /// The session has used its sequence numbers.
    #[error("the session has sent as many records as it can: a new session is required")]
    Exhausted,
    /// A record is longer than 65,535 bytes.
    #[error("{0} bytes are too many for one record")]
    TooLong(usize),
    /// The session ended with an earlier error.
    #[error("the session has ended")]
    Ended,
    /// The cryptographic library failed.
    #[error("the cryptographic library failed")]
    Library,
}

/// An event of a session that is not a record of the application.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer has proved its identity, and both directions have keys.
    Established,
    /// Both directions have new keys.
    Rekeyed,
}
