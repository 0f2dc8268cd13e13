//! A server with several workers: a socket for each on one port, a queue for each of one device, and clients in memory
//! whose packets cross real sockets. Needs root.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket as StdUdp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant as Wall};

use adit_dataplane::{DropReason, Offloads, PlaneConfig, Relay};
use adit_engine::command::{Keepalive, KeySlot};
use adit_engine::{Instant, Link, PeerId, SocketId};
use adit_linux::net::Address;
use adit_linux::netns::NetNs;
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::tun::{TunDevice, TunOffloads, TunOptions};
use adit_linux::udp::{RecvBatch, UdpOptions, UdpSocket, steer};
use adit_openvpn::data_format::{Command, KeyLimits, Notice, PeerSpec};
use adit_openvpn_data::packet::SENDER;
use adit_openvpn_data::{Plane, Upcall, Upcalls};

use crate::common::{End, key, layout, link, spec};

/// Long enough for the busiest machine; in a passing test it never expires.
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of a client's packets in flight at a time: less than its peer's replay window, so none may be lost in any order of arrival.
const WINDOW: u32 = 32;
/// The ports of the programs on the server's host.
const PORTS: [u16; 4] = [7000, 7001, 7002, 7003];
const ID: SocketId = SocketId(4);

fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

fn outside(port: u16) -> SocketAddr {
    ([10, 77, 0, 1], port).into()
}

/// The server, whose tunnel address is 10.8.0.1, and the clients' namespace.
struct World {
    server: NetNs,
    clients: NetNs,
    plane: Plane,
    upcalls: Upcalls,
}

impl World {
    fn new(workers: usize, relay: Relay) -> Self {
        Self::with(workers, workers, relay, false)
    }

    /// Creates a server; if `steered`, the kernel spreads clients by their peer-ids, otherwise by their addresses.
    fn with(workers: usize, queues: usize, relay: Relay, steered: bool) -> Self {
        let (server, clients) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
        server.connect("cable", &clients, "cable").unwrap();
        for (ns, n) in [(&server, 1), (&clients, 2)] {
            configure(ns, "cable", &format!("10.77.0.{n}/24"));
        }
        let options = TunOptions { queues, ..TunOptions::default() };
        let tun = server.run(|| TunDevice::open(&options)).unwrap().unwrap();
        configure(&server, "tun0", "10.8.0.1/24");
        let sockets = group(&server, 5000, workers, steered);
        let config = PlaneConfig {
            tun: Some(tun),
            sockets: sockets.into_iter().map(|socket| (ID, socket)).collect(),
            relay,
            gates: Offloads::ALL,
            client: false,
            ethernet: false,
        };
        let (plane, upcalls) = Plane::start(config, boot_clock).unwrap();
        assert_eq!(plane.workers(), workers);
        Self { server, clients, plane, upcalls }
    }

    /// Creates client `n` at 10.8.0.n, with this many sockets to move between.
    fn client(&self, n: u8, sockets: usize) -> Client {
        let id = PeerId(u32::from(n));
        let bind = || UdpSocket::bind(&UdpOptions::new(([10, 77, 0, 2], 0).into())).unwrap();
        let sockets: Vec<_> = (0..sockets).map(|_| self.clients.run(bind).unwrap()).collect();
        let at = Link::datagram(ID, None, sockets[0].local_addr());
        let wire_id = Some(id.0);
        self.plane.apply(Command::AddPeer(id, PeerSpec { layout: layout(wire_id), ..spec(at) }));
        self.plane.apply(Command::SetRoutes(id, vec![format!("10.8.0.{n}/32").parse().unwrap()]));
        self.plane.apply(Command::InstallKey(id, KeySlot::Primary, key(n, 0, true)));
        let end = End::new(Relay::Kernel, true);
        end.apply(Command::AddPeer(
            PeerId(0),
            PeerSpec { layout: layout(wire_id), ..spec(link(200, 1194)) },
        ));
        end.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
        end.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(n, 0, false)));
        let poller = Poller::new().unwrap();
        for (token, socket) in (0..).zip(&sockets) {
            poller.add(socket, token, Interest::READ).unwrap();
        }
        let batch = RecvBatch::new(64);
        Client { n, end, sockets, at: 0, generation: 0, poller, batch, received: Vec::new() }
    }

    /// Checks that this many packets were received from a client and sent to it. A packet is counted after it was sent,
    /// so the client may receive it earlier.
    fn counted(&self, n: u8, packets: u64) {
        let end = Wall::now() + PATIENCE;
        loop {
            let counters = self.plane.counters(PeerId(u32::from(n))).unwrap();
            let both = (counters.rx_packets, counters.tx_packets);
            if both == (packets, packets) {
                return;
            }
            assert!(Wall::now() < end && both.1 <= packets, "{both:?} instead of {packets}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.plane.totals().dropped(reason)
    }
}

fn configure(ns: &NetNs, device: &str, address: &str) {
    let address = address.parse().unwrap();
    let done = ns.configure(async |net| {
        let index = net.link(device).await?.index;
        net.add_address(&Address::new(index, address)).await?;
        net.set_up(index).await
    });
    done.unwrap().unwrap();
}

fn group(ns: &NetNs, port: u16, workers: usize, steered: bool) -> Vec<Arc<UdpSocket>> {
    let bind = || UdpSocket::bind_group(&UdpOptions::new(outside(port)), workers).unwrap();
    let group = ns.run(bind).unwrap();
    if steered {
        steer(&group, &SENDER).unwrap();
    }
    group.into_iter().map(Arc::new).collect()
}

/// Sends from one socket at a time, receives from all.
struct Client {
    n: u8,
    end: End,
    sockets: Vec<UdpSocket>,
    at: usize,
    generation: u8,
    poller: Poller,
    batch: RecvBatch,
    /// The flow of each packet, and its number.
    received: Vec<(Flow, u32)>,
}

/// The last byte of the source address, and the source port, inside the tunnel.
type Flow = (u8, u16);

impl Client {
    fn send(&mut self, to: u8, port: u16, number: u32) {
        for datagram in self.end.seal(&inner(self.n, to, port, number)) {
            self.sockets[self.at].send_to(outside(5000), None, &datagram).unwrap();
        }
    }

    /// Waits until this many packets have arrived in total.
    fn wait_for(&mut self, count: usize) {
        self.wait_until(|received| received.len() >= count);
    }

    fn wait_until(&mut self, done: impl Fn(&[(Flow, u32)]) -> bool) {
        let (end, mut events) = (Wall::now() + PATIENCE, Events::new());
        while !done(&self.received) {
            assert!(Wall::now() < end, "client {} has got {}", self.n, self.received.len());
            self.poller.wait(&mut events, Some(Duration::from_millis(100))).unwrap();
            self.take();
        }
    }

    fn take(&mut self) {
        for socket in &self.sockets {
            while socket.recv_burst(&mut self.batch).is_ok() {
                for got in self.batch.datagrams_mut() {
                    let (packets, _) = self.end.open_buffer(link(200, 1194), got.segment, got.data);
                    for packet in &packets {
                        assert_eq!(packet[19], self.n, "another client's");
                        self.received.push(parse(packet));
                    }
                }
            }
        }
    }

    /// Installs a new key at both ends; packets in flight under the previous key are still opened.
    fn rekey(&mut self, plane: &Plane) {
        self.generation = self.generation % 7 + 1;
        let (id, slot) = (PeerId(u32::from(self.n)), KeySlot::Secondary);
        plane.apply(Command::InstallKey(id, slot, key(self.n, self.generation, true)));
        self.end.apply(Command::InstallKey(PeerId(0), slot, key(self.n, self.generation, false)));
        self.end.apply(Command::SwapKeys(PeerId(0)));
        plane.apply(Command::SwapKeys(id));
    }

    /// Checks that no packet was refused and that each flow delivered every number from 0 on exactly once; in order, if
    /// requested.
    fn check(&mut self, in_order: bool) {
        self.take();
        for reason in [DropReason::Replayed, DropReason::BadTag, DropReason::UnknownKey] {
            assert_eq!(self.end.dropped(reason), 0, "client {}: {reason}", self.n);
        }
        check_numbers(&self.received, in_order);
    }
}

fn check_numbers(received: &[(Flow, u32)], in_order: bool) {
    let mut flows = BTreeMap::<Flow, Vec<u32>>::new();
    received.iter().for_each(|(flow, number)| flows.entry(*flow).or_default().push(*number));
    for (flow, mut numbers) in flows {
        if !in_order {
            numbers.sort_unstable();
        }
        let wanted: Vec<u32> = (0..).take(numbers.len()).collect();
        assert_eq!(numbers, wanted, "{flow:?}");
    }
}

/// Returns a UDP packet, source port 9000, that carries a number.
fn inner(from: u8, to: u8, port: u16, number: u32) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 132, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend([10, 8, 0, from, 10, 8, 0, to]);
    let words = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    packet.extend(9000u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0, 112, 0, 0]);
    packet.extend(number.to_be_bytes());
    packet.resize(132, 0x61);
    packet
}

fn parse(packet: &[u8]) -> (Flow, u32) {
    assert_eq!((packet[9], packet.len()), (17, 132));
    let port = u16::from_be_bytes([packet[20], packet[21]]);
    ((packet[15], port), u32::from_be_bytes(packet[28..32].try_into().unwrap()))
}

/// Runs echo programs on the server's host. At the end they report the packets that they received.
fn echo(socket: &StdUdp, stop: &AtomicBool) -> Vec<(Flow, u32)> {
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (mut received, mut buffer) = (Vec::new(), [0; 200]);
    while !stop.load(Ordering::Acquire) {
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        let SocketAddr::V4(address) = from else { panic!("{from}") };
        let number = u32::from_be_bytes(buffer[..4].try_into().unwrap());
        received.push(((address.ip().octets()[3], from.port()), number));
        socket.send_to(&buffer[..len], from).unwrap();
    }
    received
}

/// Runs eight clients that send windows of packets to four programs and receive all of them back; the caller may do
/// anything in the middle of each window.
fn echoes(
    workers: usize,
    windows: u32,
    in_order: bool,
    meanwhile: impl Fn(&World, &mut Client, u32) + Sync,
) -> World {
    let world = World::new(workers, Relay::Kernel);
    let sockets = PORTS.map(|port| world.server.run(|| StdUdp::bind(("10.8.0.1", port)).unwrap()));
    let sockets = sockets.map(Result::unwrap);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echoes: Vec<_> =
            sockets.iter().map(|socket| scope.spawn(|| echo(socket, &stop))).collect();
        let clients: Vec<_> = (2..10)
            .map(|n| {
                let (world, meanwhile) = (&world, &meanwhile);
                scope.spawn(move || {
                    let mut client = world.client(n, 5);
                    for window in 0..windows {
                        for i in 0..WINDOW {
                            if i == WINDOW / 2 {
                                meanwhile(world, &mut client, window);
                            }
                            let flow = i as usize % PORTS.len();
                            let number = window * (WINDOW / 4) + i / 4;
                            client.send(1, PORTS[flow], number);
                            // The kernel passes a flow's answers to the queue that its hash selects until a worker has
                            // written a packet of the flow, and to that worker's queue from then on. Packets sent
                            // immediately after the first can therefore overtake the answer to it.
                            if in_order && window == 0 && i as usize + 1 == PORTS.len() {
                                client.wait_for(PORTS.len());
                            }
                        }
                        client.wait_for(((window + 1) * WINDOW) as usize);
                    }
                    client.check(in_order);
                    world.counted(n, u64::from(windows * WINDOW));
                })
            })
            .collect();
        let clients: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        stop.store(true, Ordering::Release);
        clients.into_iter().for_each(|client| client.unwrap());
        for echo in echoes {
            let received = echo.join().unwrap();
            assert_eq!(received.len() as u32, windows * WINDOW / 4 * 8);
            check_numbers(&received, in_order);
        }
    });
    let bad = [DropReason::Replayed, DropReason::BadTag, DropReason::UnknownKey];
    let bad = bad.into_iter().chain([DropReason::SendFailed, DropReason::TunRefused]);
    bad.for_each(|reason| assert_eq!(world.dropped(reason), 0, "{reason}"));
    assert_eq!(world.plane.failure(), None);
    world
}

#[test]
fn each_packet_arrives_once_and_in_order() {
    adit_testbed::needs_root!();
    for workers in [2, 3, 4] {
        let world = echoes(workers, 30, true, |_, _, _| {});
        assert_eq!(world.plane.totals().offloads, Offloads::ALL);
    }
}

/// A client's new port belongs to another worker: its packets, and the answers, continue without loss.
#[test]
fn peers_float_between_workers_while_traffic_runs() {
    adit_testbed::needs_root!();
    let mut world = echoes(4, 40, false, |world, client, _| {
        client.at = (client.at + 1) % client.sockets.len();
        let id = PeerId(u32::from(client.n));
        assert!(world.plane.link(id).is_some());
    });
    let mut moves = Vec::new();
    world.upcalls.drain(|upcall| {
        if let Upcall::Notice(Notice::Floated(peer, link)) = upcall {
            moves.push((peer, Some(link)));
        }
    });
    assert_eq!(moves.len(), 8, "of each client's moves the last was told");
    moves.iter().for_each(|(peer, link)| assert_eq!(world.plane.link(*peer), *link));
}

#[test]
fn keys_change_while_all_workers_run() {
    adit_testbed::needs_root!();
    echoes(3, 40, true, |world, client, _| client.rekey(&world.plane));
    echoes(4, 40, false, |world, client, window| {
        client.rekey(&world.plane);
        client.at = (window as usize / 2) % client.sockets.len();
    });
}

/// Workers relay between the same two peers in opposite directions at the same time.
#[test]
fn clients_reach_each_other_across_workers_in_both_directions() {
    adit_testbed::needs_root!();
    let world = World::new(4, Relay::Direct);
    let mut clients: Vec<_> = (2..10).map(|n| world.client(n, 1)).collect();
    let windows = 60;
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(move || {
                for window in 0..windows {
                    for i in 0..WINDOW {
                        client.send(client.n ^ 1, 1, window * WINDOW + i);
                    }
                    client.wait_for(((window + 1) * WINDOW) as usize);
                }
                // The senders' threads move between CPUs, so packets in flight overtake each other there, but not so
                // far that a replay window refuses them; see below.
                client.check(false);
            });
        }
    });
    for client in &clients {
        world.counted(client.n, u64::from(windows * WINDOW));
    }
    assert_eq!(world.dropped(DropReason::Replayed), 0);
}

/// Many flows to one client. The kernel spreads them over the queues, so all workers send to it. If a worker's trains
/// overtook another's, the latter would be refused as too old. A notice that is sent once per key is reported once,
/// whichever worker notices the event.
#[test]
fn all_workers_send_to_one_peer_in_the_order_of_its_packet_ids() {
    adit_testbed::needs_root!();
    let mut world = World::new(4, Relay::Kernel);
    let mut client = world.client(2, 1);
    let mut limited = key(2, 1, true);
    limited.limits = KeyLimits { packets: 1000, ..KeyLimits::default() };
    world.plane.apply(Command::InstallKey(PeerId(2), KeySlot::Primary, limited));
    client.end.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(2, 1, false)));
    let (rounds, each, senders) = (20u32, 25, 16);
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..senders {
            let bind = || StdUdp::bind("10.8.0.1:0").unwrap();
            let (socket, arrived) = (world.server.run(bind).unwrap(), &arrived);
            scope.spawn(move || {
                let end = Wall::now() + PATIENCE;
                for round in 0..rounds {
                    for i in 0..each {
                        let mut payload = [0x61; 104];
                        payload[..4].copy_from_slice(&(round * each + i).to_be_bytes());
                        socket.send_to(&payload, "10.8.0.2:9").unwrap();
                    }
                    // The device's queue must never be full, or packets would be lost.
                    while arrived.load(Ordering::Acquire) < ((round + 1) * each * senders) as usize
                    {
                        assert!(Wall::now() < end, "round {round}");
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        for round in 1..=rounds {
            client.wait_for((round * each * senders) as usize);
            arrived.store(client.received.len(), Ordering::Release);
        }
    });
    client.check(true);
    let mut near = Vec::new();
    world.upcalls.drain(|upcall| {
        if let Upcall::Notice(Notice::KeyNearLimit(peer, key)) = upcall {
            near.push((peer, key));
        }
    });
    assert_eq!(near, [(PeerId(2), 1)]);
}

/// Pairs of clients connect, exchange packets with each other and with programs on the server's host, change address
/// and key meanwhile, and disconnect, while the other pairs are at other stages. No packet is lost, duplicated or
/// delivered for another peer, and the counters, of each client and of all workers together, are exact.
#[test]
fn clients_come_move_and_go_while_all_talk_across_workers() {
    adit_testbed::needs_root!();
    const LIVES: u32 = 3;
    const WINDOWS: u32 = 12;
    for (queues, steered) in [(8, true), (2, false)] {
        let mut world = World::with(8, queues, Relay::Direct, steered);
        let sockets =
            PORTS.map(|port| world.server.run(|| StdUdp::bind(("10.8.0.1", port)).unwrap()));
        let sockets = sockets.map(Result::unwrap);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            sockets.iter().for_each(|socket| drop(scope.spawn(|| echo(socket, &stop))));
            let pairs = [2, 4, 6, 8].map(|first| (first, Arc::new(Meeting::default())));
            let halves = pairs.iter().flat_map(|(first, both)| [(*first, both), (first + 1, both)]);
            let clients: Vec<_> = halves
                .map(|(n, both)| {
                    let (world, both) = (&world, Arc::clone(both));
                    scope.spawn(move || {
                        (0..LIVES).for_each(|_| live(world, n, WINDOWS, &both));
                    })
                })
                .collect();
            let clients: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
            stop.store(true, Ordering::Release);
            clients.into_iter().for_each(|client| client.unwrap());
        });
        let (mut gone, mut moves) = (0, 0);
        let mut count = |upcall| match upcall {
            Upcall::Notice(Notice::PeerGone(id, counters)) => {
                let both = u64::from(WINDOWS * WINDOW);
                assert_eq!((counters.rx_packets, counters.tx_packets), (both, both), "{id:?}");
                gone += 1;
            }
            Upcall::Notice(Notice::Floated(..)) => moves += 1,
            _ => {}
        };
        while world.upcalls.drain_silently(&mut count) {}
        assert_eq!((gone, moves), (8 * LIVES, 8 * LIVES), "of each life the last move");
        let totals = world.plane.totals();
        let all = u64::from(8 * LIVES * WINDOWS * WINDOW);
        assert_eq!((totals.received.packets, totals.sent.packets), (all, all));
        // Packets from the host itself to its neighbours have no peer.
        let expected = [DropReason::LocalScope, DropReason::NoRoute];
        let others = |(why, count): &&(_, u64)| *count > 0 && !expected.contains(why);
        let drops = totals.drops.iter().filter(others).collect::<Vec<_>>();
        assert!(drops.is_empty(), "{drops:?}");
        assert_eq!(world.plane.failure(), None);
    }
}

/// A point at which two threads wait for each other, with a time limit.
#[derive(Default)]
struct Meeting(AtomicUsize);

impl Meeting {
    fn wait(&self) {
        let arrived = self.0.fetch_add(1, Ordering::AcqRel) + 1;
        let end = Wall::now() + PATIENCE;
        while self.0.load(Ordering::Acquire) < arrived.next_multiple_of(2) {
            assert!(Wall::now() < end, "the other never came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reports dropped packets when a test fails.
struct DropReport<'w>(&'w World);

impl Drop for DropReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let drops = self.0.plane.totals().drops.into_iter();
            eprintln!("dropped: {:?}", drops.filter(|(_, count)| *count > 0).collect::<Vec<_>>());
        }
    }
}

/// Runs a client from connect to disconnect, together with another client that does the same.
fn live(world: &World, n: u8, windows: u32, both: &Meeting) {
    let _inquest = DropReport(world);
    let mut client = world.client(n, 5);
    both.wait();
    for window in 0..windows {
        for i in 0..WINDOW {
            if i == WINDOW / 2 {
                client.at = (client.at + 1) % client.sockets.len();
                client.rekey(&world.plane);
            }
            let (half, number) = (i / 2, window * (WINDOW / 2));
            match i % 2 {
                0 => client.send(n ^ 1, 1, number + half),
                _ => {
                    let flow = half as usize % PORTS.len();
                    client.send(1, PORTS[flow], window * (WINDOW / 8) + half / 4);
                }
            }
        }
        let half = ((window + 1) * WINDOW / 2) as usize;
        client.wait_until(|received| {
            let others = received.iter().filter(|((from, _), _)| *from == n ^ 1).count();
            others >= half && received.len() - others >= half
        });
    }
    client.check(false);
    world.counted(n, u64::from(windows * WINDOW));
    both.wait();
    world.plane.apply(Command::DelPeer(PeerId(u32::from(n))));
}

/// One sweep checks all peers, regardless of the number of workers.
#[test]
fn a_peer_is_pinged_by_one_worker() {
    adit_testbed::needs_root!();
    let world = World::new(4, Relay::Kernel);
    let client = world.client(2, 1);
    let interval = Duration::from_millis(300);
    let started = Wall::now();
    let keepalive = Keepalive { interval, timeout: Duration::ZERO };
    world.plane.apply(Command::SetKeepalive(PeerId(2), keepalive));
    let pings = || world.plane.counters(PeerId(2)).unwrap().tx_packets;
    while pings() < 3 {
        assert!(started.elapsed() < PATIENCE, "not pinged");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(3 * interval);
    let (pings, passed) = (u128::from(pings()), started.elapsed().as_millis());
    assert!(pings <= passed / interval.as_millis() + 1, "{pings} pings in {passed} ms");
    drop(client);
}

/// New sockets replace those of a port. Every worker stops using the old ones, which are closed, and uses its new one.
#[test]
fn all_sockets_of_a_port_can_be_exchanged() {
    adit_testbed::needs_root!();
    let mut world = World::new(3, Relay::Kernel);
    world.plane.add_sockets(ID, group(&world.server, 5001, 3, false));
    let senders: Vec<_> = (0..24)
        .map(|_| world.clients.run(|| StdUdp::bind("10.77.0.2:0").unwrap()).unwrap())
        .collect();
    for sender in &senders {
        sender.send_to(&[7 << 3, 1], outside(5001)).unwrap();
    }
    let (mut seen, end) = (Vec::new(), Wall::now() + PATIENCE);
    while seen.len() < senders.len() {
        assert!(Wall::now() < end, "{} of {}", seen.len(), senders.len());
        world.upcalls.drain(|upcall| match upcall {
            Upcall::Unauthenticated(link, _) => seen.push(link.remote().port()),
            other => panic!("{other:?}"),
        });
        std::thread::sleep(Duration::from_millis(5));
    }
    // Closed as soon as the last worker has released it, after which the port is free.
    let bind = || StdUdp::bind(outside(5000));
    while let Err(error) = world.server.run(bind).unwrap() {
        assert!(Wall::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client has one socket, which the first worker reads. When it is full, all workers stop reading the device. When it has space, all
/// continue, whichever worker filled it.
#[test]
fn a_full_socket_holds_every_worker_of_a_client_and_then_none() {
    adit_testbed::needs_root!();
    let (near, far) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    near.connect("cable", &far, "cable").unwrap();
    configure(&near, "cable", "10.77.0.2/24");
    let options = TunOptions { queues: 3, ..TunOptions::default() };
    let tun = near.run(|| TunDevice::open(&options)).unwrap().unwrap();
    assert_eq!(tun.offloads, TunOffloads::ALL);
    configure(&near, "tun0", "10.8.0.2/24");
    let udp = UdpOptions { send_buffer: 8 << 10, ..UdpOptions::new(([10, 77, 0, 2], 0).into()) };
    let socket = Arc::new(near.run(|| UdpSocket::bind(&udp)).unwrap().unwrap());
    let config = PlaneConfig {
        tun: Some(tun),
        sockets: vec![(ID, Arc::clone(&socket))],
        relay: Relay::Kernel,
        gates: Offloads::ALL,
        client: true,
        ethernet: false,
    };
    let (plane, _upcalls) = Plane::start(config, boot_clock).unwrap();
    assert_eq!(plane.workers(), 3);
    plane.apply(Command::AddPeer(PeerId(0), spec(Link::datagram(ID, None, outside(5000)))));
    plane.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(2, 0, false)));
    plane.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
    // No host has the server's address yet: packets sent to it wait for ARP and are charged to the socket.
    let flows: Vec<_> =
        (0..12).map(|_| near.run(|| StdUdp::bind("10.8.0.2:0").unwrap()).unwrap()).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for flow in &flows {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    // A device that is not read eventually fills up.
                    flow.send_to(&[0x61; 1000], "10.8.0.1:9").unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        configure(&far, "cable", "10.77.0.1/24");
        let receiver = far.run(|| UdpSocket::bind(&UdpOptions::new(outside(5000))).unwrap());
        let receiver = receiver.unwrap();
        let mut end = End::new(Relay::Kernel, false);
        end.apply(Command::AddPeer(PeerId(0), PeerSpec { layout: layout(0), ..spec(link(2, 1)) }));
        end.apply(Command::SetRoutes(PeerId(0), vec!["10.8.0.2/32".parse().unwrap()]));
        end.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(2, 0, true)));
        let (mut batch, until) = (RecvBatch::new(64), Wall::now() + PATIENCE);
        let mut passed = BTreeMap::<u16, usize>::new();
        let all = |passed: &BTreeMap<u16, usize>| {
            passed.len() == flows.len() && passed.values().all(|count| *count >= 20)
        };
        while !all(&passed) && Wall::now() < until {
            while receiver.recv_burst(&mut batch).is_ok() {
                for got in batch.datagrams_mut() {
                    for packet in end.open_buffer(link(2, 1), got.segment, got.data).0 {
                        let port = u16::from_be_bytes([packet[20], packet[21]]);
                        *passed.entry(port).or_default() += 1;
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        stop.store(true, Ordering::Release);
        assert!(all(&passed), "flows that pass: {passed:?}");
        assert_eq!(end.dropped(DropReason::Replayed), 0);
    });
    assert_eq!(plane.totals().dropped(DropReason::SocketFull), 0, "held back, not dropped");
}

/// Flows from one client to another are divided among the channels of the other one.
#[test]
fn relayed_flows_keep_their_channels() {
    adit_testbed::needs_root!();
    let world = World::new(1, Relay::Direct);
    let (mut client, other) = (world.client(2, 1), world.client(3, 1));
    let at = Link::datagram(ID, None, other.sockets[0].local_addr());
    let further = PeerSpec { layout: layout(33), channel_of: Some(PeerId(3)), ..spec(at) };
    world.plane.apply(Command::AddPeer(PeerId(33), further));
    world.plane.apply(Command::InstallKey(PeerId(33), KeySlot::Primary, key(4, 0, true)));
    let sent = || [3, 33].map(|id| world.plane.counters(PeerId(id)).unwrap().tx_packets);
    let mut channels = BTreeMap::new();
    for number in 0..2 {
        for port in 7000..7016 {
            let (before, end) = (sent(), Wall::now() + PATIENCE);
            client.send(3, port, number);
            while sent() == before {
                assert!(Wall::now() < end, "nothing was sent");
                std::thread::sleep(Duration::from_millis(1));
            }
            let channel = usize::from(sent()[1] > before[1]);
            assert_eq!(*channels.entry(port).or_insert(channel), channel);
        }
    }
    assert!([0, 1].iter().all(|channel| channels.values().any(|one| one == channel)));
    assert_eq!(sent().iter().sum::<u64>(), 32);
}
