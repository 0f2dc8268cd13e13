//! Flows between other ports or in other VLANs are others, whatever their addresses.

use super::*;
use crate::judge::IfName;
use crate::testing::ether;
use Crossing::{Down, Nowhere, Up};

const FROM: (IpAddr, u16) = (IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9)), 4000);
const TO: (IpAddr, u16) = (IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 80);

#[test]
fn an_answer_comes_by_the_other_port() {
    for (from, to) in [(FROM, TO), (TO, FROM)] {
        for (there, back) in [(Up, Down), (Down, Up)] {
            let world = World::new();
            let syn = seg(SYN, 1000, 0).between(from, to);
            let answer = seg(SYN | ACK, 5000, 1001).between(to, from);
            let ack = seg(ACK, 1001, 5001).between(from, to);
            assert_eq!(world.enter_by(&syn, there), (NEW, true));
            // Forged by the one who has sent the SYN.
            assert_eq!(world.enter_by(&answer, there), (BAD, true));
            assert_eq!(world.only().state, FlowState::SynSent);
            assert_eq!(world.enter_by(&answer, back), (COMES, true));
            assert_eq!(world.enter_by(&ack, there), (GOES, true));
            assert_eq!(world.only().state, FlowState::Established);
            // What would end it ends it from where its sender is, and from nowhere else.
            let reset = seg(RST, 5001, 1001).between(to, from);
            assert_eq!(world.enter_by(&reset, there).0, BAD);
            assert_eq!(world.only().state, FlowState::Established);
            assert_eq!(world.enter_by(&reset, back).0, COMES);
            assert_eq!(world.only().state, FlowState::Close);
        }
    }
}

#[test]
fn forged_handshakes_fill_no_table() {
    let world = World::with(Limits { flows: 10, ..Limits::default() });
    for number in 0..10 {
        let forged = (IpAddr::from([172, 16, 0, number]), 1);
        assert_eq!(world.enter_by(&seg(SYN, 1000, 0).between(forged, TO), Up), (NEW, true));
        let answer = seg(SYN | ACK, 5000, 1001).between(TO, forged);
        assert_eq!(world.enter_by(&answer, Up).0, BAD);
        world.enter_by(&seg(ACK, 1001, 5001).between(forged, TO), Up);
    }
    assert_eq!(world.enter_by(&seg(SYN, 1, 0).between(FROM, TO), Up), (NEW, true));
    assert_eq!(world.tracker.stats().refused_full, 0);
}

#[test]
fn other_protocols_know_their_ports_too() {
    for v6 in [false, true] {
        let world = World::new();
        let (a, b) = (host(v6, A), host(v6, B));
        let there = udp((a, 7), (b, 53));
        assert_eq!(world.enter_by(&there, Up), (NEW, true));
        assert_eq!(world.enter_by(&udp((b, 53), (a, 7)), Up), (NEW, true), "a flow of its own");
        assert_eq!(world.enter_by(&udp((b, 53), (a, 7)), Down), (COMES, true));
        let (ask, answer) = if v6 { ((128, 0), (129, 0)) } else { ((8, 0), (0, 0)) };
        assert_eq!(world.enter_by(&icmp(a, b, ask, 7 << 16, &[]), Up), (NEW, true));
        assert_eq!(world.enter_by(&icmp(b, a, answer, 7 << 16, &[]), Up), (BAD, true));
        assert_eq!(world.enter_by(&icmp(b, a, answer, 7 << 16, &[]), Down), (COMES, true));
        // An error about it comes by the other port, from wherever it is.
        let world = World::new();
        assert_eq!(world.enter_by(&there, Up), (NEW, true));
        let error = if v6 { (1, 4) } else { (3, 3) };
        let error = icmp(host(v6, C), a, error, 0, &there);
        let related = (CtState::RELATED, CtDirection::Reply);
        assert_eq!(world.enter_by(&error, Down).0, related);
        assert_eq!(world.enter_by(&error, Up).0, BAD);
    }
}

#[test]
fn without_ports_answers_come_from_anywhere() {
    let world = World::new();
    assert_eq!(world.enter_by(&udp(FROM, TO), Nowhere), (NEW, true));
    assert_eq!(world.enter_by(&udp(TO, FROM), Nowhere), (COMES, true));
    let same = IfName::new("tun0");
    assert_eq!(Crossing::between(same, same), Nowhere);
    assert_eq!(Crossing::between(IfName::new("a"), IfName::new("b")), Up);
    assert_eq!(Crossing::between(IfName::new("b"), IfName::new("a")), Down);
}

#[test]
fn each_vlan_has_its_own_flows() {
    let world = World::new();
    let view = |tags: &[(u16, u16)], beside: Option<u16>, ip: &[u8]| {
        // An EtherType for each tag, and the tag's own two bytes behind it.
        let types: Vec<u16> = tags.iter().map(|(kind, _)| *kind).chain([0x0800]).collect();
        let mut frame = ether(&types, ip);
        for (at, (_, id)) in tags.iter().enumerate() {
            frame[14 + 4 * at..16 + 4 * at].copy_from_slice(&id.to_be_bytes());
        }
        let packet =
            Packet::parse(&frame, Layer::Ethernet, beside, &VnetHeader::default()).unwrap();
        let mut burst = world.tracker.burst(world.now);
        let tracked = burst.look(&packet, Nowhere);
        assert!(burst.confirm(&tracked, &packet));
        (tracked.state, tracked.direction)
    };
    let (there, back) = (udp(FROM, TO), udp(TO, FROM));
    let tagged = |id| [(0x8100, id)];
    assert_eq!(view(&tagged(10), None, &there), NEW);
    assert_eq!(view(&tagged(20), None, &back), NEW, "not an answer to what VLAN 10 asked");
    assert_eq!(view(&[], None, &back), NEW);
    assert_eq!(view(&tagged(10), None, &back), COMES);
    // A priority is no VLAN, and it does not matter where the tag stands.
    assert_eq!(view(&tagged(0xe000 | 10), None, &there), GOES);
    assert_eq!(view(&[], Some(10), &there), GOES);
    assert_eq!(view(&tagged(0xa000), None, &there), COMES, "the answer to the frame without a tag");
    // Two tags; a provider's tag is not a customer's.
    assert_eq!(view(&[(0x88a8, 10)], None, &there), NEW);
    assert_eq!(view(&[(0x88a8, 10), (0x8100, 1)], None, &there), NEW);
    assert_eq!(view(&[(0x88a8, 10), (0x8100, 2)], None, &back), NEW);
    assert_eq!(view(&[(0x88a8, 10), (0x8100, 1)], None, &back), COMES);
    let mut vlans: Vec<_> = world.flows().iter().map(|flow| flow.vlans).collect();
    vlans.sort_unstable();
    assert_eq!(vlans, [[0, 0], [10, 0], [10, 0], [10, 1], [10, 2], [20, 0]]);
}

#[test]
fn vlans_take_part_in_the_hash() {
    let seed = Seed::new([7; 16]);
    let hash = |vlans: u32| {
        let bytes = udp(FROM, TO);
        let packet = Packet::parse(&bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
        let Network::Ip(ip) = &packet.network else { panic!() };
        Key::of(&packet, ip).unwrap().within(vlans, Up).key.hash(&seed)
    };
    let all: std::collections::HashSet<u64> = (0..10_000).map(hash).collect();
    assert_eq!(all.len(), 10_000);
}
