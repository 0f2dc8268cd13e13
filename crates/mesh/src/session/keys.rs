//! The keys of sessions, other than those of TLS.

use adit_crypto::{CryptoError, Digest, DirectionKey, hkdf_expand_sha256, hmac};
use adit_openvpn::keys::{DataKeys, Role, StaticKey};
use adit_openvpn::records::RecordSession;
use zeroize::Zeroizing;

use super::{KeyHash, MAX_CHANNELS, MeshId};

/// The TLS exporter label of the data keys.
pub const DATA_KEYS_LABEL: &[u8] = b"EXPORTER-adit-mesh";
/// The salt of HKDF for tls-crypt keys.
const WRAP_SALT: &[u8] = b"adit-mesh tls-crypt";

/// Derives the tls-crypt key of the node that accepts a session: HKDF-SHA256 over the mesh id, with
/// the hash of the node's key as information.
///
/// # Errors
/// The cryptographic library failed.
pub fn wrap_key(mesh: &MeshId, server: &KeyHash) -> Result<StaticKey, CryptoError> {
    let secret = hmac(Digest::Sha256, WRAP_SALT, &[mesh])?;
    let mut key = Zeroizing::new([0; StaticKey::LEN]);
    hkdf_expand_sha256(secret.as_bytes(), &[server], key.as_mut_slice())?;
    Ok(StaticKey::new(*key))
}

/// The two ends of a session.
#[derive(Copy, Clone, Debug)]
pub struct Ends<'a> {
    /// The mesh that both belong to.
    pub mesh: &'a MeshId,
    /// The key of the end that sent the first packet.
    pub client: &'a KeyHash,
    /// The key of the other end.
    pub server: &'a KeyHash,
}

impl<'a> Ends<'a> {
    /// Returns the ends of a session in which this node has that role.
    pub fn of(mesh: &'a MeshId, role: Role, ours: &'a KeyHash, peer: &'a KeyHash) -> Self {
        match role {
            Role::Client => Self { mesh, client: ours, server: peer },
            Role::Server => Self { mesh, client: peer, server: ours },
        }
    }

    /// Returns the exporter context of the key that `sender` seals with on a channel: mesh id,
    /// client's hash, server's hash, sender (0 for the client, 1 for the server), channel in two
    /// bytes.
    pub fn context(&self, sender: Role, channel: u16) -> Vec<u8> {
        let sender = match sender {
            Role::Client => 0,
            Role::Server => 1,
        };
        [&self.mesh[..], self.client, self.server, &[sender], &channel.to_be_bytes()].concat()
    }

    /// Derives the data keys of a channel from the newest key negotiation of a session.
    ///
    /// # Errors
    /// The TLS handshake is not complete.
    pub fn data_keys(
        &self,
        session: &RecordSession,
        channel: usize,
    ) -> Result<DataKeys, adit_openvpn::Reason> {
        debug_assert!(channel < MAX_CHANNELS, "a channel that no session has");
        let channel = u16::try_from(channel).unwrap_or(u16::MAX);
        let half = |sender| {
            let mut material = Zeroizing::new([0; 128]);
            let context = self.context(sender, channel);
            session.export(DATA_KEYS_LABEL, &context, material.as_mut_slice())?;
            let mut key = DirectionKey { cipher: [0; 64], hmac: [0; 64] };
            let bytes = key.cipher.iter_mut().chain(&mut key.hmac);
            bytes.zip(material.iter()).for_each(|(to, from)| *to = *from);
            Ok::<_, adit_openvpn::Reason>(key)
        };
        let (client, server) = (half(Role::Client)?, half(Role::Server)?);
        Ok(match session.role() {
            Role::Client => DataKeys { seal: client, open: server },
            Role::Server => DataKeys { seal: server, open: client },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_wrapping_key_is_of_one_node_in_one_mesh() {
        let key = |mesh: u8, node: u8| *wrap_key(&[mesh; 16], &[node; 32]).unwrap().as_bytes();
        let keys: HashSet<_> = [key(1, 1), key(1, 2), key(2, 1)].into();
        assert_eq!(keys.len(), 3);
        assert_eq!(key(1, 1), key(1, 1));
    }

    #[test]
    fn each_part_of_a_context_counts() {
        let context = |mesh: u8, client: u8, server: u8, sender, channel| {
            let (mesh, client, server) = ([mesh; 16], [client; 32], [server; 32]);
            Ends { mesh: &mesh, client: &client, server: &server }.context(sender, channel)
        };
        let contexts: HashSet<_> = [
            context(1, 1, 2, Role::Client, 0),
            context(2, 1, 2, Role::Client, 0),
            context(1, 2, 1, Role::Client, 0),
            context(1, 1, 3, Role::Client, 0),
            context(1, 1, 2, Role::Server, 0),
            context(1, 1, 2, Role::Client, 1),
            context(1, 1, 2, Role::Client, 256),
        ]
        .into();
        assert_eq!(contexts.len(), 7);
        assert!(contexts.iter().all(|context| context.len() == 16 + 32 + 32 + 1 + 2));
    }
}
