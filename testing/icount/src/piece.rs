//! Benchmarks of the data path with fixed work, so that their instructions can be counted.

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use adit_crypto::Cipher;
use adit_dataplane::{ReplayWindow, Routes};
use adit_engine::PeerId;
use adit_filter::packet::{Layer, Packet};
use adit_filter::ruleset::{CtDirection, CtState};
use adit_filter::{Context, Evaluator, Filter, IfName, Nanos, Verdict, VerdictCache, lang};
use adit_wire::VnetHeader;
use adit_wire::checksum::Sum;
use adit_wire::merge::Merger;
use adit_wire::split::Segments;
use ipnet::{IpNet, Ipv4Net};

use crate::packets;
use crate::rules;
use crate::tunnel::{Train, Tunnel};

/// One benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Its name, such as `seal-1400`.
    pub name: &'static str,
    /// The work of one run.
    pub what: &'static str,
    /// The number of repetitions of the work for one count.
    pub times: u32,
    prepare: fn(u32) -> Result<Work, String>,
}

/// The counted work, for the prepared number of repetitions. Returns a value that depends on all of it.
type Work = Box<dyn FnMut() -> u64>;

const fn piece(
    name: &'static str,
    times: u32,
    prepare: fn(u32) -> Result<Work, String>,
    what: &'static str,
) -> Piece {
    Piece { name, what, times, prepare }
}

/// All benchmarks. A new one needs a line in the baseline: `make gate-accept`.
pub const ALL: &[Piece] = &[
    piece(
        "seal-1400",
        200,
        seal_plain,
        "seal a packet of 1,400 bytes, from the route's lookup to the train",
    ),
    piece("open-1400", 200, open_plain, "open it again, from the datagram to the write"),
    piece(
        "seal-1400-chacha",
        50,
        seal_chacha,
        "seal a packet of 1,400 bytes with ChaCha20-Poly1305",
    ),
    piece(
        "seal-super",
        10,
        seal_super,
        "split a TCP super-packet of 64 KiB and seal its 49 segments",
    ),
    piece("open-super", 10, open_super, "open these 49 and merge them into two writes"),
    piece("seal-super-stream", 10, seal_super_stream, "as seal-super, with a length before each"),
    piece(
        "open-super-stream",
        10,
        open_super_stream,
        "find these in a stream, open and merge them",
    ),
    piece("split-super", 10, split, "split a super-packet, checksums included"),
    piece("merge-super", 10, merge, "merge 49 packets into one write, checksums verified"),
    piece("checksum-1400", 500, checksum, "the Internet checksum of 1,400 bytes"),
    piece("route", 2000, route, "find the owner of an address among 1,000 routes"),
    piece("replay", 2000, replay, "check and mark a packet id, one in eight of them late"),
    piece("judge-4", 1000, judge_4, "parse a packet of a new flow and judge it by 4 rules"),
    piece("judge-10000", 1000, judge_10000, "the same by 10,000 rules with sets and prefixes"),
    piece("judge-flow", 1000, judge_flow, "parse a packet of a remembered flow and judge it"),
];

/// Returns the benchmark with this name.
///
/// # Errors
/// No benchmark has this name; the error lists the existing names.
pub fn find(name: &str) -> Result<&'static Piece, String> {
    ALL.iter().find(|piece| piece.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|piece| piece.name).collect();
        format!("no piece is called {name:?}; write one of {}", names.join(", "))
    })
}

/// Runs a benchmark this many times inside the one function that callgrind observes.
///
/// The benchmark runs on a separate thread, because the start of the main thread's stack and heap depends on the
/// environment and the program's path, and the number of instructions of a `memcpy` varies with alignment.
///
/// # Errors
/// The benchmark could not be prepared.
pub fn run(piece: &'static Piece, times: u32) -> Result<(), String> {
    let thread = thread::Builder::new().spawn(move || -> Result<(), String> {
        // A first run keeps the construction of lazily built tables and the first growth of buffers out of the count.
        black_box((piece.prepare)(8)?());
        let mut work = (piece.prepare)(times)?;
        black_box(counted_piece(&mut *work));
        Ok(())
    });
    let thread = thread.map_err(|error| format!("a thread for {}: {error}", piece.name))?;
    thread.join().map_err(|_| format!("{} panicked", piece.name))?
}

/// The name of the function to count, for callgrind.
pub(crate) const COUNTED: &str = "counted_piece";

#[inline(never)]
fn counted_piece(work: &mut dyn FnMut() -> u64) -> u64 {
    // The addition prevents a tail call, which would leave this function before the work begins.
    black_box(work()).wrapping_add(1)
}

const CIPHER: Cipher = Cipher::Aes256Gcm;

fn seal_plain(times: u32) -> Result<Work, String> {
    seal(Tunnel::new(CIPHER)?, (VnetHeader::default(), packets::plain(1400)), times)
}

fn seal_chacha(times: u32) -> Result<Work, String> {
    let tunnel = Tunnel::new(Cipher::ChaCha20Poly1305)?;
    seal(tunnel, (VnetHeader::default(), packets::plain(1400)), times)
}

fn seal_super(times: u32) -> Result<Work, String> {
    seal(Tunnel::new(CIPHER)?, packets::super_packet(), times)
}

fn seal_super_stream(times: u32) -> Result<Work, String> {
    seal(Tunnel::over_stream(CIPHER)?, packets::super_packet(), times)
}

fn open_plain(times: u32) -> Result<Work, String> {
    open(Tunnel::new(CIPHER)?, (VnetHeader::default(), packets::plain(1400)), times)
}

fn open_super(times: u32) -> Result<Work, String> {
    open(Tunnel::new(CIPHER)?, packets::super_packet(), times)
}

fn open_super_stream(times: u32) -> Result<Work, String> {
    open(Tunnel::over_stream(CIPHER)?, packets::super_packet(), times)
}

/// Copies of the packet are made in advance; in production the kernel makes them.
fn seal(mut tunnel: Tunnel, packet: (VnetHeader, Vec<u8>), times: u32) -> Result<Work, String> {
    let (vnet, packet) = packet;
    let mut copies = vec![packet; times as usize];
    Ok(Box::new(move || {
        let mut total = 0;
        for packet in &mut copies {
            tunnel.seal(&vnet, packet, |bytes, _| total += black_box(bytes).len() as u64);
        }
        total
    }))
}

fn open(
    mut tunnel: Tunnel,
    (vnet, packet): (VnetHeader, Vec<u8>),
    times: u32,
) -> Result<Work, String> {
    let mut trains = Vec::new();
    for _ in 0..times {
        tunnel.seal(&vnet, &mut packet.clone(), |bytes, segment| {
            trains.push(Train { bytes: bytes.to_vec(), segment });
        });
    }
    Ok(Box::new(move || {
        let mut total = 0;
        for train in &mut trains {
            tunnel.open(train, |write| total += black_box(write).count() as u64);
        }
        total
    }))
}

fn split(times: u32) -> Result<Work, String> {
    let (vnet, packet) = packets::super_packet();
    let mut copies = vec![packet; times as usize];
    Ok(Box::new(move || {
        let mut total = 0;
        for packet in &mut copies {
            let Ok(mut segments) = Segments::new(&vnet, packet) else { continue };
            while let Some(segment) = segments.next() {
                total += black_box(segment).len() as u64;
            }
        }
        total
    }))
}

fn merge(times: u32) -> Result<Work, String> {
    let (vnet, mut packet) = packets::super_packet();
    let mut cut = Vec::new();
    let segments = Segments::new(&vnet, &mut packet);
    let mut segments = segments.map_err(|_| "the super-packet cannot be split")?;
    while let Some(segment) = segments.next() {
        cut.push(segment.to_vec());
    }
    Ok(Box::new(move || {
        let (mut merger, mut total) = (Merger::new(true, true), 0);
        for _ in 0..times {
            cut.iter().for_each(|packet| merger.push(packet));
            merger.writes().for_each(|write| total += black_box(&write).count() as u64);
            merger = merger.recycle(true, true);
        }
        total
    }))
}

fn checksum(times: u32) -> Result<Work, String> {
    let packet = packets::plain(1400);
    Ok(Box::new(move || {
        (0..times).map(|_| u64::from(Sum::new().bytes(black_box(&packet)).finish())).sum()
    }))
}

fn route(times: u32) -> Result<Work, String> {
    let mut routes = Routes::default();
    let net = |high: u32, low: u32, len: u8| -> Result<IpNet, String> {
        let [_, _, high, low] = ((high << 8) | low).to_be_bytes();
        let net = Ipv4Net::new([10, high, low, 0].into(), len);
        net.map(IpNet::V4).map_err(|error| error.to_string())
    };
    // The networks of 900 clients, and 100 shorter prefixes around some of them.
    for peer in 0..900 {
        routes.set(PeerId(peer), vec![net(peer % 30, peer / 30, 24)?]);
    }
    for peer in 900..1000 {
        routes.set(PeerId(peer), vec![net(peer % 100, 0, 16)?]);
    }
    Ok(Box::new(move || {
        let mut total = 0;
        for at in 0..times {
            let [_, a, b, c] = at.wrapping_mul(2_654_435_761).to_be_bytes();
            let address = IpAddr::from([10, a % 128, b, c]);
            total += routes.owner(black_box(address)).map_or(0, |peer| u64::from(peer.0));
        }
        total
    }))
}

fn replay(times: u32) -> Result<Work, String> {
    let mut window = ReplayWindow::new(64);
    Ok(Box::new(move || {
        let mut accepted = 0;
        for at in 0..u64::from(times) {
            // 2, 3, 4, 5, 6, 7, 8, 1, so the first of eight arrives last.
            let id = if at % 8 == 7 { at - 6 } else { at + 2 };
            if black_box(&window).check(id).is_some() {
                window.accept(id);
                accepted += 1;
            }
        }
        accepted
    }))
}

fn judge_4(times: u32) -> Result<Work, String> {
    judge(rules::FOUR, times, false)
}

fn judge_10000(times: u32) -> Result<Work, String> {
    judge(&rules::many(10_000), times, false)
}

fn judge_flow(times: u32) -> Result<Work, String> {
    judge(&rules::many(100), times, true)
}

/// Counts the accepted packets, which are all packets, because the last rule that can match accepts them.
fn judge(text: &str, times: u32, remembered: bool) -> Result<Work, String> {
    let ruleset = lang::parse("rules", text, &mut |name| Err(std::io::Error::other(name)));
    let ruleset = ruleset.map_err(|error| error.to_string())?;
    let filter = Filter::compile(ruleset).map_err(|error| error.to_string())?;
    let mut evaluator = Evaluator::new(Arc::new(filter));
    let mut state = 7;
    let mut address = || 0x0a00_0000 | rules::random(&mut state) as u32 & 0x00ff_ffff;
    let flow = rules::udp(address(), address(), [4000, 9]);
    let mut frame =
        || if remembered { flow.clone() } else { rules::udp(address(), address(), [4000, 9]) };
    let frames: Vec<Vec<u8>> = (0..times).map(|_| frame()).collect();
    let context = Context {
        now: Nanos(1),
        iif: IfName::new("eth1"),
        oif: IfName::new("eth2"),
        state: CtState::NEW,
        direction: CtDirection::Original,
        protocol: Some(17),
    };
    let mut verdict_cache = VerdictCache::default();
    Ok(Box::new(move || {
        let (vnet, mut accepted) = (VnetHeader::default(), 0);
        for frame in black_box(&frames) {
            let Ok(packet) = Packet::parse(frame, Layer::Ethernet, None, &vnet) else { continue };
            let verdict_cache = remembered.then_some(&mut verdict_cache);
            let evaluation = evaluator.evaluate(&packet, &context, verdict_cache, &mut ());
            accepted += u64::from(evaluation.verdict == Verdict::Accept);
        }
        evaluator.flush();
        accepted
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, times: u32) -> u64 {
        let piece = find(name).unwrap();
        (piece.prepare)(times).unwrap()()
    }

    #[test]
    fn every_piece_does_the_work_that_its_name_says() {
        let sealed_1400 = 1400 + 24;
        assert_eq!(result("seal-1400", 3), 3 * sealed_1400);
        assert_eq!(result("seal-1400-chacha", 3), 3 * sealed_1400);
        assert_eq!(result("open-1400", 3), 3);
        for judged in ["judge-4", "judge-10000", "judge-flow"] {
            assert_eq!(result(judged, 50), 50, "{judged}");
        }
        let headers = 48 * 40;
        assert_eq!(result("seal-super", 2), 2 * (65_535 + headers + 49 * 24));
        assert_eq!(result("open-super", 2), 2 * 49);
        assert_eq!(result("seal-super-stream", 2), 2 * (65_535 + headers + 49 * (24 + 2)));
        assert_eq!(result("open-super-stream", 2), 2 * 49);
        assert_eq!(result("split-super", 2), 2 * (65_535 + headers));
        assert_eq!(result("merge-super", 2), 2 * 49);
        assert_eq!(result("replay", 800), 800, "no id is refused");
        assert_eq!(result("checksum-1400", 4), 4 * result("checksum-1400", 1));
        assert!(result("route", 100) > 0, "some addresses have owners");
    }

    #[test]
    fn names_are_unique_and_others_are_refused() {
        for (at, piece) in ALL.iter().enumerate() {
            assert_eq!(ALL.iter().position(|other| other.name == piece.name), Some(at));
        }
        assert!(find("seal").unwrap_err().contains("seal-1400, "));
    }
}
