//! Generates UDP, ICMP with errors about other packets, and unknown protocols.

use std::net::IpAddr;

use super::{Flow, Pair};
use crate::nftdiff::case::SentFrame;
use crate::nftdiff::frame::{self, Ends, Ip, Tcp};
use crate::nftdiff::random::Random;
use crate::nftdiff::universe;

/// Generates requests and replies, and perhaps an error about one of them.
pub(super) fn udp(random: &mut Random) -> Flow {
    let pair = Pair::new(random);
    let ports = (universe::client_port(random), universe::port(random));
    let mut flow = Flow::new();
    for _ in 0..random.within(1..=5) {
        let forward = flow.is_empty() || random.percent(55);
        let ports = if forward { ports } else { (ports.1, ports.0) };
        let length = *random.pick(&[0, 1, 20, 56, 548, 1400]);
        let segment = frame::udp(pair.way(forward).1, ports, &random.bytes(length));
        flow.push(pair.sent(random, forward, 17, &segment, "UDP"));
        if random.percent(15) {
            flow.extend(error_about(random, &pair, flow.last().cloned()));
        }
    }
    flow
}

/// Generates echoes, single messages, and errors about conversations.
pub(super) fn icmp(random: &mut Random) -> Flow {
    let pair = Pair::new(random);
    let number = pair.ends.icmp();
    let v6 = number == 58;
    let id = u32::from(*random.pick(&[0u16, 1, 7, 0xffff])) << 16;
    let mut flow = Flow::new();
    let mut put = |random: &mut Random, forward: bool, (kind, code): (u8, u8), rest: u32, what| {
        let length = *random.pick(&[0, 8, 56]);
        let message = frame::icmp(pair.way(forward).1, kind, code, rest, &random.bytes(length));
        flow.push(pair.sent(random, forward, number, &message, what));
    };
    let (request, reply) = match random.within(0..=9) {
        0 if !v6 => (13, 14),
        1 if !v6 => (15, 16),
        2 if !v6 => (17, 18),
        _ if v6 => (128, 129),
        _ => (8, 0),
    };
    match random.within(0..=9) {
        0 => put(random, true, (reply, 0), id | 1, "reply to nothing"),
        1 => {
            let kinds: &[u8] =
                if v6 { &[133, 134, 135, 136, 137, 130, 200, 144] } else { &[5, 9, 10, 30, 42] };
            let (kind, code) = (*random.pick(kinds), random.within(0..=4) as u8);
            put(random, true, (kind, code), id | 1, "ICMP of some type");
        }
        _ => {
            for sequence in 0..random.within(1..=3) as u32 {
                put(random, true, (request, 0), id | sequence, "request");
                if random.percent(80) {
                    put(random, false, (reply, 0), id | sequence, "reply");
                }
                if random.percent(10) {
                    put(random, false, (reply, 0), id ^ 0x0011_0000, "reply with another id");
                }
                if random.percent(10) {
                    put(random, false, (request, 0), id | sequence, "request the other way");
                }
                if random.percent(5) {
                    put(random, true, (request, 3), id | sequence, "request with a code");
                }
            }
        }
    }
    if random.percent(40) {
        flow.extend(error_about(random, &pair, flow.last().cloned()));
    }
    flow
}

/// Generates an ICMP error about a packet, from its receiver, from a host on the path, or from an
/// impossible source.
pub(super) fn error_about(
    random: &mut Random,
    pair: &Pair,
    packet: Option<SentFrame>,
) -> Option<SentFrame> {
    let about = packet?;
    let mut inner = about.frame.get(14..)?.to_vec();
    let v6 = inner.first()? >> 4 == 6;
    let header = if v6 { 40 } else { 20 };
    let mut what = "error about what was sent";
    if random.percent(25) {
        // Ports or addresses without a connection.
        let at = if random.percent(50) { header + 1 } else { header - 1 };
        *inner.get_mut(at)? ^= 0x55;
        what = "error about what was not sent";
    }
    let most = *random.pick(&[header + 8, header + 8, header + 28, 548, header + 4]);
    inner.truncate(most);
    let (side, ends) = (about.side.other(), ends_of(&about.frame)?.reversed());
    let on_the_way = universe::ends(random, side, v6).from;
    let from = if random.percent(60) { ends.from } else { on_the_way };
    let (side, ends) = if random.percent(10) {
        what = "error from the same side";
        (about.side, Ends { from: on_the_way, to: ends.from })
    } else {
        (side, Ends { from, to: ends.to })
    };
    let (kind, code) = if v6 {
        *random.pick(&[(1, 0), (1, 1), (1, 4), (2, 0), (3, 0), (4, 1)])
    } else {
        *random.pick(&[(3, 0), (3, 1), (3, 3), (3, 4), (11, 0), (12, 0), (5, 1), (4, 0)])
    };
    let rest =
        if (kind, code) == (3, 4) || kind == 2 { *random.pick(&[576, 1280, 1400]) } else { 0 };
    let message = frame::icmp(ends, kind, code, rest, &inner);
    let packet = Ip { id: random.word(), ..pair.ip.clone() }.packet(ends, ends.icmp(), &message);
    Some(SentFrame { side, frame: frame::to_router(side, &packet), what: what.into() })
}

/// Returns the addresses of a frame with an IP packet.
fn ends_of(frame: &[u8]) -> Option<Ends> {
    let v4 = |at: usize| -> Option<IpAddr> {
        Some(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?.into())
    };
    let v6 = |at: usize| -> Option<IpAddr> {
        Some(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?.into())
    };
    match frame.get(14)? >> 4 {
        4 => Some(Ends { from: v4(26)?, to: v4(30)? }),
        6 => Some(Ends { from: v6(22)?, to: v6(38)? }),
        _ => None,
    }
}

/// Generates a transport protocol of which only the number is known.
pub(super) fn other(random: &mut Random) -> Flow {
    let pair = Pair::new(random);
    let protocol = *random.pick(&universe::OTHERS);
    let mut flow = Flow::new();
    for _ in 0..random.within(1..=3) {
        let forward = flow.is_empty() || random.percent(50);
        let length = *random.pick(&[0, 8, 20, 100]);
        let body = random.bytes(length);
        flow.push(pair.sent(random, forward, protocol, &body, "another protocol"));
    }
    flow
}

/// Generates extension headers of IPv6 that every router accepts.
pub(super) fn extensions(random: &mut Random) -> Vec<(u8, Vec<u8>)> {
    let padding = |words: usize| {
        let mut body = vec![1, (words * 8 + 4) as u8];
        body.resize(words * 8 + 6, 0);
        body
    };
    let mut all = Vec::new();
    if random.percent(50) {
        // Linux drops more than 7 bytes of padding here, before any rule.
        all.push((0, padding(0)));
    }
    if random.percent(60) {
        all.push((60, padding(random.below(3))));
    }
    if random.percent(20) {
        // A routing header without segments left.
        all.push((43, vec![4, 0, 0, 0, 0, 0]));
    }
    if random.percent(10) {
        all.push((60, padding(0)));
    }
    all
}

/// Generates a TCP segment or a datagram, for a test that needs any packet of a connection.
pub(super) fn some_segment(random: &mut Random, ends: Ends, length: usize) -> (u8, Vec<u8>) {
    let ports = (universe::client_port(random), universe::port(random));
    let payload = random.bytes(length);
    match random.within(0..=2) {
        0 => (
            6,
            Tcp { ports, seq: 1000, flags: 2, window: 8192, payload, ..Tcp::default() }.bytes(ends),
        ),
        1 => (17, frame::udp(ends, ports, &payload)),
        _ => {
            let kind = if ends.from.is_ipv4() { 8 } else { 128 };
            (ends.icmp(), frame::icmp(ends, kind, 0, 0x0007_0001, &payload))
        }
    }
}
