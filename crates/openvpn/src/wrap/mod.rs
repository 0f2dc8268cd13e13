//! Control channel wrapping: none, tls-auth, tls-crypt, tls-crypt-v2.
//!
//! ```text
//! none         opcode 1 | session 8 | rest
//! tls-auth     opcode 1 | session 8 | HMAC | id 4 | time 4 | rest         HMAC over id | time | opcode | session | rest
//! tls-crypt    opcode 1 | session 8 | id 4 | time 4 | tag 32 | AES-256-CTR(rest)    tag over all before it | rest
//! tls-crypt-v2 the same under the client's own key; opcodes 10 and 11 are followed by that key, wrapped for the server
//! ```
//!
//! In tls-crypt, the server sends with the first half of the key. In tls-auth, `key-direction` selects the halves.
//! Without it, both ends use the first half in both directions.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

mod first_packet;
mod mode;
mod replay;
mod wrapper;

use std::time::Duration;

use adit_crypto::{CryptoError, Digest};

use crate::keys::{ClientKey, Direction, ServerKey, StaticKey, UnwrapError};
use crate::packet::PacketError;

pub use first_packet::{FirstPacket, WrapServer};
pub use replay::{ReplayWindow, Replayed};
pub(crate) use wrapper::SavedWrapper;
pub use wrapper::Wrapper;

/// The wrapping of control packets, with its keys.
#[derive(Clone, Debug)]
pub enum WrapConfig {
    /// Control packets are not wrapped.
    None,
    /// `tls-auth`: control packets are authenticated.
    TlsAuth {
        /// The shared key.
        key: StaticKey,
        /// `key-direction`, or the second argument of `tls-auth`; if `None`, both ends use the
        /// first half.
        direction: Option<Direction>,
        /// `auth`.
        digest: Digest,
    },
    /// `tls-crypt`: control packets are authenticated and encrypted.
    TlsCrypt {
        /// The shared key.
        key: StaticKey,
    },
    /// A client's `tls-crypt-v2`.
    TlsCryptV2Client {
        /// The client's own key and its wrapped form.
        key: ClientKey,
    },
    /// A server's `tls-crypt-v2`.
    TlsCryptV2Server {
        /// The key that unwraps the clients' keys.
        key: ServerKey,
        /// `tls-crypt-v2-max-age`: refuse clients' keys that are older or have no time stamp.
        max_age: Option<Duration>,
        /// `tls-auth` or `tls-crypt`, for clients without a key of their own.
        shared: Option<Box<Self>>,
    },
}

impl WrapConfig {
    /// Returns the `tls-crypt-v2` of a server that accepts clients' keys of any age, and no clients without such a key.
    pub fn tls_crypt_v2_server(key: ServerKey) -> Self {
        Self::TlsCryptV2Server { key, max_age: None, shared: None }
    }

    /// Returns the `tls-auth` or `tls-crypt` that has one key for all clients, if there is such a
    /// key.
    pub(crate) fn shared(&self) -> Option<&Self> {
        match self {
            Self::TlsAuth { .. } | Self::TlsCrypt { .. } => Some(self),
            Self::TlsCryptV2Server { shared, .. } => shared.as_deref(),
            Self::None | Self::TlsCryptV2Client { .. } => None,
        }
    }
}

/// The reason why a packet was not wrapped or unwrapped. Each variant is one check.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WrapError {
    /// The bytes are not a control packet. The fault is the peer's or an unauthenticated sender's.
    #[error(transparent)]
    Malformed(#[from] PacketError),
    /// The packet does not authenticate, because of an unauthenticated sender or the wrong key.
    #[error("the packet does not authenticate: another key or direction, or it was altered")]
    BadMac,
    /// An authentic packet arrived a second time or too late.
    #[error("the packet was received before, or is too old")]
    Replayed,
    /// The wrapped client key is missing, malformed or not ours.
    #[error(transparent)]
    BadWkc(#[from] UnwrapError),
    /// The client key is authentic but older than `tls-crypt-v2-max-age`.
    #[error("the tls-crypt-v2 client key is older than tls-crypt-v2-max-age allows")]
    KeyTooOld,
    /// The client key is authentic but has no time stamp, which `tls-crypt-v2-max-age` requires.
    #[error("the tls-crypt-v2 client key has no time stamp, which tls-crypt-v2-max-age requires")]
    KeyWithoutTime,
    /// The wrapped key differs from the session's first one.
    #[error("the wrapped client key differs from the one the session began with")]
    WkcChanged,
    /// This end has wrapped 2^32 packets. The session must end.
    #[error("the control channel's packet ids are used up")]
    IdsExhausted,
    /// A client got a server's key, or a server got a client's key. The fault is ours.
    #[error("this end cannot use the other end's kind of tls-crypt-v2 key")]
    WrongRole,
    /// The cryptographic library failed. The fault is ours or the host's.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// Opens arbitrary bytes, for the fuzzer, as an unauthenticated packet and within a session under every wrapping. The
/// first byte selects the wrapping, and the rest is the packet. Returns the result of the unauthenticated packet.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) -> Result<(), WrapError> {
    let short = PacketError::TooShort;
    let (&choice, packet) = bytes.split_first().ok_or(short)?;
    let key = StaticKey::new([7; StaticKey::LEN]);
    let config = match choice % 4 {
        0 => WrapConfig::None,
        1 => WrapConfig::TlsAuth { key, direction: None, digest: Digest::Sha256 },
        2 => WrapConfig::TlsCrypt { key },
        _ => WrapConfig::tls_crypt_v2_server(ServerKey::new(&[7; ServerKey::LEN])),
    };
    if let Ok(mut client) = Wrapper::client(&config) {
        let _ = client.open(&mut packet.to_vec());
    }
    let mut copy = packet.to_vec();
    let mut first = WrapServer::new(&config)?.open_first(&mut copy)?;
    // Within the session the same bytes are a replay, but are accepted if the wrapping has no packet ids.
    let again = first.wrapper.open(&mut packet.to_vec()).map(|_| ());
    match config {
        WrapConfig::None => assert_eq!(again, Ok(())),
        _ => assert_eq!(again, Err(WrapError::Replayed)),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
