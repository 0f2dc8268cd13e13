//! A plane without threads, sockets and devices. The caller passes packets in and gets packets out. It serves tests, fuzzing, and
//! measurements of the transforms alone.

use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use adit_engine::{Instant, Link, PeerId, VlanId};
use adit_wire::VnetHeader;
use adit_wire::ip::Ip;
use adit_wire::merge::{Merger, Write};
use adit_wire::split::Segments;

use crate::control::Plane;
use crate::egress::{Arena, PacketShape, SealProgress};
use crate::ethernet::{EgressFrame, channel, outward, outward_of_known, take_vlan};
use crate::filter_hook::{self, Direction, FilterConfig, FilterHook, HookVerdict, Relayed};
use crate::format::Format;
use crate::hand_up::behind_tag;
use crate::ingress::{Datagrams, Ingress};
use crate::peer::Peer;
use crate::relay::Relay;
use crate::shared::Shared;
use crate::stats::{DropReason, Offloads};
use crate::stream::{Rx, StreamEnd};
use crate::tables::PeerTable;
use crate::upcall::Upcalls;

/// The maximum number of packets that one call of [`LoopbackPlane::open`] can reassemble.
const MAX_SCRATCH_BUFFERS: usize = 64;

/// One end of a tunnel in memory.
pub struct LoopbackPlane<F: Format> {
    plane: Plane<F>,
    shared: Arc<Shared<F>>,
    arena: Arena,
    merger: Merger<'static>,
    rx: Rx,
    filter_hook: Option<Box<FilterHook>>,
}

/// The destination of a received packet.
#[derive(Debug)]
pub enum LoopbackOutput<'d, 'a> {
    /// The packet would be written to the TUN device.
    Tun(&'d Write<'d, 'a>),
    /// The frame would be written to the TAP device with this VLAN's tag.
    Tagged(VlanId, &'d Write<'d, 'a>),
    /// The packet would be relayed to this peer.
    Peer(PeerId, &'a [u8]),
    /// Sealed packets, of this length except the last, that would be relayed to this peer.
    Sealed(PeerId, usize, &'a [u8]),
}

impl<F: Format> LoopbackPlane<F> {
    /// Creates an end without peers. `tun` states whether packets are delivered to a device.
    pub fn new(
        relay: Relay,
        client: bool,
        tun: bool,
        clock: fn() -> Instant,
    ) -> io::Result<(Self, Upcalls<F::Types>)> {
        Self::idle(relay, client, tun, false, clock)
    }

    /// Does the same as [`Self::new`], with a TAP device to deliver to: packets are frames.
    pub fn ethernet(
        relay: Relay,
        client: bool,
        clock: fn() -> Instant,
    ) -> io::Result<(Self, Upcalls<F::Types>)> {
        Self::idle(relay, client, true, true, clock)
    }

    fn idle(
        relay: Relay,
        client: bool,
        tun: bool,
        ethernet: bool,
        clock: fn() -> Instant,
    ) -> io::Result<(Self, Upcalls<F::Types>)> {
        let (plane, shared, upcalls) =
            Plane::idle(relay, client, tun, ethernet, Offloads::ALL, 1, clock)?;
        let arena = Arena::new::<F>(512 << 10);
        let (merger, rx) = (Merger::default(), Rx::default());
        Ok((Self { plane, shared, arena, merger, rx, filter_hook: None }, upcalls))
    }

    /// Creates another handle of this end for another thread, like that of a second worker.
    pub fn another_worker(&self) -> Self {
        Self {
            plane: self.plane.another_worker(),
            shared: Arc::clone(&self.shared),
            arena: Arena::new::<F>(512 << 10),
            merger: Merger::default(),
            rx: Rx::default(),
            filter_hook: self.shared.filter_hook(),
        }
    }

    /// Installs a packet filter, which stays for the lifetime of this end.
    pub fn filter(&mut self, filtered: FilterConfig) {
        // An earlier filter stays in place, as in a plane.
        let _ = self.shared.filtered.set(filtered);
        self.filter_hook = self.shared.filter_hook();
    }

    /// Takes the replies to rejected packets since the last call.
    pub fn answers(&mut self) -> Vec<Vec<u8>> {
        self.filter_hook
            .as_mut()
            .map(|filter_hook| mem::take(&mut filter_hook.injected.replies))
            .unwrap_or_default()
            .into_iter()
            .map(|(_, answer)| answer)
            .collect()
    }

    /// Returns the plane, for commands, counters and totals. Commands that send find no socket.
    pub fn plane(&self) -> &Plane<F> {
        &self.plane
    }

    /// Seals a super-packet as a TUN device would deliver it and passes each sealed train to
    /// `send`: the bytes, and the length of each datagram but the last.
    pub fn seal(
        &mut self,
        vnet: &VnetHeader,
        packet: &mut [u8],
        mut send: impl FnMut(&[u8], usize),
    ) {
        if let Err(reason) = self.try_seal(vnet, packet, &mut send) {
            self.shared.stats.drop(reason);
        }
    }

    fn try_seal(
        &mut self,
        vnet: &VnetHeader,
        packet: &mut [u8],
        send: &mut impl FnMut(&[u8], usize),
    ) -> Result<(), DropReason> {
        if self.shared.ethernet.is_some() {
            return self.try_seal_frame(vnet, packet, send);
        }
        let tables = &self.shared.tables;
        let ip = Ip::parse(packet).ok_or(DropReason::NotIp)?;
        let owner = tables.routes.load().owner(ip.destination);
        let peers = tables.peers.load();
        let Some(slot) = owner.and_then(|owner| peers.slot(owner)) else {
            let reason = self.shared.unrouted(ip.destination);
            let handed_up = self.shared.hand_up_segments(vnet, (packet, 0));
            return if handed_up { Ok(()) } else { Err(reason) };
        };
        let peer = slot.channel(packet).clone();
        if self.filter_hook.is_some()
            && let Some(done) = self.seal_evaluated(&peer, vnet, packet, send)
        {
            return done;
        }
        let segments = Segments::new(vnet, packet).map_err(|_| DropReason::TunMalformed)?;
        self.seal_for(&peer, segments, send)
    }

    /// Seals a packet after its evaluation; returns `None` if the packet passes unchanged.
    #[cold]
    fn seal_evaluated(
        &mut self,
        peer: &Peer<F>,
        vnet: &VnetHeader,
        packet: &[u8],
        send: &mut impl FnMut(&[u8], usize),
    ) -> Option<Result<(), DropReason>> {
        let mut pieces = match self.evaluate((Some(peer.first), None), vnet, packet) {
            HookVerdict::Pass => return None,
            HookVerdict::Consumed => return Some(Ok(())),
            HookVerdict::Fragments(pieces) => pieces,
        };
        let plain = VnetHeader::default();
        Some(pieces.iter_mut().try_for_each(|piece| {
            let segments = Segments::new(&plain, piece);
            self.seal_for(peer, segments.map_err(|_| DropReason::TunMalformed)?, send)
        }))
    }

    /// Evaluates a packet of the device.
    fn evaluate(
        &mut self,
        (to, vlan): (Option<PeerId>, Option<VlanId>),
        vnet: &VnetHeader,
        packet: &[u8],
    ) -> HookVerdict {
        let Some(filter_hook) = &mut self.filter_hook else { return HookVerdict::Pass };
        let mut filter_burst = filter_hook.burst((self.shared.clock)());
        let course = (Direction::FromDevice(to), vlan);
        filter_burst.evaluate(course, vnet, packet, false, &self.shared.stats)
    }

    #[cold]
    fn try_seal_frame(
        &mut self,
        vnet: &VnetHeader,
        frame: &mut [u8],
        send: &mut impl FnMut(&[u8], usize),
    ) -> Result<(), DropReason> {
        let shared = Arc::clone(&self.shared);
        let Some(switch) = &shared.ethernet else { return Ok(()) };
        let peers = shared.tables.peers.load();
        if shared.hand_up.get().is_some() {
            let (last, sender) = (&mut None, &mut None);
            let EgressFrame { peer, l2 } =
                outward_of_known(switch, &peers, frame, (last, sender), shared.clock)?;
            let Some(peer) = peer else {
                let _ = shared.hand_up_segments(vnet, (frame, l2));
                return Ok(());
            };
            let segments = Segments::behind(vnet, frame, l2);
            return self.seal_for(&peer, segments.map_err(|_| DropReason::TunMalformed)?, send);
        }
        let mut vnet = *vnet;
        let (vlan, len) = match switch.vlans.get() {
            None => (None, frame.len()),
            Some(vlans) => {
                let (vlan, len) = take_vlan(vlans, &mut vnet, frame)?;
                (Some(vlan), len)
            }
        };
        let frame = frame.get(..len).unwrap_or(&[]);
        let EgressFrame { peer, l2 } =
            outward(switch, shared.client, &peers, (frame, vlan), &mut None)?;
        let to = peer.as_ref().map(|peer| peer.id);
        if !matches!(self.evaluate((to, vlan), &vnet, frame), HookVerdict::Pass) {
            return Ok(());
        }
        let routes = shared.tables.routes.load();
        let to: Vec<_> = match peer {
            Some(peer) => vec![channel(&peers, peer, frame.get(l2..).unwrap_or(&[]))],
            None => {
                shared.report_wanted(&routes, frame);
                switch.receivers(&peers, &routes, vlan).cloned().collect()
            }
        };
        to.iter().try_for_each(|peer| {
            let mut copy = frame.to_vec();
            let segments = Segments::behind(&vnet, &mut copy, l2);
            self.seal_for(peer, segments.map_err(|_| DropReason::TunMalformed)?, send)
        })
    }

    #[inline(always)]
    fn seal_for(
        &mut self,
        peer: &Peer<F>,
        mut segments: Segments<'_>,
        send: &mut impl FnMut(&[u8], usize),
    ) -> Result<(), DropReason> {
        let mut tx = peer.lock_tx();
        let (keys, spec) = (peer.keys.load(), peer.settings.load());
        if let Some(hand_up) = self.shared.hand_up.get() {
            let largest = usize::from(spec.mtu.largest);
            if keys.primary.is_none() || (largest != 0 && segments.longest() > largest) {
                self.shared.hand_up_rest(hand_up, segments);
                return Ok(());
            }
        }
        let key = keys.primary.as_ref().ok_or(DropReason::NoKey)?;
        if peer.exceeds_rate(&spec, self.shared.clock, segments.packet().len()) {
            return Err(DropReason::RateLimited);
        }
        let mut shape = PacketShape::<F>::of(&spec, 64);
        if self.shared.hand_up.get().is_some() {
            shape.mtu = behind_tag(shape.mtu, segments.l2());
        }
        loop {
            let mut sealer = key.sealer(&mut tx, &spec);
            let progress = self.arena.egress(&mut segments, &mut sealer, &shape, |reason| {
                self.shared.stats.drop(reason);
            });
            drop(sealer);
            let (mut packets, mut bytes) = (0, 0);
            for span in self.arena.spans() {
                let train = self.arena.bytes(span);
                packets += span.count as u64;
                bytes += train.len() as u64;
                send(train, span.segment);
            }
            peer.sent((self.shared.clock)(), packets, bytes);
            self.arena.clear();
            if progress == SealProgress::Done {
                return Ok(());
            }
        }
    }

    /// Opens one received buffer and passes on the resulting packets.
    pub fn open(
        &mut self,
        link: &Link,
        segment: usize,
        data: &mut [u8],
        deliver: impl FnMut(LoopbackOutput<'_, '_>),
    ) {
        self.open_apart(link, (segment, segment), data, deliver);
    }

    /// Does the same as [`Self::open`] for datagrams of `segment` bytes that begin `stride` bytes apart.
    pub fn open_apart(
        &mut self,
        link: &Link,
        (segment, stride): (usize, usize),
        data: &mut [u8],
        deliver: impl FnMut(LoopbackOutput<'_, '_>),
    ) {
        let layout = Datagrams::new(segment, stride, data);
        if self.shared.needs_scratch.load(Relaxed) {
            return self.open_pieces(link, layout, data, deliver);
        }
        self.process_received(deliver, |ingress| ingress.datagrams(link, layout, data));
    }

    /// Does the same as [`Self::open_apart`] for packets that may be reassembled from fragments.
    #[cold]
    fn open_pieces(
        &mut self,
        link: &Link,
        layout: Datagrams,
        data: &mut [u8],
        deliver: impl FnMut(LoopbackOutput<'_, '_>),
    ) {
        let mut scratch = vec![Vec::new(); MAX_SCRATCH_BUFFERS];
        self.process_received(deliver, |ingress| {
            ingress.set_scratch(&mut scratch);
            ingress.datagrams(link, layout, data);
        });
    }

    /// Opens the next bytes of the only stream, split at any point, and passes on the resulting
    /// packets.
    ///
    /// # Errors
    /// The reason why the stream must end.
    pub fn open_stream(
        &mut self,
        link: &Link,
        max: usize,
        data: &mut [u8],
        deliver: impl FnMut(LoopbackOutput<'_, '_>),
    ) -> Result<(), StreamEnd> {
        let mut joined = Vec::new();
        let data = if self.rx.partial.is_empty() {
            data
        } else {
            joined.extend_from_slice(&self.rx.partial);
            joined.extend_from_slice(data);
            &mut joined[..]
        };
        let taken =
            self.process_received(deliver, |ingress| ingress.stream(link, max, &mut *data))?;
        self.rx.keep(data.get(taken..).unwrap_or(&[]));
        Ok(())
    }

    #[inline(always)]
    fn process_received<'b, T>(
        &mut self,
        mut deliver: impl FnMut(LoopbackOutput<'_, '_>),
        feed: impl FnOnce(&mut Ingress<'b, '_, F>) -> T,
    ) -> T {
        let shared = &self.shared;
        let (peers, routes) = (shared.tables.peers.load(), shared.tables.routes.load());
        let merger = mem::take(&mut self.merger).recycle(true, true);
        let mut ingress =
            Ingress::new(shared, &peers, &routes, (shared.clock)(), merger, Vec::new());
        let fed = feed(&mut ingress);
        let Ingress { merger, mut relays, mut lazy, .. } = ingress;
        let mut written = |write: &Write<'_, '_>| {
            let vlan = shared.vlan_of(&peers, PeerId(write.origin()));
            match shared.device_tag(vlan) {
                None => deliver(LoopbackOutput::Tun(write)),
                Some(tag) => deliver(LoopbackOutput::Tagged(tag, write)),
            }
        };
        match &mut self.filter_hook {
            None => merger.writes().for_each(|write| written(&write)),
            Some(filter_hook) => {
                let floods = lazy.as_mut().map(|lazy| &mut lazy.floods);
                let tables = (&**shared, &**peers);
                let passes = evaluate_received(filter_hook, tables, &merger, &mut relays, floods);
                let passing = merger.writes().zip(passes).filter(|(_, passes)| *passes);
                passing.for_each(|(write, _)| written(&write));
            }
        }
        relays.into_iter().for_each(|one| deliver(LoopbackOutput::Peer(one.to, one.packet)));
        for train in lazy.as_deref().map_or(&[][..], |lazy| &lazy.spliced) {
            deliver(LoopbackOutput::Sealed(train.to, train.segment, train.packets));
        }
        for (sender, frame) in lazy.as_deref().map_or(&[][..], |lazy| &lazy.floods) {
            let vlan = shared.vlan_of(&peers, *sender);
            let others = peers.ends().filter(|peer| peer.id != *sender && peer.vlan == vlan);
            others.for_each(|peer| deliver(LoopbackOutput::Peer(peer.id, frame)));
        }
        self.merger = merger.recycle(true, true);
        fed
    }
}

/// Evaluates the writes and returns which of them pass; removes rejected packets from the other
/// lists.
#[cold]
fn evaluate_received<'a, F: Format>(
    filter_hook: &mut FilterHook,
    (shared, peers): (&Shared<F>, &PeerTable<F>),
    merger: &Merger<'a>,
    relays: &mut Vec<Relayed<'a>>,
    floods: Option<&mut Vec<(PeerId, &'a [u8])>>,
) -> Vec<bool> {
    let mut filter_burst = filter_hook.burst((shared.clock)());
    // Fragments pass once their packet is complete: the last one represents all of them here.
    let vlan_of = |peer| shared.vlan_of(peers, peer);
    let passes = merger.writes().map(|write| {
        let vlan = vlan_of(PeerId(write.origin()));
        let verdict = filter_burst.evaluate_write(&write, vlan, &shared.stats);
        !matches!(verdict, HookVerdict::Consumed)
    });
    let passes = passes.collect();
    let explicit = shared.relay.needs_rule();
    filter_hook::evaluate_relayed(&mut filter_burst, relays, vlan_of, explicit, &shared.stats);
    if let Some(floods) = floods {
        filter_hook::evaluate_floods(&mut filter_burst, floods, vlan_of, explicit, &shared.stats);
    }
    passes
}

impl<F: Format> std::fmt::Debug for LoopbackPlane<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoopbackPlane").field("plane", &self.plane).finish_non_exhaustive()
    }
}
