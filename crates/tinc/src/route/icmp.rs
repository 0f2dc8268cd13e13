//! ICMP and ICMPv6 errors to the senders of packets that are not forwarded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_wire::ethernet::Mac;
use adit_wire::icmp_error::{self, Message, is_error, is_host};
use adit_wire::ip::{ICMP, ICMPV6, Ip};

/// The IPv6 extension headers that may precede the payload, and are skipped: hop-by-hop options, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// The extension header of an IPv6 fragment.
const FRAGMENT: u8 = 44;
/// The number of extension headers that are skipped.
const MAX_EXTENSIONS: usize = 8;

/// An error, in both versions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct IcmpError {
    /// Type and code of ICMP.
    v4: (u8, u8),
    /// Type and code of ICMPv6.
    v6: (u8, u8),
    /// The MTU of the path, or zero.
    mtu: u32,
}

impl IcmpError {
    /// Destination network unknown; address unreachable.
    pub(super) const UNKNOWN: Self = Self { v4: (3, 6), v6: (1, 3), mtu: 0 };
    /// Destination network unreachable; no route to the destination.
    pub(super) const UNREACHABLE: Self = Self { v4: (3, 0), v6: (1, 0), mtu: 0 };
    /// Communication with the destination network is prohibited.
    pub(super) const PROHIBITED: Self = Self { v4: (3, 9), v6: (1, 1), mtu: 0 };
    /// Time exceeded in transit.
    pub(super) const TTL_EXCEEDED: Self = Self { v4: (11, 0), v6: (3, 0), mtu: 0 };

    /// Fragmentation needed; packet too big. `size` is the length of the longest IP packet that fits.
    pub(super) fn too_big(size: usize) -> Self {
        Self { v4: (3, 4), v6: (2, 0), mtu: u32::try_from(size).unwrap_or(u32::MAX) }
    }
}

/// Writes the error about a packet, whose IP packet begins at `ip_at`. The Ethernet header before it, if there is one, is that of the answer with
/// its addresses exchanged. The sources are the own addresses; without one, the packet's destination. Returns the length.
///
/// Returns `None` if no error may be sent: to packets from or to more than one host, to fragments other than the first, and to errors (RFC 1122
/// 3.2.2, RFC 4443 2.4 (e)).
pub(super) fn write(
    packet: &[u8],
    ip_at: usize,
    error: IcmpError,
    own: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    out: &mut [u8],
) -> Option<usize> {
    let (link, packet) = packet.split_at_checked(ip_at)?;
    let ip = Ip::parse(packet)?;
    let packet = packet.get(..ip.total_len)?;
    if !is_answerable(packet, &ip) {
        return None;
    }
    let (out_link, out_packet) = out.split_at_mut_checked(ip_at)?;
    out_link.copy_from_slice(link);
    if let Some((destination, rest)) = out_link.split_first_chunk_mut::<6>() {
        if Mac(*destination).is_group() {
            return None;
        }
        std::mem::swap(destination, rest.first_chunk_mut()?);
    }
    let (longest, (kind, code), from) = match ip.destination {
        IpAddr::V4(v4) => (icmp_error::MAX_V4, error.v4, own.0.unwrap_or(v4).into()),
        IpAddr::V6(v6) => (icmp_error::MAX_V6, error.v6, own.1.unwrap_or(v6).into()),
    };
    let message = Message { kind, code, rest: error.mtu };
    let len = icmp_error::write(packet, message, from, ip.source, longest, out_packet)?;
    ip_at.checked_add(len)
}

/// Returns whether the sender of a packet may get an error. A packet that ends too early is not answered.
fn is_answerable(packet: &[u8], ip: &Ip) -> bool {
    is_host(ip.source)
        && is_host(ip.destination)
        && match ip.source {
            IpAddr::V4(_) => is_answerable_v4(packet, ip) == Some(true),
            IpAddr::V6(_) => is_answerable_v6(packet, ip) == Some(true),
        }
}

fn is_answerable_v4(packet: &[u8], ip: &Ip) -> Option<bool> {
    let fragment = u16::from_be_bytes(*packet.get(6..)?.first_chunk()?);
    if fragment & 0x1fff != 0 {
        return Some(false);
    }
    if ip.protocol != ICMP {
        return Some(true);
    }
    packet.get(ip.header_len).map(|kind| !is_error(true, *kind))
}

fn is_answerable_v6(packet: &[u8], ip: &Ip) -> Option<bool> {
    let (mut protocol, mut at) = (ip.protocol, ip.header_len);
    for _ in 0..MAX_EXTENSIONS {
        let header = packet.get(at..)?;
        let [next, len, f0, f1, ..] = *header else {
            // Only a payload of its own may be as short as that.
            break;
        };
        let skip = match protocol {
            FRAGMENT if u16::from_be_bytes([f0, f1]) & 0xfff8 != 0 => return Some(false),
            FRAGMENT => 8,
            _ if EXTENSIONS.contains(&protocol) => {
                usize::from(len).saturating_mul(8).saturating_add(8)
            }
            _ => break,
        };
        protocol = next;
        at = at.saturating_add(skip);
    }
    if protocol == FRAGMENT || EXTENSIONS.contains(&protocol) {
        return Some(false);
    }
    if protocol != ICMPV6 {
        return Some(true);
    }
    packet.get(at).map(|kind| !is_error(false, *kind))
}
