//! Two planes with TUN devices in two namespaces joined by a cable with an MTU of 1500. Needs root.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket as StdUdp};
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use adit_engine::verbs::{InnerMtu, KeySlot, PeerSpec};
use adit_engine::{Instant, Link, Op, PeerId, SocketId};
use adit_linux::net::Address;
use adit_linux::netns::NetNs;
use adit_linux::tun::{TunDevice, TunOffloads, TunOptions};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_plane::{DropReason, Failure, Offloads, Plane, PlaneConfig, Relay, Upcalls};
use common::{key, spec};

const PATIENCE: Duration = Duration::from_secs(60);

fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

struct Side {
    ns: NetNs,
    plane: Plane,
    _upcalls: Upcalls,
    tun: u32,
}

/// Side `n` has 10.77.0.n outside and 10.9.0.n inside; the first is the server.
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
    let mtu = InnerMtu { mss4: mss, mss6: mss, largest: 0 };
    plane.apply(Op::AddPeer(PeerId(7), PeerSpec { wire_id: Some(7), mtu, ..spec(link) }));
    plane.apply(Op::InstallKey(PeerId(7), KeySlot::Primary, key(2, 0, n == 1)));
    plane.apply(Op::SetRoutes(PeerId(7), vec!["0.0.0.0/0".parse().unwrap()]));
    Side { ns, plane, _upcalls: upcalls, tun: index }
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

/// Datagrams that fit, that fit only inside, and that are fragmented inside too.
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

/// A stream whose every byte is checked.
fn stream_passes(from: &Side, to: &Side, to_address: &str) {
    let pattern = |at: usize| (at % 251) as u8;
    let listener = to.ns.run(|| TcpListener::bind(to_address)).unwrap().unwrap();
    let total = 24 << 20;
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let mut stream = from.ns.run(|| TcpStream::connect(to_address)).unwrap().unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let sent: Vec<u8> = (0..total).map(pattern).collect();
    stream.write_all(&sent).unwrap();
    drop(stream);
    let got = reader.join().unwrap();
    assert!(got == sent, "{} of {} bytes, or others", got.len(), sent.len());
}

fn everything_passes(gates: Offloads, mss: u16) -> (Side, Side) {
    let (a, b) = tunnel(gates, mss);
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
    let (a, _b) = everything_passes(Offloads::ALL, 0);
    assert!(a.plane.totals().offloads.udp_gso);
}

#[test]
fn traffic_passes_without_any_offload() {
    let (a, _b) = everything_passes(Offloads::NONE, 1400);
    let totals = a.plane.totals();
    assert_eq!(totals.sent.batches, totals.sent.packets);
    assert_eq!(totals.offloads, Offloads::NONE);
}

#[test]
fn a_rekey_under_load_loses_nothing() {
    let (a, b) = tunnel(Offloads::ALL, 1400);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| stream_passes(&a, &b, "10.9.0.2:7000"));
        let mut generation = 0;
        while !traffic.is_finished() || generation < 7 {
            generation = generation % 7 + 1;
            for (side, at_server) in [(&a, true), (&b, false)] {
                let key = key(2, generation, at_server);
                side.plane.apply(Op::InstallKey(PeerId(7), KeySlot::Secondary, key));
            }
            a.plane.apply(Op::SwapKeys(PeerId(7)));
            std::thread::sleep(Duration::from_millis(3));
            b.plane.apply(Op::SwapKeys(PeerId(7)));
            // Longer than anything under the old key is on its way.
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    for side in [&a, &b] {
        let totals = side.plane.totals();
        for reason in [DropReason::UnknownKey, DropReason::BadTag, DropReason::Replayed] {
            assert_eq!(totals.dropped(reason), 0, "{reason}");
        }
    }
}

/// The kernel spreads flows over the queues, so two workers send to one peer: under its lock, or
/// trains overtake each other and the other end's replay window drops them.
#[test]
fn two_workers_keep_the_order_of_packet_ids() {
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
fn a_removed_device_is_reported() {
    let (a, _b) = tunnel(Offloads::ALL, 1400);
    assert_eq!(a.plane.failure(), None);
    let index = a.tun;
    a.ns.configure(async |net| net.delete_link(index).await).unwrap().unwrap();
    let end = Wall::now() + PATIENCE;
    while a.plane.failure() != Some(Failure::TunGone) {
        assert!(Wall::now() < end, "nobody noticed");
        std::thread::sleep(Duration::from_millis(10));
    }
}
