//! The addresses of this machine's interfaces.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::Instant;
use adit_runtime::clock::now;

/// The interval at which the interfaces are read.
const INTERVAL: Duration = Duration::from_secs(5);

/// Watches the addresses at which others may reach this node.
#[derive(Debug)]
pub(super) struct OwnAddresses {
    port: u16,
    /// The mesh's own device.
    device: String,
    looked: Option<Instant>,
    last: Option<Vec<SocketAddr>>,
}

impl OwnAddresses {
    pub(super) fn new(port: u16, device: String) -> Self {
        Self { port, device, looked: None, last: None }
    }

    /// Returns the node's UDP port.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns all addresses if they have changed since the last call. `inside` are this node's addresses in the mesh.
    pub(super) fn changed(&mut self, inside: &[IpAddr]) -> Option<Vec<SocketAddr>> {
        let now = now();
        if self.looked.is_some_and(|at| now.since(at) < INTERVAL) {
            return None;
        }
        self.looked = Some(now);
        let mut found = of_interfaces(&self.device);
        found.retain(|ip| !inside.contains(ip));
        let found: Vec<SocketAddr> =
            found.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect();
        if self.last.as_ref() == Some(&found) {
            return None;
        }
        self.last = Some(found.clone());
        Some(found)
    }

    /// Returns the addresses that were last read.
    pub(super) fn current(&self) -> &[SocketAddr] {
        self.last.as_deref().unwrap_or_default()
    }
}

/// The kind of TUN and WireGuard devices (`ARPHRD_NONE`), as the kernel shows it.
const TUNNEL: &str = "65534";

/// Returns whether an interface is a tunnel, through which other nodes are reached more slowly than outside it.
fn is_tunnel(interface: &str) -> bool {
    let kind = std::fs::read_to_string(format!("/sys/class/net/{interface}/type"));
    kind.is_ok_and(|kind| kind.trim() == TUNNEL)
}

/// Returns the addresses that other machines can use, except those of `device` and of tunnels.
fn of_interfaces(except: &str) -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let of_others = interfaces.filter(|interface| {
        interface.interface_name != except && !is_tunnel(&interface.interface_name)
    });
    let addresses = of_others.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    });
    let mut usable: Vec<IpAddr> =
        addresses.filter(|ip| adit_mesh::path::is_usable(SocketAddr::new(*ip, 1))).collect();
    usable.sort();
    usable.dedup();
    usable
}
