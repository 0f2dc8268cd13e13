//! Receiving bursts by `recvmmsg`.
#![allow(unsafe_code)]

use std::io;
use std::iter;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use super::message::{Control, RawSocketAddress};
use super::send::{empty_header, empty_message, empty_part, is_transient};

/// The size of one slot in bytes: the largest datagram, coalesced or not, fits.
const SLOT: usize = 1 << 16;

/// The maximum number of slots of a batch.
const MAX_SLOTS: usize = 256;

/// A received datagram, or several of equal length (the last may be shorter) from one peer.
#[derive(Debug)]
pub struct Received<'a> {
    /// The sender's address; IPv4 even on a socket that serves both families.
    pub remote: SocketAddr,
    /// The local address that it was sent to.
    pub local: Option<IpAddr>,
    /// Length of each datagram except the last; never 0, and `data.len()` for a single datagram.
    pub segment: usize,
    /// The distance between the starts of two datagrams: `segment`, or more if there are gaps.
    pub stride: usize,
    /// The payloads. Empty for an empty datagram.
    pub data: &'a mut [u8],
}

/// What the kernel reports about one message.
#[derive(Copy, Clone)]
struct Description {
    /// The sender's and the local address. `None` if the datagram is truncated or has no readable sender (neither can
    /// happen with these sizes).
    path: Option<(SocketAddr, Option<IpAddr>)>,
    /// The segment size of a coalesced message.
    segment: Option<usize>,
    len: usize,
}

impl Description {
    fn new(message: &libc::mmsghdr, name: &RawSocketAddress, control: &Control) -> Self {
        let (local, segment) = control.get(message.msg_hdr.msg_controllen as _);
        let truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let remote = name.get(message.msg_hdr.msg_namelen as usize).filter(|_| !truncated);
        let len = message.msg_len as usize;
        // A segment size of 0, or beyond the data, would make callers split wrongly.
        let segment = segment.filter(|segment| (1..len).contains(segment));
        Self { path: remote.map(|remote| (remote, local)), segment, len }
    }

    /// Returns whether a run of single datagrams that begins with this one, and whose latest has a length of `latest`, can
    /// continue with `next`.
    fn continues(&self, latest: usize, next: &Self) -> bool {
        self.path.is_some()
            && self.path == next.path
            && (self.segment, next.segment) == (None, None)
            && latest == self.len
            && (1..=self.len).contains(&next.len)
    }
}

/// An ICMP error about a datagram that this socket sent.
#[derive(Debug)]
pub struct PeerError {
    /// The destination of the datagram.
    pub remote: SocketAddr,
    /// `ECONNREFUSED`: nothing listens on that port. `EHOSTUNREACH`, `ENETUNREACH`: no route to the
    /// host or network. `EACCES`, `EPERM`: a firewall refuses. `EMSGSIZE`: too large, with
    /// [`Fragmentation`] other than `Allowed`.
    ///
    /// [`Fragmentation`]: super::Fragmentation
    pub error: io::Error,
}

/// Takes one message from the socket's error queue.
pub(super) fn read_error(fd: &impl AsFd) -> io::Result<Option<PeerError>> {
    let (mut name, mut control) = (RawSocketAddress::default(), Control::default());
    loop {
        // The datagram itself is not needed, and is truncated because it has no buffer.
        let mut header = empty_header();
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = size_of::<RawSocketAddress>() as libc::socklen_t;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Control>() as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the header's pointers refer to locals that outlive the call, with their sizes.
        if unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &raw mut header, flags) } >= 0 {
            let remote = name.get(header.msg_namelen as usize);
            // Messages other than ICMP errors (none was requested) are skipped.
            let errno = control.error(header.msg_controllen as _).filter(|errno| *errno != 0);
            if let (Some(remote), Some(errno)) = (remote, errno) {
                return Ok(Some(PeerError { remote, error: io::Error::from_raw_os_error(errno) }));
            }
            continue;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock => return Ok(None),
            io::ErrorKind::Interrupted => {}
            _ => return Err(error),
        }
    }
}

/// The number of bytes that a burst should not much exceed: a part of a core's L2 cache.
const BURST: usize = 1 << 20;
/// The minimum number of buffers offered.
const MIN_OFFERED: usize = 16;

/// Buffers for a burst, 64 KiB each. Pages into which no datagram is written are never touched. The
/// default has no buffers and allocates nothing, so `mem::take` is free.
#[derive(Default)]
pub struct RecvBatch {
    buffers: Vec<u8>,
    names: Vec<RawSocketAddress>,
    controls: Vec<Control>,
    /// Referenced by `messages`; only the kernel reads them.
    _parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    filled: usize,
    /// The number of buffers that the next call offers.
    offered: usize,
}

// SAFETY: its pointers refer to the memory of its own vectors, which moves with it and keeps its
// address: the vectors never grow.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    /// Creates a batch with this many buffers per call (1 to 256).
    pub fn new(slots: usize) -> Self {
        let n = slots.clamp(1, MAX_SLOTS);
        let mut buffers = vec![0; n * SLOT];
        let mut names = vec![RawSocketAddress::default(); n];
        let mut controls = vec![Control::default(); n];
        let mut parts = vec![empty_part(); n];
        let mut messages = vec![empty_message(); n];
        // The kernel writes through these pointers. They are vectors, not boxes, because moving a
        // box asserts that no other pointer to its contents is in use.
        let (buffer, part) = (buffers.as_mut_ptr(), parts.as_mut_ptr());
        let (name, control) = (names.as_mut_ptr(), controls.as_mut_ptr());
        for (i, message) in messages.iter_mut().enumerate() {
            // SAFETY: `i` is below `n`, the number of elements (of SLOT bytes, for the buffers)
            // behind each pointer.
            unsafe {
                *part.add(i) = libc::iovec { iov_base: buffer.add(i * SLOT).cast(), iov_len: SLOT };
                message.msg_hdr.msg_name = name.add(i).cast();
                message.msg_hdr.msg_control = control.add(i).cast();
                message.msg_hdr.msg_iov = part.add(i);
            }
            message.msg_hdr.msg_iovlen = 1;
        }
        // All lengths are set before each call, for the slots that the previous call used.
        Self {
            buffers,
            names,
            controls,
            _parts: parts,
            messages,
            filled: n,
            offered: MIN_OFFERED.min(n),
        }
    }

    /// Releases the memory of the buffers, with their contents, until they are filled again.
    pub fn release_memory(&mut self) {
        crate::memory::release(&mut self.buffers);
    }

    /// Returns how many buffers one call can fill.
    pub fn slots(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn receive(&mut self, fd: &impl AsFd) -> io::Result<usize> {
        if self.messages.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for message in self.messages.iter_mut().take(self.filled) {
            message.msg_hdr.msg_namelen = size_of::<RawSocketAddress>() as libc::socklen_t;
            message.msg_hdr.msg_controllen = size_of::<Control>() as _;
            message.msg_hdr.msg_flags = 0;
        }
        self.filled = 0;
        let mut pending = true;
        loop {
            // SAFETY: every header's pointers refer to this batch's own vectors, whose elements
            // they cover with the right lengths (set in `new` and above); `&mut self` excludes any
            // other access during the call.
            let count = unsafe {
                libc::recvmmsg(
                    fd.as_fd().as_raw_fd(),
                    self.messages.as_mut_ptr(),
                    self.offered as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            if let Ok(count) = usize::try_from(count) {
                self.filled = count;
                self.offer_for_next();
                return Ok(count);
            }
            let error = io::Error::last_os_error();
            if !is_transient(&error, &mut pending) {
                return Err(error);
            }
        }
    }

    /// Offers as many buffers as hold [`BURST`] bytes of datagrams of the last burst's size, but
    /// more than before only if that burst filled all buffers offered. Many long trains at once
    /// have no benefit, and touch memory that stays resident and falls out of the cache.
    fn offer_for_next(&mut self) {
        let received = self.messages.iter().take(self.filled);
        let bytes: usize = received.map(|message| message.msg_len as usize).sum();
        let average = (bytes / self.filled.max(1)).max(1);
        let slots = self.messages.len();
        let fitting = (BURST / average).clamp(MIN_OFFERED.min(slots), slots);
        if fitting < self.offered || self.filled == self.offered {
            self.offered = fitting;
        }
    }

    /// Returns the messages of the last burst, in order: single datagrams, and trains that the kernel coalesced.
    pub fn datagrams_mut(&mut self) -> impl Iterator<Item = Received<'_>> {
        self.received(false)
    }

    /// Returns the same datagrams, but joins consecutive ones that the kernel could have coalesced. They have gaps
    /// between them.
    pub fn runs_mut(&mut self) -> impl Iterator<Item = Received<'_>> {
        self.received(true)
    }

    fn received(&mut self, join: bool) -> impl Iterator<Item = Received<'_>> {
        let messages = self.messages.iter().zip(&self.names).zip(&self.controls).take(self.filled);
        let mut messages = messages
            .map(|((message, name), control)| Description::new(message, name, control))
            .peekable();
        let mut unread = self.buffers.as_mut_slice();
        iter::from_fn(move || {
            loop {
                let first = messages.next()?;
                let (mut count, mut latest) = (1, first.len);
                while join
                    && let Some(next) = messages.next_if(|next| first.continues(latest, next))
                {
                    (count, latest) = (count + 1, next.len);
                }
                let (slots, rest) = mem::take(&mut unread).split_at_mut(count * SLOT);
                unread = rest;
                let data = slots.get_mut(..(count - 1) * SLOT + latest);
                if let (Some((remote, local)), Some(data)) = (first.path, data) {
                    let segment = first.segment.unwrap_or(first.len.max(1));
                    let stride = if count > 1 { SLOT } else { segment };
                    return Some(Received { remote, local, segment, stride, data });
                }
            }
        })
    }
}
