//! Fuzzes connection tracking with packets and pauses that an attacker chooses: bounds hold, and
//! the state of a flow stays consistent.
#![cfg_attr(fuzzing, no_main)]

use std::time::Duration;

use adit_filter::Nanos;
use adit_filter::packet::{Layer, Packet};
use adit_filter::ruleset::CtState;
use adit_filter::conntrack::{Crossing, Limits, Tracker};
use adit_wire::VnetHeader;
use adit_wire::checksum::Sum;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const FLOWS: usize = 12;

pub fn run(mut bytes: &[u8]) {
    let Some((&how, rest)) = bytes.split_first() else { return };
    bytes = rest;
    let limits = Limits {
        flows: FLOWS,
        unanswered_per_source: 8,
        shards: usize::from(how & 3) + 1,
        loose: how & 4 == 0,
        ..Limits::default()
    };
    let tracker = Tracker::new(limits, [how; 16]);
    let mut now = Nanos(u64::from(how) << 40);
    while let Some((&op, rest)) = bytes.split_first() {
        bytes = rest;
        let packet = match op & 7 {
            0 => {
                now = now.after(Duration::from_secs(1 << (op >> 3)));
                let _ = tracker.sweep(now);
                continue;
            }
            1 => {
                let Some((&len, rest)) = bytes.split_first() else { break };
                let (packet, rest) = rest.split_at(usize::from(len).min(rest.len()));
                bytes = rest;
                fixed(packet.to_vec())
            }
            2 | 3 => {
                let Some((fields, rest)) = bytes.split_first_chunk() else { break };
                bytes = rest;
                icmp(op, fields)
            }
            _ => {
                let Some((fields, rest)) = bytes.split_first_chunk() else { break };
                bytes = rest;
                segment(op, fields)
            }
        };
        judge(&tracker, &packet, now, op & 0x80 == 0);
    }
    let stats = tracker.stats();
    assert!(stats.bytes < 1 << 20);
    let (mut cursor, mut listed) = (Some(0), 0);
    while let Some(at) = cursor {
        let (flows, next) = tracker.flows(now, at);
        (cursor, listed) = (next, listed + flows.len() as u64);
    }
    assert!(listed <= stats.flows, "those whose time is over are not listed");
}

fn judge(tracker: &Tracker, bytes: &[u8], now: Nanos, accept: bool) {
    let v6 = bytes.first().is_some_and(|first| first >> 4 == 6);
    let (protocol, csum_start) = if v6 { (bytes.get(6), 40) } else { (bytes.get(9), 20) };
    let csum_offset = match protocol {
        Some(6) => 16,
        Some(17) => 6,
        _ => 2,
    };
    let vouched = VnetHeader { needs_csum: true, csum_start, csum_offset, ..VnetHeader::default() };
    let Ok(packet) = Packet::parse(bytes, Layer::Ip, None, &vouched) else { return };
    let mut burst = tracker.burst(now);
    // Between two ports in either direction, or without ports.
    let crossing = match bytes.last().map_or(0, |last| last % 4) {
        1 => Crossing::Up,
        2 => Crossing::Down,
        _ => Crossing::Nowhere,
    };
    let tracked = burst.look(&packet, crossing.into());
    assert_eq!(tracked.state.0.count_ones(), 1);
    let without = [CtState::INVALID, CtState::UNTRACKED].contains(&tracked.state);
    assert_eq!(tracked.protocol.is_none(), without);
    let entered = accept && !without && burst.confirm(&tracked, &packet);
    if entered && tracked.state == CtState::NEW {
        let again = burst.look(&packet, crossing.into());
        assert!(again.state != CtState::NEW || burst.verdict_cache(&again).is_some(), "{again:?}");
    }
    drop(burst);
    // Each shard rounds its share up.
    assert!(tracker.stats().flows <= (FLOWS + 4) as u64);
}

/// Builds a packet between one of two pairs of hosts, in either direction.
fn network(op: u8, protocol: u8, transport: &[u8]) -> Vec<u8> {
    let hosts = if op & 8 == 0 { [1, 2] } else { [2, 1] };
    let mut packet = if op & 16 == 0 {
        let total = (transport.len() as u16 + 20).to_be_bytes();
        let mut packet = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, protocol, 0, 0];
        hosts.iter().for_each(|host| packet.extend([10, 0, 0, *host]));
        packet
    } else {
        let len = (transport.len() as u16).to_be_bytes();
        let mut packet = vec![0x60, 0, 0, 0, len[0], len[1], protocol, 64];
        hosts.iter().for_each(|host| packet.extend([*host; 16]));
        packet
    };
    packet.extend(transport);
    fixed(packet)
}

/// Builds a TCP segment: flags, a port, numbers near two starts, a window, an option's bytes and
/// the length.
fn segment(op: u8, fields: &[u8; 16]) -> Vec<u8> {
    let [flags, port, s0, s1, a0, a1, w0, w1, len, options @ ..] = *fields;
    let starts = if op & 8 == 0 { [1u32, 7] } else { [7, 1] };
    let number = |start: u32, near: [u8; 2]| {
        (start << 28).wrapping_add(i32::from(i16::from_be_bytes(near)) as u32)
    };
    let mut ports = [0, 80, 0x10, port & 3];
    if op & 8 == 0 {
        ports.rotate_left(2);
    }
    let mut tcp = ports.to_vec();
    tcp.extend(number(starts[0], [s0, s1]).to_be_bytes());
    tcp.extend(number(starts[1], [a0, a1]).to_be_bytes());
    tcp.extend([0x70, flags, w0, w1, 0, 0, 0, 0, 1]);
    tcp.extend(options);
    tcp.resize(28 + usize::from(len), 0);
    network(op, 6, &tcp)
}

/// Builds an ICMP message with the head of a packet in it: type, code, id, and that head.
fn icmp(op: u8, fields: &[u8; 8]) -> Vec<u8> {
    let [kind, code, id, tcp @ ..] = *fields;
    let mut inner = [0; 16];
    inner[..5].copy_from_slice(&tcp);
    let inner = segment(op ^ 8, &inner);
    let mut message = vec![kind, code, 0, 0, 0, id & 1, 0, 0];
    message.extend(&inner[..inner.len().min(48)]);
    network(op, if op & 16 == 0 { 1 } else { 58 }, &message)
}

/// Fills in the checksum of an IPv4 header.
fn fixed(mut packet: Vec<u8>) -> Vec<u8> {
    let len = usize::from(packet.first().copied().unwrap_or(0) & 15) * 4;
    if packet.len() >= len.max(20) && packet[0] >> 4 == 4 {
        packet[10..12].fill(0);
        let sum = !Sum::new().bytes(&packet[..len]).fold();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}
