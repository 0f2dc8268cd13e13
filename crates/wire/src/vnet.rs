use std::fmt;

/// The 10-byte `struct virtio_net_hdr` before each packet of a TUN device with `IFF_VNET_HDR`
/// (Virtual I/O Device specification 1.2, section 5.1.6), in the machine's byte order.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct VnetHeader {
    /// The transport checksum is missing, and the field holds the pseudo-header's sum.
    pub needs_csum: bool,
    /// How to split the packet.
    pub gso: Gso,
    /// Whether the sender marked the flow for ECN; segments must treat CWR as RFC 3168 specifies.
    pub ecn: bool,
    /// Length of all headers according to the sender. The kernel sometimes sets it incorrectly, so
    /// it is only a hint.
    pub hdr_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// The offset at which checksumming starts: the transport header.
    pub csum_start: u16,
    /// The offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
}

/// Kinds of super-packets.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Gso {
    /// One plain packet.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over either, split into datagrams.
    UdpL4,
    /// A kind that was never requested.
    Other(u8),
}

const FLAG_NEEDS_CSUM: u8 = 1;
const GSO_ECN: u8 = 0x80;

impl VnetHeader {
    /// Length on the wire.
    pub const LEN: usize = 10;

    /// Reads a header.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let [flags, gso, h0, h1, g0, g1, s0, s1, o0, o1] = *bytes;
        Self {
            needs_csum: flags & FLAG_NEEDS_CSUM != 0,
            gso: Gso::from_wire(gso & !GSO_ECN),
            ecn: gso & GSO_ECN != 0,
            hdr_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            csum_start: u16::from_ne_bytes([s0, s1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    /// Writes a header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let flags = if self.needs_csum { FLAG_NEEDS_CSUM } else { 0 };
        let gso = self.gso.to_wire() | if self.ecn { GSO_ECN } else { 0 };
        let [h0, h1] = self.hdr_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        [flags, gso, h0, h1, g0, g1, s0, s1, o0, o1]
    }
}

impl Gso {
    fn from_wire(byte: u8) -> Self {
        match byte {
            0 => Self::None,
            1 => Self::TcpV4,
            4 => Self::TcpV6,
            5 => Self::UdpL4,
            other => Self::Other(other),
        }
    }

    fn to_wire(self) -> u8 {
        match self {
            Self::None => 0,
            Self::TcpV4 => 1,
            Self::TcpV6 => 4,
            Self::UdpL4 => 5,
            Self::Other(byte) => byte,
        }
    }
}

impl fmt::Display for Gso {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::TcpV4 => f.write_str("tcp4"),
            Self::TcpV6 => f.write_str("tcp6"),
            Self::UdpL4 => f.write_str("udp"),
            Self::Other(byte) => write!(f, "kind {byte}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_decodes(bytes: [u8; 10]) {
            let header = VnetHeader::decode(&bytes);
            prop_assert_eq!(VnetHeader::decode(&header.encode()), header);
        }
    }

    #[test]
    fn the_ecn_bit_is_no_part_of_the_kind() {
        let header = VnetHeader::decode(&[1, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((header.gso, header.ecn, header.needs_csum), (Gso::TcpV4, true, true));
    }
}
