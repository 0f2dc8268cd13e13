use super::*;
use crate::packet::{Network, Packet, Transport};
use adit_wire::VnetHeader;

fn described(text: &str) -> PacketDescription {
    describe(text).unwrap_or_else(|e| panic!("{e}"))
}

fn with(text: &str, check: impl FnOnce(&Packet<'_>, &PacketDescription)) {
    let described = described(text);
    let packet = Packet::parse(&described.bytes, described.layer, None, &VnetHeader::default());
    let packet = packet.unwrap_or_else(|e| panic!("{text}: {e}"));
    assert!(packet.checksum_ok(), "{text}");
    check(&packet, &described);
}

#[test]
fn a_description_becomes_a_packet_with_right_checksums() {
    with(
        "tcp 10.0.0.1:4000 > 10.0.0.2:80 syn,ack in eth1 out eth2 ct established reply",
        |p, d| {
            let Transport::Tcp(tcp) = p.transport else { panic!("{p:?}") };
            assert_eq!((tcp.ports, tcp.flags), (4000 << 16 | 80, 0x12));
            assert_eq!((d.iif, d.oif), (IfName::new("eth1"), IfName::new("eth2")));
            assert_eq!((d.state, d.direction), (CtState::ESTABLISHED, CtDirection::Reply));
            assert_eq!(d.protocol, Some(6));
        },
    );
    with("udp [fd00::1]:5 > [fd00::2]:domain length 1400 ttl 3 dscp ef", |p, d| {
        let Transport::Udp(udp) = p.transport else { panic!("{p:?}") };
        assert_eq!((udp.ports & 0xffff, udp.len), (53, 1360));
        assert_eq!(p.length(), 1400);
        assert_eq!(d.bytes[14..16], [0x6b, 0x80]);
        assert_eq!(d.bytes[21], 3);
        assert_eq!((d.state, d.direction), (CtState::NEW, CtDirection::Original));
    });
    with("icmp 10.0.0.1 > 224.0.0.5 echo-request id 7 seq 9 vlan 5", |p, _| {
        let Transport::Icmp(icmp) = p.transport else { panic!("{p:?}") };
        assert_eq!((icmp.kind, icmp.rest), (8, 7 << 16 | 9));
        let ether = p.ether.unwrap();
        assert_eq!((ether.vlan, ether.destination), (Some(5), 0x0100_5e00_0005));
    });
    with("icmpv6 fd00::1 > ff02::1 packet-too-big mtu 1280", |p, _| {
        let Transport::Icmp(icmp) = p.transport else { panic!("{p:?}") };
        assert_eq!((icmp.kind, icmp.rest), (2, 1280));
        assert_eq!(p.ether.unwrap().destination, 0x3333_0000_0001);
    });
    with("arp who-has 10.0.0.2 tell 10.0.0.1", |p, _| {
        assert!(matches!(p.network, Network::Arp(14)));
        assert_eq!(p.ether.unwrap().destination, 0xffff_ffff_ffff);
    });
    with("arp reply 10.0.0.2 is-at 00:11:22:33:44:55 to 10.0.0.1", |p, d| {
        assert_eq!(p.ether.unwrap().source, 0x0011_2233_4455);
        assert_eq!(d.bytes[21], 2);
    });
    with("gre 10.0.0.1 > 10.0.0.2 tun", |p, d| {
        assert!(p.ether.is_none());
        assert_eq!((d.layer, d.bytes[9]), (Layer::Ip, 47));
    });
    with("proto 99 10.0.0.1 > 10.0.0.2 smac 2:0:0:0:0:9 dmac 2:0:0:0:0:8", |p, d| {
        assert_eq!(d.protocol, Some(99));
        let ether = p.ether.unwrap();
        assert_eq!((ether.source, ether.destination), (0x0200_0000_0009, 0x0200_0000_0008));
    });
    with("ether 0x88cc", |p, _| assert_eq!(p.ether.unwrap().ethertype, 0x88cc));
    let raw = described("hex:45000014000100004000 tun ct related");
    assert_eq!((raw.bytes.len(), raw.layer, raw.state), (10, Layer::Ip, CtState::RELATED));
}

#[test]
fn a_udp_sum_of_zero_is_sent_as_ones() {
    // The total is 65535, because the ports are chosen so that the checksum is zero.
    let zero = (0..=u16::MAX).find(|port| {
        let text = format!("udp 10.0.0.1:{port} > 10.0.0.2:1 tun");
        described(&text).bytes[26..28] == [0xff, 0xff]
    });
    assert!(zero.is_some());
}

#[test]
fn what_is_wrong_is_shown_with_its_column() {
    for (text, column, message) in [
        ("", 1, "expected a packet, found the end"),
        ("tpc 10.0.0.1:1 > 10.0.0.2:2", 1, "`tpc` is not a kind of packet"),
        (
            "tcp 10.0.0.1 > 10.0.0.2:2",
            5,
            "expected an address and port, like 10.0.0.1:80 or [fd00::1]:80, found `10.0.0.1`",
        ),
        ("tcp 10.0.0.1:1 10.0.0.2:2", 16, "expected `>` between the addresses, found `10.0.0.2:2`"),
        ("tcp 10.0.0.1:1 > [fd00::1]:2", 18, "source and destination are of different families"),
        (
            "icmp 10.0.0.1 > 10.0.0.2 ehco-request",
            26,
            "expected an ICMP type, like echo-request or 8, found `ehco-request`",
        ),
        ("icmp fd00::1 > fd00::2 echo-request", 16, "addresses of the other family"),
        ("udp 10.0.0.1:1 > 10.0.0.2:2 length 20", 1, "such a packet is at least 28 bytes long"),
        (
            "udp 10.0.0.1:1 > 10.0.0.2:2 length 65536",
            36,
            "expected a length from 0 to 65535, found `65536`",
        ),
        ("udp 10.0.0.1:1 > 10.0.0.2:2 code 3", 29, "`code` does not go with this kind of packet"),
        ("arp who-has 10.0.0.1 ttl 5", 22, "expected `tell`, found `ttl`"),
        (
            "arp who-has 10.0.0.1 tell 10.0.0.2 ttl 5",
            36,
            "`ttl` does not go with this kind of packet",
        ),
        ("hex:123", 1, "expected pairs of hex digits behind `hex:`"),
        ("hex:12 ttl 4", 8, "`ttl` is not what may follow raw bytes"),
        (
            "udp 10.0.0.1:1 > 10.0.0.2:2 in abcdefghijklmnop",
            32,
            "expected an interface's name, found `abcdefghijklmnop`",
        ),
        (
            "udp 10.0.0.1:1 > 10.0.0.2:2 ct nwe",
            32,
            "expected a state: new, established, related, invalid or untracked, found `nwe`",
        ),
    ] {
        let error = describe(text).expect_err(text);
        assert_eq!((error.column, error.message.as_str()), (column, message), "{text}");
    }
    let shown = describe("tpc 10.0.0.1:1 > 10.0.0.2:2").unwrap_err().to_string();
    assert_eq!(
        shown,
        "column 1: `tpc` is not a kind of packet
    tpc 10.0.0.1:1 > 10.0.0.2:2
    ^^^
    instead: did you mean `tcp`?"
    );
}
