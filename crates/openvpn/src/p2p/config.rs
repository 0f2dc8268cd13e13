use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::client::{Remote, TunnelConfig};
use crate::data_format::BlockSuite;
use crate::keys::{Direction, Role, StaticKey};
use crate::session::Settings;
use crate::tls::{ClientTls, ServerTls};

/// The policy by which this end finds and reaches the other end.
#[derive(Clone, Debug)]
pub struct RemotePolicy {
    /// The `remote`s, in the order in which to try them. If there are none, the sender of the first
    /// authentic packets is the other end, whose address may change.
    pub remotes: Vec<Remote>,
    /// `tcp-server`: accept connections from these addresses, or from any if empty. With `None`, an
    /// end without `remotes` waits for datagrams.
    pub accepts: Option<Vec<IpAddr>>,
    /// `connect-retry`: the first and the longest wait between rounds.
    pub connect_retry: (Duration, Duration),
    /// `connect-retry-max`: the number of rounds before this end gives up, or `None` for no limit.
    pub connect_retry_max: Option<u32>,
}

impl RemotePolicy {
    /// Creates a policy with these remotes and OpenVPN's default waits.
    pub fn new(remotes: Vec<Remote>) -> Self {
        Self {
            remotes,
            accepts: None,
            connect_retry: (Duration::from_secs(1), Duration::from_secs(300)),
            connect_retry_max: None,
        }
    }
}

/// The `ifconfig` of a point-to-point end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ifconfig4 {
    /// `ifconfig LOCAL REMOTE`.
    Pair(Ipv4Addr, Ipv4Addr),
    /// `ifconfig ADDRESS NETMASK` with `topology subnet`.
    Net(Ipv4Net),
}

/// The addresses inside the tunnel.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelAddrs {
    /// `ifconfig`.
    pub ipv4: Option<Ifconfig4>,
    /// `ifconfig-ipv6 LOCAL/BITS REMOTE`.
    pub ipv6: Option<(Ipv6Net, Option<Ipv6Addr>)>,
}

impl TunnelAddrs {
    /// Returns the configuration of a tunnel with these addresses and no further settings.
    pub(super) fn tunnel(&self) -> TunnelConfig {
        let (ipv4, gateway4) = match self.ipv4 {
            Some(Ifconfig4::Pair(local, remote)) => (Some(local.into()), Some(remote)),
            Some(Ifconfig4::Net(net)) => (Some(net), None),
            None => (None, None),
        };
        TunnelConfig {
            ipv4,
            ipv6: self.ipv6.map(|(net, _)| net),
            gateway4,
            gateway6: self.ipv6.and_then(|(_, remote)| remote),
            ..TunnelConfig::default()
        }
    }
}

/// The configuration of a [`super::StaticEngine`].
#[derive(Clone, Debug)]
pub struct StaticConfig {
    /// The common settings. Those for TLS have no effect.
    pub settings: Settings,
    /// `secret`.
    pub key: StaticKey,
    /// `key-direction`, or the second argument of `secret`, or `None` for one key for both
    /// directions.
    pub direction: Option<Direction>,
    /// `cipher` and `auth`.
    pub suite: BlockSuite,
    /// How to reach the other end.
    pub remote_policy: RemotePolicy,
    /// The addresses inside the tunnel.
    pub tunnel_addrs: TunnelAddrs,
}

/// Our role in TLS, with our certificates.
#[derive(Clone, Debug)]
pub enum PeerTls {
    /// `tls-client`.
    Client(ClientTls),
    /// `tls-server`.
    Server(ServerTls),
}

impl PeerTls {
    pub(super) fn role(&self) -> Role {
        match self {
            Self::Client(_) => Role::Client,
            Self::Server(_) => Role::Server,
        }
    }
}

/// The configuration of a [`super::PeerEngine`].
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// The common settings.
    pub settings: Settings,
    /// The certificates and their verification. They also determine the role.
    pub tls: PeerTls,
    /// `tls-crypt-v2 ... force-cookie`: refuse clients that cannot resend their key.
    pub force_cookie: bool,
    /// How to reach the other end.
    pub remote_policy: RemotePolicy,
    /// The addresses inside the tunnel.
    pub tunnel_addrs: TunnelAddrs,
}
