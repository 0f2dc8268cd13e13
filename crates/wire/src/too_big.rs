//! "Packet too big" errors: a router's answer to a packet that does not fit and must not be fragmented (RFC 1191, RFC
//! 4443).

use crate::field::get8;
use crate::icmp_error::{self, Message, is_error, is_host};
use crate::ip::{self, ICMP, ICMPV6, Ip};

/// The length of the longest answer: IPv6's smallest MTU.
pub const MAX_ANSWER: usize = icmp_error::MAX_V6;
/// An IPv6 packet of up to this length is never too big (RFC 8200).
pub const V6_MINIMUM: u16 = 1280;
/// An IPv4 packet of up to this length is never reported as too big: hosts refuse a smaller path MTU anyway.
pub const V4_MINIMUM: u16 = 576;

/// The longest answer over IPv4: it quotes 128 bytes of the packet, enough for all its headers.
const LONGEST4: usize = 156;

/// Writes the answer to `packet`, of which only `mtu` bytes would have fitted, into `out`. `packet` may be a super-packet with the headers
/// of its first segment.
///
/// Returns `None` if no error may be sent (IPv4 without the DF bit, ICMP errors, multicast), or if the standards
/// guarantee that the packet fits.
///
/// The source address of the answer is the packet's destination: hosts drop packets that claim to come from the hosts
/// themselves, and a reverse path filter may refuse any other address.
pub fn answer<'o>(packet: &[u8], mtu: u16, out: &'o mut [u8; MAX_ANSWER]) -> Option<&'o [u8]> {
    let ip = Ip::parse(packet)?;
    if !is_host(ip.source) || !is_host(ip.destination) {
        return None;
    }
    let v4 = ip.source.is_ipv4();
    if v4 && !ip::v4_df(packet) {
        return None;
    }
    let mtu = mtu.max(if v4 { V4_MINIMUM } else { V6_MINIMUM });
    if packet.len() <= usize::from(mtu) {
        return None;
    }
    let icmp = ip.protocol == if v4 { ICMP } else { ICMPV6 };
    if icmp && is_error(v4, get8(packet, ip.header_len)?) {
        return None;
    }
    let (kind, code, longest) = if v4 { (3, 4, LONGEST4) } else { (2, 0, MAX_ANSWER) };
    let message = Message { kind, code, rest: mtu.into() };
    let len = icmp_error::write(packet, message, ip.destination, ip.source, longest, out)?;
    out.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::naive_checksum;
    use proptest::prelude::*;

    const DONT_FRAGMENT: u8 = 0x40;
    const QUOTE4: usize = 128;

    fn v4(len: usize, flags: u8, protocol: u8, kind: u8) -> Vec<u8> {
        let mut packet = vec![0x55; len];
        let [l0, l1] = (len as u16).to_be_bytes();
        packet[..20].copy_from_slice(&[
            0x45, 0, l0, l1, 0, 7, flags, 0, 64, protocol, 0, 0, 10, 8, 0, 1, 10, 8, 0, 2,
        ]);
        packet[20] = kind;
        packet
    }

    fn v6(len: usize, next: u8, kind: u8, destination: u8) -> Vec<u8> {
        let mut packet = vec![0x55; len];
        packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, next, 64]);
        packet[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
        packet[8] = 0xfd;
        packet[24] = destination;
        packet[40] = kind;
        packet
    }

    #[test]
    fn an_ipv4_packet_with_df_is_answered() {
        let packet = v4(1400, DONT_FRAGMENT, 17, 0);
        let mut out = [0; MAX_ANSWER];
        let answer = answer(&packet, 1300, &mut out).unwrap();
        let ip = Ip::parse(answer).unwrap();
        assert_eq!(ip.source.to_string(), "10.8.0.2", "not from the host itself");
        assert_eq!(ip.destination.to_string(), "10.8.0.1");
        assert_eq!((ip.protocol, ip.total_len), (ICMP, answer.len()));
        assert_eq!(naive_checksum(&answer[..20]), 0);
        assert_eq!(naive_checksum(&answer[20..]), 0);
        assert_eq!((answer[20], answer[21]), (3, 4));
        assert_eq!(u16::from_be_bytes([answer[26], answer[27]]), 1300);
        assert_eq!(answer[28..], packet[..QUOTE4]);
    }

    #[test]
    fn an_ipv6_packet_is_answered() {
        let packet = v6(1400, 17, 0, 0xfd);
        let mut out = [0; MAX_ANSWER];
        let answer = answer(&packet, 1300, &mut out).unwrap();
        let ip = Ip::parse(answer).unwrap();
        assert_eq!((ip.protocol, ip.total_len, answer.len()), (ICMPV6, MAX_ANSWER, MAX_ANSWER));
        assert_eq!((ip.source, ip.destination), {
            let asked = Ip::parse(&packet).unwrap();
            (asked.destination, asked.source)
        });
        let pseudo = [&answer[8..40], &1240u32.to_be_bytes(), &[0, 0, 0, ICMPV6], &answer[40..]];
        assert_eq!(naive_checksum(&pseudo.concat()), 0);
        assert_eq!(
            (answer[40], u32::from_be_bytes(*answer[44..].first_chunk().unwrap())),
            (2, 1300)
        );
        assert_eq!(answer[48..], packet[..1232]);
    }

    #[test]
    fn no_host_is_told_where_none_should_be() {
        let mut out = [0; MAX_ANSWER];
        let mut told = |packet: &[u8], mtu| answer(packet, mtu, &mut out).is_some();
        assert!(told(&v4(1400, DONT_FRAGMENT, 1, 8), 1300), "an echo request may");
        assert!(!told(&v4(1400, 0, 17, 0), 1300), "without DF");
        assert!(!told(&v4(1400, DONT_FRAGMENT, 1, 3), 1300), "an ICMP error");
        assert!(!told(&v4(1300, DONT_FRAGMENT, 17, 0), 1300), "fits");
        assert!(!told(&v4(500, DONT_FRAGMENT, 17, 0), 100), "below the floor");
        let mut multicast = v4(1400, DONT_FRAGMENT, 17, 0);
        multicast[16] = 224;
        assert!(!told(&multicast, 1300));
        multicast[16..20].copy_from_slice(&[255; 4]);
        assert!(!told(&multicast, 1300));
        assert!(told(&v6(1400, ICMPV6, 128, 0xfd), 1300), "an echo request may");
        assert!(!told(&v6(1400, ICMPV6, 1, 0xfd), 1300), "an ICMPv6 error");
        assert!(!told(&v6(1400, 17, 0, 0xff), 1300), "multicast");
        assert!(!told(&v6(1280, 17, 0, 0xfd), 600), "below the floor");
        assert!(!told(&[], 1300));
    }

    proptest! {
        #[test]
        fn no_packet_panics(
            mut packet in proptest::collection::vec(any::<u8>(), 0..1600), version in 0usize..3, mtu: u16,
        ) {
            if let (Some(first), Some(version)) = (packet.first_mut(), [0x45, 0x60].get(version)) {
                *first = *version;
            }
            let mut out = [0; MAX_ANSWER];
            if let Some(answer) = answer(&packet, mtu, &mut out) {
                prop_assert!(Ip::parse(answer).is_some_and(|ip| ip.total_len == answer.len()));
            }
        }
    }
}
