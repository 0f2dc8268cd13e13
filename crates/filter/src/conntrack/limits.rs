use std::time::Duration;

use crate::ruleset::FlowLimits;

/// The bounds and timeouts of a [`super::Tracker`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// The maximum number of flows in all shards together. At the limit, flows are evicted that have expired, that have
    /// no answer, or whose source exceeds its share. A flow takes about 200 bytes, allocated only as needed.
    pub flows: usize,
    /// The maximum number of flows without an answer from one source (an IPv4 address, an IPv6 /64).
    pub unanswered_per_source: usize,
    /// The number of flows that one source keeps in a full table. A source with more must make room for others and for
    /// its own new flows. `None` means a 256th of all.
    pub flows_per_source: Option<usize>,
    /// The number of parts, each with its own lock; one for each thread that uses the table.
    pub shards: usize,
    /// Whether TCP connections that existed before are picked up in the middle and count as new (the kernel's
    /// `nf_conntrack_tcp_loose`, which has the same default).
    pub loose: bool,
    /// The idle timeout of each kind of flow.
    pub timeouts: Timeouts,
}

impl Limits {
    /// The default of [`Self::flows_per_source`].
    const SOURCES: usize = 256;

    /// Returns these limits, overridden by those that a rule file sets.
    pub fn stated(&self, by: &FlowLimits) -> Self {
        let or = |stated: Option<u32>, own: usize| {
            stated.and_then(|stated| usize::try_from(stated).ok()).unwrap_or(own)
        };
        let per_source = by.per_source.and_then(|stated| usize::try_from(stated).ok());
        Self {
            flows: or(by.flows, self.flows),
            unanswered_per_source: or(by.unanswered_per_source, self.unanswered_per_source),
            flows_per_source: per_source.or(self.flows_per_source),
            ..self.clone()
        }
    }

    /// Returns the number of flows that one source keeps in a full table; at least 1.
    pub(super) fn source_share(&self) -> usize {
        let share = self.flows_per_source.unwrap_or(self.flows / Self::SOURCES);
        share.max(1)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: 262_144,
            unanswered_per_source: 32_768,
            flows_per_source: None,
            shards: 1,
            loose: true,
            timeouts: Timeouts::default(),
        }
    }
}

/// The idle timeouts of flows. The defaults are the kernel's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Timeouts {
    /// TCP: one end or both have sent a SYN.
    pub syn_sent: Duration,
    /// TCP: the SYN was answered.
    pub syn_recv: Duration,
    /// TCP: the handshake is complete.
    pub established: Duration,
    /// TCP: one end has closed.
    pub fin_wait: Duration,
    /// TCP: the close was acknowledged.
    pub close_wait: Duration,
    /// TCP: both ends have closed.
    pub last_ack: Duration,
    /// TCP: both closes were acknowledged.
    pub time_wait: Duration,
    /// TCP: the connection was reset.
    pub close: Duration,
    /// TCP, established: data is not acknowledged, the same segment was repeated [`Self::MAX_COPIES`] times, the window
    /// is zero, or the connection was picked up in the middle and has no answer yet.
    pub stuck: Duration,
    /// UDP.
    pub udp: Duration,
    /// UDP, when answered and older than two seconds.
    pub udp_stream: Duration,
    /// ICMP queries and their replies.
    pub icmp: Duration,
    /// All other protocols.
    pub other: Duration,
}

impl Timeouts {
    /// A full table evicts established connections that were silent for this long (RFC 5382, REQ-5), and no other
    /// established ones.
    pub const IDLE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);
    /// After this many consecutive copies of a segment, a connection counts as stuck.
    pub const MAX_COPIES: u8 = 3;
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            syn_sent: seconds(120),
            syn_recv: seconds(60),
            established: seconds(5 * 24 * 3600),
            fin_wait: seconds(120),
            close_wait: seconds(60),
            last_ack: seconds(30),
            time_wait: seconds(120),
            close: seconds(10),
            stuck: seconds(300),
            udp: seconds(30),
            udp_stream: seconds(120),
            icmp: seconds(30),
            other: seconds(600),
        }
    }
}
