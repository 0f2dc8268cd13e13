//! The exchange that joins a node to a mesh, in a session of [`Protocol::Join`](crate::session::Protocol::Join):
//!
//! ```text
//! joiner                                                    inviter
//!   secret of the token, wished name  ------------------->
//!     <-------------------  genesis, number of changes | refusal | waiting
//!     <-------------------  changes, in causal order, in as many records as they need
//! ```
//!
//! TLS proves the key of each end, so a request does not repeat it. The joiner sends nothing before it has compared the inviter's key with
//! the token, and accepts only a roster of the token's mesh that has it as a member.
//!
//! A member that asks again because its session ended during the answer gets the roster without using up the invitation further. So does a
//! joiner that had to wait for an operator's approval. It asks again every few seconds, with the same key, each time in a new session.

mod joiner;
mod pending;
mod record;
mod responder;
#[cfg(test)]
mod tests;

pub use joiner::{JoinError, Joined, Joiner, Waits};
pub use pending::{MAX_PENDING, MAX_PER_INVITATION, Pending, PendingCounters, PendingJoiner};
pub use record::{MAX_RECORD, Record, Refused};
pub use responder::{Admission, JoinCounters, JoinRefusal, Responder};
