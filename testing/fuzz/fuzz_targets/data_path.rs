//! Fuzzes the data path from both ends. The first byte selects the meaning of the rest: a received
//! buffer, the inside of an authentic packet, or the output of a TUN device.
#![cfg_attr(fuzzing, no_main)]

use std::net::SocketAddr;

use adit_crypto::aead::SealKey;
use adit_crypto::{Cipher, DirectionKey};
use adit_dataplane::Relay;
use adit_engine::command::{InnerMtu, KeySlot};
use adit_engine::{Instant, Link, PeerId};
use adit_openvpn::data_format::{
    Command, DataKey, Framing, KeyLimits, PacketLayout, PeerSpec, Protection,
};
use adit_openvpn_data::LoopbackPlane;
use adit_wire::VnetHeader;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const PEER: PeerId = PeerId(1);
const FRAMINGS: [Framing; 4] =
    [Framing::None, Framing::LzoStub, Framing::SwapStub, Framing::StubV2];

/// The framing and the fragment size that are added inside the encryption.
type Inside = (Framing, Option<u16>);

pub fn run(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let framing = FRAMINGS[usize::from(choice >> 4) % FRAMINGS.len()];
    // Fragments of at most 300 bytes, or no fragments.
    let framing = (framing, (choice & 0x40 != 0).then_some(300));
    match choice & 0x0f {
        0 => received(framing, rest),
        1 => inside(framing, rest),
        _ => handed_out(framing, rest),
    }
}

fn link() -> Link {
    Link::datagram(Default::default(), None, SocketAddr::from(([192, 0, 2, 1], 1194)))
}

fn half() -> DirectionKey {
    DirectionKey { cipher: [3; 64], hmac: [5; 64] }
}

fn end((framing, fragment): Inside) -> LoopbackPlane {
    let (end, _upcalls) = LoopbackPlane::new(Relay::Kernel, false, true, || Instant::from_nanos(1))
        .expect("an end in memory");
    let mtu = InnerMtu { mss4: 1400, mss6: 1380, largest: 0 };
    let spec = PeerSpec {
        layout: PacketLayout { wire_id: Some(PEER.0), framing, decompress: Some(1500), fragment },
        mtu,
        ..PeerSpec::plain(link())
    };
    let key = DataKey {
        key_id: 0,
        protection: Protection::Aead(Cipher::Aes128Gcm),
        seal: half(),
        open: half(),
        limits: KeyLimits::default(),
    };
    let everything = ["0.0.0.0/0", "::/0"].map(|net| net.parse().expect("a prefix"));
    end.plane().apply(Command::AddPeer(PEER, spec));
    end.plane().apply(Command::SetRoutes(PEER, everything.into()));
    end.plane().apply(Command::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
    end
}

/// Receives arbitrary bytes. A packet that is not authentic is never delivered.
fn received(framing: Inside, bytes: &[u8]) {
    let Some((segment, data)) = bytes.split_first_chunk::<2>() else { return };
    let segment = usize::from(u16::from_be_bytes(*segment)).max(1);
    end(framing).open(&link(), segment, &mut data.to_vec(), |_| panic!("a forgery was delivered"));
}

/// Receives a malicious peer's packets, two at a time, so that merging is exercised.
fn inside(framing: Inside, bytes: &[u8]) {
    let Some((&len, rest)) = bytes.split_first() else { return };
    let (first, second) = rest.split_at(usize::from(len).min(rest.len()));
    let seal = SealKey::new(Cipher::Aes128Gcm, &half()).expect("a key");
    let mut end = end(framing);
    for (id, plain) in [(1u32, first), (2, second)] {
        let mut packet = vec![0x48, 0, 0, 1];
        packet.extend_from_slice(&id.to_be_bytes());
        let mut tag = [0; 16];
        let mut text = vec![0; plain.len()];
        seal.seal(id, &packet, plain, &mut text, &mut tag).expect("sealed");
        packet.extend_from_slice(&tag);
        packet.extend_from_slice(&text);
        let segment = packet.len();
        end.open(&link(), segment, &mut packet, |_| {});
    }
}

/// Sends the output of a TUN device, with its header: everything that is sent can be opened at the
/// other end.
fn handed_out(framing: Inside, bytes: &[u8]) {
    let Some((vnet, packet)) = bytes.split_first_chunk() else { return };
    let mut far = end(framing);
    let mut trains = Vec::new();
    end(framing).seal(&VnetHeader::decode(vnet), &mut packet.to_vec(), |train, segment| {
        trains.push((train.to_vec(), segment));
    });
    for (mut train, segment) in trains {
        far.open(&link(), segment, &mut train, |_| {});
    }
}
