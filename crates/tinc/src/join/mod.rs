//! The exchange in which a new node accepts an invitation.
//!
//! ```text
//!   joiner                                            inviter
//!     │── 0 ?KEY 17.1 ──────────────────────────────────►│  a key for this connection alone
//!     │◄─ 0 INVITER 17.7, 4 KEY ─────────────────────────│  the key for invitations: its hash is in the URL
//!     │◄═ SPTPS, label "tinc invitation" ═══════════════►│
//!     │── 0: cookie ────────────────────────────────────►│  takes the invitation's file, once
//!     │◄─ 0: file, in parts ─────────────────────────────│
//!     │◄─ 1: the file is complete ───────────────────────│
//!     │── 1: the new node's key ────────────────────────►│  writes the new node's host file
//!     │◄─ 2: done ───────────────────────────────────────│
//! ```
//!
//! Both sides do no I/O: [`Joiner`] and [`Inviter`] take and append bytes, and their callers read and write the files.

use adit_engine::Instant;

use crate::meta::{IdError, MAX_LINE};
use crate::sptps;

mod files;
mod inviter;
mod joiner;
#[cfg(test)]
mod tests;

pub use files::{ConfigFile, FilesError, Ifconfig, InterfacePlan, Route};
pub use inviter::{Claim, Inviter, InviterError, InviterEvent, invited_node};
pub use joiner::{JoinError, Joiner, JoinerEvent, Phase};

/// Length of the longest part of a file in one record, bytes.
const MAX_PART: usize = 1024;

/// The types of records.
const DATA: u8 = 0;
const COMPLETE: u8 = 1;
const DONE: u8 = 2;

/// The minor version that a joining node names: it knows no Ed25519 key of the inviter.
const JOINER_MINOR: u16 = 1;

/// The number of the line with the key for invitations.
const KEY_LINE: &str = "4";

/// Adds to an instant.
#[allow(clippy::arithmetic_side_effects)] // The sum is saturated.
fn later(now: Instant, by: std::time::Duration) -> Instant {
    now + by
}

/// The reason why the other side's bytes are not part of the exchange.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The first lines are not those of the exchange.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The second line has no key for invitations.
    #[error("the second line has no key for invitations")]
    NoKey,
    /// The session failed.
    #[error(transparent)]
    Session(#[from] sptps::Error),
    /// A record has another type or length than the one that is due.
    #[error("unexpected record of type {0} with {1} bytes")]
    Record(u8, usize),
}

const _: () = assert!(MAX_PART < MAX_LINE, "tinc reads no longer records");
