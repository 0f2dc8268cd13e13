//! Notifications to the sender of a refused packet.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use adit_wire::ethernet;
use adit_wire::icmp_error::{self, Message, is_error, is_host};
use adit_wire::ip::{TCP, V4_LEN, V6_LEN};
use adit_wire::transport::{TCP_LEN, Tcp, flags};

use crate::packet::{Fragment, Ip, Packet, Transport};
use crate::ruleset::{Icmpx, Reject};

/// The maximum length of an answer: a link header and the minimum MTU of IPv6 (RFC 4443 2.4 (c)).
pub const MAX_REJECTION: usize = ethernet::MAX_HEADER_LEN + icmp_error::MAX_V6;

/// The "destination unreachable" types of ICMP and ICMPv6.
const UNREACHABLE4: u8 = 3;
const UNREACHABLE6: u8 = 1;

/// Writes the answer to `packet` into `out` and returns its length. If `packet` has a link header, the answer is a
/// frame with that header reversed, to be sent with the VLAN tag of `packet`'s metadata; otherwise it is an IP packet.
/// All checksums are filled in. The source is the destination of `packet`.
///
/// Returns `None` if `how` does not fit the packet, or if an answer is forbidden: to packets from or to more than one
/// host, to fragments other than the first, to errors (RFC 1122 3.2.2, RFC 4443 2.4 (e)), to a TCP reset (RFC 9293
/// 3.10.7.1), and to damaged packets.
pub fn reject(packet: &Packet<'_>, how: Reject, out: &mut [u8; MAX_REJECTION]) -> Option<usize> {
    let ip = packet.ip()?;
    let v4 = ip.source.is_ipv4();
    let code = match how {
        Reject::TcpReset => return reset(packet, out),
        Reject::Icmp(code) => v4.then_some(code)?,
        Reject::Icmpv6(code) => (!v4).then_some(code)?,
        Reject::Icmpx(Icmpx::NoRoute) => 0,
        Reject::Icmpx(Icmpx::PortUnreachable) => {
            if v4 {
                3
            } else {
                4
            }
        }
        Reject::Icmpx(Icmpx::HostUnreachable) => {
            if v4 {
                1
            } else {
                3
            }
        }
        Reject::Icmpx(Icmpx::AdminProhibited) => {
            if v4 {
                13
            } else {
                1
            }
        }
    };
    let kind = if v4 { UNREACHABLE4 } else { UNREACHABLE6 };
    error(packet, Message { kind, code, rest: 0 }, None, out)
}

/// Writes an ICMP or ICMPv6 error about `packet`, as [`reject`] does; `from` is the error's source, if it is not the
/// packet's destination.
pub fn error(
    packet: &Packet<'_>,
    message: Message,
    from: Option<IpAddr>,
    out: &mut [u8; MAX_REJECTION],
) -> Option<usize> {
    let ip = packet.ip()?;
    let v4 = ip.source.is_ipv4();
    if !answerable(packet, ip) {
        return None;
    }
    if matches!(packet.transport, Transport::Icmp(icmp) if is_error(v4, icmp.kind)) {
        return None;
    }
    let link = turned_round(packet, ip, out)?;
    let longest = if v4 { icmp_error::MAX_V4 } else { icmp_error::MAX_V6 };
    let from = from.unwrap_or(ip.destination);
    let quoted = packet.bytes.get(ip.at..)?;
    let len = icmp_error::write(quoted, message, from, ip.source, longest, out.get_mut(link..)?)?;
    link.checked_add(len)
}

/// Writes a TCP reset that the sender accepts as its peer's (RFC 9293 3.10.7.1).
fn reset(packet: &Packet<'_>, out: &mut [u8; MAX_REJECTION]) -> Option<usize> {
    let ip = packet.ip()?;
    let Transport::Tcp(tcp) = packet.transport else { return None };
    // The length of an incomplete segment is unknown.
    if tcp.flags & flags::RST != 0 || ip.fragment.is_some() || !answerable(packet, ip) {
        return None;
    }
    let link = turned_round(packet, ip, out)?;
    let network = out.get_mut(link..)?;
    let header = if ip.source.is_ipv4() { V4_LEN } else { V6_LEN };
    let pseudo = icmp_error::ip_header(ip.destination, ip.source, TCP, TCP_LEN, network)?;
    let segment: &mut [u8; TCP_LEN] = network.get_mut(header..)?.first_chunk_mut()?;
    let (seq, ack, bits) = numbers(&tcp, packet.transport_bytes().len());
    let ([s0, s1, d0, d1], [q0, q1, q2, q3]) = (tcp.ports.to_be_bytes(), seq.to_be_bytes());
    let [a0, a1, a2, a3] = ack.to_be_bytes();
    *segment = [d0, d1, s0, s1, q0, q1, q2, q3, a0, a1, a2, a3, 0x50, bits, 0, 0, 0, 0, 0, 0];
    let sum = pseudo.bytes(segment).finish().to_be_bytes();
    segment.get_mut(16..18)?.copy_from_slice(&sum);
    link.checked_add(header)?.checked_add(TCP_LEN)
}

/// Returns the sequence number, acknowledgement and flags of the reset that answers a segment of `len` bytes.
fn numbers(tcp: &Tcp, len: usize) -> (u32, u32, u8) {
    if tcp.flags & flags::ACK != 0 {
        return (tcp.ack, 0, flags::RST);
    }
    let one_if = |flag| u32::from(tcp.flags & flag != 0);
    let payload = u32::try_from(len.saturating_sub(tcp.header_len)).unwrap_or(u32::MAX);
    let end = tcp.seq.wrapping_add(payload);
    let end = end.wrapping_add(one_if(flags::SYN)).wrapping_add(one_if(flags::FIN));
    (0, end, flags::RST | flags::ACK)
}

/// Returns whether the packet's sender may be notified.
fn answerable(packet: &Packet<'_>, ip: &Ip) -> bool {
    // The lowest bit of the first byte marks a group or broadcast address.
    let to_many = packet.ether.is_some_and(|ether| ether.destination >> 40 & 1 != 0);
    let later = matches!(ip.fragment, Some(Fragment { offset, .. }) if offset != 0);
    let hosts = is_host(ip.source) && is_host(ip.destination);
    hosts && !to_many && !later && packet.checksum_ok()
}

/// Writes the link header of an answer, if there is one, and returns its length.
fn turned_round(packet: &Packet<'_>, ip: &Ip, out: &mut [u8; MAX_REJECTION]) -> Option<usize> {
    let link = packet.bytes.get(..ip.at)?;
    let header = out.get_mut(..ip.at)?;
    header.copy_from_slice(link);
    if packet.ether.is_some() {
        let (destination, rest) = header.split_first_chunk_mut::<6>()?;
        std::mem::swap(destination, rest.first_chunk_mut()?);
    }
    Some(ip.at)
}
