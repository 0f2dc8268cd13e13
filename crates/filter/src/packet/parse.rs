use adit_wire::ethernet::{self, Ethernet, Mac};
use adit_wire::ip::{self, Ip as Header};
use adit_wire::transport::{Icmp, TCP_LEN, Tcp, UDP_LEN, Udp};
use adit_wire::{Gso, VnetHeader};

use super::{
    Ether, Fragment, Ip, Layer, MAX_EXTENSIONS, Malformed, Network, OffloadState, Packet, Transport,
};

/// EtherType of ARP.
pub(crate) const ARP: u16 = 0x0806;
/// The type of a customer's VLAN tag; tags outside the frame are treated as customer tags.
const VLAN: u16 = 0x8100;
/// Length of an ARP packet for IPv4 over Ethernet (RFC 826).
pub(crate) const ARP_LEN: usize = 28;
/// The first bytes of an ARP packet: hardware and protocol type, and the lengths of their addresses.
const ARP_START: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Extension headers (RFC 8200, RFC 4302).
pub(crate) mod extension {
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const AUTHENTICATION: u8 = 51;
    pub(crate) const DESTINATION: u8 = 60;
    /// Length of the fragment header.
    pub(crate) const FRAGMENT_LEN: usize = 8;
}

/// Types of VLAN tags before IEEE 802.1ad, which some switches still remove.
const OLD_TAGS: [u16; 3] = [0x9100, 0x9200, 0x9300];
/// The IPv4 options with which a sender names routers on the path (RFC 791): loose and strict source routes.
const SOURCE_ROUTES: [u8; 2] = [131, 137];

/// An EtherType below this value is the length of an IEEE 802.3 frame.
const FIRST_TYPE: u16 = 0x0600;
/// The start of a SNAP header; an EtherType follows.
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];

impl<'a> Packet<'a> {
    /// Parses the headers of a packet from a device of `layer`, with the VLAN tag that it delivered outside of the
    /// frame (`PACKET_AUXDATA`) and its description of a super-packet.
    ///
    /// Copies and allocates nothing. The transport checksum is left to [`Packet::checksum_ok`]; the IPv4 header's is
    /// verified here.
    #[inline]
    pub fn parse(
        bytes: &'a [u8],
        layer: Layer,
        vlan_beside: Option<u16>,
        vnet: &VnetHeader,
    ) -> Result<Self, Malformed> {
        let (ether, at, version) = match layer {
            Layer::Ip => (None, 0, bytes.first().map_or(0, |first| first >> 4)),
            Layer::Ethernet => {
                let header = Ethernet::parse(bytes).ok_or(Malformed::Link)?;
                let version = match header.ethertype {
                    ethernet::IPV4 => 4,
                    ethernet::IPV6 => 6,
                    _ => {
                        let ether = ether(bytes, &header, vlan_beside);
                        return other(bytes, ether, header.header_len);
                    }
                };
                (Some(ether(bytes, &header, vlan_beside)), header.header_len, version)
            }
        };
        let (ip, transport, end) = match version {
            4 => v4(bytes, at, vnet)?,
            6 => v6(bytes, at, vnet)?,
            _ => return Err(Malformed::Network),
        };
        Ok(Self {
            bytes: bytes.get(..end).ok_or(Malformed::Network)?,
            ether,
            network: Network::Ip(ip),
            transport,
            cut: OffloadState::of(vnet, &transport, ip.payload),
        })
    }
}

impl OffloadState {
    /// Ignores a checksum that is to be filled in elsewhere, in a packet inside this one: it does not affect this
    /// packet's own checksum.
    #[inline]
    fn of(vnet: &VnetHeader, transport: &Transport, payload: usize) -> Self {
        let size = if vnet.gso == Gso::None { 0 } else { vnet.gso_size };
        let checksum_known = vnet.needs_csum && own_sum(vnet, transport, payload);
        Self { size, checksum_known }
    }
}

/// Returns whether the checksum that is yet to be filled in belongs to the packet's own transport header.
#[inline]
pub(super) fn own_sum(vnet: &VnetHeader, transport: &Transport, payload: usize) -> bool {
    let own = match transport {
        Transport::Tcp(_) => 16,
        Transport::Udp(_) => 6,
        Transport::Icmp(_) => 2,
        Transport::Other | Transport::None => return false,
    };
    usize::from(vnet.csum_start) == payload && vnet.csum_offset == own
}

fn ether(bytes: &[u8], header: &Ethernet, beside: Option<u16>) -> Ether {
    let number = |Mac([a, b, c, d, e, f])| u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    let first = get16(bytes, 12).unwrap_or(0);
    let tagged = header.header_len > ethernet::HEADER_LEN;
    let inside = if tagged { get16(bytes, ethernet::HEADER_LEN) } else { None };
    Ether {
        source: number(header.source),
        destination: number(header.destination),
        outer: if beside.is_some() { VLAN } else { first },
        ethertype: header.ethertype,
        vlan: beside.or(inside),
        beside: beside.is_some(),
    }
}

/// Returns whether a frame carries IP or ARP where rules do not look for it but a receiver might: after more tags than
/// are parsed, or after a SNAP header (RFC 1042), as in CVE-2021-27853 and -27861.
fn hides(bytes: &[u8], ethertype: u16, at: usize) -> bool {
    if ethernet::is_tag(ethertype) || OLD_TAGS.contains(&ethertype) {
        return true;
    }
    let snap = || bytes.get(at..)?.first_chunk::<8>();
    ethertype < FIRST_TYPE
        && snap().is_some_and(|[head @ .., high, low]| {
            let inner = u16::from_be_bytes([*high, *low]);
            let known = matches!(inner, ethernet::IPV4 | ethernet::IPV6 | ARP);
            *head == SNAP && (known || ethernet::is_tag(inner))
        })
}

/// Describes a frame other than IP. Its length is unknown, so its padding stays.
#[cold]
fn other(bytes: &[u8], ether: Ether, at: usize) -> Result<Packet<'_>, Malformed> {
    if hides(bytes, ether.ethertype, at) {
        return Err(Malformed::Hidden);
    }
    let network = if ether.ethertype == ARP {
        let arp = bytes.get(at..).ok_or(Malformed::Network)?;
        let start = arp.first_chunk::<6>().ok_or(Malformed::Network)?;
        if *start == ARP_START && arp.len() < ARP_LEN {
            return Err(Malformed::Network);
        }
        if *start == ARP_START { Network::Arp(at) } else { Network::Other(at) }
    } else {
        Network::Other(at)
    };
    Ok(Packet {
        bytes,
        ether: Some(ether),
        network,
        transport: Transport::None,
        cut: OffloadState::default(),
    })
}

/// Parses the fixed part of the IP header. A TCP super-packet that is too long for the length field has zero in it
/// (Linux's "BIG TCP"); its length is then the one that the device delivered.
#[inline]
fn header(network: &[u8], vnet: &VnetHeader, version: u8) -> Result<Header, Malformed> {
    let whole = match version {
        4 => vnet.gso == Gso::TcpV4,
        _ => vnet.gso == Gso::TcpV6,
    };
    let header = if whole { Header::parse_super(network) } else { Header::parse(network) };
    header.filter(|header| header.source.is_ipv4() == (version == 4)).ok_or(Malformed::Network)
}

#[inline]
fn v4(bytes: &[u8], at: usize, vnet: &VnetHeader) -> Result<(Ip, Transport, usize), Malformed> {
    let network = bytes.get(at..).ok_or(Malformed::Network)?;
    let header = header(network, vnet, 4)?;
    if !ip::header_checksum_ok(network) {
        return Err(Malformed::Network);
    }
    if header.header_len > ip::V4_LEN {
        no_source_route(network.get(ip::V4_LEN..header.header_len).unwrap_or_default())?;
    }
    let end = at.saturating_add(header.total_len);
    let payload = at.saturating_add(header.header_len);
    let fragment = if header.fragment {
        let word = get16(network, 6).ok_or(Malformed::Network)?;
        Some(Fragment {
            id: u32::from(get16(network, 4).ok_or(Malformed::Network)?),
            offset: u32::from(word & 0x1fff).wrapping_mul(8),
            more: word & 0x2000 != 0,
            data: payload,
        })
    } else {
        None
    };
    let body = bytes.get(payload..end).ok_or(Malformed::Network)?;
    let transport = transport(header.protocol, ip::ICMP, body, fragment)?;
    let ip = Ip {
        at,
        source: header.source,
        destination: header.destination,
        protocol: header.protocol,
        payload,
        fragment,
    };
    Ok((ip, transport, end))
}

/// Finds a source route. It bypasses rules, which see only the next address, and routers do not follow it by default.
/// Bytes after a truncated option are not an option: no receiver treats them as one.
#[cold]
fn no_source_route(mut options: &[u8]) -> Result<(), Malformed> {
    while let [kind, rest @ ..] = options {
        options = match kind {
            0 => break,
            1 => rest,
            kind if SOURCE_ROUTES.contains(kind) => return Err(Malformed::SourceRoute),
            _ => match rest.first().map(|len| usize::from(*len)) {
                Some(len @ 2..) => options.get(len..).unwrap_or_default(),
                _ => break,
            },
        };
    }
    Ok(())
}

#[inline]
fn v6(bytes: &[u8], at: usize, vnet: &VnetHeader) -> Result<(Ip, Transport, usize), Malformed> {
    let network = bytes.get(at..).ok_or(Malformed::Network)?;
    let header = header(network, vnet, 6)?;
    let end = at.saturating_add(header.total_len);
    let bytes = bytes.get(..end).ok_or(Malformed::Network)?;
    let mut chain = Chain {
        protocol: header.protocol,
        payload: at.saturating_add(header.header_len),
        fragment: None,
    };
    if chain.at_extension() {
        chain.walk(bytes)?;
    }
    let body = bytes.get(chain.payload..).ok_or(Malformed::Network)?;
    let transport = transport(chain.protocol, ip::ICMPV6, body, chain.fragment)?;
    let ip = Ip {
        at,
        source: header.source,
        destination: header.destination,
        protocol: chain.protocol,
        payload: chain.payload,
        // An atomic fragment is a complete packet.
        fragment: chain.fragment.filter(|piece| piece.offset != 0 || piece.more),
    };
    Ok((ip, transport, end))
}

/// A position in a chain of extension headers.
struct Chain {
    /// The protocol of the header at this offset.
    protocol: u8,
    /// The offset of that header.
    payload: usize,
    /// The fragment header in the chain.
    fragment: Option<Fragment>,
}

impl Chain {
    #[inline]
    fn at_extension(&self) -> bool {
        use extension::{AUTHENTICATION, DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING};
        matches!(self.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION)
    }

    /// Advances to the transport header, or to the data of a fragment other than the first.
    fn walk(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        for step in 0..MAX_EXTENSIONS {
            // Nodes process hop-by-hop options only directly after the IPv6 header (RFC 8200 4.1).
            if self.protocol == extension::HOP_BY_HOP && step != 0 {
                return Err(Malformed::Extensions);
            }
            self.step(bytes)?;
            let piece_of_rest = self.fragment.is_some_and(|fragment| fragment.offset != 0);
            if piece_of_rest || !self.at_extension() {
                return Ok(());
            }
        }
        Err(Malformed::Extensions)
    }

    fn step(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let short = self.cut_short();
        let header = bytes.get(self.payload..).ok_or(short)?;
        let fixed @ [next, units, kind, left, i0, i1, i2, i3] =
            *header.first_chunk().ok_or(short)?;
        let len = match self.protocol {
            extension::FRAGMENT => {
                // A second fragment header would make a fragment of a fragment.
                if self.fragment.is_some() {
                    return Err(Malformed::Extensions);
                }
                let [_, _, o0, o1, ..] = fixed;
                let word = u16::from_be_bytes([o0, o1]);
                self.fragment = Some(Fragment {
                    id: u32::from_be_bytes([i0, i1, i2, i3]),
                    offset: u32::from(word & 0xfff8),
                    more: word & 1 != 0,
                    data: self.payload.saturating_add(extension::FRAGMENT_LEN),
                });
                extension::FRAGMENT_LEN
            }
            extension::AUTHENTICATION => usize::from(units).saturating_add(2).saturating_mul(4),
            // Type 0 hides the packet's final destination, and is forbidden (RFC 5095).
            extension::ROUTING if kind == 0 && left != 0 => return Err(Malformed::Extensions),
            _ => usize::from(units).saturating_add(1).saturating_mul(8),
        };
        if len > header.len() {
            return Err(short);
        }
        self.payload = self.payload.saturating_add(len);
        self.protocol = next;
        Ok(())
    }

    /// Returns the error for a chain that continues after the last byte.
    fn cut_short(&self) -> Malformed {
        match self.fragment {
            Some(Fragment { more: true, .. }) => Malformed::TinyFragment,
            _ => Malformed::Extensions,
        }
    }
}

/// Parses a transport header; `icmp` is the ICMP protocol of the address family.
#[inline]
fn transport(
    protocol: u8,
    icmp: u8,
    body: &[u8],
    fragment: Option<Fragment>,
) -> Result<Transport, Malformed> {
    let first_of_many = match fragment {
        // This fragment could only carry TCP's flags (RFC 1858).
        Some(Fragment { offset: 8, .. }) if protocol == ip::TCP => {
            return Err(Malformed::TinyFragment);
        }
        Some(Fragment { offset, .. }) if offset != 0 => return Ok(Transport::None),
        Some(Fragment { more, .. }) => more,
        None => false,
    };
    let parsed = match protocol {
        ip::TCP => Tcp::parse(body).map(Transport::Tcp),
        // The length is that of the whole datagram, and a first fragment has only its start.
        ip::UDP => Udp::parse(body)
            .filter(|udp| first_of_many || usize::from(udp.len) <= body.len())
            .map(Transport::Udp),
        _ if protocol == icmp => Icmp::parse(body).map(Transport::Icmp),
        _ => Some(Transport::Other),
    };
    match parsed {
        Some(transport) => Ok(transport),
        None if first_of_many && body.len() < header_len(protocol, body) => {
            Err(Malformed::TinyFragment)
        }
        None => Err(Malformed::Transport),
    }
}

/// Returns the length of the header at the start of `body`.
fn header_len(protocol: u8, body: &[u8]) -> usize {
    match (protocol, body.get(12)) {
        (ip::TCP, Some(offset)) => usize::from(offset >> 4).saturating_mul(4).max(TCP_LEN),
        (ip::TCP, None) => TCP_LEN,
        _ => UDP_LEN,
    }
}

#[inline]
pub(crate) fn get16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|field| u16::from_be_bytes(*field))
}
