//! Frames in memory: which peer a station is behind, and who receives which frame.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::common::*;
use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::{DropReason, MACS_PER_PEER, MacTotals, Relay};
use adit_engine::command::InnerMtu;
use adit_engine::{Command, Notice, PeerId};
use adit_wire::{Gso, VnetHeader};
use proptest::prelude::*;

const ALL: [u8; 6] = [0xff; 6];
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 0xfb];
const ARP: u16 = 0x0806;

/// Returns station `number` behind client or host `n`.
fn station(n: u8, number: u8) -> [u8; 6] {
    [2, 0, 0, 0, n, number]
}

fn frame(to: [u8; 6], from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

fn switch<const N: usize>(relay: Relay, clients: [u8; N]) -> (End, [End; N]) {
    world_of(End::ethernet, relay, clients)
}

/// Sends a packet from client `n`; returns the frames that the server passes to its device, and the
/// peers that it sends to.
fn sends(server: &mut End, n: u8, client: &mut End, frame: &[u8]) -> (usize, Vec<u32>) {
    let sealed = client.seal_one(frame);
    let (device, peers) = server.open_buffer(link(n, 1000), sealed.len(), &sealed);
    for got in device.iter().chain(peers.iter().map(|(_, got)| got)) {
        assert_eq!(got, frame);
    }
    (device.len(), peers.into_iter().map(|(id, _)| id.0).collect())
}

/// Sends a frame from the server's device; returns the clients that can open the packets.
fn reaches<const N: usize>(server: &mut End, clients: &mut [End; N], frame: &[u8]) -> Vec<usize> {
    let sealed = server.seal(frame);
    let mut reached = Vec::new();
    for datagram in sealed {
        for (at, client) in clients.iter_mut().enumerate() {
            let got = client.open(link(200, 1194), &datagram);
            if !got.is_empty() {
                assert_eq!(got, [frame]);
                reached.push(at);
            }
        }
    }
    reached
}

#[test]
fn what_is_no_ip_passes_both_ways() {
    let (mut server, [mut client]) = switch(Relay::Kernel, [2]);
    for (kind, payload) in [(ARP, vec![0; 28]), (0x88cc, vec![7; 90]), (30, vec![0x42; 30])] {
        let question = frame(ALL, station(2, 1), kind, &payload);
        assert_eq!(sends(&mut server, 2, &mut client, &question), (1, vec![]));
        let answer = frame(station(2, 1), station(1, 1), kind, &payload);
        assert_eq!(reaches(&mut server, &mut [client], &answer), [0]);
        (server, [client]) = switch(Relay::Kernel, [2]);
    }
    assert_eq!((server.all_drops(), client.all_drops()), (0, 0));
}

#[test]
fn a_station_is_reached_through_the_peer_it_spoke_from() {
    let (mut server, [mut a, mut b]) = switch(Relay::Kernel, [2, 3]);
    let from = |n| frame(station(1, 1), station(n, 1), ARP, &[n; 28]);
    let to = |n| frame(station(n, 1), station(1, 1), ARP, &[n; 28]);
    sends(&mut server, 2, &mut a, &from(2));
    sends(&mut server, 3, &mut b, &from(3));
    let mut clients = [a, b];
    assert_eq!(reaches(&mut server, &mut clients, &to(2)), [0]);
    assert_eq!(reaches(&mut server, &mut clients, &to(3)), [1]);
    // An unknown station, and a group: all peers.
    assert_eq!(reaches(&mut server, &mut clients, &to(9)), [0, 1]);
    let many = frame(GROUP, station(1, 1), 0x86dd, &[0; 60]);
    assert_eq!(reaches(&mut server, &mut clients, &many), [0, 1]);
    // After a station has moved, its frames reach its new peer.
    let [a, mut b] = clients;
    sends(&mut server, 3, &mut b, &from(2));
    let mut clients = [a, b];
    assert_eq!(reaches(&mut server, &mut clients, &to(2)), [1]);
    let totals = server.memory.plane().mac_totals();
    assert_eq!(totals, Some(MacTotals { known: 2, learnt: 2, moved: 1 }));
    // Once its peer is removed, the station is unknown.
    server.apply(Command::DelPeer(PeerId(3)));
    assert_eq!(reaches(&mut server, &mut clients, &to(2)), [0]);
    assert_eq!(server.memory.plane().mac_totals().unwrap().known, 0);
}

#[test]
fn a_client_sends_everything_to_its_server_and_learns_nothing() {
    let (mut server, [mut client]) = switch(Relay::Kernel, [2]);
    for to in [ALL, GROUP, station(1, 1), station(7, 7)] {
        sends(&mut server, 2, &mut client, &frame(to, station(2, 1), ARP, &[0; 28]));
    }
    assert_eq!(client.memory.plane().mac_totals(), Some(MacTotals::default()));
}

#[test]
fn between_clients_as_the_relay_says() {
    let mut outcomes = Vec::new();
    for relay in [Relay::Kernel, Relay::Direct, Relay::Deny] {
        let (mut server, [mut a, mut b, mut c]) = switch(relay, [2, 3, 4]);
        for (n, client) in [(2, &mut a), (3, &mut b), (4, &mut c)] {
            let hello = frame(station(1, 1), station(n, 1), ARP, &[0; 28]);
            assert_eq!(sends(&mut server, n, client, &hello), (1, vec![]), "to the device only");
        }
        let mut outcome = Vec::new();
        for to in [station(3, 1), ALL, GROUP, station(9, 9), station(2, 1)] {
            let out = frame(to, station(2, 2), ARP, &[0; 28]);
            outcome.push(sends(&mut server, 2, &mut a, &out));
        }
        let drops = [DropReason::PeerToPeer, DropReason::SamePeer].map(|r| server.dropped(r));
        outcomes.push((outcome, drops));
    }
    let device = || (1, vec![]);
    let all = || (1, vec![3, 4]);
    let nobody = || (0, vec![]);
    // A peer, broadcast, a group, an unknown station, one's own station.
    assert_eq!(outcomes[0], (vec![device(), device(), device(), device(), device()], [0, 0]));
    assert_eq!(outcomes[1], (vec![(0, vec![3]), all(), all(), device(), nobody()], [0, 1]));
    assert_eq!(outcomes[2], (vec![nobody(), device(), device(), device(), nobody()], [1, 1]));
}

#[test]
fn a_sender_that_cannot_be_is_refused() {
    let (mut server, [mut client]) = switch(Relay::Kernel, [2]);
    for from in [ALL, GROUP, [0; 6]] {
        let bad = frame(station(1, 1), from, ARP, &[0; 28]);
        assert_eq!(sends(&mut server, 2, &mut client, &bad), (0, vec![]));
    }
    assert_eq!(server.dropped(DropReason::SourceSpoofed), 3);
    let short = client.seal(&station(1, 1));
    assert!(short.is_empty(), "not even sent");
    assert_eq!(client.dropped(DropReason::NotEthernet), 1);
    assert_eq!(server.memory.plane().mac_totals(), Some(MacTotals::default()));
}

#[test]
fn one_peer_has_so_many_stations_and_no_more() {
    let (mut server, [mut a, mut b]) = switch(Relay::Kernel, [2, 3]);
    let from = |n: u8, number: u16| {
        let [high, low] = number.to_be_bytes();
        frame(station(1, 1), [2, 0, 0, n, high, low], ARP, &[0; 28])
    };
    for number in 0..MACS_PER_PEER as u16 {
        assert_eq!(sends(&mut server, 2, &mut a, &from(2, number)).0, 1);
    }
    assert_eq!(sends(&mut server, 2, &mut a, &from(2, 999)).0, 0);
    assert_eq!(server.dropped(DropReason::MacsFull), 1);
    assert_eq!(sends(&mut server, 2, &mut a, &from(2, 7)).0, 1, "those known pass");
    assert_eq!(sends(&mut server, 3, &mut b, &from(3, 999)).0, 1, "others are not concerned");
    server.memory.plane().limit_macs(MACS_PER_PEER + 1, Some(Duration::from_secs(60)));
    assert_eq!(sends(&mut server, 2, &mut a, &from(2, 999)).0, 1);
}

/// Returns the stations about which the plane asks.
fn asked(server: &mut End) -> Vec<(u32, [u8; 6])> {
    let notices = server.notices().into_iter().filter_map(|notice| match notice {
        Notice::StationHeard(peer, mac) => Some((peer.0, mac)),
        _ => None,
    });
    notices.collect()
}

#[test]
fn a_station_passes_only_once_it_is_allowed_if_the_plane_was_told_to_ask() {
    let (mut server, [mut a, mut b]) = switch(Relay::Kernel, [2, 3]);
    server.memory.plane().ask_about_stations();
    let allow = |server: &mut End, peer, allowed| {
        server.apply(Command::AllowStation(PeerId(peer), station(9, 1), allowed));
    };
    let from = frame(station(1, 1), station(9, 1), ARP, &[0; 28]);
    assert_eq!(sends(&mut server, 2, &mut a, &from).0, 0);
    assert_eq!(asked(&mut server), [(2, station(9, 1))]);
    assert_eq!(sends(&mut server, 2, &mut a, &from).0, 0);
    assert!(asked(&mut server).is_empty(), "once");
    assert_eq!(server.dropped(DropReason::MacNotAllowed), 2);
    allow(&mut server, 2, true);
    assert_eq!(sends(&mut server, 2, &mut a, &from).0, 1);
    // Another peer does not get the station before it is allowed.
    let to = frame(station(9, 1), station(1, 1), ARP, &[0; 28]);
    assert_eq!(sends(&mut server, 3, &mut b, &from).0, 0);
    assert_eq!(asked(&mut server), [(3, station(9, 1))]);
    allow(&mut server, 3, false);
    assert_eq!(sends(&mut server, 3, &mut b, &from).0, 0);
    assert!(asked(&mut server).is_empty(), "not at once after a refusal");
    let mut clients = [a, b];
    assert_eq!(reaches(&mut server, &mut clients, &to), [0]);
    allow(&mut server, 3, true);
    assert_eq!(sends(&mut server, 3, &mut clients[1], &from).0, 1);
    assert_eq!(reaches(&mut server, &mut clients, &to), [1]);
    // The former peer has to ask again, and a peer that is gone gets nothing.
    assert_eq!(sends(&mut server, 2, &mut clients[0], &from).0, 0);
    assert_eq!(asked(&mut server), [(2, station(9, 1))]);
    server.apply(Command::DelPeer(PeerId(2)));
    allow(&mut server, 2, true);
    assert_eq!(reaches(&mut server, &mut clients, &to), [1]);
    // Addresses that no station may have are not asked about.
    assert_eq!(
        sends(&mut server, 3, &mut clients[1], &frame(station(1, 1), ALL, ARP, &[0; 28])).0,
        0
    );
    assert!(asked(&mut server).is_empty());
}

#[test]
fn syns_are_clamped_behind_the_header_and_its_tags() {
    for tags in 0..3 {
        let (mut server, [mut client]) = switch(Relay::Kernel, [2]);
        let mtu = InnerMtu { mss4: 1300, mss6: 1280, largest: 0 };
        server.apply(Command::SetMtu(PeerId(2), mtu));
        let mut syn = vec![0u8; 44];
        let header = [0x45, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0, 10, 8, 0, 2, 10, 8, 0, 1];
        syn[..20].copy_from_slice(&header);
        syn[32..34].copy_from_slice(&[0x60, 2]);
        syn[40..44].copy_from_slice(&[2, 4, 5, 0xb4]);
        let tagged = |to: [u8; 6], from: [u8; 6]| {
            let tags = [0x81, 0, 0, 5].repeat(tags);
            [&to[..], &from, &tags, &[8, 0], &syn].concat()
        };
        let (there, here) = (station(1, 1), station(2, 1));
        let at = 14 + 4 * tags + 42;
        let sealed = client.seal_one(&tagged(there, here));
        let out = server.open(link(2, 1000), &sealed);
        assert_eq!(out[0][at..at + 2], 1300u16.to_be_bytes(), "received");
        let sealed = server.seal_one(&tagged(here, there));
        let out = client.open(link(200, 1194), &sealed);
        assert_eq!(out[0][at..at + 2], 1300u16.to_be_bytes(), "sent");
        // A frame that only resembles a SYN is not changed.
        let mut other = tagged(here, there);
        other[12 + 4 * tags] = 0x88;
        let sealed = server.seal_one(&other);
        assert_eq!(client.open(link(200, 1194), &sealed), [other]);
    }
}

/// Returns an ARP packet in which 10.8.0.`sender` asks for 10.8.0.`target`, or answers it.
fn arp(operation: u8, sender: u8, target: u8) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 0, 10, 8, 0, sender];
    arp.extend([0, 0, 0, 0, 0, 0, 10, 8, 0, target]);
    arp
}

/// Returns a neighbour advertisement of `target` from `source`.
fn advertisement(source: &str, target: &str) -> Vec<u8> {
    let [source, target] = [source, target].map(|ip| ip.parse::<Ipv6Addr>().unwrap().octets());
    let to = "ff02::1".parse::<Ipv6Addr>().unwrap().octets();
    let message = [136, 0, 0, 0, 0, 0, 0, 0];
    [&[0x60, 0, 0, 0, 0, 24, 58, 255][..], &source, &to, &message, &target].concat()
}

/// Returns a switch whose clients may only use their own addresses of 10.8.0.0/24 and fd08::/64.
fn guarded<const N: usize>(clients: [u8; N]) -> (End, [End; N]) {
    let (server, ends) = switch(Relay::Kernel, clients);
    let networks = ["10.8.0.0/24", "fd08::/64"].map(|net| net.parse().unwrap());
    server.memory.plane().guard_sources(networks.to_vec());
    for n in clients {
        set_routes(&server, n, &[&format!("10.8.0.{n}/32"), &format!("fd08::{n}/128")]);
    }
    (server, ends)
}

fn set_routes(server: &End, n: u8, routes: &[&str]) {
    let routes = routes.iter().map(|route| route.parse().unwrap()).collect();
    server.apply(Command::SetRoutes(PeerId(n.into()), routes));
}

#[test]
fn a_guarded_address_is_accepted_from_its_owner_alone() {
    let from = |kind, payload: Vec<u8>| frame(ALL, station(2, 1), kind, &payload);
    let ip = |source| from(0x0800, packet(source, 1, 7));
    let cases = [
        (from(ARP, arp(1, 2, 9)), true),
        (from(ARP, arp(1, 3, 9)), false),
        (from(ARP, arp(2, 3, 9)), false),
        (ip(2), true),
        (ip(3), false),
        // No peer has this address of the network.
        (ip(200), false),
        (from(0x86dd, advertisement("fd08::2", "fd08::2")), true),
        (from(0x86dd, advertisement("fd08::3", "fd08::2")), false),
        (from(0x86dd, advertisement("fe80::2", "fd08::3")), false),
        // Other addresses, and frames without IP, are not guarded.
        (from(0x86dd, advertisement("fe80::2", "fe80::3")), true),
        (from(0x88cc, vec![7; 60]), true),
    ];
    for (frame, passes) in cases {
        let (mut server, [mut a, _]) = guarded([2, 3]);
        assert_eq!(sends(&mut server, 2, &mut a, &frame).0, usize::from(passes), "{frame:?}");
        assert_eq!(server.dropped(DropReason::SourceSpoofed), u64::from(!passes));
        let (mut server, [mut a, _]) = switch(Relay::Kernel, [2, 3]);
        assert_eq!(sends(&mut server, 2, &mut a, &frame).0, 1, "without a guard");
    }
}

#[test]
fn with_a_guard_a_peer_without_routes_neither_sends_nor_gets_frames() {
    let (mut server, [a, b]) = guarded([2, 3]);
    let mut clients = [a, b];
    let from_a = frame(station(1, 1), station(2, 1), 0x88cc, &[7; 60]);
    let to_a = frame(station(2, 1), station(1, 1), 0x88cc, &[7; 60]);
    let to_all = frame(ALL, station(1, 1), 0x88cc, &[7; 60]);
    assert_eq!(sends(&mut server, 2, &mut clients[0], &from_a).0, 1);
    assert_eq!(reaches(&mut server, &mut clients, &to_a), [0]);
    set_routes(&server, 2, &[]);
    // Its station is forgotten, so frames for it go to the others.
    assert_eq!(reaches(&mut server, &mut clients, &to_a), [1]);
    assert_eq!(reaches(&mut server, &mut clients, &to_all), [1]);
    assert_eq!(sends(&mut server, 2, &mut clients[0], &from_a).0, 0);
    assert_eq!(server.dropped(DropReason::SourceSpoofed), 1);
    set_routes(&server, 2, &["10.8.0.2/32"]);
    assert_eq!(reaches(&mut server, &mut clients, &to_all), [0, 1]);
    assert_eq!(sends(&mut server, 2, &mut clients[0], &from_a).0, 1);
    assert_eq!(reaches(&mut server, &mut clients, &to_a), [0]);
}

#[test]
fn an_address_that_is_looked_for_and_has_no_route_is_reported() {
    let (mut server, [mut client]) = guarded([2]);
    server.memory.plane().report_unrouted();
    sends(&mut server, 2, &mut client, &frame(station(1, 1), station(2, 1), 0x88cc, &[7; 60]));
    let mut reported = |to, kind, payload: &[u8]| {
        server.seal(&frame(to, station(1, 1), kind, payload));
        let notices = server.notices().into_iter().filter_map(|notice| match notice {
            Notice::Unrouted(address) => Some(address.to_string()),
            _ => None,
        });
        notices.collect::<Vec<_>>()
    };
    assert_eq!(reported(ALL, ARP, &arp(1, 1, 7)), ["10.8.0.7"]);
    assert!(reported(ALL, ARP, &arp(1, 1, 2)).is_empty(), "it has a route");
    assert!(reported(ALL, ARP, &arp(2, 1, 8)).is_empty(), "an answer");
    assert_eq!(reported(station(8, 8), 0x0800, &packet(1, 8, 0)), ["10.8.0.8"]);
    assert!(reported(station(2, 1), 0x0800, &packet(1, 9, 0)).is_empty(), "a known station");
    assert!(reported(ALL, 0x86dd, &advertisement("fd08::1", "fd08::7")).is_empty(), "a group");
}

/// Returns a TCP super-frame as a TAP device hands it out.
fn super_frame(to: [u8; 6], from: [u8; 6], payload: usize, size: u16) -> (VnetHeader, Vec<u8>) {
    let len = 40 + payload;
    let mut packet = vec![0x61u8; len];
    packet[..20].copy_from_slice(&[
        0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 8, 0, 2, 10, 8, 0, SERVER,
    ]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[20..40].copy_from_slice(&[
        0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0,
    ]);
    let vnet = VnetHeader {
        needs_csum: true,
        gso: Gso::TcpV4,
        ecn: false,
        hdr_len: 54,
        gso_size: size,
        csum_start: 34,
        csum_offset: 16,
    };
    (vnet, frame(to, from, 0x0800, &packet))
}

/// Seals a super-frame at one end and opens it at the other; returns the trains and the writes.
fn through(
    from: &mut End,
    to: &mut End,
    link: adit_engine::Link,
    vnet: &VnetHeader,
    frame: &[u8],
) -> (usize, Vec<(VnetHeader, Vec<u8>)>) {
    let mut trains = Vec::new();
    from.memory.seal(vnet, &mut frame.to_vec(), |train, segment| {
        trains.push((train.to_vec(), segment));
    });
    let mut writes = Vec::new();
    for (train, segment) in &trains {
        to.memory.open(&link, *segment, &mut train.clone(), |what| {
            if let LoopbackOutput::Tun(write) = what {
                let mut bytes = write.header().to_vec();
                write.bodies().for_each(|body| bytes.extend_from_slice(body));
                writes.push((VnetHeader::decode(write.vnet()), bytes));
            }
        });
    }
    (trains.len(), writes)
}

#[test]
fn a_super_frame_arrives_as_one() {
    let (mut server, [mut client]) = switch(Relay::Kernel, [2]);
    let (vnet, frame) = super_frame(station(1, 1), station(2, 1), 60_000, 1400);
    let (trains, writes) = through(&mut client, &mut server, link(2, 1000), &vnet, &frame);
    assert_eq!((trains, writes.len()), (1, 1), "43 datagrams fit into one train");
    assert_eq!(writes[0].0, vnet);
    assert_eq!(writes[0].1[54..], frame[54..]);
    assert_eq!(writes[0].1[..14], frame[..14]);
}

#[test]
fn a_super_frame_for_all_is_whole_for_each() {
    let (mut server, [mut a, mut b]) = switch(Relay::Kernel, [2, 3]);
    let (vnet, frame) = super_frame(station(9, 9), station(1, 1), 9000, 1400);
    let mut sealed = Vec::new();
    server.memory.seal(&vnet, &mut frame.clone(), |train, segment| {
        sealed.push((train.to_vec(), segment));
    });
    assert_eq!(sealed.len(), 2);
    for (client, (mut train, segment)) in [&mut a, &mut b].into_iter().zip(sealed) {
        let mut got = Vec::new();
        client.memory.open(&link(200, 1194), segment, &mut train, |what| {
            if let LoopbackOutput::Tun(write) = what {
                got.extend(write.header().to_vec());
                write.bodies().for_each(|body| got.extend_from_slice(body));
            }
        });
        assert_eq!(got[54..], frame[54..]);
    }
}

proptest! {
    /// Frames of several stations and kinds arrive whole, in order, each at the peer behind which
    /// its station was last seen, as a plain map of a switch predicts.
    #[test]
    fn agrees_with_a_plain_switch(
        steps in proptest::collection::vec((0usize..3, 0u8..5, 0u8..6, any::<bool>()), 1..80),
    ) {
        let (mut server, mut clients) = switch(Relay::Direct, [2, 3, 4]);
        let ids = [2u8, 3, 4];
        let mut known = std::collections::HashMap::new();
        for (n, source, target, group) in steps {
            let from = station(9, source);
            let to = if group { GROUP } else { station(9, target) };
            known.insert(from, ids[n]);
            let expected = match known.get(&to) {
                _ if group => {
                    (1, ids.iter().filter(|id| **id != ids[n]).map(|id| u32::from(*id)).collect())
                }
                None => (1, vec![]),
                Some(owner) if *owner == ids[n] => (0, vec![]),
                Some(owner) => (0, vec![u32::from(*owner)]),
            };
            let out = frame(to, from, ARP, &[source; 28]);
            prop_assert_eq!(sends(&mut server, ids[n], &mut clients[n], &out), expected);
        }
    }
}
