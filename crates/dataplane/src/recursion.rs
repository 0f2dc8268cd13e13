//! Recognizes packets of the tunnel's own transport that come back through the tunnel device.
//!
//! A route that leads the transport into its own tunnel makes each packet produce the next one, so
//! a whole core would seal the same packet forever. Such packets are dropped when they are read.

use std::net::{IpAddr, SocketAddr};

use adit_wire::ip::{self, Ip};

/// The path that carries a client's tunnel, as its packets look on the wire.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct OwnTransport {
    /// The first hop of the transport: the server, or the proxy in front of it.
    pub remote: SocketAddr,
    /// The local port that packets are sent from, or `None` for any.
    pub local_port: Option<u16>,
    /// TCP rather than UDP.
    pub stream: bool,
}

/// The UDP port from which this host sends a tunnel's packets to many others, as seen on the wire. No other program of
/// the host can use the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPort {
    /// The port.
    pub port: u16,
    /// All addresses of this host, including those inside the tunnel: a route into the tunnel chooses one of these.
    pub hosts: Vec<IpAddr>,
}

/// The transport whose packets must not enter the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    Transport(OwnTransport),
    Port(OwnPort),
}

/// Protocol number of IPv6's fragment header, and the header's length.
const FRAGMENTED: u8 = 44;
const FRAGMENT_LEN: usize = 8;

impl Own {
    /// Returns whether a packet with this header belongs to the transport. One comparison for most other packets.
    #[inline]
    pub(crate) fn owns(&self, ip: &Ip, packet: &[u8]) -> bool {
        match self {
            Self::Transport(own) => own.remote.ip() == ip.destination && own.has_flow(ip, packet),
            Self::Port(own) => matches!(ip.protocol, ip::UDP | FRAGMENTED) && own.sent(ip, packet),
        }
    }
}

impl OwnTransport {
    /// Returns whether a packet belongs to the transport's own flow.
    #[cold]
    fn has_flow(&self, ip: &Ip, packet: &[u8]) -> bool {
        let wanted = if self.stream { ip::TCP } else { ip::UDP };
        ports(ip, packet, wanted).is_some_and(|(from, to)| {
            to == self.remote.port() && self.local_port.is_none_or(|port| port == from)
        })
    }
}

impl OwnPort {
    /// Returns whether this host sent a packet from the port.
    fn sent(&self, ip: &Ip, packet: &[u8]) -> bool {
        ports(ip, packet, ip::UDP).is_some_and(|(from, _)| from == self.port)
            && self.hosts.contains(&ip.source)
    }
}

/// Returns the ports of a packet of this protocol. A later fragment has none, and passes, because it may belong to other traffic. This
/// creates no loop: once sealed, it is a new packet with ports, and that packet's last fragment is shorter.
fn ports(header: &Ip, packet: &[u8], wanted: u8) -> Option<(u16, u16)> {
    let mut payload = packet.get(header.header_len..)?;
    let mut protocol = header.protocol;
    if header.fragment && !starts_datagram(packet.get(6..8), 0x1fff) {
        return None;
    }
    if protocol == FRAGMENTED && header.source.is_ipv6() {
        let (fragment, rest) = payload.split_at_checked(FRAGMENT_LEN)?;
        if !starts_datagram(fragment.get(2..4), 0xfff8) {
            return None;
        }
        (protocol, payload) = (fragment.first().copied()?, rest);
    }
    let [s0, s1, d0, d1] = *payload.first_chunk().filter(|_| protocol == wanted)?;
    Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])))
}

/// Returns whether a fragment's offset, in the bits of `mask`, is 0.
fn starts_datagram(field: Option<&[u8]>, mask: u16) -> bool {
    let field = field.and_then(|field| field.first_chunk().copied());
    field.is_some_and(|field| u16::from_be_bytes(field) & mask == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(to: [u8; 4], protocol: u8, fragment: u16, ports: (u16, u16)) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 8, 0, 2];
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet.extend(to);
        packet.extend(ports.0.to_be_bytes());
        packet.extend(ports.1.to_be_bytes());
        packet.extend([0; 4]);
        packet
    }

    fn own(stream: bool) -> OwnTransport {
        OwnTransport { remote: "192.0.2.7:443".parse().unwrap(), local_port: Some(40_000), stream }
    }

    fn owns(own: &OwnTransport, packet: &[u8]) -> bool {
        Ip::parse(packet).is_some_and(|ip| Own::Transport(*own).owns(&ip, packet))
    }

    #[test]
    fn what_this_host_sends_from_the_port_is_recursive_wherever_it_goes() {
        let hosts = ["10.8.0.2", "fd00::2"].map(|ip| ip.parse().unwrap()).to_vec();
        let own = Own::Port(OwnPort { port: 1194, hosts });
        let owns = |packet: &[u8]| Ip::parse(packet).is_some_and(|ip| own.owns(&ip, packet));
        for to in [[192, 0, 2, 7], [10, 8, 0, 3]] {
            assert!(owns(&v4(to, ip::UDP, 0, (1194, 1194))));
            assert!(owns(&v4(to, ip::UDP, 0x2000, (1194, 9))), "first fragment");
            assert!(!owns(&v4(to, ip::UDP, 0x00b9, (1194, 9))), "later fragment");
            assert!(!owns(&v4(to, ip::UDP, 0, (1195, 1194))), "from another port");
            assert!(!owns(&v4(to, ip::TCP, 0, (1194, 1194))));
        }
        // A host behind this one may use the same port.
        let mut forwarded = v4([192, 0, 2, 7], ip::UDP, 0, (1194, 1194));
        forwarded[15] = 9;
        assert!(!owns(&forwarded));
        let mut packet = vec![0x60, 0, 0, 0, 0, 8, ip::UDP, 64];
        packet.extend("fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
        packet.extend([0; 16]);
        packet.extend([4, 170, 0, 9, 0, 8, 0, 0]);
        assert!(owns(&packet));
        packet[6] = FRAGMENTED;
        packet.splice(40..40, [ip::UDP, 0, 0, 1, 0, 0, 0, 1]);
        packet[5] = 16;
        assert!(owns(&packet));
        packet[43] = 9;
        assert!(!owns(&packet), "later fragment");
    }

    #[test]
    fn only_the_transports_own_flow_is_recursive() {
        let server = [192, 0, 2, 7];
        let udp = own(false);
        assert!(owns(&udp, &v4(server, ip::UDP, 0, (40_000, 443))));
        assert!(owns(&udp, &v4(server, ip::UDP, 0x2000, (40_000, 443))), "first fragment");
        assert!(!owns(&udp, &v4(server, ip::UDP, 0x2000, (40_001, 443))), "of another flow");
        assert!(!owns(&udp, &v4(server, ip::UDP, 0x00b9, (40_000, 443))), "later fragment");
        assert!(!owns(&udp, &v4(server, ip::UDP, 0x20b9, (40_000, 443))), "neither first nor last");
        // A full tunnel must carry other traffic to the same host.
        assert!(!owns(&udp, &v4(server, ip::TCP, 0, (40_000, 443))));
        assert!(!owns(&udp, &v4(server, ip::UDP, 0, (40_000, 53))));
        assert!(!owns(&udp, &v4(server, ip::UDP, 0, (40_001, 443))));
        assert!(!owns(&udp, &v4([192, 0, 2, 8], ip::UDP, 0, (40_000, 443))));
        assert!(owns(&own(true), &v4(server, ip::TCP, 0, (40_000, 443))));
        let any = OwnTransport { local_port: None, ..udp };
        assert!(owns(&any, &v4(server, ip::UDP, 0, (1, 443))));
    }

    #[test]
    fn ipv6_with_and_without_a_fragment_header() {
        let remote: SocketAddr = "[2001:db8::7]:1194".parse().unwrap();
        let IpAddr::V6(address) = remote.ip() else { unreachable!() };
        let packet = |next: u8, payload: &[u8]| {
            let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 64];
            packet.extend([0; 16]);
            packet.extend(address.octets());
            packet.extend(payload);
            packet
        };
        let own = OwnTransport { remote, local_port: None, stream: false };
        assert!(owns(&own, &packet(ip::UDP, &[1, 2, 4, 170, 0, 8, 0, 0])));
        let first = |protocol| [protocol, 0, 0, 1, 0, 0, 0, 1, 1, 2, 4, 170, 0, 8, 0, 0];
        assert!(owns(&own, &packet(44, &first(ip::UDP))));
        assert!(!owns(&own, &packet(44, &first(ip::TCP))));
        let mut later = first(ip::UDP);
        later[3] = 9;
        assert!(!owns(&own, &packet(44, &later)));
        for short in 0..12 {
            assert!(!owns(&own, &packet(44, &first(ip::UDP)[..short])));
        }
    }
}
