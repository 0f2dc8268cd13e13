//! TCP (RFC 9293), UDP (RFC 768) and ICMP headers.

use crate::field::{get8, get16, get32};

/// TCP flag bits.
pub mod flags {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// ECN echo.
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced.
    pub const CWR: u8 = 0x80;
}

/// Length of a TCP header without options.
pub const TCP_LEN: usize = 20;
/// Length of a UDP header.
pub const UDP_LEN: usize = 8;

/// The relevant fields of a TCP header.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Tcp {
    /// Both ports, source in the high half.
    pub ports: u32,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Length with options.
    pub header_len: usize,
    /// The flag bits; see [`flags`].
    pub flags: u8,
}

impl Tcp {
    /// Parses the header at the start of `bytes`; `None` if it is incomplete.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; TCP_LEN] = bytes.first_chunk()?;
        let header_len = usize::from(get8(head, 12)? >> 4).wrapping_mul(4);
        if header_len < TCP_LEN || header_len > bytes.len() {
            return None;
        }
        Some(Self {
            ports: get32(head, 0)?,
            seq: get32(head, 4)?,
            ack: get32(head, 8)?,
            header_len,
            flags: get8(head, 13)?,
        })
    }
}

/// The relevant fields of a UDP header.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Udp {
    /// Both ports, source in the high half.
    pub ports: u32,
    /// Length including the header, at least 8; not checked against the bytes present.
    pub len: u16,
    /// Checksum, 0 for none (IPv4 only).
    pub checksum: u16,
}

impl Udp {
    /// Parses the header at the start of `bytes`; `None` if it is too short.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; UDP_LEN] = bytes.first_chunk()?;
        let len = get16(head, 4)?;
        if usize::from(len) < UDP_LEN {
            return None;
        }
        Some(Self { ports: get32(head, 0)?, len, checksum: get16(head, 6)? })
    }
}

/// The relevant fields of an ICMP or ICMPv6 header.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Icmp {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// The four bytes after the checksum (for echo: identifier and sequence).
    pub rest: u32,
}

impl Icmp {
    /// Parses the header at the start of `bytes`; `None` if it is too short.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self { kind: get8(bytes, 0)?, code: get8(bytes, 1)?, rest: get32(bytes, 4)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_headers_are_refused() {
        let mut tcp = [0u8; 24];
        tcp[12] = 0x60;
        assert_eq!(Tcp::parse(&tcp).map(|tcp| tcp.header_len), Some(24));
        tcp[12] = 0x70;
        assert_eq!(Tcp::parse(&tcp), None, "options beyond the end");
        tcp[12] = 0x40;
        assert_eq!(Tcp::parse(&tcp), None, "shorter than a header");
        assert_eq!(Udp::parse(&[0, 1, 0, 2, 0, 7, 0, 0]), None, "length below 8");
        assert_eq!(Icmp::parse(&[8, 0, 0, 0, 0, 1, 0]), None);
    }
}
