//! Tests of the cost that one member can cause to a node.

use std::time::Duration;

use super::record::Record;
use super::*;
use crate::path::{Candidate, CandidateKind};
use crate::roster::testing::{NOW as UNIX, Signer, admit, genesis, write};
use crate::roster::{Action, NodeInfo};
use crate::sync::{self, Budget};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
const FIRST: SessionNumber = SessionNumber(9);

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32]).unwrap()
}

/// A node, another member with a session, and the signer of the mesh's changes.
struct Fixture {
    node: Node,
    member: SigningKey,
    signer: Signer,
    out: Out,
}

impl Fixture {
    fn new() -> Self {
        let signer = Signer::new(1);
        let mut changes = Changes::new(genesis(std::slice::from_ref(&signer), 1)).unwrap();
        for (seed, name) in [(50, "own"), (51, "member")] {
            let node = NodeInfo::named(crate::roster::testing::name(name));
            let action = Action::Admit { key: key(seed).public_hash(), node };
            write(&mut changes, &signer, action);
        }
        let node = Node::new(NodeConfig::new(key(50), changes), [7; 32], NOW, UNIX).unwrap();
        let mut it = Self { node, member: key(51), signer, out: Out::new() };
        it.connect(FIRST);
        it
    }

    fn connect(&mut self, session: SessionNumber) {
        let link =
            adit_engine::Link::datagram(path::MAIN_SOCKET, None, "192.0.2.9:1194".parse().unwrap());
        let event = session::Event::Established {
            session,
            peer: self.member.public_hash(),
            protocol: session::Protocol::Mesh,
            role: adit_openvpn::keys::Role::Server,
            channels: Vec::new(),
            link,
        };
        self.node.session_event(NOW, event, &mut self.out);
    }

    fn disconnect(&mut self, session: SessionNumber) {
        let peer = Some(self.member.public_hash());
        let event = session::Event::Ended(session, peer, Reason::Closed);
        self.node.session_event(NOW, event, &mut self.out);
    }

    fn record(&mut self, now: Instant, session: SessionNumber, bytes: Vec<u8>) {
        let from = self.member.public_hash();
        self.node.record(now, session, from, &bytes, &mut self.out);
    }

    fn excess(&self) -> Excess {
        self.node.peer(NOW, &self.member.public_hash()).excess
    }

    fn known_sequence(&self) -> Option<u64> {
        self.node.endpoints.get(&self.member.public_hash()).map(|it| it.sequence)
    }

    fn endpoint(&mut self, now: Instant, sequence: u64) {
        let at = format!("192.0.2.{sequence}:1194").parse().unwrap();
        let candidate = Candidate::new(at, CandidateKind::Own).unwrap();
        let mesh = self.node.mesh;
        let signed = Endpoint::sign(&mesh, &self.member, sequence, vec![candidate]).unwrap();
        let record = Record::Endpoint(signed.encoded().to_vec()).encode().to_vec();
        self.record(now, FIRST, record);
    }
}

#[test]
fn a_member_that_floods_records_is_limited_and_named() {
    let mut it = Fixture::new();
    let wanted = Record::Where { node: [3; 32] }.encode().to_vec();
    for _ in 0..9000 {
        it.record(NOW, FIRST, wanted.clone());
    }
    assert_eq!(it.excess(), Excess { records: 1000, ..Excess::default() });
    // A new session does not refill the budget.
    it.disconnect(FIRST);
    it.connect(SessionNumber(10));
    it.record(NOW, SessionNumber(10), wanted);
    assert_eq!(it.excess().records, 1001);
}

#[test]
fn a_member_that_floods_endpoints_is_limited_and_named() {
    let mut it = Fixture::new();
    (1..=5).for_each(|sequence| it.endpoint(NOW, sequence));
    assert_eq!(it.known_sequence(), Some(3));
    assert_eq!(it.excess(), Excess { endpoints: 2, ..Excess::default() });
    it.endpoint(NOW + Duration::from_secs(10), 6);
    assert_eq!(it.known_sequence(), Some(6));
    // Repeating the same one has no effect.
    (0..9).for_each(|_| it.endpoint(NOW + Duration::from_secs(10), 6));
    assert_eq!(it.excess().endpoints, 2);
}

#[test]
fn an_endpoint_with_an_older_number_counts_only_from_the_node_itself() {
    let mut it = Fixture::new();
    it.endpoint(NOW, 7);
    it.endpoint(NOW, 5);
    assert_eq!(it.known_sequence(), Some(5), "its clock was set back");
    let mesh = it.node.mesh;
    let older = Endpoint::sign(&mesh, &it.member, 4, Vec::new()).unwrap();
    it.node.endpoint_arrived(NOW, &[3; 32], older, &mut it.out);
    assert_eq!(it.known_sequence(), Some(5), "replayed by another member");
}

#[test]
fn a_member_that_floods_changes_is_limited_and_named_over_all_its_sessions() {
    let mut it = Fixture::new();
    it.node.sync.set_budget(FIRST, Budget::without_changes(NOW));
    it.disconnect(FIRST);
    it.connect(SessionNumber(10));
    let mut changes = it.node.changes.clone();
    write(&mut changes, &it.signer, admit(9));
    let change = changes.in_causal_order().last().unwrap().encode();
    let record = sync::Record::Changes(vec![change]).encode();
    it.record(NOW, SessionNumber(10), record.clone());
    assert_eq!(it.excess(), Excess { changes: 1, ..Excess::default() });
    assert_eq!(it.node.changes.len(), 2);
    it.record(NOW + Duration::from_secs(60), SessionNumber(10), record);
    assert_eq!(it.node.changes.len(), 3);
}

#[test]
fn only_the_member_that_was_asked_answers_a_ping_and_once() {
    let mut it = Fixture::new();
    let to = it.member.public_hash();
    // No real session exists that would send it.
    assert_eq!(it.node.ping(NOW, &to, &mut it.out), None);
    let ping = Pings::sent(5, to, NOW);
    it.node.pings = ping;
    it.node.ponged(NOW + Duration::from_millis(9), &[3; 32], 5);
    it.node.ponged(NOW + Duration::from_millis(9), &to, 6);
    assert_eq!(it.node.pong(5), None);
    it.node.ponged(NOW + Duration::from_millis(10), &to, 5);
    it.node.ponged(NOW + Duration::from_millis(20), &to, 5);
    assert_eq!(it.node.pong(5).map(|pong| pong.rtt), Some(Duration::from_millis(10)));
}

#[test]
fn a_long_pause_between_attempts_ends_with_the_first_packet() {
    let mut it = Fixture::new();
    let member = it.member.public_hash();
    it.disconnect(FIRST);
    it.node.choose_neighbours(NOW);
    let next = |it: &mut Fixture, now: Instant| {
        it.node.connect_due(now, &mut it.out);
        let attempt = it.node.peers.get(&member).unwrap().attempt.as_ref().unwrap();
        (attempt.until, attempt.until.since(now))
    };
    // A standing neighbour that is down is tried repeatedly, but rarely.
    let mut now = NOW + connect::WANTED;
    for _ in 0..10 {
        now = next(&mut it, now).0;
    }
    assert!(next(&mut it, now).1 >= Duration::from_secs(60));
    now = now + Duration::from_secs(1);
    it.node.connect(now, &member, &mut it.out);
    assert!(next(&mut it, now).1 < Duration::from_secs(2));
    for _ in 0..100 {
        now = now + Duration::from_secs(1);
        it.node.connect(now, &member, &mut it.out);
        assert!(next(&mut it, now).1 < Duration::from_secs(6));
    }
}
