//! The canonical encodings of the rows of the network and its nodes. MACs with the network's key authenticate them.
//!
//! The database may withhold a row or present an old one, but it can neither invent nor change one.

use adit_crypto::CryptoError;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::bytes::Encoder;
use super::{NetworkKey, NodePublic, SealPublic};
use crate::NodeId;

/// The maximum length of a node's name in bytes.
pub const MAX_NAME: usize = 24;

/// The maximum number of subnets of a node.
pub const MAX_SUBNETS: usize = 256;

/// The reason why a record from the database is rejected.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The MAC was not made with the network's key.
    #[error("its MAC is wrong: it was changed without the network's key")]
    Mac,
    /// The name is empty or too long, or contains a character that is not allowed.
    #[error("a name is 1 to 24 lower-case letters, digits and underscores")]
    Name,
    /// The number is not valid; numbers start at 1.
    #[error("a node's number is positive")]
    Id,
    /// The node has more than [`MAX_SUBNETS`].
    #[error("a node has at most 256 subnets")]
    Subnets,
    /// The node has neither address.
    #[error("a node has an address")]
    Address,
    /// A key is not valid.
    #[error("a key in it is not valid")]
    Key,
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// A node's row. The network's key authenticates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// The node's number.
    pub id: NodeId,
    /// The name, of 1 to 24 characters `a-z`, `0-9`, `_`.
    pub name: String,
    /// Its IPv4 address, with the length of the network's prefix.
    pub address4: Option<Ipv4Net>,
    /// Its IPv6 address, with the length of the network's prefix.
    pub address6: Option<Ipv6Net>,
    /// The subnets behind it, in the order of the row.
    pub subnets: Vec<IpNet>,
    /// Its Ed25519 key, 32 bytes.
    pub sign_key: Vec<u8>,
    /// Its X-Wing key, 1216 bytes.
    pub seal_key: Vec<u8>,
    /// Whether it was removed from the network.
    pub removed: bool,
}

impl NodeRecord {
    /// Creates a node's record from its own keys, for registration.
    pub fn new(
        public: &NodePublic,
        name: &str,
        address4: Option<Ipv4Net>,
        address6: Option<Ipv6Net>,
        subnets: Vec<IpNet>,
    ) -> Self {
        Self {
            id: public.id,
            name: name.into(),
            address4,
            address6,
            subnets,
            sign_key: public.sign.to_vec(),
            seal_key: public.seal.as_bytes().to_vec(),
            removed: false,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new(b"adit-pg1 node");
        out.i32(self.id.0);
        out.bytes(self.name.as_bytes());
        out.net(self.address4.map(IpNet::V4));
        out.net(self.address6.map(IpNet::V6));
        out.u64(u64::try_from(self.subnets.len()).unwrap_or(u64::MAX));
        for subnet in &self.subnets {
            out.net(Some(*subnet));
        }
        out.bytes(&self.sign_key);
        out.bytes(&self.seal_key);
        out.u8(u8::from(self.removed));
        out.done()
    }

    /// Returns the MAC that is stored with it in the database.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn mac(&self, key: &NetworkKey) -> Result<[u8; 32], CryptoError> {
        first_32(key.node_mac()?.sign(&[&self.encode()]).as_bytes())
    }

    /// Checks that a holder of the network's key wrote the record and that its values are valid. Returns the node's
    /// keys.
    ///
    /// # Errors
    /// Fails if the MAC does not match or a value is out of bounds.
    pub fn verify(&self, key: &NetworkKey, mac: &[u8]) -> Result<NodePublic, RecordError> {
        if !key.node_mac()?.verify(&[&self.encode()], mac) {
            return Err(RecordError::Mac);
        }
        self.unproven()
    }

    /// Returns the node's keys without verifying the record's MAC, for a caller without the network's key.
    ///
    /// # Errors
    /// Fails if a value is out of bounds.
    pub fn unproven(&self) -> Result<NodePublic, RecordError> {
        if self.id.0 <= 0 {
            return Err(RecordError::Id);
        }
        if !is_name(&self.name) {
            return Err(RecordError::Name);
        }
        if self.address4.is_none() && self.address6.is_none() {
            return Err(RecordError::Address);
        }
        if self.subnets.len() > MAX_SUBNETS {
            return Err(RecordError::Subnets);
        }
        let sign = self.sign_key.as_slice().try_into().map_err(|_| RecordError::Key)?;
        let seal = SealPublic::from_bytes(&self.seal_key).map_err(|_| RecordError::Key)?;
        Ok(NodePublic { id: self.id, sign, seal })
    }
}

/// Returns whether the name is valid for a node. It becomes part of a role's name and of log lines.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The constants of a network, as stored in its row. Its settings are [`super::settings::NetworkSettings`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRecord {
    /// The version of the schema.
    pub version: i32,
    /// The tag in the roles' names.
    pub tag: String,
    /// The network of the nodes' IPv4 addresses.
    pub network4: Option<Ipv4Net>,
    /// The network of the nodes' IPv6 addresses.
    pub network6: Option<Ipv6Net>,
    /// The tablespace for the leaves.
    pub leaf_space: Option<String>,
}

impl NetworkRecord {
    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new(b"adit-pg1 network");
        out.i32(self.version);
        out.bytes(self.tag.as_bytes());
        out.net(self.network4.map(IpNet::V4));
        out.net(self.network6.map(IpNet::V6));
        out.maybe(self.leaf_space.as_deref().map(str::as_bytes));
        out.done()
    }

    /// Returns the MAC that is stored with it in the database.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn mac(&self, key: &NetworkKey) -> Result<[u8; 32], CryptoError> {
        first_32(key.network_mac()?.sign(&[&self.encode()]).as_bytes())
    }

    /// Checks that a holder of the network's key wrote the record.
    ///
    /// # Errors
    /// Fails if the MAC does not match.
    pub fn verify(&self, key: &NetworkKey, mac: &[u8]) -> Result<(), RecordError> {
        if key.network_mac()?.verify(&[&self.encode()], mac) {
            Ok(())
        } else {
            Err(RecordError::Mac)
        }
    }
}

fn first_32(mac: &[u8]) -> Result<[u8; 32], CryptoError> {
    mac.try_into().map_err(|_| CryptoError)
}
