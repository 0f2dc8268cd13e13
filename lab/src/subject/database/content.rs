//! Checks that a byte stream can be reassembled from the tables, by comparing its hash with that of the received bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use adit_testbed::failure::{Context, Failure, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::Nodes;
use super::found::StoredPackets;
use crate::testbed::Database;

/// The port of the receiver.
const PORT: u16 = 7071;
/// The length of the stream in bytes: a few thousand packets.
const LENGTH: usize = 8 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Sends random bytes from the first node to the second, and compares the hash of the received bytes with that of the
/// payload columns.
pub(super) fn check(nodes: &Nodes, database: &Database, found: &mut StoredPackets) -> Result<()> {
    let arrived = transfer(nodes, database)?;
    // The last rows of data that the kernel has already acknowledged may not be in the tables yet.
    std::thread::sleep(Duration::from_millis(500));
    let sql = format!(
        "SELECT encode(payload, 'hex') FROM adit.packet WHERE dport = {PORT} AND proto = 6 ORDER BY seq"
    );
    let told = database.cluster().sql(&database.name(), &sql)?;
    let packets: Vec<Vec<u8>> = told.lines().map(bytes).collect::<Result<_>>()?;
    let stored = assembled(&packets);
    let hashes = [&arrived, &stored].map(|stream| adit_crypto::sha256(&[stream]));
    if arrived.len() == LENGTH && hashes[0] == hashes[1] {
        let count = packets.len();
        found.notes.push(format!(
            "{LENGTH} random bytes were put together again from {count} rows, with the receiver's SHA-256"
        ));
    } else {
        found.invalid.push(format!(
            "of {LENGTH} bytes {} arrived, and the rows give {} others",
            arrived.len(),
            stored.len()
        ));
    }
    Ok(())
}

fn transfer(nodes: &Nodes, database: &Database) -> Result<Vec<u8>> {
    let [from, to, ..] = database.testbed().clients.as_slice() else {
        return Err("a testbed without two nodes".into());
    };
    let address = SocketAddr::new(*nodes.inner.get(1).context("the second node's address")?, PORT);
    let listener = to.handle()?.run(|| TcpListener::bind(address))??;
    let receiver = std::thread::spawn(move || -> std::io::Result<Vec<u8>> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        Ok(all)
    });
    let mut stream = from.handle()?.run(|| TcpStream::connect_timeout(&address, TIMEOUT))??;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut data = vec![0; LENGTH];
    ChaCha8Rng::seed_from_u64(6).fill_bytes(&mut data);
    stream.write_all(&data)?;
    drop(stream);
    Ok(receiver.join().map_err(|_| "the receiving thread panicked")??)
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        hex.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.ok_or_else(|| Failure(format!("{hex:?} is no payload")))?;
    Ok(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

/// Returns a segment's sequence number, whether it begins the stream, and its payload.
fn segment(packet: &[u8]) -> Option<(u32, bool, &[u8])> {
    let header = usize::from(packet.first()? & 15) * 4;
    let total = usize::from(u16::from_be_bytes(packet.get(2..4)?.try_into().ok()?));
    let tcp = packet.get(header..total)?;
    let number = u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?);
    let offset = usize::from(tcp.get(12)? >> 4) * 4;
    Some((number, tcp.get(13)? & 2 != 0, tcp.get(offset..)?))
}

/// Returns the stream that the segments of one connection carry, up to the first gap; repeated and overlapping segments
/// count once.
fn assembled(packets: &[Vec<u8>]) -> Vec<u8> {
    let segments: Vec<_> = packets.iter().filter_map(|packet| segment(packet)).collect();
    let Some((first, ..)) = segments.iter().find(|(_, begins, _)| *begins) else {
        return Vec::new();
    };
    let mut parts: Vec<(usize, &[u8])> = segments
        .iter()
        .filter(|(_, begins, payload)| !begins && !payload.is_empty())
        // The first byte has the sequence number after that of the segment that begins the stream.
        .map(|(number, _, payload)| (number.wrapping_sub(first.wrapping_add(1)) as usize, *payload))
        .collect();
    parts.sort_by_key(|(at, _)| *at);
    let mut stream: Vec<u8> = Vec::new();
    for (at, payload) in parts {
        let Some(known) = stream.len().checked_sub(at) else { break };
        stream.extend(payload.get(known..).unwrap_or_default());
    }
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0];
        packet.extend(u16::try_from(40 + payload.len()).unwrap().to_be_bytes());
        packet.extend([0; 16 + 4]);
        packet.extend(number.to_be_bytes());
        packet.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        packet.extend(payload);
        // The bytes after the packet are padding.
        packet.extend([9; 3]);
        packet
    }

    #[test]
    fn a_stream_is_put_together_in_its_own_order() {
        let start = u32::MAX - 2;
        let packets = [
            packet(start, 2, b""),
            packet(start.wrapping_add(4), 0, b"def"),
            packet(start.wrapping_add(1), 0, b"abc"),
            packet(start.wrapping_add(4), 0, b"def"),
            packet(start.wrapping_add(6), 0, b"fgh"),
            packet(start.wrapping_add(9), 1, b""),
        ];
        assert_eq!(assembled(&packets), b"abcdefgh");
        assert_eq!(assembled(&packets[1..]), b"", "the beginning is unknown");
        let gap = [packets[0].clone(), packets[1].clone()];
        assert_eq!(assembled(&gap), b"");
    }

    #[test]
    fn nonsense_is_no_segment() {
        assert_eq!(segment(&[]), None);
        assert_eq!(segment(&[0x45; 10]), None);
        assert_eq!(segment(&packet(7, 2, b"")[..30]), None);
        assert_eq!(bytes("00ff7a").unwrap(), [0, 255, 0x7a]);
        assert!(bytes("0g").is_err());
    }
}
