use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::flow::Class;
use super::shard::Shard;

/// The contents and counters of a [`super::Tracker`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TrackStats {
    /// The present number of flows.
    pub flows: u64,
    /// The limit of flows.
    pub limit: u64,
    /// The number of allocated bytes.
    pub bytes: u64,
    /// The present number of flows in each state, without zeros.
    pub states: Vec<(FlowState, u64)>,
    /// Flows entered since the start.
    pub entered: u64,
    /// Flows that expired.
    pub expired: u64,
    /// Flows that were evicted to make room for others.
    pub evicted: u64,
    /// Evicted flows whose source exceeded its share.
    pub evicted_share: u64,
    /// Flows that were ended on request, or because the rules or clients in force would not accept
    /// them.
    pub withdrawn: u64,
    /// Packets refused because the table was full of flows that must not be evicted.
    pub refused_full: u64,
    /// Packets refused because their source has too many unanswered flows.
    pub refused_source: u64,
    /// Invalid packets by reason, without zeros.
    pub invalid: Vec<(Invalid, u64)>,
}

impl TrackStats {
    pub(super) fn add(&mut self, shard: &mut Shard) {
        let counts = shard.counts;
        self.bytes = self.bytes.saturating_add(shard.bytes() as u64);
        self.flows = self.flows.saturating_add(shard.table().len().into());
        self.entered = self.entered.saturating_add(counts.entered);
        self.expired = self.expired.saturating_add(counts.expired);
        self.evicted = self.evicted.saturating_add(counts.evicted);
        self.withdrawn = self.withdrawn.saturating_add(counts.withdrawn);
        self.evicted_share = self.evicted_share.saturating_add(counts.evicted_share);
        self.refused_full = self.refused_full.saturating_add(counts.refused_full);
        self.refused_source = self.refused_source.saturating_add(counts.refused_source);
        for class in Class::ALL {
            let count = u64::from(shard.table().class_len(class));
            match self.states.iter_mut().find(|(state, _)| *state == class.state()) {
                _ if count == 0 => {}
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => self.states.push((class.state(), count)),
            }
        }
    }
}

/// The state of a flow. It determines its timeout.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs, reason = "TCP's are named as in RFC 9293 and the kernel's list")]
pub enum FlowState {
    SynSent,
    SynRecv,
    /// TCP, picked up in the middle, with no answer yet.
    PickedUp,
    Established,
    FinWait,
    CloseWait,
    LastAck,
    TimeWait,
    Close,
    /// No answer yet; not TCP.
    Unanswered,
    /// Answered; not TCP.
    Answered,
    /// UDP, answered and older than two seconds.
    Stream,
}

/// The reason why a packet belongs to no flow and cannot start one.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Invalid {
    /// A fragment, or a packet without a transport header.
    Headers,
    /// The transport checksum is wrong.
    Checksum,
    /// TCP flags that never occur together.
    Flags,
    /// TCP: a segment that cannot occur in this state.
    State,
    /// TCP: beyond the receiver's window.
    Sequence,
    /// TCP: acknowledges data that was not sent.
    Acknowledgement,
    /// TCP: a reset with a sequence number other than the next expected byte.
    Reset,
    /// An ICMP reply without a query, or a type that is not tracked.
    Icmp,
    /// An ICMP error about an unknown flow, or one not sent to the packet's source.
    IcmpError,
}

impl Invalid {
    pub(super) const COUNT: usize = 9;

    pub(super) const ALL: [Self; Self::COUNT] = [
        Self::Headers,
        Self::Checksum,
        Self::Flags,
        Self::State,
        Self::Sequence,
        Self::Acknowledgement,
        Self::Reset,
        Self::Icmp,
        Self::IcmpError,
    ];
}

/// A flow, for reports.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FlowInfo {
    /// Transport protocol.
    pub protocol: u8,
    /// Source address and port (ICMP: identifier) of the first packet.
    pub source: (IpAddr, u16),
    /// Destination address and port (ICMP: type and code) of the first packet.
    pub destination: (IpAddr, u16),
    /// The ids of its VLANs, the outermost first; 0 for none.
    pub vlans: [u16; 2],
    /// The names of the clients that its first packet came from and went to.
    pub clients: [Option<Arc<str>>; 2],
    /// Its state.
    pub state: FlowState,
    /// Whether its handshake is complete, so that it is not evicted to make room for other flows.
    pub assured: bool,
    /// The time since its first packet.
    pub age: Duration,
    /// The time until it expires if no packet arrives.
    pub left: Duration,
    /// The number of packets in the original and in the opposite direction; a super-packet counts
    /// as its segments.
    pub packets: [u64; 2],
    /// The number of bytes from the network header on, in the same directions.
    pub bytes: [u64; 2],
}
