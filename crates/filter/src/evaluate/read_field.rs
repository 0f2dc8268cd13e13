//! Reading a packet's fields as the numbers that rules compare.

use std::net::IpAddr;

use adit_wire::transport::{Tcp, Udp};

use crate::evaluate::Context;
use crate::packet::{Ip, Network, Packet, Transport};
use crate::ruleset::{CtState, Field};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Protocols whose first four bytes are ports, as in TCP and UDP: DCCP, SCTP, UDP-Lite.
const PORTED: [u8; 3] = [33, 132, 136];

fn get8(bytes: &[u8], at: usize) -> Option<u128> {
    bytes.get(at).map(|byte| u128::from(*byte))
}

fn get16(bytes: &[u8], at: usize) -> Option<u128> {
    bytes.get(at..)?.first_chunk().map(|field| u128::from(u16::from_be_bytes(*field)))
}

fn get32(bytes: &[u8], at: usize) -> Option<u128> {
    bytes.get(at..)?.first_chunk().map(|field| u128::from(u32::from_be_bytes(*field)))
}

fn get48(bytes: &[u8], at: usize) -> Option<u128> {
    let field: &[u8; 6] = bytes.get(at..)?.first_chunk()?;
    Some(field.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte)))
}

/// Returns the value of `field`; `None` if the packet lacks it. The most frequently used fields come first, which
/// avoids a match over all fields.
#[inline]
pub(crate) fn read(field: Field, packet: &Packet<'_>, context: &Context) -> Option<u128> {
    match (field, &packet.network, &packet.transport) {
        (Field::IpSaddr, Network::Ip(Ip { source: IpAddr::V4(address), .. }), _)
        | (Field::IpDaddr, Network::Ip(Ip { destination: IpAddr::V4(address), .. }), _) => {
            Some(u128::from(address.to_bits()))
        }
        (Field::TcpSport, _, Transport::Tcp(Tcp { ports, .. }))
        | (Field::UdpSport, _, Transport::Udp(Udp { ports, .. })) => Some(u128::from(ports >> 16)),
        (Field::TcpDport, _, Transport::Tcp(Tcp { ports, .. }))
        | (Field::UdpDport, _, Transport::Udp(Udp { ports, .. })) => {
            Some(u128::from(ports & 0xffff))
        }
        (
            Field::TcpSport
            | Field::TcpDport
            | Field::UdpSport
            | Field::UdpDport
            | Field::IpSaddr
            | Field::IpDaddr,
            _,
            _,
        ) => None,
        (Field::MetaL4proto, Network::Ip(ip), _) => Some(u128::from(ip.protocol)),
        (Field::CtState, _, _) => Some(u128::from(context.state.0)),
        _ => read_any(field, packet, context),
    }
}

/// Returns the value of any field; see [`read`].
#[inline(never)]
fn read_any(field: Field, packet: &Packet<'_>, context: &Context) -> Option<u128> {
    use Field::*;
    match field {
        EtherSaddr | EtherDaddr | EtherType | VlanId | VlanPcp | VlanType => ether(field, packet),
        ArpOperation | ArpHtype | ArpPtype | ArpSaddrIp | ArpDaddrIp | ArpSaddrEther
        | ArpDaddrEther => arp(field, packet),
        IifName | OifName | MetaProtocol | MetaNfproto | MetaL4proto | MetaLength | MetaPkttype => {
            meta(field, packet, context)
        }
        IpSaddr | IpDaddr | IpProtocol | IpVersion | IpHdrlength | IpDscp | IpEcn | IpLength
        | IpId | IpFragOff | IpTtl => ipv4(field, packet),
        Ip6Saddr | Ip6Daddr | Ip6Nexthdr | Ip6Version | Ip6Dscp | Ip6Ecn | Ip6Flowlabel
        | Ip6Length | Ip6Hoplimit => ipv6(field, packet),
        TcpSport | TcpDport | TcpSequence | TcpAckseq | TcpDoff | TcpFlags | TcpWindow
        | TcpChecksum | TcpUrgptr => tcp(field, packet),
        UdpSport | UdpDport | UdpLength | UdpChecksum => udp(field, packet),
        ThSport | ThDport => ports(field, packet),
        IcmpType | IcmpCode | IcmpId | IcmpSequence | IcmpMtu => icmp(field, packet),
        Icmpv6Type | Icmpv6Code | Icmpv6Id | Icmpv6Sequence | Icmpv6Mtu => icmpv6(field, packet),
        CtState => Some(u128::from(context.state.0)),
        CtDirection => tracked(context).then_some(context.direction as u128),
        CtProtocol => context.protocol.map(u128::from),
    }
}

fn ether(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let ether = packet.ether?;
    match field {
        Field::EtherSaddr => Some(u128::from(ether.source)),
        Field::EtherDaddr => Some(u128::from(ether.destination)),
        Field::EtherType => Some(u128::from(ether.outer)),
        Field::VlanId => Some(u128::from(ether.vlan? & 0x0fff)),
        Field::VlanPcp => Some(u128::from(ether.vlan? >> 13)),
        Field::VlanType => {
            // The EtherType after the outermost tag, which may be outside the frame.
            ether.vlan?;
            get16(packet.bytes, if ether.beside { 12 } else { 16 })
        }
        _ => None,
    }
}

fn arp(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let Network::Arp(at) = packet.network else { return None };
    let arp = packet.bytes.get(at..)?;
    match field {
        Field::ArpHtype => get16(arp, 0),
        Field::ArpPtype => get16(arp, 2),
        Field::ArpOperation => get16(arp, 6),
        Field::ArpSaddrEther => get48(arp, 8),
        Field::ArpSaddrIp => get32(arp, 14),
        Field::ArpDaddrEther => get48(arp, 18),
        Field::ArpDaddrIp => get32(arp, 24),
        _ => None,
    }
}

fn meta(field: Field, packet: &Packet<'_>, context: &Context) -> Option<u128> {
    match field {
        Field::IifName => (context.iif.0 != 0).then_some(context.iif.0),
        Field::OifName => (context.oif.0 != 0).then_some(context.oif.0),
        Field::MetaProtocol => match (packet.ether, packet.network) {
            (Some(ether), _) => Some(u128::from(ether.ethertype)),
            (None, Network::Ip(ip)) => Some(if ip.source.is_ipv4() { 0x0800 } else { 0x86dd }),
            (None, _) => None,
        },
        Field::MetaNfproto => {
            let Network::Ip(ip) = packet.network else { return None };
            Some(if ip.source.is_ipv4() { 2 } else { 10 })
        }
        Field::MetaL4proto => {
            let Network::Ip(ip) = packet.network else { return None };
            Some(u128::from(ip.protocol))
        }
        Field::MetaLength => Some(packet.length() as u128),
        Field::MetaPkttype => Some(match packet.ether.map(|ether| ether.destination) {
            Some(0xffff_ffff_ffff) => 1,
            Some(address) if address >> 40 & 1 == 1 => 2,
            _ => 0,
        }),
        _ => None,
    }
}

fn v4<'a>(packet: &Packet<'a>) -> Option<(Ip, &'a [u8])> {
    let Network::Ip(ip) = packet.network else { return None };
    ip.source.is_ipv4().then_some(())?;
    Some((ip, packet.bytes.get(ip.at..)?))
}

fn v6<'a>(packet: &Packet<'a>) -> Option<(Ip, &'a [u8])> {
    let Network::Ip(ip) = packet.network else { return None };
    ip.source.is_ipv6().then_some(())?;
    Some((ip, packet.bytes.get(ip.at..)?))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn ipv4(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let (ip, head) = v4(packet)?;
    match field {
        Field::IpSaddr => Some(number(ip.source)),
        Field::IpDaddr => Some(number(ip.destination)),
        Field::IpProtocol => get8(head, 9),
        Field::IpVersion => Some(get8(head, 0)? >> 4),
        Field::IpHdrlength => Some(get8(head, 0)? & 0x0f),
        Field::IpDscp => Some(get8(head, 1)? >> 2),
        Field::IpEcn => Some(get8(head, 1)? & 3),
        Field::IpLength => get16(head, 2),
        Field::IpId => get16(head, 4),
        Field::IpFragOff => get16(head, 6),
        Field::IpTtl => get8(head, 8),
        _ => None,
    }
}

fn ipv6(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let (ip, head) = v6(packet)?;
    match field {
        Field::Ip6Saddr => Some(number(ip.source)),
        Field::Ip6Daddr => Some(number(ip.destination)),
        Field::Ip6Version => Some(get8(head, 0)? >> 4),
        Field::Ip6Dscp => Some(get16(head, 0)? >> 6 & 0x3f),
        Field::Ip6Ecn => Some(get16(head, 0)? >> 4 & 3),
        Field::Ip6Flowlabel => Some(get32(head, 0)? & 0x000f_ffff),
        Field::Ip6Length => get16(head, 4),
        Field::Ip6Nexthdr => get8(head, 6),
        Field::Ip6Hoplimit => get8(head, 7),
        _ => None,
    }
}

/// Returns the bytes from the transport header on, if the header is complete and of one of these protocols.
fn behind_ip<'a>(packet: &Packet<'a>, protocols: &[u8]) -> Option<&'a [u8]> {
    let Network::Ip(ip) = packet.network else { return None };
    let whole = !matches!(packet.transport, Transport::None) && protocols.contains(&ip.protocol);
    packet.bytes.get(ip.payload..).filter(|_| whole)
}

fn tcp(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let Transport::Tcp(tcp) = packet.transport else { return None };
    let head = behind_ip(packet, &[TCP])?;
    match field {
        Field::TcpSport => Some(u128::from(tcp.ports >> 16)),
        Field::TcpDport => Some(u128::from(tcp.ports & 0xffff)),
        Field::TcpSequence => Some(u128::from(tcp.seq)),
        Field::TcpAckseq => Some(u128::from(tcp.ack)),
        Field::TcpDoff => Some(get8(head, 12)? >> 4),
        Field::TcpFlags => Some(u128::from(tcp.flags)),
        Field::TcpWindow => get16(head, 14),
        Field::TcpChecksum => get16(head, 16),
        Field::TcpUrgptr => get16(head, 18),
        _ => None,
    }
}

fn udp(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let Transport::Udp(udp) = packet.transport else { return None };
    behind_ip(packet, &[UDP])?;
    match field {
        Field::UdpSport => Some(u128::from(udp.ports >> 16)),
        Field::UdpDport => Some(u128::from(udp.ports & 0xffff)),
        Field::UdpLength => Some(u128::from(udp.len)),
        Field::UdpChecksum => Some(u128::from(udp.checksum)),
        _ => None,
    }
}

fn ports(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let ports = match packet.transport {
        Transport::Tcp(tcp) => tcp.ports,
        Transport::Udp(udp) => udp.ports,
        _ => get32(behind_ip(packet, &PORTED)?, 0)? as u32,
    };
    match field {
        Field::ThSport => Some(u128::from(ports >> 16)),
        Field::ThDport => Some(u128::from(ports & 0xffff)),
        _ => None,
    }
}

/// Reads ICMP fields. Identifier and sequence exist in echoes only, an MTU only if a router reports "too big" (RFC
/// 1191).
fn icmp(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let Transport::Icmp(icmp) = packet.transport else { return None };
    v4(packet)?;
    behind_ip(packet, &[ICMP])?;
    match (field, icmp.kind) {
        (Field::IcmpType, kind) => Some(u128::from(kind)),
        (Field::IcmpCode, _) => Some(u128::from(icmp.code)),
        (Field::IcmpId, 0 | 8) => Some(u128::from(icmp.rest >> 16)),
        (Field::IcmpSequence, 0 | 8) | (Field::IcmpMtu, 3) => Some(u128::from(icmp.rest & 0xffff)),
        _ => None,
    }
}

fn icmpv6(field: Field, packet: &Packet<'_>) -> Option<u128> {
    let Transport::Icmp(icmp) = packet.transport else { return None };
    v6(packet)?;
    behind_ip(packet, &[ICMPV6])?;
    match (field, icmp.kind) {
        (Field::Icmpv6Type, kind) => Some(u128::from(kind)),
        (Field::Icmpv6Code, _) => Some(u128::from(icmp.code)),
        (Field::Icmpv6Id, 128 | 129) => Some(u128::from(icmp.rest >> 16)),
        (Field::Icmpv6Sequence, 128 | 129) => Some(u128::from(icmp.rest & 0xffff)),
        (Field::Icmpv6Mtu, 2) => Some(u128::from(icmp.rest)),
        _ => None,
    }
}

/// Returns whether the packet belongs to a connection. Only then does it have a direction.
fn tracked(context: &Context) -> bool {
    !matches!(context.state, CtState::INVALID | CtState::UNTRACKED)
}
