//! A packet filter: rules in a subset of nftables' language, compiled into a [`ruleset::Ruleset`]'s
//! [`Filter`], with connection tracking, for the bridge and for the tunnel's own traffic. No I/O.
//!
//! ```text
//!   text ──lang──► Ruleset ──compile──► Filter ─┐
//!                                               ▼
//!   frame ──packet──► Packet ──conntrack──► state ──evaluate──► verdict, and why
//! ```
//!
//! [`Firewall`] does all of it for several workers. Without connection tracking, an [`Evaluator`] is enough to apply
//! the rules:
//!
//! ```
//! use std::sync::Arc;
//!
//! use adit_filter::packet::{Layer, Packet};
//! use adit_filter::ruleset::{CtDirection, CtState};
//! use adit_filter::{Context, Evaluator, Filter, IfName, Nanos, Verdict, lang};
//! use adit_wire::VnetHeader;
//!
//! let rules = "table inet filter {
//!     chain forward {
//!         type filter hook forward priority 0; policy drop;
//!         udp dport 53 accept
//!     }
//! }";
//! let mut no_includes = |_: &str| Err(std::io::ErrorKind::NotFound.into());
//! let ruleset = lang::parse("rules.nft", rules, &mut no_includes).unwrap();
//! let mut evaluator = Evaluator::new(Arc::new(Filter::compile(ruleset).unwrap()));
//!
//! // 10.8.0.2:4000 -> 10.8.0.1:53, UDP without a payload.
//! let mut packet = [
//!     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0x66, 0xbf, 10, 8, 0, 2, 10, 8, 0, 1, // IPv4
//!     0x0f, 0xa0, 0, 53, 0, 8, 0, 0, // UDP
//! ];
//! let context = Context {
//!     now: Nanos(1),
//!     iif: IfName::new("tun0"),
//!     oif: IfName::new("eth0"),
//!     state: CtState::NEW,
//!     direction: CtDirection::Original,
//!     protocol: Some(17),
//! };
//! let mut verdict = |bytes: &[u8]| {
//!     let packet = Packet::parse(bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
//!     evaluator.evaluate(&packet, &context, None, &mut ()).verdict
//! };
//! assert_eq!(verdict(&packet), Verdict::Accept);
//! packet[23] = 54;
//! assert_eq!(verdict(&packet), Verdict::Drop);
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
