use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use adit_engine::Vlans;
use adit_engine::command::{Keepalive, PeerRates};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::auth_token::TokenPolicy;
use crate::session::Settings;
use crate::tls::ServerTls;

/// How IPv4 addresses are assigned to clients.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// `subnet`: one network that contains all clients; `ifconfig ADDRESS NETMASK`.
    #[default]
    Subnet,
    /// `net30`: a network of four addresses for each client; `ifconfig ADDRESS FAR-END`.
    Net30,
    /// `p2p`: a single address for each client, with the server's address as the far end.
    P2p,
}

impl Topology {
    /// Returns the word after `topology`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Subnet => "subnet",
            Self::Net30 => "net30",
            Self::P2p => "p2p",
        }
    }
}

/// `server NETWORK NETMASK`, where the server has the first address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network4 {
    /// The server's own address with the network's prefix length.
    pub server: Ipv4Net,
    /// The first and last address of the pool. Without a pool, a client has an address only if its authorization
    /// response contains one.
    pub pool: Option<(Ipv4Addr, Ipv4Addr)>,
    /// The topology of the clients' addresses.
    pub topology: Topology,
    /// The netmask that clients get with [`Topology::Subnet`], or `None` for the server's own.
    pub netmask: Option<Ipv4Addr>,
}

impl Network4 {
    /// Creates a network with `topology subnet`.
    pub const fn subnet(server: Ipv4Net, first: Ipv4Addr, last: Ipv4Addr) -> Self {
        Self { server, pool: Some((first, last)), topology: Topology::Subnet, netmask: None }
    }
}

/// `server-ipv6`, `ifconfig-ipv6-pool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network6 {
    /// The server's own address with the network's prefix length.
    pub server: Ipv6Net,
    /// The first address of the pool.
    pub first: Ipv6Addr,
}

/// The configuration of a server engine.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The common settings.
    pub settings: Settings,
    /// The certificates and their verification.
    pub tls: ServerTls,
    /// The IPv4 network inside the tunnel.
    pub network4: Option<Network4>,
    /// The IPv6 network inside the tunnel.
    pub network6: Option<Network6>,
    /// `push` lines, in order, in addition to those that the engine generates itself (ifconfig, peer-id, cipher,
    /// topology, route-gateway, ping, ping-restart).
    pub push: Vec<String>,
    /// `ping` and `ping-restart` to push.
    pub push_keepalive: Option<Keepalive>,
    /// `max-clients`.
    pub max_clients: u32,
    /// `duplicate-cn`: a second session with the same name does not end the first.
    pub duplicate_cn: bool,
    /// The leases to keep if possible, as common names with addresses.
    pub leases: Vec<(String, IpNet)>,
    /// `tls-crypt-v2 ... force-cookie`: refuse clients that cannot take part in the stateless handshake.
    pub force_cookie: bool,
    /// Whether a client needs a response to [`adit_engine::auth::Request::Authorize`] before it is
    /// accepted.
    pub authorize: bool,
    /// The other checks of clients.
    pub checks: ClientChecks,
    /// `compress migrate`: clients with compression in their configuration get the stub framing instead, in which
    /// packets are not compressed.
    pub compress_migrate: bool,
    /// `vlan-tagging`: how the data plane sorts the frames of clients.
    pub vlans: Option<Vlans>,
}

/// The checks of clients in addition to those of TLS and to [`ServerConfig::authorize`]. By default there are none.
#[derive(Clone, Debug, Default)]
pub struct ClientChecks {
    /// Whether a tls-crypt-v2 key with metadata needs a response to [`adit_engine::auth::Request::VerifyKey`], before
    /// its owner gets a reply.
    pub verify_key: bool,
    /// Whether a connected client needs a response to [`adit_engine::auth::Request::Authorize`] in each renegotiation.
    pub reauthorize: bool,
    /// Whether an authorized client needs a response to [`adit_engine::auth::Request::Connect`].
    pub connect: bool,
    /// Whether a client without a user name is refused (`auth-user-pass-verify` without `auth-user-pass-optional`).
    pub require_username: bool,
    /// `username-as-common-name`: an authorized client's user name is the name of its session.
    pub username_as_common_name: bool,
    /// `opt-verify`: a client whose options differ is refused.
    pub verify_options: bool,
    /// `auth-gen-token`.
    pub tokens: Option<TokenPolicy>,
    /// `keying-material-exporter`: a secret of the session that is passed on in requests.
    pub exported_key: Option<ExportedKey>,
}

/// `keying-material-exporter LABEL LENGTH`: a secret of each session for plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedKey {
    /// The label of TLS's exporter (RFC 5705).
    pub label: String,
    /// The length in bytes.
    pub length: usize,
}

/// The configuration that a running server may change without affecting existing sessions.
#[derive(Clone, Debug, Default)]
pub struct ReloadableConfig {
    /// See [`ServerConfig::push`].
    pub push: Vec<String>,
    /// See [`ServerConfig::max_clients`]. Existing sessions beyond the limit continue.
    pub max_clients: u32,
    /// See [`ServerConfig::leases`]. They are reserved from now on, in addition to the known ones.
    pub leases: Vec<(String, IpNet)>,
    /// The parameters of single clients, by the names of their sessions. A session whose name is missing keeps its parameters.
    pub clients: HashMap<String, ClientUpdate>,
}

/// The parameters of one client that can change within its session. They replace those of its authorization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientUpdate {
    /// See [`adit_engine::auth::ClientParams::iroutes`].
    pub iroutes: Vec<IpNet>,
    /// See [`adit_engine::auth::ClientParams::push_remove`].
    pub push_remove: Vec<String>,
    /// See [`adit_engine::auth::SessionParams::rates`].
    pub rates: PeerRates,
}
