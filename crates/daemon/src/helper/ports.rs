//! Ports of a bridge, opened by the helper and moved by the network process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use adit_bridge::{Port, PortSpec, Side};
use adit_linux::tun::{TunDevice, TunOffloads, TunParts};

use super::protocol::{OpenedDevice, PortSide};

/// A port without its descriptors, and these.
///
/// # Errors
/// No descriptor is free.
pub(super) fn hand_over(port: &Port) -> io::Result<(OpenedDevice, Vec<OwnedFd>)> {
    let TunOffloads { csum, tso, uso } = port.offloads;
    let opened = OpenedDevice {
        name: port.name.clone(),
        index: port.index,
        offloads: [csum, tso, uso],
        flow_queues: vec![0; port.queues.len()],
    };
    let descriptors = port.queues.iter().map(|queue| queue.as_fd().try_clone_to_owned());
    Ok((opened, descriptors.collect::<io::Result<_>>()?))
}

/// Puts a port together again. Takes its descriptors from the front.
///
/// # Errors
/// Parts and descriptors do not match.
pub(crate) fn take_over(
    spec: &PortSpec,
    opened: OpenedDevice,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> io::Result<Port> {
    let OpenedDevice { name, index, offloads: [csum, tso, uso], flow_queues } = opened;
    let own: Vec<OwnedFd> = descriptors.take(flow_queues.len()).collect();
    if own.len() != flow_queues.len() || own.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a port with other descriptors"));
    }
    match spec {
        PortSpec::Existing(_) => {
            Ok(Port::of_sockets(name, index, own.into_iter().map(Into::into).collect()))
        }
        PortSpec::Tap(_) => {
            let offloads = TunOffloads { csum, tso, uso };
            TunDevice::from_parts(TunParts { name, ifindex: index, offloads, flow_queues }, own)
                .map(Port::from)
        }
    }
}

impl From<Side> for PortSide {
    fn from(side: Side) -> Self {
        match side {
            Side::A => Self::A,
            Side::B => Self::B,
        }
    }
}

impl From<PortSide> for Side {
    fn from(side: PortSide) -> Self {
        match side {
            PortSide::A => Self::A,
            PortSide::B => Self::B,
        }
    }
}
