//! A node, and scripted nodes whose every line the test decides.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, SocketId};

use crate::base64;
use crate::config::{HostConfig, ServerConfig};
use crate::keys::PrivateKey;
use crate::name::{NodeId, NodeName};
use crate::node::{ConnectionId, Event, Node, NodeConfig, Output};
use crate::sptps::{
    CipherChoice, Datagram, Params, Received, Role, Stream, WindowSize, data_label, meta_label,
};

pub(super) const ACK: &str = "4 655 10 700000c";

pub(super) fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

/// Returns the key of a node by its name.
pub(super) fn key(node: &str) -> Arc<PrivateKey> {
    let seed: [u8; 32] = std::array::from_fn(|at| node.as_bytes()[at % node.len()]);
    Arc::new(PrivateKey::from_seed(&seed))
}

/// Returns the address of a node by its name.
pub(super) fn address(node: &str) -> SocketAddr {
    let last = node.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(7).wrapping_add(byte));
    SocketAddr::from(([192, 0, 2, last], 655))
}

/// The node under test, alice, and its scripted neighbours.
pub(super) struct Bench {
    pub(super) node: Node,
    pub(super) now: Instant,
    pub(super) random: Random,
    members: BTreeMap<String, Member>,
    /// The outputs that are not for a neighbour.
    outputs: Vec<Output>,
}

/// A scripted neighbour.
struct Member {
    id: ConnectionId,
    stream: Stream,
    lines: Vec<String>,
    /// The packets and datagrams that followed their lines.
    packets: Vec<Vec<u8>>,
    expects: Expects,
}

#[derive(PartialEq)]
enum Expects {
    Line,
    Frame,
    Relayed(usize),
}

/// A session of a scripted node with alice.
pub(super) struct RemoteSession {
    pub(super) name: String,
    pub(super) sptps: Datagram,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    /// Creates the node, with host files of six others.
    pub(super) fn with(change: impl FnOnce(&mut NodeConfig)) -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        let hosts = (2..).zip(["aaron", "bob", "carol", "dave", "erin", "frank"]);
        let hosts = hosts.map(|(number, node): (u8, &str)| {
            let public_key = Some(key(node).public());
            let subnets = vec![format!("10.{number}.0.0/16").parse().unwrap()];
            (name(node), HostConfig { public_key, subnets, ..HostConfig::default() })
        });
        let mut config = NodeConfig {
            name: name("alice"),
            key: key("alice"),
            server: ServerConfig { auto_connect: false, ..ServerConfig::default() },
            hosts: hosts.collect(),
            udp_port: 655,
        };
        config.server.own.subnets = vec!["10.1.0.0/16".parse().unwrap()];
        change(&mut config);
        let node = Node::new(config, now, Random::new([1; 32]));
        let (members, outputs) = (BTreeMap::new(), Vec::new());
        Self { node, now, random: Random::new([2; 32]), members, outputs }
    }

    /// Connects a scripted neighbour up to its ACK, which the test sends.
    pub(super) fn handshake(&mut self, who: &str) -> ConnectionId {
        let local = SocketAddr::from(([192, 0, 2, 1], 655));
        let id = self.node.accept(self.now, address(who), local).expect("a place");
        self.node.receive(self.now, id, format!("0 {who} 17.7\n").as_bytes());
        let mut first = self.raw(id);
        let end = first.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        let line: Vec<u8> = first.drain(..end).collect();
        assert_eq!(line, b"0 alice 17.7\n");
        let params = Params {
            role: Role::Initiator,
            key: key(who),
            peer: key("alice").public(),
            label: meta_label(who, "alice"),
            cipher: CipherChoice::default(),
        };
        let mut out = Vec::new();
        let stream = Stream::start(params, &mut self.random, &mut out);
        let member =
            Member { id, stream, lines: Vec::new(), packets: Vec::new(), expects: Expects::Line };
        self.members.insert(who.to_owned(), member);
        self.node.receive(self.now, id, &out);
        self.feed(who, &first);
        self.pump();
        id
    }

    /// Answers a connection that the node opened, up to the neighbour's ACK.
    pub(super) fn finish_handshake(&mut self, who: &str, id: ConnectionId) {
        let params = Params {
            role: Role::Responder,
            key: key(who),
            peer: key("alice").public(),
            label: meta_label("alice", who),
            cipher: CipherChoice::default(),
        };
        let mut out = format!("0 {who} 17.7\n").into_bytes();
        let stream = Stream::start(params, &mut self.random, &mut out);
        let member =
            Member { id, stream, lines: Vec::new(), packets: Vec::new(), expects: Expects::Line };
        self.members.insert(who.to_owned(), member);
        self.node.receive(self.now, id, &out);
        self.pump();
    }

    /// Connects a scripted neighbour, and discards the node's messages so far.
    pub(super) fn join(&mut self, who: &str) -> ConnectionId {
        self.join_with(who, ACK)
    }

    pub(super) fn join_with(&mut self, who: &str, ack: &str) -> ConnectionId {
        let id = self.handshake(who);
        self.say(who, ack);
        let edge = self.take(who).into_iter().find(|line| line.starts_with("12 R alice"));
        let edge = edge.expect("an edge");
        // The options of the reverse edge name alice's minor version.
        let words: Vec<&str> = edge.split(' ').collect();
        let options = u32::from_str_radix(words[6], 16).unwrap() & 0xff_ffff | 0x0700_0000;
        let nonce = u32::from_be_bytes(self.random.bytes());
        let weight = words[7];
        self.say(who, &format!("12 {nonce:x} {who} alice 192.0.2.1 655 {options:x} {weight}"));
        self.forget();
        id
    }

    /// A neighbour renews the keys of its connection.
    pub(super) fn rekey(&mut self, who: &str) {
        let mut out = Vec::new();
        self.members.get_mut(who).unwrap().stream.rekey(&mut self.random, &mut out).unwrap();
        self.send_raw(who, &out);
    }

    pub(super) fn id(&self, who: &str) -> ConnectionId {
        self.members[who].id
    }

    /// Sends a line.
    pub(super) fn say(&mut self, who: &str, line: &str) {
        self.say_bytes(who, format!("{line}\n").as_bytes());
    }

    /// Sends a record, and perhaps bytes after it.
    pub(super) fn say_bytes(&mut self, who: &str, record: &[u8]) {
        let bytes = self.seal(who, record);
        self.send_raw(who, &bytes);
    }

    pub(super) fn seal(&mut self, who: &str, record: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.members.get_mut(who).unwrap().stream.send(0, record, &mut out).unwrap();
        out
    }

    pub(super) fn send_raw(&mut self, who: &str, bytes: &[u8]) {
        let id = self.id(who);
        self.node.receive(self.now, id, bytes);
        self.pump();
    }

    /// Announces connections between nodes, by one neighbour: pairs of names.
    pub(super) fn edges(&mut self, who: &str, edges: &[(&str, &str)]) {
        for (from, to) in edges {
            for (from, to) in [(from, to), (to, from)] {
                let nonce: u32 = u32::from_be_bytes(self.random.bytes());
                let to_address = address(to).ip();
                self.say(who, &format!("12 {nonce:x} {from} {to} {to_address} 655 700000c 5"));
            }
        }
        self.forget();
    }

    pub(super) fn forget(&mut self) {
        self.outputs.clear();
        self.members.values_mut().for_each(|member| {
            member.lines.clear();
            member.packets.clear();
        });
    }

    /// Lets time pass, second by second, while all neighbours answer pings.
    pub(super) fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.wait_in_silence(1);
            let pinged: Vec<String> = self
                .members
                .iter()
                .filter(|(_, member)| member.lines.iter().any(|line| line == "8"))
                .map(|(who, _)| who.clone())
                .collect();
            for who in pinged {
                self.members.get_mut(&who).unwrap().lines.retain(|line| line != "8");
                self.say(&who, "9");
            }
        }
    }

    pub(super) fn wait_in_silence(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.node.tick(self.now);
            self.pump();
        }
    }

    /// Hands the node's outputs to the neighbours.
    pub(super) fn pump(&mut self) {
        while let Some(output) = self.node.pop() {
            match output {
                Output::Send { connection, bytes } => {
                    let who = self.members.iter().find(|(_, member)| member.id == connection);
                    let Some(who) = who.map(|(who, _)| who.clone()) else {
                        self.outputs.push(Output::Send { connection, bytes });
                        continue;
                    };
                    self.feed(&who, &bytes);
                }
                other => self.outputs.push(other),
            }
        }
    }

    /// Returns the bytes that the node sends on a connection.
    pub(super) fn raw(&mut self, id: ConnectionId) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(output) = self.node.pop() {
            match output {
                Output::Send { connection, bytes } if connection == id => all.extend(bytes),
                other => self.outputs.push(other),
            }
        }
        all
    }

    fn feed(&mut self, who: &str, bytes: &[u8]) {
        let member = self.members.get_mut(who).unwrap();
        let mut input = bytes;
        let mut answers = Vec::new();
        loop {
            if let Expects::Relayed(len) = member.expects {
                let (packet, rest) = input.split_at(len);
                member.packets.push(packet.to_vec());
                (input, member.expects) = (rest, Expects::Line);
            }
            let received = member.stream.receive(&mut input, &mut self.random, &mut answers);
            match received.expect("the node's records are valid") {
                None => break,
                Some(Received::Event(_)) => {}
                Some(Received::Record(_, data)) if member.expects == Expects::Frame => {
                    member.packets.push(data.to_vec());
                    member.expects = Expects::Line;
                }
                Some(Received::Record(_, data)) => {
                    let line = std::str::from_utf8(data).unwrap().strip_suffix('\n').unwrap();
                    member.expects = match line.split_once(' ') {
                        Some(("17", _)) => Expects::Frame,
                        Some(("21", len)) => Expects::Relayed(len.parse().unwrap()),
                        _ => Expects::Line,
                    };
                    member.lines.push(without_nonce(line));
                }
            }
        }
        if !answers.is_empty() {
            let id = member.id;
            self.node.receive(self.now, id, &answers);
            self.pump();
        }
    }

    /// Returns the lines to a neighbour, with `R` for random numbers.
    pub(super) fn take(&mut self, who: &str) -> Vec<String> {
        std::mem::take(&mut self.members.get_mut(who).unwrap().lines)
    }

    pub(super) fn take_packets(&mut self, who: &str) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.members.get_mut(who).unwrap().packets)
    }

    pub(super) fn outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        let events = self.outputs().into_iter().filter_map(|output| match output {
            Output::Event(event) => Some(event),
            _ => None,
        });
        events.collect()
    }

    /// Returns the datagrams that the node sent.
    pub(super) fn datagrams(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let datagrams = self.outputs().into_iter().filter_map(|output| match output {
            Output::Datagram { to, bytes, .. } => Some((to, bytes)),
            _ => None,
        });
        datagrams.collect()
    }

    /// Returns the packets for the device, with their senders.
    pub(super) fn delivered(&mut self) -> Vec<(String, Vec<u8>)> {
        let packets = self.outputs().into_iter().filter_map(|output| match output {
            Output::Packet { from, bytes } => Some((from.to_string(), bytes)),
            _ => None,
        });
        packets.collect()
    }

    pub(super) fn is_open(&self, id: ConnectionId) -> bool {
        self.node.connection_infos().iter().any(|info| info.connection == id)
    }

    /// Returns the error that closed a connection.
    pub(super) fn close_reason(&mut self) -> Option<super::super::CloseReason> {
        self.events().into_iter().rev().find_map(|event| match event {
            Event::Disconnected { reason, .. } => Some(reason),
            _ => None,
        })
    }

    /// A scripted node starts a session, through a neighbour.
    pub(super) fn session(&mut self, through: &str, from: &str) -> RemoteSession {
        let mut session = self.request_session(through, from);
        self.continue_session(through, &mut session);
        assert!(session.sptps.is_established());
        session
    }

    /// Does so with a scripted node of adit: both agree on AES-256-GCM.
    pub(super) fn session_of_adit(&mut self, through: &str, from: &str) -> RemoteSession {
        let mut session = self.request_session_with(through, from, CipherChoice::Agree);
        session.sptps.peer_offers();
        self.continue_session(through, &mut session);
        assert!(session.sptps.is_established());
        session
    }

    /// Sends a REQ_KEY.
    pub(super) fn request_session(&mut self, through: &str, from: &str) -> RemoteSession {
        self.request_session_with(through, from, CipherChoice::default())
    }

    fn request_session_with(
        &mut self,
        through: &str,
        from: &str,
        cipher: CipherChoice,
    ) -> RemoteSession {
        let label = data_label(from, "alice");
        let params = Params {
            role: Role::Initiator,
            key: key(from),
            peer: key("alice").public(),
            label,
            cipher,
        };
        let (sptps, kex) = Datagram::start(params, WindowSize::DEFAULT, &mut self.random);
        let offer = if cipher == CipherChoice::Agree { " aes-256-gcm" } else { "" };
        self.say(through, &format!("15 {from} alice 15 {}{offer}", base64::encode(&kex)));
        RemoteSession { name: from.to_owned(), sptps }
    }

    /// Answers a REQ_KEY of the node.
    pub(super) fn answer_session(&mut self, through: &str, from: &str, kex: &str) -> RemoteSession {
        let label = data_label("alice", from);
        let params = Params {
            role: Role::Responder,
            key: key(from),
            peer: key("alice").public(),
            label,
            cipher: CipherChoice::default(),
        };
        let (mut sptps, own) = Datagram::start(params, WindowSize::DEFAULT, &mut self.random);
        let record = base64::decode(kex.as_bytes()).unwrap();
        sptps.receive_handshake(&record, &mut self.random, &mut Vec::new()).unwrap();
        let mut session = RemoteSession { name: from.to_owned(), sptps };
        self.answer(through, &session, &own);
        self.continue_session(through, &mut session);
        session
    }

    /// Sends a handshake record in an ANS_KEY.
    pub(super) fn answer(&mut self, through: &str, session: &RemoteSession, record: &[u8]) {
        let text = base64::encode(record);
        self.say(through, &format!("16 {} alice {text} -1 -1 -1 0", session.name));
    }

    /// Handles the node's ANS_KEY messages until there are no more.
    pub(super) fn continue_session(&mut self, through: &str, session: &mut RemoteSession) {
        while self.answer_handshakes(through, session) {}
    }

    /// Handles the node's ANS_KEY messages. Returns whether there were any.
    pub(super) fn answer_handshakes(&mut self, through: &str, session: &mut RemoteSession) -> bool {
        let prefix = format!("16 alice {} ", session.name);
        let lines = self.take(through);
        let (answers, others): (Vec<String>, Vec<String>) =
            lines.into_iter().partition(|line| line.starts_with(&prefix));
        self.members.get_mut(through).unwrap().lines = others;
        for answer in &answers {
            let record = base64::decode(answer.split(' ').nth(3).unwrap().as_bytes()).unwrap();
            let mut out = Vec::new();
            session.sptps.receive_handshake(&record, &mut self.random, &mut out).unwrap();
            for record in out {
                self.answer(through, session, &record);
            }
        }
        !answers.is_empty()
    }

    /// Sends packets to a neighbour, and answers probes, until the path MTU is known.
    pub(super) fn find_mtu(&mut self, who: &str, session: &mut RemoteSession) {
        self.forget();
        for _ in 0..30 {
            self.packet(who, &ipv4(20));
            self.answer_probes(session, address(who), 1400);
            self.wait(1);
        }
        self.answer_probes(session, address(who), 1400);
        self.forget();
    }

    /// A scripted node sends a record in a datagram.
    pub(super) fn send_record(
        &mut self,
        session: &mut RemoteSession,
        from: SocketAddr,
        kind: u8,
        data: &[u8],
    ) {
        let mut bytes = [[0; 6], name(&session.name).id().0].concat();
        session.sptps.seal(kind, data, &mut bytes).unwrap();
        self.send_datagram(from, &mut bytes);
    }

    pub(super) fn send_datagram(&mut self, from: SocketAddr, bytes: &mut [u8]) {
        self.node.datagram(self.now, SocketId(0), from, bytes);
        self.pump();
    }

    /// Opens the datagrams to a node, and answers probes from an address. Returns the packets.
    pub(super) fn answer_probes(
        &mut self,
        session: &mut RemoteSession,
        from: SocketAddr,
        widest: usize,
    ) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let is_for_it =
            |output: &Output| matches!(output, Output::Datagram { to, .. } if *to == from);
        let (datagrams, others): (Vec<Output>, Vec<Output>) =
            self.outputs().into_iter().partition(is_for_it);
        self.outputs = others;
        for output in datagrams {
            let Output::Datagram { mut bytes, .. } = output else { continue };
            assert_eq!(bytes[6..12], name("alice").id().0);
            if NodeId(bytes[..6].try_into().unwrap()) != NodeId::DIRECT {
                continue;
            }
            let (kind, data) = session.sptps.open(&mut bytes[12..]).unwrap();
            if kind != 4 {
                packets.push(data.to_vec());
            } else if data[0] == 0 && data.len() <= widest {
                let [high, low] = u16::try_from(data.len()).unwrap().to_be_bytes();
                let mut answer = vec![2, high, low];
                answer.resize(14, 0);
                answer.extend_from_slice(&data[14..18]);
                self.send_record(session, from, 4, &answer);
            }
        }
        packets
    }

    pub(super) fn info(&self, who: &str) -> crate::node::NodeInfo {
        self.node.node_infos().into_iter().find(|info| info.name.as_str() == who).expect("a node")
    }

    /// Sends a packet of the device to a node.
    pub(super) fn packet(&mut self, to: &str, packet: &[u8]) {
        self.node.send_packet(self.now, &name(to), packet);
        self.pump();
    }
}

/// Replaces the random number of a flooded message.
fn without_nonce(line: &str) -> String {
    match line.split_once(' ') {
        Some((kind @ ("10" | "11" | "12" | "13" | "14"), rest)) => {
            let (_, rest) = rest.split_once(' ').unwrap();
            format!("{kind} R {rest}")
        }
        _ => line.to_owned(),
    }
}

/// Returns an IPv4 packet of a length.
pub(super) fn ipv4(len: usize) -> Vec<u8> {
    let mut packet = vec![0x45; len];
    packet[1] = 0;
    packet
}
