//! The data plane: peers, keys, routes and replay windows, and the worker threads that run bursts
//! of packets from the TUN device to UDP sockets and back.
//!
//! ```text
//!            control thread                         worker thread
//!   Plane::apply(Command) ──> tables (snapshots) ──────────> read
//!   Upcalls::drain  <── bounded queues <── ingress <── recvmmsg + UDP GRO
//!                                             └──> merge ──> one writev per super-packet ──> TUN
//!                        sendmmsg + UDP GSO <── egress <── split <── one readv per super-packet
//! ```
//!
//! The processing of packets is free of I/O, in [`ingress`] and [`egress`]; the worker only moves bytes. Control publishes
//! immutable snapshots, which a worker loads after each receive, so that the first packet under a new key finds it.
//!
//! Locks: one per peer and burst, from the first packet id through the `sendmmsg` (a peer's replay
//! window may be as short as 64 packets, so trains must not overtake each other), and one per key and
//! received train for the replay window. A worker never holds the TX locks of two peers.
//!
//! Entry points for fuzzing, none of which may panic on any input: [`stream::frames::run`], [`loopback::LoopbackPlane::open`],
//! [`loopback::LoopbackPlane::open_stream`], [`loopback::LoopbackPlane::seal`].

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod channels;
mod control;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod egress;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod ethernet;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod filter_hook;
pub mod format;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod hand_up;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod ingress;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod key;
pub mod loopback;
mod peer;
mod probe;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod recursion;
mod relay;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod replay;
mod routes;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod saved;
mod scratch;
mod shared;
mod sockets;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod splice;
mod stats;
pub mod stream;
mod tables;
mod unrouted;
mod upcall;
mod worker;

// The trivial format refers to this crate by name, as the tests in `tests/` do.
#[cfg(test)]
extern crate self as adit_dataplane;
#[cfg(test)]
#[path = "../tests/common/trivial.rs"]
mod trivial;

pub use adit_linux::udp::SenderField;
pub use control::{Plane, PlaneConfig};
pub use egress::MAX_PACKET;
pub use ethernet::{MACS_PER_PEER, MAX_MACS, MacTotals};
pub use filter_hook::{FilterConfig, HOST};
pub use hand_up::{HandedUp, Unpeered};
pub use recursion::{OwnPort, OwnTransport};
pub use relay::Relay;
pub use replay::{ReplayCheck, ReplayWindow};
pub use routes::Routes;
pub use saved::SavedPeer;
pub use scratch::Scratch;
pub use shared::Failure;
pub use splice::MAX_SPLICES;
pub use stats::{DropReason, Histogram, Offloads, Totals};
pub use stream::{MAX_FRAME, SavedStream, StreamEnd, StreamOptions};
pub use upcall::{Upcall, Upcalls};
