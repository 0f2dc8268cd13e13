//! The headers of a packet, parsed once.
//!
//! A parsed packet has offsets into the frame and the few values that are used most. For bounds see [`MAX_EXTENSIONS`];
//! no code here reads beyond the bytes that the headers account for.
//!
//! A packet that is refused here is dropped regardless of the rules, because no rule could evaluate it correctly: see [`Malformed`].

mod checksum;
mod parse;
pub(crate) use parse::extension;
#[cfg(test)]
pub(crate) mod tests;

use std::net::IpAddr;

/// The number of IPv6 extension headers that are walked before the packet counts as malformed.
pub const MAX_EXTENSIONS: usize = 8;
/// The EtherType of a service provider's VLAN tag (IEEE 802.1ad).
const SERVICE_TAG: u16 = 0x88a8;

/// The layer at which a device's packets begin.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Layer {
    /// Ethernet frames: a TAP device, a packet socket.
    Ethernet,
    /// IP packets: a TUN device.
    Ip,
}

/// A parsed packet.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    /// The whole frame, from the Ethernet header on if there is one; truncated to the length in the network header, so
    /// that it excludes padding.
    pub bytes: &'a [u8],
    /// The Ethernet header; `None` on a TUN device.
    pub ether: Option<Ether>,
    /// The network header.
    pub network: Network,
    /// The transport header; [`Transport::None`] after a fragment that is not the first.
    pub transport: Transport,
    /// The way in which the segments are counted and checked.
    pub cut: OffloadState,
}

/// An Ethernet header.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Ether {
    /// Source address.
    pub source: u64,
    /// Destination address.
    pub destination: u64,
    /// The first EtherType on the wire: that of the tag, if there is one (0x8100, 0x88a8).
    pub outer: u16,
    /// The type of the payload, after all VLAN tags.
    pub ethertype: u16,
    /// The outermost tag (priority, drop eligible, id), in the frame or next to it.
    pub vlan: Option<u16>,
    /// Whether that tag is next to the frame, which must then be sent with it.
    pub beside: bool,
}

impl Packet<'_> {
    /// Returns the VLANs of the packet: the ids of the two outermost tags, and whether the first is a service tag
    /// (802.1ad). Returns 0 without tags. A tag with id 0 carries only a priority.
    #[inline]
    pub fn vlans(&self) -> u32 {
        match self.ether {
            Some(ether) if ether.vlan.is_some() => self.tags(ether),
            _ => 0,
        }
    }

    #[cold]
    fn tags(&self, ether: Ether) -> u32 {
        let end = match self.network {
            Network::Ip(Ip { at, .. }) | Network::Arp(at) | Network::Other(at) => at,
        };
        let inside = self.bytes.get(adit_wire::ethernet::HEADER_LEN..end).unwrap_or_default();
        let inside = inside.chunks_exact(4).filter_map(|tag| tag.first_chunk().copied());
        let beside = ether.vlan.filter(|_| ether.beside);
        let ids = beside.into_iter().chain(inside.map(u16::from_be_bytes));
        let mut ids = ids.map(|tag| u32::from(tag & 0xfff)).filter(|id| *id != 0);
        match (ids.next(), ids.next()) {
            (None, _) => 0,
            (Some(first), second) => {
                let service = u32::from(ether.outer == SERVICE_TAG);
                first | second.unwrap_or(0) << 12 | service << 24
            }
        }
    }
}

/// The payload of a frame.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Network {
    /// IPv4 or IPv6.
    Ip(Ip),
    /// ARP for IPv4 over Ethernet, with its offset.
    Arp(usize),
    /// Anything else, with its offset.
    Other(usize),
}

/// An IP header after walking the extension headers.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Ip {
    /// The offset of the IP header in the frame.
    pub at: usize,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The transport protocol, after extension headers.
    pub protocol: u8,
    /// The offset of the transport header in the frame.
    pub payload: usize,
    /// Present in a fragment. Absent in an atomic fragment (RFC 6946), which is a complete packet with a fragment
    /// header.
    pub fragment: Option<Fragment>,
}

/// The position of a fragment in its packet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Common to all fragments of a packet.
    pub id: u32,
    /// The number of bytes before it in the fragmentable part of the whole packet.
    pub offset: u32,
    /// Whether more fragments follow.
    pub more: bool,
    /// The offset of the fragment's data in the frame: after the IPv4 header or IPv6's fragment header.
    pub data: usize,
}

/// A complete transport header of a valid length.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Transport {
    /// TCP.
    Tcp(adit_wire::transport::Tcp),
    /// UDP.
    Udp(adit_wire::transport::Udp),
    /// ICMP or ICMPv6, depending on the address family.
    Icmp(adit_wire::transport::Icmp),
    /// A protocol with unknown headers.
    Other,
    /// No transport header: not IP, or a fragment other than the first.
    None,
}

/// The work that a device left undone in a packet.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct OffloadState {
    /// Payload bytes per segment of a super-packet; 0 for a plain packet.
    pub size: u16,
    /// Whether the device guarantees the transport checksum, because the packet's own is yet to be filled in.
    pub checksum_known: bool,
}

/// The reason why a packet cannot be evaluated. It is dropped and counted, regardless of the rules.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its link header.
    #[error("shorter than its link header")]
    Link,
    /// The network header is truncated, has a wrong length, or its checksum is wrong.
    #[error("network header cut short or wrong")]
    Network,
    /// Extension headers do not end, or there are too many.
    #[error("extension headers do not end")]
    Extensions,
    /// The transport header is truncated or has a wrong length.
    #[error("transport header cut short or wrong")]
    Transport,
    /// A first fragment that lacks some of its headers (RFC 1858, RFC 7112).
    #[error("first fragment without all headers")]
    TinyFragment,
    /// An IPv4 header with a source route, which routers do not follow by default (RFC 7126 4.3).
    #[error("IPv4 source route")]
    SourceRoute,
    /// IP or ARP after more than two VLAN tags, a tag of an old type (0x9100, 0x9200, 0x9300) or a SNAP header, where
    /// rules do not look for it.
    #[error("IP or ARP in an encapsulation that rules do not see")]
    Hidden,
    /// The checksum that is yet to be filled in would overwrite a header, or a super-packet is longer than its IP
    /// header states.
    #[error("what is still to be done to it would not be done to what was evaluated")]
    Offload,
}
