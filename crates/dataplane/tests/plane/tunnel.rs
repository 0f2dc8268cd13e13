//! Two planes with TUN devices in two namespaces joined by a veth pair with an MTU of 1500. Needs root.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket as StdUdp};
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use crate::Plane;
use crate::common::{Types, key, layout, spec};
use adit_dataplane::{
    DropReason, Failure, Offloads, OwnTransport, PlaneConfig, Relay, StreamOptions, Upcall, Upcalls,
};
use adit_engine::command::{Float, InnerMtu, KeySlot, PeerSpec, Splice, SpliceId, SpliceLabel};
use adit_engine::{Command, Instant, Link, Notice, PeerId, SocketId};
use adit_linux::net::{Address, Route};
use adit_linux::netns::NetNs;
use adit_linux::tcp;
use adit_linux::tun::{TunDevice, TunOffloads, TunOptions};
use adit_linux::udp::{Fragmentation, UdpOptions, UdpSocket};
use adit_testbed::pattern;

const PATIENCE: Duration = Duration::from_secs(60);

fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

struct Side {
    ns: NetNs,
    plane: Plane,
    upcalls: Upcalls<Types>,
    tun: u32,
}

/// Creates side `n` with 10.77.0.n outside and 10.9.0.n inside; the first is the server.
fn side(ns: NetNs, n: u8, gates: Offloads, mss: u16, queues: usize) -> Side {
    let offloads = TunOffloads {
        csum: gates.tun_tso || gates.tun_uso,
        tso: gates.tun_tso,
        uso: gates.tun_uso,
    };
    let name = Some("inside".into());
    let options = TunOptions { name, offloads, queues, ..TunOptions::default() };
    let tun = ns.run(|| TunDevice::open(&options)).unwrap().unwrap();
    let index = tun.ifindex;
    let inside = format!("10.9.0.{n}/24").parse().unwrap();
    let up = ns.configure(async |net| {
        net.add_address(&Address::new(index, inside)).await?;
        net.set_up(index).await
    });
    up.unwrap().unwrap();
    let outside = SocketAddr::from(([10, 77, 0, n], 5000));
    let options = UdpOptions { gro: gates.udp_gro, ..UdpOptions::new(outside) };
    let socket = Arc::new(ns.run(|| UdpSocket::bind(&options)).unwrap().unwrap());
    let config = PlaneConfig {
        tun: Some(tun),
        sockets: vec![(SocketId(0), socket)],
        relay: Relay::Kernel,
        gates,
        client: n == 2,
        ethernet: false,
    };
    let (plane, upcalls) = Plane::start(config, boot_clock).unwrap();
    let link = Link::datagram(SocketId(0), None, ([10, 77, 0, 3 - n], 5000).into());
    let side = Side { ns, plane, upcalls, tun: index };
    side.introduce(link, mss, n == 1);
    side
}

impl Side {
    fn introduce(&self, link: Link, mss: u16, at_server: bool) {
        self.introduce_as(Float::Follow, link, mss, at_server);
    }

    fn introduce_as(&self, float: Float, link: Link, mss: u16, at_server: bool) {
        let mtu = InnerMtu { mss4: mss, mss6: mss, largest: 0 };
        let spec = PeerSpec { layout: layout(7), float, mtu, ..spec(link) };
        self.plane.apply(Command::AddPeer(PeerId(7), spec));
        self.plane.apply(Command::InstallKey(PeerId(7), KeySlot::Primary, key(2, 0, at_server)));
        self.plane.apply(Command::SetRoutes(PeerId(7), vec!["0.0.0.0/0".parse().unwrap()]));
    }
}

/// Does the same as [`tunnel_with_queues`], over a TCP connection through the veth pair.
fn tunnel_over_stream(gates: Offloads, queues: usize) -> (Side, Side) {
    let (a, b) = tunnel_with_queues(gates, 1400, queues);
    let (here, there) = connected(&a.ns, [10, 77, 0, 1], &b.ns);
    for (side, stream, at_server) in [(&a, here, true), (&b, there, false)] {
        let link = Link::stream(5, stream.peer_addr().unwrap());
        side.plane.add_stream(link, stream, StreamOptions::default()).unwrap();
        side.introduce(link, 1400, at_server);
    }
    (a, b)
}

/// Connects a stream from one namespace to an address of another; returns the accepted end first.
fn connected(to: &NetNs, host: [u8; 4], from: &NetNs) -> (tcp::TcpStream, tcp::TcpStream) {
    let address = SocketAddr::from((host, 5000));
    let listener = to.run(|| tcp::TcpListener::bind(&tcp::TcpListenOptions::new(address)));
    let listener = listener.unwrap().unwrap();
    let connect = tcp::TcpConnectOptions::new(address);
    let there = from.run(|| tcp::TcpStream::connect(&connect)).unwrap().unwrap();
    let end = Wall::now() + PATIENCE;
    let here = loop {
        match listener.accept() {
            Ok((here, _)) => break here,
            Err(_) => assert!(Wall::now() < end, "no connection arrived"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    while !there.finish_connect().unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    (here, there)
}

fn tunnel(gates: Offloads, mss: u16) -> (Side, Side) {
    tunnel_with_queues(gates, mss, 1)
}

fn tunnel_with_queues(gates: Offloads, mss: u16, queues: usize) -> (Side, Side) {
    let (a, b) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    a.connect("cable", &b, "cable").unwrap();
    for (ns, n) in [(&a, 1), (&b, 2)] {
        let address = format!("10.77.0.{n}/24").parse().unwrap();
        let added = ns.configure(async |net| {
            let index = net.link("cable").await?.index;
            net.add_address(&Address::new(index, address)).await
        });
        added.unwrap().unwrap();
    }
    (side(a, 1, gates, mss, queues), side(b, 2, gates, mss, queues))
}

/// Checks datagrams that fit, that fit only inside the tunnel, and that are fragmented inside too.
fn datagrams_pass(from: &Side, to: &Side, to_address: &str) {
    let receiver = to.ns.run(|| StdUdp::bind(to_address)).unwrap().unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = from.ns.run(|| StdUdp::bind("0.0.0.0:0")).unwrap().unwrap();
    let mut buffer = vec![0; 65536];
    for size in [0, 1, 1300, 1440, 1472, 1473, 5000] {
        for fill in 0..5u8 {
            let sent = vec![fill; size];
            sender.send_to(&sent, to_address).unwrap();
            let len = receiver.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..len], sent, "{size} bytes");
        }
    }
}

/// Sends a byte stream and checks each byte.
fn stream_passes(from: &Side, to: &Side, to_address: &str) {
    let listener = to.ns.run(|| TcpListener::bind(to_address)).unwrap().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let mut stream = from.ns.run(|| TcpStream::connect(to_address)).unwrap().unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let sent = pattern::bytes(0, 24 << 20);
    stream.write_all(&sent).unwrap();
    drop(stream);
    let got = reader.join().unwrap();
    assert!(got == sent, "{} of {} bytes, or others", got.len(), sent.len());
}

fn everything_passes(gates: Offloads, mss: u16) -> (Side, Side) {
    everything_passes_between(tunnel(gates, mss))
}

fn everything_passes_between((a, b): (Side, Side)) -> (Side, Side) {
    datagrams_pass(&a, &b, "10.9.0.2:7000");
    datagrams_pass(&b, &a, "10.9.0.1:7000");
    stream_passes(&a, &b, "10.9.0.2:7000");
    stream_passes(&b, &a, "10.9.0.1:7000");
    for side in [&a, &b] {
        let totals = side.plane.totals();
        let bad = [DropReason::BadTag, DropReason::Replayed, DropReason::SendFailed];
        for reason in bad.into_iter().chain([DropReason::TunRefused, DropReason::TunMalformed]) {
            assert_eq!(totals.dropped(reason), 0, "{reason}");
        }
        assert_eq!(side.plane.failure(), None);
    }
    (a, b)
}

#[test]
fn traffic_passes_with_all_offloads_in_trains() {
    adit_testbed::needs_root!();
    let (a, b) = everything_passes(Offloads::ALL, 1400);
    for side in [&a, &b] {
        let totals = side.plane.totals();
        assert!(totals.sent.buckets[4..].iter().sum::<u64>() > 0, "{:?}", totals.sent);
        assert!(
            totals.tun_written.buckets[4..].iter().sum::<u64>() > 0,
            "{:?}",
            totals.tun_written
        );
    }
}

#[test]
fn datagrams_larger_than_the_path_go_singly_and_gso_stays_on() {
    adit_testbed::needs_root!();
    let (a, _b) = everything_passes(Offloads::ALL, 0);
    assert!(a.plane.totals().offloads.udp_gso);
}

#[test]
fn traffic_passes_without_any_offload() {
    adit_testbed::needs_root!();
    let (a, _b) = everything_passes(Offloads::NONE, 1400);
    let totals = a.plane.totals();
    assert_eq!(totals.sent.batches, totals.sent.packets);
    assert_eq!(totals.offloads, Offloads::NONE);
}

/// Checks that one end has opened, or is about to open, all packets that the other sealed: none was dropped after it
/// was assigned a packet id.
fn nothing_is_missing(a: &Side, b: &Side) {
    let counters = |side: &Side| side.plane.counters(PeerId(7)).unwrap();
    for (from, to) in [(a, b), (b, a)] {
        let end = Wall::now() + PATIENCE;
        while counters(from).tx_packets != counters(to).rx_packets {
            assert!(Wall::now() < end, "{:?} {:?}", counters(from), counters(to));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn traffic_passes_over_a_stream() {
    adit_testbed::needs_root!();
    for gates in [Offloads::ALL, Offloads::NONE] {
        let (a, b) = everything_passes_between(tunnel_over_stream(gates, 1));
        nothing_is_missing(&a, &b);
        assert!(a.plane.totals().received.mean() > 2.0, "frames come in bursts");
        // Only a server drops packets for a slow client; a client stops reading.
        assert_eq!(b.plane.totals().dropped(DropReason::StreamFull), 0);
    }
}

/// Packets that a client cannot send stay in the TUN device, where its queue discipline can act on them.
#[test]
fn a_client_whose_stream_is_full_stops_reading_the_device() {
    adit_testbed::needs_root!();
    let (_a, b) = tunnel(Offloads::ALL, 1400);
    let listener = b.ns.run(|| TcpListener::bind("10.77.0.2:0")).unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let stream = b.ns.run(|| tcp::TcpStream::connect(&tcp::TcpConnectOptions::new(to)));
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let link = Link::stream(9, to);
    b.plane.add_stream(link, stream.unwrap().unwrap(), StreamOptions::default()).unwrap();
    b.introduce(link, 1400, false);
    let sender = b.ns.run(|| StdUdp::bind("0.0.0.0:0")).unwrap().unwrap();
    let sealed = || b.plane.counters(PeerId(7)).unwrap().tx_packets;
    // Far more than the connection's buffers hold: the device drops the rest.
    let end = Wall::now() + PATIENCE;
    let (mut before, mut same) = (u64::MAX, 0);
    while same < 20 {
        assert!(Wall::now() < end, "it is never full");
        for _ in 0..500 {
            sender.send_to(&[7; 1300], "10.9.0.1:7000").unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
        same = if sealed() == before { same + 1 } else { 0 };
        before = sealed();
    }
    let mut ids = 0;
    let mut read_one = || {
        let mut length = [0; 2];
        server.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u16::from_be_bytes(length).into()];
        server.read_exact(&mut frame).unwrap();
        ids += 1;
        assert_eq!(frame[4..8], u32::to_be_bytes(ids), "a gap");
        u64::from(ids)
    };
    // All sealed packets arrive, followed by those that were queued in the device.
    while read_one() < before + 100 {}
    let totals = b.plane.totals();
    let bad = [DropReason::StreamFull, DropReason::SocketFull, DropReason::NoSocket];
    bad.into_iter().for_each(|reason| assert_eq!(totals.dropped(reason), 0, "{reason}"));
    // When the stream ends, the device is read again, because nothing is held back for the stream.
    drop(server);
    let end = Wall::now() + PATIENCE;
    while b.plane.totals().dropped(DropReason::NoSocket) == 0 {
        assert!(Wall::now() < end, "the device is still held");
        let _ = sender.send_to(&[7; 1300], "10.9.0.1:7000");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_workers_share_a_stream() {
    adit_testbed::needs_root!();
    let (a, b) = tunnel_over_stream(Offloads::ALL, 2);
    std::thread::scope(|scope| {
        for port in 7000..7006 {
            let (from, to, host) = if port % 2 == 0 { (&a, &b, 2) } else { (&b, &a, 1) };
            scope.spawn(move || stream_passes(from, to, &format!("10.9.0.{host}:{port}")));
        }
    });
    nothing_is_missing(&a, &b);
}

#[test]
fn a_rekey_under_load_loses_nothing() {
    adit_testbed::needs_root!();
    rekeys_under_load(tunnel(Offloads::ALL, 1400));
}

#[test]
fn a_rekey_under_load_over_a_stream_loses_nothing() {
    adit_testbed::needs_root!();
    let (a, b) = rekeys_under_load(tunnel_over_stream(Offloads::ALL, 1));
    nothing_is_missing(&a, &b);
}

/// Waits until each end has as many packets as the other had sent, or until nothing has arrived for a second, because a datagram was lost.
fn wait_for_arrivals(sent: [u64; 2], a: &Side, b: &Side) {
    let received = || [b, a].map(|side| side.plane.counters(PeerId(7)).unwrap().rx_packets);
    let (mut before, mut last_change) = (received(), Wall::now());
    while before.iter().zip(sent).any(|(received, sent)| *received < sent)
        && last_change.elapsed() < Duration::from_secs(1)
    {
        std::thread::sleep(Duration::from_millis(5));
        let now = received();
        if now != before {
            (before, last_change) = (now, Wall::now());
        }
    }
}

fn rekeys_under_load((a, b): (Side, Side)) -> (Side, Side) {
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| stream_passes(&a, &b, "10.9.0.2:7000"));
        let mut generation = 0;
        while !traffic.is_finished() || generation < 7 {
            generation = generation % 7 + 1;
            for (side, at_server) in [(&a, true), (&b, false)] {
                let key = key(2, generation, at_server);
                side.plane.apply(Command::InstallKey(PeerId(7), KeySlot::Secondary, key));
            }
            a.plane.apply(Command::SwapKeys(PeerId(7)));
            std::thread::sleep(Duration::from_millis(3));
            b.plane.apply(Command::SwapKeys(PeerId(7)));
            // Longer than anything under the old key stays in flight, except on a busy machine.
            let sent = [&a, &b].map(|side| side.plane.counters(PeerId(7)).unwrap().tx_packets);
            std::thread::sleep(Duration::from_millis(300));
            wait_for_arrivals(sent, &a, &b);
        }
    });
    for side in [&a, &b] {
        let totals = side.plane.totals();
        for reason in [DropReason::UnknownKey, DropReason::BadTag, DropReason::Replayed] {
            assert_eq!(totals.dropped(reason), 0, "{reason}");
        }
    }
    (a, b)
}

/// The kernel spreads flows over the queues, so two workers send to one peer. They must send under its lock; otherwise
/// trains overtake each other and the other end's replay window drops them.
#[test]
fn two_workers_keep_the_order_of_packet_ids() {
    adit_testbed::needs_root!();
    let (a, b) = tunnel_with_queues(Offloads::ALL, 1400, 2);
    std::thread::scope(|scope| {
        for port in 7000..7006 {
            let (from, to, host) = if port % 2 == 0 { (&a, &b, 2) } else { (&b, &a, 1) };
            scope.spawn(move || stream_passes(from, to, &format!("10.9.0.{host}:{port}")));
        }
    });
    for side in [&a, &b] {
        let totals = side.plane.totals();
        assert_eq!(totals.dropped(DropReason::Replayed), 0);
        assert_eq!(totals.dropped(DropReason::BadTag), 0);
    }
}

#[test]
fn packets_of_the_transport_that_come_back_are_dropped_and_counted() {
    adit_testbed::needs_root!();
    let (_a, b) = tunnel(Offloads::ALL, 0);
    b.plane.set_own_transport(Some(OwnTransport {
        remote: "10.77.0.1:5000".parse().unwrap(),
        local_port: Some(5000),
        stream: false,
    }));
    // The server's address leads into the tunnel.
    let device = b.tun;
    b.ns.configure(async |net| {
        net.add_route(&Route::dev("10.77.0.1/32".parse().unwrap(), device)).await
    })
    .unwrap()
    .unwrap();
    let before = b.plane.totals().sent.packets;
    let socket = b.ns.run(|| StdUdp::bind("10.9.0.2:0")).unwrap().unwrap();
    const DATAGRAMS: u64 = 5;
    for sent in 1..=DATAGRAMS {
        socket.send_to(b"out", "10.9.0.1:9").unwrap();
        let end = Wall::now() + PATIENCE;
        while b.plane.totals().dropped(DropReason::Recursive) < sent {
            assert!(Wall::now() < end, "not dropped: {:?}", b.plane.totals().drops);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // No packet was sealed again: each datagram left once.
    let totals = b.plane.totals();
    assert_eq!(totals.sent.packets - before, totals.dropped(DropReason::Recursive));
}

#[test]
fn fragments_of_other_traffic_to_the_server_pass() {
    adit_testbed::needs_root!();
    let (a, b) = tunnel(Offloads::ALL, 1400);
    b.plane.set_own_transport(Some(OwnTransport {
        remote: "10.9.0.1:5000".parse().unwrap(),
        local_port: Some(5000),
        stream: false,
    }));
    datagrams_pass(&b, &a, "10.9.0.1:7000");
    assert_eq!(b.plane.totals().dropped(DropReason::Recursive), 0);
}

#[test]
fn a_removed_device_is_reported() {
    adit_testbed::needs_root!();
    let (a, _b) = tunnel(Offloads::ALL, 1400);
    assert_eq!(a.plane.failure(), None);
    let index = a.tun;
    a.ns.configure(async |net| net.delete_link(index).await).unwrap().unwrap();
    let end = Wall::now() + PATIENCE;
    while a.plane.failure() != Some(Failure::TunGone) {
        assert!(Wall::now() < end, "it was not noticed");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The peers of a relay: the server and its client.
const ENDS: [PeerId; 2] = [PeerId(1), PeerId(2)];

/// Creates two ends whose only path to each other is a relay between them. With `stream`, the relay reaches the client over
/// TCP.
fn through_a_relay(
    gates: Offloads,
    stream: bool,
    fragmentation: Fragmentation,
) -> (Side, Plane, NetNs, Side) {
    let [a, relay, b] = [(); 3].map(|()| NetNs::unnamed().unwrap());
    for (ns, cable, n) in [(&a, "left", 1), (&b, "right", 2)] {
        relay.connect(cable, ns, "cable").unwrap();
        let near = format!("10.77.0.{n}/24").parse().unwrap();
        let added = ns.configure(async |net| {
            let index = net.link("cable").await?.index;
            net.add_address(&Address::new(index, near)).await
        });
        added.unwrap().unwrap();
        let local = format!("10.77.0.{}/32", 10 + n).parse().unwrap();
        let added = relay.configure(async |net| {
            let link = net.link(cable).await?.index;
            let remote = Some([10, 77, 0, n].into());
            net.add_address(&Address { link, local, remote }).await
        });
        added.unwrap().unwrap();
    }
    let any = UdpOptions {
        gro: gates.udp_gro,
        fragmentation,
        ..UdpOptions::new("0.0.0.0:5000".parse().unwrap())
    };
    let config = PlaneConfig {
        tun: None,
        sockets: vec![(
            SocketId(0),
            Arc::new(relay.run(|| UdpSocket::bind(&any)).unwrap().unwrap()),
        )],
        relay: Relay::Kernel,
        gates,
        client: false,
        ethernet: false,
    };
    let (plane, _upcalls) = Plane::start(config, boot_clock).unwrap();
    let sides = [side(a, 1, gates, 1300, 1), side(b, 2, gates, 1300, 1)];
    for (side, n) in sides.iter().zip(1u8..) {
        let near = SocketAddr::from(([10, 77, 0, n], 5000));
        let far = SocketAddr::from(([10, 77, 0, 10 + n], 5000));
        let mut links =
            (Link::datagram(SocketId(0), None, near), Link::datagram(SocketId(0), None, far));
        if stream && n == 2 {
            let (here, there) = connected(&relay, [10, 77, 0, 12], &side.ns);
            links = (Link::stream(5, near), Link::stream(5, far));
            plane.add_stream(links.0, here, StreamOptions::default()).unwrap();
            side.plane.add_stream(links.1, there, StreamOptions::default()).unwrap();
        }
        plane.apply(Command::AddPeer(
            PeerId(n.into()),
            PeerSpec { float: Float::Refuse, ..spec(links.0) },
        ));
        let float = if stream { Float::Accept } else { Float::Follow };
        side.introduce_as(float, links.1, 1300, n == 1);
    }
    for (from, to) in [(ENDS[0], ENDS[1]), (ENDS[1], ENDS[0])] {
        let id = SpliceId { from, label: SpliceLabel::PeerId(7) };
        plane.apply(Command::AddSplice(Splice::new(id, to)));
    }
    let [a, b] = sides;
    (a, plane, relay, b)
}

fn passes_both_ways(a: &Side, b: &Side) {
    datagrams_pass(a, b, "10.9.0.2:7000");
    stream_passes(b, a, "10.9.0.1:7000");
    for side in [a, b] {
        assert_eq!(side.plane.totals().dropped(DropReason::BadTag), 0);
    }
}

#[test]
fn a_relay_forwards_trains_as_trains() {
    adit_testbed::needs_root!();
    let (a, relay, _ns, b) = through_a_relay(Offloads::ALL, false, Fragmentation::Allowed);
    passes_both_ways(&a, &b);
    let totals = relay.totals();
    assert!(totals.spliced.buckets[4..].iter().sum::<u64>() > 0, "{:?}", totals.spliced);
    assert_eq!(totals.sent.packets, 0, "it sealed nothing");
}

#[test]
fn a_relay_joins_packets_that_arrive_one_by_one() {
    adit_testbed::needs_root!();
    let gates = Offloads { udp_gro: false, ..Offloads::ALL };
    let (a, relay, _ns, b) = through_a_relay(gates, false, Fragmentation::Allowed);
    passes_both_ways(&a, &b);
    let totals = relay.totals();
    assert!(totals.spliced.buckets[4..].iter().sum::<u64>() > 0, "{:?}", totals.spliced);
}

#[test]
fn a_relay_without_offloads_forwards_packet_by_packet() {
    adit_testbed::needs_root!();
    let (a, relay, _ns, b) = through_a_relay(Offloads::NONE, false, Fragmentation::Allowed);
    passes_both_ways(&a, &b);
    let totals = relay.totals();
    assert_eq!(totals.spliced.batches, totals.spliced.packets);
}

#[test]
fn a_relay_reaches_an_end_over_a_stream() {
    adit_testbed::needs_root!();
    let (a, relay, _ns, mut b) = through_a_relay(Offloads::ALL, true, Fragmentation::Allowed);
    passes_both_ways(&a, &b);
    assert!(relay.totals().spliced.packets > 0);
    // Probes of the path MTU reach the other end over the stream and the datagrams behind it.
    b.plane.apply(Command::ProbePath(PeerId(7), 1450));
    let end = Wall::now() + PATIENCE;
    let mut received = 0;
    while received < 1450 - 28 {
        assert!(Wall::now() < end, "the longest that arrived: {received}");
        std::thread::sleep(Duration::from_millis(1));
        b.upcalls.drain(|upcall| {
            if let Upcall::Notice(Notice::InBand(_, message)) = upcall {
                let sizes = &message[message.len() - 4..];
                received = u16::from_be_bytes([sizes[0], sizes[1]]);
            }
        });
    }
}

#[test]
fn a_relay_drops_what_the_next_path_cannot_carry_in_one_piece() {
    adit_testbed::needs_root!();
    let (a, relay, ns, b) = through_a_relay(Offloads::ALL, false, Fragmentation::Forbidden);
    let narrow = ns.configure(async |net| net.set_mtu(net.link("right").await?.index, 1000).await);
    narrow.unwrap().unwrap();
    let receiver = b.ns.run(|| StdUdp::bind("10.9.0.2:7000")).unwrap().unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = a.ns.run(|| StdUdp::bind("0.0.0.0:0")).unwrap().unwrap();
    let mut buffer = [0; 2000];
    for size in [1200, 800] {
        sender.send_to(&vec![1; size], "10.9.0.2:7000").unwrap();
    }
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 800);
    let totals = relay.totals();
    assert_eq!(totals.dropped(DropReason::RelayTooLong), 1);
}
