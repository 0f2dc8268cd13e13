//! A bridge of two ports: each frame that one receives is judged once and leaves by the other, as it
//! came.
//!
//! ```text
//!            control thread: opens ports, again when one vanished; reloads rules; reports
//!                 │ queues, stop                        ▲ lost ports, counters
//!   ┌─────────────▼─────────────────────────────────────┴──────────────┐
//!   │ worker (one thread for each queue of both ports)                 │
//!   │                                                                  │
//!   │   port A ──burst──► Hook::judge ──kept frames──► port B          │
//!   │   port A ◄──kept frames── Hook::judge ◄──burst── port B          │
//!   └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A worker blocks for one frame, takes what else is there without blocking, and sends it before it
//! takes more: there is no queue but the kernel's, and no timer. Nothing is allocated, locked or logged
//! for a frame.

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

mod bridge;
mod counters;
mod hook;
mod port;
pub mod routed;
mod worker;

pub use bridge::{Bridge, MAX_WORKERS, StartError};
pub use counters::{Drop, SideTotals, Totals};
pub use hook::Policy;
pub use port::{Port, PortError, PortSpec, Queue, Side};
