//! Sending: one datagram, or trains by `sendmmsg`.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use super::message::{Control, RawSocketAddress};

/// The longest payload of one train: an IPv4 packet's 65,535 bytes without its headers.
pub const MAX_PAYLOAD: usize = 65_507;

/// The maximum number of segments of one train that every kernel with `UDP_SEGMENT` accepts.
pub const MAX_SEGMENTS: usize = 64;

/// Datagrams of equal size to one peer, without gaps.
#[derive(Copy, Clone, Debug)]
pub struct Train<'a> {
    /// Destination; may be IPv4 on a socket that serves both families.
    pub to: SocketAddr,
    /// Source address, of the destination's family; `None` leaves the choice to the kernel.
    pub from: Option<IpAddr>,
    /// Length of each datagram except the last, which may be shorter. If it is 0, or not less than the payload's
    /// length, the payload is one datagram.
    pub segment: u16,
    /// The type of service (IPv4) or traffic class (IPv6) of the datagrams; `None` for the socket's own.
    pub tos: Option<u8>,
    /// At most [`MAX_PAYLOAD`] bytes and [`MAX_SEGMENTS`] segments; otherwise the kernel refuses the train.
    pub payload: &'a [u8],
}

impl Train<'_> {
    fn segment_option(&self) -> u16 {
        if usize::from(self.segment) < self.payload.len() { self.segment } else { 0 }
    }
}

/// The reason why [`send_trains`](super::UdpSocket::send_trains) stopped.
///
/// `WouldBlock` and `ENOBUFS`: the socket or the interface is full. `EMSGSIZE` (`EINVAL` on older kernels): segments
/// larger than the path MTU; send that train's datagrams singly. `EIO`: the device cannot segment; send everything
/// singly from now on. `ENETUNREACH`, `EHOSTUNREACH`: no route, or (`EINVAL` for IPv6) `from` is not a local address.
#[derive(Debug)]
pub struct SendStop {
    /// The number of trains sent; the train with this index failed.
    pub sent: usize,
    /// The kernel's error, with its errno.
    pub error: io::Error,
}

impl fmt::Display for SendStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sending stopped after {} trains: {}", self.sent, self.error)
    }
}

impl std::error::Error for SendStop {}

/// The arrays for one `sendmmsg`. They are allocated once and reused.
pub struct SendScratch {
    names: Box<[RawSocketAddress]>,
    controls: Box<[Control]>,
    parts: Box<[libc::iovec]>,
    messages: Box<[libc::mmsghdr]>,
}

// SAFETY: its pointers are written before each system call and never used after it; they are dangling values, not
// shared state.
unsafe impl Send for SendScratch {}

impl SendScratch {
    /// Creates arrays for this many trains per system call (1 to 1024; about 200 bytes each).
    pub fn new(trains: usize) -> Self {
        let n = trains.clamp(1, 1024);
        Self {
            names: vec![RawSocketAddress::default(); n].into(),
            controls: vec![Control::default(); n].into(),
            parts: vec![empty_part(); n].into(),
            messages: vec![empty_message(); n].into(),
        }
    }

    /// Fills the arrays with as many trains as fit; stops before a train that cannot be described.
    fn fill(&mut self, v6_socket: bool, trains: &[Train<'_>]) -> usize {
        let rooms = self.names.iter_mut().zip(&mut self.controls);
        let rooms = rooms.zip(&mut self.parts).zip(&mut self.messages);
        let mut filled = 0;
        for (train, (((name, control), part), message)) in trains.iter().zip(rooms) {
            let Some(header) = describe(train, v6_socket, name, control, part) else { break };
            message.msg_hdr = header;
            filled += 1;
        }
        filled
    }
}

impl Default for SendScratch {
    fn default() -> Self {
        Self::new(MAX_SEGMENTS)
    }
}

pub(super) fn empty_part() -> libc::iovec {
    libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }
}

pub(super) fn empty_header() -> libc::msghdr {
    // SAFETY: msghdr is plain data (pointers and lengths) for which all zeroes is a valid value. A struct literal would
    // not compile where a C library has private padding fields.
    unsafe { std::mem::zeroed() }
}

pub(super) fn empty_message() -> libc::mmsghdr {
    libc::mmsghdr { msg_hdr: empty_header(), msg_len: 0 }
}

/// Builds one message header for a train. Its pointers refer to the arguments, which must all live until the system
/// call returns. Returns `None` if the addresses do not match the socket's family or each other.
fn describe(
    train: &Train<'_>,
    v6_socket: bool,
    name: &mut RawSocketAddress,
    control: &mut Control,
    part: &mut libc::iovec,
) -> Option<libc::msghdr> {
    let name_len = name.set(train.to, v6_socket)?;
    let control_len = control.set(&train.to, train.from, train.segment_option(), train.tos)?;
    part.iov_base = train.payload.as_ptr().cast_mut().cast();
    part.iov_len = train.payload.len();
    let mut header = empty_header();
    header.msg_name = name.bytes.as_mut_ptr().cast();
    header.msg_namelen = name_len as libc::socklen_t;
    header.msg_iov = part;
    header.msg_iovlen = 1;
    if control_len > 0 {
        header.msg_control = control.bytes.as_mut_ptr().cast();
        header.msg_controllen = control_len as _;
    }
    Some(header)
}

/// Returns whether to repeat the call: after a signal, and once after an error that may come from an earlier ICMP
/// message about another datagram (the next call reports such an error only once; the error queue has it too).
pub(super) fn is_transient(error: &io::Error, pending: &mut bool) -> bool {
    match error.raw_os_error() {
        Some(libc::EINTR) => true,
        Some(
            libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::EPROTO
            | libc::EACCES
            | libc::EMSGSIZE,
        ) => std::mem::take(pending),
        _ => false,
    }
}

fn wrong_family() -> io::Error {
    io::Error::from_raw_os_error(libc::EAFNOSUPPORT)
}

/// Sends a single datagram.
pub(super) fn one(fd: &impl AsFd, v6_socket: bool, train: &Train<'_>) -> io::Result<()> {
    let (mut name, mut control, mut part) =
        (RawSocketAddress::default(), Control::default(), empty_part());
    let header =
        describe(train, v6_socket, &mut name, &mut control, &mut part).ok_or_else(wrong_family)?;
    let mut pending = true;
    loop {
        // SAFETY: the header points to locals and to the borrowed payload, which outlive the call;
        // the kernel only reads through it.
        let sent = unsafe {
            libc::sendmsg(
                fd.as_fd().as_raw_fd(),
                &raw const header,
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            )
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if !is_transient(&error, &mut pending) {
            return Err(error);
        }
    }
}

/// Sends all trains, or reports the first that fails.
pub(super) fn many(
    fd: &impl AsFd,
    v6_socket: bool,
    trains: &[Train<'_>],
    scratch: &mut SendScratch,
) -> Result<(), SendStop> {
    let (mut sent, mut pending) = (0, true);
    while let Some(rest) = trains.get(sent..).filter(|rest| !rest.is_empty()) {
        let filled = scratch.fill(v6_socket, rest);
        if filled == 0 {
            return Err(SendStop { sent, error: wrong_family() });
        }
        // SAFETY: `fill` wrote `filled` headers, at most the array's length. Their pointers refer to the scratch's
        // other arrays and to the payloads; both are borrowed here and outlive the call. The kernel writes only
        // msg_len.
        let count = unsafe {
            libc::sendmmsg(
                fd.as_fd().as_raw_fd(),
                scratch.messages.as_mut_ptr(),
                filled as libc::c_uint,
                (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as _,
            )
        };
        // A count below `filled` hides the error of the next train; the next call reports it.
        match usize::try_from(count) {
            Ok(count) => (sent, pending) = (sent + count, true),
            Err(_) => {
                let error = io::Error::last_os_error();
                if !is_transient(&error, &mut pending) {
                    return Err(SendStop { sent, error });
                }
            }
        }
    }
    Ok(())
}

/// Calls `setsockopt` for an int.
pub(super) fn set_option(fd: &impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel reads one int from a local that outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
