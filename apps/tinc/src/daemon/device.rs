//! The device of a daemon: a TUN or TAP device, or none.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

use adit_linux::tun::{TunDevice, TunMode, TunOffloads, TunOptions, TunQueue, VNET_LEN};
use adit_runtime::driver::watch;
use adit_runtime::fault::Fault;
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
    open: Option<(TunQueue, AsyncFd<OwnedFd>)>,
}

impl Device {
    /// Opens the device that the configuration describes.
    pub(super) fn open(net: &Net, server: &ServerConfig) -> Result<Self, Fault> {
        let mode = match (server.device_type, server.mode) {
            (Some(DeviceType::Dummy), _) => {
                return Ok(Self { name: String::new(), open: None });
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
            offloads: TunOffloads::NONE,
            mode,
            ..TunOptions::default()
        };
        let device =
            TunDevice::open(&options).map_err(|error| Fault::environment(error.to_string()))?;
        let broken = |error: io::Error| Fault::environment(format!("the device: {error}"));
        let name = device.name;
        let queue = device.queues.into_iter().next();
        let queue = queue.ok_or_else(|| Fault::ours("the device has no queue"))?;
        let fd = queue.as_fd().try_clone_to_owned().map_err(broken)?;
        let watched = watch(fd, Interest::READABLE).map_err(broken)?;
        Ok(Self { name, open: Some((queue, watched)) })
    }

    /// Waits until there may be packets. Cancel-safe.
    pub(super) async fn readable(&self) {
        match &self.open {
            Some((_, watched)) => {
                if let Ok(mut ready) = watched.readable().await {
                    ready.clear_ready();
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Reads a packet. Returns its length, or `None` if there is none.
    pub(super) fn read(&self, packet: &mut [u8]) -> Option<usize> {
        let (queue, _) = self.open.as_ref()?;
        let mut header = [0; VNET_LEN];
        queue.read(&mut header, packet).ok().filter(|len| *len > 0)
    }

    /// Writes a packet with a header before it. Returns whether the kernel took it.
    pub(super) fn write(&self, header: &[u8], packet: &[u8]) -> bool {
        let Some((queue, _)) = &self.open else { return true };
        let parts = [IoSlice::new(&[0; VNET_LEN]), IoSlice::new(header), IoSlice::new(packet)];
        queue.write(&parts).is_ok()
    }
}
