use std::net::{Ipv4Addr, Ipv6Addr};

use adit_engine::command::Keepalive;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::session::Settings;
use crate::tls::ServerTls;

/// How IPv4 addresses are given to clients.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// `subnet`: one network with all of them; `ifconfig ADDRESS NETMASK`.
    #[default]
    Subnet,
    /// `net30`: a network of four addresses for each; `ifconfig ADDRESS FAR-END`.
    Net30,
    /// `p2p`: single addresses with the server's as far end.
    P2p,
}

impl Topology {
    /// The word behind `topology`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Subnet => "subnet",
            Self::Net30 => "net30",
            Self::P2p => "p2p",
        }
    }
}

/// `server NETWORK NETMASK`: the server has the first address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network4 {
    /// The server's own address with the network's prefix length.
    pub server: Ipv4Net,
    /// First and last address of the pool; without one, a client has an address only if the answer to its authorization
    /// gives one.
    pub pool: Option<(Ipv4Addr, Ipv4Addr)>,
    /// How clients see it.
    pub topology: Topology,
    /// With [`Topology::Subnet`], the netmask that clients get; `None`: the server's own.
    pub netmask: Option<Ipv4Addr>,
}

impl Network4 {
    /// A network with `topology subnet`.
    pub const fn subnet(server: Ipv4Net, first: Ipv4Addr, last: Ipv4Addr) -> Self {
        Self { server, pool: Some((first, last)), topology: Topology::Subnet, netmask: None }
    }
}

/// `server-ipv6`, `ifconfig-ipv6-pool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network6 {
    /// The server's own address with the network's prefix length.
    pub server: Ipv6Net,
    /// First address of the pool.
    pub first: Ipv6Addr,
}

/// What a server engine is built from.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Common settings.
    pub settings: Settings,
    /// Certificates and verification.
    pub tls: ServerTls,
    /// IPv4 inside.
    pub network4: Option<Network4>,
    /// IPv6 inside.
    pub network6: Option<Network6>,
    /// `push` lines, in order, besides those the engine makes itself (ifconfig, peer-id, cipher,
    /// topology, route-gateway, ping, ping-restart).
    pub push: Vec<String>,
    /// `ping` and `ping-restart` to push.
    pub push_keepalive: Option<Keepalive>,
    /// `max-clients`.
    pub max_clients: u32,
    /// `duplicate-cn`: a second session of a name does not end the first.
    pub duplicate_cn: bool,
    /// Leases that should be kept where possible: common name to address.
    pub leases: Vec<(String, IpNet)>,
    /// `tls-crypt-v2 ... force-cookie`: refuse clients that cannot take part in the stateless handshake.
    pub force_cookie: bool,
    /// Ask [`adit_engine::auth::Request::Authorize`] before a client is let in.
    pub authorize: bool,
    /// `compress migrate`: clients that were set up with compression get a stub instead, by which
    /// their packets are framed and not compressed.
    pub compress_migrate: bool,
}

/// What a running server may change without touching sessions that exist.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// As [`ServerConfig::push`].
    pub push: Vec<String>,
    /// As [`ServerConfig::max_clients`]; sessions beyond it go on.
    pub max_clients: u32,
    /// As [`ServerConfig::leases`]: kept for their names from now on, besides those known.
    pub leases: Vec<(String, IpNet)>,
}
