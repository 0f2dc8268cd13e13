//! A packet filter: rules in a subset of nftables' language, compiled into a [`ruleset::Ruleset`]'s
//! judge, with connection tracking, for the bridge and for the tunnel's own traffic. No I/O.
//!
//! ```text
//!   text ──lang──► Ruleset ──compile──► Filter ─┐
//!                                               ▼
//!   frame ──packet──► Packet ──track──► state ──judge──► verdict, and why
//! ```

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

pub mod answer;
pub mod compile;
pub mod elements;
pub mod firewall;
pub mod fragment;
pub mod judge;
pub mod lang;
#[cfg(any(test, feature = "oracle"))]
#[doc(hidden)]
pub mod oracle;
pub mod packet;
pub mod pcapng;
pub mod ruleset;
#[cfg(test)]
mod testing;
mod time;
pub mod track;

pub use compile::{CompileError, Counts, Filter, IpRange};
pub use firewall::{Burst, Firewall, Place, Ruling, Worker};
pub use judge::{Context, Decision, IfName, Judge, Judgement, Memo, Sink};
pub use time::Nanos;
