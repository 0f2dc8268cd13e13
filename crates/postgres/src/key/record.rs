//! The rows of the network and of its nodes as everybody encodes them, under MACs of the network's key.
//!
//! The database may withhold a row or show an old one; it can make none up and change none.

use adit_crypto::CryptoError;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::bytes::Encoder;
use super::{NetworkKey, NodePublic, SealPublic};
use crate::NodeId;

/// Longest name of a node, bytes.
pub const MAX_NAME: usize = 24;

/// Most subnets of a node.
pub const MAX_SUBNETS: usize = 256;

/// Why a record from the database is not believed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It is not what someone with the network's key wrote.
    #[error("its MAC is wrong: somebody without the network's key has changed it")]
    Mac,
    /// A name with other characters, or too long.
    #[error("a name is 1 to 24 lower-case letters, digits and underscores")]
    Name,
    /// Numbers from 1.
    #[error("a node's number is positive")]
    Id,
    /// More than [`MAX_SUBNETS`].
    #[error("a node has at most 256 subnets")]
    Subnets,
    /// Neither address.
    #[error("a node has an address")]
    Address,
    /// A key that is none.
    #[error("a key in it is none")]
    Key,
    /// Our own library.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// What the network vouches for about a node: its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its number.
    pub id: NodeId,
    /// 1 to 24 of `a-z`, `0-9`, `_`.
    pub name: String,
    /// Its own address, with the length of the network's prefix.
    pub address4: Option<Ipv4Net>,
    /// The same of IPv6.
    pub address6: Option<Ipv6Net>,
    /// What lies behind it, in the order of the row.
    pub subnets: Vec<IpNet>,
    /// Its Ed25519 key, 32 bytes.
    pub sign_key: Vec<u8>,
    /// Its X-Wing key, 1216 bytes.
    pub seal_key: Vec<u8>,
    /// Whether it was taken out of the network.
    pub removed: bool,
}

impl NodeRecord {
    /// A node's record from its own keys, to be registered.
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

    /// The MAC that goes with it into the database.
    ///
    /// # Errors
    /// The library failed.
    pub fn mac(&self, key: &NetworkKey) -> Result<[u8; 32], CryptoError> {
        first_32(key.node_mac()?.sign(&[&self.encode()]).as_bytes())
    }

    /// Whether someone with the network's key wrote this, and it is fit to be used; then, the node's keys.
    ///
    /// # Errors
    /// The MAC is another's, or what is under it is out of bounds.
    pub fn verify(&self, key: &NetworkKey, mac: &[u8]) -> Result<NodePublic, RecordError> {
        if !key.node_mac()?.verify(&[&self.encode()], mac) {
            return Err(RecordError::Mac);
        }
        self.unproven()
    }

    /// The node's keys as the record has them, for who has no key to ask who wrote it.
    ///
    /// # Errors
    /// It is out of bounds.
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

/// Whether a node may be called that: it becomes part of a role's name and of lines of logs.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The constants of a network: its row. Its settings are [`super::settings::NetworkSettings`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRecord {
    /// Of the schema.
    pub version: i32,
    /// Part of the roles' names.
    pub tag: String,
    /// Where the nodes' addresses come from.
    pub network4: Option<Ipv4Net>,
    /// The same of IPv6.
    pub network6: Option<Ipv6Net>,
    /// A tablespace for the leaves.
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

    /// The MAC that goes with it into the database.
    ///
    /// # Errors
    /// The library failed.
    pub fn mac(&self, key: &NetworkKey) -> Result<[u8; 32], CryptoError> {
        first_32(key.network_mac()?.sign(&[&self.encode()]).as_bytes())
    }

    /// Checks that a holder of the network's key wrote this.
    ///
    /// # Errors
    /// The MAC is another's.
    pub fn verify(&self, key: &NetworkKey, mac: &[u8]) -> Result<(), RecordError> {
        match key.network_mac()?.verify(&[&self.encode()], mac) {
            true => Ok(()),
            false => Err(RecordError::Mac),
        }
    }
}

fn first_32(mac: &[u8]) -> Result<[u8; 32], CryptoError> {
    mac.try_into().map_err(|_| CryptoError)
}
