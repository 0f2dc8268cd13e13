//! The device of a daemon: a TUN or TAP device, or none.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

use adit_linux::tun::{TunDevice, TunMode, TunOffloads, TunOptions, TunParts, TunQueue, VNET_LEN};
use adit_runtime::driver::watch;
use adit_runtime::fault::Fault;
use adit_runtime::plane_backend::tun_offloads;
use adit_runtime::worker_count;
use adit_tinc::config::{DeviceType, Mode, ServerConfig};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::net::Net;

/// Length of the longest packet that is read, bytes.
pub(super) const MAX_PACKET: usize = 64 * 1024;

/// The name of the device if neither the configuration nor the net has one.
const DEFAULT_NAME: &str = "tinc";

/// A device.
pub(super) struct Device {
    /// The name; empty if there is no device.
    pub(super) name: String,
    queue: Option<TunQueue>,
    /// `None` if the data plane reads the device, or there is none.
    watched: Option<AsyncFd<OwnedFd>>,
    tun: Option<TunDevice>,
}

/// Returns the number of workers of the data plane. `None` if the packets need the router of this process: in hub mode, if only the device has
/// frames, or if the TTL is decremented.
pub(super) fn workers(server: &ServerConfig) -> Result<Option<u16>, Fault> {
    let needed = match server.mode {
        Mode::Router => DeviceType::Tun,
        Mode::Switch => DeviceType::Tap,
        Mode::Hub => return Ok(None),
    };
    if server.device_type.is_some_and(|kind| kind != needed) || server.decrement_ttl {
        return Ok(None);
    }
    worker_count::of_server(None, None).map(Some)
}

impl Device {
    /// Opens the device that the configuration describes, for a data plane with this number of workers if there is one.
    pub(super) fn open(
        net: &Net,
        server: &ServerConfig,
        workers: Option<u16>,
    ) -> Result<Self, Fault> {
        let mode = match (server.device_type, server.mode) {
            (Some(DeviceType::Dummy), _) => {
                return Ok(Self { name: String::new(), queue: None, watched: None, tun: None });
            }
            (Some(DeviceType::Tap), _) | (None, Mode::Switch | Mode::Hub) => TunMode::Tap,
            (Some(DeviceType::Tun), Mode::Router) | (None, Mode::Router) => TunMode::Tun,
            (Some(DeviceType::Tun), Mode::Switch | Mode::Hub) => {
                return Err(Fault::operator(
                    "DeviceType: a tun device has no frames, which Mode switch and hub need: write DeviceType = tap",
                ));
            }
        };
        let name = server.interface.clone().or_else(|| net.name.clone());
        let options = TunOptions {
            name: Some(name.unwrap_or_else(|| DEFAULT_NAME.to_owned())),
            offloads: workers.map_or(TunOffloads::NONE, |_| tun_offloads()),
            queues: workers.unwrap_or(1).into(),
            mode,
            ..TunOptions::default()
        };
        let device =
            TunDevice::open(&options).map_err(|error| Fault::environment(error.to_string()))?;
        let broken = |error: io::Error| Fault::environment(format!("the device: {error}"));
        if workers.is_some() {
            let copy = duplicate(&device).map_err(broken)?;
            let queue = copy.queues.into_iter().next();
            return Ok(Self { name: copy.name, queue, watched: None, tun: Some(device) });
        }
        let name = device.name;
        let queue = device.queues.into_iter().next();
        let queue = queue.ok_or_else(|| Fault::ours("the device has no queue"))?;
        let fd = queue.as_fd().try_clone_to_owned().map_err(broken)?;
        let watched = Some(watch(fd, Interest::READABLE).map_err(broken)?);
        Ok(Self { name, queue: Some(queue), watched, tun: None })
    }

    /// Takes the device for the data plane, if it is for one. Packets can still be written.
    pub(super) fn take_tun(&mut self) -> Option<TunDevice> {
        self.tun.take()
    }

    /// Waits until there may be packets. Cancel-safe.
    pub(super) async fn readable(&self) {
        match &self.watched {
            Some(watched) => {
                if let Ok(mut ready) = watched.readable().await {
                    ready.clear_ready();
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Reads a packet. Returns its length, or `None` if there is none.
    pub(super) fn read(&self, packet: &mut [u8]) -> Option<usize> {
        let queue = self.queue.as_ref().filter(|_| self.watched.is_some())?;
        let mut header = [0; VNET_LEN];
        queue.read(&mut header, packet).ok().filter(|len| *len > 0)
    }

    /// Writes a packet with a header before it. Returns whether the kernel took it.
    pub(super) fn write(&self, header: &[u8], packet: &[u8]) -> bool {
        let Some(queue) = &self.queue else { return true };
        let parts = [IoSlice::new(&[0; VNET_LEN]), IoSlice::new(header), IoSlice::new(packet)];
        queue.write(&parts).is_ok()
    }
}

/// Returns another descriptor of a device's first queue.
fn duplicate(device: &TunDevice) -> io::Result<TunDevice> {
    let (parts, descriptors) = device.duplicate()?;
    let parts = TunParts { flow_queues: vec![0], ..parts };
    TunDevice::from_parts(parts, descriptors.into_iter().take(1).collect())
}
