//! The worker over real sockets on the loopback interface, without a TUN device.

use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use adit_dataplane::{DropReason, Offloads, PlaneConfig, Relay};
use adit_engine::command::{Keepalive, KeySlot};
use adit_engine::{Instant, Link, PeerId, SocketId};
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_openvpn::data_format::{Command, Notice, PeerSpec};
use adit_openvpn_data::{Plane, Upcall, Upcalls};

use crate::common::{self, key, layout, spec};

fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

/// Long enough for the busiest machine; in a passing test it never expires.
const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    plane: Plane,
    upcalls: Upcalls,
    socket: Arc<UdpSocket>,
    peer: PeerId,
}

impl Node {
    fn new(client: bool, peer: u32) -> Self {
        Self::with(client, peer, Relay::Kernel)
    }

    fn with(client: bool, peer: u32, relay: Relay) -> Self {
        let socket = UdpSocket::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        let socket = Arc::new(socket);
        let config = PlaneConfig {
            tun: None,
            sockets: vec![(SocketId(3), Arc::clone(&socket))],
            relay,
            gates: Offloads::ALL,
            client,
            ethernet: false,
        };
        let (plane, upcalls) = Plane::start(config, boot_clock).unwrap();
        Self { plane, upcalls, socket, peer: PeerId(peer) }
    }

    fn link_to(&self, other: &Self) -> Link {
        let local = self.socket.local_addr().ip();
        Link::datagram(SocketId(3), Some(local), other.socket.local_addr())
    }

    fn introduce(&self, other: &Self, at_server: bool, keepalive: Keepalive) {
        let spec = PeerSpec { layout: layout(5), keepalive, ..spec(self.link_to(other)) };
        self.plane.apply(Command::AddPeer(self.peer, spec));
        self.plane.apply(Command::InstallKey(self.peer, KeySlot::Primary, key(2, 0, at_server)));
    }

    /// Waits for an upcall for which `pick` returns a value.
    fn wait_for<T>(&mut self, mut pick: impl FnMut(Upcall) -> Option<T>) -> T {
        let (poller, mut events) = (Poller::new().unwrap(), Events::new());
        poller.add(&self.upcalls, 0, Interest::READ).unwrap();
        let end = Wall::now() + PATIENCE;
        let mut found = None;
        while found.is_none() {
            assert!(Wall::now() < end, "nothing came");
            poller.wait(&mut events, Some(Duration::from_secs(1))).unwrap();
            self.upcalls.drain(|upcall| {
                if found.is_none() {
                    found = pick(upcall);
                }
            });
        }
        found.unwrap()
    }

    fn until(&self, done: impl Fn(&Plane) -> bool) {
        let end = Wall::now() + PATIENCE;
        while !done(&self.plane) {
            assert!(Wall::now() < end, "it never happened");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn pair(server_keepalive: Keepalive, client_keepalive: Keepalive) -> (Node, Node) {
    let (server, client) = (Node::new(false, 5), Node::new(true, 0));
    server.introduce(&client, true, server_keepalive);
    client.introduce(&server, false, client_keepalive);
    (server, client)
}

fn keepalive(interval: u64, timeout: u64) -> Keepalive {
    Keepalive { interval: Duration::from_millis(interval), timeout: Duration::from_millis(timeout) }
}

#[test]
fn messages_of_control_travel_both_ways() {
    let (mut server, mut client) = pair(Keepalive::default(), Keepalive::default());
    let mut exit = adit_openvpn_data::framing::OCC.to_vec();
    exit.push(6);
    let in_band = |upcall| match upcall {
        Upcall::Notice(Notice::InBand(id, message)) => Some((id, message)),
        _ => None,
    };
    client.plane.apply(Command::SendData(PeerId(0), exit.clone()));
    assert_eq!(server.wait_for(in_band), (PeerId(5), exit.clone()));
    server.plane.apply(Command::SendData(PeerId(5), exit.clone()));
    assert_eq!(client.wait_for(in_band), (PeerId(0), exit));
    assert_eq!(server.plane.counters(PeerId(5)).unwrap().tx_packets, 1);
    assert_eq!(server.plane.totals().received.packets, 1);
}

#[test]
fn control_packets_come_up_and_can_be_admitted() {
    let (mut server, client) = pair(Keepalive::default(), Keepalive::default());
    let stranger = Node::new(true, 0);
    let to = server.socket.local_addr();
    let reset = [7 << 3, 1, 2, 3];
    stranger.socket.send_to(to, None, &reset).unwrap();
    let link = server.link_to(&stranger);
    assert_eq!(server.wait_for(Some), Upcall::Unauthenticated(link, reset.to_vec()));
    server.plane.apply(Command::AdmitLink(link));
    stranger.socket.send_to(to, None, &reset).unwrap();
    assert_eq!(server.wait_for(Some), Upcall::ControlPacket(link, reset.to_vec()));
    client.socket.send_to(to, None, &reset).unwrap();
    let link = server.link_to(&client);
    assert_eq!(server.wait_for(Some), Upcall::ControlPacket(link, reset.to_vec()));
}

#[test]
fn an_idle_peer_is_pinged_and_a_silent_one_reported_once() {
    let (server, mut client) = pair(keepalive(150, 0), keepalive(0, 1500));
    client.until(|plane| plane.counters(PeerId(0)).unwrap().rx_packets >= 3);
    assert_eq!(client.plane.totals().dropped(DropReason::NotIp), 0, "pings go no further");
    server.plane.apply(Command::SetKeepalive(PeerId(5), Keepalive::default()));
    client.plane.apply(Command::ReadTraffic(PeerId(0)));
    let traffic = client.wait_for(|upcall| match upcall {
        Upcall::Notice(Notice::Traffic(_, traffic)) => Some(traffic),
        _ => None,
    });
    assert_eq!(traffic.packets, traffic.in_band_packets, "pings are no traffic");
    assert_eq!(traffic.in_band_bytes, 16 * traffic.in_band_packets);
    let silent = |upcall| match upcall {
        Upcall::Notice(Notice::PeerSilent(id)) => Some(id),
        _ => None,
    };
    assert_eq!(client.wait_for(silent), PeerId(0));
    std::thread::sleep(Duration::from_millis(300));
    let mut again = 0;
    client.upcalls.drain(|upcall| again += usize::from(silent(upcall).is_some()));
    assert_eq!(again, 0);
}

#[test]
fn a_peer_that_was_missed_is_told_of_when_it_is_heard_and_only_then() {
    let (server, mut client) = pair(keepalive(50, 0), keepalive(0, 400));
    let told = |upcall| match upcall {
        Upcall::Notice(Notice::PeerActive(id) | Notice::PeerSilent(id)) => Some((id, true)),
        _ => None,
    };
    client.until(|plane| plane.counters(PeerId(0)).unwrap().rx_packets >= 3);
    let mut early = 0;
    client.upcalls.drain(|upcall| early += usize::from(told(upcall).is_some()));
    assert_eq!(early, 0, "it was never silent");
    let silent = |upcall| match upcall {
        Upcall::Notice(Notice::PeerSilent(id)) => Some(id),
        _ => None,
    };
    let heard = |upcall| match upcall {
        Upcall::Notice(Notice::PeerActive(id)) => Some(id),
        _ => None,
    };
    server.plane.apply(Command::SetKeepalive(PeerId(5), Keepalive::default()));
    assert_eq!(client.wait_for(silent), PeerId(0));
    // Control requests the notice again, and silence is reported again.
    client.plane.apply(Command::SetKeepalive(PeerId(0), keepalive(0, 400)));
    assert_eq!(client.wait_for(silent), PeerId(0));
    server.plane.apply(Command::SetKeepalive(PeerId(5), keepalive(50, 0)));
    assert_eq!(client.wait_for(heard), PeerId(0));
}

#[test]
fn a_direct_relay_seals_for_the_other_peer() {
    let server = Node::with(false, 5, Relay::Direct);
    let (a, b) = (Node::new(true, 0), Node::new(true, 0));
    for (n, client) in [(2u8, &a), (3, &b)] {
        let id = PeerId(u32::from(n));
        let spec = PeerSpec { layout: layout(id.0), ..spec(server.link_to(client)) };
        server.plane.apply(Command::AddPeer(id, spec));
        server.plane.apply(Command::InstallKey(id, KeySlot::Primary, key(n, 0, true)));
        server.plane.apply(Command::SetRoutes(id, vec![format!("10.8.0.{n}/32").parse().unwrap()]));
        let spec = PeerSpec { layout: layout(id.0), ..common::spec(client.link_to(&server)) };
        client.plane.apply(Command::AddPeer(PeerId(0), spec));
        client.plane.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(n, 0, false)));
        client.plane.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
    }
    for fill in 0..10 {
        a.plane.apply(Command::SendData(PeerId(0), common::packet(2, 3, fill)));
    }
    // Without a device, the packets end at the other client, which has authenticated them.
    b.until(|plane| plane.totals().dropped(DropReason::NoTun) == 10);
    assert_eq!(server.plane.counters(PeerId(3)).unwrap().tx_packets, 10);
    assert_eq!(server.plane.counters(PeerId(2)).unwrap().tx_packets, 0);
}

#[test]
fn sockets_can_be_exchanged() {
    let (mut server, client) = pair(Keepalive::default(), Keepalive::default());
    let new = UdpSocket::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    let new = Arc::new(new);
    server.plane.add_socket(SocketId(4), Arc::clone(&new));
    server.plane.remove_socket(SocketId(3));
    client.socket.send_to(new.local_addr(), None, &[7 << 3]).unwrap();
    let link = Link::datagram(SocketId(4), Some([127, 0, 0, 1].into()), client.socket.local_addr());
    assert_eq!(server.wait_for(Some), Upcall::Unauthenticated(link, vec![7 << 3]));
    server.plane.apply(Command::SendData(PeerId(5), vec![1]));
    assert_eq!(server.plane.totals().dropped(DropReason::NoSocket), 1);
}

#[test]
fn empty_and_broken_datagrams_cost_a_counter_only() {
    let (mut server, client) = pair(Keepalive::default(), Keepalive::default());
    let to = server.socket.local_addr();
    for datagram in [&[][..], &[9 << 3], &[9 << 3, 0, 0, 5, 0, 0, 0, 1, 2], &[0xff; 1400]] {
        client.socket.send_to(to, None, datagram).unwrap();
    }
    client.socket.send_to(to, None, &[7 << 3, 9]).unwrap();
    let frame = server.wait_for(Some);
    assert_eq!(frame, Upcall::ControlPacket(server.link_to(&client), vec![7 << 3, 9]));
    let totals = server.plane.totals();
    let count = |reason| totals.dropped(reason);
    assert_eq!(count(DropReason::Empty), 1);
    assert_eq!(count(DropReason::Short), 2);
    assert_eq!(count(DropReason::UnknownKind), 1);
}
