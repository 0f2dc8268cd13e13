//! Connection tracking: which packets belong together, and what their ends can have sent.
//!
//! ```text
//!   Tracker::burst ──► Burst::look(packet) ──► Tracked { state, direction } ──► the rules
//!                      Burst::confirm(tracked) ◄── accepted: only now a new flow is entered
//! ```

use crate::Nanos;
use crate::judge::Memo;
use crate::packet::{Network, Packet, Transport};
use crate::ruleset::{CtDirection, CtState};

mod limits;
mod stats;

pub use limits::{Limits, Timeouts};
pub use stats::{FlowInfo, FlowState, Invalid, TrackStats};

/// All flows, in as many shards as there are workers. Any number of threads may use it.
#[derive(Debug)]
pub struct Tracker {
    limits: Limits,
}

impl Tracker {
    /// An empty table. `seed` is random: it keeps strangers from choosing where flows lie.
    pub fn new(limits: Limits, seed: [u8; 16]) -> Self {
        let _ = seed;
        Self { limits }
    }

    /// The bounds it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// For a run of packets, all taken to be of the moment `now`. It holds the lock of one shard
    /// at a time, until it is dropped: keep none while waiting.
    pub fn burst(&self, now: Nanos) -> Burst<'_> {
        let _ = now;
        Burst { _tracker: self }
    }

    /// Counts, of all shards.
    pub fn stats(&self) -> TrackStats {
        TrackStats { limit: self.limits.flows as u64, ..TrackStats::default() }
    }

    /// Some of the flows, from `cursor` on (0 at first), and where to go on; `None` at the end.
    /// Flows that come or go meanwhile may be seen or not.
    pub fn flows(&self, now: Nanos, cursor: u64) -> (Vec<FlowInfo>, Option<u64>) {
        let _ = (now, cursor);
        (Vec::new(), None)
    }

    /// Removes flows whose time is over, at most some thousands at a time; true if more are left.
    /// Bursts do this too: it is for when no packets come.
    pub fn sweep(&self, now: Nanos) -> bool {
        let _ = now;
        false
    }
}

/// What is known of one packet. [`Burst::confirm`] enters it if it starts a flow.
#[derive(Copy, Clone, Debug)]
pub struct Tracked {
    /// One bit.
    pub state: CtState,
    /// Which way it goes in its flow. [`CtDirection::Original`] without one.
    pub direction: CtDirection,
    /// The flow's transport protocol: for an ICMP error, that of the flow it is about. `None`
    /// without a flow (invalid, untracked): there, `ct direction` and `ct l4proto` do not match.
    pub protocol: Option<u8>,
}

/// A run of packets on the table.
#[derive(Debug)]
pub struct Burst<'a> {
    _tracker: &'a Tracker,
}

impl Burst<'_> {
    /// What a packet is to the flows that are known. A known flow is brought up to date here,
    /// whatever becomes of the packet, as the kernel does; a new one waits for
    /// [`Self::confirm`].
    ///
    /// Takes whole packets: a fragment, and whatever fails its checksum, is invalid.
    pub fn look(&mut self, packet: &Packet<'_>) -> Tracked {
        let Network::Ip(ip) = packet.network else { return Tracked::without(CtState::UNTRACKED) };
        match packet.transport {
            Transport::None => Tracked::without(CtState::INVALID),
            _ => Tracked {
                state: CtState::NEW,
                direction: CtDirection::Original,
                protocol: Some(ip.protocol),
            },
        }
    }

    /// Enters the flow of a packet that was accepted; does nothing for one of a known flow.
    /// False if there is no room, which is counted: the packet is to be dropped.
    pub fn confirm(&mut self, tracked: &Tracked, packet: &Packet<'_>) -> bool {
        let _ = (tracked, packet);
        true
    }

    /// A place for what the rules said of the last packet of the flow in the same direction and
    /// state. `None` for a packet of no known flow, and for ICMP errors.
    pub fn memo(&mut self, tracked: &Tracked) -> Option<&mut Memo> {
        let _ = tracked;
        None
    }
}

impl Tracked {
    /// For a packet of no flow.
    const fn without(state: CtState) -> Self {
        Self { state, direction: CtDirection::Original, protocol: None }
    }
}
