//! Fuzzes the packet formats other than AEAD. The first byte selects format and header, and whether the rest is
//! arbitrary or comes from a malicious peer that has the key.
#![cfg_attr(fuzzing, no_main)]

use std::net::SocketAddr;

use adit_crypto::block::{MAX_ADDED, SealBlock};
use adit_crypto::epoch::EpochSecret;
use adit_crypto::{BlockCipher, Cipher, Digest, DirectionKey};
use adit_dataplane::Relay;
use adit_engine::command::KeySlot;
use adit_engine::{Instant, Link, PeerId};
use adit_openvpn::data_format::{
    BlockSuite, Command, DataKey, KeyLimits, PacketLayout, PeerSpec, Protection,
};
use adit_openvpn_data::LoopbackPlane;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const PEER: PeerId = PeerId(1);
const CBC: BlockSuite =
    BlockSuite { cipher: Some(BlockCipher::Aes128Cbc), digest: Some(Digest::Sha1) };
const PLAIN: BlockSuite = BlockSuite { cipher: None, digest: Some(Digest::Sha256) };
const FORMATS: [Protection; 5] = [
    Protection::Epoch(Cipher::Aes128Gcm),
    Protection::Block(CBC),
    Protection::Block(PLAIN),
    Protection::Static(CBC),
    Protection::Static(PLAIN),
];

pub fn run(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let format = FORMATS[usize::from(choice & 0x0f) % FORMATS.len()];
    // The header has a peer-id or none.
    let wire_id = (choice & 0x10 != 0).then_some(PEER.0);
    match choice & 0x80 {
        0 => forged(format, wire_id, rest),
        _ => authentic(format, wire_id, rest),
    }
}

fn link() -> Link {
    Link::datagram(Default::default(), None, SocketAddr::from(([192, 0, 2, 1], 1194)))
}

fn half() -> DirectionKey {
    DirectionKey { cipher: [3; 64], hmac: [5; 64] }
}

fn end(protection: Protection, wire_id: Option<u32>) -> LoopbackPlane {
    let (end, _upcalls) = LoopbackPlane::new(Relay::Kernel, false, true, || Instant::from_nanos(1))
        .expect("an end in memory");
    let layout = PacketLayout { wire_id, ..PacketLayout::default() };
    let spec = PeerSpec { layout, ..PeerSpec::plain(link()) };
    let limits = KeyLimits::default();
    let key = DataKey { key_id: 0, protection, seal: half(), open: half(), limits };
    let everything = ["0.0.0.0/0", "::/0"].map(|net| net.parse().expect("a prefix"));
    end.plane().apply(Command::AddPeer(PEER, spec));
    end.plane().apply(Command::SetRoutes(PEER, everything.into()));
    end.plane().apply(Command::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
    end
}

/// Receives a buffer after two bytes of segment length, and delivers none of it.
fn forged(format: Protection, wire_id: Option<u32>, bytes: &[u8]) {
    let Some((segment, data)) = bytes.split_first_chunk::<2>() else { return };
    let segment = usize::from(u16::from_be_bytes(*segment)).max(1);
    let data = &mut data.to_vec();
    end(format, wire_id).open(&link(), segment, data, |_| panic!("a forgery was delivered"));
}

/// Takes a length, then the inside of two packets, including packet ids.
fn authentic(format: Protection, wire_id: Option<u32>, bytes: &[u8]) {
    let Some((&len, rest)) = bytes.split_first() else { return };
    let (first, second) = rest.split_at(usize::from(len).min(rest.len()));
    let mut end = end(format, wire_id);
    for inside in [first, second] {
        let mut packet = match (format, wire_id) {
            (Protection::Static(_), _) => Vec::new(),
            (_, Some(_)) => vec![0x48, 0, 0, 1],
            (_, None) => vec![0x30],
        };
        let sealed = match format {
            Protection::Epoch(cipher) => in_epoch(cipher, &mut packet, inside),
            Protection::Block(suite) | Protection::Static(suite) => {
                in_block(suite, &mut packet, inside)
            }
            Protection::Aead(_) => None,
        };
        if sealed.is_some() {
            let segment = packet.len();
            end.open(&link(), segment, &mut packet, |_| {});
        }
    }
}

/// Takes epoch and counter from the first 8 bytes inside.
fn in_epoch(cipher: Cipher, packet: &mut Vec<u8>, inside: &[u8]) -> Option<()> {
    let (id, plain) = inside.split_first_chunk::<8>()?;
    let mut secret = EpochSecret::first(&half()).ok()?;
    // A peer may advance as far as it likes; a few epochs cover all the code.
    let epoch = u16::from_be_bytes([id[0], id[1]]);
    for _ in 1..epoch.min(12) {
        secret = secret.next().ok()?;
    }
    packet.extend_from_slice(id);
    let aad = if packet.len() == 12 { packet.clone() } else { id.to_vec() };
    let (mut text, mut tag) = (vec![0; plain.len()], [0; 16]);
    let key = secret.key(cipher).ok()?;
    key.seal(u64::from_be_bytes(*id), &aad, plain, &mut text, &mut tag).ok()?;
    packet.extend_from_slice(&text);
    packet.extend_from_slice(&tag);
    Some(())
}

fn in_block(suite: BlockSuite, packet: &mut Vec<u8>, inside: &[u8]) -> Option<()> {
    let seal = SealBlock::new(suite.cipher, suite.digest, &half()).ok()?;
    let mut envelope = vec![0; inside.len() + MAX_ADDED];
    let len = seal.seal(1, &[], inside, &mut envelope)?;
    packet.extend_from_slice(envelope.get(..len)?);
    Some(())
}
