//! Streams over real sockets on the loopback interface, without a TUN device: arriving packets are relayed to other
//! peers (`Relay::Direct`), where the test reads them.

use std::io::{self, Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Wall};

use adit_dataplane::{DropReason, Offloads, PlaneConfig, Relay, StreamEnd, StreamOptions};
use adit_engine::command::{Keepalive, KeySlot};
use adit_engine::{Instant, Link, PeerId, SocketId};
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::tcp::{TcpConnectOptions, TcpListenOptions, TcpListener, TcpStream};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_openvpn::data_format::{Command, PeerSpec};
use adit_openvpn_data::{Plane, Upcall, Upcalls};
use proptest::prelude::*;

use crate::common::{End, SERVER, key, layout, packet, spec};

fn boot_clock() -> Instant {
    Instant::from_nanos(adit_linux::clock::boottime())
}

/// Long enough for the busiest machine; in a passing test it never expires.
const PATIENCE: Duration = Duration::from_secs(30);

struct Server {
    plane: Plane,
    upcalls: Upcalls,
    listener: TcpListener,
    next: u64,
    /// Upcalls that were drained but not yet requested.
    seen: Vec<Upcall>,
}

/// A client that the test plays. Its packets are sealed and opened in memory.
struct Client {
    end: End,
    socket: StdStream,
    link: Link,
    n: u8,
}

impl Server {
    fn new() -> Self {
        Self::of(1)
    }

    /// Creates a server with this many workers, which are assigned streams in turn.
    fn of(workers: usize) -> Self {
        let udp = UdpOptions::new(([127, 0, 0, 1], 0).into());
        let group = UdpSocket::bind_group(&udp, workers).unwrap().into_iter().map(Arc::new);
        let config = PlaneConfig {
            tun: None,
            sockets: group.map(|socket| (SocketId(0), socket)).collect(),
            relay: Relay::Direct,
            gates: Offloads::ALL,
            client: false,
            ethernet: false,
        };
        let (plane, upcalls) = Plane::start(config, boot_clock).unwrap();
        assert_eq!(plane.workers(), workers);
        let listener =
            TcpListener::bind(&TcpListenOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        Self { plane, upcalls, listener, next: 1, seen: Vec::new() }
    }

    /// Opens a connection without a session.
    fn stranger(&mut self, receive_buffer: Option<usize>) -> (StdStream, Link) {
        let options = TcpConnectOptions {
            recv_buffer: receive_buffer,
            ..TcpConnectOptions::new(self.listener.local_addr())
        };
        let client = TcpStream::connect(&options).unwrap();
        wait(&client, Interest::WRITE);
        wait(&self.listener, Interest::READ);
        let (stream, remote) = self.listener.accept().unwrap();
        let link = Link::stream(self.next, remote);
        self.next += 1;
        self.plane.add_stream(link, stream, StreamOptions::default()).unwrap();
        let client = StdStream::from(std::os::fd::OwnedFd::from(client));
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, link)
    }

    /// Creates client `n` with peer-id `n` and the address 10.8.0.n.
    fn client(&mut self, n: u8, receive_buffer: Option<usize>) -> Client {
        let (socket, link) = self.stranger(receive_buffer);
        let id = PeerId(u32::from(n));
        let wire_id = Some(id.0);
        self.plane.apply(Command::AddPeer(id, PeerSpec { layout: layout(wire_id), ..spec(link) }));
        self.plane.apply(Command::InstallKey(id, KeySlot::Primary, key(n, 0, true)));
        self.plane.apply(Command::SetRoutes(id, vec![format!("10.8.0.{n}/32").parse().unwrap()]));
        let end = End::new(Relay::Kernel, true);
        end.apply(Command::AddPeer(
            PeerId(0),
            PeerSpec { layout: layout(wire_id), ..spec(there()) },
        ));
        end.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(n, 0, false)));
        end.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
        Client { end, socket, link, n }
    }

    /// Waits for an upcall; keeps the others.
    fn wait_for<T>(&mut self, pick: impl Fn(&Upcall) -> Option<T>) -> T {
        let (poller, mut events) = (Poller::new().unwrap(), Events::new());
        poller.add(&self.upcalls, 0, Interest::READ).unwrap();
        let end = Wall::now() + PATIENCE;
        loop {
            if let Some((at, found)) =
                self.seen.iter().enumerate().find_map(|(at, upcall)| Some((at, pick(upcall)?)))
            {
                self.seen.remove(at);
                return found;
            }
            assert!(Wall::now() < end, "nothing came: {:?}", self.seen);
            poller.wait(&mut events, Some(Duration::from_secs(1))).unwrap();
            let seen = &mut self.seen;
            self.upcalls.drain(|upcall| seen.push(upcall));
        }
    }

    fn end_of(&mut self, link: Link) -> StreamEnd {
        self.wait_for(|upcall| match upcall {
            Upcall::StreamEnded(ended, why) if *ended == link => Some(*why),
            _ => None,
        })
    }

    fn until(&self, done: impl Fn(&Plane) -> bool) {
        let end = Wall::now() + PATIENCE;
        while !done(&self.plane) {
            assert!(Wall::now() < end, "it never happened: {:?}", self.plane.totals());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.plane.totals().dropped(reason)
    }
}

/// Returns the server's address as clients see it.
fn there() -> Link {
    Link::stream(1, ([127, 0, 0, 1], 1194).into())
}

fn wait(fd: &impl std::os::fd::AsFd, interest: Interest) {
    let (poller, mut events) = (Poller::new().unwrap(), Events::new());
    poller.add(fd, 0, interest).unwrap();
    assert_eq!(poller.wait(&mut events, Some(PATIENCE)).unwrap(), 1, "nothing came");
}

fn framed(packet: &[u8]) -> Vec<u8> {
    [&(packet.len() as u16).to_be_bytes()[..], packet].concat()
}

fn read_frame(socket: &mut StdStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    socket.read_exact(&mut length)?;
    let mut frame = vec![0; u16::from_be_bytes(length).into()];
    socket.read_exact(&mut frame)?;
    Ok(frame)
}

fn packet_id(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[4..8].try_into().unwrap())
}

impl Client {
    /// Returns the bytes of one packet to another client.
    fn sealed(&mut self, to: u8, fill: u8) -> Vec<u8> {
        self.end.seal(&packet(self.n, to, fill)).concat()
    }

    fn send(&mut self, to: u8, fill: u8) {
        let bytes = self.sealed(to, fill);
        self.socket.write_all(&bytes).unwrap();
    }

    /// Returns the next data packet from the server, opened.
    fn receive(&mut self) -> Vec<u8> {
        let frame = read_frame(&mut self.socket).unwrap();
        let mut opened = Vec::new();
        let taken = self.end.memory.open_stream(&there(), 9600, &mut framed(&frame), |what| {
            if let adit_dataplane::loopback::LoopbackOutput::Tun(write) = what {
                opened.extend(write.packets().map(<[u8]>::to_vec));
            }
        });
        assert_eq!(taken, Ok(()));
        assert_eq!(opened.len(), 1);
        opened.remove(0)
    }
}

#[test]
fn packets_of_one_stream_arrive_on_another() {
    let mut server = Server::new();
    let (mut a, mut b) = (server.client(2, None), server.client(3, None));
    for fill in 0..50 {
        a.send(3, fill);
    }
    for fill in 0..50 {
        assert_eq!(b.receive(), packet(2, 3, fill));
    }
    b.send(2, 99);
    assert_eq!(a.receive(), packet(3, 2, 99));
    let counters = server.plane.counters(PeerId(3)).unwrap();
    assert_eq!((counters.tx_packets, counters.rx_packets), (50, 1));
}

#[test]
fn a_stream_cut_anywhere_carries_the_same_packets() {
    let mut server = Server::new();
    let (mut a, mut b) = (server.client(2, None), server.client(3, None));
    a.socket.set_nodelay(true).unwrap();
    let bytes: Vec<u8> = (0..40).flat_map(|fill| a.sealed(3, fill)).collect();
    // Single bytes first, then parts that grow to more than a packet.
    let mut rest = &bytes[..];
    for size in std::iter::repeat_n(1, 200).chain((1usize..).flat_map(|size| [size * 7, 1])) {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        a.socket.write_all(piece).unwrap();
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    for fill in 0..40 {
        assert_eq!(b.receive(), packet(2, 3, fill));
    }
}

proptest! {
    #[test]
    fn any_chunks_give_the_same_packets(cuts in proptest::collection::vec(0usize..400, 0..60)) {
        let end = |client| {
            let end = End::new(Relay::Kernel, client);
            let spec = PeerSpec { layout: layout(2), ..spec(there()) };
            let id = if client { PeerId(0) } else { PeerId(2) };
            end.apply(Command::AddPeer(id, spec));
            end.apply(Command::InstallKey(id, KeySlot::Primary, key(2, 0, !client)));
            end.apply(Command::SetRoutes(id, vec!["0.0.0.0/0".parse().unwrap()]));
            end
        };
        let (mut client, mut server) = (end(true), end(false));
        let mut bytes = Vec::new();
        let mut wanted = Vec::new();
        for fill in 0..20 {
            // Packets that do not merge, and control packets in between.
            let inner = packet(2, SERVER, fill);
            bytes.extend(client.seal(&inner).concat());
            wanted.push(inner);
            if fill % 7 == 3 {
                bytes.extend(framed(&[4 << 3, fill]));
            }
        }
        let mut found = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts.into_iter().chain([bytes.len()]) {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            rest = after;
            let taken = server.memory.open_stream(&there(), 9600, &mut piece.to_vec(), |what| {
                if let adit_dataplane::loopback::LoopbackOutput::Tun(write) = what {
                    found.extend(write.packets().map(<[u8]>::to_vec));
                }
            });
            prop_assert_eq!(taken, Ok(()));
        }
        prop_assert_eq!(found, wanted);
        let mut control = Vec::new();
        server.upcalls.drain(|upcall| if let Upcall::ControlPacket(_, frame) = upcall { control.push(frame) });
        prop_assert_eq!(control, [vec![4 << 3, 3], vec![4 << 3, 10], vec![4 << 3, 17]]);
        prop_assert_eq!(server.all_drops(), 0);
    }
}

/// Sends from one client to another that does not read, until the server drops packets.
fn fill(server: &Server, from: &mut Client, to: u8) {
    let before = server.dropped(DropReason::StreamFull);
    let end = Wall::now() + PATIENCE;
    while server.dropped(DropReason::StreamFull) < before + 100 {
        assert!(Wall::now() < end, "the queue has no end");
        (0..50).for_each(|fill| from.send(to, fill));
    }
}

/// `tcp-queue-limit` is the bound.
#[test]
fn what_waits_for_a_slow_reader_is_bounded_and_has_no_gap() {
    let mut server = Server::new();
    let (mut a, mut slow) = (server.client(2, None), server.client(3, Some(4096)));
    fill(&server, &mut a, 3);
    assert!(server.plane.send_control(slow.link, &[4 << 3, 7]));
    let sent = server.plane.counters(PeerId(3)).unwrap().tx_packets;
    // Now it reads: everything that was counted as sent arrives without a gap, and the control packet arrives before
    // the queued packets.
    let (mut next, mut control_at) = (1, None);
    while u64::from(next) <= sent {
        let frame = read_frame(&mut slow.socket).unwrap();
        if frame == [4 << 3, 7] {
            control_at = Some(u64::from(next));
            continue;
        }
        assert_eq!(packet_id(&frame), next, "stock takes a gap for an attack");
        next += 1;
    }
    let at = control_at.expect("the control packet was lost");
    assert!(at + 32 < sent, "it came at {at} of {sent}, behind what waited");
    // It continues with the next id.
    server.until(|plane| plane.totals().dropped(DropReason::StreamFull) > 0);
    a.send(3, 1);
    let frame = loop {
        let frame = read_frame(&mut slow.socket).unwrap();
        if packet_id(&frame) >= next {
            break frame;
        }
    };
    assert_eq!(packet_id(&frame), next);
}

/// A bulk transfer that fills the queue leaves room for a ping.
#[test]
fn small_packets_have_a_reserve() {
    let mut server = Server::new();
    let (mut a, slow) = (server.client(2, None), server.client(3, Some(4096)));
    let mut large = packet(2, 3, 1);
    large.resize(1300, 7);
    large[2..4].copy_from_slice(&1300u16.to_be_bytes());
    let sent = |server: &Server| server.plane.counters(PeerId(3)).unwrap().tx_packets;
    let end = Wall::now() + PATIENCE;
    while server.dropped(DropReason::StreamFull) < 50 {
        assert!(Wall::now() < end, "the queue has no end");
        let bytes = a.end.seal(&large).concat();
        a.socket.write_all(&bytes).unwrap();
    }
    let before = sent(&server);
    (0..10).for_each(|fill| a.send(3, fill));
    server.until(|plane| plane.counters(PeerId(3)).unwrap().tx_packets == before + 10);
    drop(slow);
}

#[test]
fn one_that_stops_reading_disturbs_no_other() {
    let mut server = Server::new();
    let (mut a, slow) = (server.client(2, None), server.client(3, Some(4096)));
    let mut b = server.client(4, None);
    fill(&server, &mut a, 3);
    for round in 0..100 {
        a.send(4, round);
        assert_eq!(b.receive(), packet(2, 4, round));
        b.send(2, round);
        assert_eq!(a.receive(), packet(4, 2, round));
    }
    drop(slow);
}

/// Each of four workers owns the streams of two clients that communicate and of one that stopped reading, and receives
/// packets from the other workers' clients.
#[test]
fn streams_of_several_workers_go_on_while_one_of_each_is_not_read() {
    let (windows, window) = (40, 32u8);
    let mut server = Server::of(4);
    let slow: Vec<_> = (10..14).map(|n| server.client(n, Some(4096))).collect();
    let mut talkers: Vec<_> = (2..10).map(|n| server.client(n, None)).collect();
    let mut feeder = server.client(14, None);
    slow.iter().for_each(|slow| fill(&server, &mut feeder, slow.n));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let feeding = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                slow.iter().for_each(|slow| feeder.send(slow.n, 1));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let talks: Vec<_> = talkers
            .iter_mut()
            .map(|client| {
                scope.spawn(move || {
                    // Pairs of streams with adjacent numbers, which different workers own.
                    let other = client.n ^ 1;
                    for _ in 0..windows {
                        (0..window).for_each(|fill| client.send(other, fill));
                        for fill in 0..window {
                            assert_eq!(client.receive(), packet(other, client.n, fill));
                        }
                    }
                })
            })
            .collect();
        let talks: Vec<_> = talks.into_iter().map(|talk| talk.join()).collect();
        stop.store(true, Ordering::Release);
        feeding.join().unwrap();
        talks.into_iter().for_each(|talk| talk.unwrap());
    });
    let all = u64::from(window) * windows;
    for client in &talkers {
        let counters = server.plane.counters(PeerId(client.n.into())).unwrap();
        assert_eq!((counters.rx_packets, counters.tx_packets), (all, all), "client {}", client.n);
    }
    let drops = server.plane.totals().drops;
    let full = DropReason::StreamFull;
    let others = drops.iter().filter(|(why, count)| *count > 0 && *why != full);
    assert_eq!(others.count(), 0, "{drops:?}");
}

#[test]
fn control_packets_for_a_slow_reader_are_bounded() {
    let mut server = Server::new();
    let (mut a, slow) = (server.client(2, None), server.client(3, Some(4096)));
    fill(&server, &mut a, 3);
    let mut taken = 0;
    while server.plane.send_control(slow.link, &[4 << 3; 1000]) {
        taken += 1;
        assert!(taken < 1000, "no bound");
    }
    assert!(taken >= 60);
    assert_eq!(server.dropped(DropReason::ControlFull), 1);
}

#[test]
fn control_packets_travel_both_ways() {
    let mut server = Server::new();
    let (mut socket, link) = server.stranger(None);
    socket.write_all(&framed(&[7 << 3, 1])).unwrap();
    let stranger = server.wait_for(|upcall| Some(upcall.clone()));
    assert_eq!(stranger, Upcall::Unauthenticated(link, vec![7 << 3, 1]));
    server.plane.apply(Command::AdmitLink(link));
    socket.write_all(&framed(&[4 << 3, 2])).unwrap();
    assert_eq!(server.wait_for(|u| Some(u.clone())), Upcall::ControlPacket(link, vec![4 << 3, 2]));
    assert!(server.plane.send_control(link, &[8 << 3, 3]));
    assert_eq!(read_frame(&mut socket).unwrap(), [8 << 3, 3]);
    // The last packets are sent before the end, and the peer sees an orderly end of stream.
    assert!(server.plane.send_control(link, &[4 << 3, 4]));
    server.plane.remove_stream(link);
    assert_eq!(read_frame(&mut socket).unwrap(), [4 << 3, 4]);
    assert_eq!(socket.read(&mut [0; 9]).unwrap(), 0);
    assert!(!server.plane.send_control(link, &[8 << 3, 3]), "it is gone");
}

#[test]
fn an_end_is_told_after_all_that_came_before() {
    let mut server = Server::new();
    let client = server.client(2, None);
    let (mut socket, link) = (client.socket, client.link);
    (0..20).for_each(|n| socket.write_all(&framed(&[4 << 3, n])).unwrap());
    drop(socket);
    assert_eq!(server.end_of(link), StreamEnd::Closed);
    let before =
        server.seen.iter().filter(|upcall| matches!(upcall, Upcall::ControlPacket(..))).count();
    assert_eq!(before, 20);
    // Nothing more can be sent to the peer, and no other peer is affected.
    server.plane.apply(Command::SendData(PeerId(2), vec![1]));
    assert_eq!(server.dropped(DropReason::NoSocket), 1);
    let mut other = server.client(3, None);
    other.send(2, 1);
    server.until(|plane| plane.totals().dropped(DropReason::NoSocket) == 2);
}

#[test]
fn lengths_that_make_no_sense_end_the_stream() {
    let mut server = Server::new();
    for (admitted, bytes) in
        [(false, vec![0, 0]), (false, vec![0x10, 1]), (true, vec![0, 0]), (true, vec![0x25, 0x81])]
    {
        let (mut socket, link) = if admitted {
            let client = server.client(2, None);
            (client.socket, client.link)
        } else {
            server.stranger(None)
        };
        socket.write_all(&framed(&[4 << 3, 1])).unwrap();
        socket.write_all(&bytes).unwrap();
        assert_eq!(server.end_of(link), StreamEnd::BadLength, "{bytes:x?}");
        assert_eq!(socket.read(&mut [0; 9]).unwrap(), 0, "it is closed");
    }
    assert_eq!(server.dropped(DropReason::BadLength), 4);
}

/// `tun-mtu-extra` asks for this.
#[test]
fn the_longest_packets_are_taken() {
    let mut server = Server::new();
    let (mut socket, link) = server.stranger(None);
    let longest = vec![4 << 3; 4096];
    socket.write_all(&framed(&longest)).unwrap();
    assert_eq!(server.wait_for(|u| Some(u.clone())), Upcall::Unauthenticated(link, longest));
    let mut known = server.client(2, None);
    known.socket.write_all(&framed(&vec![9 << 3; 9600])).unwrap();
    server.until(|plane| plane.totals().dropped(DropReason::UnknownPeer) == 1);
}

#[test]
fn a_packet_that_is_not_authentic_ends_the_stream() {
    let mut server = Server::new();
    let mut client = server.client(2, None);
    client.send(SERVER, 1);
    let mut forged = client.sealed(SERVER, 2);
    *forged.last_mut().unwrap() ^= 1;
    client.socket.write_all(&forged).unwrap();
    assert_eq!(server.end_of(client.link), StreamEnd::BadPacket);
    assert_eq!(server.dropped(DropReason::BadTag), 1);
}

#[test]
fn a_packet_that_comes_twice_or_late_ends_the_stream() {
    let mut server = Server::new();
    for order in [[0, 0], [1, 0]] {
        let mut client = server.client(2, None);
        let sealed = [client.sealed(SERVER, 1), client.sealed(SERVER, 2)];
        for n in order {
            client.socket.write_all(&sealed[n]).unwrap();
        }
        assert_eq!(server.end_of(client.link), StreamEnd::BadPacket, "{order:?}");
    }
    assert_eq!(server.dropped(DropReason::Replayed), 2);
}

#[test]
fn packets_count_only_on_the_streams_of_their_own_peers() {
    let mut server = Server::new();
    let (mut a, mut b) = (server.client(2, None), server.client(3, None));
    // Under a's peer-id and keys, on b's stream.
    let sealed = a.sealed(3, 1);
    b.socket.write_all(&sealed).unwrap();
    server.until(|plane| plane.totals().dropped(DropReason::WrongAddress) == 1);
    // By UDP.
    let socket = UdpSocket::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    let to = socket.local_addr();
    server.plane.add_socket(SocketId(1), Arc::new(socket));
    let elsewhere = UdpSocket::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    elsewhere.send_to(to, None, &sealed[2..]).unwrap();
    server.until(|plane| plane.totals().dropped(DropReason::WrongAddress) == 2);
    assert_eq!(server.plane.link(PeerId(2)), Some(a.link));
    // A peer that is reached by UDP does not move onto a stream.
    let link = Link::datagram(SocketId(1), None, elsewhere.local_addr());
    server.plane.apply(Command::SetLink(PeerId(2), link));
    a.socket.write_all(&sealed).unwrap();
    server.until(|plane| plane.totals().dropped(DropReason::WrongAddress) == 3);
    assert_eq!(server.plane.link(PeerId(2)), Some(link));
    // None of these packets counted as an attack on b, whose stream still works.
    server.plane.apply(Command::SetLink(PeerId(2), a.link));
    a.socket.write_all(&sealed).unwrap();
    assert_eq!(b.receive(), packet(2, 3, 1));
}

#[test]
fn a_stranger_may_say_only_so_much() {
    let mut server = Server::new();
    let (mut socket, link) = server.stranger(None);
    let said = Upcall::Unauthenticated(link, vec![4 << 3, 1]);
    for _ in 0..64 {
        socket.write_all(&framed(&[4 << 3, 1])).unwrap();
        server.wait_for(|upcall| (*upcall == said).then_some(()));
    }
    let _ = socket.write_all(&framed(&[4 << 3, 1]));
    assert_eq!(server.end_of(link), StreamEnd::Flood);
    let (mut socket, link) = server.stranger(None);
    server.plane.apply(Command::AdmitLink(link));
    for _ in 0..100 {
        socket.write_all(&framed(&[4 << 3, 1])).unwrap();
    }
    drop(socket);
    assert_eq!(server.end_of(link), StreamEnd::Closed);
}

/// As many tiny packets as one receive returns, from an unauthenticated peer and from a peer in its handshake. The
/// shared queues get only a few of them.
#[test]
fn one_write_full_of_control_packets_does_not_fill_the_queues() {
    let mut server = Server::new();
    let many = framed(&[4 << 3]).repeat(50_000);
    for (admitted, most) in [(false, 8), (true, 128)] {
        let (mut socket, link) = server.stranger(None);
        if admitted {
            server.plane.apply(Command::AdmitLink(link));
        }
        let full = if admitted {
            DropReason::ControlQueueFull
        } else {
            DropReason::UnauthenticatedQueueFull
        };
        let _ = socket.write_all(&many);
        server.until(|plane| plane.totals().dropped(full) > 0);
        assert_eq!(server.end_of(link), StreamEnd::Flood);
        let of_link = |upcall: &&Upcall| matches!(upcall, Upcall::Unauthenticated(of, _) | Upcall::ControlPacket(of, _) if *of == link);
        let got = server.seen.iter().filter(of_link).count();
        assert_eq!((got, server.dropped(full)), (most, 1), "{admitted}");
    }
}

#[test]
fn strangers_on_streams_leave_room_for_known_peers() {
    let mut server = Server::new();
    let mut known = server.client(2, None);
    let mut strangers: Vec<_> = (0..20).map(|_| server.stranger(None)).collect();
    for (socket, _) in &mut strangers {
        for _ in 0..60 {
            // Connections beyond the limit are closed.
            let _ = socket.write_all(&framed(&[7 << 3, 1]));
        }
    }
    server.until(|plane| plane.totals().dropped(DropReason::UnauthenticatedQueueFull) > 0);
    known.socket.write_all(&framed(&[3 << 3, 1])).unwrap();
    let link = known.link;
    server
        .wait_for(|upcall| (*upcall == Upcall::ControlPacket(link, vec![3 << 3, 1])).then_some(()));
}

#[test]
fn an_idle_peer_on_a_stream_is_pinged() {
    let mut server = Server::new();
    let mut client = server.client(2, None);
    let keepalive = Keepalive { interval: Duration::from_millis(100), timeout: Duration::ZERO };
    server.plane.apply(Command::SetKeepalive(PeerId(2), keepalive));
    for id in 1..4 {
        let frame = read_frame(&mut client.socket).unwrap();
        assert_eq!((frame[0] >> 3, packet_id(&frame)), (9, id));
    }
}

#[test]
fn a_connection_that_breaks_is_told() {
    let mut server = Server::new();
    let client = server.client(2, None);
    // Closing with unread bytes resets the connection.
    assert!(server.plane.send_control(client.link, &[4 << 3, 1]));
    wait(&client.socket, Interest::READ);
    drop(client.socket);
    assert!(matches!(server.end_of(client.link), StreamEnd::Failed(104) | StreamEnd::Closed));
    // A connection to a closed port is refused as a stream.
    let nowhere = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let link = Link::datagram(SocketId(0), None, nowhere);
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let stream =
        TcpStream::connect(&TcpConnectOptions::new(listener.local_addr().unwrap())).unwrap();
    assert!(server.plane.add_stream(link, stream, StreamOptions::default()).is_err());
}
