//! The parts of packets that the router reads and changes.

use adit_filter::packet::{Ip, Packet, Transport};
use adit_wire::checksum::Sum;
use adit_wire::ethernet::Mac;
use adit_wire::transport::UDP_LEN;

pub(super) fn mac(number: u64) -> Mac {
    let [_, _, rest @ ..] = number.to_be_bytes();
    Mac(rest)
}

/// Writes a link header's addresses.
pub(super) fn write_link(frame: &mut [u8], to: Mac, from: Mac) {
    if let Some((first, rest)) = frame.split_first_chunk_mut::<6>() {
        *first = to.0;
        if let Some(second) = rest.first_chunk_mut::<6>() {
            *second = from.0;
        }
    }
}

/// Returns the length of the longest packet on the wire that `packet` is split into.
pub(super) fn longest(packet: &Packet<'_>, ip: &Ip) -> usize {
    if packet.cut.size == 0 {
        return packet.length();
    }
    let header = match packet.transport {
        Transport::Tcp(tcp) => tcp.header_len,
        _ => UDP_LEN,
    };
    let headers = ip.payload.saturating_sub(ip.at).saturating_add(header);
    headers.saturating_add(packet.cut.size.into()).min(packet.length())
}

/// Returns whether an IPv4 packet has malformed options. They may hide a source route, which could bypass any filter (RFC 7126 4.3 and
/// 4.4). A well-formed source route was refused when the packet was parsed.
pub(super) fn has_garbled_options(packet: &Packet<'_>, ip: &Ip) -> bool {
    if !ip.source.is_ipv4() {
        return false;
    }
    let start = ip.at.saturating_add(20);
    let end = packet.bytes.get(ip.at).map_or(0, |first| usize::from(first & 0xf).wrapping_mul(4));
    let mut options = packet.bytes.get(start..ip.at.saturating_add(end)).unwrap_or_default();
    loop {
        options = match *options {
            [] | [0, ..] => return false,
            [1, ref rest @ ..] => rest,
            [_, len, ..] if len >= 2 => options.get(usize::from(len)..).unwrap_or_default(),
            [_, ..] => return true,
        };
    }
}

/// Returns the answer to an echo request.
pub(super) fn echo(packet: &Packet<'_>, ip: &Ip) -> Option<Vec<u8>> {
    let (source, destination) = (ip.source, ip.destination);
    let body = packet.transport_bytes();
    let v4 = source.is_ipv4();
    let header_len = if v4 { 20 } else { 40 };
    let mut reply = packet.bytes.get(..ip.at)?.to_vec();
    let (to, rest) = reply.split_first_chunk_mut::<6>()?;
    std::mem::swap(to, rest.first_chunk_mut()?);
    let at = reply.len();
    reply.resize(at.checked_add(header_len)?, 0);
    reply.extend_from_slice(body);
    let (header, message) = reply.get_mut(at..)?.split_at_mut_checked(header_len)?;
    let protocol = ip.protocol;
    let pseudo =
        adit_wire::icmp_error::ip_header(destination, source, protocol, body.len(), header)?;
    *message.first_mut()? = if v4 { 0 } else { 129 };
    message.get_mut(2..4)?.fill(0);
    let start = if v4 { Sum::new() } else { pseudo };
    let sum = start.bytes(message).finish().to_be_bytes();
    message.get_mut(2..4)?.copy_from_slice(&sum);
    Some(reply)
}
