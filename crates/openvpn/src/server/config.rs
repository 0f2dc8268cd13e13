use std::net::{Ipv4Addr, Ipv6Addr};

use adit_engine::verbs::Keepalive;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::session::Settings;
use crate::tls::ServerTls;

/// `server NETWORK NETMASK` with `topology subnet`: the server has the first address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network4 {
    /// The server's own address with the network's prefix length.
    pub server: Ipv4Net,
    /// First address of the pool.
    pub first: Ipv4Addr,
    /// Last address of the pool.
    pub last: Ipv4Addr,
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
    /// Ask [`adit_engine::Question::Authorize`] before a client is let in.
    pub authorize: bool,
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
