//! Reads the values of columns from a packet's headers.

use adit_wire::ip::{ICMP, ICMPV6, Ip, TCP, UDP};

use super::Columns;
use crate::Audit;

const UDP_LITE: u8 = 136;
const SCTP: u8 = 132;
const DCCP: u8 = 33;

// The numbers of extension headers (RFC 8200, 4; RFC 4302; RFC 6275; RFC 7401; RFC 5533).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// The maximum number of extension headers that are skipped. No legitimate packet has more.
const MAX_EXTENSIONS: usize = 8;

/// The offset of the flags in a TCP header.
const TCP_FLAGS: usize = 13;

/// Returns the columns of a packet that the policy includes and the packet has.
///
/// For data that is not an IP packet, only the length is set. No fragment has ports, not even the first one, so that
/// all fragments of a packet are treated alike. For a truncated header, only the complete fields are set.
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
            TransportHeader { proto: ip.protocol, fragment: ip.fragment, bytes: inner }
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

/// The header after the IP headers.
struct TransportHeader<'a> {
    proto: u8,
    fragment: bool,
    bytes: &'a [u8],
}

/// Skips IPv6 extension headers, up to an unknown header or the end of the bytes.
fn behind_extensions(first: u8, bytes: &[u8]) -> TransportHeader<'_> {
    let mut inside = TransportHeader { proto: first, fragment: false, bytes };
    for _ in 0..MAX_EXTENSIONS {
        let Some(len) = extension_len(&inside) else { break };
        let (Some(&next), Some(rest)) = (inside.bytes.first(), inside.bytes.get(len..)) else {
            break;
        };
        // A fragment that contains the whole packet (RFC 6946) does not count as a fragment.
        let piece = inside.proto == FRAGMENT
            && inside
                .bytes
                .get(2..4)
                .is_some_and(|field| matches!(field, [high, low] if *high != 0 || low & 0xf9 != 0));
        inside = TransportHeader { proto: next, fragment: inside.fragment || piece, bytes: rest };
        if piece {
            break;
        }
    }
    inside
}

/// Returns the length of the extension header at the start, or `None` if there is none or it is truncated.
fn extension_len(inside: &TransportHeader<'_>) -> Option<usize> {
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

fn transport(inside: &TransportHeader<'_>, columns: &mut Columns) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4(proto: u8, fragment: u16, inner: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20 + inner.len() as u8, 0, 1];
        packet.extend_from_slice(&fragment.to_be_bytes());
        packet.extend_from_slice(&[64, proto, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
        packet.extend_from_slice(inner);
        packet
    }

    fn v6(next: u8, inner: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, inner.len() as u8, next, 64];
        for last in [1, 2] {
            packet.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        packet.extend_from_slice(inner);
        packet
    }

    fn tcp() -> Vec<u8> {
        let mut tcp = vec![0x1f, 0x90, 0x01, 0xbb, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12];
        tcp.resize(20, 0);
        tcp
    }

    /// Returns the protocol, ports and flags of a packet.
    fn described_columns(packet: &[u8]) -> (Option<i16>, Option<i32>, Option<i32>, Option<i16>) {
        let columns = columns(Audit::Headers, packet);
        assert_eq!(columns.len, Some(packet.len() as i32));
        (columns.proto, columns.sport, columns.dport, columns.flags)
    }

    #[test]
    fn a_policy_tells_what_it_says() {
        let packet = v4(6, 0, &tcp());
        let all = Columns {
            len: Some(40),
            sport: Some(8080),
            dport: Some(443),
            proto: Some(6),
            flags: Some(0x12),
            src: Some([10, 9, 0, 1].into()),
            dst: Some([10, 9, 0, 2].into()),
        };
        assert_eq!(columns(Audit::Full, &packet), all);
        assert_eq!(columns(Audit::Headers, &packet), all);
        let length = Columns { len: Some(40), ..Columns::default() };
        assert_eq!(columns(Audit::Metadata, &packet), length);
        assert_eq!(columns(Audit::None, &packet), Columns::default());
        let v6 = columns(Audit::Headers, &v6(6, &tcp()));
        assert_eq!((v6.sport, v6.dport, v6.flags), (all.sport, all.dport, all.flags));
        assert_eq!(v6.src, Some("fd00::1".parse().unwrap()));
        assert_eq!(v6.dst, Some("fd00::2".parse().unwrap()));
    }

    #[test]
    fn each_protocol_has_its_columns() {
        let ports = [0x1f, 0x90, 0x01, 0xbb, 0, 8, 0, 0];
        for proto in [17, 33, 132, 136] {
            assert_eq!(
                described_columns(&v4(proto, 0, &ports)),
                (Some(proto.into()), Some(8080), Some(443), None)
            );
        }
        assert_eq!(
            described_columns(&v4(1, 0, &[8, 3, 0, 0])),
            (Some(1), None, Some(0x0803), None)
        );
        assert_eq!(
            described_columns(&v6(58, &[128, 1, 0, 0])),
            (Some(58), None, Some(0x8001), None)
        );
        assert_eq!(
            described_columns(&v4(47, 0, &ports)),
            (Some(47), None, None, None),
            "GRE has no ports"
        );
    }

    #[test]
    fn extension_headers_are_looked_behind() {
        let mut inner = vec![43, 0, 0, 0, 0, 0, 0, 0]; // hop by hop
        inner.extend_from_slice(&[51, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // routing of 16 bytes
        inner.extend_from_slice(&[60, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // AH of 16 bytes
        inner.extend_from_slice(&[6, 0, 0, 0, 0, 0, 0, 0]); // destination options
        inner.extend_from_slice(&tcp());
        assert_eq!(described_columns(&v6(0, &inner)), (Some(6), Some(8080), Some(443), Some(0x12)));
        assert_eq!(
            described_columns(&v6(0, &inner[..7])),
            (Some(0), None, None, None),
            "cut short"
        );
        assert_eq!(
            described_columns(&v6(0, &inner[..8])),
            (Some(43), None, None, None),
            "cut short behind one"
        );
        let many: Vec<u8> = [60, 0, 0, 0, 0, 0, 0, 0].repeat(9);
        assert_eq!(described_columns(&v6(60, &many)), (Some(60), None, None, None));
        assert_eq!(
            described_columns(&v6(59, &tcp())),
            (Some(59), None, None, None),
            "no next header"
        );
    }

    #[test]
    fn a_fragment_has_no_ports() {
        assert_eq!(
            described_columns(&v4(6, 0x4000, &tcp())),
            (Some(6), Some(8080), Some(443), Some(0x12)),
            "DF"
        );
        assert_eq!(
            described_columns(&v4(6, 0x2000, &tcp())),
            (Some(6), None, None, None),
            "the first"
        );
        assert_eq!(
            described_columns(&v4(6, 0x0010, &tcp())),
            (Some(6), None, None, None),
            "the last"
        );
        let fragment = |offset_and_more: u16| {
            let mut inner = vec![6, 0];
            inner.extend_from_slice(&offset_and_more.to_be_bytes());
            inner.extend_from_slice(&[0; 4]);
            inner.extend_from_slice(&tcp());
            described_columns(&v6(44, &inner))
        };
        assert_eq!(fragment(0x0001), (Some(6), None, None, None), "the first");
        assert_eq!(fragment(0x0008), (Some(6), None, None, None), "the last");
        assert_eq!(fragment(0x0100), (Some(6), None, None, None), "the last, further on");
        assert_eq!(fragment(0x0006), (Some(6), Some(8080), Some(443), Some(0x12)), "the whole");
    }

    #[test]
    fn of_a_malformed_packet_is_told_what_can_be() {
        let length_only = (None, None, None, None);
        assert_eq!(described_columns(&[]), length_only);
        assert_eq!(described_columns(&[0x45; 19]), length_only);
        assert_eq!(described_columns(&[0x75; 40]), length_only, "no version of IP");
        assert_eq!(
            described_columns(&v4(6, 0, &tcp()[..13])),
            (Some(6), Some(8080), Some(443), None)
        );
        assert_eq!(described_columns(&v4(6, 0, &tcp()[..3])), (Some(6), None, None, None));
        assert_eq!(described_columns(&v4(1, 0, &[8])), (Some(1), None, None, None));
    }

    proptest! {
        #[test]
        fn nothing_panics(
            start in prop_oneof![Just(vec![0x45]), Just(vec![0x60]), Just(vec![])],
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let packet = [start, rest].concat();
            for audit in Audit::ALL {
                let _ = columns(*audit, &packet);
            }
        }
    }
}
