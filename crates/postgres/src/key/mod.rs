//! Who is who, and who may read: the network's key, the nodes' keys, and the records that they vouch for.
//!
//! ```text
//!   NetworkKey ──► MACs over the network's row and every node's: the database cannot add or change one
//!              └─► pre-shared key of every wrap
//!   NodeKeys: Ed25519 signs epoch records; X-Wing (ML-KEM-768 and X25519) opens the wraps of epochs' secrets
//! ```

mod bytes;
mod checkpoint;
pub mod epoch;
mod identity;
mod network;
mod record;
mod wrap;

#[cfg(test)]
mod tests;

pub use checkpoint::Checkpoint;
pub use identity::{
    AuditorKey, BadKey, Fingerprint, NodeKeys, NodePublic, Reader, SealPublic, SealSecret,
};
pub use network::NetworkKey;
pub use record::{MAX_NAME, MAX_SUBNETS, NetworkRecord, NodeRecord, UnfitRecord, is_name};
pub(crate) use wrap::{unwrap_once, wrap_once};
