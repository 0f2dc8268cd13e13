//! Socket addresses and control messages in the kernel's layout, written and read as bytes. No
//! pointer is followed, so an unexpected length is harmless.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// `sizeof(struct sockaddr_in)`.
const NAME4_LEN: usize = 16;
/// `sizeof(struct sockaddr_in6)`.
const NAME6_LEN: usize = 28;
/// `sizeof(struct cmsghdr)`: a `size_t` and two ints.
const HEADER: usize = size_of::<usize>() + 8;
/// `CMSG_ALIGN`.
const ALIGN: usize = size_of::<usize>();

/// The number of bytes for control messages.
const CONTROL: usize = 128;

/// Space for an IPv4 or IPv6 socket address.
#[repr(C, align(4))]
#[derive(Copy, Clone, Default)]
pub(super) struct RawSocketAddress {
    pub(super) bytes: [u8; NAME6_LEN],
}

/// Space for the control messages of one datagram: at most a packet info (HEADER + 20), a type of service (HEADER + 4),
/// and a segment size (HEADER + 4) or an ICMP error (HEADER + 16 + an address), each aligned.
#[repr(C, align(8))]
#[derive(Copy, Clone)]
pub(super) struct Control {
    pub(super) bytes: [u8; CONTROL],
}

impl Default for Control {
    fn default() -> Self {
        Self { bytes: [0; CONTROL] }
    }
}

/// Writes bytes at an offset and returns the offset after them. The space always suffices, because
/// all callers write fixed layouts.
fn put(to: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let end = at + bytes.len();
    to[at..end].copy_from_slice(bytes);
    end
}

impl RawSocketAddress {
    /// Writes an address, IPv4-mapped if the socket is an IPv6 one. Returns the length, or `None`
    /// for an IPv6 destination on an IPv4 socket.
    pub(super) fn set(&mut self, to: SocketAddr, v6_socket: bool) -> Option<usize> {
        let (ip, scope) = match (to, v6_socket) {
            (SocketAddr::V4(to), false) => {
                let at = put(&mut self.bytes, 0, &(libc::AF_INET as u16).to_ne_bytes());
                let at = put(&mut self.bytes, at, &to.port().to_be_bytes());
                let at = put(&mut self.bytes, at, &to.ip().octets());
                put(&mut self.bytes, at, &[0; 8]);
                return Some(NAME4_LEN);
            }
            (SocketAddr::V4(to), true) => (to.ip().to_ipv6_mapped(), 0),
            (SocketAddr::V6(to), true) => (*to.ip(), to.scope_id()),
            (SocketAddr::V6(_), false) => return None,
        };
        let at = put(&mut self.bytes, 0, &(libc::AF_INET6 as u16).to_ne_bytes());
        let at = put(&mut self.bytes, at, &to.port().to_be_bytes());
        let at = put(&mut self.bytes, at, &[0; 4]);
        let at = put(&mut self.bytes, at, &ip.octets());
        put(&mut self.bytes, at, &scope.to_ne_bytes());
        Some(NAME6_LEN)
    }

    /// Reads an address of the given length; IPv4-mapped addresses become IPv4.
    pub(super) fn get(&self, len: usize) -> Option<SocketAddr> {
        let bytes = self.bytes.get(..len)?;
        let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
        if family == libc::AF_INET {
            let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            return Some(SocketAddrV4::new(ip.into(), port).into());
        }
        if family != libc::AF_INET6 {
            return None;
        }
        let ip = Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?);
        let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
        Some(match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddrV4::new(v4, port).into(),
            None => SocketAddrV6::new(ip, port, 0, scope).into(),
        })
    }
}

impl Control {
    /// Begins a control message; returns the offset of its data.
    fn header(&mut self, at: usize, level: i32, kind: i32, data: usize) -> usize {
        let at = put(&mut self.bytes, at, &(HEADER + data).to_ne_bytes());
        let at = put(&mut self.bytes, at, &level.to_ne_bytes());
        put(&mut self.bytes, at, &kind.to_ne_bytes())
    }

    /// Writes the control messages of a train: the source address, the segment size if it is not 0, and the type of
    /// service. Returns the length, or `None` if the families of source and destination differ.
    pub(super) fn set(
        &mut self,
        to: &SocketAddr,
        from: Option<IpAddr>,
        segment: u16,
        tos: Option<u8>,
    ) -> Option<usize> {
        let mut len = 0;
        // An IPv4 destination uses IPv4's message on IPv6 sockets too, because the kernel passes
        // the datagram on to IPv4.
        let source = from.map(|ip| ip.to_canonical()).filter(|ip| !ip.is_unspecified());
        match (source, to.ip().to_canonical()) {
            (None, _) => {}
            (Some(IpAddr::V4(from)), IpAddr::V4(_)) => {
                // struct in_pktinfo { int ifindex; in_addr spec_dst; in_addr addr; }
                let at = self.header(len, libc::IPPROTO_IP, libc::IP_PKTINFO, 12);
                let at = put(&mut self.bytes, at, &[0; 4]);
                let at = put(&mut self.bytes, at, &from.octets());
                let at = put(&mut self.bytes, at, &[0; 4]);
                len = at.next_multiple_of(ALIGN);
            }
            (Some(IpAddr::V6(from)), IpAddr::V6(_)) => {
                // struct in6_pktinfo { in6_addr addr; unsigned ifindex; }
                let at = self.header(len, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20);
                let at = put(&mut self.bytes, at, &from.octets());
                let at = put(&mut self.bytes, at, &[0; 4]);
                len = at.next_multiple_of(ALIGN);
            }
            _ => return None,
        }
        if segment != 0 {
            let at = self.header(len, libc::SOL_UDP, libc::UDP_SEGMENT, 2);
            len = put(&mut self.bytes, at, &segment.to_ne_bytes()).next_multiple_of(ALIGN);
        }
        if let Some(tos) = tos {
            let (level, kind) = match to.ip().to_canonical() {
                IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            let at = self.header(len, level, kind, 4);
            let value = i32::from(tos).to_ne_bytes();
            len = put(&mut self.bytes, at, &value).next_multiple_of(ALIGN);
        }
        Some(len)
    }

    /// Reads the kernel's control messages: the local address and, for a coalesced datagram, its
    /// segment size.
    pub(super) fn get(&self, len: usize) -> (Option<IpAddr>, Option<usize>) {
        let (mut local, mut segment) = (None, None);
        let mut rest = self.bytes.get(..len).unwrap_or(&self.bytes);
        while let Some(message) = next_message(rest) {
            let Message { kind, data, .. } = message;
            rest = message.rest;
            match kind {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // The second word is the local address even if the packet was a broadcast.
                    let ip = data.get(4..).and_then(|d| d.first_chunk::<4>());
                    local = ip.map(|ip| IpAddr::V4(Ipv4Addr::from(*ip))).or(local);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let ip = data.first_chunk::<16>().map(|ip| Ipv6Addr::from(*ip));
                    local = local.or(ip.map(|ip| IpAddr::V6(ip).to_canonical()));
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = data.first_chunk().map(|size| i32::from_ne_bytes(*size));
                    segment = size.and_then(|size| usize::try_from(size).ok());
                }
                _ => {}
            }
        }
        (local, segment)
    }

    /// Reads the error number of an ICMP message (`struct sock_extended_err` begins with it).
    pub(super) fn error(&self, len: usize) -> Option<i32> {
        let mut rest = self.bytes.get(..len).unwrap_or(&self.bytes);
        while let Some(Message { kind, data, rest: next }) = next_message(rest) {
            rest = next;
            let v4 = kind == (libc::IPPROTO_IP, libc::IP_RECVERR);
            if v4 || kind == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) {
                return data.first_chunk().map(|errno| i32::from_ne_bytes(*errno));
            }
        }
        None
    }
}

/// One control message in the buffer.
struct Message<'a> {
    /// Level and type.
    kind: (i32, i32),
    data: &'a [u8],
    /// The bytes after it.
    rest: &'a [u8],
}

/// Splits off the first control message.
fn next_message(bytes: &[u8]) -> Option<Message<'_>> {
    let (header, _) = bytes.split_at_checked(HEADER)?;
    let (len, kind) = header.split_first_chunk()?;
    let (level, kind) = kind.split_first_chunk()?;
    let len = usize::from_ne_bytes(*len);
    Some(Message {
        kind: (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind.first_chunk()?)),
        data: bytes.get(HEADER..len)?,
        rest: bytes.get(len.checked_next_multiple_of(ALIGN)?..).unwrap_or(&[]),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Message types whose data is read, at any length.
    const KINDS: [(i32, i32); 5] = [
        (libc::IPPROTO_IP, libc::IP_PKTINFO),
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO),
        (libc::SOL_UDP, libc::UDP_GRO),
        (libc::IPPROTO_IP, libc::IP_RECVERR),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ];

    proptest! {
        /// For any contents, reading ends and uses nothing beyond the length.
        #[test]
        fn no_control_messages_panic(
            bytes in prop::collection::vec(any::<u8>(), CONTROL),
            headers in prop::collection::vec((0..CONTROL - HEADER, 0..2 * CONTROL, 0..5_usize), 0..4),
            len in 0..2 * CONTROL,
        ) {
            let mut control = Control { bytes: bytes.try_into().unwrap() };
            for (at, size, kind) in headers {
                let (level, kind) = KINDS[kind];
                let at = put(&mut control.bytes, at, &size.to_ne_bytes());
                let at = put(&mut control.bytes, at, &level.to_ne_bytes());
                put(&mut control.bytes, at, &kind.to_ne_bytes());
            }
            let found = (control.get(len), control.error(len));
            if let Some(beyond) = control.bytes.get_mut(len..) {
                beyond.iter_mut().for_each(|byte| *byte = !*byte);
            }
            prop_assert_eq!(found, (control.get(len), control.error(len)));
        }

        #[test]
        fn no_name_panics(bytes in any::<[u8; NAME6_LEN]>(), family in 0..12_u16, len in 0..64_usize) {
            let mut name = RawSocketAddress { bytes };
            put(&mut name.bytes, 0, &family.to_ne_bytes());
            let found = name.get(len);
            prop_assert!(found.is_none() || len >= 8);
        }
    }

    #[test]
    fn addresses_survive_the_kernels_form() {
        for (text, v6_socket) in [
            ("192.0.2.7:1194", false),
            ("192.0.2.7:1194", true),
            ("[2001:db8::7]:443", true),
            ("[fe80::1%5]:1", true),
        ] {
            let (to, mut name): (SocketAddr, _) =
                (text.parse().unwrap(), RawSocketAddress::default());
            let len = name.set(to, v6_socket).unwrap();
            assert_eq!(name.get(len), Some(to));
            for short in 0..len.min(8) {
                assert_eq!(name.get(short), None);
            }
        }
        assert_eq!(RawSocketAddress::default().set("[::1]:1".parse().unwrap(), false), None);
        assert_eq!(RawSocketAddress::default().get(28), None);
        assert_eq!(RawSocketAddress::default().get(99), None);
    }

    #[test]
    fn sizes_are_the_kernels() {
        assert_eq!(size_of::<libc::sockaddr_in>(), NAME4_LEN);
        assert_eq!(size_of::<libc::sockaddr_in6>(), NAME6_LEN);
        assert_eq!(size_of::<libc::cmsghdr>(), HEADER);
        assert!(align_of::<libc::cmsghdr>() <= align_of::<Control>());
        assert!(align_of::<libc::sockaddr_in6>() <= align_of::<RawSocketAddress>());
    }

    #[test]
    fn control_messages_name_source_and_segment() {
        let v4: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
        let mut control = Control::default();
        assert_eq!(control.set(&v4, None, 0, None), Some(0));
        assert_eq!(control.set(&v4, Some("0.0.0.0".parse().unwrap()), 0, None), Some(0));
        assert_eq!(control.set(&v4, Some("::1".parse().unwrap()), 0, None), None);
        assert_eq!(control.set(&v6, Some("127.0.0.1".parse().unwrap()), 0, None), None);
        for (to, from) in [(v4, "192.0.2.9"), (v4, "::ffff:192.0.2.9"), (v6, "2001:db8::9")] {
            let from: IpAddr = from.parse().unwrap();
            let len = control.set(&to, Some(from), 1400, None).unwrap();
            assert_eq!(control.get(len).0, Some(from.to_canonical()));
            let with = control.set(&to, Some(from), 1400, Some(0xb8)).unwrap();
            assert_eq!(with - len, (HEADER + 4).next_multiple_of(ALIGN));
            assert_eq!(control.get(with).0, Some(from.to_canonical()));
        }
    }

    /// The kernel's format: one int after the header.
    #[test]
    fn any_segment_size_of_the_kernel_is_read() {
        for (size, read) in [(1400, Some(1400)), (0, Some(0)), (-1, None), (i32::MIN, None)] {
            let mut control = Control::default();
            let at = control.header(0, libc::SOL_UDP, libc::UDP_GRO, 4);
            let len = put(&mut control.bytes, at, &i32::to_ne_bytes(size));
            assert_eq!(control.get(len.next_multiple_of(ALIGN)), (None, read));
            assert_eq!(control.get(len), (None, read));
            assert_eq!(control.get(len - 1), (None, None));
        }
    }

    #[test]
    fn damaged_control_messages_are_ignored() {
        let mut control = Control::default();
        let len = control.set(&"192.0.2.1:1".parse().unwrap(), None, 7, None).unwrap();
        for size in [0usize, 1, 15, CONTROL + 1, usize::MAX, usize::MAX - 7] {
            put(&mut control.bytes, 0, &size.to_ne_bytes());
            assert_eq!(control.get(len), (None, None));
            assert_eq!(control.get(CONTROL), (None, None));
            assert_eq!(control.get(1000), (None, None));
        }
    }
}
