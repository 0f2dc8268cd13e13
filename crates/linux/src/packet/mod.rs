//! Ethernet frames of existing interfaces, through packet sockets (packet(7)).
//!
//! A socket sees every frame that its interface receives, to any destination and before the host's stack does, but no frame that the host
//! or the socket itself sends. Frames are complete: the `virtio_net_hdr` describes the work that the kernel left undone
//! (`PACKET_VNET_HDR`), so 64 KiB of one flow can form one frame, and each frame contains the VLAN tag that the kernel delivers separately
//! (`PACKET_AUXDATA`).
#![allow(unsafe_code)]

mod batch;
mod guard;

pub use batch::{Frame, FrameBatch, SLOT};
pub use guard::{Guard, GuardError};

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::tun::VNET_LEN;

/// The maximum number of unread bytes per socket, as the kernel counts them.
const RECEIVE_BUFFER: libc::c_int = 16 << 20;

/// The maximum number of unsent bytes per socket. Beyond this limit the sender waits: this is the queue of the port.
const SEND_BUFFER: libc::c_int = 4 << 20;

/// The reason why a packet socket could not be opened.
#[derive(Debug)]
pub enum PacketError {
    /// CAP_NET_RAW is missing.
    NoPermission(io::Error),
    /// The interface does not exist or no longer exists.
    NoInterface(io::Error),
    /// This kernel lacks a required feature.
    Unsupported(&'static str, io::Error),
    /// A step failed.
    Os(&'static str, io::Error),
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPermission(e) => write!(
                f,
                "no right to open a packet socket ({e}): run as root or with CAP_NET_RAW (in a \
                 container: --cap-add NET_RAW)"
            ),
            Self::NoInterface(e) => write!(f, "the interface is not there ({e})"),
            Self::Unsupported(what, e) => {
                write!(f, "this kernel's packet sockets have no {what} ({e}): Linux 4.20 or later")
            }
            Self::Os(step, e) => write!(f, "cannot open a packet socket: {step}: {e}"),
        }
    }
}

impl std::error::Error for PacketError {}

/// Packets that a packet socket has received and dropped since the last query.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketStatistics {
    /// Frames that the kernel offered to the socket, including those dropped.
    pub seen: u32,
    /// Frames dropped because the socket's receive buffer was full.
    pub dropped: u32,
}

/// One socket of an interface, non-blocking.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens `queues` (1 to 64) sockets of an interface in the calling thread's network namespace, and switches the
    /// interface to promiscuous mode for their lifetime. With several sockets, the kernel delivers all frames of one
    /// flow to the same socket (`PACKET_FANOUT_HASH`).
    ///
    /// # Errors
    /// The process lacks privileges, the interface does not exist, or the kernel is too old.
    pub fn open(ifindex: u32, queues: usize) -> Result<Vec<Self>, PacketError> {
        let index = libc::c_int::try_from(ifindex)
            .map_err(|_| PacketError::NoInterface(io::Error::from_raw_os_error(libc::ENODEV)))?;
        let mut sockets = Vec::new();
        let mut group = None;
        for _ in 0..queues.max(1) {
            let socket = Self::bound(index)?;
            if queues > 1 {
                group = Some(socket.join_group(group)?);
            }
            sockets.push(socket);
        }
        Ok(sockets)
    }

    fn bound(index: libc::c_int) -> Result<Self, PacketError> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Protocol 0 means that no frames arrive before the socket is bound to its interface. SAFETY: creates a descriptor, which has no
        // other owner.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => PacketError::NoPermission(error),
                _ => PacketError::Os("opening it", error),
            });
        }
        // SAFETY: `fd` is a new descriptor without another owner.
        let this = Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
        let packet = libc::SOL_PACKET;
        let unsupported = |what| move |e| PacketError::Unsupported(what, e);
        this.set(packet, libc::PACKET_VNET_HDR, &1).map_err(unsupported("offloads"))?;
        this.set(packet, libc::PACKET_AUXDATA, &1).map_err(unsupported("auxiliary data"))?;
        this.set(packet, libc::PACKET_IGNORE_OUTGOING, &1)
            .map_err(unsupported("PACKET_IGNORE_OUTGOING"))?;
        // Exceed the system's limits if permitted; otherwise set sizes up to them.
        for (force, plain, bytes) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER),
        ] {
            this.set(libc::SOL_SOCKET, force, &bytes)
                .or_else(|_| this.set(libc::SOL_SOCKET, plain, &bytes))
                .map_err(|e| PacketError::Os("sizing its buffers", e))?;
        }
        this.bind(index)?;
        let promiscuous = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        this.set(packet, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)
            .map_err(|e| PacketError::Os("switching to promiscuous mode", e))?;
        Ok(this)
    }

    fn bind(&self, index: libc::c_int) -> Result<(), PacketError> {
        // SAFETY: sockaddr_ll is plain data for which all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the pointer and the size are those of a local that outlives the call.
        let rc = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), size) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(match error.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => PacketError::NoInterface(error),
            _ => PacketError::Os("binding it to the interface", error),
        })
    }

    /// Shares the interface's frames with the other sockets of a group. The first socket creates it.
    fn join_group(&self, group: Option<u16>) -> Result<u16, PacketError> {
        let step = |e| PacketError::Os("sharing the interface among workers", e);
        // The group has its own setting for outgoing frames, independent of its members' settings. Kernels before 6.7
        // do not have this option; there, `FrameBatch` skips such frames.
        let ignoring = libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        let unique = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
        let value =
            |flags: u32| (libc::PACKET_FANOUT_HASH | flags) << 16 | u32::from(group.unwrap_or(0));
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &value(unique | ignoring))
            .or_else(|_| self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &value(unique)))
            .map_err(step)?;
        let joined: u32 = self.get(libc::SOL_PACKET, libc::PACKET_FANOUT).map_err(step)?;
        Ok(joined as u16)
    }

    /// Returns whether the interface has been removed. The kernel has then detached the socket from it.
    pub fn is_lost(&self) -> bool {
        // SAFETY: sockaddr_ll is plain data for which all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: both pointers refer to locals that outlive the call; `size` states the space.
        let rc = unsafe {
            libc::getsockname(self.fd.as_raw_fd(), (&raw mut address).cast(), &raw mut size)
        };
        rc < 0 || address.sll_ifindex <= 0
    }

    /// Returns the frames seen and dropped since the last call.
    ///
    /// # Errors
    /// The kernel does not report them.
    pub fn statistics(&self) -> io::Result<PacketStatistics> {
        let [seen, dropped]: [u32; 2] = self.get(libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
        Ok(PacketStatistics { seen, dropped })
    }

    /// Receives a burst; returns how many frames it has. `WouldBlock` if there are none; `ENETDOWN` (once) if the
    /// interface was brought down or removed ([`Self::is_lost`]); `EINVAL` for a frame that the header cannot describe,
    /// which is lost.
    ///
    /// # Errors
    /// As above.
    pub fn receive(&self, batch: &mut FrameBatch) -> io::Result<usize> {
        batch.receive(self)
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// Fails as [`FrameBatch::send_to_socket`] does.
    pub fn send(&self, vnet: &[u8; VNET_LEN], frame: &[u8]) -> io::Result<()> {
        let parts = [io::IoSlice::new(vnet), io::IoSlice::new(frame)];
        loop {
            match rustix::io::writev(&self.fd, &parts) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let (at, size) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
        // SAFETY: the pointer and the size are those of `value`, which outlives the call; the kernel only reads it.
        let rc = unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, name, at, size) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn get<T: Copy + Default>(&self, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
        let mut value = T::default();
        let mut size = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `size` bytes, the size of `value`, which consists of integers at all call
        // sites.
        let rc = unsafe {
            let at = (&raw mut value).cast();
            libc::getsockopt(self.fd.as_raw_fd(), level, name, at, &raw mut size)
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
    }
}

/// Takes over a socket that another process has opened and bound ([`PacketSocket::open`]).
impl From<OwnedFd> for PacketSocket {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests;
