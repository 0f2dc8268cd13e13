//! Tests that flows between other ports or clients, or in other VLANs, are different flows, whatever their addresses.

use super::*;
use crate::evaluate::IfName;
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
            // An answer forged by the sender of the SYN.
            assert_eq!(world.enter_by(&answer, there), (BAD, true));
            assert_eq!(world.only().state, FlowState::SynSent);
            assert_eq!(world.enter_by(&answer, back), (COMES, true));
            assert_eq!(world.enter_by(&ack, there), (GOES, true));
            assert_eq!(world.only().state, FlowState::Established);
            // A reset ends the flow only if it takes the flow's own path.
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
        // An error about the flow arrives on the other port, from any address.
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
        // An EtherType for each tag, followed by the tag's own two bytes.
        let types: Vec<u16> = tags.iter().map(|(kind, _)| *kind).chain([0x0800]).collect();
        let mut frame = ether(&types, ip);
        for (at, (_, id)) in tags.iter().enumerate() {
            frame[14 + 4 * at..16 + 4 * at].copy_from_slice(&id.to_be_bytes());
        }
        let packet =
            Packet::parse(&frame, Layer::Ethernet, beside, &VnetHeader::default()).unwrap();
        let mut burst = world.tracker.burst(world.now);
        let tracked = burst.look(&packet, Nowhere.into());
        assert!(burst.confirm(&tracked, &packet));
        (tracked.state, tracked.direction)
    };
    let (there, back) = (udp(FROM, TO), udp(TO, FROM));
    let tagged = |id| [(0x8100, id)];
    assert_eq!(view(&tagged(10), None, &there), NEW);
    assert_eq!(view(&tagged(20), None, &back), NEW, "not an answer to what VLAN 10 asked");
    assert_eq!(view(&[], None, &back), NEW);
    assert_eq!(view(&tagged(10), None, &back), COMES);
    // A priority tag is not a VLAN, and the position of the tag does not matter.
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
fn vlans_and_clients_take_part_in_the_hash() {
    let seed = Seed::new([7; 16]);
    let hash = |vlans: u32, clients: [Client; 2]| {
        let bytes = udp(FROM, TO);
        let packet = Packet::parse(&bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
        let Network::Ip(ip) = &packet.network else { panic!() };
        let path = Path { crossing: Up, clients };
        FlowKey::of(&packet, ip).unwrap().within(vlans, path).key.hash(&seed)
    };
    let of_vlans = (0..10_000).map(|vlans| hash(vlans, [0, 0]));
    let of_sources = (1..10_000).map(|client| hash(0, [client, 0]));
    let of_destinations = (1..10_000).map(|client| hash(0, [0, client]));
    let of_both = (1..10_000).map(|client| hash(0, [client, client]));
    let all = of_vlans.chain(of_sources).chain(of_destinations).chain(of_both);
    assert_eq!(all.collect::<std::collections::HashSet<u64>>().len(), 39_997);
}

const ALICE: Client = 1;
const BOB: Client = 2;

/// Returns the path from the first client to the second; 0 is the host.
fn between(from: Client, to: Client) -> Path {
    let crossing = match (from, to) {
        (0, _) => Up,
        (_, 0) => Down,
        _ => Nowhere,
    };
    Path { crossing, clients: [from, to] }
}

#[test]
fn clients_with_the_same_addresses_have_flows_of_their_own() {
    for (from, to) in [(FROM, TO), (TO, FROM)] {
        let world = World::new();
        let (there, back) = (udp(from, to), udp(to, from));
        assert_eq!(world.enter_by(&there, between(ALICE, 0)), (NEW, true));
        assert_eq!(
            world.enter_by(&back, between(0, BOB)),
            (NEW, true),
            "no answer to what she asked"
        );
        assert_eq!(world.enter_by(&back, between(0, ALICE)), (COMES, true));
        assert_eq!(world.enter_by(&there, between(ALICE, 0)), (GOES, true));
        assert_eq!(world.enter_by(&there, between(BOB, 0)), (COMES, true), "an answer of his own");
        assert_eq!(world.enter_by(&there, between(0, 0)), (NEW, true));
        assert_eq!(world.flows().len(), 3);
    }
}

#[test]
fn a_flow_between_two_clients_is_theirs_alone() {
    let carol = 3;
    for (from, to) in [(FROM, TO), (TO, FROM)] {
        let world = World::new();
        let (there, back) = (udp(from, to), udp(to, from));
        assert_eq!(world.enter_by(&there, between(ALICE, BOB)), (NEW, true));
        for (other, peer) in [(carol, ALICE), (BOB, carol), (ALICE, BOB), (0, ALICE), (BOB, 0)] {
            assert_eq!(world.look_by(&back, between(other, peer)), NEW, "{other} to {peer}");
        }
        assert_eq!(world.enter_by(&back, between(BOB, ALICE)), (COMES, true));
        assert_eq!(world.enter_by(&there, between(ALICE, BOB)), (GOES, true));
        // An error about the flow comes from its destination.
        let IpAddr::V4(asker) = from.0 else { panic!() };
        let error = icmp(host(false, C), asker.into(), (3, 3), 0, &there);
        let related = (CtState::RELATED, CtDirection::Reply);
        assert_eq!(world.look_by(&error, between(BOB, ALICE)), related);
        for other in [between(carol, ALICE), between(0, ALICE), between(BOB, carol)] {
            assert_eq!(world.look_by(&error, other), BAD);
        }
    }
}

#[test]
fn a_client_that_is_the_other_end_of_itself_has_answers() {
    // Two sessions of one client, or one of its addresses that is routed back to it.
    let world = World::new();
    assert_eq!(world.enter_by(&udp(FROM, TO), between(ALICE, ALICE)), (NEW, true));
    assert_eq!(world.enter_by(&udp(TO, FROM), between(ALICE, ALICE)), (COMES, true));
}

#[test]
fn flows_of_a_client_whose_number_another_gets_end() {
    let world = World::new();
    let address = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
    let most = u32::from(Client::MAX) - 1;
    for number in 0..most {
        world.tracker.set_network(address(number), 32, Some(&format!("client {number}")));
    }
    let number = |name: &str| world.tracker.clients().number(name).unwrap();
    let (gone, stays) = (number("client 7"), number("client 8"));
    for client in [gone, stays] {
        assert_eq!(world.enter_by(&udp(FROM, TO), between(client, 0)), (NEW, true));
    }
    world.tracker.set_network(address(7), 32, None);
    assert_eq!(world.flows().len(), 2, "it waits for its client");
    world.tracker.set_peer(1, Some("another"));
    assert_eq!(number("another"), gone);
    assert_eq!(world.only().clients[0].as_deref(), Some("client 8"));
}
