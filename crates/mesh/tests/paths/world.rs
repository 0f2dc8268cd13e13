//! Two nodes behind NATs, two relays, and data in both directions, in virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, SocketId};
use adit_mesh::path::{
    Candidate, CandidateKind, Input, KeyHash, MAIN_SOCKET, NatObserver, Output, PathFinder, Probe,
    PunchBudget, RelayLeg, Route,
};
use adit_sim::{BoxId, HostId, Impairment, Internet, NatBehaviour};

pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The time in which a lost path must be repaired.
pub(crate) const REPAIRED_WITHIN: Duration = Duration::from_secs(3);

/// The one-way delay from a node to a relay, and of a direct path.
pub(crate) const LEG_DELAY: Duration = Duration::from_millis(20);
pub(crate) const DIRECT_DELAY: Duration = Duration::from_millis(15);

/// The interval of data packets in each direction.
const DATA_INTERVAL: Duration = Duration::from_millis(50);

const MAIN_PORT: u16 = 1194;
const FIRST_SEARCH_PORT: u16 = 20_000;
const RELAYS: [KeyHash; 2] = [[0xe1; 32], [0xe2; 32]];
const RELAY_ADDRESSES: [[&str; 2]; 2] =
    [["198.51.100.1", "2001:db8:e1::1"], ["198.51.100.2", "2001:db8:e2::1"]];

/// A node's place in the internet.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) addresses: Vec<(IpAddr, Option<BoxId>)>,
    pub(crate) udp: bool,
}

impl Place {
    /// A host with one address behind a NAT.
    pub(crate) fn behind(own: &str, site: BoxId) -> Self {
        Self { addresses: vec![(ip(own), Some(site))], udp: true }
    }

    /// A host with public addresses.
    pub(crate) fn public(own: &[&str]) -> Self {
        let addresses = own.iter().map(|own| (ip(own), None)).collect();
        Self { addresses, udp: true }
    }
}

pub(crate) struct Node {
    pub(crate) hash: KeyHash,
    pub(crate) finder: PathFinder,
    pub(crate) host: HostId,
    place: Place,
    nat: NatObserver,
    sockets: BTreeMap<u16, SocketId>,
    next_port: u16,
    /// Each change of the path, with the time since the start.
    pub(crate) switches: Vec<(Duration, Route)>,
    pub(crate) mtu: BTreeMap<SocketId, u16>,
    last_data: Option<Instant>,
    /// The longest time without data since the last reset.
    pub(crate) gap: Duration,
    pub(crate) received: u64,
    pub(crate) most_sockets: usize,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    start: Instant,
    pub(crate) net: Internet,
    pub(crate) nodes: Vec<Node>,
    relays_alive: [bool; 2],
    relay_hosts: [HostId; 2],
    messages: Vec<(Instant, u64, Message)>,
    sequence: u64,
    next_data: Option<Instant>,
}

/// A message over a relay. It preserves the order.
#[derive(Clone, Debug)]
enum Message {
    Record { to: usize, via: KeyHash, bytes: Vec<u8> },
    RelayedData { to: usize },
    Observation { to: usize, relay: KeyHash, seen: SocketAddr },
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl World {
    /// Creates a world without nodes.
    pub(crate) fn new(seed: u8) -> Self {
        let default = Impairment { delay: DIRECT_DELAY, ..Impairment::default() };
        let mut net = Internet::new(default, [seed; 32]);
        let relay_hosts = RELAY_ADDRESSES
            .map(|addresses| net.add_host(&addresses.map(|address| (ip(address), None))));
        let start = Instant::from_nanos(1_000_000_000_000);
        Self {
            now: start,
            start,
            net,
            nodes: Vec::new(),
            relays_alive: [true; 2],
            relay_hosts,
            messages: Vec::new(),
            sequence: 0,
            next_data: None,
        }
    }

    pub(crate) fn add_box(&mut self, external: &str, behaviour: NatBehaviour) -> BoxId {
        self.net.add_box(ip(external), behaviour, None)
    }

    /// Adds the two nodes and lets both relays observe them.
    pub(crate) fn add_nodes(&mut self, places: [Place; 2], seed: u8) {
        for (index, place) in places.into_iter().enumerate() {
            let own = [index as u8 + 1; 32];
            let peer = [2 - index as u8; 32];
            let random = Random::new([seed ^ (0x55 * (index as u8 + 1)); 32]);
            let finder = PathFinder::new(own, peer, random, Arc::new(PunchBudget::default()));
            let host = self.net.add_host(&place.addresses);
            self.nodes.push(Node {
                hash: own,
                finder,
                host,
                nat: NatObserver::new(Vec::new()),
                place,
                sockets: BTreeMap::from([(MAIN_PORT, MAIN_SOCKET)]),
                next_port: FIRST_SEARCH_PORT,
                switches: Vec::new(),
                mtu: BTreeMap::new(),
                last_data: None,
                gap: Duration::ZERO,
                received: 0,
                most_sockets: 0,
            });
        }
        for index in 0..2 {
            self.observe(index);
        }
        self.run_for(MS * 200);
        for index in 0..2 {
            self.set_relays(index);
            self.set_local(index);
        }
    }

    /// Starts to send data from the first node to the second, which answers every packet.
    pub(crate) fn connect(&mut self) {
        self.start = self.now;
        self.next_data = Some(self.now);
        for node in &mut self.nodes {
            node.last_data = Some(self.now);
        }
    }

    pub(crate) fn started(&self) -> Instant {
        self.start
    }

    /// Moves a node to another place, as when a laptop changes its network.
    pub(crate) fn move_node(&mut self, index: usize, place: Place) {
        let host = self.nodes[index].host;
        self.net.move_host(host, &place.addresses);
        self.nodes[index].place = place;
        self.nodes[index].nat = NatObserver::new(Vec::new());
        self.observe(index);
        self.set_local(index);
        self.run_for(MS * 200);
        self.set_local(index);
    }

    pub(crate) fn set_relay(&mut self, relay: usize, alive: bool) {
        self.relays_alive[relay] = alive;
    }

    /// Resets the longest gaps.
    pub(crate) fn reset_gaps(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.gap = Duration::ZERO);
    }

    pub(crate) fn pause_data(&mut self) {
        self.next_data = None;
    }

    pub(crate) fn resume_data(&mut self) {
        self.next_data = Some(self.now);
        let now = self.now;
        self.nodes.iter_mut().for_each(|node| node.last_data = Some(now));
        self.reset_gaps();
    }

    pub(crate) fn longest_gap(&self) -> Duration {
        let now = self.now;
        let gap = |node: &Node| {
            node.gap.max(node.last_data.map_or(Duration::ZERO, |last| now.since(last)))
        };
        self.nodes.iter().map(gap).max().unwrap()
    }

    /// Returns whether both nodes send data to each other directly.
    pub(crate) fn is_direct(&self) -> bool {
        self.nodes.iter().all(|node| matches!(node.finder.current(), Some(Route::Direct { .. })))
    }

    /// Returns when the later of the two nodes first used a direct path.
    pub(crate) fn direct_after(&self) -> Option<Duration> {
        let first = |node: &Node| {
            let mut switches = node.switches.iter();
            switches.find(|(_, route)| matches!(route, Route::Direct { .. })).map(|(at, _)| *at)
        };
        Some(first(&self.nodes[0])?.max(first(&self.nodes[1])?))
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let deadlines = self.nodes.iter().filter_map(|node| node.finder.deadline());
            let due = [
                self.net.next_arrival(),
                self.messages.iter().map(|(at, ..)| *at).min(),
                deadlines.map(|(at, _)| at).min(),
                self.next_data,
            ];
            let Some(next) = due.into_iter().flatten().min().filter(|at| *at <= end) else { break };
            self.now = next.max(self.now);
            self.step();
        }
        self.now = end;
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(delivery) = self.net.pop(now) {
            if let Some(relay) = self.relay_hosts.iter().position(|host| *host == delivery.host) {
                let to = usize::from(delivery.payload[0]);
                let relay = RELAYS[relay];
                let seen = delivery.from;
                self.push(LEG_DELAY, Message::Observation { to, relay, seen });
                continue;
            }
            let index = self.nodes.iter().position(|node| node.host == delivery.host).unwrap();
            let node = &mut self.nodes[index];
            let Some(socket) = node.sockets.get(&delivery.to.port()).copied() else { continue };
            if delivery.payload == b"data" {
                node.on_data(now);
            } else if Probe::tag_of(&delivery.payload) == Some(node.finder.tag()) {
                let bytes = &delivery.payload;
                let (from, local) = (delivery.from, Some(delivery.to.ip()));
                self.handle(index, Input::Datagram { socket, from, local, bytes });
            }
        }
        self.messages.sort_by_key(|(at, sequence, _)| (*at, *sequence));
        while self.messages.first().is_some_and(|(at, ..)| *at <= now) {
            let (_, _, message) = self.messages.remove(0);
            self.deliver(message);
        }
        for index in 0..self.nodes.len() {
            // A tick may require another one at once, but not endlessly.
            for tick in 0.. {
                let Some((at, reason)) = self.nodes[index].finder.deadline() else { break };
                if at > now {
                    break;
                }
                assert!(tick < 3, "a deadline stays due: {reason}");
                self.handle(index, Input::Tick);
            }
        }
        if self.next_data.is_some_and(|at| at <= now) {
            self.next_data = Some(now + DATA_INTERVAL);
            for index in 0..self.nodes.len() {
                if index == 0 || self.nodes[index].received > 0 {
                    self.handle(index, Input::DataSent);
                    self.send_data(index);
                }
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        let now = self.now;
        match message {
            Message::Record { to, via, bytes } => {
                let from = self.nodes[1 - to].hash;
                self.handle(to, Input::Record { from, via: Some(via), bytes: &bytes });
            }
            Message::RelayedData { to } => self.nodes[to].on_data(now),
            Message::Observation { to, relay, seen } => {
                self.nodes[to].nat.observe(now, relay, seen);
            }
        }
    }

    fn handle(&mut self, index: usize, input: Input<'_>) {
        let mut out = Vec::new();
        self.nodes[index].finder.handle(self.now, input, &mut out);
        self.perform(index, out);
    }

    fn perform(&mut self, index: usize, out: Vec<Output>) {
        let now = self.now;
        for output in out {
            let node = &mut self.nodes[index];
            match output {
                Output::SendRecord { via, bytes } => {
                    let via = via.expect("a relay");
                    let alive = RELAYS.iter().position(|relay| *relay == via).unwrap();
                    if self.relays_alive[alive] {
                        let record = Message::Record { to: 1 - index, via, bytes };
                        self.push(LEG_DELAY * 2, record);
                    }
                }
                Output::SendProbe { route: Route::Direct { socket, to }, local, bytes } => {
                    let port = node.sockets.iter().find(|(_, id)| **id == socket);
                    let port = *port.expect("an open socket").0;
                    match local {
                        Some(local) => {
                            let from = SocketAddr::new(local, port);
                            self.net.send_from(now, node.host, from, to, bytes);
                        }
                        None => self.net.send(now, node.host, port, to, bytes),
                    }
                }
                Output::SendProbe { route, .. } => {
                    unreachable!("a record, or no session: {route:?}")
                }
                Output::UsePath(route) => node.switches.push((now.since(self.start), route)),
                Output::SetMtu { route: Route::Direct { socket, .. }, mtu } => {
                    node.mtu.insert(socket, mtu);
                }
                Output::SetMtu { .. } | Output::UsePort { .. } => {}
                Output::OpenSockets(count) => {
                    let opened: Vec<SocketId> =
                        (0..count as u16).map(|n| SocketId(n + 1)).collect();
                    for socket in &opened {
                        node.sockets.insert(node.next_port, *socket);
                        node.next_port += 1;
                    }
                    node.most_sockets = node.most_sockets.max(node.sockets.len());
                    self.handle(index, Input::SocketsOpened(opened));
                }
                Output::CloseSockets { keep } => {
                    node.sockets.retain(|_, id| *id == MAIN_SOCKET || Some(*id) == keep);
                }
                Output::Observed(seen) => {
                    let observer = self.nodes[1 - index].hash;
                    self.nodes[index].nat.observe(now, observer, seen);
                }
            }
        }
    }

    fn send_data(&mut self, index: usize) {
        let node = &self.nodes[index];
        match node.finder.current() {
            Some(Route::Direct { socket, to }) => {
                let port = node.sockets.iter().find(|(_, id)| **id == socket);
                let port = *port.expect("an open socket").0;
                self.net.send(self.now, node.host, port, to, b"data".to_vec());
            }
            Some(Route::Relay(relay)) => {
                let relay = RELAYS.iter().position(|of| *of == relay).unwrap();
                if self.relays_alive[relay] {
                    self.push(LEG_DELAY * 2, Message::RelayedData { to: 1 - index });
                }
            }
            Some(Route::Stream { .. }) | None => {}
        }
    }

    fn push(&mut self, delay: Duration, message: Message) {
        self.sequence += 1;
        self.messages.push((self.now + delay, self.sequence, message));
    }

    /// Makes both relays observe the node's main socket.
    fn observe(&mut self, index: usize) {
        let host = self.nodes[index].host;
        for addresses in RELAY_ADDRESSES {
            let to = SocketAddr::new(ip(addresses[0]), MAIN_PORT);
            self.net.send(self.now, host, MAIN_PORT, to, vec![index as u8]);
        }
    }

    fn set_relays(&mut self, index: usize) {
        let stream = !self.nodes[index].place.udp;
        let leg = |relay| RelayLeg { relay, stream, rtt: LEG_DELAY * 2, mtu: 1400 };
        let legs = RELAYS.map(leg).to_vec();
        self.handle(index, Input::Relays(legs));
    }

    /// Reports the node's addresses, as the interfaces and the relays show them.
    pub(crate) fn set_local(&mut self, index: usize) {
        let now = self.now;
        let node = &mut self.nodes[index];
        if !node.place.udp {
            node.nat.set_udp_blocked();
        }
        let nat = node.nat.classify(now);
        let own = node
            .place
            .addresses
            .iter()
            .map(|(ip, _)| (SocketAddr::new(*ip, MAIN_PORT), CandidateKind::Own));
        let seen = nat.seen.iter().map(|seen| (*seen, CandidateKind::Observed));
        let candidates = own.chain(seen);
        let candidates =
            candidates.filter_map(|(address, kind)| Candidate::new(address, kind)).collect();
        self.handle(index, Input::Local { candidates, nat });
    }
}

impl Node {
    pub(crate) fn open_sockets(&self) -> usize {
        self.sockets.len()
    }

    fn on_data(&mut self, now: Instant) {
        if let Some(last) = self.last_data {
            self.gap = self.gap.max(now.since(last));
        }
        self.last_data = Some(now);
        self.received += 1;
    }
}
