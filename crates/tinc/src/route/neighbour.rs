//! Answers to a TAP device in router mode, which asks for the MAC addresses of other nodes' hosts: ARP (RFC 826) and IPv6's neighbour
//! solicitations (RFC 4861). All of them are behind one address, the router's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_wire::checksum::Sum;
use adit_wire::ethernet::{ARP, Ethernet, HEADER_LEN, IPV6, Mac};
use adit_wire::icmp_error::ip_header;
use adit_wire::ip::{ICMPV6, Ip, V6_LEN, pseudo_header};

use super::ROUTER_MAC;

/// Length of an ARP packet for IPv4 over Ethernet.
const ARP_LEN: usize = 28;
/// The first bytes of such a packet: the kinds of both addresses and their lengths.
const ARP_KINDS: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// The ICMPv6 types of neighbour discovery.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The flags of an advertisement: it answers a solicitation, and replaces what is known.
const SOLICITED_OVERRIDE: u8 = 0x60;
/// The option that contains the MAC address, and its length in units of 8 bytes.
const TARGET_ADDRESS: [u8; 2] = [2, 1];
/// Length of a solicitation without options.
const SOLICITATION_LEN: usize = 24;
/// Length of an advertisement with its option.
const ADVERTISEMENT_LEN: usize = 32;
/// The hop limit of neighbour discovery, which proves that no router forwarded the packet.
const HOP_LIMIT: u8 = 255;

/// Returns the header of a frame from the router.
pub(super) fn header(to: Mac, kind: u16) -> [u8; HEADER_LEN] {
    let ([a, b, c, d, e, f], [g, h, i, j, k, l], [m, n]) = (to.0, ROUTER_MAC.0, kind.to_be_bytes());
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n]
}

/// Returns whether a frame asks for a MAC address. It concerns the device's own network, and is never forwarded.
pub(super) fn is_question(header: &Ethernet, frame: &[u8]) -> bool {
    header.ethertype == ARP || solicitation(header, frame).is_some()
}

/// Writes the answer to a question into `out`, if the address asked for is behind another node. Returns the length.
pub(super) fn answer(
    header: &Ethernet,
    frame: &[u8],
    is_elsewhere: impl Fn(IpAddr) -> bool,
    out: &mut [u8],
) -> Option<usize> {
    if header.header_len != HEADER_LEN {
        // The device has no VLANs.
        return None;
    }
    if header.ethertype == ARP {
        answer_arp(header, frame, is_elsewhere, out)
    } else {
        answer_solicitation(header, frame, is_elsewhere, out)
    }
}

fn answer_arp(
    header: &Ethernet,
    frame: &[u8],
    is_elsewhere: impl Fn(IpAddr) -> bool,
    out: &mut [u8],
) -> Option<usize> {
    // kinds and lengths 6 | operation 2 | sender 6 + 4 | target 6 + 4
    let request: &[u8; ARP_LEN] = frame.get(HEADER_LEN..)?.first_chunk()?;
    let (kinds, rest) = request.split_first_chunk::<6>()?;
    let (operation, rest) = rest.split_first_chunk::<2>()?;
    let (sender, rest) = rest.split_first_chunk::<10>()?;
    let target: [u8; 4] = *rest.get(6..)?.first_chunk()?;
    if *kinds != ARP_KINDS || *operation != REQUEST || !is_elsewhere(Ipv4Addr::from(target).into())
    {
        return None;
    }
    let parts: [&[u8]; 6] =
        [&self::header(header.source, ARP), &ARP_KINDS, &REPLY, &ROUTER_MAC.0, &target, sender];
    concatenate(&parts, out)
}

/// Returns the IPv6 header and the message of a neighbour solicitation.
fn solicitation<'f>(header: &Ethernet, frame: &'f [u8]) -> Option<(Ip, &'f [u8], &'f [u8])> {
    if header.ethertype != IPV6 {
        return None;
    }
    let packet = frame.get(header.ip(frame)?..)?;
    let ip = Ip::parse(packet)?;
    let message = packet.get(ip.header_len..ip.total_len)?;
    let found = ip.protocol == ICMPV6 && message.first() == Some(&SOLICITATION);
    found.then_some((ip, packet, message))
}

fn answer_solicitation(
    header: &Ethernet,
    frame: &[u8],
    is_elsewhere: impl Fn(IpAddr) -> bool,
    out: &mut [u8],
) -> Option<usize> {
    let (ip, packet, message) = solicitation(header, frame)?;
    let length = u16::try_from(message.len()).ok()?;
    let sum = pseudo_header(packet, ICMPV6)?.word(length).bytes(message).finish();
    let is_valid = packet.get(7) == Some(&HOP_LIMIT)
        && message.get(1) == Some(&0)
        && message.len() >= SOLICITATION_LEN
        && sum == 0;
    // A host without an address only checks that its new one is free.
    if !is_valid || ip.source.is_unspecified() {
        return None;
    }
    let target: [u8; 16] = *message.get(8..)?.first_chunk()?;
    let target = Ipv6Addr::from(target);
    if !is_elsewhere(target.into()) {
        return None;
    }
    let (link, rest) = out.split_first_chunk_mut::<HEADER_LEN>()?;
    *link = self::header(header.source, IPV6);
    let (ip_out, body) = rest.split_at_mut_checked(V6_LEN)?;
    let body = body.get_mut(..ADVERTISEMENT_LEN)?;
    let pseudo = ip_header(target.into(), ip.source, ICMPV6, ADVERTISEMENT_LEN, ip_out)?;
    *ip_out.get_mut(7)? = HOP_LIMIT;
    let parts: [&[u8]; 4] = [
        &[ADVERTISEMENT, 0, 0, 0, SOLICITED_OVERRIDE, 0, 0, 0],
        &target.octets(),
        &TARGET_ADDRESS,
        &ROUTER_MAC.0,
    ];
    concatenate(&parts, body)?;
    let sum: Sum = pseudo.bytes(body);
    body.get_mut(2..4)?.copy_from_slice(&sum.finish().to_be_bytes());
    HEADER_LEN.checked_add(V6_LEN)?.checked_add(ADVERTISEMENT_LEN)
}

/// Writes parts one after another. Returns their length; `None` if there is no room.
fn concatenate(parts: &[&[u8]], out: &mut [u8]) -> Option<usize> {
    let mut length = 0_usize;
    for part in parts {
        let end = length.checked_add(part.len())?;
        out.get_mut(length..end)?.copy_from_slice(part);
        length = end;
    }
    Some(length)
}
