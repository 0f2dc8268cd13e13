//! The packet filter in the data path. Every packet that leaves the tunnel, enters it, or goes from peer to peer is
//! evaluated once. Without a filter nothing here runs.
//!
//! ```text
//!   peer ──open──► merge ──► filter ──► device         iifname DEVICE, oifname "host"
//!   device ──route──► filter ──► split, seal ──► peer  iifname "host", oifname DEVICE
//!   peer ──open──► filter ──► seal ──► peer            iifname DEVICE, oifname DEVICE
//! ```
//!
//! A merged super-packet is evaluated as one packet, by its headers.

use std::sync::Arc;

use adit_engine::{Instant, PeerId, VlanId};
use adit_filter::firewall::{Burst, Firewall, FrameContext, FrameVerdict, Peers, Worker};
use adit_filter::packet::Layer;
use adit_filter::{IfName, Nanos};
use adit_wire::VnetHeader;
use adit_wire::merge::Write;

use crate::stats::{DropReason, Stats};

/// The interface name, in rules, of this host's side of the device and the networks behind it.
pub const HOST: &str = "host";

/// The maximum number of replies to rejected packets, and of fragments, in one burst.
const MAX_INJECTED: usize = 256;

/// The packet filter of a plane, and the device's name in its rules.
#[derive(Clone, Debug)]
pub struct FilterConfig {
    /// The rules with their state.
    pub firewall: Arc<Firewall>,
    /// The name of the tunnel's device in rules.
    pub device: String,
}

/// The direction of a packet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    /// From a peer to the device.
    ToDevice(PeerId),
    /// From the device to a peer; `None`: to all peers, or to a station that is behind no known peer.
    FromDevice(Option<PeerId>),
    /// From one peer to another; `None`: to all other peers.
    PeerToPeer(PeerId, Option<PeerId>),
}

/// A packet on its way from a peer to another.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Relayed<'a> {
    pub from: PeerId,
    pub to: PeerId,
    pub packet: &'a [u8],
}

/// The filter hook of one worker.
pub(crate) struct FilterHook {
    worker: Worker,
    device: IfName,
    host: IfName,
    layer: Layer,
    /// Headers of merged packets, and zeros in place of payloads that no rule reads.
    whole: Scratch,
    /// Packets to send in addition, in this burst.
    pub injected: Injected,
}

/// Packets outside the buffers of the burst.
#[derive(Debug, Default)]
pub(crate) struct Injected {
    /// Replies, each sent to the owner of its destination in this VLAN.
    pub replies: Vec<(Option<VlanId>, Vec<u8>)>,
    /// Fragments for peers.
    pub fragments: Vec<(PeerId, Vec<u8>)>,
}

/// The outcome of evaluating one packet.
pub(crate) enum HookVerdict {
    Pass,
    /// The packet was dropped, rejected with a reply, or held for reassembly.
    Consumed,
    /// The reassembled packet passes, and these fragments are sent in its place.
    Fragments(Vec<Vec<u8>>),
}

impl FilterHook {
    pub(crate) fn new(filtered: &FilterConfig, ethernet: bool) -> Self {
        Self {
            worker: filtered.firewall.worker(),
            device: IfName::new(&filtered.device),
            host: IfName::new(HOST),
            layer: if ethernet { Layer::Ethernet } else { Layer::Ip },
            whole: Scratch::default(),
            injected: Injected::default(),
        }
    }

    /// Begins a burst. The caller must not block until it is dropped, because it holds locks.
    pub(crate) fn burst(&mut self, now: Instant) -> FilterBurst<'_> {
        let Self { worker, device, host, layer, whole, injected } = self;
        let need_payload = worker.firewall().logs().has_readers();
        FilterBurst {
            burst: worker.burst(Nanos(now.as_nanos())),
            names: (*device, *host),
            layer: *layer,
            whole,
            injected,
            need_payload,
        }
    }
}

/// A burst of packets being evaluated.
pub(crate) struct FilterBurst<'g> {
    burst: Burst<'g>,
    names: (IfName, IfName),
    layer: Layer,
    whole: &'g mut Scratch,
    pub injected: &'g mut Injected,
    /// A capture may be running, which needs more than headers.
    need_payload: bool,
}

impl FilterBurst<'_> {
    /// Evaluates a packet or super-packet of a VLAN. If `explicit`, only a rule can accept it, not a policy.
    #[inline]
    pub(crate) fn evaluate(
        &mut self,
        (direction, vlan): (Direction, Option<VlanId>),
        vnet: &VnetHeader,
        packet: &[u8],
        explicit: bool,
        stats: &Stats,
    ) -> HookVerdict {
        let place = self.context(direction, vlan, vnet);
        let verdict = if !explicit {
            self.burst.evaluate(packet, &place)
        } else {
            self.burst.evaluate_explicit(packet, &place)
        };
        conclude(verdict, self.injected, vlan, stats, 1)
    }

    /// Evaluates a packet or super-packet that is to be written to the device.
    #[inline]
    pub(crate) fn evaluate_write(
        &mut self,
        write: &Write<'_, '_>,
        vlan: Option<VlanId>,
        stats: &Stats,
    ) -> HookVerdict {
        let vnet = VnetHeader::decode(write.vnet());
        let place = self.context(Direction::ToDevice(PeerId(write.origin())), vlan, &vnet);
        let verdict = match write.packets().next() {
            Some(packet) if write.count() == 1 => self.burst.evaluate(packet, &place),
            Some(_) => {
                let packet = self.whole.gather(write, self.need_payload);
                self.burst.evaluate(packet, &place)
            }
            None => FrameVerdict::Pass,
        };
        conclude(verdict, self.injected, vlan, stats, write.count())
    }

    fn context(
        &self,
        direction: Direction,
        vlan: Option<VlanId>,
        vnet: &VnetHeader,
    ) -> FrameContext {
        let (device, host) = self.names;
        let (iif, oif, zone_bits, from, to) = match direction {
            Direction::ToDevice(from) => (device, host, 0, Some(from), None),
            Direction::FromDevice(to) => (host, device, 1, None, to),
            Direction::PeerToPeer(from, to) => (device, device, 2, Some(from), to),
        };
        // Peer ids have 24 bits.
        let zone = zone_bits << 30 | from.map_or(0, |peer| peer.0);
        let peers = Peers { from: from.map(|peer| peer.0), to: to.map(|peer| peer.0) };
        let vlan = vlan.map(VlanId::get);
        FrameContext { layer: self.layer, vlan, vnet: *vnet, iif, oif, peers, zone }
    }
}

/// A buffer in which merged packets are joined.
#[derive(Debug, Default)]
struct Scratch {
    bytes: Vec<u8>,
    /// The buffer contains payloads.
    used: bool,
}

impl Scratch {
    /// Returns a merged packet in one piece: its headers, followed by its payload, or by zeros of that length if no
    /// capture runs. Its checksum need not be verified, because each part's was.
    fn gather(&mut self, write: &Write<'_, '_>, all: bool) -> &[u8] {
        let len = write.len();
        if self.used && !all {
            self.bytes.clear();
        }
        self.used = all;
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        let bodies = write.bodies().filter(|_| all);
        let mut at = 0usize;
        for part in std::iter::once(write.header()).chain(bodies) {
            let end = at.saturating_add(part.len());
            if let Some(place) = self.bytes.get_mut(at..end) {
                place.copy_from_slice(part);
            }
            at = end;
        }
        self.bytes.get(..len).unwrap_or(&[])
    }
}

#[inline]
fn conclude(
    verdict: FrameVerdict<'_>,
    injected: &mut Injected,
    vlan: Option<VlanId>,
    stats: &Stats,
    count: usize,
) -> HookVerdict {
    match verdict {
        FrameVerdict::Pass => HookVerdict::Pass,
        other => refused(other, injected, vlan, stats, count),
    }
}

#[cold]
fn refused(
    verdict: FrameVerdict<'_>,
    injected: &mut Injected,
    vlan: Option<VlanId>,
    stats: &Stats,
    count: usize,
) -> HookVerdict {
    match verdict {
        FrameVerdict::Pass => return HookVerdict::Pass,
        FrameVerdict::Held => return HookVerdict::Consumed,
        FrameVerdict::Drop => {}
        FrameVerdict::Reply(answer) => {
            if injected.replies.len() < MAX_INJECTED {
                injected.replies.push((vlan, answer.to_vec()));
            }
        }
        FrameVerdict::Release(assembled) => {
            return HookVerdict::Fragments(assembled.pieces().map(<[u8]>::to_vec).collect());
        }
    }
    stats.drop_many(DropReason::Filtered, count);
    HookVerdict::Consumed
}

/// Evaluates packets from peer to peer, and retains those that pass. With `explicit`, only a rule can accept packets between
/// two peers.
pub(crate) fn evaluate_relayed(
    filter_burst: &mut FilterBurst<'_>,
    packets: &mut Vec<Relayed<'_>>,
    vlan_of: impl Fn(PeerId) -> Option<VlanId>,
    explicit: bool,
    stats: &Stats,
) {
    let plain = VnetHeader::default();
    packets.retain(|&Relayed { from, to, packet }| {
        match filter_burst.evaluate(
            (Direction::PeerToPeer(from, Some(to)), vlan_of(from)),
            &plain,
            packet,
            explicit,
            stats,
        ) {
            HookVerdict::Pass => true,
            HookVerdict::Consumed => false,
            HookVerdict::Fragments(pieces) => {
                let room = MAX_INJECTED.saturating_sub(filter_burst.injected.fragments.len());
                if pieces.len() > room {
                    stats.drop_many(DropReason::FragmentsFull, pieces.len());
                } else {
                    filter_burst
                        .injected
                        .fragments
                        .extend(pieces.into_iter().map(|piece| (to, piece)));
                }
                false
            }
        }
    });
}

/// Does the same as [`evaluate_relayed`] for flooded frames. Fragments are not flooded.
pub(crate) fn evaluate_floods(
    filter_burst: &mut FilterBurst<'_>,
    frames: &mut Vec<(PeerId, &[u8])>,
    vlan_of: impl Fn(PeerId) -> Option<VlanId>,
    explicit: bool,
    stats: &Stats,
) {
    let plain = VnetHeader::default();
    frames.retain(|(from, frame)| {
        match filter_burst.evaluate(
            (Direction::PeerToPeer(*from, None), vlan_of(*from)),
            &plain,
            frame,
            explicit,
            stats,
        ) {
            HookVerdict::Pass => true,
            HookVerdict::Consumed => false,
            HookVerdict::Fragments(pieces) => {
                stats.drop_many(DropReason::Filtered, pieces.len());
                false
            }
        }
    });
}
