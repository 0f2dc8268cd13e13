//! Identities and access: the network's key, the nodes' keys, and the records that they authenticate.
//!
//! ```text
//!   KeyRing: the network's keys, one for each generation
//!     NetworkKey ──► MACs over the network's row and every node's: the database cannot add or change one
//!                ├─► pre-shared key of every wrap
//!                └─► the next generation's key, which a node signs and wraps to each member (rekey.rs)
//!   NodeKeys: the owner's Ed25519 key signs the network's settings, each row with the hash of the one before
//!   NodeKeys: Ed25519 signs epoch records; X-Wing (ML-KEM-768 and X25519) opens the wraps of epochs' secrets
//! ```

mod bytes;
mod checkpoint;
pub mod epoch;
mod identity;
mod network;
mod record;
pub mod rekey;
mod ring;
pub mod settings;
pub(crate) mod wrap;

#[cfg(test)]
mod tests;

pub use checkpoint::Checkpoint;
pub use identity::{
    AuditorKey, Fingerprint, KeyError, NodeKeys, NodePublic, Reader, SealPublic, SealSecret,
};
pub use network::NetworkKey;
pub use record::{MAX_NAME, MAX_SUBNETS, NetworkRecord, NodeRecord, RecordError, is_name};
pub use ring::{KeyRing, Members, RingError};
