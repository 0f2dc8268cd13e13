//! TUN and TAP devices with the kernel's segmentation offloads.
//!
//! Every read and write carries a 10-byte `virtio_net_hdr` before the packet (`IFF_VNET_HDR`), so
//! that one system call moves up to 64 KiB of one flow. See the kernel's
//! Documentation/networking/tuntap.rst and include/uapi/linux/virtio_net.h.
#![allow(unsafe_code)]

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

mod flow_queues;
mod parts;
mod persistent;

use flow_queues::FlowQueues;
pub use parts::TunParts;
pub use persistent::{make_persistent, remove_persistent};

/// Length of the header before each packet (`virtio_net_hdr` without `num_buffers`).
pub const VNET_LEN: usize = 10;

/// Longest interface name (`IFNAMSIZ` less its NUL).
pub const NAME_MAX: usize = 15;

/// The device that creates TUN and TAP interfaces.
const DEVICE: &str = "/dev/net/tun";

/// Whether the device carries IP packets or Ethernet frames.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum TunMode {
    /// IP packets.
    #[default]
    Tun,
    /// Ethernet frames.
    Tap,
}

/// The offloads in use: work on packets that the kernel leaves to adit, and adit to the kernel.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TunOffloads {
    /// Checksums may be partial. The other offloads require this one.
    pub csum: bool,
    /// TCP super-packets, IPv4 and IPv6.
    pub tso: bool,
    /// UDP super-packets, IPv4 and IPv6 (Linux 6.2 and later).
    pub uso: bool,
}

impl TunOffloads {
    /// All offloads.
    pub const ALL: Self = Self { csum: true, tso: true, uso: true };
    /// No offloads: one whole packet per call.
    pub const NONE: Self = Self { csum: false, tso: false, uso: false };

    fn flags(self) -> libc::c_uint {
        let mut flags = 0;
        if self.csum {
            flags |= libc::TUN_F_CSUM;
            if self.tso {
                flags |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
            }
            if self.uso {
                flags |= libc::TUN_F_USO4 | libc::TUN_F_USO6;
            }
        }
        flags
    }

    /// Applies the kernel's rule (no segmentation without checksums).
    fn coherent(self) -> Self {
        if self.csum { self } else { Self::NONE }
    }
}

/// The options of a device.
#[derive(Clone, Debug)]
pub struct TunOptions {
    /// The exact name (1 to 15 bytes), or `None` for the next free `tun%d` / `tap%d`.
    pub name: Option<String>,
    /// The number of queues, at least 1; one per worker. A device that was created with one queue keeps only that one.
    pub queues: usize,
    /// The number of flow queues if there is only one queue. The kernel distributes flows over them, and they are read
    /// in turn, so a flow with little traffic does not wait behind a busy one. 1 for none. Effective only if the device
    /// does not exist yet, because other programs may use an existing device.
    pub flow_queues: usize,
    /// The requested offloads; [`TunDevice::offloads`] has the ones that the kernel grants.
    pub offloads: TunOffloads,
    /// TUN or TAP.
    pub mode: TunMode,
}

impl Default for TunOptions {
    fn default() -> Self {
        Self {
            name: None,
            queues: 1,
            flow_queues: 1,
            offloads: TunOffloads::ALL,
            mode: TunMode::Tun,
        }
    }
}

/// The reason why a device could not be opened.
#[derive(Debug)]
pub enum TunError {
    /// /dev/net/tun does not exist, or its module is not loaded.
    NoDriver(io::Error),
    /// Missing CAP_NET_ADMIN, or the device belongs to another user.
    NoPermission(io::Error),
    /// Another process has the device open.
    Busy(String),
    /// The name is empty, too long or contains a character that is not allowed in interface names.
    BadName(String),
    /// The name belongs to a device of another kind.
    OtherKind(String),
    /// Anything else, with the step that failed.
    Os(&'static str, io::Error),
}

impl fmt::Display for TunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver(e) => write!(
                f,
                "{DEVICE} is missing ({e}): load the module with `modprobe tun`; in a container, \
                 pass the device in (--device {DEVICE})"
            ),
            Self::NoPermission(e) => write!(
                f,
                "no right to make a TUN device ({e}): run as root or with CAP_NET_ADMIN (in a \
                 container: --cap-add NET_ADMIN)"
            ),
            Self::Busy(name) => write!(
                f,
                "the device {name} is in use by another process: stop that, or choose another name"
            ),
            Self::BadName(name) => write!(
                f,
                "{name:?} cannot be an interface name: use 1 to {NAME_MAX} letters, digits, '-', \
                 '_' or '.'"
            ),
            Self::OtherKind(name) => write!(
                f,
                "an interface {name} of another kind exists: choose another name, or remove it with \
                 `ip link del {name}`"
            ),
            Self::Os(step, e) => write!(f, "cannot open a TUN device: {step}: {e}"),
        }
    }
}

impl std::error::Error for TunError {}

/// An open device. It disappears from the system when its last queue is dropped (unless it was made persistent before).
#[derive(Debug)]
pub struct TunDevice {
    /// The interface's name.
    pub name: String,
    /// The interface's index.
    pub ifindex: u32,
    /// The offloads in force.
    pub offloads: TunOffloads,
    /// As many queues as requested; one if the device already existed with a single queue.
    pub queues: Vec<TunQueue>,
}

impl TunDevice {
    /// Opens (and creates, if it does not exist) a device in the calling thread's network namespace.
    pub fn open(options: &TunOptions) -> Result<Self, TunError> {
        let wanted = match &options.name {
            Some(name) => checked_name(name)?,
            None if options.mode == TunMode::Tap => "tap%d",
            None => "tun%d",
        };
        let made =
            options.flow_queues > 1 && options.queues == 1 && interface_index(wanted).is_err();
        let flow_queues = made.then(|| FlowQueues::open(wanted, options.mode, options.flow_queues));
        let (queues, name) = match flow_queues {
            Some(Ok((queue, name))) => (vec![queue], name),
            // One queue suffices if the kernel does not support several, or does not detach them.
            Some(Err(_)) | None => open_queues(wanted, options)?,
        };
        // The offloads belong to the device, and some kernels reset them when a queue is attached, so set them last.
        let offloads =
            queues.first().map_or(Ok(TunOffloads::NONE), |first| grant(first, options.offloads))?;
        let ifindex = interface_index(&name).map_err(|e| TunError::Os("reading its index", e))?;
        Ok(Self { name, ifindex, offloads, queues })
    }
}

/// Opens the requested queues, or only one if the device was created with one.
fn open_queues(wanted: &str, options: &TunOptions) -> Result<(Vec<TunQueue>, String), TunError> {
    let several = options.queues > 1;
    let (first, name, count) = match attach(wanted, options.mode, several) {
        // A persistent device was created with several queues, or without support for them.
        Err(TunError::OtherKind(_)) => {
            let (first, name) = attach(wanted, options.mode, !several)?;
            (first, name, if several { 1 } else { options.queues })
        }
        attached => {
            let (first, name) = attached?;
            (first, name, options.queues)
        }
    };
    let mut queues = vec![first];
    while queues.len() < count {
        queues.push(attach(&name, options.mode, true)?.0);
    }
    Ok((queues, name))
}

/// One queue of a device, non-blocking.
#[derive(Debug)]
pub struct TunQueue {
    /// The descriptor for writing, and for reading unless there are flow queues.
    fd: OwnedFd,
    flow_queues: Option<FlowQueues>,
}

impl TunQueue {
    /// Reads one packet: its header into `vnet`, the packet into `buf` (64 KiB; a shorter buffer truncates a
    /// super-packet). Returns the packet's length; `WouldBlock` if there is none. Only one thread may read at a time.
    pub fn read(&self, vnet: &mut [u8; VNET_LEN], buf: &mut [u8]) -> io::Result<usize> {
        match &self.flow_queues {
            None => read(&self.fd, vnet, buf),
            Some(flow_queues) => flow_queues.read(vnet, buf),
        }
    }

    /// Returns the number of flow queues that are read in turn; 1 if there are none.
    pub fn flow_queues(&self) -> usize {
        self.flow_queues.as_ref().map_or(1, FlowQueues::len)
    }

    /// Writes one packet to the kernel; the first slice is the 10-byte header, the rest (at most 1023 slices) the
    /// packet. Returns the number of bytes written, including the header. `EINVAL` means that the kernel refuses the
    /// header, `EIO` that the interface is down.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match rustix::io::writev(&self.fd, parts) {
                Ok(n) => return Ok(n),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Returns the interface's current hardware address; all zeroes for a TUN device.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        // SAFETY: ifreq is plain data for which all zeroes is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: SIOCGIFHWADDR on this descriptor writes one ifreq, which lives through the call; the driver
        // identifies the interface by the descriptor, not by the name.
        let rc =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call filled in `ifru_hwaddr`, and any bytes are a valid sockaddr.
        let data = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
        Ok(std::array::from_fn(|at| data[at] as u8))
    }

    /// Changes the offloads of the whole device at run time. Packets already in the queue may still use the former
    /// offloads.
    pub fn set_offloads(&self, offloads: TunOffloads) -> io::Result<()> {
        // SAFETY: TUNSETOFFLOAD takes its argument by value; the descriptor is ours and open.
        let rc = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(offloads.flags()),
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Provides the descriptor to watch. It is readable when there is a packet.
impl AsFd for TunQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flow_queues.as_ref().map_or(self.fd.as_fd(), FlowQueues::as_fd)
    }
}

fn read(fd: &OwnedFd, vnet: &mut [u8; VNET_LEN], buf: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut parts = [IoSliceMut::new(vnet), IoSliceMut::new(buf)];
        match rustix::io::readv(fd, &mut parts) {
            // Shorter than the header: the device is being removed. There is no packet to deliver.
            Ok(n) => return Ok(n.saturating_sub(VNET_LEN)),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn checked_name(name: &str) -> Result<&str, TunError> {
    // The kernel accepts nearly any name and expands '%', which would confuse tools and log lines.
    let fits = (1..=NAME_MAX).contains(&name.len()) && name != "." && name != "..";
    let plain =
        name.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'%' | b'\\'));
    if fits && plain { Ok(name) } else { Err(TunError::BadName(name.to_owned())) }
}

/// Creates a TAP device without offloads or headers, as simple programs do. Each read and write of the descriptor is
/// one frame of at most the device's MTU. It blocks, and serves only as a baseline for measurements.
///
/// # Errors
/// Fails as [`TunDevice::open`] does.
pub fn plain_tap(name: &str) -> Result<OwnedFd, TunError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(open_and_set(checked_name(name)?, libc::IFF_TAP | libc::IFF_NO_PI, flags)?.0)
}

/// Opens the clone device and attaches it to the interface; returns the interface's real name.
fn attach(name: &str, mode: TunMode, multi: bool) -> Result<(TunQueue, String), TunError> {
    let mut kind = match mode {
        TunMode::Tun => libc::IFF_TUN,
        TunMode::Tap => libc::IFF_TAP,
    } | libc::IFF_NO_PI
        | libc::IFF_VNET_HDR;
    if multi {
        kind |= libc::IFF_MULTI_QUEUE;
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let (fd, name) = open_and_set(name, kind, flags)?;
    let size: libc::c_int = VNET_LEN as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int, which lives through the call.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) } < 0 {
        let error = io::Error::last_os_error();
        return Err(TunError::Os("setting the header length (TUNSETVNETHDRSZ)", error));
    }
    Ok((TunQueue { fd, flow_queues: None }, name))
}

/// Opens the clone device and makes it a queue of the interface of this kind (`IFF_...`).
fn open_and_set(
    name: &str,
    kind: libc::c_int,
    flags: OFlags,
) -> Result<(OwnedFd, String), TunError> {
    let fd = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|e| {
        let error = io::Error::from(e);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TunError::NoDriver(error),
            Some(libc::EACCES | libc::EPERM) => TunError::NoPermission(error),
            _ => TunError::Os("opening /dev/net/tun", error),
        }
    })?;
    // SAFETY: ifreq is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // zip stops at least one byte before the array's end, so the NUL remains.
    for (to, from) in request.ifr_name[..NAME_MAX].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = kind as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives through the call.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if rc < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => TunError::NoPermission(error),
            Some(libc::EBUSY) => TunError::Busy(name.to_owned()),
            Some(libc::EINVAL) if !name.contains('%') => TunError::OtherKind(name.to_owned()),
            _ => TunError::Os("attaching the interface (TUNSETIFF)", error),
        });
    }
    let name: Vec<u8> = request.ifr_name.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    Ok((fd, String::from_utf8_lossy(&name).into_owned()))
}

/// Enables the requested offloads, or as many of them as this kernel supports.
fn grant(queue: &TunQueue, wanted: TunOffloads) -> Result<TunOffloads, TunError> {
    let wanted = wanted.coherent();
    let tries = [
        wanted,
        TunOffloads { uso: false, ..wanted },
        TunOffloads { uso: false, tso: false, ..wanted },
        TunOffloads::NONE,
    ];
    let mut last = io::Error::from(io::ErrorKind::InvalidInput);
    for offloads in tries {
        match queue.set_offloads(offloads) {
            Ok(()) => return Ok(offloads),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => last = e,
            Err(e) => return Err(TunError::Os("setting offloads (TUNSETOFFLOAD)", e)),
        }
    }
    Err(TunError::Os("setting offloads (TUNSETOFFLOAD)", last))
}

/// Returns the index of the interface with a name, in the calling thread's network namespace.
pub fn interface_index(name: &str) -> io::Result<u32> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(netdevice::name_to_index(&socket, name)?)
}

#[cfg(test)]
mod tests;
