use std::fmt;

use adit_crypto::{CryptoError, DirectionKey, tls1_prf};
use zeroize::Zeroizing;

use super::method2::Randoms;
use super::static_key::{Direction, StaticKey};
use crate::packet::SessionId;

/// The TLS exporter label of the data keys; no context, [`EXPORTED_LEN`] bytes.
pub const DATA_KEYS_LABEL: &[u8] = b"EXPORTER-OpenVPN-datakeys";
/// The TLS exporter label of the key that wraps renegotiations; no context, [`EXPORTED_LEN`] bytes.
pub const DYNAMIC_TLS_CRYPT_LABEL: &[u8] = b"EXPORTER-OpenVPN-dynamic-tls-crypt";
/// The length of both exports in bytes.
pub const EXPORTED_LEN: usize = StaticKey::LEN;

/// Our end of a session.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Role {
    /// The end that sent the first packet.
    Client,
    /// The other end.
    Server,
}

/// The two halves of a data channel key.
#[derive(Clone)]
pub struct DataKeys {
    /// The key for packets that we send.
    pub seal: DirectionKey,
    /// The key for packets that we receive.
    pub open: DirectionKey,
}

/// The input of [`DataKeys::from_prf`].
#[derive(Clone, Copy, Debug)]
pub struct PrfInput<'a> {
    /// The client's pre-master secret.
    pub pre_master: &'a [u8; 48],
    /// The client's random bytes.
    pub client: &'a Randoms,
    /// The server's random bytes.
    pub server: &'a Randoms,
    /// The client's session id.
    pub client_session: SessionId,
    /// The server's session id.
    pub server_session: SessionId,
}

impl DataKeys {
    /// Derives the keys from the TLS exporter ([`DATA_KEYS_LABEL`]). Peers negotiate this with
    /// IV_PROTO bit 3 and `key-derivation tls-ekm`.
    pub fn from_exporter(exported: &[u8; EXPORTED_LEN], role: Role) -> Self {
        Self::split(&StaticKey::new(*exported), role)
    }

    /// Derives the keys from the key method 2 messages with the PRF of TLS 1.0, for peers that do
    /// not offer the exporter.
    ///
    /// # Errors
    /// Fails if the cryptographic library refuses, which is our fault or the machine's, never the
    /// peer's.
    pub fn from_prf(input: &PrfInput<'_>, role: Role) -> Result<Self, CryptoError> {
        let mut master = Zeroizing::new([0; 48]);
        tls1_prf(
            input.pre_master,
            b"OpenVPN master secret",
            &[&input.client.random1, &input.server.random1],
            master.as_mut_slice(),
        )?;
        let mut block = Zeroizing::new([0; EXPORTED_LEN]);
        tls1_prf(
            master.as_slice(),
            b"OpenVPN key expansion",
            &[
                &input.client.random2,
                &input.server.random2,
                &input.client_session.0,
                &input.server_session.0,
            ],
            block.as_mut_slice(),
        )?;
        Ok(Self::split(&StaticKey::new(*block), role))
    }

    /// Splits a key into its halves. The client sends with key 0, whereas in tls-crypt the server
    /// does.
    fn split(key: &StaticKey, role: Role) -> Self {
        let (seal, open) = key.directed(match role {
            Role::Client => Direction::Normal,
            Role::Server => Direction::Inverse,
        });
        Self { seal, open }
    }
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for DataKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKeys(..)")
    }
}
