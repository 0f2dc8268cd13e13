//! A laptop and its surroundings in namespaces: two access networks behind NAT, a VPN server, and a host that logs
//! each request with its source address.
//!
//! ```text
//!   vps                     outside: web 192.0.2.80, 2001:db8:4::80
//!   203.0.113.7                      public resolver 192.0.2.53
//!   2001:db8:7::7                    the VPN's resolver 192.0.2.54
//!        │                      │
//!        └───────── internet ───┘       (routes, and nothing else)
//!                   │      │
//!       198.51.100.10      198.51.100.20, 2001:db8:20::2
//!             home, NAT    cafe, NAT for IPv4, IPv6 routed
//!       192.168.1.1 │      │ 192.168.2.1, 2001:db8:30::1     └── 192.168.3.1 ── phone (on request)
//!              eth0 │      │ eth1
//!                   └laptop┘
//! ```
//!
//! Home has IPv4 only; the café has both families. The laptop's interfaces are down at first. [`Internet::join`] does
//! the work of a DHCP client and the kernel's router discovery, by `ip` and a new resolv.conf. Each of `vps`,
//! `laptop` and `phone` has a separate /etc, /run and /var/lib.

mod probe;
mod services;
mod state;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

pub use probe::{Answer, Probe};
pub use services::{Query, Transport, Visit};
pub use state::HostState;

use crate::failure::{Context, Result};
use crate::net::{Namespace, ip, wait_for_carriers};
use crate::process::{output, run_with_input};
use services::{Log, Service};

/// The VPN server's address. It is also the source address of its clients' traffic.
pub const VPS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// The VPN server's IPv6 address.
pub const VPS6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 7);
/// The host outside. It answers each request with the request's source address.
pub const WEB: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
/// The IPv6 address of the host outside.
pub const WEB6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 4, 0, 0, 0, 0, 0x80);
/// A resolver outside the local networks. Both access networks may assign it.
pub const PUBLIC_RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
/// The resolver that the VPN server pushes.
pub const VPN_RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 54);
/// The VPN server's name with an IPv4 address only. Every other name under `example` belongs to the host outside.
pub const VPN_NAME: &str = "vpn.example";
/// The VPN server's name with addresses of both families.
pub const VPN_NAME6: &str = "vpn6.example";

/// An access network of the laptop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `eth0`: 192.168.1.0/24, IPv4 only.
    Home,
    /// `eth1`: 192.168.2.0/24 and 2001:db8:30::/64.
    Cafe,
}

impl Access {
    /// Returns the laptop's interface in this network.
    pub fn interface(self) -> &'static str {
        match self {
            Self::Home => "eth0",
            Self::Cafe => "eth1",
        }
    }

    /// Returns the router's address on the local network, which is also its resolver's.
    pub fn router(self) -> Ipv4Addr {
        Ipv4Addr::new(192, 168, self.number(), 1)
    }

    /// Returns the first address that the laptop is assigned.
    pub fn lease(self) -> Ipv4Addr {
        Ipv4Addr::new(192, 168, self.number(), 50)
    }

    /// Returns the router's outer address, which is the source address of the laptop's traffic.
    pub fn outside(self) -> Ipv4Addr {
        match self {
            Self::Home => Ipv4Addr::new(198, 51, 100, 10),
            Self::Cafe => Ipv4Addr::new(198, 51, 100, 20),
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Home => 1,
            Self::Cafe => 2,
        }
    }
}

/// The laptop's IPv6 address at the café.
pub const LAPTOP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x30, 0, 0, 0, 0, 0x50);

/// The resolver that the access networks assign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolver {
    /// The router's own resolver. It forwards to [`PUBLIC_RESOLVER`].
    Router,
    /// [`PUBLIC_RESOLVER`] itself.
    Outside,
}

/// The namespaces, the services in them, and the requests that these have logged.
#[derive(Debug)]
pub struct Internet {
    /// The laptop's namespace.
    pub laptop: Namespace,
    /// The VPN server's namespace.
    pub vps: Namespace,
    home: Namespace,
    cafe: Namespace,
    folder: PathBuf,
    resolver: Resolver,
    log: Log,
    // Declared before the namespaces, so that services end before the names of their namespaces are removed.
    _services: Vec<Service>,
    outside: Namespace,
    _internet: Namespace,
}

impl Internet {
    /// Builds the namespaces and starts the services; `folder` must not be used by another scene.
    ///
    /// # Errors
    /// `ip`, `nft` or the kernel refused.
    pub fn new(folder: &Path, resolver: Resolver) -> Result<Self> {
        let labels = ["laptop", "vps", "home", "cafe", "outside", "internet"];
        let [mut laptop, mut vps, home, cafe, outside, internet] =
            Namespace::several(&labels)?.try_into().map_err(|_| "six namespaces were asked for")?;
        connect(1, (&internet, "vps"), (&vps, "eth0"))?;
        connect(2, (&internet, "outside"), (&outside, "eth0"))?;
        connect(3, (&internet, "home"), (&home, "wan"))?;
        connect(4, (&internet, "cafe"), (&cafe, "wan"))?;
        connect(5, (&home, "lan"), (&laptop, Access::Home.interface()))?;
        connect(6, (&cafe, "lan"), (&laptop, Access::Cafe.interface()))?;
        for space in [&laptop, &vps, &home, &cafe, &outside, &internet] {
            quiet(space)?;
        }
        address(&internet, INTERNET)?;
        address(&vps, &[("eth0", "203.0.113.7/24"), ("eth0", "2001:db8:7::7/64")])?;
        address(&outside, OUTSIDE)?;
        address(&home, &[("wan", "198.51.100.10/28"), ("lan", "192.168.1.1/24")])?;
        address(&cafe, CAFE)?;
        routes(&vps, &["default via 203.0.113.1", "default via 2001:db8:7::1"])?;
        routes(&outside, &["default via 192.0.2.1", "default via 2001:db8:4::1"])?;
        routes(&internet, &["2001:db8:30::/64 via 2001:db8:20::2"])?;
        routes(&home, &["default via 198.51.100.1"])?;
        routes(&cafe, &["default via 198.51.100.17", "default via 2001:db8:20::1"])?;
        for space in [&internet, &home, &cafe] {
            forward(space)?;
        }
        for router in [&home, &cafe] {
            masquerade(router, "wan")?;
        }
        wait_for_carriers(&[&internet, &vps, &outside])?;
        for (space, name) in [(&mut laptop, "laptop-etc"), (&mut vps, "vps-etc")] {
            let etc = own_etc(&folder.join(name))?;
            space.separate_files(&etc)?;
        }
        let log = Log::default();
        let services = services::start(&outside, &home, &cafe, &log)?;
        Ok(Self {
            laptop,
            vps,
            home,
            cafe,
            folder: folder.to_owned(),
            resolver,
            log,
            _services: services,
            outside,
            _internet: internet,
        })
    }

    /// Connects the laptop to an access network, as a DHCP client and router discovery do.
    ///
    /// # Errors
    /// `ip` refused.
    pub fn join(&self, access: Access) -> Result<()> {
        self.lease(access, access.lease())
    }

    /// Connects the laptop with another address from DHCP; the previous one is removed.
    ///
    /// # Errors
    /// `ip` refused.
    pub fn lease(&self, access: Access, address: Ipv4Addr) -> Result<()> {
        let (device, router) = (access.interface(), access.router());
        let mut lines = vec![
            format!("link set {device} up"),
            format!("address flush dev {device} to 192.168.0.0/16"),
            format!("address add {address}/24 dev {device}"),
            format!("route replace default via {router} dev {device}"),
        ];
        if access == Access::Cafe {
            lines.push(format!("address replace {LAPTOP6}/64 dev {device} nodad"));
            lines.push(format!("route replace default via fe80::1 dev {device}"));
        }
        ip(Some(&self.laptop), lines.into_iter())?;
        wait_for_carriers(&[&self.laptop])?;
        self.write_resolv_conf(&self.resolver(access).to_string())
    }

    /// Disconnects the laptop from an access network. The interface goes down and loses its addresses.
    ///
    /// # Errors
    /// `ip` refused.
    pub fn leave(&self, access: Access) -> Result<()> {
        let device = access.interface();
        let lines = [format!("link set {device} down"), format!("address flush dev {device}")];
        ip(Some(&self.laptop), lines.into_iter())
    }

    /// Switches the laptop's interface off, or on again with the default route, as NetworkManager restores it. The
    /// address stays, and resolv.conf is not rewritten.
    ///
    /// # Errors
    /// `ip` refused.
    pub fn switch(&self, access: Access, on: bool) -> Result<()> {
        let (device, router) = (access.interface(), access.router());
        if !on {
            return ip(Some(&self.laptop), [format!("link set {device} down")].into_iter());
        }
        let mut lines = vec![
            format!("link set {device} up"),
            format!("route replace default via {router} dev {device}"),
        ];
        if access == Access::Cafe {
            lines.push(format!("address replace {LAPTOP6}/64 dev {device} nodad"));
            lines.push(format!("route replace default via fe80::1 dev {device}"));
        }
        ip(Some(&self.laptop), lines.into_iter())?;
        wait_for_carriers(&[&self.laptop])
    }

    /// Removes the carrier from the laptop's interface, or restores it, by setting the router's end of the veth pair
    /// down or up.
    ///
    /// # Errors
    /// `ip` refused.
    pub fn switch_carrier(&self, access: Access, on: bool) -> Result<()> {
        let state = if on { "up" } else { "down" };
        ip(Some(self.router(access)), [format!("link set lan {state}")].into_iter())?;
        if on { wait_for_carriers(&[&self.laptop]) } else { Ok(()) }
    }

    /// Returns the resolver that an access network assigns.
    pub fn resolver(&self, access: Access) -> Ipv4Addr {
        match self.resolver {
            Resolver::Router => access.router(),
            Resolver::Outside => PUBLIC_RESOLVER,
        }
    }

    /// Replaces the laptop's resolv.conf, as dhclient does.
    fn write_resolv_conf(&self, resolver: &str) -> Result<()> {
        let (path, new) = (self.resolv_conf_path(), self.folder.join("laptop-etc/resolv.conf.new"));
        fs::write(
            &new,
            format!("# from DHCP\nnameserver {resolver}\noptions timeout:1 attempts:2\n"),
        )?;
        Ok(fs::rename(new, path)?)
    }

    fn resolv_conf_path(&self) -> PathBuf {
        self.folder.join("laptop-etc/resolv.conf")
    }

    /// Returns the laptop's /etc/resolv.conf.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn resolv_conf(&self) -> Result<String> {
        // Read inside the laptop, because a program may have replaced it with a link into the laptop's /run.
        self.laptop.run("cat", &["/etc/resolv.conf"])
    }

    /// Resolves a name as the laptop's programs do; `None` if there is no answer.
    pub fn resolve(&self, name: &str) -> Option<IpAddr> {
        let listing = self.laptop.run("getent", &["ahostsv4", name]).ok()?;
        listing.split_whitespace().next()?.parse().ok()
    }

    /// Returns a sender of requests from the laptop.
    pub fn probe(&self) -> Probe<'_> {
        Probe::new(&self.laptop)
    }

    /// Returns all requests so far that reached the host outside, or a router's local address.
    pub fn visits(&self) -> Vec<Visit> {
        self.log.visits()
    }

    /// Returns all queries so far that reached the resolvers outside for names that contain `part`.
    pub fn queries(&self, part: &str) -> Vec<Query> {
        self.log.queries().into_iter().filter(|query| query.name.contains(part)).collect()
    }

    /// Adds a phone in a third local network, behind the café's NAT, with this lease and the public resolver.
    ///
    /// # Errors
    /// `ip` refused.
    pub fn phone(&self) -> Result<Namespace> {
        let mut phone = Namespace::new("phone")?;
        connect(7, (&self.cafe, "lan2"), (&phone, "wlan0"))?;
        quiet(&phone)?;
        address(&self.cafe, &[("lan2", "192.168.3.1/24")])?;
        address(&phone, &[("wlan0", "192.168.3.60/24")])?;
        routes(&phone, &["default via 192.168.3.1"])?;
        wait_for_carriers(&[&phone])?;
        let etc = own_etc(&self.folder.join("phone-etc"))?;
        fs::write(etc.join("resolv.conf"), format!("nameserver {PUBLIC_RESOLVER}\n"))?;
        phone.separate_files(&etc)?;
        Ok(phone)
    }

    /// Makes the server's host forward and masquerade, for a server that does not set this up itself.
    ///
    /// # Errors
    /// `nft` refused.
    pub fn share_vps(&self) -> Result<()> {
        forward(&self.vps)?;
        masquerade(&self.vps, "eth0")
    }

    /// Returns the namespace of the host outside.
    pub fn outside(&self) -> &Namespace {
        &self.outside
    }

    /// Returns the router of an access network.
    pub fn router(&self, access: Access) -> &Namespace {
        match access {
            Access::Home => &self.home,
            Access::Cafe => &self.cafe,
        }
    }
}

const INTERNET: &[(&str, &str)] = &[
    ("vps", "203.0.113.1/24"),
    ("vps", "2001:db8:7::1/64"),
    ("outside", "192.0.2.1/24"),
    ("outside", "2001:db8:4::1/64"),
    ("home", "198.51.100.1/28"),
    ("cafe", "198.51.100.17/28"),
    ("cafe", "2001:db8:20::1/64"),
];

const OUTSIDE: &[(&str, &str)] = &[
    ("eth0", "192.0.2.80/24"),
    ("eth0", "192.0.2.53/24"),
    ("eth0", "192.0.2.54/24"),
    ("eth0", "2001:db8:4::80/64"),
];

const CAFE: &[(&str, &str)] = &[
    ("wan", "198.51.100.20/28"),
    ("wan", "2001:db8:20::2/64"),
    ("lan", "192.168.2.1/24"),
    ("lan", "2001:db8:30::1/64"),
    ("lan", "fe80::1/64"),
];

/// Creates a veth pair between two interfaces, both down. `number` is unique among the veth pairs of a scene.
fn connect(number: u32, near: (&Namespace, &str), far: (&Namespace, &str)) -> Result<()> {
    // Different indices at both ends, so that the kernel announces the carrier at once (see `net::veth_pair`).
    let index = |end: u32| 10 + 2 * number + end;
    let end = |(space, name): (&Namespace, &str), index: u32| {
        format!("name {name} index {index} netns {}", space.name())
    };
    let (near, far) = (end(near, index(0)), end(far, index(1)));
    ip(None, [format!("link add {near} type veth peer {far}")].into_iter())
}

/// Disables duplicate address detection and router discovery, which would take the first second.
fn quiet(space: &Namespace) -> Result<()> {
    let handle = space.handle()?;
    let links = handle.configure(async |net| net.links().await)?.context(space.name())?;
    for link in links.iter().filter(|link| link.name != "lo") {
        for key in ["accept_dad", "router_solicitations"] {
            handle.set_sysctl(&format!("net.ipv6.conf.{}.{key}", link.name), "0")?;
        }
    }
    Ok(())
}

fn address(space: &Namespace, addresses: &[(&str, &str)]) -> Result<()> {
    let lines = addresses.iter().flat_map(|(device, address)| {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        [format!("link set {device} up"), format!("address add {address} dev {device}{nodad}")]
    });
    ip(Some(space), lines)
}

fn routes(space: &Namespace, routes: &[&str]) -> Result<()> {
    ip(Some(space), routes.iter().map(|route| format!("route add {route}")))
}

fn forward(space: &Namespace) -> Result<()> {
    let handle = space.handle()?;
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        handle.set_sysctl(key, "1")?;
    }
    Ok(())
}

/// Masquerades packets that are forwarded by `device` with the device's address; the café's IPv6 is routed without NAT.
fn masquerade(space: &Namespace, device: &str) -> Result<()> {
    let rules = format!(
        "table inet world {{ chain postrouting {{ type nat hook postrouting priority srcnat;\n\
         oifname \"{device}\" meta nfproto ipv4 masquerade\n\
         oifname \"{device}\" ip6 saddr fc00::/7 masquerade\n}}\n}}\n"
    );
    let mut command = space.command("nft");
    command.args(["-f", "-"]);
    run_with_input(command, rules).map(drop)
}

/// Files from the machine's /etc that programs need, in addition to those that are written here.
const FROM_THE_MACHINE: &[&str] = &[
    "alternatives",
    "gai.conf",
    "group",
    "gshadow",
    "host.conf",
    "iproute2",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "passwd",
    "pki",
    "protocols",
    "services",
    "shadow",
    "ssl",
];

/// Creates an /etc under `path`, with empty hosts and name look-ups by files and DNS.
///
/// # Errors
/// A file could not be copied or written.
pub fn own_etc(path: &Path) -> Result<PathBuf> {
    fs::create_dir(path)?;
    let there = FROM_THE_MACHINE.iter().map(|name| Path::new("/etc").join(name));
    let there: Vec<PathBuf> = there.filter(|file| file.symlink_metadata().is_ok()).collect();
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").args(there).arg(path);
    output(copy)?;
    fs::write(path.join("hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
    fs::write(path.join("nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")?;
    fs::write(path.join("resolv.conf"), "")?;
    Ok(path.to_owned())
}
