//! A tunnel through a PostgreSQL database, in which every packet is a row that the peer reads.
//!
//! ```text
//!   TUN ──► Sender: route, queue, seal ──► batch ──COPY──► leaf tables ──SELECT──► Receiver: order, open ──► TUN
//!                        │                                                             ▲
//!                        └─ epoch record, signed; its secret wrapped to the readers ───┘
//! ```
//!
//! This crate performs no I/O. `apps/postgres` accesses the database and the device, and provides the time and
//! randomness.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

mod ids;
pub mod key;
pub mod limits;
mod policy;
pub mod queue;
pub mod receiver;
pub mod routes;
pub mod row;
pub mod seal;
pub mod sender;
pub mod sql;
pub mod token;
pub mod verify;

pub use ids::{EpochNo, Generation, LeafNo, NodeId, Seq, StreamId};
pub use policy::{Audit, Durability, UnknownPolicy};
