//! Fuzzes tinc's data format. The first byte chooses: datagrams from anyone, of which none is delivered; or the records of a peer, whatever they
//! contain; and each of them in router or in switch mode.
#![cfg_attr(fuzzing, no_main)]

use std::sync::Arc;

use adit_dataplane::{Relay, Unpeered};
use adit_engine::command::{Float, KeySlot};
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
    Link::datagram(SocketId(0), None, ([192, 0, 2, 1], 655).into())
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
    let spec = PeerSpec { float: Float::Refuse, ..PeerSpec::plain(link()) };
    plane.apply(Command::AddPeer(PEER, spec));
    let session = bob.share().expect("a session");
    let key = DataKey { session, own: OWN, peer: OTHER, relayed: false, packets };
    plane.apply(Command::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
    (end, alice)
}

/// Receives arbitrary bytes, as they are and behind the peer's identifiers.
fn received(packets: Packets, bytes: &[u8]) {
    let Some((segment, data)) = bytes.split_first_chunk::<2>() else { return };
    let segment = usize::from(u16::from_be_bytes(*segment)).max(1);
    let (mut end, _) = end(packets);
    let behind_ids = [&NodeId::DIRECT.0, &OTHER.0, data].concat();
    for mut data in [data.to_vec(), behind_ids] {
        let _ = packet::parse(&mut data.clone());
        end.open(&link(), segment, &mut data, |_| panic!("a forgery was delivered"));
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
