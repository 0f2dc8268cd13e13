//! A case: its rules, its frames in order, and the result for each frame.

use std::borrow::Cow;
use std::fmt;

use super::frame::Side;

/// The connection between the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The sides are connected by a router: families `ip`, `ip6` and `inet`, with connection tracking.
    Route,
    /// The sides are connected by a switch: family `bridge`.
    Bridge,
}

/// The result for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameResult {
    /// It was dropped, or held until its other fragments arrive.
    Nothing,
    /// It passed, alone or with the fragments that were held.
    Passed,
    /// It was dropped, and its sender notified.
    Answered(Notification),
}

/// The notification of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification {
    /// A TCP reset.
    Reset {
        /// Sequence number.
        seq: u32,
        /// Acknowledgement number.
        ack: u32,
        /// Flags.
        flags: u8,
    },
    /// An ICMP or ICMPv6 error.
    Error {
        /// Whether it is ICMPv6.
        v6: bool,
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// Something else.
    Strange,
}

/// A counter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes, starting with the network header.
    pub bytes: u64,
}

/// An incoming frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentFrame {
    /// The side on which it arrives.
    pub side: Side,
    /// The bytes in wire format, starting with the Ethernet header.
    pub frame: Vec<u8>,
    /// The generator's intention, for a human reader.
    pub what: Cow<'static, str>,
}

/// The results of one of the two implementations for a case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The result for each frame.
    pub seen: Vec<FrameResult>,
    /// The counters at the end, in the order of `nft list ruleset`.
    pub counts: Vec<Count>,
}

impl fmt::Display for FrameResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Passed => f.write_str("passed"),
            Self::Answered(Notification::Reset { seq, ack, flags }) => {
                write!(f, "reset:{seq}:{ack}:{flags}")
            }
            Self::Answered(Notification::Error { v6, kind, code }) => {
                write!(f, "{}:{kind}:{code}", if *v6 { "icmpv6" } else { "icmp" })
            }
            Self::Answered(Notification::Strange) => f.write_str("strange"),
        }
    }
}
