//! The identity of a flow: addresses, protocol, and ports or ICMP identifier, the same in both directions.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::Invalid;
use super::clients::Client;
use super::hash::Seed;
use crate::evaluate::IfName;
use crate::packet::{Ip, MAX_EXTENSIONS, Packet, Transport};

/// Protocols whose ports are in the same place as TCP's, and which are not parsed further.
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// The lower end's address, the higher end's (two words each), and `ports << 32 | class << 16 | protocol << 8 | bits`,
/// ports in the same order. The last word is `high << 48 | low << 32 | vlans`: the clients at the higher and the lower
/// end, and [`Packet::vlans`].
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(super) struct FlowKey([u64; 6]);

/// The addresses are IPv6.
const V6: u64 = 1;
/// ICMP: the end that sends the query is the lower one.
const LOW_ASKS: u64 = 2;
/// The flow crosses between two ports.
const PORTS: u64 = 4;
/// The lower end is behind the port that [`Crossing::Down`] comes from.
const LOW_IS_DOWN: u64 = 8;

/// The direction in which a packet crosses between two ports. An answer crosses in the opposite one.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Crossing {
    /// The packet leaves through the port on which it arrived, or ports are not distinguished.
    #[default]
    Nowhere,
    /// The packet crosses to the port with the higher name.
    Up,
    /// The packet crosses to the port with the lower name.
    Down,
}

impl Crossing {
    /// Returns the crossing of a packet that arrives on `iif` and leaves through `oif`.
    #[inline]
    pub fn between(iif: IfName, oif: IfName) -> Self {
        match iif.0.cmp(&oif.0) {
            std::cmp::Ordering::Less => Self::Up,
            std::cmp::Ordering::Equal => Self::Nowhere,
            std::cmp::Ordering::Greater => Self::Down,
        }
    }

    /// Returns the crossing of an answer.
    pub(super) const fn back(self) -> Self {
        match self {
            Self::Nowhere => Self::Nowhere,
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// The path of a packet, without its addresses. An answer takes the opposite path.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Path {
    /// The ports between which the packet crosses.
    pub(crate) crossing: Crossing,
    /// The clients that the packet comes from and goes to.
    pub(crate) clients: [Client; 2],
}

impl Path {
    /// Returns the path of an answer.
    pub(super) const fn back(self) -> Self {
        let [from, to] = self.clients;
        Self { crossing: self.crossing.back(), clients: [to, from] }
    }
}

impl From<Crossing> for Path {
    /// Creates a path between ports without clients, as on a bridge.
    fn from(crossing: Crossing) -> Self {
        Self { crossing, clients: [0; 2] }
    }
}

/// A key, and whether the packet is sent from the higher end to the lower.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct FlowTuple {
    pub(super) key: FlowKey,
    pub(super) downwards: bool,
}

impl FlowTuple {
    /// Adds ports, clients and VLANs to the key, so that flows with the same addresses on another path are different
    /// flows.
    #[inline]
    pub(super) fn within(mut self, vlans: u32, path: Path) -> Self {
        let Path { crossing, clients: [from, to] } = path;
        let FlowKey([.., tail, last]) = &mut self.key;
        if crossing != Crossing::Nowhere {
            let low_is_down = (crossing == Crossing::Down) != self.downwards;
            *tail |= PORTS | if low_is_down { LOW_IS_DOWN } else { 0 };
        }
        let (low, high) = if self.downwards { (to, from) } else { (from, to) };
        *last = u64::from(high) << 48 | u64::from(low) << 32 | u64::from(vlans);
        self
    }
}

/// The role of an ICMP type in connection tracking.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum IcmpRole {
    /// A query. It may start a flow.
    Query,
    /// A reply to a query of this type.
    Reply(u8),
    /// An error. It carries the head of a packet.
    Error,
    /// IPv6 neighbour discovery and multicast listener discovery: never tracked.
    Neighbour,
    /// An unknown type.
    Unknown,
}

/// The protocol number of a packet without a next header (RFC 8200 4.7).
const NO_NEXT_HEADER: u8 = 59;

impl IcmpRole {
    pub(super) const fn of(v6: bool, kind: u8) -> Self {
        match (v6, kind) {
            (false, 8 | 13 | 15 | 17) | (true, 128 | 139) => Self::Query,
            (false, 0) => Self::Reply(8),
            (false, 14 | 16 | 18) | (true, 129 | 140) => Self::Reply(kind.wrapping_sub(1)),
            (false, 3 | 4 | 5 | 11 | 12) | (true, 0..128) => Self::Error,
            (true, 130..=136 | 143) => Self::Neighbour,
            _ => Self::Unknown,
        }
    }
}

impl FlowKey {
    pub(super) const EMPTY: Self = Self([0; 6]);

    /// Returns the key of a complete packet; of ICMP messages, only queries and replies have one.
    pub(super) fn of(packet: &Packet<'_>, ip: &Ip) -> Result<FlowTuple, Invalid> {
        let ports = match packet.transport {
            Transport::Tcp(tcp) => tcp.ports,
            Transport::Udp(udp) => udp.ports,
            Transport::Icmp(icmp) => {
                let id = (icmp.rest >> 16) as u16;
                let ends = (ip.source, ip.destination);
                return Self::icmp(ends, ip.protocol, (icmp.kind, icmp.code), id)
                    .ok_or(Invalid::Icmp);
            }
            // There is no payload; Linux does not track it either.
            Transport::Other if ip.protocol == NO_NEXT_HEADER && ip.source.is_ipv6() => {
                return Err(Invalid::Headers);
            }
            Transport::Other => {
                let rest = packet.bytes.get(ip.payload..).unwrap_or(&[]);
                leading_ports(ip.protocol, rest).ok_or(Invalid::Headers)?
            }
            Transport::None => return Err(Invalid::Headers),
        };
        Self::ports(ip.source, ip.destination, ip.protocol, ports).ok_or(Invalid::Headers)
    }

    /// Returns the key of the packet whose first bytes are in an ICMP error of the same family, and the address that
    /// sent that packet. Returns `None` if they are too few, belong to a later fragment, or to a packet that could not
    /// have a flow.
    pub(super) fn embedded(v6: bool, head: &[u8]) -> Option<(FlowTuple, IpAddr)> {
        let inner = if v6 { Inner::v6(head)? } else { Inner::v4(head)? };
        let way = match (v6, inner.protocol) {
            (false, adit_wire::ip::ICMP) | (true, adit_wire::ip::ICMPV6) => {
                let [kind, code, _, _, id0, id1, ..] = *inner.rest.first_chunk::<8>()?;
                let ends = (inner.source, inner.destination);
                let id = u16::from_be_bytes([id0, id1]);
                Self::icmp(ends, inner.protocol, (kind, code), id)?
            }
            (_, adit_wire::ip::TCP | adit_wire::ip::UDP) => {
                let ports = u32::from_be_bytes(*inner.rest.first_chunk()?);
                Self::ports(inner.source, inner.destination, inner.protocol, ports)?
            }
            _ => {
                let ports = leading_ports(inner.protocol, inner.rest)?;
                Self::ports(inner.source, inner.destination, inner.protocol, ports)?
            }
        };
        Some((way, inner.source))
    }

    fn ports(source: IpAddr, destination: IpAddr, protocol: u8, ports: u32) -> Option<FlowTuple> {
        let (from, to) = (ports >> 16, ports & 0xffff);
        let downwards = (source, from) > (destination, to);
        let (low, high, ports) = if downwards {
            (destination, source, ports.rotate_left(16))
        } else {
            (source, destination, ports)
        };
        Self::new(low, high, u64::from(ports) << 32 | u64::from(protocol) << 8)
            .map(|key| FlowTuple { key, downwards })
    }

    fn icmp(
        (source, destination): (IpAddr, IpAddr),
        protocol: u8,
        (kind, code): (u8, u8),
        id: u16,
    ) -> Option<FlowTuple> {
        let (query, reply) = match IcmpRole::of(source.is_ipv6(), kind) {
            IcmpRole::Query => (kind, false),
            IcmpRole::Reply(query) => (query, true),
            _ => return None,
        };
        // Between two equal addresses only the type distinguishes the directions.
        let downwards = source > destination || (source == destination && reply);
        let (low, high) = if downwards { (destination, source) } else { (source, destination) };
        let tail = u64::from(id) << 32
            | u64::from(u16::from_be_bytes([query, code])) << 16
            | u64::from(protocol) << 8
            | if downwards == reply { LOW_ASKS } else { 0 };
        Self::new(low, high, tail).map(|key| FlowTuple { key, downwards })
    }

    fn new(low: IpAddr, high: IpAddr, tail: u64) -> Option<Self> {
        match (low, high) {
            (IpAddr::V4(low), IpAddr::V4(high)) => {
                Some(Self([0, low.to_bits().into(), 0, high.to_bits().into(), tail, 0]))
            }
            (IpAddr::V6(low), IpAddr::V6(high)) => {
                let (low, high) = (low.to_bits(), high.to_bits());
                let words = [(low >> 64) as u64, low as u64, (high >> 64) as u64, high as u64];
                let [a, b, c, d] = words;
                Some(Self([a, b, c, d, tail | V6, 0]))
            }
            _ => None,
        }
    }

    #[inline]
    pub(super) fn hash(&self, seed: &Seed) -> u64 {
        let Self([low0, low, high0, high, tail, last]) = *self;
        match (self.is_v6(), last) {
            (false, 0) => seed.hash([low << 32 | high, tail]),
            (false, last) => seed.hash([low << 32 | high, tail, last]),
            (true, 0) => seed.hash([low0, low, high0, high, tail]),
            (true, last) => seed.hash([low0, low, high0, high, tail, last]),
        }
    }

    /// Returns the hash of the address that the flow is charged to; IPv6 addresses are charged by /64.
    pub(super) fn source_hash(&self, downwards: bool, seed: &Seed) -> u64 {
        let [low0, low1, high0, high1, ..] = self.0;
        let (first, second) = if downwards { (high0, high1) } else { (low0, low1) };
        seed.hash([if self.is_v6() { first } else { second }, self.0[4] & V6, 1])
    }

    pub(super) const fn is_v6(&self) -> bool {
        self.0[4] & V6 != 0
    }

    pub(super) const fn protocol(&self) -> u8 {
        (self.0[4] >> 8) as u8
    }

    /// Returns the ids of its VLANs, the outermost first; 0 for none.
    pub(super) const fn vlans(&self) -> [u16; 2] {
        [(self.0[5] & 0xfff) as u16, (self.0[5] >> 12 & 0xfff) as u16]
    }

    /// Returns the clients that a packet in this direction comes from and goes to; 0 for none.
    pub(super) const fn clients(&self, downwards: bool) -> [Client; 2] {
        let (low, high) = ((self.0[5] >> 32) as Client, (self.0[5] >> 48) as Client);
        if downwards { [high, low] } else { [low, high] }
    }

    /// Returns the key with these clients at the lower and the higher end.
    pub(super) fn of_clients(mut self, [low, high]: [Client; 2]) -> Self {
        let Self([.., last]) = &mut self;
        *last = u64::from(high) << 48 | u64::from(low) << 32 | *last & u64::from(u32::MAX);
        self
    }

    /// Returns source and destination with ports (for ICMP: the identifier, then type and code), as in a packet in this
    /// direction.
    pub(super) fn ends(&self, downwards: bool) -> [(IpAddr, u16); 2] {
        let [low0, low1, high0, high1, tail, _] = self.0;
        let address = |first: u64, second: u64| {
            if self.is_v6() {
                IpAddr::V6(Ipv6Addr::from_bits(u128::from(first) << 64 | u128::from(second)))
            } else {
                IpAddr::from((second as u32).to_be_bytes())
            }
        };
        let (low, high) = (address(low0, low1), address(high0, high1));
        let mut ports = [(tail >> 48) as u16, (tail >> 32) as u16];
        if matches!(self.protocol(), adit_wire::ip::ICMP | adit_wire::ip::ICMPV6) {
            ports = [(tail >> 32) as u16, (tail >> 16) as u16];
        } else if downwards {
            ports.reverse();
        }
        let (source, destination) = if downwards { (high, low) } else { (low, high) };
        [(source, ports[0]), (destination, ports[1])]
    }
}

/// Returns the ports of a protocol that is not parsed; 0 if it has none. Returns `None` if they are truncated.
fn leading_ports(protocol: u8, rest: &[u8]) -> Option<u32> {
    match protocol {
        DCCP | SCTP | UDP_LITE => Some(u32::from_be_bytes(*rest.first_chunk()?)),
        _ => Some(0),
    }
}

/// The first bytes of a packet in an ICMP error: its length fields include bytes that were cut off.
struct Inner<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    rest: &'a [u8],
}

impl<'a> Inner<'a> {
    fn v4(head: &'a [u8]) -> Option<Self> {
        let header: &[u8; 20] = head.first_chunk()?;
        let [first, _, _, _, _, _, f0, f1, _, protocol, _, _, addresses @ ..] = *header;
        let length = usize::from(first & 0x0f).wrapping_mul(4);
        let offset = u16::from_be_bytes([f0, f1]) & 0x1fff;
        if first >> 4 != 4 || length < 20 || offset != 0 {
            return None;
        }
        let [a, b, c, d, e, f, g, h] = addresses;
        Some(Self {
            source: IpAddr::from([a, b, c, d]),
            destination: IpAddr::from([e, f, g, h]),
            protocol,
            rest: head.get(length..)?,
        })
    }

    fn v6(head: &'a [u8]) -> Option<Self> {
        let (header, mut rest) = head.split_first_chunk::<40>()?;
        let (fixed, addresses) = header.split_first_chunk::<8>()?;
        let (source, destination) = addresses.split_first_chunk::<16>()?;
        let [first, _, _, _, _, _, mut protocol, _] = *fixed;
        if first >> 4 != 6 {
            return None;
        }
        for _ in 0..MAX_EXTENSIONS {
            let Some(&[next, length, offset0, offset1]) = rest.first_chunk() else { break };
            let units = usize::from(length);
            let length = match protocol {
                // Hop-by-hop options, routing, destination options.
                0 | 43 | 60 => units.wrapping_add(1).wrapping_mul(8),
                // A fragment that is not the first has no ports.
                44 if u16::from_be_bytes([offset0, offset1]) & !7 != 0 => return None,
                44 => 8,
                // Authentication header.
                51 => units.wrapping_add(2).wrapping_mul(4),
                _ => break,
            };
            rest = rest.get(length..)?;
            protocol = next;
        }
        Some(Self {
            source: IpAddr::from(*source),
            destination: IpAddr::from(*destination.first_chunk::<16>()?),
            protocol,
            rest,
        })
    }
}
