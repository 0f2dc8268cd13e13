//! A device that one process opens for another.

use std::io;
use std::os::fd::OwnedFd;

use super::flow_queues::FlowQueues;
use super::{TunDevice, TunOffloads, TunQueue};

/// A [`TunDevice`] without its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunParts {
    /// The interface's name.
    pub name: String,
    /// The interface's index.
    pub ifindex: u32,
    /// The offloads in force.
    pub offloads: TunOffloads,
    /// The number of flow queues of each queue; 0 if it has none.
    pub flow_queues: Vec<usize>,
}

impl TunDevice {
    /// Disassembles the device: each queue's own descriptor, followed by those of its flow queues.
    pub fn into_parts(self) -> (TunParts, Vec<OwnedFd>) {
        let Self { name, ifindex, offloads, queues } = self;
        let mut flow_queues = Vec::new();
        let mut descriptors = Vec::new();
        for queue in queues {
            descriptors.push(queue.fd);
            let fds = queue.flow_queues.map(FlowQueues::into_fds).unwrap_or_default();
            flow_queues.push(fds.len());
            descriptors.extend(fds);
        }
        (TunParts { name, ifindex, offloads, flow_queues }, descriptors)
    }

    /// Returns the parts with duplicates of the descriptors, for a process that continues with the device.
    ///
    /// # Errors
    /// The process has no free descriptors.
    pub fn duplicate(&self) -> io::Result<(TunParts, Vec<OwnedFd>)> {
        let mut flow_queues = Vec::new();
        let mut descriptors = Vec::new();
        for queue in &self.queues {
            descriptors.push(queue.fd.try_clone()?);
            let fds = queue.flow_queues.as_ref().map(FlowQueues::fds).unwrap_or_default();
            flow_queues.push(fds.len());
            for fd in fds {
                descriptors.push(fd.try_clone()?);
            }
        }
        let parts = TunParts {
            name: self.name.clone(),
            ifindex: self.ifindex,
            offloads: self.offloads,
            flow_queues,
        };
        Ok((parts, descriptors))
    }

    /// Assembles a device.
    ///
    /// # Errors
    /// Parts and descriptors do not match, or the flow queues cannot be watched.
    pub fn from_parts(parts: TunParts, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let TunParts { name, ifindex, offloads, flow_queues } = parts;
        let mismatch =
            || io::Error::new(io::ErrorKind::InvalidData, "a device with other descriptors");
        let mut descriptors = descriptors.into_iter();
        let mut queues = Vec::new();
        for count in flow_queues {
            let fd = descriptors.next().ok_or_else(mismatch)?;
            let fds: Vec<OwnedFd> = descriptors.by_ref().take(count).collect();
            if fds.len() != count {
                return Err(mismatch());
            }
            let flow_queues = if fds.is_empty() { None } else { Some(FlowQueues::of(fds)?) };
            queues.push(TunQueue { fd, flow_queues });
        }
        if queues.is_empty() || descriptors.next().is_some() {
            return Err(mismatch());
        }
        Ok(Self { name, ifindex, offloads, queues })
    }
}
