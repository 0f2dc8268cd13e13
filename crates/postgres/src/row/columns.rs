//! What a packet's headers tell.

use adit_wire::ip::{ICMP, ICMPV6, Ip, TCP, UDP};

use super::Columns;
use crate::Audit;

const UDP_LITE: u8 = 136;
const SCTP: u8 = 132;
const DCCP: u8 = 33;

// RFC 8200, 4; RFC 4302; RFC 6275; RFC 7401; RFC 5533.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// Extension headers that are looked behind. No honest packet has more.
const MAX_EXTENSIONS: usize = 8;

/// Where the flags stand in a TCP header.
const TCP_FLAGS: usize = 13;

/// The columns of a packet, as far as the policy wants them and the packet has them.
///
/// Of what is no IP packet only the length is told. A fragment has no ports, not even the first one, so that a
/// packet's pieces look alike. A header cut short has what is there.
#[must_use]
pub fn columns(audit: Audit, packet: &[u8]) -> Columns {
    let len = i32::try_from(packet.len()).ok();
    match audit {
        Audit::None => Columns::default(),
        Audit::Metadata => Columns { len, ..Columns::default() },
        Audit::Full | Audit::Headers => Ip::parse(packet)
            .map_or(Columns { len, ..Columns::default() }, |ip| headers(&ip, len, packet)),
    }
}

fn headers(ip: &Ip, len: Option<i32>, packet: &[u8]) -> Columns {
    let inner = packet.get(ip.header_len..ip.total_len).unwrap_or_default();
    let inside = match ip.source {
        std::net::IpAddr::V4(_) => {
            Inside { proto: ip.protocol, fragment: ip.fragment, bytes: inner }
        }
        std::net::IpAddr::V6(_) => behind_extensions(ip.protocol, inner),
    };
    let mut columns = Columns {
        len,
        proto: Some(inside.proto.into()),
        src: Some(ip.source),
        dst: Some(ip.destination),
        ..Columns::default()
    };
    if !inside.fragment {
        transport(&inside, &mut columns);
    }
    columns
}

/// What lies behind the IP headers.
struct Inside<'a> {
    proto: u8,
    fragment: bool,
    bytes: &'a [u8],
}

/// Walks IPv6 extension headers; stops at what it does not know and where the bytes end.
fn behind_extensions(first: u8, bytes: &[u8]) -> Inside<'_> {
    let mut inside = Inside { proto: first, fragment: false, bytes };
    for _ in 0..MAX_EXTENSIONS {
        let Some(len) = extension_len(&inside) else { break };
        let (Some(&next), Some(rest)) = (inside.bytes.first(), inside.bytes.get(len..)) else {
            break;
        };
        // A fragment that is the whole packet (RFC 6946) is none.
        let piece = inside.proto == FRAGMENT
            && inside
                .bytes
                .get(2..4)
                .is_some_and(|field| matches!(field, [high, low] if *high != 0 || low & 0xf9 != 0));
        inside = Inside { proto: next, fragment: inside.fragment || piece, bytes: rest };
        if piece {
            break;
        }
    }
    inside
}

/// Length of the extension header at the start; `None` if there is none or it is cut short.
fn extension_len(inside: &Inside<'_>) -> Option<usize> {
    let stated = usize::from(*inside.bytes.get(1)?);
    match inside.proto {
        HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HOST_IDENTITY | SHIM6 => {
            Some(stated.wrapping_mul(8).wrapping_add(8))
        }
        FRAGMENT => Some(8),
        AUTHENTICATION => Some(stated.wrapping_mul(4).wrapping_add(8)),
        _ => None,
    }
}

fn transport(inside: &Inside<'_>, columns: &mut Columns) {
    match inside.proto {
        TCP | UDP | UDP_LITE | SCTP | DCCP => {
            let Some(&[s0, s1, d0, d1]) = inside.bytes.first_chunk() else { return };
            columns.sport = Some(u16::from_be_bytes([s0, s1]).into());
            columns.dport = Some(u16::from_be_bytes([d0, d1]).into());
            if inside.proto == TCP {
                columns.flags = inside.bytes.get(TCP_FLAGS).map(|&flags| flags.into());
            }
        }
        ICMP | ICMPV6 => {
            let kind_and_code = inside.bytes.first_chunk().map(|both| u16::from_be_bytes(*both));
            columns.dport = kind_and_code.map(i32::from);
        }
        _ => {}
    }
}
