//! Reconstruction of a flow's first packet from its record, for evaluating the flow again.

use std::net::IpAddr;

use adit_wire::icmp_error::ip_header;
use adit_wire::ip::{ICMP, ICMPV6, TCP, UDP, V4_LEN, V6_LEN};
use adit_wire::transport::{TCP_LEN, flags};

use crate::packet::Packet;
use crate::ruleset::CtDirection;

/// The maximum length: a link header with tags, IPv6, TCP.
pub(crate) const MAX_FIRST: usize = adit_wire::ethernet::MAX_HEADER_LEN + V6_LEN + TCP_LEN;

/// A flow's protocol, and its ends as in its first packet.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Ends {
    pub protocol: u8,
    /// Address and port; for ICMP the identifier.
    pub source: (IpAddr, u16),
    /// Address and port; for ICMP type and code.
    pub destination: (IpAddr, u16),
}

/// Writes a flow's first packet into `out` and returns its length. The link header is copied from `packet`, a packet of
/// the flow in this direction, and reversed if that packet is an answer.
pub(crate) fn write(
    ends: &Ends,
    packet: &Packet<'_>,
    direction: CtDirection,
    out: &mut [u8; MAX_FIRST],
) -> Option<usize> {
    let link = packet.bytes.get(..packet.ip()?.at)?;
    let header = out.get_mut(..link.len())?;
    header.copy_from_slice(link);
    if direction == CtDirection::Reply
        && let Some((destination, rest)) = header.split_first_chunk_mut::<6>()
    {
        std::mem::swap(destination, rest.first_chunk_mut()?);
    }
    let Ends { protocol, source: (source, from), destination: (destination, to) } = *ends;
    let length = match protocol {
        TCP => TCP_LEN,
        _ => 8,
    };
    let network = out.get_mut(link.len()..)?;
    let at = if source.is_ipv4() { V4_LEN } else { V6_LEN };
    let _pseudo_header = ip_header(source, destination, protocol, length, network)?;
    let body = network.get_mut(at..at.checked_add(length)?)?;
    body.fill(0);
    let ([f0, f1], [t0, t1]) = (from.to_be_bytes(), to.to_be_bytes());
    match (protocol, body) {
        (ICMP | ICMPV6, [kind, code, _, _, id0, id1, ..]) => {
            (*kind, *code, *id0, *id1) = (t0, t1, f0, f1);
        }
        (TCP, [s0, s1, d0, d1, _, _, _, _, _, _, _, _, words, bits, w0, w1, ..]) => {
            (*s0, *s1, *d0, *d1) = (f0, f1, t0, t1);
            (*words, *bits, *w0, *w1) = (0x50, flags::SYN, 0xff, 0xff);
        }
        (UDP, [s0, s1, d0, d1, _, l1, ..]) => {
            (*s0, *s1, *d0, *d1, *l1) = (f0, f1, t0, t1, 8);
        }
        (_, [s0, s1, d0, d1, ..]) => (*s0, *s1, *d0, *d1) = (f0, f1, t0, t1),
        _ => return None,
    }
    link.len().checked_add(at)?.checked_add(length)
}
