//! Traffic whose content is kept, to be compared with the contents of the tables.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::failure::{Context, Result};
use crate::net::Namespace;
use crate::process::run_with_input;
use crate::traffic::{roomy, when_free};
use crate::wait::ScaledInstant;

const SILENCE: Duration = Duration::from_secs(1);
/// The time limit for missing datagrams.
const TIMEOUT: Duration = Duration::from_secs(8);
const BEGIN: Duration = Duration::from_secs(20);
/// The number of datagrams in flight: less than a device's queue (500).
const WINDOW: u32 = 200;

/// Sends `count` datagrams of all sizes up to `largest`, in bursts of eight, and returns those that arrived, in order.
/// At most [`WINDOW`] are in flight at once, because the kernel's queues, which overflow while a program waits for a
/// processor, lose datagrams that no program counts.
pub(super) fn datagrams(
    from: &Namespace,
    to: &Namespace,
    target: SocketAddr,
    count: u32,
    largest: usize,
) -> Result<Vec<Vec<u8>>> {
    let (ready, wait) = std::sync::mpsc::channel();
    let progress = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&progress);
    let receiver = to.thread(move || {
        let socket = when_free(target, || UdpSocket::bind(target))?;
        roomy(&socket)?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let _ = ready.send(());
        let (mut buffer, mut arrived) = (vec![0; 65536], Vec::new());
        let mut last = ScaledInstant::now();
        // After the last datagram it waits a moment longer, for a duplicate.
        let timeout = |arrived: &Vec<_>| {
            if arrived.len() < count as usize { TIMEOUT } else { SILENCE }
        };
        while last.elapsed() < timeout(&arrived) {
            if let Ok((length, _)) = socket.recv_from(&mut buffer) {
                arrived.push(buffer.get(..length).unwrap_or_default().to_vec());
                counted.fetch_add(1, Relaxed);
                last = ScaledInstant::now();
            }
        }
        Ok(arrived)
    })?;
    wait.recv_timeout(Duration::from_secs(5)).context("no receiver")?;
    let sender = from.thread(move || {
        let local: IpAddr = if target.is_ipv6() { [0; 16].into() } else { [0; 4].into() };
        let socket = UdpSocket::bind((local, 0))?;
        for number in 0..count {
            let waiting = ScaledInstant::now();
            while number.saturating_sub(progress.load(Relaxed)) > WINDOW
                && waiting.elapsed() < TIMEOUT
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            socket.send_to(&content(number, largest), target)?;
            if number % 8 == 7 {
                std::thread::sleep(Duration::from_millis(4));
            }
        }
        Ok(())
    })?;
    join(sender)?;
    join(receiver)
}

/// Returns the content of the datagram with this number; no two are equal.
pub(super) fn content(number: u32, largest: usize) -> Vec<u8> {
    let length = 16 + (number as usize * 37) % (largest - 15);
    let mut state = number.wrapping_mul(2_654_435_761) | 1;
    // Loops over words: the iterators of bytes take seconds for a few megabytes in a debug build.
    let mut out = number.to_be_bytes().to_vec();
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        out.extend_from_slice(&state.to_be_bytes());
    }
    out.truncate(length);
    out
}

/// Transfers `bytes` over TCP and returns the bytes that arrived.
pub(super) fn stream(
    from: &Namespace,
    to: &Namespace,
    target: SocketAddr,
    bytes: usize,
) -> Result<Vec<u8>> {
    let (ready, wait) = std::sync::mpsc::channel();
    let receiver = to.thread(move || {
        let listener = when_free(target, || TcpListener::bind(target))?;
        let _ = ready.send(());
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(BEGIN))?;
        let mut arrived = Vec::new();
        stream.read_to_end(&mut arrived).context("reading from the tunnel")?;
        Ok(arrived)
    })?;
    wait.recv_timeout(Duration::from_secs(5)).context("no receiver")?;
    let sender = from.thread(move || {
        let mut stream = TcpStream::connect_timeout(&target, BEGIN).context(target)?;
        stream.set_write_timeout(Some(BEGIN))?;
        stream.write_all(&blob(bytes)).context("writing to the tunnel")
    });
    // A sender that fails never connects, and the listener then ends with the sandbox.
    join(sender?)?;
    join(receiver)
}

/// Returns noise of this length.
pub(super) fn blob(bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for number in 0.. {
        if out.len() >= bytes {
            break;
        }
        out.extend_from_slice(&content(number, 1000));
    }
    out.truncate(bytes);
    out
}

/// Reassembles the payload of a TCP flow from IPv4 packets, as its receiver does.
pub(super) fn reassemble(packets: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let (mut parts, mut first): (BTreeMap<u32, Vec<u8>>, Option<u32>) = (BTreeMap::new(), None);
    for packet in packets {
        let header = usize::from(packet.first().copied().unwrap_or_default() & 15) * 4;
        let Some(tcp) = packet.get(header..).filter(|tcp| tcp.len() >= 20) else { continue };
        let number = tcp.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        let (Some(number), Some(offset), Some(flags)) = (number, tcp.get(12), tcp.get(13)) else {
            continue;
        };
        if flags & 2 != 0 {
            first = Some(number.wrapping_add(1));
            continue;
        }
        let data = tcp.get(usize::from(offset >> 4) * 4..).unwrap_or_default();
        let at = number.wrapping_sub(first.unwrap_or(number));
        let kept = parts.entry(at).or_default();
        if kept.len() < data.len() {
            *kept = data.to_vec();
        }
    }
    let mut whole: Vec<u8> = Vec::new();
    for (at, data) in parts {
        let at = at as usize;
        if at <= whole.len() {
            whole.extend(data.get(whole.len() - at..).unwrap_or_default());
        }
    }
    whole
}

/// Returns the SHA-256 in hexadecimal, computed by coreutils.
pub(super) fn sha256(bytes: &[u8]) -> Result<String> {
    let said = run_with_input(std::process::Command::new("sha256sum"), bytes)?;
    Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
}

/// Decodes hexadecimal text.
pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
    text.as_bytes()
        .chunks(2)
        .filter_map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?))
        .collect()
}

fn join<T>(thread: std::thread::JoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err("a traffic thread panicked".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_with_repeats_and_in_disorder_is_put_together() {
        let packet = |seq: u32, flags: u8, data: &[u8]| {
            let mut bytes = vec![0x45; 20];
            bytes.extend([0, 1, 0, 2]);
            bytes.extend(seq.to_be_bytes());
            bytes.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
            bytes.extend(data);
            bytes
        };
        let near_the_end = u32::MAX - 2;
        let packets = [
            packet(near_the_end, 2, b""),
            packet(near_the_end.wrapping_add(4), 16, b"def"),
            packet(near_the_end.wrapping_add(1), 16, b"abc"),
            packet(near_the_end.wrapping_add(4), 16, b"defgh"),
            packet(near_the_end.wrapping_add(9), 17, b""),
        ];
        assert_eq!(reassemble(packets.into_iter()), b"abcdefgh");
    }

    #[test]
    fn hexadecimal_there_and_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(unhex(&text), bytes);
    }

    #[test]
    fn the_hash_is_the_known_one() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").unwrap(), known);
    }
}
