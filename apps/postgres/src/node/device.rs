//! The TUN device within a tokio runtime.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

use adit_linux::tun::{TunOffloads, TunQueue, VNET_LEN};
use adit_wire::VnetHeader;
use adit_wire::merge::{Merger, Write};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use adit_runtime::driver::watch;

/// The maximum length of a super-packet.
const LONGEST: usize = 65_536;

/// The number of packets read in one turn. The runtime has one thread, which the reader of the database also needs.
pub(super) const READ_TURN: usize = 32;

/// An open device.
#[derive(Debug)]
pub(super) struct Device {
    queue: TunQueue,
    /// Reports when packets can be read.
    watched: AsyncFd<OwnedFd>,
    offloads: TunOffloads,
}

/// The numbers of packets that were written to the device or dropped.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeliveryCounts {
    /// The number of packets that the kernel accepted.
    pub(super) packets: u64,
    /// The number of bytes in these packets.
    pub(super) bytes: u64,
    /// The number of packets that the kernel refused, because the interface is down or its queue is full.
    pub(super) refused: u64,
}

impl Device {
    /// Opens the device. Call it inside a runtime.
    pub(super) fn new(queue: TunQueue, offloads: TunOffloads) -> io::Result<Self> {
        let watched = watch(queue.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Self { queue, watched, offloads })
    }

    /// Waits for packets and passes up to [`READ_TURN`] of them to `take`, each with the work that the kernel left to us.
    ///
    /// # Errors
    /// Fails if the device no longer exists.
    pub(super) async fn read(
        &self,
        buffer: &mut ReadBuffer,
        mut take: impl FnMut(VnetHeader, &mut [u8]),
    ) -> io::Result<usize> {
        loop {
            let mut ready = self.watched.readable().await?;
            let mut count = 0;
            while count < READ_TURN {
                match self.queue.read(&mut buffer.vnet, &mut buffer.bytes) {
                    Ok(len) => {
                        count += 1;
                        let vnet = VnetHeader::decode(&buffer.vnet);
                        if let Some(packet) = buffer.bytes.get_mut(..len) {
                            take(vnet, packet);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready.clear_ready();
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            if count > 0 {
                return Ok(count);
            }
        }
    }

    /// Writes packets to the kernel. Adjacent packets of a flow are merged if the kernel accepts that.
    pub(super) fn write<'a>(&self, packets: impl Iterator<Item = &'a [u8]>) -> DeliveryCounts {
        let mut merger = Merger::new(self.offloads.tso, self.offloads.uso);
        packets.for_each(|packet| merger.push(packet));
        let mut delivered = DeliveryCounts::default();
        for write in merger.writes() {
            self.write_merged(&write, &mut delivered);
        }
        delivered
    }

    fn write_merged(&self, write: &Write<'_, '_>, delivered: &mut DeliveryCounts) {
        let mut parts: Vec<IoSlice<'_>> = Vec::with_capacity(write.count().saturating_add(2));
        parts.push(IoSlice::new(write.vnet()));
        if !write.header().is_empty() {
            parts.push(IoSlice::new(write.header()));
        }
        parts.extend(write.bodies().map(IoSlice::new));
        let (count, len) = (write.count() as u64, write.len() as u64);
        match self.queue.write(&parts) {
            Ok(_) => {
                delivered.packets += count;
                delivered.bytes += len;
            }
            // Kernels between 6.1.103 and 6.10.3 refuse merged packets but accept single ones.
            Err(error) if count > 1 && error.raw_os_error() == Some(nix::libc::EINVAL) => {
                for packet in write.packets() {
                    self.write_plain(packet, delivered);
                }
            }
            Err(_) => delivered.refused += count,
        }
    }

    fn write_plain(&self, packet: &[u8], delivered: &mut DeliveryCounts) {
        let plain = [0; VNET_LEN];
        match self.queue.write(&[IoSlice::new(&plain), IoSlice::new(packet)]) {
            Ok(_) => {
                delivered.packets += 1;
                delivered.bytes += packet.len() as u64;
            }
            Err(_) => delivered.refused += 1,
        }
    }
}

/// The buffer into which packets are read.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    vnet: [u8; VNET_LEN],
    bytes: Vec<u8>,
}

impl ReadBuffer {
    pub(super) fn new() -> Self {
        Self { vnet: [0; VNET_LEN], bytes: vec![0; LONGEST] }
    }
}
