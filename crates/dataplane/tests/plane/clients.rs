//! Tests of clients of a host that is a node of a mesh ([`Relay::Clients`]).

use crate::common::*;
use adit_dataplane::{DropReason, Relay};
use adit_engine::{Notice, PeerId};

/// Sends a packet of peer `from`. Returns whether it reaches the device, and the peers that it reaches.
fn sends(server: &mut End, end: &mut End, from: u8, to: u8) -> (bool, Vec<u32>) {
    let datagram = end.seal_one(&packet(from, to, 1));
    let (tun, peers) = server.open_buffer(link(from, 1000), datagram.len(), &datagram);
    (!tun.is_empty(), peers.into_iter().map(|(peer, _)| peer.0).collect())
}

#[test]
fn packets_from_and_to_clients_are_relayed_and_no_others() {
    let (mut server, [mut a, _b, mut client, mut other]) =
        world(Relay::Clients(PeerId(8)), [2, 3, 8, 9]);
    assert_eq!(sends(&mut server, &mut a, 2, 8), (false, vec![8]));
    assert_eq!(sends(&mut server, &mut client, 8, 2), (false, vec![2]));
    assert_eq!(sends(&mut server, &mut other, 9, 8), (false, vec![8]));
    assert_eq!(sends(&mut server, &mut a, 2, 3), (true, vec![]), "the kernel decides");
    assert_eq!(sends(&mut server, &mut client, 8, SERVER), (true, vec![]));
    // No client can send as another peer.
    let before = server.dropped(DropReason::SourceSpoofed);
    let datagram = client.seal_one(&packet(2, 9, 1));
    server.open_buffer(link(8, 1000), datagram.len(), &datagram);
    assert_eq!(server.dropped(DropReason::SourceSpoofed), before + 1);
}

#[test]
fn without_clients_all_packets_of_peers_are_the_kernels() {
    let (mut server, [mut a, _b]) = world(Relay::Clients(PeerId(8)), [2, 3]);
    assert_eq!(sends(&mut server, &mut a, 2, 3), (true, vec![]));
}

#[test]
fn destinations_of_a_client_without_a_route_are_reported() {
    let (mut server, [mut a, mut client]) = world(Relay::Clients(PeerId(8)), [2, 8]);
    server.memory.plane().report_unrouted();
    assert_eq!(sends(&mut server, &mut a, 2, 77), (true, vec![]));
    let unrouted = |end: &mut End| {
        let notices = end.notices().into_iter();
        notices.filter(|notice| matches!(notice, Notice::Unrouted(_))).collect::<Vec<_>>()
    };
    assert_eq!(unrouted(&mut server), [], "not those of a peer");
    assert_eq!(sends(&mut server, &mut client, 8, 77), (true, vec![]));
    assert_eq!(unrouted(&mut server), [Notice::Unrouted([10, 8, 0, 77].into())]);
}
