//! Tests of every field, read from frames given as literal bytes.

use super::read_field::read;
use super::{Context, IfName};
use crate::Nanos;
use crate::packet::{Layer, Packet};
use crate::ruleset::{CtDirection, CtState, Field};
use crate::testing::fix_v4;

const CONTEXT: Context = Context {
    now: Nanos(0),
    iif: IfName(7),
    oif: IfName(0),
    state: CtState::ESTABLISHED,
    direction: CtDirection::Reply,
    protocol: Some(6),
};

fn check_in(
    bytes: &[u8],
    beside: Option<u16>,
    context: &Context,
    fields: &[(Field, Option<u128>)],
) {
    let layer = if matches!(bytes[0] >> 4, 4 | 6) { Layer::Ip } else { Layer::Ethernet };
    let packet = Packet::parse(bytes, layer, beside, &Default::default()).unwrap();
    for (field, value) in fields {
        assert_eq!(read(*field, &packet, context), *value, "{field:?}");
    }
}

fn check(bytes: &[u8], fields: &[(Field, Option<u128>)]) {
    check_in(bytes, None, &CONTEXT, fields);
}

/// Builds an IPv4 packet with four bytes of options.
fn v4(protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut ip =
        vec![0x46, 0xb9, 0, 24 + body.len() as u8, 0x12, 0x34, 0x40, 0, 63, protocol, 0, 0];
    ip.extend([10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 1]);
    ip.extend(body);
    fix_v4(&mut ip);
    ip
}

fn v6(protocol: u8, body: &[u8]) -> Vec<u8> {
    // After destination options.
    let mut ip = vec![0x6b, 0x9a, 0xbc, 0xde, 0, 8 + body.len() as u8, 60, 62];
    ip.extend((0xfd00_u128 << 112 | 1).to_be_bytes());
    ip.extend((0xfd00_u128 << 112 | 2).to_be_bytes());
    ip.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
    ip.extend(body);
    ip
}

const TCP: [u8; 20] =
    [15, 160, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x12, 0x20, 0, 0xab, 0xcd, 0, 7];

#[test]
fn of_a_tagged_tcp_packet() {
    use Field::*;
    let mut frame = vec![1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x81, 0, 0xa0, 5, 8, 0];
    frame.extend(v4(6, &TCP));
    check(
        &frame,
        &[
            (EtherDaddr, Some(0x0100_5e00_0001)),
            (EtherSaddr, Some(0x0200_0000_0009)),
            (EtherType, Some(0x8100)),
            (VlanId, Some(5)),
            (VlanPcp, Some(5)),
            (VlanType, Some(0x0800)),
            (MetaProtocol, Some(0x0800)),
            (MetaNfproto, Some(2)),
            (MetaL4proto, Some(6)),
            (MetaLength, Some(44)),
            (MetaPkttype, Some(2)),
            (IifName, Some(7)),
            (OifName, None),
            (IpVersion, Some(4)),
            (IpHdrlength, Some(6)),
            (IpDscp, Some(46)),
            (IpEcn, Some(1)),
            (IpLength, Some(44)),
            (IpId, Some(0x1234)),
            (IpFragOff, Some(0x4000)),
            (IpTtl, Some(63)),
            (IpProtocol, Some(6)),
            (IpSaddr, Some(0x0a00_0001)),
            (IpDaddr, Some(0x0a00_0002)),
            (Ip6Saddr, None),
            (Ip6Hoplimit, None),
            (TcpSport, Some(4000)),
            (TcpDport, Some(80)),
            (TcpSequence, Some(0x0102_0304)),
            (TcpAckseq, Some(0x0506_0708)),
            (TcpDoff, Some(5)),
            (TcpFlags, Some(0x12)),
            (TcpWindow, Some(0x2000)),
            (TcpChecksum, Some(0xabcd)),
            (TcpUrgptr, Some(7)),
            (ThSport, Some(4000)),
            (ThDport, Some(80)),
            (UdpDport, None),
            (IcmpType, None),
            (ArpOperation, None),
            (CtState, Some(2)),
            (CtDirection, Some(1)),
            (CtProtocol, Some(6)),
        ],
    );
}

#[test]
fn of_a_tag_apart_from_the_frame() {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 8, 0]);
    frame.extend(v4(17, &[0, 53, 1, 0, 0, 8, 0xbe, 0xef]));
    let fields = [
        (Field::VlanId, Some(3)),
        (Field::VlanType, Some(0x0800)),
        (Field::MetaPkttype, Some(1)),
        (Field::UdpSport, Some(53)),
        (Field::UdpDport, Some(256)),
        (Field::UdpLength, Some(8)),
        (Field::UdpChecksum, Some(0xbeef)),
        (Field::ThSport, Some(53)),
        (Field::TcpSport, None),
    ];
    check_in(&frame, Some(3), &CONTEXT, &fields);
    check(&frame, &[(Field::VlanId, None), (Field::VlanPcp, None), (Field::VlanType, None)]);
}

#[test]
fn of_ipv6_behind_extension_headers() {
    use Field::*;
    let packet = v6(58, &[128, 0, 0, 0, 0, 9, 0, 8]);
    check(
        &packet,
        &[
            (EtherSaddr, None),
            (MetaProtocol, Some(0x86dd)),
            (MetaNfproto, Some(10)),
            (MetaL4proto, Some(58)),
            (MetaLength, Some(56)),
            (MetaPkttype, Some(0)),
            (Ip6Version, Some(6)),
            (Ip6Dscp, Some(0x2e)),
            (Ip6Ecn, Some(1)),
            (Ip6Flowlabel, Some(0xa_bcde)),
            (Ip6Length, Some(16)),
            (Ip6Nexthdr, Some(60)),
            (Ip6Hoplimit, Some(62)),
            (Ip6Saddr, Some(0xfd00 << 112 | 1)),
            (Ip6Daddr, Some(0xfd00 << 112 | 2)),
            (IpSaddr, None),
            (Icmpv6Type, Some(128)),
            (Icmpv6Code, Some(0)),
            (Icmpv6Id, Some(9)),
            (Icmpv6Sequence, Some(8)),
            (Icmpv6Mtu, None),
            (IcmpType, None),
            (ThSport, None),
        ],
    );
    let too_big = v6(58, &[2, 0, 0, 0, 0, 0, 5, 0]);
    check(&too_big, &[(Icmpv6Mtu, Some(1280)), (Icmpv6Id, None)]);
}

#[test]
fn of_icmp_what_its_type_has() {
    use Field::*;
    let echo = v4(1, &[8, 0, 0, 0, 0, 9, 0, 8]);
    check(
        &echo,
        &[(IcmpType, Some(8)), (IcmpId, Some(9)), (IcmpSequence, Some(8)), (IcmpMtu, None)],
    );
    let error = v4(1, &[3, 4, 0, 0, 0, 0, 5, 0]);
    check(
        &error,
        &[(IcmpCode, Some(4)), (IcmpMtu, Some(1280)), (IcmpId, None), (Icmpv6Type, None)],
    );
}

#[test]
fn ports_of_sctp_and_its_like_and_of_nothing_else() {
    let body = [0, 20, 0, 21, 0, 0, 0, 0, 0, 0, 0, 0];
    for (protocol, there) in [(132, true), (33, true), (136, true), (47, false), (1, false)] {
        let (from, to) = (there.then_some(20), there.then_some(21));
        check(&v4(protocol, &body), &[(Field::ThSport, from), (Field::ThDport, to)]);
    }
    check(&v4(132, &[0, 20]), &[(Field::ThSport, None)]);
}

#[test]
fn of_arp() {
    use Field::*;
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend([2, 0, 0, 0, 0, 9, 10, 0, 0, 1, 2, 0, 0, 0, 0, 8, 10, 0, 0, 2]);
    check(
        &frame,
        &[
            (ArpHtype, Some(1)),
            (ArpPtype, Some(0x0800)),
            (ArpOperation, Some(2)),
            (ArpSaddrEther, Some(0x0200_0000_0009)),
            (ArpSaddrIp, Some(0x0a00_0001)),
            (ArpDaddrEther, Some(0x0200_0000_0008)),
            (ArpDaddrIp, Some(0x0a00_0002)),
            (EtherType, Some(0x0806)),
            (MetaProtocol, Some(0x0806)),
            (MetaNfproto, None),
            (MetaL4proto, None),
            (MetaLength, Some(28)),
            (IpSaddr, None),
        ],
    );
}

#[test]
fn what_belongs_to_no_connection_has_no_direction() {
    for state in [CtState::INVALID, CtState::UNTRACKED] {
        let context = Context { state, protocol: None, ..CONTEXT };
        let fields = [(Field::CtDirection, None), (Field::CtProtocol, None)];
        check_in(&v4(6, &TCP), None, &context, &fields);
    }
}
