//! Path MTU lookup, and sending with DF set.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::send::set_option;
use super::{Fragmentation, UdpSocket};

impl UdpSocket {
    /// Sends one datagram that neither this host nor a router may fragment. The path MTU that the kernel has recorded does not matter; only
    /// the first link's own limit applies (`EMSGSIZE`).
    ///
    /// Datagrams that other threads send on this socket at the same moment may be sent under the same rule: for the
    /// duration of a system call, a datagram too large for the path can be lost. Therefore call it rarely.
    pub fn send_whole(
        &self,
        to: SocketAddr,
        from: Option<IpAddr>,
        payload: &[u8],
    ) -> io::Result<()> {
        let (level, option) = match to.ip().to_canonical() {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        let dont = |on| match level {
            libc::IPPROTO_IPV6 => set_option(&self.socket, level, libc::IPV6_DONTFRAG, on),
            _ => Ok(()),
        };
        let usual = usual(self.fragmentation, level);
        // IPV6_PMTUDISC_PROBE has the same number.
        set_option(&self.socket, level, option, libc::IP_PMTUDISC_PROBE)?;
        let sent = dont(1).and_then(|()| self.send_to(to, from, payload));
        dont(usual.1)?;
        set_option(&self.socket, level, option, usual.0)?;
        sent
    }

    /// Returns the kernel's estimate of the largest IP packet to a host: the device's limit, or less if ICMP reported
    /// so. `from` as in [`UdpSocket::send_to`].
    pub fn path_mtu(&self, to: SocketAddr, from: Option<IpAddr>) -> io::Result<u16> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let v6 = to.is_ipv6();
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let kind = Type::DGRAM.nonblocking().cloexec();
        let probe = Socket::new(domain, kind, Some(Protocol::UDP))?;
        if let Ok(mark) = self.socket.mark()
            && mark != 0
        {
            probe.set_mark(mark)?;
        }
        if let Some(from) = from.map(|ip| ip.to_canonical()).filter(|ip| ip.is_ipv6() == v6) {
            probe.bind(&SocketAddr::new(from, 0).into())?;
        }
        probe.connect(&to.into())?;
        let (level, option) = if v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU)
        };
        // Loopback's 65,536 exceeds any packet.
        Ok(u16::try_from(get_option(&probe, level, option)?).unwrap_or(u16::MAX))
    }
}

/// Returns the configured values of `*_MTU_DISCOVER` and `IPV6_DONTFRAG` for a socket.
pub(super) fn usual(fragmentation: Fragmentation, level: i32) -> (i32, i32) {
    let v6 = level == libc::IPPROTO_IPV6;
    let mode = match fragmentation {
        Fragmentation::Allowed if v6 => libc::IPV6_PMTUDISC_DONT,
        Fragmentation::Allowed => libc::IP_PMTUDISC_DONT,
        Fragmentation::Local if v6 => libc::IPV6_PMTUDISC_WANT,
        Fragmentation::Local => libc::IP_PMTUDISC_WANT,
        Fragmentation::Forbidden if v6 => libc::IPV6_PMTUDISC_DO,
        Fragmentation::Forbidden => libc::IP_PMTUDISC_DO,
    };
    (mode, 0)
}

/// Calls `getsockopt` for an int.
fn get_option(fd: &impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the local, which outlives the call.
    let rc = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
