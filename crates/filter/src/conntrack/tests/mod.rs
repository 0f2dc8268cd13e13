//! Scenarios in virtual time. `World` is a bridge whose rules accept every valid packet.

use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::packet::Layer;
use crate::testing::{naive_checksum, v4_of, v6_of};
use adit_wire::{Gso, VnetHeader};

mod icmp;
mod model;
mod reset;
mod saved;
mod shares;
mod table;
mod tcp;
mod time;
mod zones;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// Hosts: A sends requests, B answers, C is not involved.
pub(super) const A: u8 = 1;
pub(super) const B: u8 = 2;
pub(super) const C: u8 = 3;

pub(super) fn host(v6: bool, host: u8) -> IpAddr {
    if v6 {
        IpAddr::from([0xfd00, 0, 0, host.into(), 0, 0, 0, 1])
    } else {
        IpAddr::from([10, 0, 0, host])
    }
}

/// Fills in a packet's transport checksum at offset `at`.
pub(super) fn packet(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    mut l4: Vec<u8>,
    at: Option<usize>,
) -> Vec<u8> {
    let pseudo = |octets: &[&[u8]]| {
        let mut pseudo = octets.concat();
        pseudo.extend([0, protocol]);
        pseudo.extend((l4.len() as u16).to_be_bytes());
        pseudo
    };
    let mut sum = match (source, destination) {
        _ if protocol == 1 => Vec::new(),
        (IpAddr::V4(s), IpAddr::V4(d)) => pseudo(&[&s.octets(), &d.octets()]),
        (IpAddr::V6(s), IpAddr::V6(d)) => pseudo(&[&s.octets(), &d.octets()]),
        _ => unreachable!("one family"),
    };
    if let Some(at) = at {
        sum.extend(&l4);
        let sum = naive_checksum(&sum);
        l4[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => v4_of(s, d, 1, 0x4000, protocol, &l4),
        (IpAddr::V6(s), IpAddr::V6(d)) => v6_of(s, d, &[], protocol, &l4),
        _ => unreachable!("one family"),
    }
}

/// A TCP segment, from A:4000 to B:80 or back.
#[derive(Clone, Debug)]
pub(super) struct Seg {
    pub(super) v6: bool,
    pub(super) back: bool,
    pub(super) flags: u8,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) window: u16,
    pub(super) options: Vec<u8>,
    pub(super) len: usize,
}

pub(super) fn seg(flags: u8, seq: u32, ack: u32) -> Seg {
    let options = Vec::new();
    Seg { v6: false, back: false, flags, seq, ack, window: 1000, options, len: 0 }
}

impl Seg {
    pub(super) fn back(self) -> Self {
        Self { back: true, ..self }
    }

    pub(super) fn len(self, len: usize) -> Self {
        Self { len, ..self }
    }

    pub(super) fn window(self, window: u16) -> Self {
        Self { window, ..self }
    }

    pub(super) fn options(self, options: &[u8]) -> Self {
        Self { options: options.to_vec(), ..self }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let (a, b) = (host(self.v6, A), host(self.v6, B));
        if self.back { self.between((b, 80), (a, 4000)) } else { self.between((a, 4000), (b, 80)) }
    }

    pub(super) fn between(&self, from: (IpAddr, u16), to: (IpAddr, u16)) -> Vec<u8> {
        let mut l4 = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        l4.extend(self.seq.to_be_bytes());
        l4.extend(self.ack.to_be_bytes());
        let words = 5 + self.options.len().div_ceil(4);
        l4.extend([(words as u8) << 4, self.flags]);
        l4.extend(self.window.to_be_bytes());
        l4.extend([0; 4]);
        l4.extend(&self.options);
        l4.resize(words * 4, 0);
        l4.resize(words * 4 + self.len, 0x55);
        packet(from.0, to.0, 6, l4, Some(16))
    }
}

pub(super) fn udp(from: (IpAddr, u16), to: (IpAddr, u16)) -> Vec<u8> {
    let mut l4 = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    l4.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    packet(from.0, to.0, 17, l4, Some(6))
}

pub(super) fn icmp(
    source: IpAddr,
    destination: IpAddr,
    kind: (u8, u8),
    rest: u32,
    body: &[u8],
) -> Vec<u8> {
    let mut l4 = vec![kind.0, kind.1, 0, 0];
    l4.extend(rest.to_be_bytes());
    l4.extend(body);
    packet(source, destination, if source.is_ipv6() { 58 } else { 1 }, l4, Some(2))
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) tracker: Tracker,
    pub(super) now: Nanos,
}

/// The two values that most tests compare.
pub(super) type View = (CtState, CtDirection);
pub(super) const NEW: View = (CtState::NEW, CtDirection::Original);
pub(super) const GOES: View = (CtState::ESTABLISHED, CtDirection::Original);
pub(super) const COMES: View = (CtState::ESTABLISHED, CtDirection::Reply);
pub(super) const BAD: View = (CtState::INVALID, CtDirection::Original);
pub(super) const UNTRACKED: View = (CtState::UNTRACKED, CtDirection::Original);

impl World {
    pub(super) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(super) fn with(limits: Limits) -> Self {
        Self { tracker: Tracker::new(limits, [7; 16]), now: Nanos(1_000_000_000_000) }
    }

    pub(super) fn wait(&mut self, span: Duration) {
        self.now = self.now.after(span);
    }

    /// Looks up a packet without confirming it, as if the rules dropped it.
    pub(super) fn look(&self, bytes: &[u8]) -> Tracked {
        let packet = Packet::parse(bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
        self.tracker.burst(self.now).look(&packet, Crossing::Nowhere.into())
    }

    /// Looks up a packet, and confirms it unless it is invalid; returns its state, and whether the
    /// table had room.
    pub(super) fn enter(&self, bytes: &[u8]) -> (View, bool) {
        self.enter_by(bytes, Crossing::Nowhere)
    }

    pub(super) fn enter_by(&self, bytes: &[u8], path: impl Into<Path>) -> (View, bool) {
        let packet = Packet::parse(bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
        let mut burst = self.tracker.burst(self.now);
        let tracked = burst.look(&packet, path.into());
        let room = tracked.state == CtState::INVALID || burst.confirm(&tracked, &packet);
        ((tracked.state, tracked.direction), room)
    }

    /// Looks up a packet as [`World::look`] does, on this path.
    pub(super) fn look_by(&self, bytes: &[u8], path: Path) -> View {
        let packet = Packet::parse(bytes, Layer::Ip, None, &VnetHeader::default()).unwrap();
        let tracked = self.tracker.burst(self.now).look(&packet, path);
        (tracked.state, tracked.direction)
    }

    pub(super) fn pass(&self, bytes: &[u8]) -> View {
        let (view, room) = self.enter(bytes);
        assert!(room, "no room");
        view
    }

    pub(super) fn tcp(&self, segment: Seg) -> View {
        self.pass(&segment.bytes())
    }

    pub(super) fn flows(&self) -> Vec<FlowInfo> {
        let (mut all, mut cursor) = (Vec::new(), Some(0));
        while let Some(at) = cursor {
            let (page, next) = self.tracker.flows(self.now, at);
            all.extend(page);
            cursor = next;
        }
        all
    }

    pub(super) fn only(&self) -> FlowInfo {
        let flows = self.flows();
        assert_eq!(flows.len(), 1, "{flows:?}");
        flows[0].clone()
    }

    pub(super) fn invalid(&self, reason: Invalid) -> u64 {
        let counts = self.tracker.stats().invalid;
        counts.iter().find(|(other, _)| *other == reason).map_or(0, |(_, count)| *count)
    }

    /// Creates an established connection from 1000 and 5000 on: A's next byte is 1001, B's is 5001.
    pub(super) fn connected() -> Self {
        let world = Self::new();
        world.connect();
        world
    }

    pub(super) fn connect(&self) {
        assert_eq!(self.tcp(seg(SYN, 1000, 0)), NEW);
        assert_eq!(self.tcp(seg(SYN | ACK, 5000, 1001).back()), COMES);
        assert_eq!(self.tcp(seg(ACK, 1001, 5001)), GOES);
        assert_eq!(self.only().state, FlowState::Established);
    }
}
