//! The simulated network of the engines: links that delay, lose, reorder and duplicate packets, and NAT boxes, in virtual time.
//!
//! The network is sans-IO and seeded too. The same seed loses the same packets, so a failure in one of a thousand runs
//! is reproducible.

#![forbid(unsafe_code)]

mod impairment;
mod internet;
mod nat;
mod pipe;

pub use impairment::{Impairment, Loss};
pub use internet::{BoxId, Delivery, HostId, Internet};
pub use nat::{Filtering, Mapping, NatBehaviour, NatBox, NatCounters, PortChoice};
pub use pipe::{Pipe, PipeCounters};
