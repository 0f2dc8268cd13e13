use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use adit_linux::tun::TunMode;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The device that carries the tunnel's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// A TUN device: `Some("tun3")`, or `None` for the next free `tunN`.
    Tun(Option<String>),
    /// A TAP device: `Some("tap3")`, or `None` for the next free `tapN`.
    Tap(Option<String>),
    /// `dev null`: packets are encrypted, decrypted and dropped.
    Null,
}

/// The settings of the host that a tunnel needs. They are plain data, because they cross a process boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlan {
    /// The device.
    pub device: Device,
    /// `tun-mtu`.
    pub mtu: u16,
    /// `lladdr`: the hardware address of a TAP device, or `None` for a random one from the kernel.
    pub mac: Option<[u8; 6]>,
    /// `txqueuelen`, or `None` for our default (1000): room for a whole train.
    pub tx_queue_len: Option<u32>,
    /// `shaper`: the maximum rate of packets into the tunnel, in bytes a second.
    pub rate: Option<u32>,
    /// The addresses of the device with their networks. Empty with `ifconfig-noexec`.
    pub addresses: Vec<IpNet>,
    /// The other end's address, which becomes the peer of the device's IPv4 address. In this case the device's address
    /// is a /32.
    pub far4: Option<std::net::Ipv4Addr>,
    /// The routes. Empty with `route-noexec`.
    pub routes: Vec<PlannedRoute>,
    /// `route-table`: the routing table of [`Self::routes`], or `None` for the main one.
    pub table: Option<u32>,
    /// `redirect-gateway`.
    pub redirect: Option<Redirect>,
    /// The server's address outside the tunnel. It must stay reachable through the old gateway.
    pub remote: Option<SocketAddr>,
    /// Whether a separate routing table implements `redirect-gateway`, instead of routes in the main one.
    pub policy: bool,
    /// With `policy`: traffic to private networks of this host stays outside the tunnel.
    pub allow_lan: bool,
    /// `block-ipv6`: IPv6 is unreachable while the tunnel is up.
    pub block_ipv6: bool,
    /// With `policy`: traffic cannot leave outside the tunnel after this process has ended for any reason.
    pub kill_switch: bool,
    /// The forwarding between the tunnel and this host's other networks, or `None` if the tunnel leaves it unchanged.
    pub forward: Option<Forward>,
    /// The DNS settings, or `None` if the host keeps its own.
    pub dns: Option<super::dns::DnsPlan>,
}

impl Device {
    /// Returns the device's kind and name; `None` for `dev null`.
    pub fn tun(&self) -> Option<(TunMode, Option<&str>)> {
        match self {
            Self::Tun(name) => Some((TunMode::Tun, name.as_deref())),
            Self::Tap(name) => Some((TunMode::Tap, name.as_deref())),
            Self::Null => None,
        }
    }

    /// Returns whether an interface can be this device, opened by another process. Without a configured name it is `tunN` or `tapN`, and
    /// exists. A process without privileges names it, so it must not be an interface of another kind.
    pub(super) fn may_be(&self, name: &str) -> bool {
        self.may_be_among(Path::new("/sys/class/net"), name)
    }

    fn may_be_among(&self, interfaces: &Path, name: &str) -> bool {
        match self.tun() {
            Some((_, Some(wanted))) => wanted == name,
            Some((mode, None)) => {
                let prefix = if mode == TunMode::Tap { "tap" } else { "tun" };
                let number = name.strip_prefix(prefix).unwrap_or_default();
                !number.is_empty()
                    && number.bytes().all(|digit| digit.is_ascii_digit())
                    && interfaces.join(name).join("tun_flags").exists()
            }
            None => false,
        }
    }

    /// Returns whether the device carries Ethernet frames.
    pub fn is_ethernet(&self) -> bool {
        matches!(self, Self::Tap(_))
    }
}

impl HostPlan {
    /// Returns the part of the plan that is in force while `up` runs, before routes are added. With a kill switch it is
    /// the whole plan, so that no traffic leaves outside the tunnel meanwhile.
    #[must_use]
    pub fn before_routes(&self) -> Self {
        if self.kill_switch {
            return self.clone();
        }
        Self {
            routes: Vec::new(),
            redirect: None,
            block_ipv6: false,
            forward: None,
            dns: None,
            ..self.clone()
        }
    }
}

impl Default for HostPlan {
    fn default() -> Self {
        Self {
            device: Device::Tun(None),
            mtu: 1500,
            mac: None,
            tx_queue_len: None,
            rate: None,
            addresses: Vec::new(),
            far4: None,
            routes: Vec::new(),
            table: None,
            redirect: None,
            remote: None,
            policy: false,
            allow_lan: false,
            block_ipv6: false,
            kill_switch: false,
            forward: None,
            dns: None,
        }
    }
}

/// The forwarding between a tunnel and the networks of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// The networks behind this host.
    pub networks: Vec<IpNet>,
    /// Whether packets to the internet are forwarded as well, but not those to other private networks.
    pub internet: bool,
    /// Networks in the tunnel whose packets leave with this host's address.
    pub masquerade: Vec<IpNet>,
    /// Destinations for which they keep their own addresses, because there are routes back.
    #[serde(default)]
    pub untranslated: Vec<IpNet>,
}

impl Forward {
    /// Returns whether IPv4 and IPv6 are forwarded.
    pub(super) fn families(&self) -> (bool, bool) {
        let any = |v6| self.networks.iter().any(|net| net.addr().is_ipv6() == v6);
        (self.internet || any(false), self.internet || any(true))
    }
}

/// A route to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRoute {
    /// The destination.
    pub net: IpNet,
    /// The way to the destination.
    pub via: Via,
    /// The priority of the route, or `None` for the kernel's default.
    pub metric: Option<u32>,
}

/// The next hop of a [`PlannedRoute`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Via {
    /// The tunnel device, through this gateway inside the tunnel if there is one.
    Tunnel(Option<IpAddr>),
    /// `net_gateway`: the gateway that the default route had before the tunnel.
    Outside,
    /// Another gateway, on the interface that the kernel finds for it.
    Gateway(IpAddr),
}

/// `redirect-gateway`: send everything through the tunnel.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// Redirect IPv4 (unless `!ipv4`).
    pub ipv4: bool,
    /// `ipv6`: redirect IPv6.
    pub ipv6: bool,
    /// `def1`: add routes to the two halves of the address space instead of replacing the default route.
    pub def1: bool,
    /// `local`: the server is on the same link and needs no host route.
    pub local: bool,
    /// `autolocal`: detect whether the server is on the same link.
    pub autolocal: bool,
    /// `bypass-dhcp`: a host route to the DHCP server. It is accepted without effect, because Linux does not provide
    /// that address.
    pub bypass_dhcp: bool,
    /// `bypass-dns`: host routes to the DNS servers. It is accepted without effect.
    pub bypass_dns: bool,
    /// `block-local`: no direct access to the local networks.
    pub block_local: bool,
    /// `redirect-private`: only the host route to the server and `block-local`.
    pub private: bool,
    /// The gateway inside the tunnel, for IPv4 routes.
    pub gateway4: Option<std::net::Ipv4Addr>,
}

impl Redirect {
    /// Combines both sets of flags.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            // IPv4 is redirected by default, so `!ipv4` takes effect if either side sets it.
            ipv4: other.ipv4 && (self.ipv4 || self == Self::default()),
            ipv6: self.ipv6 || other.ipv6,
            def1: self.def1 || other.def1,
            local: self.local || other.local,
            autolocal: self.autolocal || other.autolocal,
            bypass_dhcp: self.bypass_dhcp || other.bypass_dhcp,
            bypass_dns: self.bypass_dns || other.bypass_dns,
            block_local: self.block_local || other.block_local,
            private: (self.private || self == Self::default()) && other.private,
            gateway4: other.gateway4.or(self.gateway4),
        }
    }

    /// Parses the flags of a configured or pushed `redirect-gateway`.
    ///
    /// # Errors
    /// Returns the first flag that does not exist.
    pub fn parse<'a>(flags: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut redirect = Self { ipv4: true, ..Self::default() };
        for flag in flags {
            match flag {
                "def1" => redirect.def1 = true,
                "local" => redirect.local = true,
                "autolocal" => redirect.autolocal = true,
                "bypass-dhcp" => redirect.bypass_dhcp = true,
                "bypass-dns" => redirect.bypass_dns = true,
                "block-local" => redirect.block_local = true,
                "ipv6" => redirect.ipv6 = true,
                "!ipv4" => redirect.ipv4 = false,
                "" => {}
                other => return Err(format!("redirect-gateway has no flag '{other}'")),
            }
        }
        Ok(redirect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_the_kernel_named_is_taken_over_without_a_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["tun3", "tap3", "tun", "tunnel0", "vpn"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("tun_flags"), "0x1001").unwrap();
        }
        std::fs::create_dir(dir.path().join("tun4")).unwrap();
        let may_be = |device: &Device, name| device.may_be_among(dir.path(), name);
        assert!(may_be(&Device::Tun(None), "tun3") && may_be(&Device::Tap(None), "tap3"));
        assert!(may_be(&Device::Tun(Some("vpn".into())), "vpn"));
        // Of the other kind, not numbered, no TUN device, missing, another name.
        for name in ["tap3", "tun", "tunnel0", "tun4", "tun5", "vpn"] {
            assert!(!may_be(&Device::Tun(None), name), "{name}");
        }
        assert!(!may_be(&Device::Tun(Some("vpn".into())), "tun3"));
        assert!(!may_be(&Device::Null, "tun3"));
    }

    #[test]
    fn routes_wait_for_up_but_a_kill_switch_does_not() {
        let plan = HostPlan {
            addresses: vec!["10.8.0.2/24".parse().unwrap()],
            routes: vec![PlannedRoute {
                net: "10.9.0.0/16".parse().unwrap(),
                via: Via::Tunnel(None),
                metric: None,
            }],
            redirect: Some(Redirect::default()),
            remote: Some("192.0.2.1:1194".parse().unwrap()),
            block_ipv6: true,
            ..HostPlan::default()
        };
        let before = plan.before_routes();
        assert!(before.routes.is_empty() && before.redirect.is_none() && !before.block_ipv6);
        assert_eq!((&before.addresses, before.remote), (&plan.addresses, plan.remote));
        let guarded = HostPlan { kill_switch: true, policy: true, ..plan };
        assert_eq!(guarded.before_routes(), guarded);
    }
}
