//! A control plane that is a router itself gets what no peer takes.

use crate::common::*;
use adit_dataplane::{DropReason, HandedUp, Relay, Unpeered, Upcall};
use adit_engine::command::{InnerMtu, KeySlot};
use adit_engine::{Command, PeerId};
use adit_wire::{Gso, VnetHeader};

/// A server that hands up, with the address of [`SERVER`], and a client whose packets the server accepts.
fn ends(all_to_device: bool) -> (End, End) {
    let (server, [client]) = world(Relay::Kernel, [2]);
    let plane = server.memory.plane();
    plane.hand_up(all_to_device);
    plane.set_unpeered_routes(Unpeered::Host, &["10.8.0.1/32".parse().unwrap()]);
    (server, client)
}

fn handed_up(end: &End) -> Vec<HandedUp> {
    let mut taken = Vec::new();
    end.memory.plane().take_handed_up(|one| taken.push(one));
    taken
}

#[test]
fn packets_of_the_device_without_a_way_come_up() {
    let (mut server, _client) = ends(false);
    let control: Vec<_> = ["10.8.0.64/26".parse().unwrap()].into();
    server.memory.plane().set_unpeered_routes(Unpeered::Control, &control);
    server.apply(Command::SetRoutes(PeerId(2), vec!["10.8.0.0/24".parse().unwrap()]));
    assert_eq!(server.seal(&packet(SERVER, 2, 7)).len(), 1);
    for to in [70, SERVER] {
        let unrouted = packet(SERVER, to, 7);
        assert!(server.seal(&unrouted).is_empty());
        assert_eq!(handed_up(&server), [HandedUp::FromDevice(unrouted)]);
    }
    let mtu = |largest| Command::SetMtu(PeerId(2), InnerMtu { largest, ..InnerMtu::default() });
    let len = u16::try_from(packet(SERVER, 2, 7).len()).unwrap();
    server.apply(mtu(len));
    assert_eq!(server.seal(&packet(SERVER, 2, 7)).len(), 1);
    server.apply(mtu(len - 1));
    assert!(server.seal(&packet(SERVER, 2, 7)).is_empty());
    assert_eq!(handed_up(&server), [HandedUp::FromDevice(packet(SERVER, 2, 7))]);
    server.apply(mtu(0));
    server.apply(Command::DelKey(PeerId(2), KeySlot::Primary));
    assert!(server.seal(&packet(SERVER, 2, 8)).is_empty());
    assert_eq!(handed_up(&server), [HandedUp::FromDevice(packet(SERVER, 2, 8))]);
    assert_eq!(server.all_drops(), 0);
}

#[test]
fn a_super_packet_comes_up_in_packets() {
    let (mut server, _client) = ends(false);
    let mut packet = vec![0x61; 28 + 2500];
    packet[..28].copy_from_slice(&[
        0x45, 0, 9, 0xe0, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 8, 0, 1, 10, 9, 0, 1, 0x12, 0x34, 0, 80,
        9, 0xcc, 0, 0,
    ]);
    let vnet = VnetHeader {
        needs_csum: true,
        gso: Gso::UdpL4,
        gso_size: 1000,
        csum_start: 20,
        csum_offset: 6,
        ..VnetHeader::default()
    };
    server.memory.seal(&vnet, &mut packet, |_, _| panic!("sent"));
    let lengths = handed_up(&server).into_iter().map(|one| match one {
        HandedUp::FromDevice(packet) => packet.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(lengths.collect::<Vec<_>>(), [1028, 1028, 528]);
}

#[test]
fn packets_of_a_peer_come_up_unless_they_are_for_this_host() {
    let (mut server, mut client) = ends(false);
    // From an address that is not the peer's.
    let local = packet(99, SERVER, 1);
    let sealed = client.seal_one(&local);
    assert_eq!(server.open(link(2, 1000), &sealed), [local]);
    assert!(handed_up(&server).is_empty());
    for to in [2, 3, 99] {
        let foreign = packet(2, to, 1);
        let sealed = client.seal_one(&foreign);
        assert!(server.open(link(2, 1000), &sealed).is_empty());
        assert_eq!(handed_up(&server), [HandedUp::FromPeer(PeerId(2), foreign)]);
    }
    let (mut server, mut client) = ends(true);
    let foreign = packet(99, 77, 1);
    let sealed = client.seal_one(&foreign);
    assert_eq!(server.open(link(2, 1000), &sealed), [foreign]);
    assert_eq!(server.all_drops(), 0);
}

#[test]
fn datagrams_without_a_session_are_control_packets() {
    let (mut server, mut client) = ends(false);
    let sealed = client.seal_one(&packet(2, SERVER, 1));
    let control = |server: &mut End| {
        let mut taken = Vec::new();
        server.upcalls.drain(|upcall| match upcall {
            Upcall::ControlPacket(link, bytes) => taken.push((link, bytes, true)),
            Upcall::Unauthenticated(link, bytes) => taken.push((link, bytes, false)),
            Upcall::Notice(_) | Upcall::StreamEnded(..) => {}
        });
        taken
    };
    server.apply(Command::DelKey(PeerId(2), KeySlot::Primary));
    assert!(server.open(link(2, 1000), &sealed).is_empty());
    assert_eq!(control(&mut server), [(link(2, 1000), sealed.clone(), true)]);
    server.apply(Command::DelPeer(PeerId(2)));
    assert!(server.open(link(2, 1000), &sealed).is_empty());
    assert_eq!(control(&mut server), [(link(2, 1000), sealed, false)]);
    assert_eq!(server.all_drops(), 0);
}

#[test]
fn a_peer_that_cannot_be_read_is_reported() {
    let (mut server, mut client) = ends(false);
    let mut forged = client.seal_one(&packet(2, SERVER, 1));
    *forged.last_mut().unwrap() ^= 1;
    for _ in 0..3 {
        assert!(server.open(link(2, 1000), &forged).is_empty());
    }
    assert_eq!(handed_up(&server), [HandedUp::Unreadable(PeerId(2))]);
    assert_eq!(server.dropped(DropReason::BadTag), 3);
}

#[test]
fn a_plane_that_does_not_hand_up_drops() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    assert!(server.seal(&packet(SERVER, 70, 7)).is_empty());
    server.apply(Command::DelKey(PeerId(2), KeySlot::Primary));
    assert!(server.seal(&packet(SERVER, 2, 7)).is_empty());
    let sealed = client.seal_one(&packet(2, SERVER, 1));
    assert!(server.open(link(2, 1000), &sealed).is_empty());
    assert!(handed_up(&server).is_empty());
    let counts = [DropReason::NoRoute, DropReason::NoKey, DropReason::UnknownKey];
    assert_eq!(counts.map(|reason| server.dropped(reason)), [1, 1, 1]);
}
