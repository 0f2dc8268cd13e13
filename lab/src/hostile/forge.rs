//! UDP datagrams with the source address of another host, sent through a raw socket that accepts the IP header.

use std::net::{SocketAddr, SocketAddrV4};

use adit_testbed::failure::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const UDP: u8 = 17;
/// `IPPROTO_RAW`: the sender writes the IP header.
const RAW: i32 = 255;

/// Sends datagrams with the source address and port of another host.
#[derive(Debug)]
pub(super) struct Forger {
    socket: Socket,
    from: SocketAddrV4,
    to: SocketAddrV4,
    packet: Vec<u8>,
}

impl Forger {
    /// Creates a sender of forged packets from `from` to `to`, both IPv4.
    pub(super) fn new(from: SocketAddr, to: SocketAddr) -> Result<Self> {
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else {
            return Err(format!("packets from {from} to {to} cannot be forged: IPv4 only").into());
        };
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)));
        let socket = socket.context("a raw socket")?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, from, to, packet: Vec::new() })
    }

    /// Sends one datagram. A packet that does not fit into the socket buffer is lost.
    pub(super) fn send(&mut self, payload: &[u8]) -> bool {
        encode(self.from, self.to, payload, &mut self.packet)
            && self.socket.send_to(&self.packet, &SocketAddr::V4(self.to).into()).is_ok()
    }
}

/// Encodes an IPv4 packet; the kernel fills in identification and header checksum. A UDP checksum of 0 means none (RFC
/// 768).
fn encode(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(udp_len) = u16::try_from(UDP_HEADER + payload.len()) else { return false };
    let Ok(len) = u16::try_from(IP_HEADER + UDP_HEADER + payload.len()) else { return false };
    out.clear();
    out.extend([0x45, 0]);
    out.extend(len.to_be_bytes());
    out.extend([0, 0, 0, 0, 64, UDP, 0, 0]);
    out.extend(from.ip().octets());
    out.extend(to.ip().octets());
    for number in [from.port(), to.port(), udp_len, 0] {
        out.extend(number.to_be_bytes());
    }
    out.extend(payload);
    true
}

/// Returns the first nonzero local port of a UDP socket in a listing in the format of `/proc/net/udp`.
pub fn local_port(listing: &str) -> Option<u16> {
    let local = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok().filter(|port| *port != 0)
    };
    listing.lines().skip(1).find_map(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_datagram_has_the_headers_of_its_alleged_sender() {
        let (from, to) = ("192.0.2.2:4000".parse().unwrap(), "192.0.2.1:1194".parse().unwrap());
        let mut out = vec![9; 3];
        assert!(encode(from, to, b"xyz", &mut out));
        let expected = [
            &[0x45, 0, 0, 31, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 2, 192, 0, 2, 1][..],
            &[0x0f, 0xa0, 0x04, 0xaa, 0, 11, 0, 0],
            b"xyz",
        ];
        assert_eq!(out, expected.concat());
        assert!(!encode(from, to, &vec![0; 65_530], &mut out));
    }

    #[test]
    fn reads_the_port_of_a_socket() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let line = "  12: 00000000:D431 010002C0:04AA 01 00000000:00000000 00:00000000 0\n";
        assert_eq!(local_port(&format!("{head}{line}")), Some(0xd431));
        assert_eq!(local_port(head), None);
    }
}
