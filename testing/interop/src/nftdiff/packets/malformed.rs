//! Fragments, and malformed packets.

use super::plain::{extensions, some_segment};
use super::{Flow, Pair};
use crate::nftdiff::case::SentFrame;
use crate::nftdiff::frame::{self, Ip, Piece, to_router};
use crate::nftdiff::random::Random;

/// The difference for a fragment within another.
pub const WITHIN: &str = "a piece within another";

/// The difference for datagrams whose checksum is zero.
pub const NO_CHECKSUM: &str = "UDP without checksum";

/// Generates a packet whose fragments are in order, out of order, duplicated, overlapping, tiny, or with holes between
/// them.
pub(super) fn pieces(random: &mut Random) -> Flow {
    let pair = Pair::new(random);
    let length = *random.pick(&[40, 200, 1000, 2500]);
    let (protocol, segment) = some_segment(random, pair.ends, length);
    let ip = Ip { df: false, extensions: Vec::new(), ..pair.ip.clone() };
    let packet = ip.packet(pair.ends, protocol, &segment);
    let size = *random.pick(&[8, 16, 24, 64, 512, 1400]).min(&(segment.len() / 8 * 8).max(8));
    let mut plan = Vec::new();
    let mut offset = 0;
    while offset < segment.len() && plan.len() < 12 {
        let most = if plan.len() == 11 { 1400 } else { size };
        let length = most.min(segment.len() - offset);
        plan.push(Piece { offset, length, more: offset + length < segment.len() });
        offset += length;
    }
    let what = rearrange(random, &mut plan);
    let id = random.bits() as u32;
    plan.into_iter()
        .map(|plan| {
            let made = frame::piece(&packet, id, plan);
            SentFrame { side: pair.side, frame: to_router(pair.side, &made), what: what.into() }
        })
        .collect()
}

fn rearrange(random: &mut Random, plan: &mut Vec<Piece>) -> &'static str {
    let what = move_about(random, plan);
    let within = |one: &Piece, other: &Piece| {
        let (end, other_end) = (one.offset + one.length, other.offset + other.length);
        one.offset >= other.offset
            && end <= other_end
            && (one.length, one.more) != (other.length, other.more)
    };
    if plan.iter().any(|one| plan.iter().any(|other| within(one, other))) { WITHIN } else { what }
}

fn move_about(random: &mut Random, plan: &mut Vec<Piece>) -> &'static str {
    let at = random.below(plan.len());
    match random.within(0..=9) {
        0 => {
            plan.reverse();
            "pieces from behind"
        }
        1 => {
            let other = random.below(plan.len());
            plan.swap(at, other);
            "pieces out of order"
        }
        2 => {
            let twice = plan[at];
            plan.insert(at, twice);
            "a piece twice"
        }
        // The last one would make a datagram longer than its UDP header states.
        3 if plan[at].more => {
            plan[at].length += 8;
            "overlapping pieces"
        }
        4 => {
            plan.remove(at);
            "a piece is missing"
        }
        5 if plan[at].offset >= 8 => {
            plan[at].offset -= 8;
            "overlapping pieces"
        }
        6 if plan[at].more => {
            plan[at].length = plan[at].length.saturating_sub(3).max(1);
            "a piece of odd length"
        }
        7 => {
            let last = plan.len() - 1;
            plan[last].more = true;
            "no last piece"
        }
        _ => "pieces in order",
    }
}

/// Generates a packet that is wrong in one place.
pub(super) fn broken(random: &mut Random) -> Flow {
    let pair = Pair::new(random);
    let length = *random.pick(&[0, 9, 200]);
    let (protocol, segment) = some_segment(random, pair.ends, length);
    let sound = pair.sent(random, true, protocol, &segment, "");
    let mut sent = sound.clone();
    let what = if pair.ends.from.is_ipv4() {
        break_v4(random, &mut sent.frame, protocol)
    } else {
        break_v6(random, &pair, &mut sent.frame, protocol, &segment)
    };
    sent.what = what.into();
    // The valid packet is sent as well, because the invalid one must not have left traces.
    if random.percent(50) {
        vec![sent, SentFrame { what: "sound after broken".into(), ..sound }]
    } else {
        vec![sent]
    }
}

fn break_v4(random: &mut Random, frame: &mut Vec<u8>, protocol: u8) -> &'static str {
    let header = 14 + usize::from(frame[14] & 15) * 4;
    let end = frame.len();
    let mut seal = true;
    let what = match random.within(0..=11) {
        0 => {
            frame[24] ^= 1;
            seal = false;
            "wrong header checksum"
        }
        1 => {
            frame[14] = 0x44;
            "header length below 20"
        }
        // Otherwise the payload would become options, and Linux drops invalid ones before any rule.
        2 if end < 74 => {
            frame[14] = 0x4f;
            "header length beyond the end"
        }
        3 => {
            let total = (end - 14 + 8) as u16;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            "total length beyond the end"
        }
        4 => {
            frame.extend([0xaa; 7]);
            "bytes behind the end"
        }
        5 => {
            frame[16..18].copy_from_slice(&19u16.to_be_bytes());
            "total length below the header"
        }
        6 => {
            frame[14] = 0x50 | (frame[14] & 15);
            "version 5"
        }
        7 => {
            frame.truncate(header + 4);
            let total = (header + 4 - 14) as u16;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            "transport header cut short"
        }
        _ => break_transport(random, frame, header, protocol),
    };
    if seal && frame.len() >= 34 {
        let length = (usize::from(frame[14] & 15) * 4).clamp(20, frame.len() - 14);
        frame::seal_v4(&mut frame[14..], length);
    }
    what
}

fn break_v6(
    random: &mut Random,
    pair: &Pair,
    frame: &mut Vec<u8>,
    protocol: u8,
    segment: &[u8],
) -> &'static str {
    let plain = pair.ip.extensions.is_empty();
    match random.within(0..=9) {
        0 => {
            let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
            frame[18..20].copy_from_slice(&length.to_be_bytes());
            "payload length beyond the end"
        }
        1 => {
            frame.extend([0xaa; 7]);
            "bytes behind the end"
        }
        2 if plain => {
            frame.truncate(54 + 4);
            frame[18..20].copy_from_slice(&4u16.to_be_bytes());
            "transport header cut short"
        }
        3 => {
            let mut ip = Ip { extensions: extensions(random), ..pair.ip.clone() };
            ip.extensions.push((60, vec![1, 4, 0, 0, 0, 0]));
            let mut packet = ip.packet(pair.ends, protocol, segment);
            // The last extension claims more bytes than there are.
            let at = packet.len() - segment.len() - 8;
            packet[at + 1] = 200;
            *frame = to_router(pair.side, &packet);
            "extension header beyond the end"
        }
        4 => {
            let ip = Ip { extensions: Vec::new(), ..pair.ip.clone() };
            *frame = to_router(pair.side, &ip.packet(pair.ends, 59, &random.bytes(8)));
            "no next header"
        }
        _ if plain => break_transport(random, frame, 54, protocol),
        _ => "sound",
    }
}

fn break_transport(random: &mut Random, frame: &mut [u8], at: usize, protocol: u8) -> &'static str {
    let byte = match protocol {
        6 => 16,
        17 => 6,
        _ => 2,
    };
    match (protocol, random.within(0..=4)) {
        (6, 0) => {
            frame[at + 12] = 0x40;
            "TCP header length below 20"
        }
        (6, 1) => {
            frame[at + 12] = 0xf0;
            "TCP header length perhaps beyond the end"
        }
        (17, 0) => {
            frame[at + 4..at + 6].copy_from_slice(&7u16.to_be_bytes());
            "UDP length below 8"
        }
        (17, 1) => {
            frame[at + 4..at + 6].copy_from_slice(&60_000u16.to_be_bytes());
            "UDP length beyond the end"
        }
        (17, 2) => {
            frame[at + 6..at + 8].fill(0);
            NO_CHECKSUM
        }
        _ => {
            frame[at + byte] ^= 0x11;
            "wrong transport checksum"
        }
    }
}
