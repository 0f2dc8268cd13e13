//! Turns received datagrams into packets for the TUN device or other peers, and into upcalls. No I/O.

mod ethernet;
mod hand_up;
mod layout;
mod splice;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use adit_engine::command::{Float, PeerSpec, SpliceLabel};
use adit_engine::{Instant, Link, Notice, PeerId, Rate};
use adit_wire::ethernet::Mac;
use adit_wire::ip::Ip;
use adit_wire::merge::Merger;
use adit_wire::mss;

use crate::ethernet::StationId;
use crate::filter_hook::Relayed;
use crate::format::{Format, FormatKey as _, Header, InBand, Kind, Opener as _, Origin, Rejected};
use crate::key::Key;
use crate::peer::Peer;
use crate::replay::ReplayCheck;
use crate::routes::Routes;
use crate::scratch::{Buffers, Scratch};
use crate::shared::Shared;
use crate::splice::Spliced;
use crate::stats::DropReason;
use crate::stream::frames::{self, Next};
use crate::stream::{MAX_UNAUTHENTICATED_FRAMES, StreamEnd};
use crate::tables::PeerTable;
use crate::upcall::MAX_CONTROL;
pub(crate) use layout::Datagrams;
use layout::{Framed, RunLayout};

/// The longest in-band message that is passed to the control plane.
const MAX_IN_BAND: usize = 2048;
/// The rate at which one peer may move to another address.
const MOVES: Rate = Rate::per_second(100);

/// The results of one received burst. Borrows the receive buffers: nothing is copied.
pub struct Ingress<'a, 's, F: Format> {
    shared: &'s Shared<F>,
    peers: &'s PeerTable<F>,
    routes: &'s Routes,
    now: Instant,
    /// Packets for the TUN device.
    pub(crate) merger: Merger<'a>,
    /// Packets for other peers, where the plane relays them.
    pub(crate) relays: Vec<Relayed<'a>>,
    /// Allocated on first use.
    pub(crate) lazy: Option<Box<LazyState<'a>>>,
    /// The source address checked last, and whether it belongs to that run's peer.
    source: Option<(PeerId, IpAddr)>,
    /// The destination checked last, if it is this host's.
    local: Option<IpAddr>,
    /// Unauthenticated control packets received on this stream so far.
    pub(crate) unauthenticated: u32,
    /// The reason why the stream of these packets must end.
    stream_error: Option<StreamEnd>,
}

/// State that most bursts of a TUN device do not need, allocated on first use.
#[derive(Default)]
pub(crate) struct LazyState<'a> {
    /// Frames for all peers except their sender.
    pub floods: Vec<(PeerId, &'a [u8])>,
    /// The station that sent the last frame, and the peer that it is behind.
    sender: Option<(PeerId, Mac)>,
    /// The station looked up last, and the peer that it is behind, if known.
    receiver: Option<(StationId, Option<PeerId>)>,
    /// Peers that requested the sizes of datagrams received here, once each.
    pub size_requests: Vec<PeerId>,
    /// Sealed packets that are relayed to other peers.
    pub spliced: Vec<Spliced<'a>>,
    /// Buffers for packets that are reassembled or decompressed.
    pub buffers: Buffers<'a>,
}

/// One run of packets of one peer under one key.
struct Run<'r, F: Format> {
    peer: &'r Arc<Peer<F>>,
    spec: Arc<PeerSpec<F::Types>>,
    link: &'r Link,
    /// Whether the packets come from the peer's current address.
    same_path: bool,
}

/// The content of one authentic packet.
enum Content<'a> {
    Packet(&'a mut [u8]),
    /// A ping, an in-band message or nothing: no packet.
    Other {
        empty: bool,
    },
}

impl<'a, 's, F: Format> Ingress<'a, 's, F> {
    #[inline]
    pub(crate) fn new(
        shared: &'s Shared<F>,
        peers: &'s PeerTable<F>,
        routes: &'s Routes,
        now: Instant,
        merger: Merger<'a>,
        relays: Vec<Relayed<'a>>,
    ) -> Self {
        Self {
            shared,
            peers,
            routes,
            now,
            merger,
            relays,
            lazy: None,
            source: None,
            local: None,
            unauthenticated: 0,
            stream_error: None,
        }
    }

    /// Provides buffers for packets that are reassembled or decompressed. Without them such packets are dropped.
    #[cold]
    pub fn set_scratch(&mut self, memory: &'a mut [Vec<u8>]) {
        self.lazy.get_or_insert_default().buffers = Buffers::new(memory);
    }

    /// Processes received datagrams.
    pub(crate) fn datagrams(&mut self, link: &Link, layout: Datagrams, data: &'a mut [u8]) {
        if data.is_empty() {
            return self.shared.stats.drop(DropReason::Empty);
        }
        let (received, count) = (&self.shared.stats.own().received, layout.count(data));
        if layout.has_gaps() {
            // The kernel has coalesced none of them.
            received.record_single(count);
        } else {
            received.record(count);
        }
        let headerless = self.is_headerless(link);
        let mut rest = data;
        while !rest.is_empty() {
            let header =
                if headerless { Some(Header::NONE) } else { F::header(layout.first(rest)) };
            let Some(header) = header else {
                (_, rest) = layout.split(rest, 1);
                self.shared.stats.drop(DropReason::Short);
                continue;
            };
            let (run, tail) = layout.split_run(rest, header.len);
            rest = tail;
            self.run(link, header.kind, layout, run);
        }
    }

    /// Processes bytes of a stream whose packets are at most `max` bytes long. Returns the length of all whole packets;
    /// the rest must be passed again, followed by the next bytes.
    ///
    /// # Errors
    /// The reason why the stream must end. Packets before the bad one were processed.
    pub fn stream(
        &mut self,
        link: &Link,
        max: usize,
        data: &'a mut [u8],
    ) -> Result<usize, StreamEnd> {
        let headerless = self.is_headerless(link);
        let (mut taken, mut packets) = (0usize, 0usize);
        let mut rest = data;
        let end = loop {
            let frames::Run { len, count, next } = frames::run::<F>(rest, max, headerless);
            let (run, tail) = rest.split_at_mut(len);
            rest = tail;
            (taken, packets) = (taken.saturating_add(len), packets.saturating_add(count));
            if count > 0 {
                let header = run.get(frames::LENGTH..).and_then(F::header);
                match if headerless { Some(Header::NONE) } else { header } {
                    Some(header) => self.run(link, header.kind, Framed(count), run),
                    None => self.shared.stats.drop_many(DropReason::Short, count),
                }
            }
            match next {
                _ if self.stream_error.is_some() => break self.stream_error,
                Next::Other => {}
                Next::Partial => break None,
                Next::Bad => {
                    self.shared.stats.drop(DropReason::BadLength);
                    break Some(StreamEnd::BadLength);
                }
            }
        };
        self.shared.stats.own().received.record(packets);
        end.map_or(Ok(taken), Err)
    }

    /// Processes packets of the same kind, key and peer.
    fn run(&mut self, link: &Link, kind: Kind, layout: impl RunLayout, run: &'a mut [u8]) {
        let stats = &self.shared.stats;
        let count = layout.count(run);
        match kind {
            Kind::Data { peer, key } => {
                let wire_id = peer;
                let Some(peer) = self.find_peer(link, wire_id) else {
                    return self.unknown(link, wire_id, layout, run, DropReason::UnknownPeer);
                };
                let keys = peer.keys.load();
                let Some(key) = keys.find(key).filter(|key| key.format.accepts(run)) else {
                    return self.unknown(link, wire_id, layout, run, DropReason::UnknownKey);
                };
                let spec = peer.settings.load_full();
                let same_path = Peer::<F>::same_path(&spec, link);
                if !same_path && !may_float(&spec, link, key) {
                    let label = wire_id.map(SpliceLabel::PeerId);
                    return self.splice(link, label, layout, run, Some(DropReason::WrongAddress));
                }
                self.open_run(Run { peer: &peer, spec, link, same_path }, key, layout, run);
            }
            Kind::Control => {
                layout.packets(run).for_each(|packet| self.control(link, packet));
            }
            Kind::Transit(label) => self.splice(link, Some(label), layout, run, None),
            Kind::Unknown => stats.drop_many(DropReason::UnknownKind, count),
        }
    }

    /// Returns whether packets on this link are data without headers, regardless of their first byte.
    #[inline]
    fn is_headerless(&self, link: &Link) -> bool {
        self.shared.tables.has_headerless_keys.load(Relaxed) && self.has_headerless_key(link)
    }

    #[cold]
    #[inline(never)]
    fn has_headerless_key(&self, link: &Link) -> bool {
        self.find_peer(link, None).is_some_and(|peer| {
            peer.keys.load().primary.as_ref().is_some_and(|key| key.is_headerless())
        })
    }

    fn control(&mut self, link: &Link, packet: &[u8]) {
        let Shared { stats, tables, upcalls, .. } = self.shared;
        if self.stream_error.is_some() {
            // The stream must end; further packets would only fill the queues.
            return;
        }
        if packet.len() > MAX_CONTROL {
            return stats.drop(DropReason::ControlTooLong);
        }
        let session = self.shared.client || tables.by_address(link).is_some();
        let taken = if session || tables.is_admitted(link) {
            upcalls.frame(stats, *link, packet, session)
        } else {
            self.unauthenticated = self.unauthenticated.saturating_add(u32::from(link.is_stream()));
            self.unauthenticated <= MAX_UNAUTHENTICATED_FRAMES
                && upcalls.unauthenticated(stats, *link, packet)
        };
        if !taken && link.is_stream() {
            // A stream does not retransmit the packet: make the peer reconnect at once.
            self.stream_error = Some(StreamEnd::Flood);
        }
    }

    /// Finds the peer of a packet. A server looks up the peer-id, or the address if packets carry none. A client, whose
    /// packets carry the id that the server assigned, looks up the address, or else uses the newest session.
    #[inline(always)]
    fn find_peer(&self, link: &Link, peer_id: Option<u32>) -> Option<Arc<Peer<F>>> {
        let by_address =
            || self.shared.tables.by_address(link).and_then(|id| self.peers.get(id)).cloned();
        if self.shared.client {
            let latest = self.peers.latest()?;
            if Peer::<F>::same_path(&latest.settings.load(), link) {
                return Some(Arc::clone(latest));
            }
            return by_address().or_else(|| Some(Arc::clone(latest)));
        }
        match peer_id {
            Some(id) => self.peers.get(PeerId(id)).cloned(),
            None => by_address(),
        }
    }

    fn open_run<C: RunLayout>(
        &mut self,
        mut run: Run<'_, F>,
        key: &Key<F>,
        layout: C,
        data: &'a mut [u8],
    ) {
        let stats = &self.shared.stats;
        let (mut packets, mut bytes) = (0u64, 0u64);
        let encapsulated = F::encapsulation(&run.spec).is_some();
        // Locks that are held for the run, not per packet, and taken in this order.
        let mut opener = key.opener();
        let mut reassembly = F::fragments(&run.spec).then(|| run.peer.lock_reassembly());
        let several_paths = run.spec.float == Float::Accept;
        let limit = run.spec.rates.received;
        // A single stream has no path MTU to measure.
        let longest = if C::LOSSLESS && !several_paths { 0 } else { layout.longest(data) };
        self.merger.set_origin(run.peer.first.0);
        for datagram in layout.packets(data) {
            let len = datagram.len();
            let (replay, id, text) = match opener.open(datagram) {
                Ok(opened) => opened,
                Err(reason) => {
                    stats.drop(reason);
                    if reason == DropReason::BadTag {
                        self.shared.report_unreadable(run.peer.id);
                    }
                    // On one of several paths, a relay may have forwarded packets from anyone.
                    if C::LOSSLESS && !several_paths {
                        self.stream_error = Some(StreamEnd::BadPacket);
                        break;
                    }
                    continue;
                }
            };
            packets = packets.saturating_add(1);
            bytes = bytes.saturating_add(len as u64);
            let text = if !encapsulated || text.is_empty() {
                text
            } else {
                let origin = Origin { key: key.generation, packet_id: id, now: self.now };
                match self.decapsulate(&run, reassembly.as_deref_mut(), origin, text) {
                    Some(text) => text,
                    None => continue,
                }
            };
            let content = self.classify(&run, text);
            let empty = matches!(content, Content::Other { empty: true });
            let newest = replay == ReplayCheck::Newest && run.peer.is_newest(key);
            if !run.same_path && run.spec.float == Float::Follow && newest && !empty {
                // Recorded before the move, so that a worker with a packet under an older key sees it.
                run.peer.used(key);
                run.same_path = self.float(&run, key);
            }
            if let Content::Packet(packet) = content {
                // Only authentic packets count, so that a stranger cannot use up a peer's rate.
                match limit {
                    Some(limit) if !run.peer.takes_received(self.now, packet.len(), limit) => {
                        stats.drop(DropReason::RateLimited);
                    }
                    _ => self.deliver(&run, packet),
                }
            }
        }
        drop(opener);
        if let Some(lost) =
            reassembly.map(|mut reassembly| F::take_lost(&mut reassembly)).filter(|n| *n > 0)
        {
            stats.drop_many(DropReason::FragmentLost, lost);
        }
        if packets > 0 && longest > usize::from(run.peer.longest_received.load(Relaxed)) {
            let longest = u16::try_from(longest).unwrap_or(u16::MAX);
            run.peer.longest_received.fetch_max(longest, Relaxed);
        }
        self.finish_run(run.peer, key, packets, bytes);
    }

    /// Updates counters and liveness after a run, and sends its notices.
    #[inline(always)]
    fn finish_run(&self, peer: &Peer<F>, key: &Key<F>, packets: u64, bytes: u64) {
        let Shared { stats, upcalls, .. } = self.shared;
        if packets > 0 {
            peer.count_received(self.now, packets, bytes);
            peer.used(key);
            key.count_opened(packets, bytes);
            if peer.take_activity_wanted() {
                upcalls.notice(stats, Notice::PeerActive(peer.id));
            }
            if key.first_use() {
                upcalls.notice(stats, Notice::KeyFirstUse(peer.id, key.id()));
            }
        }
        self.shared.notify_near_limit(peer, key);
    }

    /// Removes the encapsulation that the peer added before sealing. Returns `None` if the text holds no packet or only
    /// a fragment of an incomplete one. Counts violations of the negotiated format, and notifies the control plane of
    /// the first.
    fn decapsulate(
        &mut self,
        run: &Run<'_, F>,
        reassembly: Option<&mut F::Reassembly>,
        origin: Origin,
        text: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        let Shared { stats, upcalls, .. } = self.shared;
        let scratch = &mut Scratch(&mut self.lazy);
        match F::decapsulate(&run.spec, reassembly, origin, text, scratch) {
            Ok(packet) => packet,
            Err(Rejected { reason, violation }) => {
                stats.drop(reason);
                if let Some(violation) = violation
                    && !run.peer.violation_reported.swap(true, Relaxed)
                {
                    upcalls.notice(stats, Notice::Violation(run.peer.id, violation));
                }
                None
            }
        }
    }

    /// Separates in-band messages from packets.
    #[inline(always)]
    fn classify<'p>(&mut self, run: &Run<'_, F>, packet: &'p mut [u8]) -> Content<'p> {
        let Shared { stats, upcalls, .. } = self.shared;
        if packet.is_empty() {
            return Content::Other { empty: true };
        }
        let Some(in_band) = F::in_band(packet) else { return Content::Packet(F::packet(packet)) };
        run.peer.count_in_band_received(packet.len());
        match in_band {
            InBand::Ping => {}
            InBand::SizeRequest => {
                let size_requests = &mut self.lazy.get_or_insert_default().size_requests;
                if !size_requests.contains(&run.peer.id) {
                    size_requests.push(run.peer.id);
                }
            }
            InBand::Message => {
                let message = packet.get(..packet.len().min(MAX_IN_BAND)).unwrap_or(&[]).to_vec();
                upcalls.notice(stats, Notice::InBand(run.peer.id, message));
            }
        }
        Content::Other { empty: false }
    }

    /// Handles the newest packet when it came from another address: sends to that address from now on, unless it
    /// belongs to another peer.
    fn float(&self, run: &Run<'_, F>, key: &Key<F>) -> bool {
        let Shared { stats, tables, upcalls, .. } = self.shared;
        let tell = || upcalls.notice(stats, Notice::Floated(run.peer.id, *run.link));
        // Each move takes a lock that all workers share. If this packet exceeds the rate, a later one moves the peer.
        let moved = run.peer.moves().take(self.now, 1, MOVES)
            && tables.float(run.peer, *run.link, || run.peer.is_newest(key), tell);
        if !moved {
            stats.drop(DropReason::WrongAddress);
        }
        moved
    }

    /// Passes an authentic packet to the TUN device or to another peer.
    #[inline(always)]
    fn deliver(&mut self, run: &Run<'_, F>, packet: &'a mut [u8]) {
        if let Some(switch) = &self.shared.ethernet {
            return self.deliver_frame(run, switch, packet);
        }
        let stats = &self.shared.stats;
        let Some(ip) = Ip::parse(packet) else {
            return stats.drop(DropReason::NotIp);
        };
        if let Some(hand_up) = self.shared.hand_up.get() {
            return self.deliver_or_hand_up(run, hand_up, ip.destination, packet);
        }
        // The routes are those of the first channel.
        let id = run.peer.first;
        if self.source != Some((id, ip.source)) {
            if self.routes.owner(ip.source) != Some(id) {
                return stats.drop(DropReason::of_unowned(ip.source, DropReason::SourceSpoofed));
            }
            self.source = Some((id, ip.source));
        }
        mss::clamp(packet, run.spec.mtu.mss4, run.spec.mtu.mss6);
        if self.shared.relays() {
            match self.routes.owner(ip.destination) {
                Some(target) if self.shared.relay.is_inside(id, target) => {
                    return if self.shared.may_relay() {
                        self.relays.push(Relayed { from: id, to: target, packet });
                    } else {
                        stats.drop(DropReason::PeerToPeer);
                    };
                }
                // It may be for this host, or for a peer without a session yet.
                None if self.shared.relay.is_client(id) => {
                    let _ = self.shared.unrouted(ip.destination);
                }
                _ => {}
            }
        }
        if !self.shared.has_tun {
            return stats.drop(DropReason::NoTun);
        }
        self.merger.push(packet);
    }
}

/// Returns whether packets under the peer's keys may come from another path. A stream never floats, because it is one client's connection
/// alone. But without a session, as with a static key, a new connection has no other way to prove which peer it belongs to.
fn may_float<F: Format>(spec: &PeerSpec<F::Types>, link: &Link, key: &Key<F>) -> bool {
    match spec.float {
        Float::Refuse => false,
        Float::Accept => true,
        Float::Follow => match (spec.link.is_stream(), link.is_stream()) {
            (false, false) => true,
            (true, true) => key.is_headerless(),
            _ => false,
        },
    }
}
