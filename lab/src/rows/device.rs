//! A TUN device without offloads.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use adit_linux::net::{Address, Net};
use adit_linux::tun::{TunDevice, TunOffloads, TunOptions, TunQueue};
use adit_testbed::failure::{Context, Result};
use adit_wire::VnetHeader;
use tokio::io::unix::AsyncFd;

/// The size of the largest packet. The original's 2,000 bytes would not suffice for a device with adit's MTU.
const LARGEST: usize = 8000;

struct Queue(TunQueue);

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// A device that reads and writes one packet per call.
pub(super) struct Device(AsyncFd<Queue>);

impl Device {
    pub(super) async fn open(name: &str, address: ipnet::Ipv4Net, mtu: u32) -> Result<Self> {
        let options = TunOptions {
            name: Some(name.to_owned()),
            offloads: TunOffloads::NONE,
            ..TunOptions::default()
        };
        let tun = TunDevice::open(&options).context("the TUN device")?;
        let net = Net::open()?;
        net.set_mtu(tun.ifindex, mtu).await.context("setting the MTU")?;
        let address = Address::new(tun.ifindex, address.into());
        net.add_address(&address).await.context("adding an address")?;
        net.set_up(tun.ifindex).await.context("switching the device on")?;
        let queue = tun.queues.into_iter().next().context("a TUN device without a queue")?;
        // tokio deprecates the safe constructor since a type could return a different descriptor each time; a queue
        // always returns the same one.
        #[allow(deprecated)]
        let ready = AsyncFd::new(Queue(queue))?;
        Ok(Self(ready))
    }

    /// Reads the next packet.
    pub(super) async fn read(&self) -> Result<Vec<u8>> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut packet = vec![0; LARGEST];
            let read =
                ready.try_io(|fd| fd.get_ref().0.read(&mut [0; VnetHeader::LEN], &mut packet));
            if let Ok(length) = read {
                packet.truncate(length?);
                return Ok(packet);
            }
        }
    }

    /// Hands a packet to the kernel. If the device is down, the packet is lost, as on a cable.
    pub(super) fn write(&self, packet: &[u8]) {
        let header = [0; VnetHeader::LEN];
        let _: io::Result<usize> =
            self.0.get_ref().0.write(&[IoSlice::new(&header), IoSlice::new(packet)]);
    }
}
