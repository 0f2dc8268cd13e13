//! Planes with TAP devices in namespaces, joined as a switch: a server and two clients. Needs root.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket as StdUdp};
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use adit_dataplane::{DropReason, Offloads, OwnTransport, PlaneConfig, Relay};
use adit_engine::command::KeySlot;
use adit_engine::{Instant, Link, PeerId, SocketId};
use adit_linux::net::Address;
use adit_linux::netns::NetNs;
use adit_linux::tun::{TunDevice, TunMode, TunOptions};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_openvpn::data_format::{Command, PeerSpec};
use adit_openvpn_data::{Plane, Upcalls};
use adit_testbed::pattern;

use crate::common::{key, layout, spec};

const PATIENCE: Duration = Duration::from_secs(30);

fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

struct Side {
    ns: NetNs,
    plane: Plane,
    _upcalls: Upcalls,
}

fn address(ns: &NetNs, device: &str, address: &str) {
    let address = address.parse().unwrap();
    let added = ns.configure(async |net| {
        let index = net.link(device).await?.index;
        net.set_up(index).await?;
        net.add_address(&Address::new(index, address)).await
    });
    added.unwrap().unwrap();
}

/// Creates side `n` with 10.9.0.n inside. Side 1 is the server, connected to client `n` by a veth
/// pair from 10.77.n.1 to 10.77.n.2.
fn side(ns: NetNs, n: u8, relay: Relay, clock: fn() -> Instant) -> Side {
    let options =
        TunOptions { name: Some("inside".into()), mode: TunMode::Tap, ..TunOptions::default() };
    let tun = ns.run(|| TunDevice::open(&options)).unwrap().unwrap();
    address(&ns, "inside", &format!("10.9.0.{n}/24"));
    let outside = SocketAddr::from(([0, 0, 0, 0], 5000));
    let socket = Arc::new(ns.run(|| UdpSocket::bind(&UdpOptions::new(outside))).unwrap().unwrap());
    let config = PlaneConfig {
        tun: Some(tun),
        sockets: vec![(SocketId(0), socket)],
        relay,
        gates: Offloads::ALL,
        client: n != 1,
        ethernet: true,
    };
    let (plane, upcalls) = Plane::start(config, clock).unwrap();
    Side { ns, plane, _upcalls: upcalls }
}

fn introduce(side: &Side, peer: u8, remote: [u8; 4], at_server: bool) {
    let link = Link::datagram(SocketId(0), None, (remote, 5000).into());
    let id = PeerId(u32::from(peer));
    side.plane.apply(Command::AddPeer(id, PeerSpec { layout: layout(id.0), ..spec(link) }));
    side.plane.apply(Command::InstallKey(id, KeySlot::Primary, key(peer, 0, at_server)));
}

fn world(relay: Relay, clock: fn() -> Instant) -> [Side; 3] {
    let [server, a, b] = std::array::from_fn(|_| NetNs::unnamed().unwrap());
    for (ns, n) in [(&a, 2u8), (&b, 3)] {
        server.connect(&format!("to{n}"), ns, "cable").unwrap();
        address(&server, &format!("to{n}"), &format!("10.77.{n}.1/24"));
        address(ns, "cable", &format!("10.77.{n}.2/24"));
    }
    let sides = [
        side(server, 1, relay, clock),
        side(a, 2, Relay::Kernel, clock),
        side(b, 3, Relay::Kernel, clock),
    ];
    for n in [2u8, 3] {
        introduce(&sides[0], n, [10, 77, n, 2], true);
        introduce(&sides[usize::from(n) - 1], n, [10, 77, n, 1], false);
    }
    sides
}

/// Sends ARP, which is broadcast, and then a byte stream that is checked completely.
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
    let sent = pattern::bytes(0, 2 << 20);
    stream.write_all(&sent).unwrap();
    drop(stream);
    let got = reader.join().unwrap();
    assert!(got == sent, "{} of {} bytes, or others", got.len(), sent.len());
}

/// Sends to the broadcast address until all of these have received it.
fn all_hear(from: &Side, to: &[&Side], n: u8) {
    let address = format!("10.9.0.255:60{n}0");
    let listeners: Vec<StdUdp> =
        to.iter().map(|side| side.ns.run(|| StdUdp::bind(&address)).unwrap().unwrap()).collect();
    let sender = from.ns.run(|| StdUdp::bind("0.0.0.0:0")).unwrap().unwrap();
    sender.set_broadcast(true).unwrap();
    let mut buffer = vec![0; 3000];
    for size in [10, 1400, 2500] {
        for listener in &listeners {
            listener.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let end = Wall::now() + PATIENCE;
            loop {
                sender.send_to(&vec![n; size], &address).unwrap();
                // Copies of earlier datagrams may still be queued.
                if listener.recv(&mut buffer).is_ok_and(|len| buffer[..len] == vec![n; size]) {
                    break;
                }
                assert!(Wall::now() < end, "{size} bytes for all never came");
            }
        }
    }
}

#[test]
fn frames_of_the_transport_that_come_back_are_dropped() {
    adit_testbed::needs_root!();
    let [server, client, _other] = &world(Relay::Direct, boot_clock);
    let listener = server.ns.run(|| StdUdp::bind("10.9.0.1:1194")).unwrap().unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let [own, foreign] = [7777, 7778]
        .map(|port| client.ns.run(|| StdUdp::bind(("10.9.0.2", port))).unwrap().unwrap());
    client.plane.set_own_transport(Some(OwnTransport {
        remote: "10.9.0.1:1194".parse().unwrap(),
        local_port: Some(7777),
        stream: false,
    }));
    let end = Wall::now() + PATIENCE;
    while client.plane.totals().dropped(DropReason::Recursive) == 0 {
        own.send_to(b"own", "10.9.0.1:1194").unwrap();
        assert!(Wall::now() < end, "not dropped: {:?}", client.plane.totals().drops);
        std::thread::sleep(Duration::from_millis(5));
    }
    foreign.send_to(b"foreign", "10.9.0.1:1194").unwrap();
    let mut buffer = [0; 16];
    let len = listener.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..len], *b"foreign");
}

#[test]
fn a_server_and_its_clients_are_one_network() {
    adit_testbed::needs_root!();
    let [server, a, b] = &world(Relay::Direct, boot_clock);
    for (n, from, to) in [(1, server, [a, b]), (2, a, [server, b]), (3, b, [server, a])] {
        all_hear(from, &to, n);
    }
    stream_passes(a, server, "10.9.0.1:7000");
    stream_passes(server, b, "10.9.0.3:7000");
    stream_passes(a, b, "10.9.0.3:7001");
    stream_passes(b, a, "10.9.0.2:7001");
    for side in [server, a, b] {
        let totals = side.plane.totals();
        let bad = [DropReason::BadTag, DropReason::Replayed, DropReason::NotEthernet];
        let more = [DropReason::TunRefused, DropReason::TunMalformed, DropReason::FloodLimited];
        for reason in bad.into_iter().chain(more) {
            assert_eq!(totals.dropped(reason), 0, "{reason}");
        }
        assert!(totals.tun_written.mean() > 1.2, "merged: {:?}", totals.tun_written);
    }
    let macs = server.plane.mac_totals().unwrap();
    assert_eq!((macs.known, macs.moved), (2, 0));
}

/// With a clock that does not advance, one peer may never cause more copies than the limit for one
/// second.
#[test]
fn a_flood_is_limited_and_counted() {
    adit_testbed::needs_root!();
    const COPIES: u64 = 20_000;
    let [server, a, b] = &world(Relay::Direct, || Instant::from_nanos(1_000_000_000));
    let sender = a.ns.run(|| StdUdp::bind("0.0.0.0:0")).unwrap().unwrap();
    sender.set_broadcast(true).unwrap();
    let end = Wall::now() + 2 * PATIENCE;
    while server.plane.totals().dropped(DropReason::FloodLimited) == 0 {
        for _ in 0..500 {
            let _ = sender.send_to(&[7; 20], "10.9.0.255:9");
        }
        assert!(Wall::now() < end, "{:?}", server.plane.totals());
    }
    let copies = server.plane.counters(PeerId(3)).unwrap().tx_packets;
    // The last burst is sent as a whole.
    assert!((COPIES..COPIES + 4200).contains(&copies), "{copies}");
    // Other peers may still flood.
    all_hear(b, &[a], 3);
}
