//! Generates frames as seen by a switch: ARP, tagged frames, other EtherTypes, and frames for groups.

use super::{Flow, Pair};
use crate::nftdiff::case::SentFrame;
use crate::nftdiff::frame::{self, ARP, Side};
use crate::nftdiff::random::Random;
use crate::nftdiff::universe;

/// Generates a frame that is not IP.
pub(super) fn some(random: &mut Random) -> Flow {
    let pair = Pair::new(random);
    let side = pair.side;
    let (ethertype, body, what) = match random.within(0..=9) {
        0..=5 => (ARP, arp(random, side), "ARP"),
        6 => (0x88b5, random.bytes(46), "some EtherType"),
        7 => (0x0026, random.bytes(46), "a length in place of an EtherType"),
        _ => (0x88cc, random.bytes(60), "some EtherType"),
    };
    let to = if random.percent(50) { [0xff; 6] } else { side.other().host_mac() };
    vec![SentFrame {
        side,
        frame: frame::ethernet(side.host_mac(), to, ethertype, &body),
        what: what.into(),
    }]
}

fn arp(random: &mut Random, side: Side) -> Vec<u8> {
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, random.within(1..=3) as u8];
    body.extend(side.host_mac());
    body.extend(universe::v4(random, side).octets());
    body.extend(if random.percent(50) { [0; 6] } else { *random.pick(&universe::MACS) });
    body.extend(universe::v4(random, side.other()).octets());
    if random.percent(60) {
        body.resize(46, 0);
    }
    body
}

/// Turns the frame of a router's neighbour into one of hosts at a switch, perhaps with a tag.
pub(super) fn disguise(random: &mut Random, sent: &mut SentFrame) {
    let frame = &mut sent.frame;
    if frame.len() < 14 {
        return;
    }
    if frame[..6] == sent.side.router_mac() {
        let to = if random.percent(90) { sent.side.other().host_mac() } else { universe::MACS[2] };
        frame[..6].copy_from_slice(&to);
    }
    if random.percent(15) {
        let tag = random.pick(&universe::VLANS) | (random.within(0..=7) as u16) << 13;
        let mut bytes = [0x81, 0, 0, 0];
        bytes[2..].copy_from_slice(&tag.to_be_bytes());
        frame.splice(12..12, bytes);
    }
}
