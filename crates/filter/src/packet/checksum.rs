use std::net::IpAddr;

use adit_wire::VnetHeader;
use adit_wire::checksum::Sum;
use adit_wire::ip;
use adit_wire::transport::UDP_LEN;

use super::parse::own_sum;
use super::{Ip, Network, Packet, Transport};

/// The length of the ports of a protocol that is not parsed further.
const PORTS_LEN: usize = 4;

impl Packet<'_> {
    /// Returns the IP header, if the packet is IP.
    #[inline]
    pub fn ip(&self) -> Option<&Ip> {
        match &self.network {
            Network::Ip(ip) => Some(ip),
            Network::Arp(_) | Network::Other(_) => None,
        }
    }

    /// Returns whether the packet is a fragment, which the reassembler processes first.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.ip().is_some_and(|ip| ip.fragment.is_some())
    }

    /// Returns the offset of the network header.
    #[inline]
    pub fn network_at(&self) -> usize {
        match self.network {
            Network::Ip(Ip { at, .. }) | Network::Arp(at) | Network::Other(at) => at,
        }
    }

    /// Returns the bytes from the network header on, without padding if the header's length shows where it begins.
    #[inline]
    pub fn length(&self) -> usize {
        self.bytes.len().saturating_sub(self.network_at())
    }

    /// Returns the transport header and its payload; empty if the packet is not IP.
    #[inline]
    pub fn transport_bytes(&self) -> &[u8] {
        self.ip().and_then(|ip| self.bytes.get(ip.payload..)).unwrap_or_default()
    }

    /// Returns the number of packets on the wire: more than one for a super-packet.
    #[inline]
    pub fn segments(&self) -> u32 {
        if self.cut.size == 0 {
            return 1;
        }
        let header = match self.transport {
            Transport::Tcp(tcp) => tcp.header_len,
            Transport::Udp(_) => UDP_LEN,
            Transport::Icmp(_) | Transport::Other | Transport::None => 0,
        };
        let payload = self.transport_bytes().len().saturating_sub(header);
        let segments = payload.div_ceil(usize::from(self.cut.size));
        u32::try_from(segments).unwrap_or(u32::MAX).max(1)
    }

    /// Returns whether the transport checksum is correct.
    ///
    /// Also returns `true` if this cannot be determined: the device guarantees the checksum ([`super::OffloadState::checksum_known`]), the
    /// packet is a fragment, or the protocol's checksum is not implemented here. UDP may omit it over IPv4 (RFC 768), not over IPv6 (RFC
    /// 8200 8.1). A packet with remaining hops in a routing header counts as incorrect, because its checksum covers another destination.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        let Network::Ip(ip) = &self.network else { return true };
        if self.cut.checksum_known || ip.fragment.is_some() {
            return true;
        }
        let body = self.transport_bytes();
        let v4 = matches!(ip.source, IpAddr::V4(_));
        match self.transport {
            Transport::Tcp(_) => self.sums_up(ip, ip::TCP, body),
            Transport::Udp(udp) if udp.checksum == 0 => v4,
            Transport::Udp(udp) => match body.get(..usize::from(udp.len)) {
                Some(datagram) => self.sums_up(ip, ip::UDP, datagram),
                None => false,
            },
            Transport::Icmp(_) if v4 => Sum::new().bytes(body).fold() == 0xffff,
            Transport::Icmp(_) => self.sums_up(ip, ip::ICMPV6, body),
            Transport::Other | Transport::None => true,
        }
    }

    /// Returns whether the checksum that the kernel has yet to fill in is the packet's own, or is after everything that
    /// rules read (if the payload is a packet whose checksum is to be filled in).
    ///
    /// The offsets that a virtual machine sets for its frames arrive here unchanged. At any other position, the
    /// checksum could overwrite the address or port that was evaluated.
    #[inline]
    pub fn sum_spares_headers(&self, vnet: &VnetHeader) -> bool {
        if !vnet.needs_csum {
            return true;
        }
        let start = usize::from(vnet.csum_start);
        let sum = start.saturating_add(usize::from(vnet.csum_offset));
        let ip = match &self.network {
            Network::Ip(ip) => ip,
            Network::Arp(_) => return false,
            Network::Other(at) => return sum >= *at,
        };
        let headers = match self.transport {
            Transport::Tcp(tcp) => tcp.header_len,
            Transport::Udp(_) | Transport::Icmp(_) => UDP_LEN,
            Transport::Other | Transport::None => PORTS_LEN,
        };
        own_sum(vnet, &self.transport, ip.payload) || sum >= ip.payload.saturating_add(headers)
    }

    fn sums_up(&self, ip: &Ip, protocol: u8, body: &[u8]) -> bool {
        let Some(network) = self.bytes.get(ip.at..) else { return false };
        let Some(pseudo) = ip::pseudo_header(network, protocol) else { return false };
        let Ok(len) = u16::try_from(body.len()) else { return false };
        pseudo.word(len).bytes(body).fold() == 0xffff
    }
}
