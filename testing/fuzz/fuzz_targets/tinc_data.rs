//! Fuzzes tinc's data format. The first byte chooses: datagrams from anyone, of which none is delivered and only those between two certain
//! nodes are relayed, unread; or the records of a peer, whatever they contain; and each of them in router or in switch mode.
#![cfg_attr(fuzzing, no_main)]

use std::sync::Arc;

use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::{Relay, Unpeered};
use adit_engine::command::{Float, KeySlot, Splice, SpliceId, SpliceLabel, SplicedLengths};
use adit_engine::{Instant, Link, PeerId, Random, SocketId};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeId;
use adit_tinc::sptps::{CipherChoice, Datagram, Params, Role, WindowSize, data_label};
use adit_tinc_data::packet::{self, Packets};
use adit_tinc_data::{Command, DataKey, LoopbackPlane, PeerSpec};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const PEER: PeerId = PeerId(1);
const OWN: NodeId = NodeId([1; 6]);
const OTHER: NodeId = NodeId([2; 6]);
/// A node that is reached through this one, and one that reaches this one through the peer.
const RECEIVER: (PeerId, NodeId) = (PeerId(2), NodeId([3; 6]));
const BEHIND: (PeerId, NodeId) = (PeerId(3), NodeId([4; 6]));
const RELAYED: SplicedLengths = SplicedLengths { shortest: packet::OVERHEAD as u16, longest: 1400 };

pub fn run(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let packets = if choice & 2 == 0 { Packets::Ip } else { Packets::Frames };
    match choice % 2 {
        0 => received(packets, bytes),
        _ => inside(packets, bytes),
    }
}

fn params(role: Role) -> Params {
    let (one, other) = match role {
        Role::Initiator => (1, 2),
        Role::Responder => (2, 1),
    };
    let key = |seed: u8| Arc::new(PrivateKey::from_seed(&[seed; 32]));
    Params { role, key: key(one), peer: key(other).public(), label: data_label("alice", "bob"), cipher: CipherChoice::default() }
}

fn link() -> Link {
    link_of(PEER)
}

fn link_of(peer: PeerId) -> Link {
    Link::datagram(SocketId(0), None, ([192, 0, 2, peer.0 as u8], 655).into())
}

/// Returns the first bytes of relayed datagrams.
fn ids(to: NodeId, from: NodeId) -> [u8; packet::IDS] {
    [to.0, from.0].concat().try_into().expect("two identifiers")
}

/// Returns an end, and the session of the other node.
fn end(packets: Packets) -> (LoopbackPlane, Datagram) {
    let (mut random, window) = (Random::new([1; 32]), WindowSize::DEFAULT);
    let (mut bob, bob_kex) = Datagram::start(params(Role::Responder), window, &mut random);
    let (mut alice, kex) = Datagram::start(params(Role::Initiator), window, &mut random);
    let (mut sig, mut answer) = (Vec::new(), Vec::new());
    alice.receive_handshake(&bob_kex, &mut random, &mut sig).unwrap();
    bob.receive_handshake(&kex, &mut random, &mut Vec::new()).unwrap();
    bob.receive_handshake(&sig[0], &mut random, &mut answer).unwrap();
    alice.receive_handshake(&answer[0], &mut random, &mut Vec::new()).unwrap();
    let clock = || Instant::from_nanos(1);
    let (end, _upcalls) = match packets {
        Packets::Ip => LoopbackPlane::new(Relay::Kernel, false, true, clock),
        Packets::Frames => LoopbackPlane::ethernet(Relay::Kernel, false, clock),
    }
    .expect("an end in memory");
    let plane = end.plane();
    plane.hand_up(false);
    plane.set_stations(None, &[[2; 6]]);
    plane.set_unpeered_routes(Unpeered::Host, &["10.0.0.0/8".parse().expect("a prefix")]);
    for peer in [PEER, RECEIVER.0, BEHIND.0] {
        let spec = PeerSpec { float: Float::Refuse, ..PeerSpec::plain(link_of(peer)) };
        plane.apply(Command::AddPeer(peer, spec));
    }
    for (id, peer, relayed) in [(PEER, OTHER, false), (BEHIND.0, BEHIND.1, true)] {
        let session = bob.share().expect("a session");
        let key = DataKey { session, own: OWN, peer, relayed, packets };
        plane.apply(Command::InstallKey(id, KeySlot::Primary, Box::new(key)));
    }
    for (to, ids, ends_here) in [(RECEIVER.0, ids(RECEIVER.1, OTHER), false), (BEHIND.0, ids(OWN, BEHIND.1), true)] {
        let id = SpliceId { from: PEER, label: SpliceLabel::Nodes(ids) };
        plane.apply(Command::AddSplice(Splice { ends_here, lengths: RELAYED, ..Splice::new(id, to) }));
    }
    (end, alice)
}

/// Checks what leaves: relayed datagrams, as they came.
fn sealed(output: LoopbackOutput<'_, '_>) {
    let LoopbackOutput::Sealed(to, segment, train) = output else { panic!("a forgery was delivered") };
    assert_eq!(to, RECEIVER.0);
    for datagram in train.chunks(segment) {
        assert!(datagram.starts_with(&ids(RECEIVER.1, OTHER)));
        let lengths = usize::from(RELAYED.shortest)..=usize::from(RELAYED.longest);
        assert!(lengths.contains(&datagram.len()), "{}", datagram.len());
    }
}

/// Receives arbitrary bytes, as they are, behind the peer's identifiers, and in trains between others.
fn received(packets: Packets, bytes: &[u8]) {
    let Some((segment, data)) = bytes.split_first_chunk::<2>() else { return };
    let segment = usize::from(u16::from_be_bytes(*segment)).max(1);
    let (mut end, _) = end(packets);
    let behind_ids = [&NodeId::DIRECT.0, &OTHER.0, data].concat();
    let train = |ids: [u8; packet::IDS]| {
        let datagrams = data.chunks(segment.saturating_sub(packet::IDS).max(1));
        datagrams.flat_map(|datagram| [&ids[..], datagram].concat()).collect::<Vec<u8>>()
    };
    let trains = [train(ids(RECEIVER.1, OTHER)), train(ids(OWN, BEHIND.1))];
    for mut data in [data.to_vec(), behind_ids].into_iter().chain(trains) {
        let _ = packet::parse(&mut data.clone());
        end.open(&link(), segment, &mut data, sealed);
    }
}

/// Receives the records of a malicious peer, two at a time, so that merging is exercised.
fn inside(packets: Packets, bytes: &[u8]) {
    let [kind, len, rest @ ..] = bytes else { return };
    let (mut end, mut session) = end(packets);
    let (first, second) = rest.split_at(usize::from(*len).min(rest.len()));
    let packet = packets.record_type();
    for (kind, data) in [(packet, first), (kind % 128, second), (packet, second)] {
        let mut datagram = [NodeId::DIRECT.0, OTHER.0].concat();
        session.seal(kind, data, &mut datagram).expect("sealed");
        let segment = datagram.len();
        end.open(&link(), segment, &mut datagram, |_| {});
    }
}
