//! A simulated net: nodes of the crate, TCP connections that keep their order, and UDP that loses and reorders.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, SocketId};
use adit_sim::{Impairment, Pipe};
use adit_tinc::aead::Cipher;
use adit_tinc::config::{Address, HostConfig, ServerConfig};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeName;
use adit_tinc::node::{ConnectionId, Event, Node, NodeConfig, Output};

/// The number of bytes of a datagram that a link carries.
const LINK_MTU: usize = 1472;

/// A net in virtual time.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Host>,
    random: Random,
    pipes: BTreeMap<(usize, usize), Pipe<Vec<u8>>>,
    events: BTreeMap<(Instant, u64), Action>,
    sequence: u64,
    /// The two ends of each TCP connection.
    ends: BTreeMap<(usize, ConnectionId), (usize, ConnectionId)>,
    /// The pairs of hosts that cannot reach each other.
    cut: BTreeSet<(usize, usize)>,
    /// The pairs of hosts that can reach each other by TCP only.
    pub(crate) no_udp: BTreeSet<(usize, usize)>,
    /// The hosts whose nodes use tinc's cipher alone, as old versions do.
    pub(crate) old: BTreeSet<usize>,
    /// The life of keys.
    pub(crate) key_expire: Duration,
    /// The number of times that a session got new keys.
    pub(crate) rekeys: u64,
    /// Whether nodes choose connections by themselves.
    auto_connect: bool,
    /// The number of blocks of bytes that were sent by TCP.
    pub(crate) sends: u64,
    /// The number of connections that were opened.
    pub(crate) dials: u64,
}

/// A machine with a node.
pub(crate) struct Host {
    pub(crate) node: Node,
    /// The packets that arrived: who sent them, and their number.
    pub(crate) delivered: BTreeSet<(String, u32)>,
    connect_to: Vec<usize>,
    incarnation: u8,
}

enum Action {
    Dial(usize, ConnectionId, SocketAddr),
    Bytes(usize, ConnectionId, Vec<u8>),
    Closed(usize, ConnectionId),
}

pub(crate) fn name(host: usize) -> NodeName {
    format!("n{host}").parse().unwrap()
}

fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, u8::try_from(host).unwrap() + 1], 655))
}

fn host_at(address: SocketAddr) -> Option<usize> {
    let SocketAddr::V4(v4) = address else { return None };
    let [192, 0, 2, last] = v4.ip().octets() else { return None };
    usize::from(last).checked_sub(1)
}

fn key(host: usize) -> Arc<PrivateKey> {
    Arc::new(PrivateKey::from_seed(&[u8::try_from(host).unwrap() + 1; 32]))
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl World {
    /// Creates nodes that connect to the given ones, from a seed. If there are none, they choose by themselves.
    pub(crate) fn new(seed: u64, connect_to: &[Vec<usize>], impairment: &Impairment) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_be_bytes());
        let mut random = Random::new(bytes);
        let now = Instant::from_nanos(1_000_000_000_000);
        let mut pipes = BTreeMap::new();
        for from in 0..connect_to.len() {
            for to in (0..connect_to.len()).filter(|to| *to != from) {
                pipes.insert((from, to), Pipe::new(impairment.clone(), random.bytes()));
            }
        }
        let mut world = Self {
            now,
            hosts: Vec::new(),
            random,
            pipes,
            events: BTreeMap::new(),
            sequence: 0,
            ends: BTreeMap::new(),
            cut: BTreeSet::new(),
            no_udp: BTreeSet::new(),
            old: BTreeSet::new(),
            key_expire: ServerConfig::default().key_expire,
            rekeys: 0,
            auto_connect: connect_to.iter().all(Vec::is_empty),
            sends: 0,
            dials: 0,
        };
        for (host, targets) in connect_to.iter().enumerate() {
            let node = world.create(host, targets, connect_to.len());
            let (delivered, connect_to) = (BTreeSet::new(), targets.clone());
            world.hosts.push(Host { node, delivered, connect_to, incarnation: 0 });
        }
        world
    }

    fn create(&mut self, host: usize, connect_to: &[usize], count: usize) -> Node {
        let others = (0..count).filter(|other| *other != host).map(|other| {
            let config = HostConfig {
                public_key: Some(key(other).public()),
                addresses: vec![Address { host: address(other).ip().to_string(), port: None }],
                ..HostConfig::default()
            };
            (name(other), config)
        });
        let cipher = self.old.contains(&host).then_some(Cipher::ChaCha20Poly1305);
        let server = ServerConfig {
            own: HostConfig { cipher, ..HostConfig::default() },
            connect_to: connect_to.iter().map(|other| name(*other)).collect(),
            auto_connect: self.auto_connect,
            key_expire: self.key_expire,
            ..ServerConfig::default()
        };
        let config = NodeConfig {
            name: name(host),
            key: key(host),
            server,
            hosts: others.collect(),
            udp_port: 655,
        };
        Node::new(config, self.now, Random::new(self.random.bytes::<32>()))
    }

    /// Starts a node again, with nothing of what it knew.
    pub(crate) fn restart(&mut self, host: usize) {
        let ends = self.ends.keys().filter(|(at, _)| *at == host).copied();
        for end in ends.collect::<Vec<_>>() {
            self.hang_up(end);
        }
        let connect_to = self.hosts[host].connect_to.clone();
        let node = self.create(host, &connect_to, self.hosts.len());
        self.hosts[host].node = node;
        self.hosts[host].incarnation += 1;
    }

    /// Separates hosts from all others. An empty set joins all again.
    pub(crate) fn partition(&mut self, side: &BTreeSet<usize>) {
        let count = self.hosts.len();
        let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
        self.cut = pairs.filter(|(a, b)| side.contains(a) != side.contains(b)).collect();
        let broken = self.ends.iter().filter(|((a, _), (b, _))| self.cut.contains(&pair(*a, *b)));
        for (end, other) in broken.map(|(end, other)| (*end, *other)).collect::<Vec<_>>() {
            self.ends.remove(&end);
            // Each side notices by itself.
            let after = Duration::from_millis(u64::from(self.random.below(3000)));
            self.schedule(after, Action::Closed(other.0, other.1));
        }
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.random.below(u32::try_from(bound).unwrap()) as usize
    }

    fn schedule(&mut self, after: Duration, action: Action) {
        self.sequence += 1;
        self.events.insert((self.now + after, self.sequence), action);
    }

    /// The delay between two hosts, always the same, so that bytes keep their order.
    fn delay(a: usize, b: usize) -> Duration {
        Duration::from_millis(2 + (a * 7 + b * 3) as u64 % 20)
    }

    fn hang_up(&mut self, end: (usize, ConnectionId)) {
        if let Some(other) = self.ends.remove(&end) {
            self.ends.remove(&other);
            self.schedule(Self::delay(end.0, other.0), Action::Closed(other.0, other.1));
        }
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let event = self.events.keys().next().map(|(at, _)| *at);
            let packet = self.pipes.values().filter_map(Pipe::next_arrival).min();
            let tick = self.hosts.iter().map(|host| host.node.deadline()).min();
            let next = [event, packet, tick].into_iter().flatten().min().unwrap_or(end);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    fn step(&mut self) {
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= self.now
        {
            let action = entry.remove();
            self.act(action);
        }
        let arrived: Vec<(usize, usize, Vec<u8>)> = self
            .pipes
            .iter_mut()
            .flat_map(|((from, to), pipe)| {
                let (from, to, now) = (*from, *to, self.now);
                std::iter::from_fn(move || pipe.pop(now)).map(move |bytes| (from, to, bytes))
            })
            .collect();
        for (from, to, mut bytes) in arrived {
            self.hosts[to].node.datagram(self.now, SocketId(0), address(from), &mut bytes);
            self.perform(to);
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].node.deadline() <= self.now {
                self.hosts[host].node.tick(self.now);
                self.perform(host);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Dial(host, connection, to) => {
                let other = host_at(to).filter(|other| *other < self.hosts.len());
                let port = 1024 + u16::try_from(self.random.below(60_000)).unwrap();
                let remote = SocketAddr::new(address(host).ip(), port);
                let reachable = other.filter(|other| !self.cut.contains(&pair(host, *other)));
                let accepted = reachable.and_then(|other| {
                    let id = self.hosts[other].node.accept(self.now, remote, address(other))?;
                    Some((other, id))
                });
                let Some((other, id)) = accepted else {
                    self.hosts[host].node.closed(self.now, connection);
                    return self.perform(host);
                };
                self.ends.insert((host, connection), (other, id));
                self.ends.insert((other, id), (host, connection));
                self.hosts[host].node.connected(self.now, connection, remote);
                self.perform(host);
            }
            Action::Bytes(host, connection, bytes) => {
                if self.ends.contains_key(&(host, connection)) {
                    self.hosts[host].node.receive(self.now, connection, &bytes);
                    self.perform(host);
                }
            }
            Action::Closed(host, connection) => {
                self.hosts[host].node.closed(self.now, connection);
                self.perform(host);
            }
        }
    }

    fn perform(&mut self, host: usize) {
        while let Some(output) = self.hosts[host].node.pop() {
            match output {
                Output::Dial { connection, address: to } => {
                    self.dials += 1;
                    let delay =
                        host_at(to).map_or(Duration::ZERO, |other| Self::delay(host, other));
                    self.schedule(delay, Action::Dial(host, connection, to));
                }
                Output::Send { connection, bytes } => {
                    self.sends += 1;
                    if let Some((other, id)) = self.ends.get(&(host, connection)).copied() {
                        self.schedule(Self::delay(host, other), Action::Bytes(other, id, bytes));
                    }
                }
                Output::Close { connection, .. } => self.hang_up((host, connection)),
                Output::Datagram { to, bytes, .. } => {
                    let Some(other) = host_at(to).filter(|other| *other != host) else { continue };
                    let blocked = pair(host, other);
                    let passes = !self.cut.contains(&blocked)
                        && !self.no_udp.contains(&blocked)
                        && bytes.len() <= LINK_MTU;
                    if let Some(pipe) = self.pipes.get_mut(&(host, other)).filter(|_| passes) {
                        pipe.push(self.now, bytes);
                    }
                }
                Output::Packet { from, bytes } => {
                    let number =
                        bytes.get(20..24).map(|it| u32::from_be_bytes(it.try_into().unwrap()));
                    self.hosts[host].delivered.insert((from.to_string(), number.unwrap()));
                }
                Output::Resolve { .. } | Output::Join { .. } | Output::Record { .. } => {
                    unreachable!("not in these nets")
                }
                Output::Event(Event::KeysRenewed(_)) => self.rekeys += 1,
                Output::Script(_) | Output::Event(_) => {}
            }
        }
    }

    /// Sends a packet with a number.
    pub(crate) fn send(&mut self, from: usize, to: usize, number: u32, len: usize) {
        let mut packet = vec![0x45; len.max(24)];
        packet[20..24].copy_from_slice(&number.to_be_bytes());
        self.hosts[from].node.send_packet(self.now, &name(to), &packet);
        self.perform(from);
    }

    /// Asserts that each node reaches exactly all others.
    pub(crate) fn assert_all_reachable(&self, context: &str) {
        let all: Vec<NodeName> = (0..self.hosts.len()).map(name).collect();
        for host in &self.hosts {
            let graph = host.node.graph();
            let reachable: Vec<NodeName> =
                graph.nodes().filter(|node| graph.route(node).is_some()).cloned().collect();
            assert_eq!(reachable, all, "{context}: seen by {}", host.node.name());
        }
    }

    /// Asserts that packets between all pairs arrive within some seconds.
    pub(crate) fn assert_all_exchange(&mut self, seconds: u32, len: usize, context: &str) {
        let count = self.hosts.len();
        self.hosts.iter_mut().for_each(|host| host.delivered.clear());
        let mut missing = BTreeSet::new();
        for number in 0..seconds {
            missing.clear();
            for from in 0..count {
                for to in (0..count).filter(|to| *to != from) {
                    let got = self.hosts[to].delivered.iter();
                    if !got.into_iter().any(|(sender, _)| *sender == format!("n{from}")) {
                        missing.insert((from, to));
                    }
                }
            }
            if missing.is_empty() {
                return;
            }
            for (from, to) in &missing {
                self.send(*from, *to, number, len);
            }
            self.run(Duration::from_secs(1));
        }
        panic!("{context}: no packets between {missing:?}");
    }

    /// Returns the cipher of a node's session with another.
    pub(crate) fn cipher(&self, from: usize, to: usize) -> Option<Cipher> {
        let infos = self.hosts[from].node.node_infos();
        infos.iter().find(|info| info.name == name(to)).and_then(|info| info.cipher)
    }

    /// Returns whether a node sends to another by UDP, directly.
    pub(crate) fn is_direct(&self, from: usize, to: usize) -> bool {
        let infos = self.hosts[from].node.node_infos();
        infos.iter().any(|info| info.name == name(to) && info.udp_confirmed)
    }
}
