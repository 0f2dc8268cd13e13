//! Every packet format behaves like the common one. It carries packets and trains, refuses packets
//! that were modified, repeated or truncated, and counts the reasons.

use adit_crypto::{BlockCipher, Cipher, Digest, DirectionKey};
use adit_dataplane::{DropReason, Relay};
use adit_engine::PeerId;
use adit_engine::command::{Float, KeySlot};
use adit_openvpn::data_format::{
    BlockSuite, Command, DataKey, Framing, KeyLimits, Notice, PacketLayout, PeerSpec, Protection,
};
use adit_wire::{Gso, VnetHeader};
use proptest::prelude::*;

use crate::common::{self, End, SERVER, layout, link, packet, spec, world};

const PEER: u8 = 2;
const ID: PeerId = PeerId(2);

fn suite(cipher: Option<BlockCipher>, digest: Option<Digest>) -> BlockSuite {
    BlockSuite { cipher, digest }
}

/// Returns one format of each shape; differences within a shape are tested by the crypto crate.
fn formats() -> Vec<Protection> {
    let cbc = suite(Some(BlockCipher::Aes256Cbc), Some(Digest::Sha1));
    let long = suite(Some(BlockCipher::Aes128Cbc), Some(Digest::Sha512));
    let plain = suite(None, Some(Digest::Sha256));
    vec![
        Protection::Aead(Cipher::Aes256Gcm),
        Protection::Epoch(Cipher::Aes256Gcm),
        Protection::Epoch(Cipher::ChaCha20Poly1305),
        Protection::Block(cbc),
        Protection::Block(long),
        Protection::Block(plain),
        Protection::Static(cbc),
        Protection::Static(plain),
    ]
}

fn half(byte: u8) -> DirectionKey {
    DirectionKey { cipher: [byte; 64], hmac: [!byte; 64] }
}

fn key(protection: Protection, at_server: bool) -> Box<DataKey> {
    let (one, other) = (half(1), half(2));
    let (seal, open) = if at_server { (one, other) } else { (other, one) };
    Box::new(DataKey { key_id: 0, protection, seal, open, limits: KeyLimits::default() })
}

/// Creates a server and a client that share a key. Without a `wire_id`, packets are DATA_V1.
fn pair(protection: Protection, wire_id: Option<u32>) -> (End, End) {
    let server = End::new(Relay::Kernel, false);
    server.apply(Command::AddPeer(
        ID,
        PeerSpec { layout: layout(wire_id), ..spec(link(PEER, 1000)) },
    ));
    server.apply(Command::SetRoutes(ID, vec![format!("10.8.0.{PEER}/32").parse().unwrap()]));
    server.apply(Command::InstallKey(ID, KeySlot::Primary, key(protection, true)));
    let client = End::new(Relay::Kernel, true);
    client.apply(Command::AddPeer(
        PeerId(0),
        PeerSpec { layout: layout(wire_id), ..spec(link(200, 1194)) },
    ));
    client.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
    client.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(protection, false)));
    (server, client)
}

fn home() -> adit_engine::Link {
    link(PEER, 1000)
}

#[test]
fn packets_go_both_ways_in_every_format() {
    for protection in formats() {
        for wire_id in [Some(2), None] {
            let (mut server, mut client) = pair(protection, wire_id);
            for fill in 0..3 {
                let up = packet(PEER, SERVER, fill);
                let sealed = client.seal_one(&up);
                assert_eq!(server.open(home(), &sealed), [up], "{protection:?}");
                let down = packet(SERVER, PEER, fill);
                let sealed = server.seal_one(&down);
                assert_eq!(client.open(link(200, 1194), &sealed), [down], "{protection:?}");
            }
            assert_eq!((server.all_drops(), client.all_drops()), (0, 0), "{protection:?}");
            assert_eq!(server.received(2), 3);
            assert_eq!(server.notices(), [Notice::KeyFirstUse(ID, 0)], "{protection:?}");
        }
    }
}

#[test]
fn a_packet_counts_once_and_a_late_one_within_the_window() {
    for protection in formats() {
        let (mut server, mut client) = pair(protection, Some(2));
        let sealed: Vec<_> = (0..80).map(|n| client.seal_one(&packet(PEER, SERVER, n))).collect();
        let mut open = |n: usize| server.open(home(), &sealed[n]).len();
        assert_eq!((open(70), open(70)), (1, 0), "{protection:?}");
        // An id 64 behind the newest is too old; one 63 behind is not.
        assert_eq!((open(6), open(7), open(7)), (0, 1, 0), "{protection:?}");
        assert_eq!((open(79), open(71)), (1, 1), "{protection:?}");
        assert_eq!(server.dropped(DropReason::Replayed), 3, "{protection:?}");
    }
}

#[test]
fn a_super_packet_leaves_as_one_train_in_every_format() {
    for protection in formats() {
        let (mut server, mut client) = pair(protection, Some(2));
        let mut big = tcp_super_packet(40 * 1300);
        let vnet = VnetHeader {
            needs_csum: true,
            gso: Gso::TcpV4,
            hdr_len: 40,
            gso_size: 1300,
            csum_start: 20,
            csum_offset: 16,
            ..VnetHeader::default()
        };
        let mut trains = Vec::new();
        client.memory.seal(&vnet, &mut big, |train, segment| {
            trains.push((train.to_vec(), segment));
        });
        assert_eq!(client.all_drops(), 0, "{protection:?}");
        let [(train, segment)] = &trains[..] else {
            panic!("{protection:?}: {} trains", trains.len())
        };
        assert_eq!(train.len(), 40 * segment, "{protection:?}");
        let (packets, _) = server.open_buffer(home(), *segment, train);
        assert_eq!(packets.len(), 40, "{protection:?}");
        assert_eq!(server.all_drops(), 0, "{protection:?}");
    }
}

fn tcp_super_packet(payload: usize) -> Vec<u8> {
    let mut packet = vec![0; 40 + payload];
    let [high, low] = (packet.len() as u16).to_be_bytes();
    let ip = [0x45, 0, high, low, 0, 0, 0, 0, 64, 6, 0, 0, 10, 8, 0, PEER, 10, 8, 0, SERVER];
    packet[..20].copy_from_slice(&ip);
    packet[32] = 5 << 4;
    packet[33] = 0x10;
    packet
}

#[test]
fn every_flipped_bit_is_refused_and_counted() {
    for protection in formats() {
        let (mut server, mut client) = pair(protection, Some(2));
        let sealed = client.seal_one(&packet(PEER, SERVER, 1));
        // With CBC the header is not authenticated, but it selects the peer and key, which must
        // match.
        let start = match protection {
            Protection::Block(_) => 4,
            _ => 0,
        };
        let mut tried = 0;
        for at in start..sealed.len() {
            for bit in 0..8 {
                let mut touched = sealed.clone();
                touched[at] ^= 1 << bit;
                assert!(server.open(home(), &touched).is_empty(), "{protection:?}: {at}.{bit}");
                let frames = server.upcalls_taken();
                tried += 1;
                assert_eq!(server.all_drops() + frames, tried, "{protection:?}: {at}.{bit}");
                tried -= frames;
            }
        }
        assert_eq!(server.received(2), 0, "{protection:?}");
        assert_eq!(server.open(home(), &sealed).len(), 1, "{protection:?}: nothing was spent");
    }
}

#[test]
fn a_packet_cut_short_anywhere_is_refused() {
    for protection in formats() {
        for wire_id in [Some(2), None] {
            let (mut server, mut client) = pair(protection, wire_id);
            let sealed = client.seal_one(&packet(PEER, SERVER, 1));
            for len in 0..sealed.len() {
                assert!(server.open(home(), &sealed[..len]).is_empty(), "{protection:?}: {len}");
                assert_eq!(server.all_drops(), len as u64 + 1, "{protection:?}: {len}");
            }
        }
    }
}

#[test]
fn a_wrong_mac_and_wrong_padding_are_counted_alike() {
    use adit_crypto::block::SealBlock;
    // With `cipher none` the envelope is only the MAC, so it can contain a text that is impossible
    // as ciphertext.
    let digest = Some(Digest::Sha256);
    let protection = Protection::Static(suite(Some(BlockCipher::Aes128Cbc), digest));
    let (mut server, mut client) = pair(protection, None);
    let forge = SealBlock::new(None, digest, &half(2)).unwrap();
    let mut bad_padding = [0; 32 + 16 + 32];
    forge.seal(1, &[7; 16], &[9; 32], &mut bad_padding).unwrap();
    assert!(server.open(home(), &bad_padding).is_empty());
    assert_eq!(server.dropped(DropReason::BadTag), 1);
    let mut bad_mac = client.seal_one(&packet(PEER, SERVER, 1));
    bad_mac[0] ^= 1;
    assert!(server.open(home(), &bad_mac).is_empty());
    assert_eq!(server.dropped(DropReason::BadTag), 2);
    // Authentic, but too short for a packet id.
    let (mut server, _) = pair(Protection::Static(suite(None, digest)), None);
    let mut short = [0; 32 + 3];
    let len = forge.seal(1, &[1, 2, 3], &[], &mut short).unwrap();
    assert!(server.open(home(), &short[..len]).is_empty());
    assert_eq!(server.dropped(DropReason::Short), 1);
}

#[test]
fn under_a_static_key_every_datagram_from_the_peer_is_data() {
    let protection = Protection::Static(suite(Some(BlockCipher::Aes256Cbc), Some(Digest::Sha1)));
    let (mut server, _) = pair(protection, None);
    // The first bytes of a control packet, an unknown opcode, and a data packet of another peer.
    for first in [7 << 3, 31 << 3, 9 << 3, 0] {
        assert!(server.open(home(), &[first; 60]).is_empty());
    }
    assert_eq!(server.dropped(DropReason::BadTag), 4);
    assert_eq!((server.all_drops(), server.upcalls_taken()), (4, 0));
    // From another address the first byte has its usual meaning.
    assert!(server.open(link(9, 9), &[31 << 3; 60]).is_empty());
    assert_eq!(server.dropped(DropReason::UnknownKind), 1);
}

#[test]
fn a_static_key_floats_where_that_is_allowed_and_nowhere_else() {
    let protection = Protection::Static(suite(Some(BlockCipher::Aes256Cbc), Some(Digest::Sha1)));
    for float in [true, false] {
        // Point to point: all datagrams belong to the only peer.
        let mut far = End::new(Relay::Kernel, true);
        let spec = PeerSpec {
            float: Float::if_allowed(float),
            layout: layout(None),
            ..spec(link(200, 1194))
        };
        far.apply(Command::AddPeer(PeerId(0), spec));
        far.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
        far.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(protection, true)));
        let (_, mut client) = pair(protection, None);
        let sealed = client.seal_one(&packet(PEER, SERVER, 1));
        let got = far.open(link(77, 7), &sealed).len();
        let moved = far.notices().contains(&Notice::Floated(PeerId(0), link(77, 7)));
        assert_eq!((got, moved), (usize::from(float), float));
        assert_eq!(far.dropped(DropReason::WrongAddress), u64::from(!float));
    }
}

#[test]
fn a_format_does_not_open_anothers_packets() {
    for ours in formats() {
        for theirs in formats() {
            if ours == theirs {
                continue;
            }
            let (mut server, _) = pair(ours, Some(2));
            let (_, mut client) = pair(theirs, Some(2));
            let sealed = client.seal_one(&packet(PEER, SERVER, 1));
            assert!(server.open(home(), &sealed).is_empty(), "{ours:?} {theirs:?}");
            assert_eq!(server.received(2), 0, "{ours:?} {theirs:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_datagram_panics(
        bytes in proptest::collection::vec(any::<u8>(), 1..200), segment in 1usize..200,
        opcode in prop_oneof![Just(6u8), Just(9), 0u8..32],
    ) {
        let mut bytes = bytes;
        bytes[0] = opcode << 3;
        for protection in formats() {
            for wire_id in [Some(2), None] {
                let (mut server, mut client) = pair(protection, wire_id);
                prop_assert!(server.open_buffer(home(), segment, &bytes).0.is_empty());
                prop_assert!(client.open_buffer(link(200, 1194), segment, &bytes).0.is_empty());
            }
        }
    }
}

#[test]
fn every_format_and_framing_passes() {
    for wire_id in [Some(2), None] {
        for framing in [Framing::None, Framing::LzoStub, Framing::SwapStub, Framing::StubV2] {
            let (mut server, [mut client]) = world(Relay::Kernel, [2]);
            let spec = |link| PeerSpec {
                layout: PacketLayout { framing, ..layout(wire_id) },
                ..spec(link)
            };
            server.apply(Command::AddPeer(PeerId(2), spec(link(2, 1000))));
            server.apply(Command::InstallKey(PeerId(2), KeySlot::Primary, common::key(2, 0, true)));
            client.apply(Command::AddPeer(PeerId(0), spec(link(200, 1194))));
            client.apply(Command::InstallKey(
                PeerId(0),
                KeySlot::Primary,
                common::key(2, 0, false),
            ));
            let inner = packet(2, SERVER, 3);
            let sealed = client.seal_one(&inner);
            assert_eq!(sealed[0] >> 3, if wire_id.is_some() { 9 } else { 6 });
            assert_eq!(server.open(link(2, 1000), &sealed), [inner], "{wire_id:?} {framing:?}");
        }
    }
}
