//! Random frames with correct checksums and lengths, and with few different addresses and ports.

use adit_wire::checksum::Sum;
use adit_wire::{Gso, VnetHeader};

use super::Source;
use crate::Nanos;
use crate::evaluate::{Context, IfName};
use crate::packet::{Layer, Malformed, Packet};
use crate::ruleset::{CtDirection, CtState};

pub(super) const NAMES: [&str; 4] = ["eth0", "eth1", "eth10", "tun0"];

/// A frame from a device.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The frame.
    pub bytes: Vec<u8>,
    /// The layer of the device.
    pub layer: Layer,
    /// A VLAN tag outside the frame.
    pub beside: Option<u16>,
    /// Whether it is a super-packet.
    pub vnet: VnetHeader,
}

impl Frame {
    /// Parses the headers of the frame.
    pub fn parse(&self) -> Result<Packet<'_>, Malformed> {
        Packet::parse(&self.bytes, self.layer, self.beside, &self.vnet)
    }
}

/// Generates a frame at this time, with its metadata.
pub fn frame(source: &mut Source<'_>, now: u64) -> (Frame, Context) {
    let (network, ethertype, vnet) = match source.below(12) {
        0 => (arp(source), 0x0806, VnetHeader::default()),
        1 => (vec![source.below(256) as u8; 50], 0x1234, VnetHeader::default()),
        2..=4 => ipv6(source),
        _ => ipv4(source),
    };
    let ip = ethertype == 0x0800 || ethertype == 0x86dd;
    let layer = if ip && source.once_in(4) { Layer::Ip } else { Layer::Ethernet };
    let mut bytes = Vec::new();
    if layer == Layer::Ethernet {
        let mac = |source: &mut Source<'_>| match source.below(6) {
            4 => [0xff; 6],
            5 => [1, 0, 0x5e, 0, 0, 1],
            at => [2, 0, 0, 0, 0, at as u8],
        };
        bytes.extend(mac(source));
        bytes.extend(mac(source));
        if source.once_in(5) {
            bytes.extend([0x81, 0, (source.below(3) as u8) << 5, source.below(4) as u8]);
        }
        bytes.extend((ethertype as u16).to_be_bytes());
    }
    let shift = bytes.len() as u16;
    bytes.extend(network);
    let mut vnet = vnet;
    vnet.csum_start += shift;
    vnet.hdr_len += shift;
    let beside = (layer == Layer::Ethernet && source.once_in(8)).then(|| source.below(4) as u16);
    (Frame { bytes, layer, beside, vnet }, context(source, now))
}

/// Generates another packet of the same flow, in which properties that may vary within a flow may
/// have changed.
pub(super) fn again(
    known: &(Frame, Context),
    source: &mut Source<'_>,
    now: u64,
) -> (Frame, Context) {
    let (mut frame, mut context) = known.clone();
    context.now = Nanos(now);
    match source.below(8) {
        0 => context = self::context(source, now),
        1 => context.state = CtState::ESTABLISHED,
        2 if frame.layer == Layer::Ethernet => frame.bytes[11] = source.below(4) as u8,
        3 if frame.layer == Layer::Ethernet => frame.beside = Some(source.below(4) as u16),
        4 => context.iif = IfName::new(source.pick(&NAMES)),
        _ => {}
    }
    (frame, context)
}

fn context(source: &mut Source<'_>, now: u64) -> Context {
    let name = |source: &mut Source<'_>| {
        if source.once_in(8) { IfName(0) } else { IfName::new(source.pick(&NAMES[..2])) }
    };
    let state = source.pick(&[
        CtState::ESTABLISHED,
        CtState::NEW,
        CtState::ESTABLISHED,
        CtState::NEW,
        CtState::RELATED,
        CtState::INVALID,
        CtState::UNTRACKED,
    ]);
    let known = !matches!(state, CtState::INVALID | CtState::UNTRACKED);
    Context {
        now: Nanos(now),
        iif: name(source),
        oif: name(source),
        state,
        direction: source.pick(&[CtDirection::Original, CtDirection::Reply]),
        protocol: known.then(|| source.pick(&[6, 17, 1])),
    }
}

fn arp(source: &mut Source<'_>) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, source.below(3) as u8];
    for _ in 0..2 {
        arp.extend([2, 0, 0, 0, 0, source.below(4) as u8, 10, 0, 0, source.below(16) as u8]);
    }
    arp
}

/// Generates the protocol's number, its bytes, and whether it is a super-packet.
fn transport(source: &mut Source<'_>, v4: bool) -> (u8, Vec<u8>, bool) {
    let port = |source: &mut Source<'_>| 20 + source.below(8) as u8;
    let (from, to) = (port(source), port(source));
    let more = source.below(8);
    match source.below(10) {
        0..=3 => {
            let flags = source.pick(&[2, 16, 18, 17, 4]);
            let mut tcp = vec![0, from, 0, to, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags];
            tcp.extend([0, source.below(4) as u8, 0, 3, 0, 0]);
            let super_packet = source.once_in(4);
            tcp.resize(20 + if super_packet { 25 } else { more }, 7);
            (6, tcp, super_packet)
        }
        4..=6 => {
            let mut udp = vec![0, from, 0, to, 0, 8 + more as u8, 0, 5];
            udp.resize(8 + more, 7);
            (17, udp, false)
        }
        7 | 8 => {
            let kinds = if v4 { [0, 3, 8, 11] } else { [2, 128, 129, 1] };
            let mut icmp = vec![source.pick(&kinds), source.below(3) as u8, 0, 0];
            icmp.extend([0, source.below(4) as u8, 0, source.below(4) as u8]);
            (if v4 { 1 } else { 58 }, icmp, false)
        }
        _ => {
            let length = source.pick(&[2, 12]);
            (
                source.pick(&[132, 33, 136, 47]),
                vec![0, from, 0, to, 0, 0, 0, 0, 0, 0, 0, 0][..length].to_vec(),
                false,
            )
        }
    }
}

fn vnet(super_packet: bool, gso: Gso, header: u16) -> VnetHeader {
    if !super_packet {
        return VnetHeader::default();
    }
    VnetHeader {
        needs_csum: true,
        gso,
        ecn: false,
        hdr_len: header + 20,
        gso_size: 10,
        csum_start: header,
        csum_offset: 16,
    }
}

fn ipv4(source: &mut Source<'_>) -> (Vec<u8>, u32, VnetHeader) {
    let (protocol, body, super_packet) = transport(source, true);
    let options = if source.once_in(6) { 4 } else { 0 };
    let length = 20 + options + body.len();
    let fragment = if source.once_in(10) && !super_packet { 0x20 } else { 0x40 };
    let mut head = vec![0x45 + (options / 4) as u8, source.below(16) as u8, 0, length as u8];
    head.extend([
        0,
        source.below(8) as u8,
        fragment,
        0,
        source.pick(&[64, 1, 255]),
        protocol,
        0,
        0,
    ]);
    head.extend([10, 0, 0, source.below(16) as u8, 10, 0, 0, source.below(16) as u8]);
    head.resize(20 + options, 1);
    let sum = Sum::new().bytes(&head).finish().to_be_bytes();
    head[10..12].copy_from_slice(&sum);
    head.extend(body);
    (head, 0x0800, vnet(super_packet, Gso::TcpV4, 20 + options as u16))
}

fn ipv6(source: &mut Source<'_>) -> (Vec<u8>, u32, VnetHeader) {
    let (protocol, body, super_packet) = transport(source, false);
    let chain = source.once_in(6) && !super_packet;
    let length = body.len() + if chain { 8 } else { 0 };
    let mut head = vec![0x60 | source.below(4) as u8, source.below(4) as u8 * 16, 0, 3];
    head.extend([0, length as u8, if chain { 60 } else { protocol }, source.pick(&[64, 1])]);
    for _ in 0..2 {
        head.push(0xfd);
        head.resize(head.len() + 14, 0);
        head.push(source.below(16) as u8);
    }
    if chain {
        head.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
    }
    head.extend(body);
    (head, 0x86dd, vnet(super_packet, Gso::TcpV6, 40))
}
