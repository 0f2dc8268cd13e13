use std::collections::BTreeMap;

use adit_wire::ethernet::{ARP, IPV4, IPV6};
use adit_wire::ip::{ICMP, ICMPV6, Ip, TCP, UDP};
use proptest::prelude::*;

use super::*;
use crate::graph::{Graph, SubnetTable};
use crate::meta::{AddressToken, EdgeInfo, Options};
use crate::subnet::SubnetAddress;

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

/// ```text
///   bob ─── alice ─── carol        erin
///    ├────── (heavy) ───┘     (unreachable)
///   dave, to which only bob sends directly
/// ```
/// Each has a subnet of both IP versions and a station: the first one alice's, and so on. The own node is alice.
struct Net {
    graph: Graph,
    subnets: SubnetTable,
    tree: Vec<NodeName>,
    mtu: BTreeMap<NodeName, u16>,
}

impl Net {
    fn new() -> Self {
        let mut net = Self {
            graph: Graph::new(name("alice")),
            subnets: SubnetTable::default(),
            tree: Vec::new(),
            mtu: BTreeMap::new(),
        };
        net.link("alice", "bob", Options::CLAMP_MSS, 1);
        net.link("alice", "carol", 0, 1);
        net.link("bob", "carol", 0, 100);
        net.link("bob", "dave", Options::INDIRECT, 1);
        for (owner, number) in ["alice", "bob", "carol", "dave", "erin"].into_iter().zip(1..) {
            net.own(owner, &format!("10.{number}.0.0/16"));
            net.own(owner, &format!("fd00:{number}::/32"));
            net.own(owner, &format!("02:00:00:00:00:0{number}"));
        }
        net.graph.compute();
        net.tree = tree_neighbours(&net.graph);
        net
    }

    fn link(&mut self, one: &str, other: &str, options: u32, weight: i32) {
        for (from, to) in [(one, other), (other, one)] {
            let edge = EdgeInfo {
                address: AddressToken::unspecified(),
                options: Options(options),
                weight,
                local: None,
            };
            self.graph.add_edge(&name(from), &name(to), edge).unwrap();
        }
    }

    fn own(&mut self, owner: &str, subnet: &str) {
        self.subnets.insert(&name(owner), subnet.parse().unwrap()).unwrap();
    }

    fn set_mtu(&mut self, node: &str, mtu: u16) {
        self.mtu.insert(name(node), mtu);
    }

    fn view(&self) -> Topology<'_, impl Fn(&NodeName) -> u16> {
        Topology {
            graph: &self.graph,
            subnets: &self.subnets,
            tree: &self.tree,
            mtu: |node: &NodeName| self.mtu.get(node).copied().unwrap_or(MAX_MTU),
        }
    }

    /// Routes a packet of a node; alice's is the device's. Returns what becomes of it as words.
    fn route(&self, router: &mut Router, from: &str, packet: &mut [u8]) -> String {
        let view = self.view();
        let decision = match from {
            "alice" => router.from_device(packet, &view, NOW),
            from => router.from_node(&name(from), packet, &view, NOW),
        };
        words(&decision)
    }
}

fn words(decision: &Decision<'_>) -> String {
    match decision {
        Decision::Device => "device".to_owned(),
        Decision::Node { to, .. } => to.to_string(),
        Decision::Fragments { to, plan, .. } => format!("{to} in {}", plan.size),
        Decision::Many { nodes, device } => {
            let nodes: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
            format!("{}{}", nodes.join("+"), if *device { "+device" } else { "" })
        }
        Decision::Reply(reply) => {
            let at = if reply[0] >> 4 == 4 || reply[0] == 0x60 { 0 } else { 14 };
            let ip = Ip::parse(&reply[at..]).unwrap();
            let message = &reply[at + ip.header_len..];
            let mtu = u32::from_be_bytes(message[4..8].try_into().unwrap());
            let mtu = if mtu == 0 { String::new() } else { format!(" mtu {mtu}") };
            format!("{}/{}{mtu}", message[0], message[1])
        }
        Decision::Drop(reason) => format!("{reason:?}"),
    }
}

fn settings() -> Settings {
    Settings::from(&ServerConfig::default())
}

fn router(change: impl FnOnce(&mut Settings)) -> Router {
    let mut settings = settings();
    change(&mut settings);
    Router::new(settings)
}

fn switch(change: impl FnOnce(&mut Settings)) -> Router {
    router(|settings| {
        settings.mode = Mode::Switch;
        settings.is_tap = true;
        change(settings);
    })
}

/// Builds an IP packet of `len` bytes with a zero payload.
fn packet(from: &str, to: &str, protocol: u8, len: usize) -> Vec<u8> {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let header = if from.is_ipv4() { 20 } else { 40 };
    let mut packet = vec![0; len.max(header)];
    let len = packet.len() - header;
    assert!(icmp_error::ip_header(from, to, protocol, len, &mut packet).is_some());
    packet
}

fn udp(from: &str, to: &str) -> Vec<u8> {
    packet(from, to, UDP, 100)
}

fn without_df(mut packet: Vec<u8>) -> Vec<u8> {
    packet[6] = 0;
    packet[10..12].fill(0);
    let sum = adit_wire::checksum::Sum::new().bytes(&packet[..20]).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Builds a frame between stations, which are numbered as the nodes are; 0 is the address of all.
fn frame(from: u8, to: u8, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mac = |number: u8| if number == 0 { [0xff; 6] } else { [2, 0, 0, 0, 0, number] };
    [&mac(to)[..], &mac(from), &kind.to_be_bytes(), payload].concat()
}

/// Specification 12.2.
#[test]
fn packets_are_routed_by_their_subnets() {
    let net = Net::new();
    let rows = [
        ("alice", "10.2.0.9", "bob"),
        ("alice", "10.4.0.9", "dave"),
        ("alice", "fd00:4::9", "dave"),
        ("alice", "10.1.0.9", "Own"),
        ("bob", "10.1.0.9", "device"),
        ("dave", "fd00:1::9", "device"),
        ("bob", "10.3.0.9", "carol"),
        ("bob", "10.2.0.9", "Own"),
        ("bob", "10.4.0.9", "Loop"),
        ("carol", "10.4.0.9", "dave"),
        ("alice", "10.9.0.9", "3/6"),
        ("bob", "10.9.0.9", "3/6"),
        ("alice", "fd00:9::9", "1/3"),
        ("alice", "10.5.0.9", "3/0"),
        ("bob", "fd00:5::9", "1/0"),
    ];
    for (from, to, expected) in rows {
        let source = if to.contains(':') { "fd00:7::7" } else { "10.7.0.7" };
        let mut router = router(|_| {});
        assert_eq!(net.route(&mut router, from, &mut udp(source, to)), expected, "{from} {to}");
    }
    let mut router = router(|_| {});
    assert_eq!(net.route(&mut router, "alice", &mut [0x45; 19]), "Malformed");
    assert_eq!(net.route(&mut router, "alice", &mut []), "Malformed");
    let malformed = router.drops().find(|(reason, _)| *reason == DropReason::Malformed).unwrap();
    assert_eq!(malformed.1, 2);
}

/// Specification 12.2 and 15.4.
#[test]
fn forwarding_can_be_off_or_the_kernels() {
    let net = Net::new();
    let route = |forwarding, direct_only, from: &str, to: &str| {
        let mut router = router(|settings| {
            settings.forwarding = forwarding;
            settings.direct_only = direct_only;
        });
        let source = if to.contains(':') { "fd00:7::7" } else { "10.7.0.7" };
        net.route(&mut router, from, &mut udp(source, to))
    };
    assert_eq!(route(Forwarding::Off, false, "bob", "10.3.0.9"), "3/9");
    assert_eq!(route(Forwarding::Off, false, "carol", "fd00:2::9"), "1/1");
    assert_eq!(route(Forwarding::Off, false, "bob", "10.1.0.9"), "device");
    assert_eq!(route(Forwarding::Off, false, "alice", "10.4.0.9"), "dave");
    assert_eq!(route(Forwarding::Kernel, false, "bob", "10.3.0.9"), "device");
    assert_eq!(route(Forwarding::Kernel, false, "bob", "10.9.0.9"), "device");
    assert_eq!(route(Forwarding::Kernel, false, "alice", "10.3.0.9"), "carol");
    assert_eq!(route(Forwarding::Internal, true, "alice", "10.4.0.9"), "3/9");
    assert_eq!(route(Forwarding::Internal, true, "alice", "fd00:4::9"), "1/1");
    assert_eq!(route(Forwarding::Internal, true, "alice", "10.2.0.9"), "bob");
}

/// Specification 12.2.
#[test]
fn at_most_three_errors_are_sent_in_a_second() {
    let net = Net::new();
    let view = net.view();
    let mut router = router(|_| {});
    let mut is_error = |millis| {
        let now = NOW + Duration::from_millis(millis);
        let decision = router.from_device(&mut udp("10.1.0.1", "10.9.0.9"), &view, now);
        matches!(decision, Decision::Reply(_))
    };
    assert_eq!([0, 0, 0, 0, 100].map(&mut is_error), [true, true, true, false, false]);
    assert_eq!([1500, 1500, 1500, 1500].map(&mut is_error), [true, true, true, false]);
    assert_eq!(router.errors_suppressed(), 3);
}

#[test]
fn errors_come_from_the_own_address_unless_it_asked() {
    let net = Net::new();
    let view = net.view();
    let mut router = router(|_| {});
    router.set_device(None, Some(Ipv4Addr::new(10, 1, 0, 1)), None);
    let ends = |decision: Decision<'_>| {
        let Decision::Reply(reply) = decision else { panic!("{decision:?}") };
        let ip = Ip::parse(reply).unwrap();
        assert_eq!(ip.total_len, reply.len());
        (ip.source.to_string(), ip.destination.to_string())
    };
    let expected = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let mut packet = udp("10.2.0.1", "10.9.0.9");
    let decision = router.from_node(&name("bob"), &mut packet, &view, NOW);
    assert_eq!(ends(decision), expected("10.1.0.1", "10.2.0.1"));
    let mut packet = udp("fd00:2::1", "fd00:9::9");
    let decision = router.from_node(&name("bob"), &mut packet, &view, NOW);
    assert_eq!(ends(decision), expected("fd00:9::9", "fd00:2::1"), "no own address is known");
    let mut packet = udp("10.1.0.1", "10.9.0.9");
    let decision = router.from_device(&mut packet, &view, NOW);
    assert_eq!(ends(decision), expected("10.9.0.9", "10.1.0.1"));
}

/// RFC 1122 3.2.2 and RFC 4443 2.4 (e). Each row differs in one way from a packet that is answered.
#[test]
fn errors_are_not_sent_about_errors_fragments_and_groups() {
    let net = Net::new();
    let route = |packet: Vec<u8>| {
        let mut packet = packet;
        net.route(&mut router(|_| {}), "alice", &mut packet)
    };
    let icmp = |kind: u8| {
        let mut packet = packet("10.1.0.1", "10.9.0.9", ICMP, 60);
        packet[20] = kind;
        packet
    };
    assert_eq!(route(icmp(8)), "3/6");
    assert_eq!(route(icmp(3)), "Unknown");
    let icmp = |chain: &[u8]| {
        let mut packet = packet("fd00:1::1", "fd00:9::9", chain[0], 100);
        packet[40..40 + chain.len() - 1].copy_from_slice(&chain[1..]);
        packet
    };
    assert_eq!(route(icmp(&[ICMPV6, 128])), "1/3");
    assert_eq!(route(icmp(&[ICMPV6, 1])), "Unknown");
    let options = |kind| [0, ICMPV6, 0, 0, 0, 0, 0, 0, 0, kind];
    assert_eq!(route(icmp(&options(128))), "1/3", "behind options");
    assert_eq!(route(icmp(&options(1))), "Unknown", "behind options");
    let fragment = |offset| [44, UDP, 0, 0, offset, 0, 0, 0, 1];
    assert_eq!(route(icmp(&fragment(1))), "1/3", "the first fragment: more follow");
    assert_eq!(route(icmp(&fragment(8))), "Unknown");
    let mut fragment = udp("10.1.0.1", "10.9.0.9");
    fragment[7] = 1;
    assert_eq!(route(fragment), "Unknown");
    for source in ["0.0.0.0", "224.0.0.1", "127.0.0.1"] {
        assert_eq!(route(udp(source, "10.9.0.9")), "Unknown", "{source}");
    }
    assert_eq!(route(udp("::", "fd00:9::9")), "Unknown");
    let net = Net::new();
    let route = |to| {
        let mut frame = frame(1, to, IPV4, &udp("10.1.0.1", "10.9.0.9"));
        net.route(&mut tap(), "alice", &mut frame)
    };
    assert_eq!(route(2), "3/6");
    assert_eq!(route(0), "Unknown", "to all stations");
}

/// Specification 12.3.
#[test]
fn a_packet_that_does_not_fit_is_reported_or_fragmented() {
    // The path MTU counts 14 bytes of an Ethernet header.
    let rows: [(u16, usize, bool, &str); 9] = [
        (1414, 1400, true, "bob"),
        (1414, 1401, true, "3/4 mtu 1400"),
        (1414, 1401, false, "bob in 1400"),
        (500, 576, true, "bob"),
        (500, 577, true, "3/4 mtu 576"),
        (500, 577, false, "bob in 576"),
        (0, 1500, true, "bob"),
        (0, 1505, true, "3/4 mtu 1504"),
        (MAX_MTU, 1504, true, "bob"),
    ];
    for (mtu, len, df, expected) in rows {
        let mut net = Net::new();
        net.set_mtu("bob", mtu);
        let whole = packet("10.1.0.1", "10.2.0.1", UDP, len);
        let mut packet = if df { whole } else { without_df(whole) };
        let words = net.route(&mut router(|_| {}), "alice", &mut packet);
        assert_eq!(words, expected, "{len} of {mtu}");
    }
    for (mtu, len, expected) in [
        (1414, 1400, "dave"),
        (1414, 1401, "2/0 mtu 1400"),
        (500, 1280, "dave"),
        (500, 1281, "2/0 mtu 1280"),
        (0, 1500, "dave"),
    ] {
        let mut net = Net::new();
        // The relay's MTU counts.
        net.set_mtu("bob", mtu);
        net.set_mtu("dave", 700);
        let mut packet = packet("fd00:1::1", "fd00:4::1", UDP, len);
        let words = net.route(&mut router(|_| {}), "alice", &mut packet);
        assert_eq!(words, expected, "{len} of {mtu}");
    }
}

/// Specification 12.3: in switch mode only frames with IP packets are concerned.
#[test]
fn a_frame_that_does_not_fit_is_reported_or_fragmented() {
    let v4 = |len| frame(1, 2, IPV4, &packet("10.0.0.1", "10.0.0.2", UDP, len));
    let v6 = |len| frame(1, 2, IPV6, &packet("fd00::1", "fd00::2", UDP, len));
    let rows = [
        (1300, v4(1286), "bob"),
        (1300, v4(1287), "3/4 mtu 1286"),
        (
            1300,
            frame(1, 2, IPV4, &without_df(packet("10.0.0.1", "10.0.0.2", UDP, 1287))),
            "bob in 1286",
        ),
        (500, v4(576), "bob"),
        (500, v4(577), "3/4 mtu 576"),
        (0, v4(1600), "bob"),
        (1300, v6(1286), "bob"),
        (1300, v6(1287), "2/0 mtu 1286"),
        (500, v6(1280), "bob"),
        (500, v6(1281), "2/0 mtu 1280"),
        (500, frame(1, 2, 0x88b5, &[7; 1400]), "bob"),
        (500, frame(1, 2, IPV4, &[0x45; 1400]), "Malformed"),
    ];
    for (mtu, mut frame, expected) in rows {
        let mut net = Net::new();
        net.set_mtu("bob", mtu);
        let words = net.route(&mut switch(|_| {}), "alice", &mut frame);
        assert_eq!(words, expected, "{} of {mtu}", frame.len());
    }
    // The answer is a frame in the other direction, with the tag.
    let mut net = Net::new();
    net.set_mtu("bob", 1300);
    let inner = packet("10.0.0.1", "10.0.0.2", UDP, 1300);
    let mut tagged = frame(1, 2, 0x8100, &[&[0, 7, 8, 0][..], &inner].concat());
    let (mut router, view) = (switch(|_| {}), net.view());
    let Decision::Reply(reply) = router.from_device(&mut tagged, &view, NOW) else { panic!() };
    assert_eq!(reply[..12], frame(2, 1, 0, &[])[..12]);
    assert_eq!(reply[12..18], [0x81, 0, 0, 7, 8, 0]);
    assert_eq!(Ip::parse(&reply[18..]).unwrap().destination.to_string(), "10.0.0.1");
}

fn syn(mss: u16) -> Vec<u8> {
    let mut packet = packet("10.1.0.1", "10.2.0.1", TCP, 44);
    packet[32..34].copy_from_slice(&[0x60, 2]);
    packet[40..44].copy_from_slice(&[2, 4, (mss >> 8) as u8, mss as u8]);
    packet
}

fn mss(packet: &[u8]) -> u16 {
    let option = packet.len() - 4;
    assert_eq!(packet[option..option + 2], [2, 4]);
    u16::from_be_bytes([packet[option + 2], packet[option + 3]])
}

/// Specification 12.3.
#[test]
fn the_mss_is_lowered_in_both_directions() {
    let mut net = Net::new();
    net.set_mtu("bob", 1400);
    net.set_mtu("carol", 1400);
    let lowered = |router: &mut Router, from: &str, mut packet: Vec<u8>| {
        net.route(router, from, &mut packet);
        mss(&packet)
    };
    let mut plain = router(|_| {});
    assert_eq!(lowered(&mut plain, "alice", syn(1460)), 1400 - 14 - 40);
    assert_eq!(lowered(&mut plain, "alice", syn(1300)), 1300);
    let back = |mut packet: Vec<u8>| {
        packet[12..20].copy_from_slice(&[10, 2, 0, 1, 10, 1, 0, 1]);
        packet
    };
    assert_eq!(lowered(&mut plain, "bob", back(syn(1460))), 1400 - 14 - 40);
    let mut other = syn(1460);
    other[17] = 3;
    assert_eq!(lowered(&mut plain, "alice", other), 1460, "carol's option is not set");
    let mut outer = packet("10.1.0.1", "10.2.0.1", 4, 64);
    outer[20..].copy_from_slice(&syn(1460));
    assert_eq!(lowered(&mut plain, "alice", outer), 1400 - 14 - 60, "IP in IP");
    let mut switch = switch(|_| {});
    assert_eq!(lowered(&mut switch, "alice", frame(1, 2, IPV4, &syn(1460))), 1400 - 14 - 40);
    let tagged = frame(1, 2, 0x8100, &[&[0, 7, 8, 0][..], &syn(1460)].concat());
    assert_eq!(lowered(&mut switch, "alice", tagged), 1400 - 18 - 40, "behind a tag");
    net.set_mtu("bob", 0);
    let mut unknown = syn(1460);
    net.route(&mut plain, "alice", &mut unknown);
    assert_eq!(mss(&unknown), 1460, "nothing is known of the path");
}

/// Specification 12.4.
#[test]
fn packets_to_many_nodes_follow_the_setting() {
    let net = Net::new();
    let subnets: [Subnet; 2] = ["10.2.255.255", "10.3.0.0/8"].map(|text| text.parse().unwrap());
    let route = |broadcast, from: &str, to: &str| {
        let mut router = router(|settings| {
            settings.broadcast = broadcast;
            settings.broadcast_subnets = subnets.to_vec();
        });
        let source = if to.contains(':') { "fd00:7::7" } else { "10.7.0.7" };
        net.route(&mut router, from, &mut udp(source, to))
    };
    for to in ["255.255.255.255", "224.0.0.251", "ff02::1", "10.2.255.255", "10.77.0.1"] {
        assert_eq!(route(Broadcast::Tree, "alice", to), "bob+carol", "{to}");
        assert_eq!(route(Broadcast::Tree, "bob", to), "carol+device", "{to}");
        assert_eq!(route(Broadcast::Direct, "alice", to), "bob+carol", "{to}");
        assert_eq!(route(Broadcast::Direct, "bob", to), "device", "{to}");
        assert_eq!(route(Broadcast::No, "alice", to), "NoReceiver", "{to}");
        assert_eq!(route(Broadcast::No, "bob", to), "device", "{to}");
    }
    assert_eq!(route(Broadcast::Tree, "alice", "10.2.255.254"), "bob", "the longer prefix");
    // A packet that a neighbour forwarded may be a node's behind it.
    assert_eq!(route(Broadcast::Tree, "dave", "224.0.0.1"), "carol+device");
    let mut tunnel_server = router(|settings| settings.tunnel_server = true);
    let mut packet = udp("10.2.0.1", "224.0.0.1");
    assert_eq!(net.route(&mut tunnel_server, "bob", &mut packet), "device");
    assert_eq!(net.route(&mut tunnel_server, "alice", &mut packet), "bob+carol");
    let mut off = router(|settings| settings.forwarding = Forwarding::Off);
    assert_eq!(net.route(&mut off, "bob", &mut packet), "device");
}

/// Specification 12.5.
#[test]
fn the_ttl_of_other_nodes_packets_is_decremented() {
    let net = Net::new();
    let mut router = router(|settings| settings.decrement_ttl = true);
    let mut route = |from: &str, to: &str, ttl: u8| {
        let v6 = to.contains(':');
        let mut packet = if v6 { udp("fd00:7::7", to) } else { udp("10.7.0.7", to) };
        packet[if v6 { 7 } else { 8 }] = ttl;
        if !v6 {
            packet = without_df(packet);
        }
        let words = net.route(&mut router, from, &mut packet);
        assert!(v6 || adit_wire::ip::header_checksum_ok(&packet));
        (words, packet[if v6 { 7 } else { 8 }])
    };
    let expected = |words: &str, ttl: u8| (words.to_owned(), ttl);
    assert_eq!(route("bob", "10.3.0.1", 2), expected("carol", 1));
    assert_eq!(route("bob", "fd00:1::1", 2), expected("device", 1));
    assert_eq!(route("bob", "224.0.0.1", 64), expected("carol+device", 63));
    assert_eq!(route("bob", "10.3.0.1", 1), expected("11/0", 1));
    assert_eq!(route("bob", "fd00:3::1", 0), expected("3/0", 0));
    assert_eq!(route("bob", "224.0.0.1", 1), expected("TtlExceeded", 1));
    assert_eq!(route("alice", "10.3.0.1", 1), expected("carol", 1), "the device's own");
}

/// Specification 12.1 and 12.2.
#[test]
fn frames_are_switched_by_their_stations() {
    let net = Net::new();
    let route = |from: &str, to: u8, change: fn(&mut Settings)| {
        net.route(&mut switch(change), from, &mut frame(9, to, 0x88b5, b"data"))
    };
    let rows = [
        ("alice", 2, "bob"),
        ("alice", 4, "dave"),
        ("alice", 1, "Own"),
        ("alice", 5, "Unreachable"),
        ("alice", 8, "bob+carol"),
        ("alice", 0, "bob+carol"),
        ("bob", 1, "device"),
        ("bob", 2, "Own"),
        ("bob", 3, "carol"),
        ("bob", 4, "Loop"),
        ("bob", 8, "carol+device"),
    ];
    for (from, to, expected) in rows {
        assert_eq!(route(from, to, |_| {}), expected, "{from} {to}");
    }
    assert_eq!(route("bob", 3, |settings| settings.forwarding = Forwarding::Off), "NotForwarded");
    assert_eq!(route("bob", 3, |settings| settings.forwarding = Forwarding::Kernel), "device");
    assert_eq!(route("alice", 4, |settings| settings.direct_only = true), "Indirect");
    for to in [1, 2, 4, 8, 0] {
        assert_eq!(route("alice", to, |settings| settings.mode = Mode::Hub), "bob+carol");
        assert_eq!(route("bob", to, |settings| settings.mode = Mode::Hub), "carol+device");
    }
    assert_eq!(net.route(&mut switch(|_| {}), "alice", &mut [0; 13]), "Malformed");
}

/// Specification 12.1 and 6.1.
#[test]
fn stations_are_learnt_from_the_device_alone_and_forgotten() {
    let net = Net::new();
    let view = net.view();
    let subnet = |number: u8| Subnet::host(SubnetAddress::Mac([2, 0, 0, 0, 0, number]));
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let mut router = switch(|_| {});
    assert_eq!(router.due(), None);
    router.from_node(&name("bob"), &mut frame(6, 1, 0x88b5, b""), &view, NOW);
    assert_eq!(router.take_learnt(), None, "not the device's");
    router.from_device(&mut frame(0, 2, 0x88b5, b""), &view, NOW);
    assert_eq!(router.take_learnt(), None, "no station");
    router.from_device(&mut frame(6, 2, 0x88b5, b""), &view, NOW);
    router.from_device(&mut frame(7, 2, 0x88b5, b""), &view, NOW);
    assert_eq!(router.take_learnt(), Some(subnet(6)), "7 waits until 6 was announced");
    assert_eq!(router.take_learnt(), None);
    router.from_device(&mut frame(7, 2, 0x88b5, b""), &view, NOW);
    assert_eq!(router.take_learnt(), Some(subnet(7)));
    router.from_device(&mut frame(6, 2, 0x88b5, b""), &view, at(300));
    assert_eq!(router.take_learnt(), None, "known");
    assert_eq!(router.due(), Some(at(10)));
    assert_eq!(router.expire(at(9)), []);
    assert_eq!(router.expire(at(599)), []);
    assert_eq!(router.expire(at(600)), [], "the next search is due later");
    assert_eq!(router.expire(at(609)), [subnet(7)]);
    // Another node announces the station.
    assert_eq!(router.forget(&subnet(8)), None);
    assert_eq!(router.forget(&"10.0.0.0/8".parse().unwrap()), None);
    assert_eq!(router.forget(&subnet(6)), Some(subnet(6)));
    assert_eq!(router.expire(at(700)), []);
    assert_eq!(router.due(), None);
}

/// A station in the own host file is announced as long as it is there, however long it sends nothing.
#[test]
fn a_configured_station_is_neither_learnt_nor_forgotten() {
    let net = Net::new();
    let view = net.view();
    let subnet = |text: &str| text.parse::<Subnet>().unwrap();
    let settings = |subnets: &[&str]| {
        let mut config = ServerConfig { mode: Mode::Switch, ..ServerConfig::default() };
        config.own.subnets = subnets.iter().map(|text| subnet(text)).collect();
        Settings::from(&config)
    };
    let later = NOW + Duration::from_secs(700);
    for weight in ["", "#5"] {
        let file = [&*format!("02:00:00:00:00:06{weight}"), "10.1.0.0/16"];
        let mut router = Router::new(settings(&file));
        router.from_device(&mut frame(6, 2, 0x88b5, b""), &view, NOW);
        assert_eq!((router.take_learnt(), router.due()), (None, None), "weight {weight}");
        // A station that was learnt is configured afterwards. The subnet of another weight is another one, and is withdrawn.
        let learnt = subnet("02:00:00:00:00:06");
        let expected = Some(learnt).filter(|_| !weight.is_empty());
        for moves in [false, true] {
            let mut router = Router::new(settings(&[]));
            router.from_device(&mut frame(6, 2, 0x88b5, b""), &view, NOW);
            assert_eq!(router.take_learnt(), Some(learnt));
            router.set_settings(settings(&file));
            let withdrawn = if moves { router.forget(&learnt) } else { router.expire(later).pop() };
            assert_eq!(withdrawn, expected, "weight {weight}, moves: {moves}");
        }
    }
}

#[test]
fn a_flood_of_stations_takes_bounded_memory() {
    let net = Net::new();
    let view = net.view();
    let mut router = switch(|_| {});
    let mut learnt = 0;
    for number in 0..MAX_STATIONS as u32 + 5 {
        let mut frame = frame(1, 2, 0x88b5, b"");
        frame[8..12].copy_from_slice(&number.to_be_bytes());
        router.from_device(&mut frame, &view, NOW);
        learnt += usize::from(router.take_learnt().is_some());
    }
    assert_eq!((learnt, router.stations_refused()), (MAX_STATIONS, 5));
}

fn tap() -> Router {
    router(|settings| settings.is_tap = true)
}

/// Specification 12.1.
#[test]
fn a_tap_device_in_router_mode_has_frames() {
    let net = Net::new();
    let mut router = tap();
    assert_eq!(router.device_prefix(), 14);
    assert_eq!(router.device_header(&[0x45]).unwrap()[..6], [0xff; 6]);
    let mut packet = frame(9, 2, IPV4, &udp("10.1.0.1", "10.2.0.1"));
    assert_eq!(net.route(&mut router, "alice", &mut packet), "bob");
    let mut packet = udp("10.2.0.1", "10.1.0.1");
    assert_eq!(net.route(&mut router, "bob", &mut packet), "device");
    let header = router.device_header(&packet).unwrap();
    assert_eq!(header[..6], [2, 0, 0, 0, 0, 9], "learnt from the device");
    assert_eq!((&header[6..12], &header[12..]), (&ROUTER_MAC.0[..], &[8, 0][..]));
    assert_eq!(router.device_header(&[0x60]).unwrap()[12..], [0x86, 0xdd]);
    let mut unknown = frame(9, 2, IPV4, &udp("10.1.0.1", "10.9.0.1"));
    let view = net.view();
    let Decision::Reply(reply) = router.from_device(&mut unknown, &view, NOW) else { panic!() };
    assert_eq!(reply[..14], frame(2, 9, IPV4, &[])[..]);
    assert_eq!(Ip::parse(&reply[14..]).unwrap().destination.to_string(), "10.1.0.1");
    for (kind, payload) in [(0x88b5, &b"data"[..]), (IPV6, &udp("10.1.0.1", "10.2.0.1"))] {
        let mut other = frame(9, 2, kind, payload);
        assert_eq!(net.route(&mut router, "alice", &mut other), "Malformed");
    }
    assert_eq!(router.device_prefix(), 14);
    assert_eq!(self::router(|_| {}).device_header(&[0x45]), None);
    assert_eq!(switch(|_| {}).device_prefix(), 0);
}

fn arp(operation: u8, target: [u8; 4]) -> Vec<u8> {
    let start = [0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 9, 10, 1, 0, 1];
    frame(9, 0, ARP, &[&start[..], &[0; 6], &target].concat())
}

/// Specification 12.1: hosts of other nodes are behind the router's own address.
#[test]
fn arp_requests_for_other_nodes_hosts_are_answered() {
    let net = Net::new();
    let view = net.view();
    let mut router = tap();
    let answer = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &ROUTER_MAC.0, &[10, 2, 0, 7]].concat();
    let to = [2, 0, 0, 0, 0, 9, 10, 1, 0, 1];
    let expected = [&neighbour::header(Mac([2, 0, 0, 0, 0, 9]), ARP)[..], &answer, &to].concat();
    let decision = router.from_device(&mut arp(1, [10, 2, 0, 7]), &view, NOW);
    assert_eq!(decision, Decision::Reply(&expected));
    let mut other_kind = arp(1, [10, 2, 0, 7]);
    other_kind[18] = 8;
    let mut tagged = arp(1, [10, 2, 0, 7]);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    let short = arp(1, [10, 2, 0, 7])[..41].to_vec();
    let own = arp(1, [10, 1, 0, 7]);
    let rest = [arp(2, [10, 2, 0, 7]), own, arp(1, [10, 9, 0, 7]), arp(1, [10, 5, 0, 7])];
    for mut request in rest.into_iter().chain([other_kind, tagged, short]) {
        let decision = router.from_device(&mut request, &view, NOW);
        assert_eq!(decision, Decision::Drop(DropReason::Neighbour), "{request:?}");
    }
}

fn solicitation(source: &str, target: &str, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut packet = packet(source, "ff02::1:ff00:7", ICMPV6, 64);
    packet[7] = 255;
    packet[40] = 135;
    packet[48..].copy_from_slice(&target.parse::<Ipv6Addr>().unwrap().octets());
    change(&mut packet);
    let pseudo = adit_wire::ip::pseudo_header(&packet, ICMPV6).unwrap();
    let sum = pseudo.word(24).bytes(&packet[40..]).finish();
    packet[42..44].copy_from_slice(&sum.to_be_bytes());
    frame(9, 0, IPV6, &packet)
}

/// Specification 12.1 and RFC 4861 7.1.1.
#[test]
fn neighbour_solicitations_for_other_nodes_hosts_are_answered() {
    let net = Net::new();
    let view = net.view();
    let mut router = tap();
    let mut question = solicitation("fd00:1::1", "fd00:2::7", |_| {});
    let Decision::Reply(reply) = router.from_device(&mut question, &view, NOW) else { panic!() };
    assert_eq!(reply[..14], neighbour::header(Mac([2, 0, 0, 0, 0, 9]), IPV6));
    let ip = Ip::parse(&reply[14..]).unwrap();
    let ends = (ip.source.to_string(), ip.destination.to_string());
    assert_eq!(ends, ("fd00:2::7".to_owned(), "fd00:1::1".to_owned()));
    assert_eq!((reply[14 + 7], ip.protocol, reply.len()), (255, ICMPV6, 86));
    let message = &reply[54..];
    let pseudo = adit_wire::ip::pseudo_header(&reply[14..], ICMPV6).unwrap();
    assert_eq!(pseudo.word(32).bytes(message).finish(), 0);
    assert_eq!((message[0], message[4]), (136, 0x60));
    assert_eq!(message[8..24], "fd00:2::7".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!(message[24..], [&[2, 1][..], &ROUTER_MAC.0].concat());
    let asked = |source, target, change: fn(&mut [u8])| solicitation(source, target, change);
    let mut forged = question.clone();
    forged[14 + 43] ^= 1;
    let unanswered = [
        asked("fd00:1::1", "fd00:1::7", |_| {}),
        asked("fd00:1::1", "fd00:5::7", |_| {}),
        asked("::", "fd00:2::7", |_| {}),
        asked("fd00:1::1", "fd00:2::7", |packet| packet[7] = 254),
        asked("fd00:1::1", "fd00:2::7", |packet| packet[41] = 1),
        forged,
    ];
    for mut question in unanswered {
        let decision = router.from_device(&mut question, &view, NOW);
        assert_eq!(decision, Decision::Drop(DropReason::Neighbour), "{question:?}");
    }
    // Other messages to groups are packets to many nodes.
    let mut other = asked("fd00:1::1", "fd00:2::7", |packet| packet[40] = 143);
    assert_eq!(net.route(&mut router, "alice", &mut other), "bob+carol");
}

#[test]
fn later_fragments_have_only_the_options_that_are_copied() {
    let mut packet = vec![0; 92];
    // A copied option, one that is not, and padding.
    let options = [0x82, 4, 1, 2, 7, 3, 9, 1, 1, 0, 0, 0];
    packet[..20]
        .copy_from_slice(&[0x48, 0, 0, 92, 0, 5, 0, 0, 64, UDP, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1]);
    packet[20..32].copy_from_slice(&options);
    let plan = FragmentPlan { ip_at: 0, size: 60 };
    let mut fragments = Fragments::new(&packet, plan).unwrap();
    let first = fragments.next_fragment().unwrap().to_vec();
    assert_eq!((first[0], &first[20..32], first.len()), (0x48, &options[..], 32 + 24));
    let second = fragments.next_fragment().unwrap().to_vec();
    assert_eq!((second[0], &second[20..24], second.len()), (0x46, &[0x82, 4, 1, 2][..], 24 + 36));
    assert!(fragments.next_fragment().is_none());
    for (size, fits) in [(39, false), (40, true)] {
        assert_eq!(Fragments::new(&packet, FragmentPlan { ip_at: 0, size }).is_some(), fits);
    }
    for damaged in [[0x82, 0], [0x82, 1], [0x82, 13]] {
        packet[20..22].copy_from_slice(&damaged);
        assert_eq!(Fragments::new(&packet, plan).unwrap().next_fragment().unwrap().len(), 56);
    }
}

proptest! {
    /// The offsets and flags of the fragments restore the packet.
    #[test]
    fn fragments_are_put_together_again(
        len in 21..3000_usize, size in 28..1500_usize, offset in 0..1000_u16, more: bool, link in 0..2_usize,
    ) {
        let mut whole = without_df(packet("10.1.0.1", "10.2.0.1", UDP, len));
        for (byte, value) in whole[20..].iter_mut().zip(0..) {
            *byte = (value % 251) as u8;
        }
        let flags = offset | if more { 0x2000 } else { 0 };
        whole[6..8].copy_from_slice(&flags.to_be_bytes());
        let ip_at = link * 14;
        let frame = [&vec![7; ip_at][..], &whole].concat();
        let mut fragments = Fragments::new(&frame, FragmentPlan { ip_at, size }).unwrap();
        let mut payload = Vec::new();
        let mut last_flags = 0x2000;
        while let Some(fragment) = fragments.next_fragment() {
            prop_assert_eq!(&fragment[..ip_at], &frame[..ip_at]);
            let fragment = &fragment[ip_at..];
            prop_assert!(fragment.len() <= size);
            prop_assert!(adit_wire::ip::header_checksum_ok(fragment));
            prop_assert_eq!(Ip::parse(fragment).unwrap().total_len, fragment.len());
            let flags = u16::from_be_bytes([fragment[6], fragment[7]]);
            prop_assert_eq!(usize::from((flags & 0x1fff) - offset) * 8, payload.len());
            prop_assert!(last_flags & 0x2000 != 0);
            last_flags = flags;
            payload.extend_from_slice(&fragment[20..]);
        }
        prop_assert_eq!(last_flags & 0x2000 != 0, more);
        prop_assert_eq!(&payload, &whole[20..]);
    }

    /// A decision holds for any bytes: a node that gets the packet is reachable and not its sender, and an error goes to a host that sent
    /// no error.
    #[test]
    fn no_bytes_panic(
        mode in 0..4_u8,
        start in proptest::sample::select(vec![
            vec![],
            vec![0x45, 0, 0, 60, 0, 0, 0, 0, 9, 17, 0, 0, 10, 2, 0, 1, 10, 3, 0, 1],
            vec![0x45, 0, 0, 28, 0, 0, 0, 0, 1, 1, 0, 0, 10, 2, 0, 1, 10, 9, 0, 1],
            vec![0x60, 0, 0, 0, 0, 20, 58, 1, 0xfd, 0, 0, 2],
            vec![2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 5, 0x78],
            vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255],
            vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        ]),
        rest in proptest::collection::vec(any::<u8>(), 0..1500),
        mtu in prop_oneof![Just(0), 500..1600_u16],
        from in proptest::sample::select(vec!["alice", "bob", "dave", "erin"]),
    ) {
        let mut net = Net::new();
        for node in ["bob", "carol"] {
            net.set_mtu(node, mtu);
        }
        let mut router = router(|settings| {
            settings.decrement_ttl = true;
            settings.mode = [Mode::Router, Mode::Router, Mode::Switch, Mode::Hub][usize::from(mode)];
            settings.is_tap = mode > 0;
        });
        let original = [start, rest].concat();
        let mut packet = original.clone();
        let (view, from) = (net.view(), name(from));
        let decision = if from == name("alice") {
            router.from_device(&mut packet, &view, NOW)
        } else {
            router.from_node(&from, &mut packet, &view, NOW)
        };
        match decision {
            Decision::Node { to, .. } | Decision::Fragments { to, .. } => {
                prop_assert!(*to != from && *to != name("alice") && view.path(to).is_some());
            }
            Decision::Many { nodes, .. } => {
                prop_assert!(!nodes.is_empty() && !nodes.contains(&&from));
            }
            Decision::Reply(reply) => {
                let at = if mode == 0 || (mode == 1 && from != name("alice")) { Some(0) } else {
                    let header = Ethernet::parse(reply).unwrap();
                    if header.ethertype == ARP { None } else { header.ip(reply) }
                };
                if let Some(at) = at {
                    let (asked, answer) = (Ip::parse(&original[at..]).unwrap(), Ip::parse(&reply[at..]).unwrap());
                    prop_assert_eq!(answer.destination, asked.source);
                    prop_assert!(icmp_error::is_host(asked.source));
                    let v4 = asked.source.is_ipv4();
                    let protocol = if v4 { ICMP } else { ICMPV6 };
                    if asked.protocol == protocol {
                        let kind = original[at + asked.header_len];
                        prop_assert!(!icmp_error::is_error(v4, kind));
                    }
                }
            }
            Decision::Device | Decision::Drop(_) => {}
        }
        let _ = Fragments::new(&original, FragmentPlan { ip_at: usize::from(mode), size: usize::from(mtu) });
    }
}
