//! Ethernet II frames (IEEE 802.3 clause 3) with VLAN tags (IEEE 802.1Q clause 9).

use std::fmt;

use crate::field::get16;

/// Length of a header without tags.
pub const HEADER_LEN: usize = 14;
/// Length of a VLAN tag.
const TAG_LEN: usize = 4;
/// The maximum number of tags that are skipped.
const MAX_TAGS: usize = 2;
/// The length of the longest header that is parsed.
pub const MAX_HEADER_LEN: usize = HEADER_LEN + MAX_TAGS * TAG_LEN;

/// The EtherType of IPv4 packets.
pub const IPV4: u16 = 0x0800;
/// The EtherType of IPv6 packets.
pub const IPV6: u16 = 0x86dd;
/// The EtherType of ARP packets.
pub const ARP: u16 = 0x0806;
/// The EtherTypes of VLAN tags: customer tags, and the provider tags around them.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// Returns whether a VLAN tag begins here.
#[inline]
pub fn is_tag(ethertype: u16) -> bool {
    TAGS.contains(&ethertype)
}

/// The address of a station.
#[derive(Copy, Clone, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns whether this is a group address (including broadcast). Such an address is never a sender's.
    #[inline]
    pub fn is_group(self) -> bool {
        let [first, ..] = self.0;
        first & 1 != 0
    }

    /// Returns whether this can be the address of a station.
    #[inline]
    pub fn is_station(self) -> bool {
        !self.is_group() && self != Self::default()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::str::FromStr for Mac {
    type Err = ();

    /// Parses six pairs of hexadecimal digits separated by colons.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| matches!(part.len(), 1 | 2)).ok_or(())?;
            // The standard library parses `+1` as a number.
            let digits = part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| digits).ok_or(())?;
        }
        if parts.next().is_some() { Err(()) } else { Ok(Self(bytes)) }
    }
}

/// The relevant fields of a frame's header.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Ethernet {
    /// Destination address.
    pub destination: Mac,
    /// Source address.
    pub source: Mac,
    /// The type after the tags; a length if it is below 0x600.
    pub ethertype: u16,
    /// The offset of the payload: 14 plus 4 for each tag.
    pub header_len: usize,
}

impl Ethernet {
    /// Parses a header; `None` if `bytes` is too short for one.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_LEN] = frame.first_chunk()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let (mut ethertype, mut header_len) = (u16::from_be_bytes([t0, t1]), HEADER_LEN);
        for _ in 0..MAX_TAGS {
            if !is_tag(ethertype) {
                break;
            }
            ethertype = get16(frame, header_len.wrapping_add(2))?;
            header_len = header_len.wrapping_add(TAG_LEN);
        }
        Some(Self {
            destination: Mac([d0, d1, d2, d3, d4, d5]),
            source: Mac([s0, s1, s2, s3, s4, s5]),
            ethertype,
            header_len,
        })
    }

    /// Returns where the IP packet starts in the parsed frame, if the frame's type and the IP version agree that it
    /// carries one.
    #[inline]
    pub fn ip(&self, frame: &[u8]) -> Option<usize> {
        let version = match self.ethertype {
            IPV4 => 4,
            IPV6 => 6,
            _ => return None,
        };
        (frame.get(self.header_len)? >> 4 == version).then_some(self.header_len)
    }
}

/// Returns the type of service or traffic class of the IP packet in a frame; `None` if the frame carries none.
pub fn tos(frame: &[u8]) -> Option<u8> {
    let l2 = Ethernet::parse(frame)?.ip(frame)?;
    crate::ip::tos(frame.get(l2..)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(types: &[u16]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for (at, kind) in types.iter().enumerate() {
            frame.extend(kind.to_be_bytes());
            if at + 1 < types.len() {
                frame.extend([0, 7]);
            }
        }
        frame
    }

    #[test]
    fn tags_are_looked_behind_twice() {
        let of = |types: &[u16]| {
            Ethernet::parse(&frame(types)).map(|eth| (eth.ethertype, eth.header_len))
        };
        assert_eq!(of(&[IPV4]), Some((IPV4, 14)));
        assert_eq!(of(&[0x0806]), Some((0x0806, 14)));
        assert_eq!(of(&[0x8100, IPV6]), Some((IPV6, 18)));
        assert_eq!(of(&[0x88a8, 0x8100, IPV4]), Some((IPV4, 22)));
        assert_eq!(of(&[0x8100, 0x8100, 0x8100, IPV4]), Some((0x8100, 22)), "a third");
        let cut = frame(&[0x8100, IPV4]);
        assert_eq!(Ethernet::parse(&cut[..17]), None, "a tag cut short");
        assert_eq!(Ethernet::parse(&cut[..13]), None);
    }

    #[test]
    fn ip_is_where_type_and_version_agree() {
        let ip = |kind: u16, first: &[u8]| {
            let frame = [frame(&[kind]), first.to_vec()].concat();
            Ethernet::parse(&frame).and_then(|eth| eth.ip(&frame))
        };
        assert_eq!(ip(IPV4, &[0x45]), Some(14));
        assert_eq!(ip(IPV6, &[0x60]), Some(14));
        assert_eq!(ip(IPV4, &[0x60]), None);
        assert_eq!(ip(IPV6, &[0x45]), None);
        assert_eq!(ip(0x0806, &[0x45]), None);
        assert_eq!(ip(IPV4, &[]), None);
    }

    #[test]
    fn groups_and_zeroes_are_no_stations() {
        let station = |text: &str| text.parse::<Mac>().map(Mac::is_station);
        assert_eq!(station("02:00:00:00:00:01"), Ok(true));
        assert_eq!(station("00:00:00:00:00:01"), Ok(true));
        assert_eq!(station("0:0:0:0:0:0"), Ok(false));
        assert_eq!(station("ff:ff:ff:ff:ff:ff"), Ok(false));
        assert_eq!(station("01:00:5e:00:00:fb"), Ok(false), "a group of IPv4");
        assert_eq!(station("33:33:00:00:00:01"), Ok(false), "a group of IPv6");
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let mac = Mac([0, 0x1a, 0xff, 3, 4, 5]);
        assert_eq!(mac.to_string(), "00:1a:ff:03:04:05");
        assert_eq!(mac.to_string().parse(), Ok(mac));
        for bad in
            ["", "1:2:3:4:5", "1:2:3:4:5:6:7", "1:2:3:4:5:g", "1:2:3:4:5:123", "+1:2:3:4:5:6"]
        {
            assert_eq!(bad.parse::<Mac>(), Err(()), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn headers_never_exceed_the_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(eth) = Ethernet::parse(&bytes) {
                prop_assert!(eth.header_len <= bytes.len() && eth.header_len <= MAX_HEADER_LEN);
            }
        }
    }
}
