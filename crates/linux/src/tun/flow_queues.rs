//! Fair queueing: several kernel queues of a device, read in turn as one.
//!
//! The kernel's queue of a TUN device is first in, first out, and bulk traffic fills it, so a ping would wait behind a mebibyte of
//! super-packets. With several queues, the kernel distributes flows over them by a hash of addresses and ports. Because the queues are read
//! in turn, a flow waits only for its own packets and for flows with the same hash. Packets of a flow keep their order.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use super::{TunError, TunMode, TunQueue, VNET_LEN, attach, read};
use crate::poll::{Interest, Poller};

/// The number of bytes read from one queue before the next queue's turn, if others have packets: one super-packet.
const TURN: usize = 64 << 10;
/// The value for "no queue", greater than any index.
const NONE: u32 = u32::MAX;

/// Kernel queues that are read as one.
#[derive(Debug)]
pub(super) struct FlowQueues {
    /// Yields the readable queues in turn.
    poller: Poller,
    fds: Vec<OwnedFd>,
    // Only the thread that reads uses the two fields below.
    /// The queue whose turn it is.
    current: AtomicU32,
    /// The bytes left in this turn.
    left: AtomicUsize,
}

impl FlowQueues {
    /// Creates a device with this many flow queues; also returns its actual name.
    ///
    /// Writes go through one more queue, which is detached. A detached queue accepts writes, but they do not enter the
    /// device's flow table, which would otherwise direct all replies to this one queue.
    pub(super) fn open(
        name: &str,
        mode: TunMode,
        flow_queues: usize,
    ) -> Result<(TunQueue, String), TunError> {
        let failed = |error| TunError::Os("attaching its flow_queues", error);
        let (mut queue, name) = attach(name, mode, true)?;
        let mut fds = Vec::new();
        while fds.len() < flow_queues {
            fds.push(attach(&name, mode, true)?.0.fd);
        }
        detach(&queue).map_err(failed)?;
        queue.flow_queues = Some(Self::of(fds).map_err(failed)?);
        Ok((queue, name))
    }

    /// Combines these descriptors into one set of flow queues.
    pub(super) fn of(fds: Vec<OwnedFd>) -> io::Result<Self> {
        let poller = Poller::new()?;
        for (lane, fd) in fds.iter().enumerate() {
            poller.add(fd, lane as u64, Interest::READ)?;
        }
        let (current, left) = (AtomicU32::new(NONE), AtomicUsize::new(0));
        Ok(Self { poller, fds, current, left })
    }

    /// Returns the flow queues' descriptors.
    pub(super) fn into_fds(self) -> Vec<OwnedFd> {
        self.fds
    }

    pub(super) fn fds(&self) -> &[OwnedFd] {
        &self.fds
    }

    pub(super) fn len(&self) -> usize {
        self.fds.len()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Reads as [`TunQueue::read`] does.
    pub(super) fn read(&self, vnet: &mut [u8; VNET_LEN], buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.left.load(Relaxed);
            if left == 0 {
                // The least recently returned of the readable queues is next.
                let next = self.poller.next()?.ok_or(io::ErrorKind::WouldBlock)?;
                self.current.store(u32::try_from(next.token).unwrap_or(NONE), Relaxed);
                self.left.store(TURN, Relaxed);
                continue;
            }
            let Some(lane) = self.fds.get(self.current.load(Relaxed) as usize) else {
                return Err(io::ErrorKind::NotFound.into());
            };
            match read(lane, vnet, buf) {
                Ok(len) => {
                    self.left.store(left.saturating_sub(len), Relaxed);
                    return Ok(len);
                }
                Err(error) => {
                    self.left.store(0, Relaxed);
                    if error.kind() != io::ErrorKind::WouldBlock {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Stops the kernel from putting packets into a queue.
fn detach(queue: &TunQueue) -> io::Result<()> {
    // SAFETY: ifreq is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_flags = libc::IFF_DETACH_QUEUE as libc::c_short;
    // SAFETY: TUNSETQUEUE reads one ifreq, which lives through the call.
    let rc = unsafe { libc::ioctl(queue.fd.as_raw_fd(), libc::TUNSETQUEUE, &raw mut request) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
