//! Traffic through the tunnel, counted to the packet.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::pattern;
use crate::wait::ScaledInstant;

pub use crate::echo::{Echoes, echo_all, ping, silent};

/// The time limit for an address to become free.
const FREE_LIMIT: Duration = Duration::from_secs(10);

/// The result of a stream of numbered datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivery {
    /// The number of datagrams sent.
    pub sent: u32,
    /// The number of distinct datagrams that arrived intact.
    pub received: u32,
    /// The number of repeated arrivals.
    pub duplicated: u32,
    /// The number of datagrams that arrived corrupted.
    pub corrupted: u32,
}

/// A stream of numbered datagrams that runs until [`Stream::finish`].
#[derive(Debug)]
pub struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Result<u32>>,
    receiver: JoinHandle<Result<Delivery>>,
}

/// The ports inside the tunnel; every pair of namespaces has separate ports.
const UDP_PORT: u16 = 4000;
const TCP_PORT: u16 = 4001;

impl Stream {
    /// Starts sending from `from` to `address` in `to`: bursts of eight datagrams of all sizes up to `largest` bytes,
    /// at most 100 bursts a second.
    ///
    /// # Errors
    /// A socket could not be opened.
    pub fn start(
        from: &Namespace,
        to: &Namespace,
        address: IpAddr,
        largest: usize,
    ) -> Result<Self> {
        let target = SocketAddr::new(address, UDP_PORT);
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, wait) = std::sync::mpsc::channel();
        let receiver = to.thread(move || {
            let socket = when_free(target, || UdpSocket::bind(target))?;
            roomy(&socket)?;
            // The sender may start now; it does not matter if it has already ended.
            let _ = ready.send(());
            receive(&socket)
        })?;
        let stopped = Arc::clone(&stop);
        let sender = from.thread(move || {
            wait.recv_timeout(Duration::from_secs(5)).context("no receiver")?;
            let local: IpAddr = if target.is_ipv6() { [0; 16].into() } else { [0; 4].into() };
            let socket = UdpSocket::bind((local, 0))?;
            send(&socket, target, largest, &stopped)
        })?;
        Ok(Self { stop, sender, receiver })
    }

    /// Stops the stream and returns its counts.
    ///
    /// # Errors
    /// A socket failed during the stream.
    pub fn finish(self) -> Result<Delivery> {
        self.stop.store(true, Ordering::Relaxed);
        let (sent, delivery) = join_both(self.sender, self.receiver)?;
        Ok(Delivery { sent, ..delivery })
    }
}

/// Gives a receiver a buffer for a few thousand datagrams, so that it loses none while it waits for a processor.
///
/// # Errors
/// The process does not run as root.
pub fn roomy(socket: &UdpSocket) -> Result<()> {
    const ROOM: usize = 16 << 20;
    setsockopt(socket, RcvBufForce, &ROOM).context("a receive buffer")
}

/// Opens a socket as soon as no other process holds the address. A program that another test starts has a copy of a closed
/// socket until it calls `exec`.
///
/// # Errors
/// The socket could not be opened, or its address remains in use.
pub fn when_free<S>(address: SocketAddr, open: impl Fn() -> io::Result<S>) -> Result<S> {
    let began = Instant::now();
    loop {
        match open() {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < FREE_LIMIT =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return opened.context(address),
        }
    }
}

fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err("a traffic thread panicked".into()))
}

/// Joins both ends. If both fail, the cause may be at either, so the failure names both.
fn join_both<S, R>(
    sender: JoinHandle<Result<S>>,
    receiver: JoinHandle<Result<R>>,
) -> Result<(S, R)> {
    match (join(sender), join(receiver)) {
        (Ok(sent), Ok(received)) => Ok((sent, received)),
        (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => Err(failure),
        (Err(sender), Err(receiver)) => {
            Err(format!("sender: {sender}; receiver: {receiver}").into())
        }
    }
}

/// Returns the content of datagram `number`: its number, then a pattern that depends on it.
fn datagram(number: u32, size: usize) -> Vec<u8> {
    let mut content = number.to_be_bytes().to_vec();
    let pattern = number.wrapping_mul(2_654_435_761).to_be_bytes();
    content.extend(pattern.repeat(size.div_ceil(pattern.len())));
    content.truncate(size.max(4));
    content
}

const END: u32 = u32::MAX;

fn send(socket: &UdpSocket, to: SocketAddr, largest: usize, stop: &AtomicBool) -> Result<u32> {
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..8 {
            // 37 and the range have no common factor, so every size occurs.
            let size = 16 + (number as usize).wrapping_mul(37) % (largest - 15);
            match socket.send_to(&datagram(number, size), to) {
                Ok(_) => number += 1,
                // The tunnel may be down for a moment; unsent datagrams are not counted.
                Err(_) => break,
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..20 {
        let _ = socket.send_to(&datagram(END, 16), to);
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(number)
}

fn receive(socket: &UdpSocket) -> Result<Delivery> {
    let mut buffer = vec![0; 65536];
    let mut seen: Vec<bool> = Vec::new();
    let mut delivery = Delivery::default();
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    while let Ok((length, _)) = socket.recv_from(&mut buffer) {
        let Some((data, number)) = buffer
            .get(..length)
            .and_then(|data| data.first_chunk().map(|number| (data, u32::from_be_bytes(*number))))
        else {
            delivery.corrupted += 1;
            continue;
        };
        if number == END {
            break;
        }
        let index = number as usize;
        if data != datagram(number, length) || index > seen.len() + 100_000 {
            delivery.corrupted += 1;
        } else if seen.get(index).copied().unwrap_or_default() {
            delivery.duplicated += 1;
        } else {
            seen.resize(seen.len().max(index + 1), false);
            if let Some(slot) = seen.get_mut(index) {
                *slot = true;
            }
            delivery.received += 1;
        }
    }
    Ok(delivery)
}

/// Transfers `bytes` by TCP from `from` to `address` in `to`, compares every byte, and returns the duration.
///
/// # Errors
/// There is no connection, the transfer stalled for 20 s, or the bytes differ.
pub fn tcp(from: &Namespace, to: &Namespace, address: IpAddr, bytes: usize) -> Result<Duration> {
    tcp_to_port(from, to, SocketAddr::new(address, TCP_PORT), bytes)
}

/// Transfers bytes like [`tcp`], to a port of the caller's choice. When it returns, every byte has been read.
///
/// # Errors
/// As [`tcp`].
pub fn tcp_to_port(
    from: &Namespace,
    to: &Namespace,
    target: SocketAddr,
    bytes: usize,
) -> Result<Duration> {
    let (ready, wait) = std::sync::mpsc::channel();
    let receiver = to.thread(move || {
        let listener = when_free(target, || TcpListener::bind(target))?;
        let _ = ready.send(());
        listener.set_nonblocking(true)?;
        let end = ScaledInstant::now() + Duration::from_secs(20);
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if ScaledInstant::now() < end => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(format!("no connection to {target}: {error}").into()),
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut position = 0;
        let mut buffer = vec![0; 65536];
        loop {
            match stream.read(&mut buffer).context("reading from the tunnel")? {
                0 => return Ok(position),
                length => {
                    let arrived = buffer.get(..length).unwrap_or_default();
                    ensure(pattern::matches(position, arrived), || {
                        format!("TCP to {target}: other bytes after {position}")
                    })?;
                    position += length;
                }
            }
        }
    })?;
    let started = Instant::now();
    let sender = from.thread(move || {
        wait.recv_timeout(Duration::from_secs(5)).context("no receiver")?;
        let mut stream =
            TcpStream::connect_timeout(&target, Duration::from_secs(20)).context(target)?;
        stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(&pattern::bytes(0, bytes)).context("writing to the tunnel")
    })?;
    let ((), received) = join_both(sender, receiver)?;
    ensure(received == bytes, || format!("TCP to {target}: {received} of {bytes} bytes"))?;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_arrives_twice_changed_and_once() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for number in [0, 1, 1, 5] {
            sender.send_to(&datagram(number, 100), to).unwrap();
        }
        let mut broken = datagram(6, 100);
        broken[50] ^= 1;
        sender.send_to(&broken, to).unwrap();
        sender.send_to(&datagram(END, 16), to).unwrap();
        let expected = Delivery { sent: 0, received: 3, duplicated: 1, corrupted: 1 };
        assert_eq!(receive(&socket).unwrap(), expected);
    }
}
