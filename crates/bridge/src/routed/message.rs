//! Parsing and building of ARP (RFC 826) and neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_filter::packet::{Packet, Transport};
use adit_wire::ethernet::Mac;
use adit_wire::icmp_error::ip_header;
use adit_wire::ip::{ICMPV6, V6_LEN};

/// Type of a neighbour solicitation.
const SOLICITATION: u8 = 135;
/// Type of a neighbour advertisement.
const ADVERTISEMENT: u8 = 136;
/// The length of both messages without options.
const ND_LEN: usize = 24;
/// The hop limit that proves that a packet comes from the same link.
const HOPS: u8 = 255;
/// The options with the link addresses of the sender and of the target.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// An ARP packet for IPv4 over Ethernet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Arp {
    /// Whether it is a reply; otherwise it is a request.
    pub reply: bool,
    pub sender_mac: Mac,
    pub sender: Ipv4Addr,
    pub target_mac: Mac,
    pub target: Ipv4Addr,
}

impl Arp {
    /// Parses the bytes after the link header; returns `None` for operations other than request and reply.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [_, _, _, _, _, _, 0, operation, rest @ ..] = bytes.first_chunk::<28>()? else {
            return None;
        };
        let (sender, target) = rest.split_first_chunk::<10>()?;
        let [a, b, c, d, e, f, s0, s1, s2, s3] = *sender;
        let [g, h, i, j, k, l, t0, t1, t2, t3] = *target.first_chunk::<10>()?;
        Some(Self {
            reply: match operation {
                1 => false,
                2 => true,
                _ => return None,
            },
            sender_mac: Mac([a, b, c, d, e, f]),
            sender: Ipv4Addr::new(s0, s1, s2, s3),
            target_mac: Mac([g, h, i, j, k, l]),
            target: Ipv4Addr::new(t0, t1, t2, t3),
        })
    }

    /// Builds a frame addressed to `to`.
    pub(super) fn frame(&self, to: Mac) -> Vec<u8> {
        let mut frame = link(to, self.sender_mac, 0x0806);
        frame.extend([0, 1, 8, 0, 6, 4, 0, if self.reply { 2 } else { 1 }]);
        frame.extend(self.sender_mac.0);
        frame.extend(self.sender.octets());
        frame.extend(self.target_mac.0);
        frame.extend(self.target.octets());
        frame
    }
}

/// A neighbour discovery message.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Discovery {
    /// Requests the link address of `target`.
    Solicitation { target: Ipv6Addr, link: Option<Mac> },
    /// Announces that `target` is at `link`. `insists`: overrides another known address.
    Advertisement { target: Ipv6Addr, link: Option<Mac>, insists: bool },
}

impl Discovery {
    /// Returns whether a packet is a neighbour discovery message, valid or not.
    pub(super) fn is_one(packet: &Packet<'_>) -> bool {
        let v6 = packet.ip().is_some_and(|ip| ip.source.is_ipv6());
        v6 && matches!(packet.transport, Transport::Icmp(icmp) if (133..=137).contains(&icmp.kind))
    }

    /// Parses a message that meets all requirements of RFC 4861 7.1.
    pub(super) fn read(packet: &Packet<'_>) -> Option<Self> {
        let Transport::Icmp(icmp) = packet.transport else { return None };
        let ip = packet.ip()?;
        let hops = *packet.bytes.get(ip.at.checked_add(7)?)?;
        let message = packet.transport_bytes();
        if hops != HOPS || icmp.code != 0 || ip.fragment.is_some() || !packet.checksum_ok() {
            return None;
        }
        let (fixed, options) = message.split_first_chunk::<ND_LEN>()?;
        let target = Ipv6Addr::from(*fixed.get(8..)?.first_chunk::<16>()?);
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (ip.source, ip.destination) else {
            return None;
        };
        if target.is_multicast() {
            return None;
        }
        match icmp.kind {
            SOLICITATION => {
                let link = option(options, SOURCE_LINK)?;
                // The message of a host without an address states only which address it wants.
                let unnamed = source.is_unspecified();
                if unnamed && (link.is_some() || !destination.is_multicast()) {
                    return None;
                }
                Some(Self::Solicitation { target, link })
            }
            ADVERTISEMENT => {
                let link = option(options, TARGET_LINK)?;
                let (solicited, insists) = (icmp.rest >> 30 & 1 != 0, icmp.rest >> 29 & 1 != 0);
                if solicited && destination.is_multicast() {
                    return None;
                }
                Some(Self::Advertisement { target, link, insists })
            }
            _ => None,
        }
    }
}

/// Returns the link address in the option of type `wanted`; the outer `Option` is `None` if the options are malformed.
fn option(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let Some((&[kind, units], _)) = options.split_first_chunk() {
        let len = usize::from(units).checked_mul(8).filter(|len| *len != 0)?;
        let (option, rest) = options.split_at_checked(len)?;
        if kind == wanted {
            let mac = Mac(*option.get(2..)?.first_chunk()?);
            found = Some(mac).filter(|mac| mac.is_station());
        }
        options = rest;
    }
    Some(found)
}

/// Builds a request for `target`: to all hosts that might have the address, or to the one at `to`.
pub(super) fn solicitation(mac: Mac, from: Ipv6Addr, target: Ipv6Addr, to: Option<Mac>) -> Vec<u8> {
    let [.., x, y, z] = target.octets();
    // The group of all hosts whose addresses end in the same bits (RFC 4291 2.7.1).
    let group = Ipv6Addr::from_bits(
        0xff02_0000_0000_0000_0000_0001_ff00_0000 | u128::from(u32::from_be_bytes([0, x, y, z])),
    );
    let (mac_to, ip_to) = match to {
        Some(mac) => (mac, target),
        None => (Mac([0x33, 0x33, 0xff, x, y, z]), group),
    };
    let mut body = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    body.extend(target.octets());
    body.extend([SOURCE_LINK, 1]);
    body.extend(mac.0);
    message(mac_to, mac, from, ip_to, body)
}

/// Builds an announcement that `target` is at `mac`: to the host that asked, or to all hosts if it has no address yet.
pub(super) fn advertisement(mac: Mac, target: Ipv6Addr, to: Option<(Mac, Ipv6Addr)>) -> Vec<u8> {
    // The flags: router, solicited, override.
    let flags = if to.is_some() { 0xe0 } else { 0xa0 };
    let (mac_to, ip_to) = to.unwrap_or((Mac([0x33, 0x33, 0, 0, 0, 1]), ALL_NODES));
    let mut body = vec![ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    body.extend(target.octets());
    body.extend([TARGET_LINK, 1]);
    body.extend(mac.0);
    message(mac_to, mac, target, ip_to, body)
}

fn message(mac_to: Mac, mac: Mac, from: Ipv6Addr, to: Ipv6Addr, mut body: Vec<u8>) -> Vec<u8> {
    let mut header = [0; V6_LEN];
    if let Some(pseudo) = ip_header(from.into(), to.into(), ICMPV6, body.len(), &mut header) {
        let sum = pseudo.bytes(&body).finish().to_be_bytes();
        if let Some(field) = body.get_mut(2..4) {
            field.copy_from_slice(&sum);
        }
    }
    if let Some(hops) = header.get_mut(7) {
        *hops = HOPS;
    }
    let mut frame = link(mac_to, mac, 0x86dd);
    frame.extend(header);
    frame.extend(body);
    frame
}

fn link(to: Mac, from: Mac, kind: u16) -> Vec<u8> {
    let mut frame = to.0.to_vec();
    frame.extend(from.0);
    frame.extend(kind.to_be_bytes());
    frame
}
