use adit_wire::VnetHeader;
use adit_wire::transport::flags;
use proptest::prelude::*;

use super::{MAX_REJECTION, Message, error, reject};
use crate::packet::tests::likely;
use crate::packet::{Layer, Packet, Transport};
use crate::ruleset::{Icmpx, Reject};
use crate::testing::{
    V4_A, V4_B, V6_A, V6_B, ether, fix_v4, icmp, ip, naive_checksum, piece, tcp, udp, v6_of,
};

const PLAIN: Reject = Reject::Icmpx(Icmpx::PortUnreachable);

fn parse(bytes: &[u8], layer: Layer) -> Packet<'_> {
    Packet::parse(bytes, layer, None, &VnetHeader::default()).expect("a packet")
}

/// Returns the answer to an IP packet, which must parse and be valid.
fn answer(bytes: &[u8], how: Reject) -> Option<Vec<u8>> {
    let mut out = [0xee; MAX_REJECTION];
    let len = reject(&parse(bytes, Layer::Ip), how, &mut out)?;
    let told = parse(&out[..len], Layer::Ip);
    assert_eq!(told.bytes.len(), len);
    assert!(told.checksum_ok());
    let (asked, told) = (*parse(bytes, Layer::Ip).ip().unwrap(), *told.ip().unwrap());
    assert_eq!((told.source, told.destination), (asked.destination, asked.source));
    Some(out[..len].to_vec())
}

/// Returns whether a datagram of the family is answered; see [`answer`].
fn answers(bytes: &[u8]) -> bool {
    answer(bytes, PLAIN).is_some()
}

#[test]
fn every_reason_has_its_code() {
    let codes = |v6, how| {
        let told = answer(&ip(v6, 17, &udp(v6, b"x")), how)?;
        let at = if v6 { 40 } else { 20 };
        Some((told[at], told[at + 1]))
    };
    for (how, v4, v6) in [
        (PLAIN, Some((3, 3)), Some((1, 4))),
        (Reject::Icmpx(Icmpx::NoRoute), Some((3, 0)), Some((1, 0))),
        (Reject::Icmpx(Icmpx::HostUnreachable), Some((3, 1)), Some((1, 3))),
        (Reject::Icmpx(Icmpx::AdminProhibited), Some((3, 13)), Some((1, 1))),
        (Reject::Icmp(9), Some((3, 9)), None),
        (Reject::Icmpv6(5), None, Some((1, 5))),
        (Reject::TcpReset, None, None),
    ] {
        assert_eq!((codes(false, how), codes(true, how)), (v4, v6), "{how:?}");
    }
}

#[test]
fn as_much_is_quoted_as_fits() {
    for (v6, header, longest) in [(false, 20, 576), (true, 40, 1280)] {
        let short = ip(v6, 17, &udp(v6, &[7; 30]));
        assert_eq!(answer(&short, PLAIN).unwrap()[header + 8..], short);
        let long = ip(v6, 17, &udp(v6, &[7; 1400]));
        let told = answer(&long, PLAIN).unwrap();
        assert_eq!(told.len(), longest);
        assert_eq!(told[header + 8..], long[..longest - header - 8]);
    }
}

#[test]
fn a_reset_is_what_a_closed_port_says() {
    for v6 in [false, true] {
        let of = |flags, payload: &[u8]| {
            let told = answer(&ip(v6, 6, &tcp(v6, 1000, 77, flags, payload)), Reject::TcpReset)?;
            let Transport::Tcp(tcp) = parse(&told, Layer::Ip).transport else { panic!() };
            assert_eq!((tcp.ports, tcp.header_len), (80 << 16 | 4000, 20));
            Some((tcp.seq, tcp.ack, tcp.flags))
        };
        let (rst, ack) = (flags::RST, flags::ACK);
        assert_eq!(of(flags::SYN, b""), Some((0, 1001, rst | ack)));
        assert_eq!(of(flags::SYN, b"fast"), Some((0, 1005, rst | ack)));
        assert_eq!(of(flags::FIN, b"end"), Some((0, 1004, rst | ack)));
        assert_eq!(of(0, b""), Some((0, 1000, rst | ack)));
        assert_eq!(of(ack, b"data"), Some((77, 0, rst)));
        assert_eq!(of(flags::SYN | ack, b""), Some((77, 0, rst)));
        assert_eq!(of(rst, b""), None, "to a reset");
        assert_eq!(of(rst | ack, b""), None, "to a reset");
        let datagram = ip(v6, 17, &udp(v6, b"x"));
        assert_eq!(answer(&datagram, Reject::TcpReset), None, "to what is not TCP");
        // Sequence numbers wrap.
        let edge = ip(v6, 6, &tcp(v6, u32::MAX, 0, flags::SYN, b"ab"));
        let told = answer(&edge, Reject::TcpReset).unwrap();
        assert!(matches!(parse(&told, Layer::Ip).transport, Transport::Tcp(tcp) if tcp.ack == 2));
    }
}

#[test]
fn frames_go_back_with_their_tags() {
    let packet = ip(false, 17, &udp(false, b"x"));
    for (types, beside) in [
        (&[0x0800][..], None),
        (&[0x8100, 0x0800][..], None),
        (&[0x88a8, 0x8100, 0x0800][..], None),
        (&[0x0800][..], Some(9)),
    ] {
        let frame = ether(types, &packet);
        let asked = Packet::parse(&frame, Layer::Ethernet, beside, &VnetHeader::default()).unwrap();
        let mut out = [0; MAX_REJECTION];
        let len = reject(&asked, PLAIN, &mut out).unwrap();
        let told = Packet::parse(&out[..len], Layer::Ethernet, beside, &VnetHeader::default());
        let told = told.unwrap();
        let (asked_ether, mut turned) = (asked.ether.unwrap(), told.ether.unwrap());
        std::mem::swap(&mut turned.source, &mut turned.destination);
        assert_eq!(turned, asked_ether);
        assert!(told.checksum_ok());
        assert_eq!(told.ip().unwrap().destination, V4_A);
        let bare = answer(&packet, PLAIN).unwrap();
        assert_eq!(out[told.ip().unwrap().at..len], bare, "the packet is the same");
    }
}

#[test]
fn errors_are_not_answered() {
    for (v6, protocol) in [(false, 1), (true, 58)] {
        let kind = |kind| ip(v6, protocol, &icmp(v6, kind, 0, 7, &[0; 40]));
        for question in if v6 { [128, 129, 135] } else { [0, 8, 13] } {
            assert!(answers(&kind(question)), "{question}");
        }
        for error in if v6 { [1, 2, 3, 4, 127, 137] } else { [3, 4, 5, 11, 12, 99] } {
            assert!(!answers(&kind(error)), "{error}");
        }
    }
    // The same after extension headers.
    let hidden = v6_of(V6_A, V6_B, &[(60, &[0; 7])], 58, &icmp(true, 1, 0, 0, &[0; 40]));
    assert!(!answers(&hidden));
    let question = v6_of(V6_A, V6_B, &[(60, &[0; 7])], 58, &icmp(true, 128, 0, 0, &[0; 40]));
    assert!(answers(&question));
}

#[test]
fn pieces_but_the_first_are_not_answered() {
    for v6 in [false, true] {
        let whole = ip(v6, 17, &udp(v6, &[0; 100]));
        let body = &whole[whole.len() - 108..];
        assert!(answers(&piece(&whole, 1, 0, &body[..48], true)));
        assert!(!answers(&piece(&whole, 1, 48, &body[48..], false)));
        let segment = tcp(v6, 1, 2, flags::SYN, &[0; 100]);
        let first = piece(&ip(v6, 6, &segment), 1, 0, &segment[..48], true);
        assert_eq!(answer(&first, Reject::TcpReset), None, "its length is not known");
        assert!(answers(&first));
    }
}

#[test]
fn only_single_hosts_are_told_of_what_was_for_one() {
    for how in [PLAIN, Reject::TcpReset] {
        let vouched = VnetHeader {
            needs_csum: true,
            csum_start: 20,
            csum_offset: 16,
            ..VnetHeader::default()
        };
        let told = |packet: &[u8]| {
            let packet = Packet::parse(packet, Layer::Ip, None, &vouched).unwrap();
            reject(&packet, how, &mut [0; MAX_REJECTION]).is_some()
        };
        let mut packet = ip(false, 6, &tcp(false, 1, 2, flags::SYN, b""));
        for at in [12, 16] {
            for address in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 5], [240, 0, 0, 1], [255; 4]]
            {
                let before = packet.clone();
                packet[at..at + 4].copy_from_slice(&address);
                fix_v4(&mut packet);
                assert!(!told(&packet), "{at} {address:?}");
                packet = before;
            }
        }
        assert!(told(&packet));
        let packet = ip(true, 6, &tcp(true, 1, 2, flags::SYN, b""));
        for at in [8, 24] {
            for address in ["::", "::1", "ff02::1"] {
                let mut packet = packet.clone();
                let address: std::net::Ipv6Addr = address.parse().unwrap();
                packet[at..at + 16].copy_from_slice(&address.octets());
                assert!(!told(&packet), "{at} {address}");
            }
        }
        assert!(told(&packet));
    }
}

#[test]
fn what_was_for_a_group_of_stations_is_not_answered() {
    let mut frame = ether(&[0x0800], &ip(false, 6, &tcp(false, 1, 2, flags::SYN, b"")));
    let told = |frame: &[u8], how| {
        reject(&parse(frame, Layer::Ethernet), how, &mut [0; MAX_REJECTION]).is_some()
    };
    assert!(told(&frame, PLAIN) && told(&frame, Reject::TcpReset));
    frame[0] = 3;
    assert!(!told(&frame, PLAIN) && !told(&frame, Reject::TcpReset));
    let arp = ether(&[0x0806], &[&[0, 1, 8, 0, 6, 4, 0, 1][..], &[0; 20]].concat());
    assert!(!told(&arp, PLAIN) && !told(&arp, Reject::TcpReset));
}

#[test]
fn what_came_damaged_is_not_answered() {
    for v6 in [false, true] {
        let mut packet = ip(v6, 6, &tcp(v6, 1, 2, flags::SYN, b"x"));
        assert!(answers(&packet) && answer(&packet, Reject::TcpReset).is_some());
        *packet.last_mut().unwrap() ^= 1;
        assert!(!answers(&packet) && answer(&packet, Reject::TcpReset).is_none());
    }
}

#[test]
fn a_router_tells_in_its_own_name() {
    let packet = ip(false, 17, &udp(false, b"x"));
    let message = Message { kind: 11, code: 0, rest: 0x0000_05dc };
    let mut out = [0; MAX_REJECTION];
    let from = "10.0.1.254".parse().unwrap();
    let len = error(&parse(&packet, Layer::Ip), message, Some(from), &mut out).unwrap();
    let told = parse(&out[..len], Layer::Ip);
    assert_eq!((told.ip().unwrap().source, told.ip().unwrap().destination), (from, V4_A.into()));
    let Transport::Icmp(icmp) = told.transport else { panic!() };
    assert_eq!((icmp.kind, icmp.code, icmp.rest), (11, 0, 1500));
    assert_eq!(naive_checksum(told.transport_bytes()), 0);
    assert_ne!(from, std::net::IpAddr::from(V4_B));
}

proptest! {
    #[test]
    fn answers_are_right_whatever_they_answer(bytes in likely(), tags in 0usize..3, reset: bool) {
        let kind = if bytes[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
        let framed = ether(&[&[0x8100, 0x8100][..tags], &[kind]].concat(), &bytes);
        let how = if reset { Reject::TcpReset } else { PLAIN };
        for vouched in [false, true] {
            let vnet = VnetHeader { needs_csum: vouched, ..VnetHeader::default() };
            let Ok(asked) = Packet::parse(&framed, Layer::Ethernet, None, &vnet) else { continue };
            let mut out = [0; MAX_REJECTION];
            let Some(len) = reject(&asked, how, &mut out) else { continue };
            let told = parse(&out[..len], Layer::Ethernet);
            prop_assert!(told.checksum_ok() && told.bytes.len() == len);
            // The answer itself is never answered.
            prop_assert!(reject(&told, how, &mut [0; MAX_REJECTION]).is_none());
        }
    }
}
