//! Rules for the packets that pass through the plane, in every direction.

use std::net::IpAddr;
use std::sync::Arc;

use crate::common::{End, SERVER, link, packet, world, world_of};
use adit_dataplane::{DropReason, FilterConfig, HOST, Relay};
use adit_engine::Command;
use adit_engine::PeerId;
use adit_filter::firewall::{Firewall, Limits};
use adit_filter::ruleset::Members;
use adit_filter::{Filter, IpRange, lang};
use adit_wire::VnetHeader;
use adit_wire::checksum::Sum;

fn filter(rules: &str) -> Filter {
    let text =
        format!("table inet t {{ chain c {{ type filter hook forward priority 0; {rules} }} }}");
    let parsed = lang::parse("test", &text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    Filter::compile(parsed.unwrap_or_else(|wrong| panic!("{wrong}"))).unwrap()
}

fn guard(end: &mut End, rules: &str) -> Arc<Firewall> {
    let firewall = Firewall::new(filter(rules), Limits::default(), [7; 16]);
    end.memory.filter(FilterConfig { firewall: Arc::clone(&firewall), device: "tun0".into() });
    firewall
}

/// Returns whether a packet of client `n` reaches the server's device, or which other clients it
/// reaches.
fn sends(server: &mut End, client: &mut End, n: u8, packet: &[u8]) -> (bool, Vec<u32>) {
    let datagram = client.seal_one(packet);
    let (tun, peers) = server.open_buffer(link(n, 1000), datagram.len(), &datagram);
    (!tun.is_empty(), peers.into_iter().map(|(peer, _)| peer.0).collect())
}

#[test]
fn without_rules_nothing_changes_and_a_dropping_policy_stops_all_ways() {
    for (relay, reached) in [(Relay::Direct, vec![3]), (Relay::Deny, vec![])] {
        let (mut server, [mut a, _b]) = world(relay, [2, 3]);
        assert!(sends(&mut server, &mut a, 2, &packet(2, SERVER, 1)).0);
        assert_eq!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)), (false, reached));
        assert_eq!(server.seal(&packet(SERVER, 2, 1)).len(), 1);
        guard(&mut server, "policy drop;");
        assert_eq!(sends(&mut server, &mut a, 2, &packet(2, SERVER, 1)), (false, vec![]));
        assert_eq!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)), (false, vec![]));
        assert!(server.seal(&packet(SERVER, 2, 1)).is_empty());
        assert_eq!(server.dropped(DropReason::Filtered), 3);
    }
}

#[test]
fn each_way_has_its_interfaces() {
    let rules = format!(
        "policy drop; iifname tun0 oifname {HOST} ip daddr 10.8.0.1 accept; \
         iifname {HOST} oifname tun0 ip saddr 10.8.0.1 ip daddr 10.8.0.2 accept; \
         iifname tun0 oifname tun0 ip saddr 10.8.0.3 accept"
    );
    let (mut server, [mut a, mut b]) = world(Relay::Direct, [2, 3]);
    guard(&mut server, &rules);
    assert!(sends(&mut server, &mut a, 2, &packet(2, SERVER, 1)).0);
    assert!(!sends(&mut server, &mut a, 2, &packet(2, 77, 1)).0);
    assert_eq!(server.seal(&packet(SERVER, 2, 1)).len(), 1);
    assert!(server.seal(&packet(SERVER, 3, 1)).is_empty());
    assert_eq!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)).1, [0u32; 0]);
    assert_eq!(sends(&mut server, &mut b, 3, &packet(3, 2, 1)).1, [2]);
}

#[test]
fn clients_that_are_kept_apart_need_a_rule_and_not_only_a_policy() {
    let (mut server, [mut a, mut b]) = world(Relay::Deny, [2, 3]);
    guard(&mut server, "policy accept; ip saddr 10.8.0.3 ip daddr 10.8.0.2 accept");
    assert!(sends(&mut server, &mut a, 2, &packet(2, SERVER, 1)).0, "as the policy says");
    assert!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)).1.is_empty());
    assert_eq!(sends(&mut server, &mut b, 3, &packet(3, 2, 1)).1, [2]);
    // If clients may communicate anyway, the policy is enough.
    let (mut server, [mut a, _b]) = world(Relay::Direct, [2, 3]);
    guard(&mut server, "policy accept;");
    assert_eq!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)).1, [3]);
}

#[test]
fn packets_of_the_clients_of_a_mesh_node_pass_by_its_rules() {
    for (policy, reached) in [("policy drop;", vec![]), ("policy accept;", vec![8])] {
        let (mut server, [mut member, mut client]) = world(Relay::Clients(PeerId(8)), [2, 8]);
        guard(&mut server, policy);
        assert_eq!(sends(&mut server, &mut member, 2, &packet(2, 8, 1)), (false, reached.clone()));
        let back = if reached.is_empty() { vec![] } else { vec![2] };
        assert_eq!(sends(&mut server, &mut client, 8, &packet(8, 2, 1)), (false, back));
    }
}

#[test]
fn the_members_of_a_group_change_at_once() {
    let (mut server, [mut a, mut b]) = world(Relay::Deny, [2, 3]);
    let firewall =
        guard(&mut server, "policy drop; ip saddr @group:staff ip daddr @client:printer accept");
    let addresses = |who: &[&str]| {
        who.iter().map(|ip| IpRange::from(ip.parse::<IpAddr>().unwrap())).collect::<Vec<_>>()
    };
    let staff = Members::Group("staff".into());
    firewall.set_members(&Members::Client("printer".into()), addresses(&["10.8.0.3"]));
    assert!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)).1.is_empty());
    firewall.set_members(&staff, addresses(&["10.8.0.2", "10.8.0.9"]));
    assert_eq!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)).1, [3]);
    assert!(sends(&mut server, &mut b, 3, &packet(3, 2, 1)).1.is_empty());
    // A new rule set knows the members of the group from its first packet on.
    firewall.replace(filter("policy drop; ip saddr @group:staff accept"));
    assert_eq!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)).1, [3]);
    firewall.set_members(&staff, Vec::new());
    assert!(sends(&mut server, &mut a, 2, &packet(2, 3, 1)).1.is_empty());
}

fn tcp(from: u8, to: u8, ports: (u16, u16), seq: u32, ack: u32, flags: u8, len: usize) -> Vec<u8> {
    let total = u16::try_from(40 + len).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 8, 0, from, 10, 8, 0, to]);
    let sum = Sum::new().bytes(&packet).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(ports.0.to_be_bytes());
    packet.extend(ports.1.to_be_bytes());
    packet.extend(seq.to_be_bytes());
    packet.extend(ack.to_be_bytes());
    packet.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(std::iter::repeat_n(9, len));
    let pseudo = [&packet[12..20], &[0, 6][..], &(total - 20).to_be_bytes()].concat();
    let sum = Sum::new().bytes(&pseudo).bytes(&packet[20..]).finish();
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

const SYN: u8 = 2;
const ACK: u8 = 16;

#[test]
fn a_reload_judges_known_connections_again() {
    let (mut server, [mut a]) = world(Relay::Deny, [2]);
    let stateful = "policy drop; ct state established accept; tcp dport 80 accept";
    let firewall = guard(&mut server, stateful);
    let ports = (4000, 80);
    assert!(sends(&mut server, &mut a, 2, &tcp(2, SERVER, ports, 100, 0, SYN, 0)).0);
    assert_eq!(server.seal(&tcp(SERVER, 2, (80, 4000), 500, 101, SYN | ACK, 0)).len(), 1);
    let data = |seq| tcp(2, SERVER, ports, seq, 501, ACK, 100);
    assert!(sends(&mut server, &mut a, 2, &data(101)).0);
    // With the same rules installed again, the connection continues.
    firewall.replace(filter(stateful));
    assert!(sends(&mut server, &mut a, 2, &data(201)).0);
    firewall.replace(filter("policy drop; ct state established tcp dport 443 accept"));
    assert!(!sends(&mut server, &mut a, 2, &data(301)).0);
    firewall.replace(filter(stateful));
    assert!(sends(&mut server, &mut a, 2, &data(301)).0);
}

/// Packets of a train are merged on receipt, and the connection advances by all of them, so their
/// acknowledgement is within the window.
#[test]
fn a_merged_packet_is_judged_as_the_whole_that_it_is() {
    let (mut server, [mut a]) = world(Relay::Deny, [2]);
    let firewall = guard(
        &mut server,
        "policy drop; ct state invalid drop; ct state established accept; \
                            tcp dport 80 counter accept",
    );
    let ports = (4000, 80);
    assert!(sends(&mut server, &mut a, 2, &tcp(2, SERVER, ports, 100, 0, SYN, 0)).0);
    assert_eq!(server.seal(&tcp(SERVER, 2, (80, 4000), 500, 101, SYN | ACK, 0)).len(), 1);
    let segment = |seq| tcp(2, SERVER, ports, seq, 501, ACK, 1000);
    let train: Vec<Vec<u8>> = (0..20).map(|n| a.seal_one(&segment(101 + n * 1000))).collect();
    let (tun, _) = server.open_buffer(link(2, 1000), train[0].len(), &train.concat());
    assert_eq!(tun.len(), 20);
    assert_eq!(firewall.stats().passed, 3, "the train counts as one");
    let all = tcp(SERVER, 2, (80, 4000), 501, 101 + 20_000, ACK, 10);
    assert_eq!(server.seal(&all).len(), 1, "{:?}", firewall.stats());
    let beyond = tcp(SERVER, 2, (80, 4000), 511, 101 + 20_001, ACK, 10);
    assert!(server.seal(&beyond).is_empty(), "what was not sent is not acknowledged");
}

#[test]
fn who_is_refused_is_told_where_the_rule_says_so() {
    let (mut server, [mut a]) = world(Relay::Deny, [2]);
    guard(&mut server, "policy drop; tcp dport 25 reject with tcp reset");
    assert!(!sends(&mut server, &mut a, 2, &tcp(2, SERVER, (4000, 25), 100, 0, SYN, 0)).0);
    let answers = server.memory.answers();
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    // The client gets a reset from the address that it tried to reach.
    assert_eq!((&answer[12..16], &answer[16..20]), (&[10, 8, 0, 1][..], &[10, 8, 0, 2][..]));
    assert_eq!(answer[20 + 13] & 4, 4);
    assert!(!sends(&mut server, &mut a, 2, &packet(2, SERVER, 1)).0);
    assert!(server.memory.answers().is_empty());
}

#[test]
fn frames_are_judged_between_stations_and_to_all() {
    let (mut server, [mut a, _b]) = world_of(End::ethernet, Relay::Direct, [2, 3]);
    let text = "table bridge t { chain c { type filter hook forward priority 0; policy drop; \
                ether type arp accept } }";
    let parsed = lang::parse("test", text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    let rules = Filter::compile(parsed.unwrap_or_else(|wrong| panic!("{wrong}"))).unwrap();
    let firewall = Firewall::new(rules, Limits::default(), [7; 16]);
    server.memory.filter(FilterConfig { firewall, device: "tap0".into() });
    let frame = |kind: [u8; 2]| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 2]);
        frame.extend(kind);
        // An ARP request.
        frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 8, 0, 2, 0, 0, 0, 0, 0, 0]);
        frame.extend([10, 8, 0, 1]);
        frame
    };
    let (tun, others) = sends(&mut server, &mut a, 2, &frame([8, 6]));
    assert!(tun && others == [3], "{others:?}");
    assert_eq!(sends(&mut server, &mut a, 2, &frame([0x88, 0xcc])), (false, vec![]));
    let mut out = 0;
    let mut copy = frame([0x88, 0xcc]);
    server.memory.seal(&VnetHeader::default(), &mut copy, |_, _| out += 1);
    assert_eq!(out, 0);
    server.memory.seal(&VnetHeader::default(), &mut frame([8, 6]), |_, _| out += 1);
    assert_eq!(out, 2, "for each of both");
}

/// A peer that disconnects leaves no state that another peer could use.
#[test]
fn a_packet_that_belongs_to_no_peer_is_no_connection() {
    let (mut server, [_a]) = world(Relay::Deny, [2]);
    let firewall = guard(&mut server, "policy accept; ct state new accept");
    server.apply(Command::DelPeer(PeerId(2)));
    assert!(server.seal(&tcp(SERVER, 2, (80, 4000), 1, 0, SYN, 0)).is_empty());
    assert_eq!((firewall.stats().track.flows, server.dropped(DropReason::NoRoute)), (0, 1));
}

/// Returns a frame of a station with a datagram.
fn frame(stations: (u8, u8), datagram: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, stations.1, 2, 0, 0, 0, 0, stations.0, 8, 0];
    frame.extend(datagram);
    frame
}

/// On a TAP device, addresses do not belong to a client, and two clients may have the same.
#[test]
fn stations_of_two_clients_with_one_address_share_no_flow() {
    let (mut server, [mut a, mut b]) = world_of(End::ethernet, Relay::Direct, [2, 3]);
    let firewall = guard(
        &mut server,
        "policy drop; ct state established accept; meta length > 60 drop; udp dport 53 accept",
    );
    firewall.set_peer(2, Some("alice"));
    firewall.set_peer(3, Some("bob"));
    let udp = |ports: (u16, u16), len: usize, back: bool| {
        let (from, to) =
            if back { ([10, 8, 0, 1], [10, 8, 0, 9]) } else { ([10, 8, 0, 9], [10, 8, 0, 1]) };
        let total = u16::try_from(28 + len).unwrap();
        let mut packet = vec![0x45, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        packet.extend([from, to].concat());
        let sum = Sum::new().bytes(&packet).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(ports.0.to_be_bytes());
        packet.extend(ports.1.to_be_bytes());
        packet.extend((total - 20).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(std::iter::repeat_n(7, len));
        packet
    };
    let (asks, long) = (udp((4000, 53), 4, false), udp((4000, 53), 100, false));
    let server_mac = 1;
    // Both clients announce where their stations are.
    assert!(sends(&mut server, &mut a, 2, &frame((2, server_mac), &asks)).0);
    assert!(
        server.seal(&frame((server_mac, 3), &udp((53, 4000), 100, true))).is_empty(),
        "no peer is known behind it"
    );
    assert!(!sends(&mut server, &mut b, 3, &frame((3, server_mac), &long)).0);
    // The server answers Alice: her flow is established, and Bob's packets do not belong to it.
    assert_eq!(server.seal(&frame((server_mac, 2), &udp((53, 4000), 100, true))).len(), 1);
    assert!(sends(&mut server, &mut a, 2, &frame((2, server_mac), &long)).0);
    assert!(!sends(&mut server, &mut b, 3, &frame((3, server_mac), &long)).0);
    assert!(server.seal(&frame((server_mac, 3), &udp((53, 4000), 100, true))).is_empty());
    // Only Bob can answer the requests that Alice sends to him.
    assert_eq!(sends(&mut server, &mut a, 2, &frame((2, 3), &udp((5000, 53), 4, false))).1, [3]);
    assert!(
        sends(&mut server, &mut a, 2, &frame((2, 3), &udp((5000, 53), 100, false))).1.is_empty()
    );
    assert_eq!(sends(&mut server, &mut b, 3, &frame((3, 2), &udp((53, 5000), 100, true))).1, [2]);
    assert_eq!(sends(&mut server, &mut a, 2, &frame((2, 3), &udp((5000, 53), 100, false))).1, [3]);
}
