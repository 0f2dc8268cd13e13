//! Rebuilds the headers of a sealed packet from the columns in the clear.

use std::net::IpAddr;

use adit_wire::checksum::Sum;
use adit_wire::ip::{ICMP, ICMPV6, TCP, UDP};

use super::Columns;

const IPV4_HEADER: u16 = 20;
const IPV6_HEADER: u16 = 40;
/// The TTL of a rebuilt packet: the default of most systems, because the original is unknown.
const TTL: u8 = 64;
/// The data offset of a TCP header without options (20 bytes).
const TCP_OFFSET: u8 = 5 << 4;

/// Appends the headers of a packet, rebuilt from its columns, with zeros for unknown fields. Returns the length of the
/// whole packet in bytes. If the columns do not describe an IP packet, appends nothing and returns `None`.
pub fn rebuild(columns: &Columns, out: &mut Vec<u8>) -> Option<u32> {
    let Columns { len: Some(len), proto: Some(proto), src: Some(src), dst: Some(dst), .. } =
        *columns
    else {
        return None;
    };
    let (len, proto) = (u16::try_from(len).ok()?, u8::try_from(proto).ok()?);
    let inner = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let [len_high, len_low] = len.to_be_bytes();
            let mut header = [0x45, 0, len_high, len_low, 0, 0, 0, 0, TTL, proto, 0, 0].to_vec();
            header.extend_from_slice(&src.octets());
            header.extend_from_slice(&dst.octets());
            let sum = Sum::new().bytes(&header).finish();
            if let Some(place) = header.get_mut(10..12) {
                place.copy_from_slice(&sum.to_be_bytes());
            }
            out.extend_from_slice(&header);
            len.saturating_sub(IPV4_HEADER)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let inner = len.saturating_sub(IPV6_HEADER);
            out.extend_from_slice(&[0x60, 0, 0, 0]);
            out.extend_from_slice(&inner.to_be_bytes());
            out.extend_from_slice(&[proto, TTL]);
            out.extend_from_slice(&src.octets());
            out.extend_from_slice(&dst.octets());
            inner
        }
        _ => return None,
    };
    out.extend(transport(columns, proto, inner).into_iter().take(inner.into()));
    Some(len.into())
}

/// Returns the first bytes of the transport's header.
fn transport(columns: &Columns, proto: u8, inner: u16) -> Vec<u8> {
    let port = |port: Option<i32>| u16::try_from(port.unwrap_or(0)).unwrap_or(0).to_be_bytes();
    let (source, destination) = (port(columns.sport), port(columns.dport));
    match (proto, columns.sport, columns.dport) {
        // The type and code.
        (ICMP | ICMPV6, _, Some(_)) => destination.to_vec(),
        (TCP, Some(_), _) => {
            let flags = columns.flags.and_then(|flags| u8::try_from(flags).ok()).unwrap_or(0);
            [&source[..], &destination, &[0; 8], &[TCP_OFFSET, flags], &[0; 6]].concat()
        }
        (UDP, Some(_), _) => [source, destination, inner.to_be_bytes(), [0; 2]].concat(),
        (_, Some(_), _) => [source, destination].concat(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Audit;
    use crate::row::columns;

    fn rebuilt(len: i32, proto: i16, ports: (Option<i32>, Option<i32>), v6: bool) -> Columns {
        let address = if v6 { "fd00::1" } else { "10.9.0.1" };
        Columns {
            len: Some(len),
            sport: ports.0,
            dport: ports.1,
            proto: Some(proto),
            flags: (proto == 6 && ports.0.is_some()).then_some(0x12),
            src: address.parse().ok(),
            dst: address.parse().ok(),
        }
    }

    /// A rebuilt packet gives the same columns as the original.
    #[test]
    fn columns_of_what_was_rebuilt_are_the_same() {
        for v6 in [false, true] {
            let icmp = if v6 { 58 } else { 1 };
            for (proto, ports) in [
                (6, (Some(443), Some(50_000))),
                (17, (Some(53), Some(1))),
                (icmp, (None, Some(0x0800))),
                (132, (Some(5), Some(6))),
                (47, (None, None)),
                // The packet is a fragment.
                (6, (None, None)),
            ] {
                let columns_before = rebuilt(1400, proto, ports, v6);
                let mut packet = Vec::new();
                assert_eq!(rebuild(&columns_before, &mut packet), Some(1400));
                assert!(packet.len() <= 60, "cut at the headers");
                packet.resize(1400, 0);
                let mut after = columns(Audit::Headers, &packet);
                if ports == (None, None) {
                    // Unknown fields are zero.
                    (after.sport, after.dport, after.flags) = (None, None, None);
                }
                assert_eq!(after, columns_before, "protocol {proto}");
            }
        }
    }

    #[test]
    fn an_ipv4_header_has_its_checksum() {
        let mut packet = Vec::new();
        rebuild(&rebuilt(100, 17, (Some(1), Some(2)), false), &mut packet);
        assert_eq!(Sum::new().bytes(&packet[..20]).fold(), 0xffff);
        assert_eq!(packet[20..], [0, 1, 0, 2, 0, 80, 0, 0]);
    }

    #[test]
    fn a_packet_shorter_than_its_headers_is_no_longer_than_itself() {
        let mut packet = Vec::new();
        assert_eq!(rebuild(&rebuilt(22, 6, (Some(1), Some(2)), false), &mut packet), Some(22));
        assert_eq!(packet.len(), 22);
    }

    #[test]
    fn what_is_no_ip_packet_is_not_rebuilt() {
        let whole = rebuilt(100, 6, (None, None), false);
        for columns in [
            Columns::default(),
            Columns { len: None, ..whole },
            Columns { proto: None, ..whole },
            Columns { src: None, ..whole },
            Columns { dst: "fd00::1".parse().ok(), ..whole },
            Columns { len: Some(-1), ..whole },
            Columns { len: Some(70_000), ..whole },
            Columns { proto: Some(256), ..whole },
        ] {
            let mut packet = Vec::new();
            assert_eq!(rebuild(&columns, &mut packet), None, "{columns:?}");
            assert_eq!(packet, []);
        }
    }
}
