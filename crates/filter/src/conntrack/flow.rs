use adit_wire::ip::{ICMP, ICMPV6, TCP, UDP};
use serde::{Deserialize, Serialize};

use super::clients::Client;
use super::flow_key::FlowKey;
use super::hash::Seed;
use super::tcp::Tcp;
use super::{FlowEnds, FlowState, Timeouts};
use crate::Nanos;
use crate::evaluate::VerdictCache;
use crate::ruleset::CtDirection;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// A flow, in three cache lines: one for finding it, one for TCP, and one for the rules and
/// reports.
#[derive(Copy, Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Flow {
    pub(super) key: FlowKey,
    /// The time of the last packet that restarted the timeout.
    pub(super) seen: Nanos,
    /// The time when it was put at the end of its queue, in [`seconds`].
    pub(super) queued: u16,
    pub(super) class: Class,
    bits: u8,
    /// The next flow in the same bucket, or the next free slot.
    pub(super) chain: u32,
    pub(super) tcp: Tcp,
    /// The time when its first packet arrived, in [`sixteenths`].
    pub(super) born: u32,
    pub(super) memos: [VerdictCache; 2],
    /// The client that owns the source address of its first packet.
    pub(super) owner: Client,
    /// The previous flow in the queue of its class.
    pub(super) older: u32,
    pub(super) packets: [u64; 2],
    pub(super) bytes: [u64; 2],
    /// The next flow in the queue of its class.
    pub(super) newer: u32,
    /// The generation of rules and members that accepted the flow.
    pub(super) generation: u32,
}

/// The first packet was sent from the higher end to the lower.
const DOWNWARDS: u8 = 1;
/// A packet in the opposite direction was seen.
const ANSWERED: u8 = 2;
/// TCP: the handshake was completed.
const ASSURED: u8 = 4;
/// TCP, established: the connection may be dead and has a short timeout.
const STUCK: u8 = 8;

impl Flow {
    /// Returns the content of a free slot.
    pub(super) fn empty() -> Self {
        Self {
            key: FlowKey::EMPTY,
            seen: Nanos(0),
            chain: NONE,
            newer: NONE,
            older: NONE,
            queued: 0,
            class: Class::Free,
            bits: 0,
            tcp: Tcp::EMPTY,
            born: 0,
            memos: [VerdictCache::default(); 2],
            owner: 0,
            packets: [0; 2],
            bytes: [0; 2],
            generation: 0,
        }
    }

    pub(super) fn new(key: FlowKey, downwards: bool, class: Class, tcp: Tcp, now: Nanos) -> Self {
        let bits = if downwards { DOWNWARDS } else { 0 };
        Self { key, seen: now, class, tcp, bits, born: sixteenths(now), ..Self::empty() }
    }

    /// Returns the hash of its source: the client, or the source address of its first packet.
    pub(super) fn source_hash(&self, seed: &Seed) -> u64 {
        source_hash(&self.key, self.downwards(), self.owner, seed)
    }

    /// Returns the two ends of the flow.
    pub(super) fn between(&self) -> FlowEnds {
        let [(source, _), (destination, _)] = self.key.ends(self.downwards());
        let clients = self.key.clients(self.downwards());
        FlowEnds { addresses: [source, destination], clients, owner: self.owner }
    }

    const fn get(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    fn set(&mut self, bit: u8, on: bool) {
        self.bits = if on { self.bits | bit } else { self.bits & !bit };
    }

    pub(super) const fn downwards(&self) -> bool {
        self.get(DOWNWARDS)
    }

    pub(super) const fn answered(&self) -> bool {
        self.get(ANSWERED)
    }

    pub(super) fn set_answered(&mut self) {
        self.set(ANSWERED, true);
    }

    pub(super) const fn assured(&self) -> bool {
        self.get(ASSURED)
    }

    pub(super) fn set_assured(&mut self) {
        self.set(ASSURED, true);
    }

    pub(super) const fn stuck(&self) -> bool {
        self.get(STUCK)
    }

    pub(super) fn set_stuck(&mut self, on: bool) {
        self.set(STUCK, on);
    }

    pub(super) const fn direction(&self, downwards: bool) -> CtDirection {
        if downwards == self.downwards() { CtDirection::Original } else { CtDirection::Reply }
    }

    pub(super) fn count(&mut self, direction: CtDirection, packets: u64, bytes: u64) {
        let ([po, pr], [bo, br]) = (&mut self.packets, &mut self.bytes);
        let (p, b) = match direction {
            CtDirection::Original => (po, bo),
            CtDirection::Reply => (pr, br),
        };
        *p = p.saturating_add(packets);
        *b = b.saturating_add(bytes);
    }

    pub(super) fn verdict_cache(&mut self, direction: CtDirection) -> &mut VerdictCache {
        let [original, reply] = &mut self.memos;
        match direction {
            CtDirection::Original => original,
            CtDirection::Reply => reply,
        }
    }
}

/// A flow for another process, without its place in the table and its cached verdicts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedFlow {
    /// The key, without clients.
    key: FlowKey,
    /// The clients at the lower and the higher end, and the owner, in the numbering of all saved flows.
    clients: [Client; 2],
    owner: Client,
    seen: Nanos,
    born: u32,
    class: Class,
    bits: u8,
    /// The state of a TCP connection.
    tcp: Option<Tcp>,
    packets: [u64; 2],
    bytes: [u64; 2],
}

impl SavedFlow {
    pub(super) const fn seen(&self) -> Nanos {
        self.seen
    }
}

impl Flow {
    /// Returns the flow for another process. `number` translates the clients; `None` if it has no number for one.
    pub(super) fn save(
        &self,
        mut number: impl FnMut(Client) -> Option<Client>,
    ) -> Option<SavedFlow> {
        let [low, high] = self.key.clients(false);
        Some(SavedFlow {
            key: self.key.of_clients([0; 2]),
            clients: [number(low)?, number(high)?],
            owner: number(self.owner)?,
            seen: self.seen,
            born: self.born,
            class: self.class,
            bits: self.bits,
            tcp: (self.key.protocol() == TCP).then_some(self.tcp),
            packets: self.packets,
            bytes: self.bytes,
        })
    }

    /// Continues a flow of another process; `None` if its record makes no sense. The rules in force decide about it again.
    pub(super) fn resume(
        saved: &SavedFlow,
        number: impl Fn(Client) -> Option<Client>,
        now: Nanos,
    ) -> Option<Self> {
        let [low, high] = saved.clients;
        let key = saved.key.of_clients([number(low)?, number(high)?]);
        let tcp = match (saved.tcp, key.protocol()) {
            (Some(tcp), TCP) => tcp,
            (None, protocol) if protocol != TCP => Tcp::EMPTY,
            _ => return None,
        };
        if !saved.class.is_of(key.protocol()) {
            return None;
        }
        Some(Self {
            key,
            seen: saved.seen.min(now),
            class: saved.class,
            bits: saved.bits & (DOWNWARDS | ANSWERED | ASSURED | STUCK),
            tcp,
            born: saved.born,
            owner: number(saved.owner)?,
            packets: saved.packets,
            bytes: saved.bytes,
            // No generation of rules has this number.
            generation: 0,
            ..Self::empty()
        })
    }
}

/// Returns the hash of the source of a flow that is not entered yet; see [`Flow::source_hash`].
pub(super) fn source_hash(key: &FlowKey, downwards: bool, owner: Client, seed: &Seed) -> u64 {
    match owner {
        0 => key.source_hash(downwards, seed),
        owner => seed.hash([owner.into(), 2, 2]),
    }
}

/// The queue of a flow. All flows in a queue have the same timeout and the same priority for
/// eviction.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[repr(u8)]
pub(super) enum Class {
    Free,
    Close,
    TimeWait,
    SynSent,
    SynRecv,
    PickedUp,
    Udp,
    Icmp,
    Other,
    UdpAnswered,
    IcmpAnswered,
    OtherAnswered,
    LastAck,
    CloseWait,
    FinWait,
    UdpStream,
    Established,
}

impl Class {
    pub(super) const COUNT: usize = 17;

    pub(super) const ALL: [Self; Self::COUNT] = [
        Self::Free,
        Self::Close,
        Self::TimeWait,
        Self::SynSent,
        Self::SynRecv,
        Self::PickedUp,
        Self::Udp,
        Self::Icmp,
        Self::Other,
        Self::UdpAnswered,
        Self::IcmpAnswered,
        Self::OtherAnswered,
        Self::LastAck,
        Self::CloseWait,
        Self::FinWait,
        Self::UdpStream,
        Self::Established,
    ];

    /// Returns whether flows of a protocol can be of this class.
    const fn is_of(self, protocol: u8) -> bool {
        match self {
            Self::Free => false,
            Self::Udp | Self::UdpAnswered | Self::UdpStream => protocol == UDP,
            Self::Icmp | Self::IcmpAnswered => matches!(protocol, ICMP | ICMPV6),
            Self::Other | Self::OtherAnswered => !matches!(protocol, TCP | UDP | ICMP | ICMPV6),
            Self::Close
            | Self::TimeWait
            | Self::SynSent
            | Self::SynRecv
            | Self::PickedUp
            | Self::LastAck
            | Self::CloseWait
            | Self::FinWait
            | Self::Established => protocol == TCP,
        }
    }

    /// Returns whether only the sender of the first packet is known to take part in the flow.
    pub(super) const fn unanswered(self) -> bool {
        matches!(
            self,
            Self::SynSent | Self::SynRecv | Self::PickedUp | Self::Udp | Self::Icmp | Self::Other
        )
    }

    pub(super) const fn state(self) -> FlowState {
        match self {
            Self::Free | Self::Close => FlowState::Close,
            Self::TimeWait => FlowState::TimeWait,
            Self::SynSent => FlowState::SynSent,
            Self::SynRecv => FlowState::SynRecv,
            Self::PickedUp => FlowState::PickedUp,
            Self::Udp | Self::Icmp | Self::Other => FlowState::Unanswered,
            Self::UdpAnswered | Self::IcmpAnswered | Self::OtherAnswered => FlowState::Answered,
            Self::LastAck => FlowState::LastAck,
            Self::CloseWait => FlowState::CloseWait,
            Self::FinWait => FlowState::FinWait,
            Self::UdpStream => FlowState::Stream,
            Self::Established => FlowState::Established,
        }
    }

    pub(super) const fn timeout(self, of: &Timeouts) -> std::time::Duration {
        match self {
            Self::Free => std::time::Duration::ZERO,
            Self::Close => of.close,
            Self::TimeWait => of.time_wait,
            Self::SynSent => of.syn_sent,
            Self::SynRecv => of.syn_recv,
            Self::PickedUp => of.stuck,
            Self::Udp | Self::UdpAnswered => of.udp,
            Self::Icmp | Self::IcmpAnswered => of.icmp,
            Self::Other | Self::OtherAnswered => of.other,
            Self::LastAck => of.last_ack,
            Self::CloseWait => of.close_wait,
            Self::FinWait => of.fin_wait,
            Self::UdpStream => of.udp_stream,
            Self::Established => of.established,
        }
    }
}

/// Returns the time in seconds, which wraps after 18 hours; for intervals of minutes.
pub(super) const fn seconds(now: Nanos) -> u16 {
    (now.0 / 1_000_000_000) as u16
}

/// Returns the time in sixteenths of a second, which wraps after eight years.
pub(super) const fn sixteenths(now: Nanos) -> u32 {
    (now.0 / 62_500_000) as u32
}
