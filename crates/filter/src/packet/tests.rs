use adit_wire::transport::flags;
use adit_wire::{Gso, VnetHeader};
use proptest::prelude::*;

use super::{
    Ether, Fragment, Layer, MAX_EXTENSIONS, Malformed, Network, OffloadState, Packet, Transport,
};
use crate::testing::{
    V4_A, V4_B, V6_A, V6_B, ether, fix_v4, icmp, ip, piece, tcp, udp, v4_of, v6_of,
};

fn parse(bytes: &[u8]) -> Result<Packet<'_>, Malformed> {
    Packet::parse(bytes, Layer::Ip, None, &VnetHeader::default())
}

fn frame(bytes: &[u8]) -> Result<Packet<'_>, Malformed> {
    Packet::parse(bytes, Layer::Ethernet, None, &VnetHeader::default())
}

fn refusal(bytes: &[u8]) -> Option<Malformed> {
    parse(bytes).err()
}

/// Returns the bytes of an extension header after its next header byte: the length in units of
/// eight bytes, then zeros.
fn extension(units: u8) -> Vec<u8> {
    let mut body = vec![units];
    body.resize(usize::from(units) * 8 + 7, 0);
    body
}

#[test]
fn nothing_is_no_packet() {
    assert_eq!(frame(&[]).err(), Some(Malformed::Link));
    assert_eq!(parse(&[]).err(), Some(Malformed::Network));
}

#[test]
fn headers_are_found_in_both_families() {
    for v6 in [false, true] {
        let header = if v6 { 40 } else { 20 };
        let bytes = ip(v6, 6, &tcp(v6, 5, 6, flags::ACK, b"hello"));
        let packet = parse(&bytes).unwrap();
        let found = packet.ip().unwrap();
        assert_eq!((found.at, found.payload, found.protocol, found.fragment), (0, header, 6, None));
        let (a, b) = if v6 { (V6_A.into(), V6_B.into()) } else { (V4_A.into(), V4_B.into()) };
        assert_eq!((found.source, found.destination), (a, b));
        let Transport::Tcp(tcp) = packet.transport else { panic!("{packet:?}") };
        assert_eq!((tcp.ports, tcp.seq, tcp.ack, tcp.flags), (4000 << 16 | 80, 5, 6, flags::ACK));
        assert_eq!((packet.length(), packet.segments()), (header + 25, 1));

        let bytes = ip(v6, 17, &udp(v6, b"x"));
        assert!(matches!(parse(&bytes).unwrap().transport, Transport::Udp(udp) if udp.len == 9));
        let bytes = ip(v6, if v6 { 58 } else { 1 }, &icmp(v6, 8, 3, 0x1234_5678, b""));
        let Transport::Icmp(icmp) = parse(&bytes).unwrap().transport else { panic!() };
        assert_eq!((icmp.kind, icmp.code, icmp.rest), (8, 3, 0x1234_5678));
        // The other family's ICMP has no meaning in this packet.
        let bytes = ip(v6, if v6 { 1 } else { 58 }, b"x");
        assert_eq!(parse(&bytes).unwrap().transport, Transport::Other);
    }
}

#[test]
fn padding_is_cut_off() {
    let packet = ip(false, 17, &udp(false, b"x"));
    let mut padded = ether(&[0x0800], &packet);
    let len = padded.len();
    padded.resize(60, 0xff);
    let parsed = frame(&padded).unwrap();
    assert_eq!((parsed.bytes.len(), parsed.length()), (len, 29));
    assert!(parsed.checksum_ok());
}

#[test]
fn tags_are_found_in_the_frame_and_apart_from_it() {
    let packet = ip(true, 17, &udp(true, b"x"));
    let of = |types: &[u16], beside| {
        let frame = ether(types, &packet);
        let none = VnetHeader::default();
        Packet::parse(&frame, Layer::Ethernet, beside, &none).unwrap().ether.unwrap()
    };
    let plain = Ether {
        source: 0x0200_0000_000a,
        destination: 0x0200_0000_000b,
        outer: 0x86dd,
        ethertype: 0x86dd,
        vlan: None,
        beside: false,
    };
    assert_eq!(of(&[0x86dd], None), plain);
    assert_eq!(of(&[0x8100, 0x86dd], None), Ether { outer: 0x8100, vlan: Some(0x2007), ..plain });
    let two = Ether { outer: 0x88a8, vlan: Some(0x2007), ..plain };
    assert_eq!(of(&[0x88a8, 0x8100, 0x86dd], None), two);
    let beside = Ether { outer: 0x8100, vlan: Some(9), beside: true, ..plain };
    assert_eq!(of(&[0x86dd], Some(9)), beside);
    assert_eq!(of(&[0x8100, 0x86dd], Some(9)), beside, "the outermost");

    let thrice = ether(&[0x8100, 0x8100, 0x8100, 0x86dd], &packet);
    assert_eq!(frame(&thrice).err(), Some(Malformed::Hidden));
    let cut = ether(&[0x8100, 0x86dd], &[]);
    assert_eq!(frame(&cut[..17]).err(), Some(Malformed::Link));
    assert_eq!(frame(&cut[..13]).err(), Some(Malformed::Link));
}

#[test]
fn a_type_that_lies_about_the_version_is_refused() {
    let four = ip(false, 17, &udp(false, b"x"));
    let six = ip(true, 17, &udp(true, b"x"));
    assert!(frame(&ether(&[0x0800], &four)).is_ok());
    assert!(frame(&ether(&[0x86dd], &six)).is_ok());
    assert_eq!(frame(&ether(&[0x86dd], &four)).err(), Some(Malformed::Network));
    assert_eq!(frame(&ether(&[0x0800], &six)).err(), Some(Malformed::Network));
    let mut five = four;
    five[0] = 0x55;
    assert_eq!(refusal(&five), Some(Malformed::Network));
}

#[test]
fn arp_is_known_by_its_form() {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.resize(28, 0);
    assert_eq!(frame(&ether(&[0x0806], &arp)).unwrap().network, Network::Arp(14));
    assert_eq!(frame(&ether(&[0x8100, 0x0806], &arp)).unwrap().network, Network::Arp(18));
    assert_eq!(frame(&ether(&[0x0806], &arp[..27])).err(), Some(Malformed::Network));
    assert_eq!(frame(&ether(&[0x0806], &arp[..5])).err(), Some(Malformed::Network));
    arp[4] = 8;
    assert_eq!(frame(&ether(&[0x0806], &arp)).unwrap().network, Network::Other(14));
    assert_eq!(frame(&ether(&[0x0806], &arp[..8])).unwrap().network, Network::Other(14));
    let other = ether(&[0x88cc], b"lldp");
    let packet = frame(&other).unwrap();
    assert_eq!((packet.network, packet.transport), (Network::Other(14), Transport::None));
    assert_eq!(packet.length(), 4);
    assert!(packet.checksum_ok());
}

#[test]
fn an_ipv4_header_must_be_right() {
    let good = ip(false, 17, &udp(false, b"x"));
    let mut bad = good.clone();
    bad[8] ^= 1;
    assert_eq!(refusal(&bad), Some(Malformed::Network), "checksum");
    let mut bad = good.clone();
    bad[3] += 1;
    fix_v4(&mut bad);
    assert_eq!(refusal(&bad), Some(Malformed::Network), "longer than the bytes at hand");
    let mut bad = good.clone();
    bad[3] = 19;
    fix_v4(&mut bad);
    assert_eq!(refusal(&bad), Some(Malformed::Network), "shorter than its header");
    assert_eq!(refusal(&good[..19]), Some(Malformed::Network), "cut short");
}

#[test]
fn ipv4_options_are_stepped_over() {
    let mut bytes = ip(false, 17, &udp(false, b"x"));
    bytes.splice(20..20, [1, 1, 1, 0]);
    bytes[0] = 0x46;
    bytes[3] += 4;
    fix_v4(&mut bytes);
    let packet = parse(&bytes).unwrap();
    assert_eq!(packet.ip().unwrap().payload, 24);
    assert!(matches!(packet.transport, Transport::Udp(_)));
    assert!(packet.checksum_ok());
    bytes[20] = 7;
    assert_eq!(refusal(&bytes), Some(Malformed::Network), "the sum covers options");
}

#[test]
fn transport_headers_must_be_all_there() {
    for v6 in [false, true] {
        let refused = |protocol, l4: &[u8]| refusal(&ip(v6, protocol, l4));
        let segment = tcp(v6, 1, 2, flags::SYN, b"");
        assert_eq!(refused(6, &segment), None);
        assert_eq!(refused(6, &segment[..19]), Some(Malformed::Transport));
        let mut options = segment.clone();
        options[12] = 0x60;
        assert_eq!(refused(6, &options), Some(Malformed::Transport), "options beyond the end");
        options[12] = 0x40;
        assert_eq!(refused(6, &options), Some(Malformed::Transport), "shorter than a header");
        let mut datagram = udp(v6, b"xy");
        assert_eq!(refused(17, &datagram), None);
        assert_eq!(refused(17, &datagram[..7]), Some(Malformed::Transport));
        datagram[5] = 11;
        assert_eq!(refused(17, &datagram), Some(Malformed::Transport), "longer than it is");
        datagram[5] = 7;
        assert_eq!(refused(17, &datagram), Some(Malformed::Transport), "shorter than a header");
        datagram[5] = 9;
        assert_eq!(refused(17, &datagram), None, "bytes behind the datagram are allowed");
        let icmp = icmp(v6, 8, 0, 0, b"");
        let protocol = if v6 { 58 } else { 1 };
        assert_eq!(refused(protocol, &icmp), None);
        assert_eq!(refused(protocol, &icmp[..7]), Some(Malformed::Transport));
    }
}

#[test]
fn extension_headers_are_walked() {
    let eight = extension(0);
    let sixteen = extension(1);
    let mut authentication = vec![4];
    authentication.resize(23, 0);
    let l4 = udp(true, b"x");
    let chain: [(u8, &[u8]); 5] =
        [(0, &eight), (60, &sixteen), (43, &eight), (51, &authentication), (60, &eight)];
    let bytes = v6_of(V6_A, V6_B, &chain, 17, &l4);
    let packet = parse(&bytes).unwrap();
    let ip = packet.ip().unwrap();
    assert_eq!((ip.protocol, ip.payload), (17, 40 + 8 + 16 + 8 + 24 + 8));
    assert!(packet.checksum_ok());

    let none = v6_of(V6_A, V6_B, &[(60, &eight)], 59, b"");
    let packet = parse(&none).unwrap();
    assert_eq!((packet.ip().unwrap().protocol, packet.transport), (59, Transport::Other));
}

#[test]
fn chains_of_extension_headers_end() {
    let eight = extension(0);
    let l4 = udp(true, b"x");
    let many = vec![(60u8, eight.as_slice()); MAX_EXTENSIONS + 1];
    assert_eq!(refusal(&v6_of(V6_A, V6_B, &many[1..], 17, &l4)), None);
    assert_eq!(refusal(&v6_of(V6_A, V6_B, &many, 17, &l4)), Some(Malformed::Extensions));
    let of = |chain: &[(u8, &[u8])]| refusal(&v6_of(V6_A, V6_B, chain, 17, &l4));
    assert_eq!(of(&[(60, &eight), (0, &eight)]), Some(Malformed::Extensions), "0 is the first");
    let long = [&[200u8][..], &eight[1..]].concat();
    assert_eq!(of(&[(60, &long)]), Some(Malformed::Extensions), "beyond the end");
    let cut = v6_of(V6_A, V6_B, &[(60, &[0, 0])], 17, b"");
    assert_eq!(refusal(&cut), Some(Malformed::Extensions), "cut short");
    let mut routing = eight.clone();
    routing[2] = 1;
    assert_eq!(of(&[(43, &routing)]), Some(Malformed::Extensions), "type 0, RFC 5095");
    routing[1] = 4;
    assert_eq!(of(&[(43, &routing)]), None, "another type");
    assert_eq!(of(&[(44, &[0; 7]), (44, &[0; 7])]), Some(Malformed::Extensions), "twice a piece");
}

#[test]
fn pieces_say_where_they_belong() {
    for v6 in [false, true] {
        let whole = ip(v6, 17, &udp(v6, &[7; 100]));
        let data = if v6 { 48 } else { 20 };
        let first = piece(&whole, 9, 0, &whole[whole.len() - 108..][..48], true);
        let packet = parse(&first).unwrap();
        let fragment = Fragment { id: 9, offset: 0, more: true, data };
        assert_eq!(packet.ip().unwrap().fragment, Some(fragment));
        assert!(matches!(packet.transport, Transport::Udp(udp) if udp.len == 108));
        assert!(packet.checksum_ok() && packet.is_fragment());
        let last = piece(&whole, 9, 48, &[7; 60], false);
        let packet = parse(&last).unwrap();
        let fragment = Fragment { id: 9, offset: 48, more: false, data };
        assert_eq!(packet.ip().unwrap().fragment, Some(fragment));
        assert_eq!((packet.ip().unwrap().protocol, packet.transport), (17, Transport::None));
    }
}

#[test]
fn an_atomic_fragment_is_whole() {
    let bytes = v6_of(V6_A, V6_B, &[(44, &[0; 7])], 17, &udp(true, b"x"));
    let packet = parse(&bytes).unwrap();
    assert_eq!((packet.ip().unwrap().fragment, packet.is_fragment()), (None, false));
    assert!(packet.checksum_ok());
    let mut bad = bytes;
    bad[50] ^= 1;
    assert!(!parse(&bad).unwrap().checksum_ok(), "verified like any other");
    let short = v6_of(V6_A, V6_B, &[(44, &[0; 7])], 17, b"x");
    assert_eq!(refusal(&short), Some(Malformed::Transport), "nothing will follow");
}

#[test]
fn first_pieces_carry_all_headers() {
    for v6 in [false, true] {
        let refused = |protocol, offset, l4: &[u8]| {
            let whole = ip(v6, protocol, l4);
            refusal(&piece(&whole, 1, offset, l4, true))
        };
        let mut segment = tcp(v6, 1, 2, flags::ACK, b"abcd");
        assert_eq!(refused(6, 0, &segment), None);
        assert_eq!(refused(6, 0, &segment[..8]), Some(Malformed::TinyFragment));
        assert_eq!(refused(6, 0, &segment[..16]), Some(Malformed::TinyFragment));
        segment[12] = 0x70;
        assert_eq!(refused(6, 0, &segment), Some(Malformed::TinyFragment), "options missing");
        segment[12] = 0x40;
        assert_eq!(refused(6, 0, &segment), Some(Malformed::Transport), "not for being a piece");
        assert_eq!(refused(17, 0, &udp(v6, b"")[..7]), Some(Malformed::TinyFragment));
        assert_eq!(refused(if v6 { 58 } else { 1 }, 0, &[8; 7]), Some(Malformed::TinyFragment));
        // RFC 1858: TCP's flags could be in the second fragment.
        assert_eq!(refused(6, 8, &[0; 16]), Some(Malformed::TinyFragment));
        assert_eq!(refused(17, 8, &[0; 16]), None);
        assert_eq!(refused(6, 24, &[0; 16]), None);
    }
    // RFC 7112: the chain continues beyond the first fragment.
    let l4 = udp(true, &[0; 16]);
    let of = |body: &[u8], more: u8| {
        let fragment = [0, 0, more, 0, 0, 0, 1];
        refusal(&v6_of(V6_A, V6_B, &[(44, &fragment), (60, body)], 17, &l4))
    };
    let long = [&[200u8][..], &extension(0)[1..]].concat();
    assert_eq!(of(&extension(0), 1), None);
    assert_eq!(of(&long, 1), Some(Malformed::TinyFragment));
    assert_eq!(of(&long, 0), Some(Malformed::Extensions));
    let bare = v6_of(V6_A, V6_B, &[(44, &[0, 0, 1, 0, 0, 0, 1])], 60, b"");
    assert_eq!(refusal(&bare), Some(Malformed::TinyFragment));
}

/// Returns a header that states that the transport checksum is yet to be filled in.
fn sum_to_come(v6: bool) -> VnetHeader {
    let csum_start = if v6 { 40 } else { 20 };
    VnetHeader { needs_csum: true, csum_start, ..VnetHeader::default() }
}

#[test]
fn checksums_are_verified() {
    for v6 in [false, true] {
        for (protocol, l4, csum_offset) in [
            (6, tcp(v6, 1, 2, flags::ACK, b"odd"), 16),
            (17, udp(v6, b"odd"), 6),
            (if v6 { 58 } else { 1 }, icmp(v6, 128, 0, 7, b"odd"), 2),
        ] {
            let mut bytes = ip(v6, protocol, &l4);
            assert!(parse(&bytes).unwrap().checksum_ok());
            *bytes.last_mut().unwrap() ^= 1;
            assert!(!parse(&bytes).unwrap().checksum_ok(), "{protocol}");
            let vouched = VnetHeader { csum_offset, ..sum_to_come(v6) };
            assert!(Packet::parse(&bytes, Layer::Ip, None, &vouched).unwrap().checksum_ok());
            let inner = VnetHeader { csum_start: vouched.csum_start + 8, ..vouched };
            assert!(!Packet::parse(&bytes, Layer::Ip, None, &inner).unwrap().checksum_ok());
        }
        let mut datagram = udp(v6, b"x");
        datagram[6..8].fill(0);
        assert_eq!(parse(&ip(v6, 17, &datagram)).unwrap().checksum_ok(), !v6, "none");
        // Bytes after the datagram are not covered.
        let mut datagram = udp(v6, b"xy");
        datagram.extend(b"behind");
        assert!(parse(&ip(v6, 17, &datagram)).unwrap().checksum_ok());
    }
    // The addresses are covered.
    let moved = v4_of(V4_A, V4_A, 7, 0, 17, &udp(false, b"x"));
    assert!(!parse(&moved).unwrap().checksum_ok());
}

#[test]
fn super_packets_are_counted_as_what_they_will_be() {
    for v6 in [false, true] {
        let bytes = ip(v6, 6, &tcp(v6, 1, 2, flags::ACK, &[1; 1001]));
        let gso = if v6 { Gso::TcpV6 } else { Gso::TcpV4 };
        let segments = |gso, gso_size, bytes: &[u8]| {
            let csum_offset = if gso == Gso::UdpL4 { 6 } else { 16 };
            let vnet = VnetHeader { gso, gso_size, csum_offset, ..sum_to_come(v6) };
            let packet = Packet::parse(bytes, Layer::Ip, None, &vnet).unwrap();
            assert!(packet.cut.checksum_known);
            packet.segments()
        };
        assert_eq!(segments(gso, 500, &bytes), 3);
        assert_eq!(segments(gso, 1001, &bytes), 1);
        assert_eq!(segments(gso, 0, &bytes), 1);
        assert_eq!(segments(Gso::None, 500, &bytes), 1);
        let bytes = ip(v6, 17, &udp(v6, &[1; 1000]));
        assert_eq!(segments(Gso::UdpL4, 500, &bytes), 2);
        assert_eq!(segments(gso, 10, &ip(v6, 6, &tcp(v6, 1, 2, 0, b""))), 1);
    }
    let cut = OffloadState { size: 0, checksum_known: false };
    assert_eq!(parse(&ip(false, 17, &udp(false, b"x"))).unwrap().cut, cut);
}

#[test]
fn super_packets_may_be_longer_than_their_length_field() {
    for v6 in [false, true] {
        let mut bytes = ip(v6, 6, &tcp(v6, 1, 2, flags::ACK, b""));
        bytes.resize(70_000, 0);
        if v6 {
            bytes[4..6].fill(0);
        } else {
            bytes[2..4].fill(0);
            fix_v4(&mut bytes);
        }
        let gso = if v6 { Gso::TcpV6 } else { Gso::TcpV4 };
        let vnet = VnetHeader { gso, gso_size: 1000, csum_offset: 16, ..sum_to_come(v6) };
        let packet = Packet::parse(&bytes, Layer::Ip, None, &vnet).unwrap();
        assert_eq!((packet.length(), packet.segments()), (70_000, 70));
        assert!(parse(&bytes).is_err(), "a plain packet may not");
        let other = VnetHeader { gso: if v6 { Gso::TcpV4 } else { Gso::TcpV6 }, ..vnet };
        assert!(Packet::parse(&bytes, Layer::Ip, None, &other).is_err(), "of the other family");
    }
}

/// Generates bytes that look like a packet more often than random noise does.
pub(crate) fn likely() -> impl Strategy<Value = Vec<u8>> {
    let l4 = proptest::collection::vec(any::<u8>(), 0..80);
    let protocol =
        prop_oneof![Just(6u8), Just(17), Just(1), Just(58), Just(44), Just(60), any::<u8>()];
    (
        any::<bool>(),
        protocol,
        l4,
        any::<u16>(),
        proptest::collection::vec((0usize..60, any::<u8>()), 0..3),
    )
        .prop_map(|(v6, protocol, l4, frag, noise)| {
            let mut bytes = if v6 {
                v6_of(V6_A, V6_B, &[(60, &[0; 7])], protocol, &l4)
            } else {
                v4_of(V4_A, V4_B, 7, frag & 0x2003, protocol, &l4)
            };
            for (at, value) in noise {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            if bytes[0] >> 4 == 4 && bytes[0] & 0xf >= 5 && bytes.len() >= 60 {
                fix_v4(&mut bytes);
            }
            bytes
        })
}

/// Checks the properties of every accepted packet.
pub(crate) fn check(bytes: &[u8], packet: &Packet<'_>) {
    assert!(bytes.starts_with(packet.bytes));
    assert!(packet.network_at() <= packet.bytes.len());
    assert!(packet.segments() >= 1);
    let _ = (packet.checksum_ok(), packet.length());
    if let Some(ip) = packet.ip() {
        assert!(ip.at < ip.payload && ip.payload <= packet.bytes.len());
        assert!(ip.fragment.is_none_or(|piece| piece.data <= ip.payload));
        let header = match packet.transport {
            Transport::Tcp(tcp) => tcp.header_len,
            Transport::Udp(_) | Transport::Icmp(_) => 8,
            Transport::Other | Transport::None => 0,
        };
        assert!(packet.transport_bytes().len() >= header);
        let later = ip.fragment.is_some_and(|piece| piece.offset != 0);
        assert_eq!(packet.transport == Transport::None, later);
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), beside: Option<u16>, vnet: [u8; 10]) {
        for layer in [Layer::Ethernet, Layer::Ip] {
            if let Ok(packet) = Packet::parse(&bytes, layer, beside, &VnetHeader::decode(&vnet)) {
                check(&bytes, &packet);
            }
        }
    }

    #[test]
    fn what_is_found_lies_within(bytes in likely(), vnet: [u8; 10], tags in 0usize..3) {
        if let Ok(packet) = parse(&bytes) {
            check(&bytes, &packet);
        }
        let kind = if bytes[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
        let framed = ether(&[&[0x8100, 0x8100][..tags], &[kind]].concat(), &bytes);
        let vnet = VnetHeader::decode(&vnet);
        let alone = Packet::parse(&bytes, Layer::Ip, None, &vnet);
        let framed_packet = Packet::parse(&framed, Layer::Ethernet, None, &vnet);
        if let Ok(packet) = &framed_packet {
            check(&framed, packet);
        }
        let seen = |packet: Packet<'_>| (packet.transport, packet.length(), packet.segments(), packet.checksum_ok());
        if bytes[0] >> 4 == 6 || bytes[0] >> 4 == 4 {
            prop_assert_eq!(alone.map(seen), framed_packet.map(seen), "a link header changes nothing");
        }
    }
}
