//! Two point-to-point ends and the link between them, in virtual time.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::command::{Counters, Float, Keepalive, KeySlot};
use adit_engine::{Engine, Instant, Link, PeerId, SocketId, Target, Transport, UnixTime};
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientEvent, Remote, TunnelConfig};
use adit_openvpn::data_format::{Command, DataKey, Input, Notice, OpenVpn, Outbox, Output};
use adit_openvpn::p2p::{PeerConfig, PeerEngine, StaticConfig, StaticEngine};
use adit_sim::{Impairment, Pipe};

pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000_000);
pub(crate) const UNIX: UnixTime = UnixTime(1_800_000_000);

/// Returns the other end as a `remote`, whose address the simulated link knows.
pub(crate) fn remote(transport: Transport) -> Remote {
    let host = "peer.example".into();
    Remote { target: Target { host, port: 1194, transport, ..Target::default() } }
}

/// The configuration of an end, from which it can be created again.
#[derive(Clone)]
pub(crate) enum Config {
    Static(Box<StaticConfig>),
    Peer(Box<PeerConfig>),
}

pub(crate) enum End {
    Static(Box<StaticEngine>),
    Peer(Box<PeerEngine>),
}

impl End {
    pub(crate) fn new(config: Config, seed: [u8; 32], now: Instant) -> Self {
        match config {
            Config::Static(config) => Self::Static(Box::new(StaticEngine::new(*config))),
            Config::Peer(config) => {
                let engine = PeerEngine::new(*config, seed, now, UNIX);
                Self::Peer(Box::new(engine.expect("a fitting wrapping")))
            }
        }
    }

    pub(crate) fn engine(&mut self) -> &mut dyn Engine<Event = ClientEvent, Format = OpenVpn> {
        match self {
            Self::Static(engine) => &mut **engine,
            Self::Peer(engine) => &mut **engine,
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        match self {
            Self::Static(engine) => engine.dropped(),
            Self::Peer(engine) => engine.dropped(),
        }
    }

    pub(crate) fn shutdown(&mut self, now: Instant, out: &mut Outbox<ClientEvent>) {
        match self {
            Self::Static(engine) => engine.shutdown(now, out),
            Self::Peer(engine) => engine.shutdown(now, out),
        }
    }

    pub(crate) fn path_changed(
        &mut self,
        now: Instant,
        stale: bool,
        out: &mut Outbox<ClientEvent>,
    ) {
        match self {
            Self::Static(engine) => engine.path_changed(now, stale, out),
            Self::Peer(engine) => engine.path_changed(now, stale, out),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let deadline = match self {
            Self::Static(engine) => engine.deadline(),
            Self::Peer(engine) => engine.deadline(),
        };
        deadline.map(|(at, _)| at)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Packet {
    Control(Vec<u8>),
    Data(Data),
}

/// A data packet, with the key that sealed it, its number with that key, and its contents.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub wire_id: Option<u32>,
    key_id: u8,
    key: [u8; 64],
    /// The time when the sender started its count, and the count.
    pub id: (u64, u64),
    pub message: Vec<u8>,
}

struct Peer {
    link: Link,
    wire_id: Option<u32>,
    float: bool,
    keepalive: Keepalive,
    primary: Option<Box<DataKey>>,
    secondary: Option<Box<DataKey>>,
    next: (u64, u64),
    seen: HashSet<(u64, u64)>,
    used: HashSet<u8>,
    last_sent: Instant,
    last_heard: Instant,
    silent: bool,
    missed: bool,
}

impl Peer {
    /// Restarts the count of packets, as on each new stream.
    fn begin(&mut self, now: Instant) {
        if self.link.is_stream() {
            self.next = (now.as_nanos().max(self.next.0 + 1), 1);
        }
    }
}

/// The outcome of a packet on a stream.
pub(crate) enum Taken {
    Notices(Vec<Notice>),
    /// The packet ends its stream.
    Refused,
    /// The packet is from a stream that is not the peer's.
    Elsewhere,
}

/// A data plane for one peer at a time. It manages keys, counts packets, and sends pings.
#[derive(Default)]
pub(crate) struct Plane {
    peers: BTreeMap<PeerId, Peer>,
    latest: Option<PeerId>,
    /// The numbers of the packets that were delivered inside the tunnel.
    pub delivered: Vec<(u64, u64)>,
    pub refused: u64,
    /// The traffic that this model reports for every peer.
    pub traffic: adit_engine::command::Traffic,
    pub messages: Vec<Vec<u8>>,
}

impl Plane {
    pub(crate) fn apply(
        &mut self,
        now: Instant,
        op: Command,
    ) -> (Option<Notice>, Option<(Link, Packet)>) {
        match op {
            Command::AddPeer(id, spec) => {
                let peer = Peer {
                    link: spec.link,
                    wire_id: spec.layout.wire_id,
                    float: spec.float == Float::Follow,
                    keepalive: spec.keepalive,
                    primary: None,
                    secondary: None,
                    next: (now.as_nanos(), 1),
                    seen: HashSet::new(),
                    used: HashSet::new(),
                    last_sent: now,
                    last_heard: now,
                    silent: false,
                    missed: false,
                };
                assert!(self.peers.insert(id, peer).is_none(), "two peers of one number");
                self.latest = Some(id);
            }
            Command::DelPeer(id) => {
                self.peers.remove(&id).expect("it was added");
                if self.latest == Some(id) {
                    self.latest = self.peers.keys().next().copied();
                }
                return (Some(Notice::PeerGone(id, Counters::default())), None);
            }
            Command::SetLink(id, link) => {
                let peer = self.peer(id);
                peer.link = link;
                peer.begin(now);
            }
            Command::SetKeepalive(id, keepalive) => {
                let peer = self.peer(id);
                peer.keepalive = keepalive;
                (peer.last_heard, peer.silent, peer.missed) = (now, false, true);
            }
            Command::InstallKey(id, KeySlot::Primary, key) => self.peer(id).primary = Some(key),
            Command::InstallKey(id, KeySlot::Secondary, key) => self.peer(id).secondary = Some(key),
            Command::SwapKeys(id) => {
                let peer = self.peer(id);
                std::mem::swap(&mut peer.primary, &mut peer.secondary);
            }
            Command::DelKey(id, KeySlot::Primary) => self.peer(id).primary = None,
            Command::DelKey(id, KeySlot::Secondary) => self.peer(id).secondary = None,
            Command::SendData(id, message) => return (None, self.seal(now, id, message)),
            Command::ReadTraffic(id) => return (Some(Notice::Traffic(id, self.traffic)), None),
            Command::SetRoutes(..)
            | Command::SetMtu(..)
            | Command::SetRates(..)
            | Command::ProbePath(..)
            | Command::AdmitLink(_)
            | Command::DismissLink(_) => {}
            Command::AllowStation(..)
            | Command::SetRelay(..)
            | Command::AddSplice(_)
            | Command::DelSplice(_)
            | Command::LimitSplices(_) => unreachable!("OpenVPN has no relays"),
        }
        (None, None)
    }

    fn peer(&mut self, id: PeerId) -> &mut Peer {
        self.peers.get_mut(&id).expect("verbs name peers that exist")
    }

    pub(crate) fn seal(
        &mut self,
        now: Instant,
        id: PeerId,
        message: Vec<u8>,
    ) -> Option<(Link, Packet)> {
        let peer = self.peers.get_mut(&id)?;
        let key = peer.primary.as_ref()?;
        let (key_id, secret) = (key.key_id, key.seal.cipher);
        let number = peer.next;
        peer.next.1 += 1;
        peer.last_sent = now;
        let data = Data { wire_id: peer.wire_id, key_id, key: secret, id: number, message };
        (peer.link.remote().port() != 0).then_some((peer.link, Packet::Data(data)))
    }

    /// Sends a packet from inside the tunnel to the latest peer.
    pub(crate) fn traffic(&mut self, now: Instant) -> Option<(Link, Packet)> {
        self.latest.and_then(|peer| self.seal(now, peer, Vec::new()))
    }

    fn receive(&mut self, now: Instant, from: Link, data: &Data) -> Vec<Notice> {
        let at_home = |peer: &Peer| peer.link.remote() == from.remote();
        let opens = |key: &DataKey| key.key_id == data.key_id && key.open.cipher == data.key;
        let found = self.peers.iter_mut().find(|(_, peer)| {
            (at_home(peer) || peer.float)
                && peer.primary.iter().chain(&peer.secondary).any(|key| opens(key))
        });
        let Some((&id, peer)) = found else {
            self.refused += 1;
            return Vec::new();
        };
        if peer.seen.iter().any(|seen| seen.0 > data.id.0) || !peer.seen.insert(data.id) {
            self.refused += 1;
            return Vec::new();
        }
        (peer.last_heard, peer.silent) = (now, false);
        let mut notices = Vec::new();
        if !at_home(peer) {
            peer.link = from;
            notices.push(Notice::Floated(id, from));
        }
        if std::mem::take(&mut peer.missed) {
            notices.push(Notice::PeerActive(id));
        }
        if peer.used.insert(data.key_id) {
            notices.push(Notice::KeyFirstUse(id, data.key_id));
        }
        if data.message.is_empty() {
            self.delivered.push(data.id);
        } else {
            self.messages.push(data.message.clone());
            notices.push(Notice::InBand(id, data.message.clone()));
        }
        notices
    }

    /// Does the same as [`Plane::receive`], for a packet on a stream.
    pub(crate) fn receive_on(&mut self, now: Instant, from: Link, data: &Data) -> Taken {
        let at = |(_, peer): &(&PeerId, &mut Peer)| peer.link == from || peer.float;
        let Some((&id, peer)) = self.peers.iter_mut().find(at) else { return Taken::Elsewhere };
        let mut keys = peer.primary.iter().chain(&peer.secondary);
        let opens = keys.any(|key| key.key_id == data.key_id && key.open.cipher == data.key);
        let late = peer.seen.iter().any(|seen| seen.0 > data.id.0);
        if !opens || late || !peer.seen.insert(data.id) {
            self.refused += 1;
            return Taken::Refused;
        }
        let mut notices = Vec::new();
        if peer.link != from {
            peer.link = from;
            peer.begin(now);
            notices.push(Notice::Floated(id, from));
        }
        (peer.last_heard, peer.silent) = (now, false);
        if std::mem::take(&mut peer.missed) {
            notices.push(Notice::PeerActive(id));
        }
        if peer.used.insert(data.key_id) {
            notices.push(Notice::KeyFirstUse(id, data.key_id));
        }
        self.delivered.push(data.id);
        Taken::Notices(notices)
    }

    /// Returns the peer that was added last.
    pub(crate) fn newest(&self) -> Option<PeerId> {
        self.latest
    }

    /// Returns the link to a peer.
    pub(crate) fn link(&self, id: PeerId) -> Option<Link> {
        self.peers.get(&id).map(|peer| peer.link)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = |peer: &Peer| {
            let Keepalive { interval, timeout } = peer.keepalive;
            let ping = (!interval.is_zero()).then(|| peer.last_sent + interval);
            let silent = (!timeout.is_zero() && !peer.silent).then(|| peer.last_heard + timeout);
            [ping, silent].into_iter().flatten().min()
        };
        self.peers.values().filter_map(due).min()
    }

    pub(crate) fn sweep(&mut self, now: Instant) -> (Vec<Notice>, Vec<(Link, Packet)>) {
        let mut notices = Vec::new();
        let mut pings = Vec::new();
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            let Peer { keepalive: Keepalive { interval, timeout }, last_sent, .. } = *self.peer(id);
            if !interval.is_zero() && last_sent + interval <= now {
                self.peer(id).last_sent = now;
                pings.extend(self.seal(now, id, Vec::new()));
            }
            let peer = self.peer(id);
            if !timeout.is_zero() && !peer.silent && peer.last_heard + timeout <= now {
                (peer.silent, peer.missed) = (true, true);
                notices.push(Notice::PeerSilent(id));
            }
        }
        (notices, pings)
    }

    pub(crate) fn wire_ids(&self) -> Vec<Option<u32>> {
        self.peers.values().map(|peer| peer.wire_id).collect()
    }
}

/// One end with its address and its outgoing link.
pub(crate) struct Node {
    pub end: Option<End>,
    pub plane: Plane,
    pub events: Vec<ClientEvent>,
    pub address: SocketAddr,
    pub out: Pipe<Packet>,
    /// All packets that it ever sent.
    pub sent: Vec<Packet>,
    config: Config,
    seed: u8,
    /// The socket that was dialled last.
    socket: u16,
}

pub(crate) struct World {
    pub now: Instant,
    pub nodes: [Node; 2],
    /// The answers to unauthenticated senders.
    pub strays: Vec<(SocketAddr, Vec<u8>)>,
    /// The maximum number of outputs of one input.
    pub most_outputs: usize,
}

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

pub(crate) fn address(n: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n as u8 + 1], 1194))
}

impl World {
    pub(crate) fn new(configs: [Config; 2], impairment: &Impairment, seed: u64) -> Self {
        let mut n = 0;
        let nodes = configs.map(|config| {
            let bytes = seed_bytes(seed, n);
            let node = Node {
                end: Some(End::new(config.clone(), bytes, START)),
                plane: Plane::default(),
                events: Vec::new(),
                address: address(n.into()),
                out: Pipe::new(impairment.clone(), bytes),
                sent: Vec::new(),
                config,
                seed: n,
                socket: 0,
            };
            n += 1;
            node
        });
        Self { now: START, nodes, strays: Vec::new(), most_outputs: 0 }
    }

    /// Runs until `done`, or until this time has passed. Returns true if `done` was reached.
    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        let mut idle = 0;
        loop {
            self.step();
            if done(self) {
                return true;
            }
            match self.next() {
                Some(at) if at <= end => {
                    idle = if at > self.now { 0 } else { idle + 1 };
                    assert!(idle < 1000, "time stands still");
                    self.now = at.max(self.now);
                }
                _ => {
                    self.now = end;
                    return false;
                }
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let due = |node: &Node| {
            let end = node.end.as_ref();
            let engine = end.and_then(End::deadline);
            let plane = end.and_then(|_| node.plane.deadline());
            [engine, plane, node.out.next_arrival()]
        };
        self.nodes.iter().flat_map(due).flatten().min()
    }

    fn step(&mut self) {
        for n in [A, B] {
            let node = &mut self.nodes[n];
            if node.end.as_ref().and_then(End::deadline).is_some_and(|at| at <= self.now) {
                self.feed(n, Input::Tick);
            }
            if self.nodes[n].end.is_some() {
                let (notices, pings) = self.nodes[n].plane.sweep(self.now);
                pings.into_iter().for_each(|(_, packet)| self.send(n, packet));
                notices.into_iter().for_each(|notice| self.feed(n, Input::Notice(notice)));
            }
            while let Some(packet) = self.nodes[n].out.pop(self.now) {
                self.deliver(1 - n, self.nodes[n].address, packet);
            }
        }
    }

    /// Delivers a packet from any address to an end.
    pub(crate) fn deliver(&mut self, n: usize, from: SocketAddr, packet: Packet) {
        if self.nodes[n].end.is_none() {
            return;
        }
        let link = Link::datagram(SocketId(self.nodes[n].socket), None, from);
        match packet {
            Packet::Control(mut bytes) => self.feed(n, Input::ControlPacket(link, &mut bytes)),
            Packet::Data(data) => {
                for notice in self.nodes[n].plane.receive(self.now, link, &data) {
                    self.feed(n, Input::Notice(notice));
                }
            }
        }
    }

    fn send(&mut self, n: usize, packet: Packet) {
        self.nodes[n].sent.push(packet.clone());
        self.nodes[n].out.push(self.now, packet);
    }

    /// Sends a packet from inside an end's tunnel.
    pub(crate) fn traffic(&mut self, n: usize) {
        let Some(id) = self.nodes[n].plane.latest else { return };
        if let Some((_, packet)) = self.nodes[n].plane.seal(self.now, id, Vec::new()) {
            self.send(n, packet);
        }
    }

    pub(crate) fn feed(&mut self, n: usize, input: Input<'_>) {
        let mut out = Outbox::new();
        let Some(end) = &mut self.nodes[n].end else { return };
        end.engine().handle(self.now, input, &mut out);
        self.perform(n, out);
    }

    pub(crate) fn act(
        &mut self,
        n: usize,
        act: impl FnOnce(&mut End, Instant, &mut Outbox<ClientEvent>),
    ) {
        let mut out = Outbox::new();
        act(self.nodes[n].end.as_mut().expect("alive"), self.now, &mut out);
        self.perform(n, out);
    }

    fn perform(&mut self, n: usize, mut out: Outbox<ClientEvent>) {
        let mut again = Vec::new();
        let mut outputs = 0;
        while let Some(output) = out.pop() {
            outputs += 1;
            let node = &mut self.nodes[n];
            match output {
                Output::Send(link, frame) => {
                    // Answers to unauthenticated senders go elsewhere.
                    if link.remote() == address(1 - n) || link.remote() == self.nodes[1 - n].address
                    {
                        self.send(n, Packet::Control(frame));
                    } else {
                        self.strays.push((link.remote(), frame));
                    }
                }
                Output::Plane(op) => {
                    let (notice, packet) = node.plane.apply(self.now, op);
                    again.extend(notice.map(Again::Notice));
                    if let Some((_, packet)) = packet {
                        self.send(n, packet);
                    }
                }
                Output::Dial(_) => again.push(Again::Up),
                Output::Event(event) => node.events.push(event),
                Output::Hangup(_) => {}
                Output::AuthRequest(..) => panic!("no question is expected"),
            }
        }
        self.most_outputs = self.most_outputs.max(outputs);
        for item in again {
            match item {
                Again::Notice(notice) => self.feed(n, Input::Notice(notice)),
                Again::Up => {
                    self.nodes[n].socket += 1;
                    let socket = SocketId(self.nodes[n].socket);
                    let link = Link::datagram(socket, None, address(1 - n));
                    self.feed(n, Input::LinkUp(link));
                }
            }
        }
    }

    /// Kills an end without notice.
    pub(crate) fn kill(&mut self, n: usize) {
        self.nodes[n].end = None;
        self.nodes[n].plane = Plane::default();
    }

    /// Creates an end again, with a different random seed.
    pub(crate) fn revive(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.seed += 2;
        let seed = seed_bytes(77, node.seed);
        node.end = Some(End::new(node.config.clone(), seed, self.now));
    }

    /// Returns the number of times that an end has connected.
    pub(crate) fn ups(&self, n: usize) -> usize {
        self.nodes[n].events.iter().filter(|e| matches!(e, ClientEvent::Up(_))).count()
    }

    pub(crate) fn rekeys(&self, n: usize) -> usize {
        self.nodes[n].events.iter().filter(|e| matches!(e, ClientEvent::Rekeyed { .. })).count()
    }

    pub(crate) fn both_up(&self, times: usize) -> bool {
        self.ups(A) >= times && self.ups(B) >= times
    }

    pub(crate) fn tunnel(&self, n: usize) -> &TunnelConfig {
        let up = self.nodes[n].events.iter().rev().find_map(|event| match event {
            ClientEvent::Up(tunnel) => Some(&**tunnel),
            _ => None,
        });
        up.expect("it is up")
    }

    pub(crate) fn restarts(&self, n: usize) -> Vec<String> {
        self.nodes[n]
            .events
            .iter()
            .filter_map(|event| match event {
                ClientEvent::Restarting(reason) => Some(reason.to_string()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn stopped(&self, n: usize) -> Option<&Reason> {
        self.nodes[n].events.iter().find_map(|event| match event {
            ClientEvent::Stopped(why) => Some(why),
            _ => None,
        })
    }

    /// Returns whether a packet in each direction gets through now.
    pub(crate) fn passes(&mut self) -> bool {
        let before = self.nodes.each_ref().map(|node| node.plane.delivered.len());
        self.traffic(A);
        self.traffic(B);
        self.run(Duration::from_millis(500), |_| false);
        self.nodes.iter().zip(before).all(|(node, before)| node.plane.delivered.len() > before)
    }
}

enum Again {
    Notice(Notice),
    Up,
}

fn seed_bytes(seed: u64, which: u8) -> [u8; 32] {
    let mut bytes = [which; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes
}
