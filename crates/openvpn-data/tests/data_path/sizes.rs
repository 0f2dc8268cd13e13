//! Sizes on the data path: fragmented packets, hostile inner packets, packet ids near their limit.

use adit_dataplane::{DropReason, Relay};
use adit_engine::PeerId;
use adit_engine::command::{InnerMtu, KeySlot};
use adit_openvpn::data_format::{Command, Framing, FramingError, Notice, PacketLayout, PeerSpec};

use crate::common::{End, SERVER, key, layout, link, packet, spec, world, world_of};

/// Creates a server and client 2 whose packets carry a fragment header. No time passes, in which fragments would expire.
fn pieces(limit: u16, framing: Framing) -> (End, End) {
    let (server, [client]) = world_of(End::frozen, Relay::Kernel, [2]);
    let with = |at| PeerSpec {
        layout: PacketLayout { fragment: Some(limit), framing, ..layout(2) },
        ..spec(at)
    };
    server.apply(Command::AddPeer(PeerId(2), with(link(2, 1000))));
    server.apply(Command::SetRoutes(PeerId(2), vec!["10.8.0.2/32".parse().unwrap()]));
    server.apply(Command::InstallKey(PeerId(2), KeySlot::Primary, key(2, 0, true)));
    client.apply(Command::AddPeer(PeerId(0), with(link(200, 1194))));
    client.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
    client.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(2, 0, false)));
    (server, client)
}

/// Builds a packet of client 2 with any length.
fn long(len: usize) -> Vec<u8> {
    let mut long = packet(2, SERVER, 7);
    long.resize(len, 9);
    long[2..4].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
    long
}

#[test]
fn no_datagram_is_longer_than_fragment_allows_and_packets_arrive_whole() {
    for framing in [Framing::None, Framing::LzoStub, Framing::SwapStub, Framing::StubV2] {
        let (mut server, mut client) = pieces(600, framing);
        for len in [120, 571, 572, 573, 1000, 1500, 9000] {
            let sealed = client.seal(&long(len));
            assert!(sealed.iter().all(|datagram| datagram.len() <= 600), "{framing:?} {len}");
            let mut out = Vec::new();
            for datagram in &sealed {
                out.extend(server.open(link(2, 1000), datagram));
            }
            assert_eq!(out, [long(len)], "{framing:?}");
        }
        // In one burst, with the last fragment first and a whole packet in between.
        let mut burst: Vec<u8> = Vec::new();
        let sealed = client.seal(&long(1100));
        assert_eq!(sealed.len(), 2);
        for datagram in sealed.iter().rev() {
            burst.clear();
            burst.extend(datagram);
            server.open(link(2, 1000), &burst);
        }
        assert_eq!(server.all_drops(), 0);
        assert_eq!(client.all_drops(), 0);
    }
}

#[test]
fn a_packet_for_too_many_pieces_is_dropped_and_counted() {
    let (_, mut client) = pieces(100, Framing::None);
    assert!(client.seal(&long(4000)).is_empty());
    assert_eq!(client.dropped(DropReason::TooManyFragments), 1);
}

#[test]
fn a_peer_without_the_header_is_told_of_once() {
    let (mut server, _) = pieces(600, Framing::None);
    let (_, [mut plain]) = world(Relay::Kernel, [2]);
    for _ in 0..3 {
        let sealed = plain.seal_one(&packet(2, SERVER, 1));
        assert!(server.open(link(2, 1000), &sealed).is_empty());
    }
    assert_eq!(server.dropped(DropReason::BadFragment), 3);
    let told = server.notices().into_iter().filter(|n| matches!(n, Notice::Violation(..)));
    assert_eq!(told.collect::<Vec<_>>(), [Notice::Violation(PeerId(2), FramingError::Fragment)]);
}

/// CVE-2017-7508: a SYN whose headers claim more data than the packet has reached the code that
/// changes its MSS.
#[test]
fn cve_2017_7508_short_headers_under_mssfix() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let mtu = InnerMtu { mss4: 1000, mss6: 1000, largest: 0 };
    server.apply(Command::SetMtu(PeerId(2), mtu));
    server.apply(Command::SetRoutes(
        PeerId(2),
        vec!["10.8.0.2/32".parse().unwrap(), "fd00::2/128".parse().unwrap()],
    ));
    client.apply(Command::SetRoutes(
        PeerId(0),
        vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
    ));
    let mut sent = 0;
    for data_offset in 0..16u8 {
        for len in 0..70usize {
            // IPv4, then IPv6: TCP with SYN and an MSS option that is truncated at any point.
            let tcp = [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, data_offset << 4, 2, 0, 9, 0, 0, 0, 0];
            let options = [2, 4, 5, 0xb4, 2, 0, 3, 0xff, 2, 1, 8, 40, 0, 2];
            let text: Vec<u8> =
                tcp.into_iter().chain(options.into_iter().cycle()).take(len).collect();
            let mut v4 = packet(2, SERVER, 0);
            v4.truncate(20);
            v4.extend(&text);
            v4[3] = u8::try_from(v4.len()).unwrap();
            v4[9] = 6;
            let mut v6 = vec![0x60, 0, 0, 0, 0, u8::try_from(len).unwrap(), 6, 64];
            v6.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            v6.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            v6.extend(&text);
            for inner in [v4, v6] {
                let sealed = client.seal(&inner);
                sent += sealed.len() as u64;
                for datagram in sealed {
                    server.open(link(2, 1000), &datagram);
                }
            }
        }
    }
    assert_eq!(server.received(2), sent, "all were opened, and none did harm");
    // Options that never end or extend beyond the header are passed on unchanged.
    for options in
        [[3, 0, 2, 4], [8, 1, 2, 4], [1, 1, 2, 4], [1, 2, 4, 5], [2, 6, 5, 0xb4], [2, 3, 5, 0xb4]]
    {
        let mut inner = packet(2, SERVER, 0);
        inner.truncate(20);
        inner[9] = 6;
        inner.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 6 << 4, 2, 0, 9, 0, 0, 0, 0]);
        inner.extend(options);
        inner.extend([5, 0xb4, 5, 0xb4]);
        inner[3] = u8::try_from(inner.len()).unwrap();
        let sealed = client.seal_one(&inner);
        sent += 1;
        assert_eq!(server.open(link(2, 1000), &sealed), [inner], "{options:?}");
    }
    assert!(sent > 2000);
}
