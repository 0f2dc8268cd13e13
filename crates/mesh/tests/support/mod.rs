//! Nodes, their data planes and the links between them, in virtual time.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use adit_crypto::DirectionKey;
use adit_crypto::sign::SigningKey;
use adit_engine::command::{Float, Keepalive, KeySlot, Traffic};
use adit_engine::{Engine, Instant, Link, PeerId, UnixTime};
use adit_mesh::session::{
    Event, KeyHash, MeshId, Policy, Protocol, Reason, SessionConfig, SessionEngine, SessionNumber,
};
use adit_openvpn::data_format::{Command, DataKey, Input, Notice, Outbox, Output};
use adit_openvpn::keys::Role;
use adit_sim::{Impairment, Pipe};

pub(crate) const MESH: MeshId = [0xa5; 16];
pub(crate) const UNIX: UnixTime = UnixTime(1_800_000_000);
/// The number of ids that channels of a node may have.
pub(crate) const IDS: u32 = 40;

const START: Instant = Instant::from_nanos(1_000_000_000_000);

pub(crate) fn policy() -> Policy {
    Policy::default()
}

pub(crate) fn signing_key(node: usize) -> SigningKey {
    SigningKey::from_seed(&[node as u8 + 1; 32]).unwrap()
}

/// Returns the path to a node.
pub(crate) fn link(node: usize) -> Link {
    Link::datagram(Default::default(), None, ([192, 0, 2, node as u8], 5000).into())
}

/// A channel in a node's data plane.
pub(crate) struct Peer {
    pub link: Link,
    pub wire_id: u32,
    pub floats: bool,
    /// The first channel of the session, if this is a further one.
    pub channel_of: Option<PeerId>,
    pub keepalive: Keepalive,
    keys: HashMap<u8, DataKey>,
    slots: [Option<u8>; 2],
}

impl Peer {
    fn primary(&self) -> &DataKey {
        &self.keys[&self.slots[0].expect("a primary key")]
    }

    /// Returns the key that the channel sends with.
    pub(crate) fn sealing(&self) -> Vec<u8> {
        bytes(&self.primary().seal)
    }

    /// Returns the key that the channel receives with.
    pub(crate) fn opening(&self) -> Vec<u8> {
        bytes(&self.primary().open)
    }
}

fn bytes(key: &DirectionKey) -> Vec<u8> {
    [key.cipher, key.hmac].concat()
}

pub(crate) struct Node {
    pub engine: SessionEngine,
    pub events: Vec<Event>,
    pub peers: BTreeMap<PeerId, Peer>,
    /// The keys installed so far.
    pub sealing_keys: Vec<Vec<u8>>,
    pub opening_keys: Vec<Vec<u8>>,
    /// The number of packets sent.
    pub sent: usize,
    /// Whether removed channels are not reported as such.
    pub keeps_removed: bool,
    removed: Vec<PeerId>,
    /// The traffic of each channel that has no entry in the other field.
    traffic: Traffic,
    pub traffic_of: HashMap<PeerId, Traffic>,
    policy: Policy,
}

pub(crate) struct World {
    pub now: Instant,
    pub nodes: Vec<Node>,
    pipes: BTreeMap<(usize, usize), Pipe<Vec<u8>>>,
    /// Packets to the first node reach the second one instead.
    forwards: BTreeMap<usize, usize>,
    impairment: Impairment,
    seed: u64,
}

impl World {
    pub(crate) fn new(nodes: usize, policy: Policy, seed: u64) -> Self {
        Self::with_policies(vec![policy; nodes], seed)
    }

    pub(crate) fn with_policies(policies: Vec<Policy>, seed: u64) -> Self {
        let impairment = Impairment { delay: Duration::from_millis(10), ..Impairment::default() };
        let mut world = Self {
            now: START,
            nodes: Vec::new(),
            pipes: BTreeMap::new(),
            forwards: BTreeMap::new(),
            impairment,
            seed,
        };
        for (node, policy) in policies.into_iter().enumerate() {
            let engine = world.engine(node, MESH, policy.clone());
            world.nodes.push(Node {
                engine,
                events: Vec::new(),
                peers: BTreeMap::new(),
                sealing_keys: Vec::new(),
                opening_keys: Vec::new(),
                sent: 0,
                keeps_removed: false,
                removed: Vec::new(),
                traffic: Traffic::default(),
                traffic_of: HashMap::new(),
                policy,
            });
        }
        world.admit_all();
        world
    }

    fn engine(&self, node: usize, mesh: MeshId, policy: Policy) -> SessionEngine {
        let ids = 100..=99 + IDS;
        let config = SessionConfig { key: signing_key(node), mesh, policy, ids };
        let mut seed = [node as u8; 32];
        seed[..8].copy_from_slice(&(self.seed ^ self.now.as_nanos()).to_be_bytes());
        SessionEngine::new(config, seed, self.now, UNIX).unwrap()
    }

    fn admit_all(&mut self) {
        let keys: Vec<KeyHash> = self.nodes.iter().map(|node| node.engine.key_hash()).collect();
        for node in &mut self.nodes {
            keys.iter().for_each(|key| node.engine.admit(*key));
        }
    }

    /// Replaces a node with one that has the same key and no other state.
    pub(crate) fn restart(&mut self, node: usize) {
        self.restart_in(node, MESH);
    }

    /// Restarts a node as a node of another mesh.
    pub(crate) fn restart_in(&mut self, node: usize, mesh: MeshId) {
        let engine = self.engine(node, mesh, self.nodes[node].policy.clone());
        let old = &mut self.nodes[node];
        old.engine = engine;
        old.events.clear();
        old.peers.clear();
        self.admit_all();
    }

    pub(crate) fn key(&self, node: usize) -> KeyHash {
        self.nodes[node].engine.key_hash()
    }

    pub(crate) fn connect(
        &mut self,
        from: usize,
        to: usize,
        standing: bool,
    ) -> Result<SessionNumber, Reason> {
        let (now, peer, mut out) = (self.now, self.key(to), Outbox::new());
        let result = self.nodes[from].engine.connect(now, peer, link(to), standing, &mut out);
        self.perform(from, out);
        result
    }

    pub(crate) fn send(&mut self, node: usize, number: SessionNumber, record: &[u8]) -> bool {
        let (now, mut out) = (self.now, Outbox::new());
        let sent = self.nodes[node].engine.send(now, number, record, &mut out);
        self.perform(node, out);
        sent
    }

    /// Returns a node's established session with another node.
    pub(crate) fn number(&self, node: usize, peer: usize) -> Option<SessionNumber> {
        self.nodes[node].engine.session_with(&self.key(peer))
    }

    pub(crate) fn are_connected(&self, a: usize, b: usize) -> bool {
        self.number(a, b).is_some() && self.number(b, a).is_some()
    }

    fn established(&self, node: usize, peer: usize) -> (Role, Vec<PeerId>) {
        let number = self.number(node, peer).expect("a session");
        let found =
            self.nodes[node].events.iter().find_map(|event| match event {
                Event::Established {
                    session, role, channels, protocol: Protocol::Mesh, ..
                } if *session == number => Some((*role, channels.clone())),
                _ => None,
            });
        found.expect("an event")
    }

    pub(crate) fn channels(&self, node: usize, peer: usize) -> Vec<PeerId> {
        self.established(node, peer).1
    }

    pub(crate) fn role(&self, node: usize, peer: usize) -> Role {
        self.established(node, peer).0
    }

    pub(crate) fn peer(&self, node: usize, channel: PeerId) -> &Peer {
        &self.nodes[node].peers[&channel]
    }

    pub(crate) fn records(&self, node: usize) -> Vec<Vec<u8>> {
        let records = self.nodes[node].events.iter().filter_map(|event| match event {
            Event::Record(_, record) => Some(record.to_vec()),
            _ => None,
        });
        records.collect()
    }

    /// Sets the traffic of all channels.
    pub(crate) fn traffic(&mut self, traffic: Traffic) {
        self.nodes.iter_mut().for_each(|node| node.traffic = traffic);
    }

    pub(crate) fn impair(&mut self, impairment: Impairment) {
        self.pipes.values_mut().for_each(|pipe| pipe.set_impairment(impairment.clone()));
        self.impairment = impairment;
    }

    pub(crate) fn forward(&mut self, from: usize, to: usize) {
        self.forwards.insert(from, to);
    }

    pub(crate) fn lose_all_in_flight(&mut self) {
        self.pipes.clear();
    }

    /// Takes the packets from a node that are still in transit.
    pub(crate) fn take_sent(&mut self, node: usize) -> Vec<Vec<u8>> {
        let later = self.now + Duration::from_secs(60);
        let mut packets = Vec::new();
        for ((from, _), pipe) in &mut self.pipes {
            while *from == node
                && let Some(packet) = pipe.pop(later)
            {
                packets.push(packet);
            }
        }
        packets
    }

    /// Reports the channels that [`Node::keeps_removed`] kept.
    pub(crate) fn remove_kept(&mut self, node: usize) {
        for peer in std::mem::take(&mut self.nodes[node].removed) {
            self.input(node, Input::Notice(Notice::PeerGone(peer, Default::default())));
        }
    }

    pub(crate) fn input(&mut self, node: usize, input: Input<'_>) {
        let (now, mut out) = (self.now, Outbox::new());
        self.nodes[node].engine.handle(now, input, &mut out);
        self.perform(node, out);
    }

    pub(crate) fn perform(&mut self, node: usize, mut out: Outbox<Event>) {
        let mut notices = Vec::new();
        while let Some(output) = out.pop() {
            match output {
                Output::Send(to, packet) => self.transmit(node, to, packet),
                Output::Plane(command) => self.command(node, command, &mut notices),
                Output::Event(event) => self.nodes[node].events.push(event),
                other => panic!("an output that no session has: {other:?}"),
            }
        }
        for notice in notices {
            self.input(node, Input::Notice(notice));
        }
    }

    fn transmit(&mut self, node: usize, to: Link, packet: Vec<u8>) {
        self.nodes[node].sent += 1;
        let Some(to) = (0..self.nodes.len()).find(|other| link(*other) == to) else { return };
        let mut seed = [node as u8; 32];
        seed[..8].copy_from_slice(&self.seed.to_be_bytes());
        seed[8] = to as u8;
        let new = || Pipe::new(self.impairment.clone(), seed);
        let pipe = self.pipes.entry((node, to)).or_insert_with(new);
        pipe.push(self.now, packet);
    }

    fn command(&mut self, node: usize, command: Command, notices: &mut Vec<Notice>) {
        let node = &mut self.nodes[node];
        match command {
            Command::AddPeer(id, spec) => {
                let peer = Peer {
                    link: spec.link,
                    wire_id: spec.layout.wire_id.expect("an id"),
                    floats: spec.float == Float::Follow,
                    channel_of: spec.channel_of,
                    keepalive: spec.keepalive,
                    keys: HashMap::new(),
                    slots: [None; 2],
                };
                assert!(node.peers.insert(id, peer).is_none(), "an id is used twice");
            }
            Command::InstallKey(id, slot, key) => {
                node.sealing_keys.push(bytes(&key.seal));
                node.opening_keys.push(bytes(&key.open));
                let peer = node.peers.get_mut(&id).expect("a channel");
                peer.slots[usize::from(slot == KeySlot::Secondary)] = Some(key.key_id);
                peer.keys.insert(key.key_id, *key);
            }
            Command::SwapKeys(id) => node.peers.get_mut(&id).expect("a channel").slots.swap(0, 1),
            Command::SetLink(id, link) => node.peers.get_mut(&id).expect("a channel").link = link,
            Command::DelPeer(id) => {
                node.peers.remove(&id).expect("a channel");
                if node.keeps_removed {
                    node.removed.push(id);
                } else {
                    notices.push(Notice::PeerGone(id, Default::default()));
                }
            }
            Command::ReadTraffic(id) => {
                let traffic = node.traffic_of.get(&id).copied().unwrap_or(node.traffic);
                notices.push(Notice::Traffic(id, traffic));
            }
            Command::ProbePath(id, size) => {
                let probed = adit_engine::command::ProbeResult { size, kernel: 0 };
                notices.push(Notice::ProbeResult(id, probed));
            }
            _ => {}
        }
    }

    /// Runs until `done`, at most for `time`. Returns whether it was reached.
    pub(crate) fn run(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let until = self.now + time;
        loop {
            if done(self) {
                return true;
            }
            let arrivals = self.pipes.values().filter_map(Pipe::next_arrival);
            let timers = self.nodes.iter().filter_map(|node| node.engine.due());
            let Some(next) = arrivals.chain(timers).min().filter(|at| *at <= until) else {
                self.now = until;
                return done(self);
            };
            self.now = self.now.max(next);
            self.arrivals();
            for node in 0..self.nodes.len() {
                if self.nodes[node].engine.due().is_some_and(|at| at <= self.now) {
                    self.input(node, Input::Tick);
                }
            }
        }
    }

    fn arrivals(&mut self) {
        let mut arrived = Vec::new();
        for ((from, to), pipe) in &mut self.pipes {
            while let Some(packet) = pipe.pop(self.now) {
                arrived.push((*from, *to, packet));
            }
        }
        for (from, to, mut packet) in arrived {
            let to = self.forwards.get(&to).copied().unwrap_or(to);
            self.input(to, Input::ControlPacket(link(from), &mut packet));
        }
    }
}
