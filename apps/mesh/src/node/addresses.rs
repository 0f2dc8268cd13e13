//! The addresses of this machine's interfaces.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::Instant;
use adit_runtime::clock::now;

/// How often the interfaces are read.
const INTERVAL: Duration = Duration::from_secs(5);

/// Watches the addresses at which others may reach this node.
#[derive(Debug)]
pub(super) struct OwnAddresses {
    port: u16,
    /// The mesh's own device.
    device: String,
    looked: Option<Instant>,
    last: Option<Vec<SocketAddr>>,
    /// All addresses of this machine.
    hosts: Vec<IpAddr>,
    hosts_are_new: bool,
}

impl OwnAddresses {
    pub(super) fn new(port: u16, device: String) -> Self {
        Self { port, device, looked: None, last: None, hosts: Vec::new(), hosts_are_new: false }
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
        let all = of_interfaces();
        let hosts: Vec<IpAddr> = all.iter().map(|(_, ip)| *ip).collect();
        if hosts != self.hosts {
            (self.hosts, self.hosts_are_new) = (hosts, true);
        }
        let mut found = usable(all, &self.device);
        found.retain(|ip| !inside.contains(ip));
        let found: Vec<SocketAddr> =
            found.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect();
        if self.last.as_ref() == Some(&found) {
            return None;
        }
        self.last = Some(found.clone());
        Some(found)
    }

    /// Returns all addresses of this machine if they have changed since the last call.
    pub(super) fn take_hosts(&mut self) -> Option<Vec<IpAddr>> {
        std::mem::take(&mut self.hosts_are_new).then(|| self.hosts.clone())
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
    let of_kernel = |file: &str| format!("/sys/class/net/{interface}/{file}");
    let kind = std::fs::read_to_string(of_kernel("type"));
    // TAP devices look like Ethernet otherwise.
    let is_tap = std::path::Path::new(&of_kernel("tun_flags")).exists();
    is_tap || kind.is_ok_and(|kind| kind.trim() == TUNNEL)
}

/// Returns the addresses of all interfaces, with the interfaces' names.
fn of_interfaces() -> Vec<(String, IpAddr)> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))?;
        Some((interface.interface_name, ip))
    });
    addresses.collect()
}

/// Returns the addresses of this machine that other machines can use, except those of a device and of tunnels.
pub(crate) fn usable_addresses(except: &str) -> Vec<IpAddr> {
    usable(of_interfaces(), except)
}

/// Returns the addresses that other machines can use, except those of a device and of tunnels.
fn usable(all: Vec<(String, IpAddr)>, except: &str) -> Vec<IpAddr> {
    let is_usable = |ip: IpAddr| adit_mesh::path::is_usable(SocketAddr::new(ip, 1));
    let of_others = all
        .into_iter()
        .filter(|(interface, ip)| interface != except && is_usable(*ip) && !is_tunnel(interface));
    let mut usable: Vec<IpAddr> = of_others.map(|(_, ip)| ip).collect();
    usable.sort();
    usable.dedup();
    usable
}
