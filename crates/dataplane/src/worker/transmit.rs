//! From the TUN device and other peers to a socket.

mod frames;
mod reader;
mod train_sender;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use adit_engine::command::PeerSpec;
use adit_engine::{PeerId, SocketId, VlanId};
use adit_linux::tun::TunQueue;
use adit_linux::udp::{MAX_SEGMENTS, SendScratch, UdpSocket};
use adit_wire::split::Segments;

use super::SharedRef;
use super::filter;
use super::stream::TxPath;
use super::too_big::TooBig;
use crate::egress::{Arena, PacketShape, SealProgress, TrainSpan};
use crate::filter_hook::{FilterHook, Relayed};
use crate::format::Format;
use crate::hand_up::behind_tag;
use crate::key::Key;
use crate::peer::{Peer, Tx};
use crate::shared::Shared;
use crate::sockets::find_socket;
use crate::splice::Spliced;
use crate::stats::{Downgrade, DropReason};
use crate::stream::Stream;
use frames::Frames;
use reader::{Reader, Routed};
use train_sender::{SendFailure, TRAINS, TrainSender};

/// The maximum number of bytes sealed before they are sent: a few super-packets, a part of a core's L2 cache.
const ARENA: usize = 256 << 10;
/// The space that an ordinary super-packet needs when sealed: 64 KiB and the overhead of 64 segments.
const SUPER_PACKET: usize = 72 << 10;
/// The maximum number of reads from the TUN device before the socket and control messages to the same peer get their turn.
const READS_PER_TURN: usize = 128;
/// The maximum number of bytes read per turn: three super-packets, as many as the arena holds sealed. Packets that
/// arrive meanwhile, such as the reply to a ping, wait for no more than these.
const BYTES_PER_TURN: usize = 190 << 10;
/// The number of consecutive trains refused with EINVAL after which GSO is switched off. A single refusal may mean that
/// the path MTU is exceeded (older kernels), or that a source address no longer exists.
const EINVAL_TRAINS: u32 = 16;
/// A Linux error number, the same on every architecture that we build for.
const EIO: i32 = 5;

/// Seals packets into an arena and sends from it.
pub(super) struct Transmitter<F: Format> {
    pub(super) shared: SharedRef<F>,
    /// The worker's index.
    index: usize,
    pub(super) arena: Arena,
    scratch: SendScratch,
    /// Relayed packets that arrived one by one and are sent as one train.
    joined: Vec<u8>,
    pub(super) state: State<F>,
    frames: Frames<F>,
    /// Fragments that its reader has yet to return.
    pieces: VecDeque<(Option<VlanId>, Vec<u8>)>,
    einval: u32,
    too_big: TooBig,
    /// With `passtos`, the type of service of the packets in the arena.
    tos: Option<u8>,
}

/// The reason why the transmitter waits. In every state but `Idle` the TUN device is not read.
#[derive(Default)]
pub(super) enum State<F: Format> {
    #[default]
    Idle,
    /// A socket that another worker waits for; the reader's buffer holds a super-packet for its peer.
    Parked(Routed<F>),
    /// Space in a client's socket.
    Blocked(BlockedTrains<F>),
    /// A client's stream that still has queued packets.
    Full(Arc<Stream>),
}

/// A client's trains, in the arena, that its full socket did not accept.
pub(super) struct BlockedTrains<F: Format> {
    peer: Arc<Peer<F>>,
    socket: SocketId,
    /// The first train not sent.
    next: usize,
    /// The next super-packet, in the reader's buffer: for another peer, or with another type of service.
    parked: Option<Routed<F>>,
}

/// The destination of a burst.
#[derive(Copy, Clone)]
struct Destination<'t, F: Format> {
    peer: &'t Arc<Peer<F>>,
    spec: &'t PeerSpec<F::Types>,
    tx_path: &'t TxPath,
}

impl<F: Format> Destination<'_, F> {
    /// Returns the reason why a packet of this length must not be sealed.
    #[inline]
    fn refusal(&self, shared: &Shared<F>, len: usize) -> Option<DropReason> {
        if let Some(reason) = self.tx_path.refusal(shared.client, len) {
            return Some(reason);
        }
        let exceeds = self.peer.exceeds_rate(self.spec, shared.clock, len);
        exceeds.then_some(DropReason::RateLimited)
    }
}

impl<F: Format> Transmitter<F> {
    pub(super) fn new(shared: SharedRef<F>, index: usize) -> Self {
        Self {
            shared,
            index,
            arena: Arena::new::<F>(ARENA),
            scratch: SendScratch::new(TRAINS),
            joined: Vec::new(),
            state: State::Idle,
            frames: Frames::default(),
            pieces: VecDeque::new(),
            einval: 0,
            too_big: TooBig::default(),
            tos: None,
        }
    }

    /// Releases unused memory.
    pub(super) fn release_memory(&mut self) {
        if !self.waits_for_stream() && matches!(self.state, State::Idle) {
            self.arena.clear();
            self.arena.release_memory();
        }
    }

    /// Returns the socket that a client waits for.
    pub(super) fn blocked_on(&self) -> Option<SocketId> {
        match &self.state {
            State::Blocked(blocked) => Some(blocked.socket),
            State::Idle | State::Parked(_) | State::Full(_) => None,
        }
    }

    fn is_blocked(&self) -> bool {
        matches!(self.state, State::Blocked(_))
    }

    /// Returns whether the reader's buffer holds a super-packet, so the TUN device must not be read.
    pub(super) fn is_parked(&self) -> bool {
        let parked = match &self.state {
            State::Parked(_) => true,
            State::Blocked(blocked) => blocked.parked.is_some(),
            State::Idle | State::Full(_) => false,
        };
        parked || !self.pieces.is_empty()
    }

    /// Reads packets from the device, up to a cap, and sends them. Returns `false` if the device has been removed.
    pub(super) fn tun_turn(
        &mut self,
        tun: &TunQueue,
        packet: &mut [u8],
        filter_hook: Option<&mut FilterHook>,
    ) -> bool {
        if self.is_blocked() || self.waits_for_stream() {
            return true;
        }
        let shared = self.shared.clone();
        let (version, peers, routes) = shared.tables.current();
        let mut frames = mem::take(&mut self.frames);
        let mut pieces = mem::take(&mut self.pieces);
        let mut reader = Reader {
            tun,
            packet,
            version,
            peers,
            routes,
            own: shared.own.load(),
            shared: &shared,
            frames: &mut frames,
            filter_hook,
            pieces: &mut pieces,
            reads_left: READS_PER_TURN,
            bytes_left: BYTES_PER_TURN,
            alive: true,
        };
        let mut next = self.take_parked().or_else(|| reader.next());
        while let Some(routed) = next {
            next = self.peer_turn(&mut reader, routed);
        }
        let Reader { alive, peers, .. } = reader;
        if let (Some(switch), false) = (&shared.ethernet, frames.floods.is_empty()) {
            self.flood(&frames.floods, &peers, switch);
        }
        frames.forget();
        frames.floods.clear();
        self.frames = frames;
        self.pieces = pieces;
        alive
    }

    /// Seals and sends super-packets while they are for the same peer, under one lock. Returns the first one that is
    /// for another peer.
    fn peer_turn(&mut self, reader: &mut Reader<'_, F>, first: Routed<F>) -> Option<Routed<F>> {
        let peer = Arc::clone(&first.peer);
        let mut tx = peer.lock_tx();
        if tx.blocked {
            // Another worker waits for the full socket; it wakes this one.
            tx.parked = true;
            self.state = State::Parked(first);
            return None;
        }
        let keys = peer.keys.load();
        let spec = peer.settings.load();
        let tx_path = TxPath::of(&self.shared, &spec);
        tx_path.begin(keys.primary.as_deref(), &mut tx);
        let to = Destination { peer: &peer, spec: &spec, tx_path: &tx_path };
        let mut current = first;
        let next = loop {
            if self.shared.copies_tos.load(Relaxed)
                && !self.follow_tos(reader, &current, to, &mut tx)
            {
                break Some(current);
            }
            match &keys.primary {
                Some(key) => match to.refusal(&self.shared, current.len) {
                    None => self.seal(reader, &current, key, to, &mut tx),
                    Some(reason) => self.shared.stats.drop(reason),
                },
                None => {
                    let packet = reader.packet.get_mut(..current.len).unwrap_or(&mut []);
                    if !self.shared.hand_up_segments(&current.vnet, (packet, current.l2)) {
                        self.shared.stats.drop(DropReason::NoKey);
                    }
                }
            }
            if self.arena.room() < SUPER_PACKET || tx_path.is_due(&self.arena) {
                self.flush(to, &mut tx);
            }
            if !matches!(self.state, State::Idle) {
                break None;
            }
            match reader.next() {
                Some(same) if Arc::ptr_eq(&same.peer, &peer) => current = same,
                other => break other,
            }
        };
        self.flush(to, &mut tx);
        drop(tx);
        if let Some(key) = &keys.primary {
            self.shared.notify_near_limit(&peer, key);
        }
        if let State::Blocked(blocked) = &mut self.state {
            // The arena belongs to the blocked peer, so a packet for another peer must wait.
            blocked.parked = next;
            return None;
        }
        self.tos = None;
        next
    }

    /// Lets the packets in the arena have the type of service of the super-packet in the reader's buffer, which is sealed
    /// next: those with another one are sent first. Returns `false` if the socket does not accept them.
    #[cold]
    fn follow_tos(
        &mut self,
        reader: &Reader<'_, F>,
        routed: &Routed<F>,
        to: Destination<'_, F>,
        tx: &mut Tx<F>,
    ) -> bool {
        if matches!(to.tx_path, TxPath::Stream(_)) {
            return true;
        }
        let packet = reader.packet.get(routed.l2..routed.len).unwrap_or(&[]);
        let tos = adit_wire::ip::tos(packet);
        if tos != self.tos {
            self.flush(to, tx);
            if self.is_blocked() {
                return false;
            }
            self.tos = tos;
        }
        true
    }

    /// Seals the super-packet in the reader's buffer.
    fn seal(
        &mut self,
        reader: &mut Reader<'_, F>,
        routed: &Routed<F>,
        key: &Key<F>,
        to: Destination<'_, F>,
        tx: &mut Tx<F>,
    ) {
        let shared = self.shared.clone();
        let stats = &shared.stats;
        let packet = reader.packet.get_mut(..routed.len).unwrap_or(&mut []);
        let Ok(mut segments) = Segments::behind(&routed.vnet, packet, routed.l2) else {
            return stats.drop(DropReason::TunMalformed);
        };
        let largest = to.spec.mtu.largest;
        let hand_up = shared.hand_up.get();
        let l2 = if hand_up.is_some() { 0 } else { routed.l2 };
        let longest = segments.longest().saturating_sub(l2);
        if largest != 0 && longest > usize::from(largest) {
            if let Some(hand_up) = hand_up {
                return shared.hand_up_rest(hand_up, segments);
            }
            let frame = (segments.packet(), routed.l2);
            let device = (reader.tun, shared.device_tag(to.peer.vlan));
            self.too_big.notify((shared.clock)(), device, frame, largest);
        }
        let mut shape = self.shape(to.spec);
        if hand_up.is_some() {
            shape.mtu = behind_tag(shape.mtu, routed.l2);
        }
        let before = self.arena.datagrams();
        loop {
            let progress = {
                let mut sealer = key.sealer(tx, to.spec);
                self.arena.egress(&mut segments, &mut sealer, &shape, |r| stats.drop(r))
            };
            if progress == SealProgress::Done {
                break;
            }
            self.flush(to, tx);
            if self.is_blocked() {
                // Only segments so tiny that one super-packet overflows the arena get here.
                return stats.drop(DropReason::SocketFull);
            }
        }
        stats.own().tun_read.record(self.arena.datagrams().saturating_sub(before));
    }

    fn shape(&self, spec: &PeerSpec<F::Types>) -> PacketShape<F> {
        let gso = self.shared.stats.gates.udp_gso.load(Relaxed);
        let train = if gso { MAX_SEGMENTS } else { 1 };
        PacketShape::of(spec, train)
    }

    /// Sends relayed packets to their peers.
    pub(super) fn relay(&mut self, relays: &[Relayed<'_>]) {
        let shared = self.shared.clone();
        let peers = shared.tables.peers.load();
        for run in relays.chunk_by(|a, b| a.to == b.to) {
            let Some(Relayed { to, .. }) = run.first() else { continue };
            let Some(end) = peers.slot(*to) else {
                shared.stats.drop_many(DropReason::NoRoute, run.len());
                continue;
            };
            if shared.ethernet.is_some() || !end.is_divided() {
                self.copy_to(&end.peer, run.iter().map(|one| one.packet), run.len());
                continue;
            }
            let channel = |one: &Relayed<'_>| end.channel(one.packet);
            for run in run.chunk_by(|a, b| Arc::ptr_eq(channel(a), channel(b))) {
                let peer = run.first().map_or(&end.peer, channel);
                self.copy_to(peer, run.iter().map(|one| one.packet), run.len());
            }
        }
    }

    /// Seals and sends one packet to a peer.
    pub(super) fn send_to(&mut self, to: PeerId, packet: &[u8]) {
        let shared = self.shared.clone();
        let peers = shared.tables.peers.load();
        match peers.slot(to) {
            Some(end) if shared.ethernet.is_some() => {
                self.copy_to(&end.peer, [packet].into_iter(), 1);
            }
            Some(end) => self.copy_to(end.channel(packet), [packet].into_iter(), 1),
            None => shared.stats.drop(DropReason::NoRoute),
        }
    }

    /// Sends sealed packets to the addresses of their receivers, unchanged and without fragmentation.
    pub(super) fn splice(&mut self, spliced: &[Spliced<'_>]) {
        let shared = self.shared.clone();
        let (peers, sockets) = (shared.tables.peers.load(), shared.tables.sockets.load());
        for run in spliced.chunk_by(|a, b| a.to == b.to) {
            let count = |trains: &[Spliced<'_>]| trains.iter().map(Spliced::count).sum();
            let Some(peer) = run.first().and_then(|train| peers.get(train.to)) else {
                shared.stats.drop_many(DropReason::NoRoute, count(run));
                continue;
            };
            let spec = peer.settings.load();
            if let Some(stream) = shared.tables.streams.of(&spec.link) {
                shared.splice_to_stream(&stream, run);
                continue;
            }
            let socket = spec.link.socket().and_then(|id| find_socket(&sockets, id, self.index));
            let Some(socket) = socket else {
                shared.stats.drop_many(DropReason::NoSocket, count(run));
                continue;
            };
            let mut train_sender = TrainSender::new(socket, &mut self.scratch, spec.link);
            train_sender.splice(&shared.stats, run, &mut self.joined);
        }
    }

    /// Answers requests for the sizes of datagrams received and sent.
    pub(super) fn report_sizes(&mut self, size_requests: &[PeerId]) {
        let shared = self.shared.clone();
        let peers = shared.tables.peers.load();
        for peer in size_requests.iter().filter_map(|id| peers.get(*id)) {
            let mut tx = peer.lock_tx();
            if tx.blocked || self.is_blocked() {
                continue;
            }
            if let Err(reason) = shared.report_sizes(peer, &mut tx, &mut self.arena) {
                shared.stats.drop(reason);
            }
            self.arena.clear();
        }
    }

    /// Sends a keepalive ping.
    pub(super) fn ping(&mut self, peer: &Peer<F>) {
        let mut tx = peer.lock_tx();
        if tx.blocked || self.is_blocked() {
            return;
        }
        let shared = self.shared.clone();
        let sent = shared.send_message(peer, &mut tx, F::PING, &mut self.arena);
        self.arena.clear();
        // Without a key there is no session to keep alive yet.
        if let Err(reason) = sent
            && reason != DropReason::NoKey
        {
            shared.stats.drop(reason);
        }
    }

    /// Sends the sealed packets. Packets that a full socket does not accept are kept on a client and dropped on a
    /// server, where one slow path must not stall the others.
    fn flush(&mut self, to: Destination<'_, F>, tx: &mut Tx<F>) {
        let Destination { peer, spec, tx_path } = to;
        if self.arena.is_empty() || self.is_blocked() {
            return;
        }
        if let TxPath::Stream(stream) = tx_path {
            return self.flush_stream(peer, stream);
        }
        let shared = self.shared.clone();
        let sockets = shared.tables.sockets.load();
        let id = spec.link.socket();
        let Some((id, socket)) =
            id.and_then(|id| Some((id, find_socket(&sockets, id, self.index)?)))
        else {
            shared.stats.drop_many(DropReason::NoSocket, self.arena.datagrams());
            return self.arena.clear();
        };
        let next = self.send(peer, spec, socket, tx, 0);
        if next < self.arena.spans().len() && shared.client {
            tx.blocked = true;
            let (peer, parked) = (Arc::clone(peer), self.take_parked());
            self.state = State::Blocked(BlockedTrains { peer, socket: id, next, parked });
            return;
        }
        let unsent = self.arena.spans().get(next..).unwrap_or(&[]);
        shared.stats.drop_many(DropReason::SocketFull, unsent.iter().map(|span| span.count).sum());
        self.arena.clear();
    }

    /// Takes a parked super-packet, if the transmitter waits for nothing else.
    fn take_parked(&mut self) -> Option<Routed<F>> {
        match mem::take(&mut self.state) {
            State::Parked(routed) => Some(routed),
            State::Idle | State::Full(_) => None,
            blocked @ State::Blocked(_) => {
                self.state = blocked;
                None
            }
        }
    }

    /// Sends the remaining trains of a client, then queued control messages, as far as the socket accepts them.
    pub(super) fn resume(&mut self) {
        let BlockedTrains { peer, socket: id, next, parked } = match mem::take(&mut self.state) {
            State::Blocked(blocked) => blocked,
            other => return self.state = other,
        };
        let shared = self.shared.clone();
        let mut tx = peer.lock_tx();
        let spec = peer.settings.load();
        let sockets = shared.tables.sockets.load();
        let mut next = next;
        match find_socket(&sockets, id, self.index) {
            Some(socket) => next = self.send(&peer, &spec, socket, &mut tx, next),
            None => {
                let unsent = self.arena.spans().get(next..).unwrap_or(&[]);
                let packets = unsent.iter().map(|span| span.count).sum();
                shared.stats.drop_many(DropReason::NoSocket, packets);
                next = usize::MAX;
            }
        }
        if next < self.arena.spans().len() {
            drop(tx);
            self.state = State::Blocked(BlockedTrains { peer, socket: id, next, parked });
            return;
        }
        self.state = parked.map_or(State::Idle, State::Parked);
        self.arena.clear();
        self.tos = None;
        tx.blocked = false;
        if mem::take(&mut tx.parked) {
            shared.wake_all();
        }
        while let Some(message) = tx.waiting.pop_front() {
            if let Err(reason) = shared.send_message(&peer, &mut tx, &message, &mut self.arena) {
                shared.stats.drop(reason);
            }
        }
        self.arena.clear();
    }

    /// Sends trains from number `next` on; returns the first that a full socket did not accept.
    fn send(
        &mut self,
        peer: &Peer<F>,
        spec: &PeerSpec<F::Types>,
        socket: &UdpSocket,
        tx: &mut Tx<F>,
        mut next: usize,
    ) -> usize {
        let Self { shared, arena, scratch, einval, tos, .. } = self;
        let stats = &shared.stats;
        let mut train_sender = TrainSender::new(socket, scratch, spec.link).with_tos(*tos);
        let (mut packets, mut bytes, mut longest) = (0, 0, 0);
        while let Some(rest) = arena.spans().get(next..).filter(|rest| !rest.is_empty()) {
            let gso = stats.gates.udp_gso.load(Relaxed);
            let singly = |span: &TrainSpan| {
                span.count > 1 && (!gso || (tx.oversize != 0 && span.segment >= tx.oversize))
            };
            let together = rest.iter().take(TRAINS).take_while(|span| !singly(span)).count();
            let (sent, failure) = train_sender.trains(arena, rest.get(..together).unwrap_or(&[]));
            for span in rest.iter().take(sent) {
                stats.own().sent.record(span.count);
                packets += span.count as u64;
                bytes += arena.bytes(span).len() as u64;
                longest = longest.max(span.segment);
                if span.count > 1 {
                    *einval = 0;
                }
            }
            next += sent;
            let (Some(failed), true) = (rest.get(sent), sent < together || together == 0) else {
                continue;
            };
            // One train remains that could not be sent as a whole, or is known to be too long for that.
            let failure = match failure.map(|error| SendFailure::of(&error, failed.count)) {
                None => SendFailure::Oversize,
                Some(SendFailure::Full) => break,
                Some(failure) => failure,
            };
            next += 1;
            if failure == SendFailure::Fatal {
                stats.drop_many(DropReason::SendFailed, failed.count);
                continue;
            }
            let (sent, full) = train_sender.singles(arena.bytes(failed), failed.segment);
            packets += sent as u64;
            bytes += (sent * failed.segment) as u64;
            (0..sent).for_each(|_| stats.own().sent.record(1));
            let reason = if full { DropReason::SocketFull } else { DropReason::SendFailed };
            stats.drop_many(reason, failed.count.saturating_sub(sent));
            match failure {
                SendFailure::Oversize => tx.oversize = failed.segment,
                // The datagrams were sent although the train was not, so it was GSO that was refused.
                SendFailure::Device if sent > 0 => stats.gates.downgrade(Downgrade::GsoDevice),
                SendFailure::Invalid if sent > 0 => {
                    *einval += 1;
                    if *einval >= EINVAL_TRAINS {
                        stats.gates.downgrade(Downgrade::GsoInvalid);
                    }
                }
                _ => {}
            }
        }
        if packets > 0 {
            if longest > usize::from(peer.longest_sent.load(Relaxed)) {
                let longest = u16::try_from(longest).unwrap_or(u16::MAX);
                peer.longest_sent.fetch_max(longest, Relaxed);
            }
            peer.sent((shared.clock)(), packets, bytes);
        }
        next
    }
}
