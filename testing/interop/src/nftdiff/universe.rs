//! The few values from which rules and packets are built, so that they match often.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::frame::{Ends, Side};
use super::random::Random;

const V4: [[[u8; 4]; 6]; 2] = [
    [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 255], [10, 0, 1, 1], [10, 1, 0, 9], [10, 77, 8, 128]],
    [
        [192, 168, 0, 1],
        [192, 168, 0, 2],
        [192, 168, 1, 128],
        [172, 16, 0, 1],
        [203, 0, 113, 5],
        [8, 8, 8, 8],
    ],
];

const V6: [[&str; 5]; 2] = [
    ["2001:db8:a::1", "2001:db8:a::2", "2001:db8:a:1::1", "2001:db8:a:1:ffff::9", "fd00:a::7"],
    ["2001:db8:b::1", "2001:db8:b::2", "2001:db8:b:80::1", "2001:db8:b:1:1:1:1:1", "fd00:b::7"],
];

/// Ports on which something might listen.
pub(super) const PORTS: [u16; 14] =
    [22, 53, 80, 81, 123, 443, 1023, 1024, 4000, 5000, 7070, 8080, 32_768, 65_535];

/// Transport protocols other than TCP, UDP, ICMP or ICMPv6, for which there is no specific connection tracking.
pub(super) const OTHERS: [u8; 4] = [50, 89, 253, 4];

/// Time-to-live values.
pub(super) const TTLS: [u8; 6] = [1, 2, 63, 64, 127, 254];

/// Type-of-service bytes.
pub(super) const TOS: [u8; 8] = [0, 0, 0, 0x28, 0xb8, 0x02, 0x01, 0xff];

/// VLAN tags' ids.
pub(super) const VLANS: [u16; 4] = [1, 2, 100, 4094];

/// Hardware addresses other than those of the hosts.
pub(super) const MACS: [[u8; 6]; 3] =
    [[2, 0xad, 0x17, 0, 0xa, 2], [2, 0xad, 0x17, 0, 0xb, 2], [0x52, 0x54, 0, 0x12, 0x34, 0x56]];

/// Returns an IPv4 address of a side, usually a known one.
pub(super) fn v4(random: &mut Random, side: Side) -> Ipv4Addr {
    let known = Ipv4Addr::from(*random.pick(&V4[side as usize]));
    if random.percent(90) {
        return known;
    }
    // Use a neighbour, because rules' ranges end near here.
    let near = u32::from(known).wrapping_add(random.within(0..=4) as u32).wrapping_sub(2);
    Ipv4Addr::from(near)
}

/// Returns an IPv6 address of a side, usually a known one.
pub(super) fn v6(random: &mut Random, side: Side) -> Ipv6Addr {
    let known: Ipv6Addr = random.pick(&V6[side as usize]).parse().unwrap_or(Ipv6Addr::LOCALHOST);
    if random.percent(90) {
        return known;
    }
    Ipv6Addr::from(u128::from(known).wrapping_add(u128::from(random.within(0..=4))).wrapping_sub(2))
}

/// Returns the ends of a packet that arrives at `side`; rarely its source is on the other side.
pub(super) fn ends(random: &mut Random, side: Side, is_v6: bool) -> Ends {
    let from = if random.percent(3) { side.other() } else { side };
    if is_v6 {
        Ends { from: v6(random, from).into(), to: v6(random, from.other()).into() }
    } else {
        Ends { from: v4(random, from).into(), to: v4(random, from.other()).into() }
    }
}

/// Returns a port on which a service might listen, or one near it, or any.
pub(super) fn port(random: &mut Random) -> u16 {
    match random.within(0..=19) {
        0 => random.word().max(1),
        1 => random.pick(&PORTS).saturating_add(1),
        2 => random.pick(&PORTS).saturating_sub(1).max(1),
        _ => *random.pick(&PORTS),
    }
}

/// Returns a client's port.
pub(super) fn client_port(random: &mut Random) -> u16 {
    if random.percent(30) { port(random) } else { random.within(40_000..=40_020) as u16 }
}
