//! Control channel wrapping: none, tls-auth, tls-crypt, tls-crypt-v2.
//!
//! ```text
//! none         opcode 1 | session 8 | rest
//! tls-auth     opcode 1 | session 8 | HMAC | id 4 | time 4 | rest         HMAC over id | time | opcode | session | rest
//! tls-crypt    opcode 1 | session 8 | id 4 | time 4 | tag 32 | AES-256-CTR(rest)    tag over all before it | rest
//! tls-crypt-v2 the same under the client's own key; opcodes 10 and 11 are followed by that key, wrapped for the server
//! ```
//!
//! Directions: in tls-crypt the server sends with the first half of the key. In tls-auth
//! `key-direction` says so; without it both ends use the first half for both ways.

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

pub use first_packet::{First, WrapServer};
pub use replay::{ReplayWindow, Replayed};
pub use wrapper::Wrapper;

/// How control packets are wrapped, with the keys.
#[derive(Clone, Debug)]
pub enum WrapConfig {
    /// Not at all.
    None,
    /// `tls-auth`: authenticated.
    TlsAuth {
        /// The shared key.
        key: StaticKey,
        /// `key-direction`, or the second argument of `tls-auth`; `None`: both ends use the first half.
        direction: Option<Direction>,
        /// `auth`.
        digest: Digest,
    },
    /// `tls-crypt`: authenticated and encrypted.
    TlsCrypt {
        /// The shared key.
        key: StaticKey,
    },
    /// `tls-crypt-v2` of a client.
    TlsCryptV2Client {
        /// The client's own key and its wrapped form.
        key: ClientKey,
    },
    /// `tls-crypt-v2` of a server.
    TlsCryptV2Server {
        /// The key that unwraps the clients' keys.
        key: ServerKey,
        /// `tls-crypt-v2-max-age`: clients' keys that are older, or have no time stamp, are refused.
        max_age: Option<Duration>,
        /// `tls-auth` or `tls-crypt` for clients that bring no key of their own.
        shared: Option<Box<WrapConfig>>,
    },
}

impl WrapConfig {
    /// `tls-crypt-v2` of a server that takes clients' keys of any age, and no other clients.
    pub fn tls_crypt_v2_server(key: ServerKey) -> Self {
        Self::TlsCryptV2Server { key, max_age: None, shared: None }
    }

    /// `tls-auth` or `tls-crypt` with one key for all clients, if there is such a key.
    pub(crate) fn shared(&self) -> Option<&Self> {
        match self {
            Self::TlsAuth { .. } | Self::TlsCrypt { .. } => Some(self),
            Self::TlsCryptV2Server { shared, .. } => shared.as_deref(),
            Self::None | Self::TlsCryptV2Client { .. } => None,
        }
    }
}

/// Why a packet was not wrapped or unwrapped. Each variant is one check.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WrapError {
    /// The peer's or a stranger's: not a control packet.
    #[error(transparent)]
    Malformed(#[from] PacketError),
    /// A stranger's, or the wrong key: it does not authenticate.
    #[error("the packet does not authenticate: another key or direction, or it was altered")]
    BadMac,
    /// An authentic packet a second time, or too late.
    #[error("the packet was received before, or is too old")]
    Replayed,
    /// The wrapped client key is missing, malformed or not ours.
    #[error(transparent)]
    BadWkc(#[from] UnwrapError),
    /// An authentic client key that is older than `tls-crypt-v2-max-age`.
    #[error("the tls-crypt-v2 client key is older than tls-crypt-v2-max-age allows")]
    KeyTooOld,
    /// An authentic client key whose age is unknown, where `tls-crypt-v2-max-age` limits it.
    #[error("the tls-crypt-v2 client key has no time stamp, which tls-crypt-v2-max-age requires")]
    KeyWithoutTime,
    /// Within a session, another wrapped key than the one it began with.
    #[error("the wrapped client key differs from the one the session began with")]
    WkcChanged,
    /// Ours: 2^32 packets were wrapped. The session must end.
    #[error("the control channel's packet ids are used up")]
    IdsExhausted,
    /// Ours: a server's key given to a client or the reverse.
    #[error("this end cannot use the other end's kind of tls-crypt-v2 key")]
    WrongRole,
    /// Ours or the machine's.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// For the fuzzer: opens arbitrary bytes as a stranger's packet and within a session under every
/// wrapping. The first byte chooses, the rest is the packet. Gives the outcome for a stranger.
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
    // Within the session the same bytes are a replay, or pass where nothing is counted.
    let again = first.wrapper.open(&mut packet.to_vec()).map(|_| ());
    match config {
        WrapConfig::None => assert_eq!(again, Ok(())),
        _ => assert_eq!(again, Err(WrapError::Replayed)),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
