//! Fuzzes a node of tinc with what an authenticated member can send: lines, sealed and other datagrams, and packets over TCP, as time passes.
//! Each step is a kind, a length and bytes. The node keeps what belongs to itself, and what it remembers is bounded by what arrived.
#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, SocketId};
use adit_tinc::base64;
use adit_tinc::config::{HostConfig, ServerConfig};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeName;
use adit_tinc::node::{ConnectionId, Node, NodeConfig, Output};
use adit_tinc::sptps::{CipherChoice, 
    Datagram, Params, Received, Role, Stream, WindowSize, data_label, meta_label,
};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const BOB: ([u8; 4], u16) = ([192, 0, 2, 2], 655);

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn key(seed: u8) -> Arc<PrivateKey> {
    Arc::new(PrivateKey::from_seed(&[seed; 32]))
}

/// The node, and the member that sends it everything.
struct Pair {
    node: Node,
    now: Instant,
    random: Random,
    id: ConnectionId,
    stream: Stream,
    session: Datagram,
    answers: Vec<Vec<u8>>,
}

pub fn run(bytes: &[u8]) {
    let mut pair = Pair::new();
    pair.line(b"4 655 1 700000c\n");
    pair.line(b"12 1 bob alice 192.0.2.1 655 700000c 1\n");
    pair.establish();
    let mut rest = bytes;
    while let [kind, len, later @ ..] = rest {
        let (data, later) = later.split_at(usize::from(*len).min(later.len()));
        rest = later;
        pair.step(*kind, data);
    }
    let subnets: Vec<String> =
        pair.node.subnets().of(&name("alice")).map(ToString::to_string).collect();
    assert_eq!(subnets, ["10.1.0.0/16"]);
    assert!(pair.node.graph().nodes().count() <= 3 + bytes.len());
    assert_eq!(pair.node.host(&name("bob")).unwrap().public_key, Some(key(2).public()));
    pair.node.purge(pair.now);
    pair.node.close_all(pair.now);
    assert_eq!(pair.node.neighbours().count(), 0);
}

impl Pair {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        let host = HostConfig { public_key: Some(key(2).public()), ..HostConfig::default() };
        let mut server = ServerConfig::default();
        server.own.subnets = vec!["10.1.0.0/16".parse().unwrap()];
        let config = NodeConfig {
            name: name("alice"),
            key: key(1),
            server,
            hosts: BTreeMap::from([(name("bob"), host)]),
            udp_port: 655,
        };
        let mut node = Node::new(config, now, Random::new([1; 32]));
        let mut random = Random::new([2; 32]);
        let local = SocketAddr::from(([192, 0, 2, 1], 655));
        let id = node.accept(now, SocketAddr::from(BOB), local).unwrap();
        node.receive(now, id, b"0 bob 17.7\n");
        let params = |label| Params {
            role: Role::Initiator,
            key: key(2),
            peer: key(1).public(),
            label,
            cipher: CipherChoice::default(),
        };
        let mut kex = Vec::new();
        let stream = Stream::start(params(meta_label("bob", "alice")), &mut random, &mut kex);
        let (session, first) =
            Datagram::start(params(data_label("bob", "alice")), WindowSize::DEFAULT, &mut random);
        let mut pair = Self { node, now, random, id, stream, session, answers: vec![first] };
        pair.node.receive(now, id, &kex);
        let mut input = Vec::new();
        while let Some(output) = pair.node.pop() {
            if let Output::Send { bytes, .. } = output {
                input.extend(bytes);
            }
        }
        let end = input.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let mut sig = Vec::new();
        pair.stream.receive(&mut &input[end..], &mut pair.random, &mut sig).unwrap();
        pair.node.receive(now, id, &sig);
        pair.drain();
        pair
    }

    /// Starts a session for packets.
    fn establish(&mut self) {
        let kex = self.answers.pop().unwrap();
        self.line(format!("15 bob alice 15 {}\n", base64::encode(&kex)).as_bytes());
        for _ in 0..2 {
            for answer in std::mem::take(&mut self.answers) {
                let mut out = Vec::new();
                let _ = self.session.receive_handshake(&answer, &mut self.random, &mut out);
                for record in out {
                    let text = base64::encode(&record);
                    self.line(format!("16 bob alice {text} -1 -1 -1 0\n").as_bytes());
                }
            }
        }
        assert!(self.session.is_established());
    }

    fn step(&mut self, kind: u8, data: &[u8]) {
        match kind % 8 {
            0..=2 => self.line(data),
            3 => {
                let mut bytes = data.to_vec();
                let from = if kind >= 128 { BOB } else { ([192, 0, 2, 3], 655) };
                self.node.datagram(self.now, SocketId(0), SocketAddr::from(from), &mut bytes);
            }
            4 => {
                let mut bytes = [[0; 6], name("bob").id().0].concat();
                let Some((kind, data)) = data.split_first() else { return };
                if self.session.seal(*kind & 127, data, &mut bytes).is_ok() {
                    self.node.datagram(self.now, SocketId(0), SocketAddr::from(BOB), &mut bytes);
                }
            }
            5 => {
                self.now = self.now + Duration::from_millis(100 * data.len() as u64);
                self.node.tick(self.now);
                self.line(b"9\n");
            }
            6 => self.node.send_packet(self.now, &name("bob"), data),
            _ => {
                self.node.receive(self.now, self.id, data);
            }
        }
        self.drain();
    }

    fn line(&mut self, record: &[u8]) {
        let mut out = Vec::new();
        if self.stream.send(0, record, &mut out).is_ok() {
            self.node.receive(self.now, self.id, &out);
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.pop() {
            let Output::Send { bytes, .. } = output else { continue };
            let mut input = &bytes[..];
            let mut out = Vec::new();
            // The node's own records are valid; only bytes outside of them, which this member asked for, may look like others.
            while let Ok(Some(received)) =
                self.stream.receive(&mut input, &mut self.random, &mut out)
            {
                let Received::Record(_, line) = received else { continue };
                let text = String::from_utf8_lossy(line);
                if let Some(rest) = text.strip_prefix("16 alice bob ") {
                    let record = rest.split(' ').next().unwrap_or_default();
                    self.answers.extend(base64::decode(record.as_bytes()).map(|it| it.to_vec()));
                }
            }
        }
    }
}
