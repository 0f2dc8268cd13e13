//! Fuzzes a stream of length-prefixed packets as received from the network. The first byte chooses how the rest is
//! divided into reads, which must make no difference, and whether authentic packets are inserted between the others.
#![cfg_attr(fuzzing, no_main)]

use std::net::SocketAddr;

use adit_crypto::aead::SealKey;
use adit_crypto::{Cipher, DirectionKey};
use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::stream::frames::{Next, Packets, run as first_run};
use adit_dataplane::{MAX_FRAME, Relay, StreamEnd, Upcall};
use adit_engine::command::KeySlot;
use adit_engine::{Instant, Link, PeerId};
use adit_openvpn::data_format::{Command, DataKey, KeyLimits, PacketLayout, PeerSpec, Protection};
use adit_openvpn_data::{LoopbackPlane, OpenVpnFormat};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const PEER: PeerId = PeerId(1);

pub fn run(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    cut(rest);
    let authentic = choice & 1 == 1;
    let stream = if authentic { between(rest) } else { rest.to_vec() };
    let whole = outcome(&stream, usize::MAX);
    let pieces = outcome(&stream, usize::from(choice >> 1).max(1));
    assert_eq!(whole, pieces, "it matters how the stream is cut");
    assert!(authentic || whole.packets.is_empty(), "a forgery was delivered");
}

/// Checks that runs contain only whole packets, contain all of them, and end.
fn cut(bytes: &[u8]) {
    let mut copy = bytes.to_vec();
    let mut rest = &mut copy[..];
    loop {
        let found = first_run::<OpenVpnFormat>(rest, MAX_FRAME.into(), false);
        let (here, after) = rest.split_at_mut(found.len);
        assert_eq!(Packets::new(here).count(), found.count);
        rest = after;
        if found.next != Next::Other {
            return;
        }
    }
}

/// The result of receiving a stream in pieces.
#[derive(Debug, Default, Eq, PartialEq)]
struct Outcome {
    packets: Vec<Vec<u8>>,
    control: Vec<Vec<u8>>,
    end: Option<StreamEnd>,
}

fn outcome(stream: &[u8], piece: usize) -> Outcome {
    let (mut end, mut upcalls) =
        LoopbackPlane::new(Relay::Kernel, false, true, || Instant::from_nanos(1))
            .expect("an end in memory");
    introduce(&end);
    let mut outcome = Outcome::default();
    for piece in stream.chunks(piece.min(stream.len()).max(1)) {
        let taken = end.open_stream(&link(), MAX_FRAME.into(), &mut piece.to_vec(), |what| {
            if let LoopbackOutput::Tun(write) = what {
                outcome.packets.extend(write.packets().map(<[u8]>::to_vec));
            }
        });
        if let Err(why) = taken {
            outcome.end = Some(why);
            break;
        }
    }
    upcalls.drain(|upcall| {
        if let Upcall::ControlPacket(_, frame) = upcall {
            outcome.control.push(frame);
        }
    });
    outcome
}

/// Inserts an authentic packet before the rest and after each packet in it.
fn between(bytes: &[u8]) -> Vec<u8> {
    let seal = SealKey::new(Cipher::Aes128Gcm, &half()).expect("a key");
    let mut out = Vec::new();
    let packet = |out: &mut Vec<u8>, id: u32| {
        let mut plain = [7u8; 60];
        plain[..20].copy_from_slice(&[
            0x45, 0, 0, 60, 0, 0, 0, 0, 64, 253, 0, 0, 10, 8, 0, 2, 10, 8, 0, 1,
        ]);
        let head = [0x48_00_00_01u32.to_be_bytes(), id.to_be_bytes()].concat();
        let (mut tag, mut text) = ([0; 16], [0; 60]);
        seal.seal(id, &head, &plain, &mut text, &mut tag).expect("sealed");
        out.extend_from_slice(&84u16.to_be_bytes());
        out.extend_from_slice(&[&head[..], &tag, &text].concat());
    };
    let (mut rest, mut id) = (bytes, 1);
    packet(&mut out, id);
    while let Some(length) = rest.first_chunk::<2>() {
        let len = 2 + usize::from(u16::from_be_bytes(*length));
        let (here, after) = rest.split_at(len.min(rest.len()));
        out.extend_from_slice(here);
        rest = after;
        id += 1;
        packet(&mut out, id);
    }
    out.extend_from_slice(rest);
    out
}

fn link() -> Link {
    Link::stream(1, SocketAddr::from(([192, 0, 2, 1], 1194)))
}

fn half() -> DirectionKey {
    DirectionKey { cipher: [3; 64], hmac: [5; 64] }
}

fn introduce(end: &LoopbackPlane) {
    let layout = PacketLayout { wire_id: Some(PEER.0), ..PacketLayout::default() };
    let spec = PeerSpec { layout, ..PeerSpec::plain(link()) };
    let key = DataKey {
        key_id: 0,
        protection: Protection::Aead(Cipher::Aes128Gcm),
        seal: half(),
        open: half(),
        limits: KeyLimits::default(),
    };
    end.plane().apply(Command::AddPeer(PEER, spec));
    end.plane().apply(Command::SetRoutes(PEER, vec!["0.0.0.0/0".parse().expect("a prefix")]));
    end.plane().apply(Command::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
}
