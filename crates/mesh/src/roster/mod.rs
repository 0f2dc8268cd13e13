//! The signed membership of a mesh.
//!
//! A mesh begins with a [`Genesis`], whose hash is the mesh id. Everything else is a signed [`Change`]. Each signer
//! writes one chain of changes, so chains merge without consensus.
//!
//! Two design decisions are not obvious:
//!
//! - A genesis has no signature. A node knows the mesh id from its invitation, and the id is the genesis' hash.
//! - Only keys with a right have a chain. An admin signs the new key of a node without a right. So the number of chains is the number of
//!   admins and inviters, not the number of nodes.

mod addresses;
mod chains;
mod change;
mod directory;
mod evaluate;
mod genesis;
mod log;
mod node;
mod object;
#[cfg(test)]
pub(crate) mod testing;

pub use addresses::{free_ipv4, ipv6_net, ipv6_of};
pub use chains::{
    ChangeCounters, Changes, DraftError, Fork, Head, InsertError, Insertion, MAX_BRANCHES,
    MAX_CHAIN, MAX_CHAINS, MAX_CHANGES, MAX_WAITING, MAX_WAITING_PER_SIGNER,
};
pub use change::{
    Action, Body, Change, ChangeHash, Inviter, MAX_HEADS, Revocation, Right, Rotation,
    UnverifiedChange,
};
pub use directory::{Append, ChainSummary, Directory, Entry, MAX_READ, MemoryDirectory};
pub use evaluate::{EXPIRY_WARNING, Limit, Member, Refusal, Roster, Warning};
pub use genesis::{Genesis, Layer, MAX_ADMINS, MAX_RANGES};
pub use log::{Log, LogEncoder, LogError};
pub use node::{Label, MAX_GROUPS, MAX_LABEL, MAX_SUBNETS, NodeInfo};
pub use object::{MAX_OBJECT, ObjectError};
