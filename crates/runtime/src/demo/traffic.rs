//! Generates pings, bulk TCP and UDP transfers and round trips, without other programs.
//!
//! A socket remains in the namespace in which it was created, so each is created inside its
//! namespace and used from an ordinary thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use adit_linux::netns::NetNs;
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::udp::{self, RecvBatch, SendScratch, Train, UdpOptions};
use socket2::{Domain, Protocol, Socket, Type};

/// The time to wait for the answer to one ping.
const PING_PATIENCE: Duration = Duration::from_secs(1);
/// The size of one write of the bulk TCP sender.
const TCP_CHUNK: usize = 128 << 10;
/// The size of the UDP payload. With all headers of the tunnel and the network, the packet fits
/// into 1500 bytes.
const UDP_PAYLOAD: usize = 1400;
/// The number of datagrams per send call.
const UDP_TRAIN: usize = 44;
/// The maximum number of trains in flight: about 1 MB. The sender waits for the receiver instead of overflowing queues, as a real-time
/// application adapts its rate.
const UDP_WINDOW: u64 = 16;
/// The time without arrivals after which packets still in flight count as lost.
const UDP_LOST_AFTER: Duration = Duration::from_millis(100);

/// One direction of a transfer, shared between threads.
#[derive(Debug, Default)]
pub struct Meter {
    /// The number of bytes or datagrams sent.
    pub sent: AtomicU64,
    /// The number of bytes or datagrams received.
    pub received: AtomicU64,
    /// The latest UDP train from which a datagram arrived, counted from 1.
    newest: AtomicU64,
    /// Set to end the transfer.
    pub stop: AtomicBool,
}

/// Sends an ICMP echo request from a namespace, and returns the time until the answer.
pub fn ping(ns: &NetNs, to: IpAddr, sequence: u16) -> io::Result<Duration> {
    ns.run(|| ping_here(to, sequence))?
}

fn ping_here(to: IpAddr, sequence: u16) -> io::Result<Duration> {
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.connect(&SocketAddr::new(to, 0).into())?;
    socket.set_read_timeout(Some(PING_PATIENCE))?;
    let [id_high, id_low] = 0xad17_u16.to_be_bytes();
    let [high, low] = sequence.to_be_bytes();
    let mut packet = [request, 0, 0, 0, id_high, id_low, high, low, 0, 0, 0, 0, 0, 0, 0, 0];
    // The kernel fills in ICMPv6's checksum, which covers the addresses.
    if to.is_ipv4() {
        let [high, low] = checksum(&packet).to_be_bytes();
        packet[2] = high;
        packet[3] = low;
    }
    let started = Instant::now();
    socket.send(&packet)?;
    let mut buffer = [0; 256];
    while started.elapsed() < PING_PATIENCE {
        let length = match (&socket).read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        };
        let data = buffer.get(..length).unwrap_or_default();
        // A raw IPv4 socket also returns the IP header.
        let skip =
            if to.is_ipv4() { data.first().map_or(0, |b| usize::from(b & 15) * 4) } else { 0 };
        let icmp = data.get(skip..).unwrap_or_default();
        if icmp.first() == Some(&reply) && icmp.get(4..8) == packet.get(4..8) {
            return Ok(started.elapsed());
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(data: &[u8]) -> u16 {
    let words = data.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

/// Runs both ends of a TCP transfer until the meter stops it.
pub fn tcp(from: &NetNs, to: &NetNs, address: IpAddr, meter: &Meter) -> io::Result<()> {
    let listener = to.run(|| TcpListener::bind((address, 0)))??;
    let target = listener.local_addr()?;
    let mut sender = from.run(|| TcpStream::connect_timeout(&target, Duration::from_secs(5)))??;
    let (mut receiver, _) = listener.accept()?;
    sender.set_write_timeout(Some(Duration::from_millis(500)))?;
    receiver.set_read_timeout(Some(Duration::from_millis(500)))?;
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let chunk = vec![0x5a; TCP_CHUNK];
            until_stopped(meter, || {
                let count = sender.write(&chunk)?;
                meter.sent.fetch_add(count as u64, Relaxed);
                Ok(())
            })
        });
        let receiving = scope.spawn(move || {
            let mut chunk = vec![0; 2 * TCP_CHUNK];
            until_stopped(meter, || {
                let count = receiver.read(&mut chunk)?;
                meter.received.fetch_add(count as u64, Relaxed);
                if count == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
            })
        });
        joined(sending).and(joined(receiving))
    })
}

/// Runs both ends of a UDP transfer until the meter stops it.
pub fn udp(
    from: &NetNs,
    to: &NetNs,
    source: IpAddr,
    address: IpAddr,
    meter: &Meter,
) -> io::Result<()> {
    let receiver = to.run(|| udp::UdpSocket::bind(&UdpOptions::new((address, 0).into())))??;
    let sender = from.run(|| udp::UdpSocket::bind(&UdpOptions::new((source, 0).into())))??;
    let target = receiver.local_addr();
    thread::scope(|scope| {
        let receiving = scope.spawn(move || receive_udp(&receiver, meter));
        let sending = scope.spawn(move || send_udp(&sender, target, meter));
        joined(sending).and(joined(receiving))
    })
}

fn send_udp(socket: &udp::UdpSocket, to: SocketAddr, meter: &Meter) -> io::Result<()> {
    let mut payload = vec![0x5a; UDP_PAYLOAD * UDP_TRAIN];
    let segment = u16::try_from(UDP_PAYLOAD).unwrap_or(u16::MAX);
    let mut scratch = SendScratch::new(1);
    let mut next = 1_u64;
    let (mut newest, mut heard) = (0, Instant::now());
    until_stopped(meter, || {
        let arrived = meter.newest.load(Relaxed);
        if arrived > newest {
            (newest, heard) = (arrived, Instant::now());
        }
        if next > newest.saturating_add(UDP_WINDOW) {
            if heard.elapsed() > UDP_LOST_AFTER {
                (newest, heard) = (next, Instant::now());
            }
            thread::sleep(Duration::from_micros(50));
            return Ok(());
        }
        for datagram in payload.chunks_mut(UDP_PAYLOAD) {
            if let Some(number) = datagram.first_chunk_mut() {
                *number = next.to_be_bytes();
            }
        }
        let train = Train { to, from: None, segment, tos: None, payload: &payload };
        socket.send_trains(&[train], &mut scratch).map_err(|stop| stop.error)?;
        meter.sent.fetch_add(payload.len() as u64, Relaxed);
        next = next.saturating_add(1);
        Ok(())
    })
}

fn receive_udp(socket: &udp::UdpSocket, meter: &Meter) -> io::Result<()> {
    let poller = Poller::new()?;
    poller.add(socket, 0, Interest::READ)?;
    let mut events = Events::new();
    let mut batch = RecvBatch::new(16);
    let mut burst = || -> io::Result<usize> {
        poller.wait(&mut events, Some(Duration::from_millis(100)))?;
        socket.recv_burst(&mut batch)?;
        let mut bytes = 0;
        for received in batch.datagrams_mut() {
            bytes += received.data.len();
            // Several datagrams may be merged. The number of the first one is sufficient.
            if let Some(number) = received.data.first_chunk() {
                meter.newest.fetch_max(u64::from_be_bytes(*number), Relaxed);
            }
        }
        meter.received.fetch_add(bytes as u64, Relaxed);
        Ok(bytes)
    };
    until_stopped(meter, || burst().map(|_| ()))?;
    // Receive the packets that are still in flight.
    while matches!(burst(), Ok(1..)) {}
    Ok(())
}

fn until_stopped(meter: &Meter, mut step: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    while !meter.stop.load(Relaxed) {
        match step() {
            Ok(()) => {}
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::TimedOut => {
                    thread::sleep(Duration::from_micros(100));
                }
                // The other end has stopped first.
                _ if meter.stop.load(Relaxed) => {}
                _ => {
                    meter.stop.store(true, Relaxed);
                    return Err(error);
                }
            },
        }
    }
    Ok(())
}

fn joined(handle: thread::ScopedJoinHandle<'_, io::Result<()>>) -> io::Result<()> {
    handle.join().unwrap_or_else(|_| Err(io::Error::other("a traffic thread panicked")))
}

/// Sends small datagrams back and forth, one at a time, for `duration`. Returns the sorted
/// round-trip times.
pub fn round_trips(
    client: &NetNs,
    server: &NetNs,
    address: Ipv4Addr,
    duration: Duration,
    interrupted: &AtomicBool,
) -> io::Result<Vec<Duration>> {
    let echo = server.run(|| UdpSocket::bind((address, 0)))??;
    let socket = client.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
    socket.connect(echo.local_addr()?)?;
    for side in [&echo, &socket] {
        side.set_read_timeout(Some(Duration::from_millis(200)))?;
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut data = [0; 64];
            while !done.load(Relaxed) {
                if let Ok((length, from)) = echo.recv_from(&mut data) {
                    let _ = echo.send_to(data.get(..length).unwrap_or_default(), from);
                }
            }
        });
        let mut times = Vec::new();
        let started = Instant::now();
        let mut data = [0; 64];
        while started.elapsed() < duration && !interrupted.load(Relaxed) {
            let sent = Instant::now();
            let answered = socket.send(&data).and_then(|_| socket.recv(&mut data));
            match answered {
                Ok(_) => times.push(sent.elapsed()),
                // A lost datagram is not a round trip.
                Err(_) => continue,
            }
        }
        done.store(true, Relaxed);
        times.sort_unstable();
        Ok(times)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_internets() {
        // RFC 1071, section 3.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0xff]), !0xff00);
    }

    /// The generator works without a tunnel.
    #[test]
    fn bytes_and_pings_cross_a_veth() {
        adit_testbed::needs_root!();
        let (a, b) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
        a.connect("left", &b, "right").unwrap();
        super::super::ends::address(&a, "left", "192.0.2.1/24".parse().unwrap()).unwrap();
        super::super::ends::address(&b, "right", "192.0.2.2/24".parse().unwrap()).unwrap();
        let (left, right): (Ipv4Addr, Ipv4Addr) =
            ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        ping(&a, right.into(), 1).unwrap();
        ping(&b, "::1".parse().unwrap(), 2).unwrap();
        assert!(ping(&a, "192.0.2.9".parse().unwrap(), 3).is_err());
        let calm = AtomicBool::new(false);
        let times = round_trips(&a, &b, right, Duration::from_millis(50), &calm).unwrap();
        assert!(!times.is_empty());

        for transfer in [true, false] {
            let meter = Meter::default();
            thread::scope(|scope| {
                let running = scope.spawn(|| {
                    if transfer {
                        tcp(&a, &b, right.into(), &meter)
                    } else {
                        udp(&a, &b, left.into(), right.into(), &meter)
                    }
                });
                while meter.received.load(Relaxed) < 4 << 20 && !running.is_finished() {
                    thread::sleep(Duration::from_millis(5));
                }
                meter.stop.store(true, Relaxed);
                running.join().unwrap().unwrap();
            });
            assert!(meter.received.load(Relaxed) >= 4 << 20);
        }
    }
}
