//! A packet filter: rules in a subset of nftables' language, compiled into a [`ruleset::Ruleset`]'s
//! [`Filter`], with connection tracking, for the bridge and for the tunnel's own traffic. No I/O.
//!
//! ```text
//!   text ──lang──► Ruleset ──compile──► Filter ─┐
//!                                               ▼
//!   frame ──packet──► Packet ──conntrack──► state ──evaluate──► verdict, and why
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

pub mod compile;
pub mod conntrack;
pub mod elements;
pub mod evaluate;
pub mod firewall;
pub mod fragment;
pub mod lang;
#[cfg(any(test, feature = "oracle"))]
#[doc(hidden)]
pub mod oracle;
pub mod packet;
pub mod pcapng;
pub mod rejection;
pub mod ruleset;
#[cfg(test)]
mod testing;
mod time;

pub use compile::{CompileError, Counts, Filter, IpRange};
pub use evaluate::{Context, Evaluation, Evaluator, IfName, LogSink, Verdict, VerdictCache};
pub use firewall::{Burst, Firewall, FrameContext, FrameVerdict, Worker};
pub use time::Nanos;
