//! A relay whose plane and node get the same datagrams, in a net of real nodes without sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::{Relay, Upcall};
use adit_engine::command::Float;
use adit_engine::{Link, Notice, Random, SocketId};
use adit_tinc::config::{Address, HostConfig, ServerConfig};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeId;
use adit_tinc::node::{ConnectionId, NodeConfig, Output};
use adit_tinc_data::{LoopbackPlane, PeerSpec, Upcalls};

use super::*;

/// The relay, its neighbours, and a node that only dave knows.
const RELAY: usize = 0;
const BOB: usize = 1;
const CAROL: usize = 2;
const DAVE: usize = 3;
const ERIN: usize = 4;
const NAMES: [&str; 5] = ["relay", "bob", "carol", "dave", "erin"];

/// The longest datagram between two hosts.
const WIDTH: usize = 1400;

type Sent = (SocketAddr, Vec<u8>);

fn name(host: usize) -> NodeName {
    NAMES[host].parse().unwrap()
}

fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + host as u8], 655))
}

fn link(from: SocketAddr) -> Link {
    Link::datagram(SocketId(0), None, from)
}

fn id(host: usize) -> NodeId {
    name(host).id()
}

/// Returns a datagram of this length.
fn datagram(to: NodeId, from: NodeId, len: usize) -> Vec<u8> {
    let mut bytes = [to.0, from.0].concat();
    bytes.resize(len, 0x5a);
    bytes
}

/// Nodes whose bytes arrive at once.
struct Net {
    now: Instant,
    nodes: Vec<Node>,
    ends: BTreeMap<(usize, ConnectionId), (usize, ConnectionId)>,
    /// The datagrams that the relay has sent on.
    relayed: Vec<Sent>,
}

impl Net {
    /// Creates the nodes. dave is reached by UDP through its neighbours only.
    fn new() -> Self {
        let connect_to: [&[usize]; 5] = [&[], &[RELAY], &[RELAY], &[RELAY], &[DAVE]];
        let now = Instant::from_nanos(1_000_000_000_000);
        let key = |host: usize| Arc::new(PrivateKey::from_seed(&[1 + host as u8; 32]));
        let create = |host: usize| {
            let others = (0..NAMES.len()).filter(|other| *other != host).map(|other| {
                let at = Address { host: address(other).ip().to_string(), port: None };
                let public_key = Some(key(other).public());
                (
                    name(other),
                    HostConfig { public_key, addresses: vec![at], ..HostConfig::default() },
                )
            });
            let mut server = ServerConfig {
                connect_to: connect_to[host].iter().map(|other| name(*other)).collect(),
                auto_connect: false,
                ..ServerConfig::default()
            };
            server.own.indirect_data = host == ERIN;
            let config = NodeConfig {
                name: name(host),
                key: key(host),
                server,
                hosts: others.collect(),
                udp_port: 655,
            };
            Node::new(config, now, Random::new([9 + host as u8; 32]))
        };
        let nodes = (0..NAMES.len()).map(create).collect();
        Self { now, nodes, ends: BTreeMap::new(), relayed: Vec::new() }
    }

    fn relay(&mut self) -> &mut Node {
        &mut self.nodes[RELAY]
    }

    /// Lets time pass, in which the relay sends packets to its neighbours.
    fn wait(&mut self, seconds: u64) {
        for _ in 0..3 * seconds {
            self.now = self.now + Duration::from_millis(334);
            for host in 0..self.nodes.len() {
                self.nodes[host].tick(self.now);
                if host != RELAY {
                    self.nodes[RELAY].send_packet(self.now, &name(host), &[0x45; 20]);
                }
            }
            self.pump();
        }
    }

    fn pump(&mut self) {
        while let Some((host, output)) =
            (0..self.nodes.len()).find_map(|host| Some((host, self.nodes[host].pop()?)))
        {
            self.perform(host, output);
        }
    }

    fn perform(&mut self, host: usize, output: Output) {
        let host_at = |at: SocketAddr| (0..NAMES.len()).find(|other| address(*other) == at);
        match output {
            Output::Dial { connection, address: to } => {
                let other = host_at(to).unwrap();
                let accepted = self.nodes[other].accept(self.now, address(host), to).unwrap();
                self.ends.insert((host, connection), (other, accepted));
                self.ends.insert((other, accepted), (host, connection));
                self.nodes[host].connected(self.now, connection, address(host));
            }
            Output::Send { connection, bytes } => {
                if let Some((other, id)) = self.ends.get(&(host, connection)).copied() {
                    self.nodes[other].receive(self.now, id, &bytes);
                }
            }
            Output::Close { connection, .. } => self.cut(host, connection),
            Output::Datagram { to, bytes, .. } if bytes[..6] != NodeId::DIRECT.0 => {
                // Those of the relay itself go through dave.
                let is_own = bytes[6..12] == id(RELAY).0;
                self.relayed.extend(Some((to, bytes)).filter(|_| host == RELAY && !is_own));
            }
            Output::Datagram { to, mut bytes, .. } => {
                if let Some(other) = host_at(to).filter(|_| bytes.len() <= WIDTH) {
                    self.nodes[other].datagram(self.now, SocketId(0), address(host), &mut bytes);
                }
            }
            _ => {}
        }
    }

    fn cut(&mut self, host: usize, connection: ConnectionId) {
        if let Some((other, id)) = self.ends.remove(&(host, connection)) {
            self.ends.remove(&(other, id));
            self.nodes[other].closed(self.now, id);
        }
    }

    /// Separates a host from the relay.
    fn part(&mut self, host: usize) {
        let end = self.ends.iter().find(|((from, _), (to, _))| (*from, *to) == (RELAY, host));
        let ((_, connection), _) = end.unwrap();
        let connection = *connection;
        self.cut(RELAY, connection);
        self.nodes[RELAY].closed(self.now, connection);
        self.pump();
    }
}

/// The relay with its plane.
struct Bed {
    net: Net,
    plane: LoopbackPlane,
    upcalls: Upcalls,
    transits: Transits,
    peers: BTreeMap<NodeName, PeerId>,
}

impl Bed {
    /// Creates a relay that knows how to reach its neighbours by UDP.
    fn new() -> Self {
        let (plane, upcalls) =
            LoopbackPlane::new(Relay::Kernel, false, true, || Instant::from_nanos(1)).unwrap();
        plane.plane().hand_up(false);
        let mut net = Net::new();
        net.wait(40);
        let (transits, peers) = (Transits::default(), BTreeMap::new());
        let mut bed = Self { net, plane, upcalls, transits, peers };
        bed.reconcile();
        assert_eq!(bed.peers.len(), 3, "{:?}", bed.peers);
        bed
    }

    /// Brings the plane in line with the node, as the daemon does.
    fn reconcile(&mut self) {
        let node = &mut self.net.nodes[RELAY];
        let mut changes = node.take_changed_paths();
        if changes.all {
            changes.nodes = (0..NAMES.len()).map(name).collect();
        }
        let plane = self.plane.plane();
        for changed in &changes.nodes {
            let known = self.peers.get(changed).copied();
            match (node.confirmed_address(changed), known) {
                (Some(at), None) => {
                    let id =
                        PeerId(NAMES.iter().position(|it| changed.as_str() == *it).unwrap() as u32);
                    let spec =
                        PeerSpec { float: Float::Refuse, ..PeerSpec::plain(link(at.address)) };
                    plane.apply(Command::AddPeer(id, spec));
                    self.peers.insert(changed.clone(), id);
                }
                (Some(at), Some(id)) => plane.apply(Command::SetLink(id, link(at.address))),
                (None, Some(id)) => {
                    plane.apply(Command::DelPeer(id));
                    self.peers.remove(changed);
                }
                (None, None) => {}
            }
        }
        let peers = &self.peers;
        let known = |name: &NodeName| peers.get(name).copied();
        self.transits.update(&changes.nodes, changes.transits, node, plane, known);
    }

    /// Passes a train to the node. Returns what it relays.
    fn by_node(&mut self, from: SocketAddr, segment: usize, train: &[u8]) -> Vec<Sent> {
        for datagram in train.chunks(segment) {
            let now = self.net.now;
            self.net.relay().datagram(now, SocketId(0), from, &mut datagram.to_vec());
        }
        self.net.pump();
        std::mem::take(&mut self.net.relayed)
    }

    /// Passes a train to the plane, and what comes up to the node. Returns what the plane relays, and what the node does.
    fn by_plane(
        &mut self,
        from: SocketAddr,
        segment: usize,
        train: &[u8],
    ) -> (Vec<Sent>, Vec<Sent>) {
        let mut relayed = Vec::new();
        self.plane.open(&link(from), segment, &mut train.to_vec(), |what| match what {
            LoopbackOutput::Sealed(to, segment, packets) => {
                let packets = packets.chunks(segment);
                relayed.extend(packets.map(|one| (address(to.0 as usize), one.to_vec())));
            }
            other => panic!("{other:?}"),
        });
        let mut up = Vec::new();
        self.upcalls.drain(|upcall| match upcall {
            Upcall::ControlPacket(link, bytes) | Upcall::Unauthenticated(link, bytes) => {
                up.push((link.remote(), bytes));
            }
            Upcall::Notice(Notice::PeerGone(..)) => {}
            other => panic!("{other:?}"),
        });
        let node = up.into_iter().flat_map(|(from, bytes)| self.by_node(from, bytes.len(), &bytes));
        let node = node.collect();
        self.reconcile();
        (relayed, node)
    }

    /// Returns whether the plane relays a datagram, after the node has seen one like it.
    fn relays(&mut self, from: SocketAddr, datagram: &[u8]) -> bool {
        self.by_plane(from, datagram.len(), datagram);
        let (relayed, by_node) = self.by_plane(from, datagram.len(), datagram);
        assert!(relayed.is_empty() || by_node.is_empty());
        !relayed.is_empty()
    }

    fn counted(&mut self) -> u64 {
        let now = self.net.now;
        self.transits.count(&mut self.net.nodes[RELAY], self.plane.plane(), now);
        self.net.relay().counters().relayed
    }
}

#[test]
fn the_plane_relays_what_follows_the_first_datagram_in_whole_trains() {
    let mut bed = Bed::new();
    let train = vec![datagram(id(CAROL), id(BOB), 700); 40].concat();
    let train = [train, datagram(id(CAROL), id(BOB), 90)].concat();
    let all: Vec<Sent> = train.chunks(700).map(|bytes| (address(CAROL), bytes.to_vec())).collect();
    assert_eq!(bed.by_plane(address(BOB), 700, &train), (vec![], all.clone()), "the first ones");
    assert_eq!(bed.by_plane(address(BOB), 700, &train), (all, vec![]));
    assert_eq!(bed.counted(), 82);
    assert_eq!(bed.counted(), 82);
    let (relayed, by_node) = bed.by_plane(address(CAROL), 700, &train);
    assert!(relayed.is_empty() && by_node.is_empty(), "not back to where they come from");
}

/// Whatever arrives, the same datagrams leave for the same addresses as from the node alone.
#[test]
fn the_plane_and_the_node_relay_alike() {
    let mut random = Random::new([7; 32]);
    let mut bed = Bed::new();
    let (mut by_plane, mut by_node) = (0, 0);
    for round in 0..3000 {
        let host = |random: &mut Random| random.below(NAMES.len() as u32 + 1) as usize;
        let (to, from, hop) = (host(&mut random), host(&mut random), host(&mut random));
        let node = |host: usize| if host < NAMES.len() { id(host) } else { NodeId([1; 6]) };
        let from_address = if hop < NAMES.len() { address(hop) } else { address(77) };
        let segment = 1 + random.below(1500) as usize;
        let last = 1 + random.below(segment as u32) as usize;
        let count = 1 + random.below(4) as usize;
        let mut train = datagram(node(to), node(from), segment).repeat(count);
        if random.below(4) == 0 {
            // Datagrams between two others are in the same train.
            train.extend(datagram(node(from), node(to), segment));
        }
        train.truncate(train.len() - segment + last);
        let mut expected = bed.by_node(from_address, segment, &train);
        bed.reconcile();
        let (plane, node) = bed.by_plane(from_address, segment, &train);
        (by_plane, by_node) = (by_plane + plane.len(), by_node + node.len());
        let mut found = [plane, node].concat();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{round}: {to} {from} {hop} {segment} {last} {count}");
        if round % 500 == 499 {
            let other = [BOB, CAROL, DAVE][round / 500 % 3];
            bed.net.part(other);
            bed.net.wait(if round < 1500 { 2 } else { 20 });
            bed.reconcile();
        }
    }
    assert!(by_plane > 100 && by_node > 100, "{by_plane} {by_node}");
}

#[test]
fn the_plane_relays_only_from_a_known_address_and_between_known_nodes() {
    let mut bed = Bed::new();
    let one = datagram(id(CAROL), id(BOB), 500);
    assert!(bed.relays(address(BOB), &one));
    assert!(bed.relays(address(DAVE), &one), "a neighbour may relay, too");
    assert!(!bed.relays(address(77), &one), "a stranger's address");
    assert!(!bed.relays(address(ERIN), &one), "an address that is not confirmed");
    let unknown = NodeId([1; 6]);
    assert!(!bed.relays(address(BOB), &datagram(id(CAROL), unknown, 500)));
    assert!(!bed.relays(address(BOB), &datagram(unknown, id(BOB), 500)));
    assert!(!bed.relays(address(BOB), &datagram(id(RELAY), id(BOB), 500)));
    assert!(!bed.relays(address(BOB), &datagram(id(CAROL), id(RELAY), 500)));
    assert!(!bed.relays(address(CAROL), &one), "a loop");
}

#[test]
fn datagrams_that_take_another_way_come_up() {
    let mut bed = Bed::new();
    let of = |len| datagram(id(CAROL), id(BOB), len);
    assert!(bed.relays(address(BOB), &of(OVERHEAD)));
    assert!(!bed.relays(address(BOB), &of(OVERHEAD - 1)), "no record is as short");
    let info = bed.net.relay().node_infos().into_iter().find(|it| it.name == name(CAROL));
    let longest = usize::from(info.unwrap().mtu.1) + OVERHEAD;
    assert!(longest <= WIDTH);
    assert!(bed.relays(address(BOB), &of(longest)));
    assert!(!bed.relays(address(BOB), &of(longest + 1)), "over TCP");
    let train = [of(longest + 1), of(longest)].concat();
    let (relayed, by_node) = bed.by_plane(address(BOB), longest + 1, &train);
    assert_eq!((relayed.len(), by_node), (0, vec![(address(CAROL), of(longest))]));
    // erin is behind dave.
    assert!(bed.relays(address(BOB), &datagram(id(ERIN), id(BOB), 500)));
    let sent = bed.by_plane(address(BOB), 500, &datagram(id(ERIN), id(BOB), 500)).0;
    assert_eq!(sent[0].0, address(DAVE));
    assert!(!bed.relays(address(DAVE), &datagram(id(ERIN), id(BOB), 500)), "a loop");
}

#[test]
fn the_splices_follow_the_net() {
    for (gone, relayed) in
        [(BOB, [false; 3]), (CAROL, [false, true, true]), (DAVE, [true, false, false])]
    {
        let mut bed = Bed::new();
        let all = [(BOB, CAROL), (BOB, DAVE), (BOB, ERIN)];
        let sent = |from: usize, to: usize| (address(from), datagram(id(to), id(from), 500));
        for (from, to) in all {
            let (from, datagram) = sent(from, to);
            assert!(bed.relays(from, &datagram));
        }
        bed.net.part(gone);
        bed.reconcile();
        for ((from, to), expected) in all.into_iter().zip(relayed) {
            let (from, datagram) = sent(from, to);
            let relays = !bed.by_plane(from, 500, &datagram).0.is_empty();
            assert_eq!(relays, expected, "{gone}: to {to}");
        }
        let live = relayed.iter().filter(|it| **it).count();
        assert_eq!(bed.transits.live.len(), live);
        bed.net.wait(60);
        bed.reconcile();
        for (from, to) in all {
            let (from, datagram) = sent(from, to);
            assert!(bed.relays(from, &datagram), "{gone}: {to} again");
        }
    }
}

/// The source is elsewhere in the net, so nothing that the plane knows is its own.
#[test]
fn a_source_that_becomes_unreachable_is_no_longer_relayed() {
    let mut bed = Bed::new();
    let one = datagram(id(CAROL), id(ERIN), 500);
    assert!(bed.relays(address(BOB), &one));
    let end = bed.net.ends.iter().find(|((from, _), (to, _))| (*from, *to) == (DAVE, ERIN));
    let connection = end.unwrap().0.1;
    bed.net.cut(DAVE, connection);
    let now = bed.net.now;
    bed.net.nodes[DAVE].closed(now, connection);
    bed.net.pump();
    bed.reconcile();
    assert!(bed.by_plane(address(BOB), 500, &one).0.is_empty());
    assert!(bed.relays(address(BOB), &datagram(id(CAROL), id(BOB), 500)));
}

#[test]
fn a_narrower_path_narrows_the_splice() {
    let mut bed = Bed::new();
    let one = datagram(id(CAROL), id(BOB), 900);
    assert!(bed.relays(address(BOB), &one));
    let now = bed.net.now;
    bed.net.relay().too_big(now, address(CAROL), 800);
    bed.reconcile();
    assert!(!bed.relays(address(BOB), &one));
    let peer = bed.peers[&name(CAROL)];
    if let Some(mtu) = bed.transits.mtu(peer) {
        assert!(usize::from(mtu) + OVERHEAD < 800, "{mtu}");
    }
    assert_eq!(bed.transits.mtu(PeerId(99)), None);
}

#[test]
fn traffic_keeps_a_splice_and_its_path_alive() {
    let mut bed = Bed::new();
    let one = datagram(id(CAROL), id(BOB), 500);
    assert!(bed.relays(address(BOB), &one));
    let receivers = |bed: &mut Bed| {
        let now = bed.net.now;
        let receivers = bed.transits.count(&mut bed.net.nodes[RELAY], bed.plane.plane(), now);
        bed.transits.expire(bed.plane.plane());
        receivers
    };
    for _ in 0..2 * MAX_IDLE {
        assert_eq!(receivers(&mut bed), [bed.peers[&name(CAROL)]]);
        assert_eq!(bed.by_plane(address(BOB), 500, &one).0.len(), 1);
    }
    // The time of the next probe has come, and only the relayed datagrams show that the path is in use.
    bed.net.now = bed.net.now + Duration::from_secs(20);
    receivers(&mut bed);
    let probe = std::iter::from_fn(|| bed.net.relay().pop())
        .any(|it| matches!(it, Output::Datagram { to, .. } if to == address(CAROL)));
    assert!(probe);
    for _ in 0..MAX_IDLE {
        assert_eq!(bed.transits.live.len(), 1);
        assert!(receivers(&mut bed).is_empty());
    }
    assert_eq!(bed.transits.live.len(), 0);
    assert!(bed.by_plane(address(BOB), 500, &one).0.is_empty());
}

#[test]
fn one_neighbour_has_a_share_of_the_splices() {
    let mut bed = Bed::new();
    let path = TransitPath::To { node: name(CAROL), mtu: 1000 };
    let mut fill = |hop: PeerId, count: usize| {
        for number in 0..count {
            let mut ids = [7; 12];
            ids[..8].copy_from_slice(&number.to_be_bytes());
            let transit = Transit { hop: name(BOB), ids };
            let live = Live { transit, path: path.clone(), to: PeerId(2), idle: 0 };
            bed.transits.live.insert(SpliceId { from: hop, label: SpliceLabel::Nodes(ids) }, live);
        }
        bed.transits.has_room(PeerId(1))
    };
    assert!(fill(PeerId(1), MAX_OF_HOP - 1));
    assert!(!fill(PeerId(1), MAX_OF_HOP));
    for other in 2..5 {
        fill(PeerId(other), MAX_OF_HOP);
    }
    assert_eq!(bed.transits.live.len(), MAX_SPLICES);
    bed.transits.live.retain(|id, _| id.from != PeerId(1));
    assert!(bed.transits.has_room(PeerId(1)));
}
