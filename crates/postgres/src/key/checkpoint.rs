//! A sender's signature on its chain during an epoch.
//!
//! ```text
//!   signed:  "adit-pg2 checkpoint" | hash of the epoch's record and signature | seq | chain
//! ```
//!
//! The next epoch's record authenticates the end of the previous epoch. Without checkpoints, any reader of an epoch
//! could rewrite it until then together with the database, because readers have its secret. With checkpoints, this is
//! possible only for about the last second's rows.

use adit_crypto::CryptoError;

use super::{NodeKeys, NodePublic};
use crate::Seq;

const SIGNED: &[u8] = b"adit-pg2 checkpoint";

/// A sender's signature over an epoch up to a packet: a row of the table `checkpoint`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The number of a batch's last row.
    pub seq: Seq,
    /// The value of the chain in that row.
    pub chain: [u8; 32],
}

impl Checkpoint {
    fn message(&self, epoch_hash: &[u8; 32]) -> Vec<u8> {
        [SIGNED, epoch_hash, &self.seq.0.to_be_bytes(), &self.chain].concat()
    }

    /// Signs the checkpoint for the epoch whose record and signature have the hash `epoch_hash`
    /// ([`super::epoch::EpochRecord::hash`]).
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn sign(&self, keys: &NodeKeys, epoch_hash: &[u8; 32]) -> Result<[u8; 64], CryptoError> {
        keys.signing().sign(&self.message(epoch_hash))
    }

    /// Returns whether `sender` signed the checkpoint for the epoch.
    #[must_use]
    pub fn is_signed(&self, sender: &NodePublic, epoch_hash: &[u8; 32], signature: &[u8]) -> bool {
        sender.signed(&self.message(epoch_hash), signature)
    }
}
