//! A bridge of two ports. Each frame that one receives is evaluated once and leaves through the other, unchanged.
//!
//! ```text
//!            control thread: opens ports, again when one vanished; reloads rules; reports
//!                 │ queues, stop                        ▲ lost ports, counters
//!   ┌─────────────▼─────────────────────────────────────┴──────────────┐
//!   │ worker (one thread for each queue of both ports)                 │
//!   │                                                                  │
//!   │   port A ──burst──► Hook::evaluate ──kept frames──► port B       │
//!   │   port A ◄──kept frames── Hook::evaluate ◄──burst── port B       │
//!   └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A worker blocks for one frame, takes the other available frames without blocking, and sends them before it takes
//! more: there is no queue but the kernel's, and no timer. No frame causes an allocation, a lock or a log line.

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
