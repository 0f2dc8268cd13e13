//! A simulated internet with nodes and their data planes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_crypto::sign::SigningKey;
use adit_engine::command::{Keepalive, SpliceId, SpliceLabel, Traffic};
use adit_engine::{Engine, Instant, Link, PeerId, SocketId, UnixTime};
use adit_mesh::join::Waits;
use adit_mesh::node::{JoinEvent, Joining, Node, NodeConfig, NodeEvent, RouteKind};
use adit_mesh::path::MAIN_SOCKET;
use adit_mesh::roster::{Action, Change, Changes, Genesis, Label, Layer, NodeInfo, ipv6_of};
use adit_mesh::session::{KeyHash, Policy};
use adit_mesh::token::{Invitations, Terms, Token};
use adit_openvpn::data_format::{Command, Input, Notice, Outbox, Output};
use adit_openvpn::session::OCC_MAGIC;
use adit_sim::{BoxId, Delivery, HostId, Impairment, Internet, Loss, NatBehaviour};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const PORT: u16 = 1194;
pub(crate) const TCP_PORT: u16 = 443;
pub(crate) const UNIX: UnixTime = UnixTime(1_800_000_000);

/// The ids of the sockets for further channels follow this one.
const CHANNEL_PORTS: u16 = 1000;

const START: Instant = Instant::from_nanos(1_000_000_000_000);
const DELAY: Duration = Duration::from_millis(15);

/// The first byte of data: an opcode that neither control packets nor probes have.
const DATA: u8 = 9 << 3;

/// The first byte of a keepalive ping.
const PING: u8 = DATA | 1;

/// The length of a ping: opcode and peer id 4, epoch and number 8, tag 16, text 16.
const PING_LEN: usize = 4 + 8 + 16 + 16;

/// The kind of an answer to a probe of the path MTU, after [`OCC_MAGIC`]; the sizes that arrived follow.
const MTU_REPLY: u8 = 5;

/// The length of the UDP and IPv4 headers.
const HEADERS: u64 = 28;

/// The bytes of the headers of TCP, with timestamps, and IPv4. A segment with nothing else acknowledges data.
const TCP_HEADERS: u64 = 20 + 12 + 20;

/// The bytes of the length of a packet on a stream.
const STREAM_LENGTH: u64 = 2;

/// A data channel.
#[derive(Clone, Debug)]
struct Channel {
    link: Link,
    /// The channel to whose address its packets go.
    relay: Option<PeerId>,
    /// The id that the peer expects in packets.
    wire_id: u32,
    routes: Vec<ipnet::IpNet>,
    keepalive: Keepalive,
    /// When the next ping is due, if [`World::pings`] is set.
    next_ping: Option<Instant>,
    /// The first channel of the session, if this is a further one.
    channel_of: Option<PeerId>,
    packets: u64,
    received: u64,
}

/// The parts of a data plane that decide where packets go, without keys.
#[derive(Debug, Default)]
struct Plane {
    channels: BTreeMap<PeerId, Channel>,
    splices: BTreeMap<(u32, u32), PeerId>,
    /// The number of packets sent; each takes the next channel.
    sent: usize,
    /// The bytes of all probes of path MTUs, and of their answers.
    probe_bytes: u64,
}

pub(crate) struct Machine {
    pub(crate) key: KeyHash,
    seed: u8,
    pub(crate) node: Option<Node>,
    joining: Option<Joining>,
    /// What [`Machine::due`] found, until the next call of the node.
    deadline: Cell<Option<Option<Instant>>>,
    /// Whether the node was called since [`World::assert_cut_off`] looked at it.
    is_changed: bool,
    admin: bool,
    host: HostId,
    addresses: Vec<(IpAddr, Option<BoxId>)>,
    plane: Plane,
    /// The ports of the open sockets.
    pub(crate) ports: BTreeMap<SocketId, u16>,
    pub(crate) events: Vec<NodeEvent>,
    pub(crate) join_result: Option<Result<(), String>>,
    /// The inviter's answer that an operator must approve this machine.
    pub(crate) waits: Option<Waits>,
    /// The tokens' inviters and addresses, as kept by a machine.
    hints: Vec<(KeyHash, Vec<SocketAddr>)>,
    stream_hints: Vec<(KeyHash, Vec<SocketAddr>)>,
    /// The last roster comparisons, as kept by a machine.
    compared: Vec<(KeyHash, UnixTime)>,
    pub(crate) max_age: Option<Duration>,
    /// How far its clock is ahead, in seconds.
    pub(crate) clock: u64,
    /// The invitations of the next run.
    pub(crate) invitations: Option<Invitations>,
    /// The data packets that arrived, by their number.
    pub(crate) received: Vec<u64>,
    /// The addresses that they arrived from.
    pub(crate) sources: BTreeSet<SocketAddr>,
    /// Whether a firewall in front of it drops packets that are not from [`PORT`].
    pub(crate) one_source_port: bool,
    /// Packets that this machine relayed.
    pub(crate) relayed: u64,
    /// Whether the network drops its datagrams.
    pub(crate) no_udp: bool,
    /// Whether it accepts streams at [`TCP_PORT`].
    pub(crate) accepts_streams: bool,
    /// Packets of its streams.
    pub(crate) stream_packets: u64,
    /// The bytes of all packets that it sent, with headers of UDP or TCP and IPv4, except for probes of path MTUs.
    sent_bytes: u64,
}

/// The events of streams, in order.
#[derive(Debug)]
enum StreamEvent {
    /// The requested stream was opened, or failed.
    Opened {
        machine: usize,
        to: SocketAddr,
        link: Option<Link>,
    },
    /// A machine accepted a stream.
    Accepted {
        machine: usize,
        link: Link,
    },
    Packet {
        machine: usize,
        link: Link,
        packet: Vec<u8>,
    },
    Ended {
        machine: usize,
        link: Link,
    },
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) net: Internet,
    pub(crate) machines: Vec<Machine>,
    stream_events: VecDeque<(Instant, StreamEvent)>,
    /// The ends of the open streams: machine and link of the opener, and of the other end.
    streams: Vec<[(usize, Link); 2]>,
    /// The policy for nodes that start.
    pub(crate) policy: Policy,
    /// What the nodes of the mesh send to each other.
    pub(crate) layer: Layer,
    /// Whether data planes send pings, as they do if nothing else is sent.
    pub(crate) pings: bool,
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn signing_key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32]).unwrap()
}

fn admin_key() -> SigningKey {
    SigningKey::from_seed(&[0xad; 32]).unwrap()
}

pub(crate) fn hash(key: &SigningKey) -> KeyHash {
    key.public_hash()
}

pub(crate) fn name(text: &str) -> Label {
    Label::new(text).unwrap()
}

impl World {
    pub(crate) fn new(seed: u8) -> Self {
        let default = Impairment { delay: DELAY, ..Impairment::default() };
        Self {
            now: START,
            net: Internet::new(default, [seed; 32]),
            machines: Vec::new(),
            policy: Policy::default(),
            layer: Layer::Ip,
            pings: false,
            stream_events: VecDeque::new(),
            streams: Vec::new(),
        }
    }

    pub(crate) fn site(&mut self, external: &str, behaviour: NatBehaviour) -> BoxId {
        self.net.add_box(ip(external), behaviour, None)
    }

    /// Adds a machine that is not a node yet.
    pub(crate) fn machine(&mut self, address: &str, site: Option<BoxId>) -> usize {
        let addresses = vec![(ip(address), site)];
        let host = self.net.add_host(&addresses);
        let seed = self.machines.len() as u8 + 1;
        self.machines.push(Machine {
            key: hash(&signing_key(seed)),
            seed,
            node: None,
            joining: None,
            deadline: Cell::new(None),
            is_changed: false,
            admin: false,
            host,
            addresses,
            plane: Plane::default(),
            ports: [(MAIN_SOCKET, PORT)].into(),
            events: Vec::new(),
            join_result: None,
            waits: None,
            hints: Vec::new(),
            stream_hints: Vec::new(),
            compared: Vec::new(),
            max_age: None,
            clock: 0,
            invitations: None,
            received: Vec::new(),
            sources: BTreeSet::new(),
            one_source_port: false,
            relayed: 0,
            no_udp: false,
            accepts_streams: false,
            stream_packets: 0,
            sent_bytes: 0,
        });
        self.machines.len() - 1
    }

    /// Makes a machine the first node of a mesh, a relay with an admin's key.
    pub(crate) fn found(&mut self, machine: usize) {
        self.found_as(machine, true);
    }

    pub(crate) fn found_as(&mut self, machine: usize, relay: bool) {
        let admin = admin_key();
        let genesis = Genesis {
            name: name("home"),
            admins: vec![hash(&admin)],
            threshold: 1,
            ranges: vec!["100.87.0.0/16".parse().unwrap()],
            random: [7; 32],
            layer: self.layer,
        };
        let mut changes = Changes::new(genesis).unwrap();
        let node =
            NodeInfo { relay, ipv4: Some([100, 87, 0, 1].into()), ..NodeInfo::named(name("hub")) };
        let admit = Action::Admit { key: self.machines[machine].key, node };
        let body = changes.draft(hash(&admin), UNIX, admit).unwrap();
        let change = Change::sign(changes.mesh(), &admin, body).unwrap();
        changes.insert(change).unwrap();
        self.machines[machine].admin = true;
        self.start(machine, changes);
    }

    /// Starts a node with the changes that it has on disk.
    pub(crate) fn start(&mut self, machine: usize, changes: Changes) {
        let unix = self.unix();
        let it = &mut self.machines[machine];
        let mut config = NodeConfig {
            admin: it.admin.then(admin_key),
            hints: it.hints.clone(),
            stream_hints: it.stream_hints.clone(),
            policy: self.policy.clone(),
            compared: it.compared.clone(),
            max_age: it.max_age,
            ..NodeConfig::new(signing_key(it.seed), changes)
        };
        if let Some(kept) = it.invitations.take() {
            config.invitations = kept;
        }
        let mut seed = [it.seed; 32];
        seed[..8].copy_from_slice(&self.now.as_nanos().to_be_bytes());
        let unix = UnixTime(unix.0 + it.clock);
        it.node = Some(Node::new(config, seed, self.now, unix).unwrap());
        it.changed();
        it.plane = Plane::default();
        it.ports = [(MAIN_SOCKET, PORT)].into();
        let further = 1..u16::try_from(self.policy.channels).unwrap();
        let sockets = further.map(|n| (SocketId(CHANNEL_PORTS + n), PORT + CHANNEL_PORTS + n));
        it.ports.extend(sockets);
        let sockets: Vec<SocketId> =
            it.ports.keys().copied().filter(|id| *id != MAIN_SOCKET).collect();
        if let Some(node) = &mut it.node {
            node.set_channel_sockets(sockets);
        }
        let own = self.own_addresses(machine);
        let port = std::num::NonZeroU16::new(TCP_PORT);
        let port = port.filter(|_| self.machines[machine].accepts_streams);
        self.act(machine, |node, now, out| {
            node.set_addresses(now, own, Vec::new(), out);
            node.set_stream_port(now, port, out);
        });
    }

    /// Stops a node at once, as if its machine lost power. Returns what it has on disk.
    pub(crate) fn kill(&mut self, machine: usize) -> Changes {
        self.cut_streams(machine);
        self.machines[machine].changed();
        let node = self.machines[machine].node.take().expect("a running node");
        self.machines[machine].compared = node.compared().to_vec();
        node.changes().clone()
    }

    #[allow(dead_code, reason = "only the test of the memory needs it")]
    /// Replaces a machine without a node by another one, with the key of this seed.
    pub(crate) fn renew(&mut self, machine: usize, seed: u8) {
        let it = &mut self.machines[machine];
        assert!(it.node.is_none(), "a node runs");
        (it.seed, it.key) = (seed, hash(&signing_key(seed)));
        (it.events, it.received, it.compared) = Default::default();
        it.join_result = None;
    }

    fn own_addresses(&self, machine: usize) -> Vec<SocketAddr> {
        let addresses = &self.machines[machine].addresses;
        addresses.iter().map(|(ip, _)| SocketAddr::new(*ip, PORT)).collect()
    }

    /// Moves a machine to another place.
    pub(crate) fn move_to(&mut self, machine: usize, address: &str, site: Option<BoxId>) {
        let addresses = vec![(ip(address), site)];
        self.net.move_host(self.machines[machine].host, &addresses);
        self.machines[machine].addresses = addresses;
        let own = self.own_addresses(machine);
        self.act(machine, |node, now, out| node.set_addresses(now, own, Vec::new(), out));
    }

    pub(crate) fn unix(&self) -> UnixTime {
        UnixTime(UNIX.0 + self.now.since(START).as_secs())
    }

    pub(crate) fn invite(&mut self, machine: usize, terms: Terms, uses: u32) -> Token {
        let until = UnixTime(self.unix().0 + 86_400);
        let range = Some("100.87.0.0/16".parse().unwrap());
        let terms = Terms { range, ..terms };
        self.act(machine, |node, now, out| node.invite(now, terms, uses, until, out)).unwrap()
    }

    /// Makes a machine know only a different port of another machine.
    pub(crate) fn hint_port(&mut self, machine: usize, of: usize, port: u16) {
        let (key, (ip, _)) = (self.machines[of].key, self.machines[of].addresses[0]);
        self.machines[machine].hints = vec![(key, vec![SocketAddr::new(ip, port)])];
    }

    /// Passes a machine another one's address.
    pub(crate) fn hint(&mut self, machine: usize, of: usize) {
        let (key, addresses) = (self.machines[of].key, self.own_addresses(of));
        self.machines[machine].hints.push((key, addresses));
    }

    /// Begins to join with a token. The node starts by itself once it is admitted.
    pub(crate) fn join(&mut self, machine: usize, token: Token, as_name: &str) {
        let it = &mut self.machines[machine];
        it.hints = vec![(*token.inviter(), token.addresses().to_vec())];
        it.stream_hints = vec![(*token.inviter(), token.tcp_addresses())];
        let unix = UnixTime(UNIX.0 + self.now.since(START).as_secs() + it.clock);
        it.compared = vec![(*token.inviter(), unix)];
        let key = signing_key(it.seed);
        let seed = [it.seed ^ 0x80; 32];
        let joining = Joining::new(&key, token, name(as_name), seed, self.now, unix).unwrap();
        it.joining = Some(joining);
        it.changed();
        self.input(machine, Input::Tick);
    }

    /// Joins, and waits until the node runs.
    pub(crate) fn join_all(&mut self, inviter: usize, machines: &[usize]) {
        for &machine in machines {
            let token = self.invite(inviter, Terms::default(), 1);
            self.join(machine, token, &format!("node{machine}"));
            let joined = |w: &Self| w.machines[machine].join_result.is_some();
            assert!(self.run_until(SECOND * 10, joined), "{machine} does not join");
            assert_eq!(self.machines[machine].join_result, Some(Ok(())));
        }
    }

    pub(crate) fn act<R>(
        &mut self,
        machine: usize,
        act: impl FnOnce(&mut Node, Instant, &mut Outbox<NodeEvent>) -> R,
    ) -> R {
        let (now, mut out) = (self.now, Outbox::new());
        let node = self.machines[machine].node.as_mut().expect("a running node");
        let result = act(node, now, &mut out);
        self.perform(machine, out);
        // Like the driver: asks for the deadline after each call, and calls the node if it is due.
        if self.machines[machine].due().is_some_and(|at| at <= self.now) {
            self.input(machine, Input::Tick);
        }
        result
    }

    pub(crate) fn input(&mut self, machine: usize, input: Input<'_>) {
        let now = self.now;
        let it = &mut self.machines[machine];
        if let Some(joining) = &mut it.joining {
            let mut out = Outbox::new();
            joining.handle(now, input, &mut out);
            self.perform_joining(machine, out);
        } else if let Some(node) = &mut it.node {
            let mut out = Outbox::new();
            node.handle(now, input, &mut out);
            self.perform(machine, out);
        }
    }

    fn perform_joining(&mut self, machine: usize, mut out: Outbox<JoinEvent>) {
        self.machines[machine].changed();
        while let Some(output) = out.pop() {
            match output {
                Output::Send(link, packet) => self.transmit(machine, link, packet),
                Output::Event(JoinEvent::OpenStream(to)) => self.open_stream(machine, to),
                Output::Event(event) => self.joined(machine, event),
                Output::Hangup(link) => self.hang_up(machine, link),
                other => panic!("an output that joining has not: {other:?}"),
            }
        }
    }

    fn joined(&mut self, machine: usize, event: JoinEvent) {
        let it = &mut self.machines[machine];
        match event {
            JoinEvent::Joined(joined) => {
                it.join_result = Some(Ok(()));
                it.joining = None;
                self.start(machine, joined.changes);
            }
            JoinEvent::OpenStream(_) => {}
            JoinEvent::Waiting(waits) => it.waits = Some(waits),
            JoinEvent::Failed(failure) => it.join_result = Some(Err(failure.to_string())),
        }
    }

    fn perform(&mut self, machine: usize, mut out: Outbox<NodeEvent>) {
        self.machines[machine].changed();
        let mut notices = Vec::new();
        while let Some(output) = out.pop() {
            match output {
                Output::Send(link, packet) => self.transmit(machine, link, packet),
                Output::Plane(command) => {
                    self.machines[machine].plane.apply(command, &mut notices);
                }
                Output::Event(NodeEvent::OpenSockets { peer, count }) => {
                    self.open_sockets(machine, &peer, count);
                }
                Output::Event(NodeEvent::OpenStream(to)) => self.open_stream(machine, to),
                Output::Hangup(link) => self.hang_up(machine, link),
                Output::Event(NodeEvent::CloseSockets(sockets)) => {
                    self.machines[machine].ports.retain(|socket, _| !sockets.contains(socket));
                }
                Output::Event(event) => self.machines[machine].events.push(event),
                other => panic!("an output that no node has: {other:?}"),
            }
        }
        for notice in notices {
            self.input(machine, Input::Notice(notice));
        }
    }

    /// Asserts that a node has neither a session with nor a route to any node that it knows to be revoked.
    fn assert_cut_off(&self, machine: usize) {
        let it = &self.machines[machine];
        let Some(node) = &it.node else { return };
        for key in node.roster().revoked() {
            let report = node.peer(self.now, key);
            assert!(report.connected_for.is_none(), "{machine} has a session: {report:?}");
            let address = IpAddr::from(ipv6_of(node.changes().mesh(), key));
            assert!(!self.has_way(machine, address), "{machine} has a route to a removed node");
        }
    }

    fn open_sockets(&mut self, machine: usize, peer: &KeyHash, count: usize) {
        let ports = &mut self.machines[machine].ports;
        let free = (1..).filter(|number| !ports.contains_key(&SocketId(*number)));
        let opened: Vec<SocketId> = free.take(count).map(SocketId).collect();
        ports.extend(opened.iter().map(|socket| (*socket, PORT + socket.0)));
        self.act(machine, |node, now, out| node.sockets_opened(now, peer, opened, out));
    }

    fn transmit(&mut self, machine: usize, link: Link, packet: Vec<u8>) {
        if link.is_stream() {
            return self.transmit_on_stream(machine, link, packet);
        }
        let Machine { host, ports, no_udp, .. } = &self.machines[machine];
        if *no_udp {
            return;
        }
        let socket = link.socket().expect("a datagram's link");
        // As with the real driver, packets sent from a closed socket are lost.
        let Some(&port) = ports.get(&socket) else { return };
        let host = *host;
        self.machines[machine].sent_bytes += packet.len() as u64 + HEADERS;
        match link.local() {
            Some(local) => {
                let from = SocketAddr::new(local, port);
                self.net.send_from(self.now, host, from, link.remote(), packet);
            }
            None => self.net.send(self.now, host, port, link.remote(), packet),
        }
    }

    /// Sends a packet in the mesh from one node to another one's address.
    pub(crate) fn send(&mut self, from: usize, to: usize, number: u64) {
        let Some(node) = &self.machines[from].node else { return };
        let member = node.roster().member(&self.machines[to].key);
        let Some(destination) = member.map(|member| IpAddr::from(member.ipv6)) else { return };
        let plane = &mut self.machines[from].plane;
        let channels = plane.to(destination);
        plane.sent += 1;
        let next = channels.get(plane.sent % channels.len().max(1));
        let Some(channel) = next.and_then(|id| plane.channels.get_mut(id)) else {
            return self.input(from, Input::Notice(Notice::Unrouted(destination)));
        };
        channel.packets += 1;
        let mut packet = vec![DATA];
        packet.extend(channel.wire_id.to_be_bytes());
        packet.extend(number.to_be_bytes());
        packet.push(from as u8);
        let channel = channel.clone();
        self.transmit_on(from, &channel, packet);
    }

    /// Sends a packet on a data channel.
    fn transmit_on(&mut self, machine: usize, channel: &Channel, packet: Vec<u8>) {
        let it = &self.machines[machine];
        let link = match channel.relay {
            Some(relay) => it.plane.channels.get(&relay).map(|relay| relay.link),
            None => Some(channel.link),
        };
        let open = |socket| it.ports.contains_key(&socket);
        let is_open = |link: &Link| link.is_stream() || link.socket().is_some_and(open);
        if let Some(link) = link.filter(is_open) {
            self.transmit(machine, link, packet);
        }
    }

    /// Returns when the next ping of a machine is due.
    fn ping_due(&self, machine: &Machine) -> Option<Instant> {
        // A channel without a time has just been created.
        let due = machine.plane.channels.values().map(|it| it.next_ping.unwrap_or(self.now));
        due.min().filter(|_| self.pings)
    }

    /// Sends the pings that are due. The channels of a session share those of the first one.
    fn send_pings(&mut self, machine: usize) {
        let now = self.now;
        let mut due = Vec::new();
        for channel in self.machines[machine].plane.channels.values_mut() {
            let interval = channel.keepalive.interval;
            let next = *channel.next_ping.get_or_insert(now + interval);
            if next <= now {
                channel.next_ping = Some(now + interval);
                due.push(channel.clone());
            }
        }
        for channel in due.iter().filter(|channel| channel.channel_of.is_none()) {
            let mut packet = vec![PING];
            packet.extend(channel.wire_id.to_be_bytes());
            packet.resize(PING_LEN, 0);
            packet[13] = machine as u8;
            self.transmit_on(machine, channel, packet);
        }
    }

    /// Returns the bytes that a machine has sent.
    pub(crate) fn sent_bytes(&self, machine: usize) -> u64 {
        self.machines[machine].sent_bytes + self.machines[machine].plane.probe_bytes
    }

    /// Opens a stream to the machine that accepts streams at an address.
    fn open_stream(&mut self, machine: usize, to: SocketAddr) {
        let later = self.now + DELAY * 2;
        let accepts = |it: &Machine| {
            it.accepts_streams
                && it.node.is_some()
                && to.port() == TCP_PORT
                && it.addresses.iter().any(|(ip, _)| *ip == to.ip())
        };
        let Some(other) = self.machines.iter().position(accepts) else {
            let event = StreamEvent::Opened { machine, to, link: None };
            return self.stream_events.push_back((later, event));
        };
        let id = 2 * self.streams.len() as u64 + 1;
        let (address, site) = self.machines[machine].addresses[0];
        // Behind a NAT, the other end would see the NAT's address; here any address will do.
        let from = if site.is_some() { ip("203.0.113.99") } else { address };
        let link = Link::stream(id, to);
        let accepted = Link::stream(id + 1, SocketAddr::new(from, 40_000 + id as u16));
        self.streams.push([(machine, link), (other, accepted)]);
        self.input_stream(later, StreamEvent::Accepted { machine: other, link: accepted });
        self.input_stream(later, StreamEvent::Opened { machine, to, link: Some(link) });
    }

    fn input_stream(&mut self, at: Instant, event: StreamEvent) {
        self.stream_events.push_back((at, event));
    }

    /// Returns the other end of a stream.
    fn other_end(&self, machine: usize, link: Link) -> Option<(usize, Link)> {
        self.streams.iter().find_map(|[a, b]| match (machine, link) {
            end if end == *a => Some(*b),
            end if end == *b => Some(*a),
            _ => None,
        })
    }

    fn transmit_on_stream(&mut self, from: usize, link: Link, packet: Vec<u8>) {
        if let Some((machine, link)) = self.other_end(from, link) {
            self.machines[from].stream_packets += 1;
            self.machines[from].sent_bytes += packet.len() as u64 + STREAM_LENGTH + TCP_HEADERS;
            let event = StreamEvent::Packet { machine, link, packet };
            self.input_stream(self.now + DELAY, event);
        }
    }

    fn hang_up(&mut self, from: usize, link: Link) {
        if let Some((machine, link)) = self.other_end(from, link) {
            self.input_stream(self.now + DELAY, StreamEvent::Ended { machine, link });
        }
    }

    /// Ends all streams of a machine, as if the connections broke.
    pub(crate) fn cut_streams(&mut self, machine: usize) {
        let of_machine = |ends: &&[(usize, Link); 2]| ends.iter().any(|end| end.0 == machine);
        let ends: Vec<(usize, Link)> =
            self.streams.iter().filter(of_machine).copied().flatten().collect();
        for (machine, link) in ends {
            self.input_stream(self.now, StreamEvent::Ended { machine, link });
        }
    }

    fn stream_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Opened { machine, to, link } => {
                let (now, mut out) = (self.now, Outbox::new());
                let it = &mut self.machines[machine];
                if let (Some(joining), Some(link)) = (&mut it.joining, link) {
                    let mut out = Outbox::new();
                    joining.stream_opened(now, link, &mut out);
                    self.perform_joining(machine, out);
                } else if let Some(node) = &mut it.node {
                    node.stream_opened(now, to, link, &mut out);
                    self.perform(machine, out);
                }
            }
            StreamEvent::Accepted { machine, link } => self.input(machine, Input::LinkUp(link)),
            StreamEvent::Packet { machine, link, packet } => {
                if self.other_end(machine, link).is_some() {
                    self.machines[machine].sent_bytes += TCP_HEADERS;
                    self.arrived(machine, link, packet);
                }
            }
            StreamEvent::Ended { machine, link } => {
                self.streams.retain(|ends| !ends.contains(&(machine, link)));
                self.input(machine, Input::LinkDown(link));
            }
        }
    }

    fn deliver(&mut self, delivery: Delivery) {
        let Some(machine) = self.machines.iter().position(|it| it.host == delivery.host) else {
            return;
        };
        let it = &self.machines[machine];
        if it.no_udp || it.one_source_port && delivery.from.port() != PORT {
            return;
        }
        let ports = &self.machines[machine].ports;
        let socket = ports.iter().find(|(_, port)| **port == delivery.to.port());
        let Some((socket, _)) = socket else { return };
        let link = Link::datagram(*socket, Some(delivery.to.ip()), delivery.from);
        self.arrived(machine, link, delivery.payload);
    }

    fn arrived(&mut self, machine: usize, link: Link, mut packet: Vec<u8>) {
        if !matches!(packet.first(), Some(&(DATA | PING))) {
            return self.input(machine, Input::ControlPacket(link, &mut packet));
        }
        if self.machines[machine].node.is_none() {
            return;
        }
        let wire_id = u32::from_be_bytes(packet[1..5].try_into().unwrap());
        let number = u64::from_be_bytes(packet[5..13].try_into().unwrap());
        let sender = self.machines[usize::from(packet[13])].key;
        let it = &mut self.machines[machine];
        let from = it.plane.channels.iter().find(|(_, channel)| {
            channel.relay.is_none()
                && channel.channel_of.is_none()
                && channel.link.remote() == link.remote()
        });
        let from = from.map(|(id, _)| *id);
        // Accept packets to this node's own channels from every path; splice packets with other ids.
        let spliced = from.is_some_and(|from| it.plane.splices.contains_key(&(from.0, wire_id)));
        let own = !spliced && it.plane.channels.contains_key(&PeerId(wire_id));
        if own && packet.first() == Some(&PING) {
            return;
        }
        if own {
            if let Some(channel) = it.plane.channels.get_mut(&PeerId(wire_id)) {
                channel.packets += 1;
                channel.received += 1;
            }
            it.received.push(number);
            it.sources.insert(link.remote());
            let roster = it.node.as_ref().expect("a running node").roster();
            assert!(
                !roster.revoked().contains(&sender),
                "{machine} accepts a removed node's packet"
            );
            return;
        }
        let to = from.and_then(|from| it.plane.splices.get(&(from.0, wire_id)));
        let to = to.and_then(|to| it.plane.channels.get(to)).map(|channel| channel.link);
        if let Some(to) = to {
            it.relayed += 1;
            self.transmit(machine, to, packet);
        }
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Runs until `done`, at most for `time`. Returns whether it was reached.
    pub(crate) fn run_until(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let until = self.now + time;
        loop {
            if done(self) {
                return true;
            }
            let timers = self.machines.iter().filter_map(Machine::due);
            let on_streams = self.stream_events.iter().map(|(at, _)| *at);
            let pings = self.machines.iter().filter_map(|machine| self.ping_due(machine));
            let next = self.net.next_arrival().into_iter().chain(timers).chain(on_streams);
            let next = next.chain(pings).min();
            let Some(next) = next.filter(|at| *at <= until) else {
                self.now = until;
                return done(self);
            };
            self.now = self.now.max(next);
            while let Some(delivery) = self.net.pop(self.now) {
                self.deliver(delivery);
            }
            let now = self.now;
            let due = |(at, _): &(Instant, StreamEvent)| *at <= now;
            while let Some(at) = self.stream_events.iter().position(due) {
                if let Some((_, event)) = self.stream_events.remove(at) {
                    self.stream_event(event);
                }
            }
            for machine in 0..self.machines.len() {
                if self.ping_due(&self.machines[machine]).is_some_and(|at| at <= self.now) {
                    self.send_pings(machine);
                }
                for tick in 0.. {
                    let due = self.machines[machine].due().filter(|at| *at <= self.now);
                    if due.is_none() {
                        break;
                    }
                    assert!(tick < 10, "{machine}: a deadline stays due: {:?}", due);
                    self.input(machine, Input::Tick);
                }
            }
            for machine in 0..self.machines.len() {
                if std::mem::take(&mut self.machines[machine].is_changed) {
                    self.assert_cut_off(machine);
                }
            }
        }
    }

    /// Sends packets from one node to another every 50 ms, until one has arrived that was sent `after` this call began.
    /// Returns the time that it took.
    pub(crate) fn ping(&mut self, from: usize, to: usize, within: Duration) -> Option<Duration> {
        let began = self.now;
        let already = self.machines[to].received.len();
        while self.now.since(began) < within {
            let number = self.now.as_nanos();
            self.send(from, to, number);
            let arrived = |w: &Self| w.machines[to].received.len() > already;
            if self.run_until(MS * 50, arrived) {
                return Some(self.now.since(began));
            }
        }
        None
    }

    /// Sends packets both ways for a time. Returns the longest gap without an arrival at either end.
    pub(crate) fn talk(&mut self, a: usize, b: usize, time: Duration) -> Duration {
        let began = self.now;
        let mut last = [began; 2];
        let mut longest = Duration::ZERO;
        while self.now.since(began) < time {
            let counts = [a, b].map(|it| self.machines[it].received.len());
            let number = self.now.as_nanos();
            self.send(a, b, number);
            self.send(b, a, number);
            self.run_for(MS * 50);
            for (at, it) in [a, b].into_iter().enumerate() {
                if self.machines[it].received.len() > counts[at] {
                    last[at] = self.now;
                }
                longest = longest.max(self.now.since(last[at]));
            }
        }
        longest
    }

    /// Returns the channels of a machine whose packets to this address are sent to another one.
    pub(crate) fn has_way(&self, machine: usize, address: IpAddr) -> bool {
        let mut channels = self.machines[machine].plane.channels.values();
        channels.any(|channel| channel.routes.iter().any(|route| route.contains(&address)))
    }

    /// Returns the interval at which a machine pings another one.
    pub(crate) fn ping_interval(&self, from: usize, to: usize) -> Option<Duration> {
        let to = IpAddr::from(self.node(from).roster().member(&self.machines[to].key)?.ipv6);
        let leads = |channel: &&Channel| channel.routes.iter().any(|route| route.contains(&to));
        let channel = self.machines[from].plane.channels.values().find(leads)?;
        Some(channel.keepalive.interval)
    }

    /// Returns the packets that arrived on each channel of a node's session with another one.
    pub(crate) fn received_by_channel(&self, at: usize, from: usize) -> Vec<u64> {
        let channels = self.node(at).channels(&self.machines[from].key);
        let plane = &self.machines[at].plane;
        channels.iter().map(|id| plane.channels[id].received).collect()
    }

    /// Returns the number of channels, splices and ids in a machine's data plane.
    pub(crate) fn plane_len(&self, machine: usize) -> (usize, usize) {
        let plane = &self.machines[machine].plane;
        (plane.channels.len(), plane.splices.len())
    }

    /// Returns how a node reaches another one.
    pub(crate) fn route(&self, from: usize, to: usize) -> RouteKind {
        let node = self.machines[from].node.as_ref().expect("a running node");
        node.peer(self.now, &self.machines[to].key).route
    }

    /// Returns how often a session of a node has begun.
    pub(crate) fn connections(&self, machine: usize) -> usize {
        let begins = |event: &&NodeEvent| matches!(event, NodeEvent::Connected { .. });
        self.machines[machine].events.iter().filter(begins).count()
    }

    pub(crate) fn is_direct(&self, a: usize, b: usize) -> bool {
        let direct = |from, to| matches!(self.route(from, to), RouteKind::Direct(_));
        direct(a, b) && direct(b, a)
    }

    pub(crate) fn is_relayed(&self, a: usize, b: usize) -> bool {
        let relayed = |from, to| matches!(self.route(from, to), RouteKind::Relay(_));
        relayed(a, b) && relayed(b, a)
    }

    /// From now on, drops everything that a machine sends to an address.
    pub(crate) fn lose(&mut self, from: usize, to: &str) {
        let impairment = Impairment { loss: Loss::Random(1.0), ..Impairment::default() };
        self.net.set_impairment(self.machines[from].host, ip(to), impairment);
    }

    /// Prints the peers of a node.
    pub(crate) fn explain_peers(&self, of: usize) {
        for machine in 0..self.machines.len() {
            let report = self.node(of).peer(self.now, &self.machines[machine].key);
            println!("{machine} {:?} {} {:?}", report.route, report.standing, report.connected_for);
        }
        println!("{:?}", self.node(of).counters());
        println!("{:?}", self.machines[of].events);
    }

    /// Prints the state that decides where packets between two nodes go.
    pub(crate) fn explain(&self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            let it = &self.machines[from];
            let member = self.node(from).roster().member(&self.machines[to].key).unwrap();
            let routed = it.plane.channels.iter().find(|(_, channel)| {
                channel.routes.iter().any(|route| route.contains(&IpAddr::from(member.ipv6)))
            });
            println!("{from} -> {to}: {routed:?} {:?}", self.route(from, to));
            println!(
                "relay's channel: {:?}",
                routed.and_then(|(_, c)| c.relay).map(|r| it.plane.channels.get(&r))
            );
            println!("{:?}", self.node(from).path(self.now, &self.machines[to].key));
        }
        for relay in [0, 1] {
            let it = &self.machines[relay];
            println!("relay {relay} {:?}: {:?}", it.key, it.plane.splices);
            for (id, channel) in &it.plane.channels {
                println!("   {id:?} {:?}", channel.link);
            }
        }
    }

    pub(crate) fn node(&self, machine: usize) -> &Node {
        self.machines[machine].node.as_ref().expect("a running node")
    }
}

impl Machine {
    /// Returns when the node wants to be called. It is asked once after each call: asking all nodes after each event would take
    /// most of a test's time.
    fn due(&self) -> Option<Instant> {
        if self.deadline.get().is_none() {
            let joining = self.joining.as_ref().and_then(Engine::due);
            let due = joining.or_else(|| self.node.as_ref().and_then(Engine::due));
            self.deadline.set(Some(due));
        }
        self.deadline.get().flatten()
    }

    fn changed(&mut self) {
        self.deadline.set(None);
        self.is_changed = true;
    }
}

impl Plane {
    /// Returns the channels of the session that leads to an address.
    fn to(&self, address: IpAddr) -> Vec<PeerId> {
        let routed = |channel: &Channel| channel.routes.iter().any(|net| net.contains(&address));
        let Some((first, _)) = self.channels.iter().find(|(_, channel)| routed(channel)) else {
            return Vec::new();
        };
        let further = self.channels.iter().filter(|(_, it)| it.channel_of == Some(*first));
        std::iter::once(*first).chain(further.map(|(id, _)| *id)).collect()
    }

    fn apply(&mut self, command: Command, notices: &mut Vec<Notice>) {
        match command {
            Command::AddPeer(id, spec) => {
                let wire_id = spec.layout.wire_id.expect("an id");
                let channel = Channel {
                    link: spec.link,
                    relay: None,
                    wire_id,
                    routes: Vec::new(),
                    keepalive: spec.keepalive,
                    next_ping: None,
                    channel_of: spec.channel_of,
                    packets: 0,
                    received: 0,
                };
                assert!(self.channels.insert(id, channel).is_none(), "an id is used twice");
            }
            Command::SetLink(id, link) => {
                let channel = self.channels.get_mut(&id).expect("a channel");
                (channel.link, channel.relay) = (link, None);
            }
            Command::SetKeepalive(id, keepalive) => {
                self.channels.get_mut(&id).expect("a channel").keepalive = keepalive;
            }
            Command::SetRelay(id, relay) => {
                self.channels.get_mut(&id).expect("a channel").relay = Some(relay);
            }
            Command::SetRoutes(id, routes) => {
                self.channels.get_mut(&id).expect("a channel").routes = routes;
            }
            Command::DelPeer(id) => {
                self.channels.remove(&id).expect("a channel");
                self.splices.retain(|(from, _), to| *from != id.0 && *to != id);
                notices.push(Notice::PeerGone(id, Default::default()));
            }
            Command::AddSplice(splice) => {
                self.splices.insert(spliced(splice.id), splice.to);
            }
            Command::DelSplice(id) => {
                self.splices.remove(&spliced(id));
            }
            Command::ReadTraffic(id) => {
                let packets = self.channels.get(&id).map_or(0, |channel| channel.packets);
                notices.push(Notice::Traffic(id, Traffic { packets, ..Traffic::default() }));
            }
            Command::ProbePath(id, size) => {
                // Every path carries it, and the peer answers.
                let received = size.saturating_sub(HEADERS as u16).to_be_bytes();
                let answer = [&OCC_MAGIC[..], &[MTU_REPLY], &received, &[0, 0]].concat();
                self.probe_bytes += u64::from(size) + (PING_LEN + answer.len()) as u64 + HEADERS;
                notices.push(Notice::InBand(id, answer));
            }
            _ => {}
        }
    }
}

/// Returns the key of a splice in the table of a plane.
fn spliced(id: SpliceId) -> (u32, u32) {
    let SpliceLabel::PeerId(peer_id) = id.label else { panic!("{id:?}") };
    (id.from.0, peer_id)
}
