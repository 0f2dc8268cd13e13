//! The IP addresses in address resolution: ARP (RFC 826) and IPv6's neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ethernet::{ARP, Ethernet};
use crate::field::{get8, get16};
use crate::ip::{ICMPV6, Ip};

/// The IPv6 extension headers that may precede ICMPv6: hop-by-hop options, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// The maximum number of them that are skipped.
const MAX_EXTENSIONS: usize = 8;

/// The ICMPv6 types of neighbour discovery.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// An ARP packet for IPv4 over Ethernet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Arp {
    is_request: bool,
    sender: Ipv4Addr,
    target: Ipv4Addr,
}

impl Arp {
    /// Parses the payload of a frame.
    fn parse(payload: &[u8]) -> Option<Self> {
        // hardware 2 | protocol 2 | lengths 1 + 1 | operation 2 | sender 6 + 4 | target 6 + 4
        let lengths = payload.get(4..6)?;
        let address =
            |at: usize| payload.get(at..)?.first_chunk::<4>().copied().map(Ipv4Addr::from);
        (lengths == [6, 4]).then_some(())?;
        Some(Self {
            is_request: get16(payload, 6)? == 1,
            sender: address(14)?,
            target: address(24)?,
        })
    }
}

/// Returns the type of an ICMPv6 message of neighbour discovery, and the address that it is about.
fn discovery(packet: &[u8]) -> Option<(u8, Ipv6Addr)> {
    let ip = Ip::parse(packet)?;
    let (mut protocol, mut at) = (ip.protocol, ip.header_len);
    ip.source.is_ipv6().then_some(())?;
    for _ in 0..MAX_EXTENSIONS {
        if !EXTENSIONS.contains(&protocol) {
            break;
        }
        let len = usize::from(get8(packet, at.checked_add(1)?)?).checked_mul(8)?.checked_add(8)?;
        protocol = get8(packet, at)?;
        at = at.checked_add(len)?;
    }
    let message = packet.get(at..)?;
    let target = message.get(8..)?.first_chunk::<16>().copied().map(Ipv6Addr::from)?;
    let kind = get8(message, 0)?;
    (protocol == ICMPV6 && matches!(kind, SOLICITATION | ADVERTISEMENT)).then_some((kind, target))
}

/// Returns the IP packet in a frame.
fn packet<'f>(header: &Ethernet, frame: &'f [u8]) -> Option<&'f [u8]> {
    frame.get(header.ip(frame)?..)
}

/// Returns the addresses that the sender of a frame claims to have: the source of its IP packet, the sender in ARP, and
/// the target of a neighbour advertisement.
pub fn claimed(header: &Ethernet, frame: &[u8]) -> [Option<IpAddr>; 2] {
    if header.ethertype == ARP {
        let arp = frame.get(header.header_len..).and_then(Arp::parse);
        return [arp.map(|arp| arp.sender.into()), None];
    }
    let Some(packet) = packet(header, frame) else { return [None; 2] };
    let advertised = discovery(packet).filter(|(kind, _)| *kind == ADVERTISEMENT);
    let source = Ip::parse(packet).map(|ip| ip.source);
    [source, advertised.map(|(_, target)| target.into())]
}

/// Returns the address that the sender of a frame wants to reach: the target of an ARP request or of a neighbour
/// solicitation, or the destination of an IP packet.
pub fn wanted(header: &Ethernet, frame: &[u8]) -> Option<IpAddr> {
    if header.ethertype == ARP {
        let arp = Arp::parse(frame.get(header.header_len..)?)?;
        return arp.is_request.then_some(arp.target.into());
    }
    let packet = packet(header, frame)?;
    match discovery(packet) {
        Some((SOLICITATION, target)) => Some(target.into()),
        _ => Some(Ip::parse(packet)?.destination),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::{IPV4, IPV6};
    use proptest::prelude::*;

    fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
        let kind = kind.to_be_bytes();
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], &kind[..], payload].concat()
    }

    fn arp(operation: u8) -> Vec<u8> {
        let mut payload = vec![0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 2, 10, 8, 0, 2];
        payload.extend([0, 0, 0, 0, 0, 0, 10, 8, 0, 1]);
        payload
    }

    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 255];
        packet.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend("ff02::1".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend(payload);
        packet
    }

    fn message(kind: u8) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend("fd00::7".parse::<Ipv6Addr>().unwrap().octets());
        message
    }

    fn of(frame: &[u8]) -> (Vec<String>, Option<String>) {
        let header = Ethernet::parse(frame).unwrap();
        let claims = claimed(&header, frame).into_iter().flatten();
        (claims.map(|ip| ip.to_string()).collect(), wanted(&header, frame).map(|ip| ip.to_string()))
    }

    fn expect(frame: &[u8], claims: &[&str], wants: Option<&str>) {
        let claims = claims.iter().map(ToString::to_string).collect();
        assert_eq!(of(frame), (claims, wants.map(ToOwned::to_owned)), "{frame:?}");
    }

    #[test]
    fn arp_claims_its_sender_and_a_request_wants_its_target() {
        expect(&frame(ARP, &arp(1)), &["10.8.0.2"], Some("10.8.0.1"));
        expect(&frame(ARP, &arp(2)), &["10.8.0.2"], None);
        let tagged = [&frame(0x8100, &[0, 5])[..], &ARP.to_be_bytes(), &arp(1)].concat();
        expect(&tagged, &["10.8.0.2"], Some("10.8.0.1"));
        let mut other = arp(1);
        other[5] = 16;
        expect(&frame(ARP, &other), &[], None);
        expect(&frame(ARP, &arp(1)[..27]), &[], None);
    }

    #[test]
    fn neighbour_discovery_wants_or_claims_its_target() {
        let solicitation = ipv6(ICMPV6, &message(SOLICITATION));
        expect(&frame(IPV6, &solicitation), &["fd00::2"], Some("fd00::7"));
        let advertisement = ipv6(ICMPV6, &message(ADVERTISEMENT));
        expect(&frame(IPV6, &advertisement), &["fd00::2", "fd00::7"], Some("ff02::1"));
        let echo = ipv6(ICMPV6, &message(128));
        expect(&frame(IPV6, &echo), &["fd00::2"], Some("ff02::1"));
        // A receiver finds the message behind extension headers as well.
        let hidden = [&[60, 0, 0, 0, 0, 0, 0, 0, ICMPV6, 0, 0, 0, 0, 0, 0, 0], &message(136)[..]];
        expect(&frame(IPV6, &ipv6(0, &hidden.concat())), &["fd00::2", "fd00::7"], Some("ff02::1"));
    }

    #[test]
    fn a_packet_claims_its_source_and_wants_its_destination() {
        let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 8, 0, 2, 10, 8, 0, 1];
        expect(&frame(IPV4, &packet), &["10.8.0.2"], Some("10.8.0.1"));
        expect(&frame(IPV6, &packet), &[], None);
        expect(&frame(0x88cc, &packet), &[], None);
        expect(&frame(IPV4, &packet[..19]), &[], None);
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(
            kind in prop_oneof![Just(ARP), Just(IPV4), Just(IPV6)],
            next in prop_oneof![Just(0u8), Just(43), Just(60), Just(ICMPV6)],
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            for frame in [frame(kind, &bytes), frame(IPV6, &ipv6(next, &bytes))] {
                let header = Ethernet::parse(&frame).unwrap();
                claimed(&header, &frame);
                wanted(&header, &frame);
            }
        }
    }
}
