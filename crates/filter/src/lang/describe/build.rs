//! The bytes of a described packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_wire::checksum::Sum;
use adit_wire::transport::{TCP_LEN, UDP_LEN};

const SOURCE_MAC: u64 = 0x0200_0000_0001;
const DESTINATION_MAC: u64 = 0x0200_0000_0002;
const BROADCAST: u64 = 0xffff_ffff_ffff;

#[derive(Copy, Clone)]
pub(super) enum Body {
    Tcp {
        sport: u16,
        dport: u16,
        flags: u8,
    },
    Udp {
        sport: u16,
        dport: u16,
    },
    Icmp {
        v6: bool,
        kind: u8,
    },
    /// A transport protocol without a known header.
    Other(u8),
    Arp {
        reply: bool,
        sender: Ipv4Addr,
        target: Ipv4Addr,
    },
    /// An EtherType without a payload.
    Ether(u16),
}

pub(super) struct Frame {
    pub body: Body,
    pub source: Option<IpAddr>,
    pub destination: Option<IpAddr>,
    pub source_mac: Option<u64>,
    pub destination_mac: Option<u64>,
    pub vlan: Option<u16>,
    /// The length of the IP packet, including its header.
    pub length: Option<u16>,
    pub ttl: u8,
    pub dscp: u8,
    pub code: u8,
    pub id: u16,
    pub sequence: u16,
    pub mtu: Option<u16>,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            body: Body::Ether(0),
            source: None,
            destination: None,
            source_mac: None,
            destination_mac: None,
            vlan: None,
            length: None,
            ttl: 64,
            dscp: 0,
            code: 0,
            id: 1,
            sequence: 1,
            mtu: None,
        }
    }
}

fn mac_bytes(address: u64) -> impl Iterator<Item = u8> {
    address.to_be_bytes().into_iter().skip(2)
}

impl Frame {
    pub(super) fn is_icmp(&self) -> bool {
        matches!(self.body, Body::Icmp { .. })
    }

    /// Returns the transport protocol.
    pub(super) fn protocol(&self) -> Option<u8> {
        match self.body {
            Body::Tcp { .. } => Some(6),
            Body::Udp { .. } => Some(17),
            Body::Icmp { v6: false, .. } => Some(1),
            Body::Icmp { v6: true, .. } => Some(58),
            Body::Other(protocol) => Some(protocol),
            Body::Arp { .. } | Body::Ether(_) => None,
        }
    }

    /// Builds the whole packet; for a TUN device, without a link header.
    pub(super) fn build(&self, tun: bool) -> Result<Vec<u8>, String> {
        let (ethertype, packet) = match (self.body, self.source, self.destination) {
            (Body::Arp { reply, sender, target }, ..) => (0x0806, self.arp(reply, sender, target)),
            (Body::Ether(kind), ..) => (kind, vec![0; 46]),
            (_, Some(IpAddr::V4(source)), Some(IpAddr::V4(destination))) => {
                (0x0800, self.ipv4(source, destination)?)
            }
            (_, Some(IpAddr::V6(source)), Some(IpAddr::V6(destination))) => {
                (0x86dd, self.ipv6(source, destination)?)
            }
            _ => return Err("addresses are missing".into()),
        };
        if tun {
            return Ok(packet);
        }
        let mut frame: Vec<u8> = Vec::with_capacity(packet.len().saturating_add(18));
        frame.extend(mac_bytes(self.destination_mac.unwrap_or_else(|| self.to_mac())));
        frame.extend(mac_bytes(self.source_mac.unwrap_or(SOURCE_MAC)));
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0x00]);
            frame.extend(vlan.to_be_bytes());
        }
        frame.extend(u16::to_be_bytes(ethertype));
        frame.extend(packet);
        Ok(frame)
    }

    /// Returns the address of the station or group that the packet is sent to.
    fn to_mac(&self) -> u64 {
        match (self.body, self.destination) {
            (Body::Arp { reply: false, .. }, _) => BROADCAST,
            (_, Some(IpAddr::V4(to))) if to.is_broadcast() => BROADCAST,
            // RFC 1112, section 6.4.
            (_, Some(IpAddr::V4(to))) if to.is_multicast() => {
                0x0100_5e00_0000 | u64::from(u32::from(to) & 0x007f_ffff)
            }
            // RFC 2464, section 7.
            (_, Some(IpAddr::V6(to))) if to.is_multicast() => {
                0x3333_0000_0000 | u64::try_from(u128::from(to) & 0xffff_ffff).unwrap_or(0)
            }
            _ => DESTINATION_MAC,
        }
    }

    fn arp(&self, reply: bool, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, if reply { 2 } else { 1 }];
        arp.extend(mac_bytes(self.source_mac.unwrap_or(SOURCE_MAC)));
        arp.extend(sender.octets());
        arp.extend(mac_bytes(if reply { self.to_mac() } else { 0 }));
        arp.extend(target.octets());
        arp
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr) -> Result<Vec<u8>, String> {
        let (pseudo, protocol) = (Sum::default(), self.protocol().unwrap_or(0));
        let pseudo = pseudo.bytes(&source.octets()).bytes(&destination.octets());
        let body = self.transport(pseudo.word(protocol.into()), 20)?;
        let length = u16::try_from(body.len().saturating_add(20)).unwrap_or(u16::MAX);
        let mut packet = vec![0x45, self.dscp << 2];
        packet.extend(length.to_be_bytes());
        packet.extend([0, 1, 0x40, 0, self.ttl, protocol]);
        let sum = Sum::default().bytes(&packet).bytes(&source.octets());
        packet.extend(sum.bytes(&destination.octets()).finish().to_be_bytes());
        packet.extend(source.octets());
        packet.extend(destination.octets());
        packet.extend(body);
        Ok(packet)
    }

    fn ipv6(&self, source: Ipv6Addr, destination: Ipv6Addr) -> Result<Vec<u8>, String> {
        let (pseudo, protocol) = (Sum::default(), self.protocol().unwrap_or(0));
        let pseudo = pseudo.bytes(&source.octets()).bytes(&destination.octets());
        let body = self.transport(pseudo.word(protocol.into()), 40)?;
        let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
        let mut packet = vec![0x60 | self.dscp >> 2, (self.dscp & 3) << 6, 0, 0];
        packet.extend(length.to_be_bytes());
        packet.extend([protocol, self.ttl]);
        packet.extend(source.octets());
        packet.extend(destination.octets());
        packet.extend(body);
        Ok(packet)
    }

    /// Builds the transport header, padded with zeros to the requested length. `pseudo` lacks the
    /// length.
    fn transport(&self, pseudo: Sum, header: usize) -> Result<Vec<u8>, String> {
        let head = match self.body {
            Body::Tcp { .. } => TCP_LEN,
            Body::Udp { .. } | Body::Icmp { .. } => UDP_LEN,
            _ => 0,
        };
        let least = header.saturating_add(head);
        let wanted = self.length.map_or(least, usize::from);
        if wanted < least {
            return Err(format!("such a packet is at least {least} bytes long"));
        }
        let len = wanted.saturating_sub(header);
        let len16 = u16::try_from(len).unwrap_or(u16::MAX);
        let mut body: Vec<u8> = Vec::with_capacity(len);
        let (mut sum, mut at) = (pseudo.word(len16), None);
        match self.body {
            Body::Tcp { sport, dport, flags } => {
                body.extend(sport.to_be_bytes());
                body.extend(dport.to_be_bytes());
                // Sequence and acknowledgement number 1, a header of 5 words, a window of 65535.
                body.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
                at = Some(16);
            }
            Body::Udp { sport, dport } => {
                body.extend(sport.to_be_bytes());
                body.extend(dport.to_be_bytes());
                body.extend(len16.to_be_bytes());
                body.extend([0, 0]);
                at = Some(6);
            }
            Body::Icmp { v6, kind } => {
                body.extend([kind, self.code, 0, 0]);
                match self.mtu {
                    Some(mtu) => {
                        body.extend([0, 0]);
                        body.extend(mtu.to_be_bytes());
                    }
                    None => {
                        body.extend(self.id.to_be_bytes());
                        body.extend(self.sequence.to_be_bytes());
                    }
                }
                at = Some(2);
                if !v6 {
                    sum = Sum::default();
                }
            }
            Body::Other(_) | Body::Arp { .. } | Body::Ether(_) => {}
        }
        body.resize(len, 0);
        if let Some(at) = at
            && let Some(place) = body.get_mut(at..).and_then(|b| b.first_chunk_mut::<2>())
        {
            *place = [0, 0];
            let sum = sum.bytes(&body).finish();
            // RFC 768: a checksum of zero is sent as all ones, because zero means no checksum.
            let udp = matches!(self.body, Body::Udp { .. });
            let sum = if udp && sum == 0 { u16::MAX } else { sum };
            if let Some(place) = body.get_mut(at..).and_then(|b| b.first_chunk_mut::<2>()) {
                *place = sum.to_be_bytes();
            }
        }
        Ok(body)
    }
}
