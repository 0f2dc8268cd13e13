//! Properties that must hold under attack: each test lets exactly one check fail.

use adit_dataplane::{DropReason, Relay};
use adit_engine::command::{Float, KeySlot, Traffic};
use adit_engine::{Link, PeerId, SocketId};
use adit_openvpn::data_format::{Command, Notice, PeerSpec};
use adit_openvpn_data::Upcall;
use proptest::prelude::*;

use crate::common::*;

#[test]
fn packets_pass_both_ways() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let up = packet(2, SERVER, 7);
    let sealed = client.seal_one(&up);
    assert_eq!(server.open(link(2, 1000), &sealed), [up]);
    let down = packet(SERVER, 2, 9);
    let sealed = server.seal_one(&down);
    assert_eq!(client.open(link(200, 1194), &sealed), [down]);
    assert_eq!(server.all_drops() + client.all_drops(), 0);
    assert_eq!(server.notices(), [Notice::KeyFirstUse(PeerId(2), 0)]);
}

#[test]
fn a_forged_peer_id_fails_and_moves_no_peer() {
    let (mut server, [mut a, _b]) = world(Relay::Kernel, [2, 3]);
    let mut sealed = a.seal_one(&packet(2, SERVER, 7));
    sealed[3] = 3;
    assert!(server.open(link(2, 1000), &sealed).is_empty());
    assert_eq!(server.dropped(DropReason::BadTag), 1);
    assert_eq!(server.received(3), 0, "not a sign of life");
    assert_eq!(server.memory.plane().link(PeerId(3)), Some(link(3, 1000)));
    sealed[3] = 99;
    assert!(server.open(link(2, 1000), &sealed).is_empty());
    assert_eq!(server.dropped(DropReason::UnknownPeer), 1);
    assert!(server.notices().is_empty());
}

/// A packet for a peer that had no key yet moved that peer to the sender's address.
#[test]
fn cve_2020_11810_a_packet_moves_no_peer_that_has_no_key_yet() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let spec = PeerSpec { layout: layout(9), ..spec(link(9, 1000)) };
    server.apply(Command::AddPeer(PeerId(9), spec));
    let mut sealed = client.seal_one(&packet(2, SERVER, 7));
    sealed[3] = 9;
    for datagram in [&sealed[..], &sealed[..4], &sealed[..24]] {
        assert!(server.open(link(66, 1000), datagram).is_empty());
        assert_eq!(server.memory.plane().link(PeerId(9)), Some(link(9, 1000)));
    }
    assert_eq!(server.received(9), 0, "not a sign of life");
    assert!(server.notices().is_empty());
}

/// It is counted and not logged, which is what `mute-replay-warnings` asks for.
#[test]
fn a_captured_packet_from_a_new_address_is_a_replay() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let sealed = client.seal_one(&packet(2, SERVER, 7));
    assert_eq!(server.open(link(2, 1000), &sealed).len(), 1);
    server.notices();
    for from in [link(66, 1000), link(2, 1000)] {
        assert!(server.open(from, &sealed).is_empty());
    }
    assert_eq!(server.dropped(DropReason::Replayed), 2);
    assert_eq!(server.received(2), 1, "a replay is no sign of life");
    assert_eq!(server.memory.plane().link(PeerId(2)), Some(link(2, 1000)));
    assert!(server.notices().is_empty());
}

#[test]
fn a_delayed_packet_is_delivered_but_moves_no_peer() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let held_back = client.seal_one(&packet(2, SERVER, 1));
    let newest = client.seal_one(&packet(2, SERVER, 2));
    assert_eq!(server.open(link(2, 1000), &newest).len(), 1);
    assert_eq!(server.open(link(66, 1000), &held_back).len(), 1);
    assert_eq!(server.memory.plane().link(PeerId(2)), Some(link(2, 1000)));
}

#[test]
fn the_newest_authentic_packet_moves_its_peer() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let sealed = client.seal_one(&packet(2, SERVER, 1));
    assert_eq!(server.open(link(66, 4242), &sealed).len(), 1);
    assert_eq!(server.memory.plane().link(PeerId(2)), Some(link(66, 4242)));
    assert!(server.notices().contains(&Notice::Floated(PeerId(2), link(66, 4242))));
}

/// If each packet comes from another address, the lock that all workers share is taken a bounded number of times, all
/// packets are delivered, and the control plane receives only the last move.
#[test]
fn a_peer_that_moves_with_each_packet_is_followed_so_often_and_no_further() {
    let (mut server, [mut client]) = world_of(End::frozen, Relay::Kernel, [2]);
    let mut followed = Vec::new();
    for port in 1..=1000 {
        let sealed = client.seal_one(&packet(2, SERVER, 1));
        assert_eq!(server.open(link(66, port), &sealed).len(), 1);
        followed.extend(server.memory.plane().link(PeerId(2)).filter(|at| *at == link(66, port)));
    }
    assert_eq!(followed.len(), 100, "as many as in one second");
    let moved = Notice::Floated(PeerId(2), *followed.last().unwrap());
    assert_eq!(server.notices(), [moved, Notice::KeyFirstUse(PeerId(2), 0)]);
}

#[test]
fn a_withheld_packet_under_a_former_key_moves_no_peer() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let crossing = client.seal_one(&packet(2, SERVER, 1));
    let withheld = client.seal_one(&packet(2, SERVER, 2));
    server.apply(Command::InstallKey(PeerId(2), KeySlot::Secondary, key(2, 1, true)));
    assert_eq!(server.open(link(4, 4), &crossing).len(), 1);
    let floated = server.memory.plane().link(PeerId(2));
    assert_eq!(floated, Some(link(4, 4)), "a key that is not used yet changes nothing");
    client.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(2, 1, false)));
    // A packet under the new key, from yet another address, moves its peer before the key is swapped in.
    let next = client.seal_one(&packet(2, SERVER, 3));
    assert_eq!(server.open(link(5, 5), &next).len(), 1);
    server.apply(Command::SwapKeys(PeerId(2)));
    assert_eq!(server.memory.plane().link(PeerId(2)), Some(link(5, 5)));
    server.notices();
    assert_eq!(server.open(link(66, 66), &withheld).len(), 1, "late, but authentic");
    assert_eq!(server.memory.plane().link(PeerId(2)), Some(link(5, 5)));
    assert!(server.notices().is_empty());
}

#[test]
fn no_peer_floats_onto_anothers_address() {
    let (mut server, [mut a, _b]) = world(Relay::Kernel, [2, 3]);
    let sealed = a.seal_one(&packet(2, SERVER, 1));
    server.open(link(3, 1000), &sealed);
    assert_eq!(server.memory.plane().link(PeerId(2)), Some(link(2, 1000)));
    assert_eq!(server.memory.plane().link(PeerId(3)), Some(link(3, 1000)));
    assert!(!server.notices().iter().any(|notice| matches!(notice, Notice::Floated(..))));
}

#[test]
fn an_empty_payload_moves_no_peer() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    // A TUN device cannot deliver an empty packet, so it is sealed by hand.
    let half = adit_crypto::DirectionKey { cipher: [33; 64], hmac: [!33; 64] };
    assert!(client.seal(&[]).is_empty());
    let seal = adit_crypto::aead::SealKey::new(adit_crypto::Cipher::Aes256Gcm, &half).unwrap();
    let mut datagram = [0u8; 24];
    adit_openvpn_data::packet::Prefix::new(0, Some(2)).seal(&seal, 5, &[], &mut datagram).unwrap();
    assert!(server.open(link(66, 1000), &datagram).is_empty());
    assert_eq!(server.received(2), 1, "authentic");
    assert_eq!(server.memory.plane().link(PeerId(2)), Some(link(2, 1000)));
}

#[test]
fn a_peer_that_may_not_move_is_heard_only_at_home() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    server.apply(Command::AddPeer(
        PeerId(2),
        PeerSpec { float: Float::Refuse, layout: layout(2), ..spec(link(2, 1000)) },
    ));
    server.apply(Command::InstallKey(PeerId(2), KeySlot::Primary, key(2, 0, true)));
    let sealed = client.seal_one(&packet(2, SERVER, 1));
    assert!(server.open(link(2, 1001), &sealed).is_empty());
    assert_eq!(server.dropped(DropReason::WrongAddress), 1);
    assert_eq!(server.open(link(2, 1000), &sealed).len(), 1, "it was not marked as seen");
}

#[test]
fn inner_sources_must_belong_to_the_sender() {
    let (mut server, [mut a, mut b]) = world(Relay::Kernel, [2, 3]);
    let mut expect = |client: &mut End, n: u8, source: u8, passes: bool| {
        let sealed = client.seal_one(&packet(source, SERVER, 1));
        let out = server.open(link(n, 1000), &sealed);
        assert_eq!(out.len(), usize::from(passes), "client {n} as 10.8.0.{source}");
    };
    expect(&mut a, 2, 2, true);
    expect(&mut a, 2, 3, false);
    expect(&mut a, 2, 2, true);
    expect(&mut b, 3, 2, false);
    expect(&mut b, 3, 3, true);
    expect(&mut b, 3, SERVER, false);
    assert_eq!(server.dropped(DropReason::SourceSpoofed), 3);
}

#[test]
fn ipv6_sources_are_checked_too() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    client.apply(Command::SetRoutes(PeerId(0), vec!["::/0".parse().unwrap()]));
    server.apply(Command::SetRoutes(PeerId(2), vec!["fd00::2/128".parse().unwrap()]));
    for (last, passes) in [(2u8, true), (3, false)] {
        let mut packet = vec![0u8; 60];
        packet[0] = 0x60;
        packet[5] = 20;
        packet[6] = 59;
        packet[8] = 0xfd;
        packet[23] = last;
        packet[24] = 0xfd;
        packet[39] = 1;
        let sealed = client.seal_one(&packet);
        assert_eq!(server.open(link(2, 1000), &sealed).len(), usize::from(passes));
    }
}

#[test]
fn what_passes_between_peers_depends_on_the_relay() {
    let inner = packet(2, 3, 1);
    let relayed = || (vec![], vec![(PeerId(3), inner.clone())], 0);
    for (relay, expected) in [
        (Relay::Kernel, (vec![inner.clone()], vec![], 0)),
        (Relay::Direct, relayed()),
        (Relay::Clients(PeerId(3)), relayed()),
        (Relay::Deny, (vec![], vec![], 1)),
    ] {
        let (mut server, [mut a, _b]) = world(relay, [2, 3]);
        let sealed = a.seal_one(&inner);
        let (tun, peers) = server.open_buffer(link(2, 1000), sealed.len(), &sealed);
        assert_eq!((tun, peers, server.dropped(DropReason::PeerToPeer)), expected, "{relay:?}");
        let out = a.seal_one(&packet(2, SERVER, 1));
        assert_eq!(server.open(link(2, 1000), &out).len(), 1, "to the server itself, {relay:?}");
    }
}

#[test]
fn control_packets_of_strangers_have_a_queue_of_their_own() {
    let (mut server, [_client]) = world(Relay::Kernel, [2]);
    let reset = [7 << 3, 1, 2, 3];
    server.apply(Command::AdmitLink(link(50, 1)));
    server.apply(Command::AdmitLink(link(51, 1)));
    server.apply(Command::DismissLink(link(51, 1)));
    for n in [2, 50, 51, 52] {
        server.open(link(n, if n == 2 { 1000 } else { 1 }), &reset);
    }
    let mut seen = Vec::new();
    server.upcalls.drain(|upcall| seen.push(upcall));
    assert_eq!(
        seen,
        [
            Upcall::ControlPacket(link(2, 1000), reset.to_vec()),
            Upcall::ControlPacket(link(50, 1), reset.to_vec()),
            Upcall::Unauthenticated(link(51, 1), reset.to_vec()),
            Upcall::Unauthenticated(link(52, 1), reset.to_vec()),
        ]
    );
}

#[test]
fn malformed_datagrams_cost_a_counter() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let good = client.seal_one(&packet(2, SERVER, 1));
    let cases: [(&[u8], DropReason); 9] = [
        (&[], DropReason::Empty),
        (&[9 << 3], DropReason::Short),
        (&good[..23], DropReason::Short),
        (&good[..24], DropReason::BadTag),
        (&[6 << 3, 0, 0, 0, 1], DropReason::Short),
        (&[9 << 3, 0, 0, 9], DropReason::UnknownPeer),
        (&[9 << 3 | 5, 0, 0, 2, 0, 0, 0, 1], DropReason::UnknownKey),
        (&[1 << 3, 0, 0, 0], DropReason::UnknownKind),
        (&[0x20; 5000], DropReason::ControlTooLong),
    ];
    for (datagram, reason) in cases {
        let before = server.dropped(reason);
        server.open(link(2, 1000), datagram);
        assert_eq!(server.dropped(reason), before + 1, "{reason} for {} bytes", datagram.len());
    }
    // A segment size smaller than any header, which a hostile sender may cause.
    for segment in 0..30 {
        server.open_buffer(link(2, 1000), segment, &good);
    }
    assert_eq!(server.open(link(2, 1000), &good).len(), 1, "none of it did harm");
}

#[test]
fn in_band_messages_go_up_and_pings_nowhere() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let half = adit_crypto::DirectionKey { cipher: [33; 64], hmac: [!33; 64] };
    let seal = adit_crypto::aead::SealKey::new(adit_crypto::Cipher::Aes256Gcm, &half).unwrap();
    let mut exit = adit_openvpn_data::framing::OCC.to_vec();
    exit.push(6);
    let mut send = |id: u32, message: &[u8]| {
        let mut datagram = vec![0u8; 24 + message.len()];
        let prefix = adit_openvpn_data::packet::Prefix::new(0, Some(2));
        prefix.seal(&seal, id, message, &mut datagram).unwrap();
        assert!(server.open(link(2, 1000), &datagram).is_empty());
    };
    send(1, &adit_openvpn_data::framing::PING);
    send(2, &exit);
    assert_eq!(server.received(2), 2);
    assert_eq!(
        server.notices(),
        [Notice::KeyFirstUse(PeerId(2), 0), Notice::InBand(PeerId(2), exit)]
    );
    assert_eq!(server.all_drops(), 0);
    // Neither of them counts as traffic of the tunnel.
    let in_band_packets =
        Traffic { packets: 2, bytes: 2 * 24 + 16 + 17, in_band_packets: 2, in_band_bytes: 16 + 17 };
    server.apply(Command::ReadTraffic(PeerId(2)));
    assert_eq!(server.notices(), [Notice::Traffic(PeerId(2), in_band_packets)]);
    let answer = server.seal_one(&packet(SERVER, 2, 1));
    // The first two numbers are used up.
    let [_, _, sealed] = [1, 2, 3].map(|n| client.seal_one(&packet(2, SERVER, n)));
    assert_eq!(server.open(link(2, 1000), &sealed).len(), 1);
    let bytes = in_band_packets.bytes + (answer.len() + sealed.len()) as u64;
    server.apply(Command::ReadTraffic(PeerId(2)));
    assert_eq!(
        server.notices(),
        [Notice::Traffic(PeerId(2), Traffic { packets: 4, bytes, ..in_band_packets })]
    );
}

#[test]
fn a_removed_peer_is_gone_with_its_counters_told() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let sealed = client.seal_one(&packet(2, SERVER, 1));
    server.open(link(2, 1000), &sealed);
    server.apply(Command::DelPeer(PeerId(2)));
    let gone = server.notices().pop_back();
    assert!(matches!(gone, Some(Notice::PeerGone(PeerId(2), c)) if c.rx_packets == 1), "{gone:?}");
    server.open(link(2, 1000), &client.seal_one(&packet(2, SERVER, 1)));
    assert_eq!(server.dropped(DropReason::UnknownPeer), 1);
    assert!(server.seal(&packet(SERVER, 2, 1)).is_empty());
    assert_eq!(server.dropped(DropReason::NoRoute), 1);
}

proptest! {
    #[test]
    fn no_received_bytes_panic(
        first in prop_oneof![Just(9u8 << 3), Just(6u8 << 3), any::<u8>()],
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300), segment in 0usize..310,
    ) {
        let (mut server, [mut client]) = world(Relay::Direct, [2]);
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        server.open_buffer(link(2, 1000), segment, &bytes);
        client.open_buffer(link(2, 1000), segment, &bytes);
        // The same bytes as an inner packet, which is authentic.
        for datagram in client.seal(&bytes) {
            server.open(link(2, 1000), &datagram);
        }
    }
}

#[test]
fn a_source_that_one_peer_may_use_is_not_remembered_for_another() {
    let (mut server, [mut a, mut b]) = world(Relay::Kernel, [2, 3]);
    // One received buffer contains the owner's packet, and a packet with the same source from another peer.
    let mut both = a.seal_one(&packet(2, SERVER, 1));
    let len = both.len();
    both.extend(b.seal_one(&packet(2, SERVER, 2)));
    let (tun, _) = server.open_buffer(link(2, 1000), len, &both);
    assert_eq!(tun, [packet(2, SERVER, 1)]);
    assert_eq!(server.dropped(DropReason::SourceSpoofed), 1);
}

#[test]
fn a_packet_to_another_address_of_ours_is_not_from_home() {
    let at = |local: &str| {
        let remote = ([192, 0, 2, 2], 1000).into();
        Link::datagram(SocketId(0), local.parse().ok(), remote)
    };
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    server.apply(Command::SetLink(PeerId(2), at("203.0.113.1")));
    let sealed = client.seal_one(&packet(2, SERVER, 1));
    assert_eq!(server.open(at("203.0.113.2"), &sealed).len(), 1);
    assert_eq!(server.memory.plane().link(PeerId(2)), Some(at("203.0.113.2")), "answered there");
}
