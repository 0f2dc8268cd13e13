use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use adit_engine::command::BlockSuite;
use ipnet::{Ipv4Net, Ipv6Net};

use crate::client::{Remote, TunnelConfig};
use crate::keys::{Direction, Role, StaticKey};
use crate::session::Settings;
use crate::tls::{ClientTls, ServerTls};

/// Where the other end is.
#[derive(Clone, Debug)]
pub struct RemotePolicy {
    /// `remote`s in the order to try. Empty: the sender of the first authentic packets is the other end, and
    /// may move.
    pub remotes: Vec<Remote>,
    /// `tcp-server`: connections are waited for, from these addresses; empty: from any. `None`: those
    /// without `remotes` wait for datagrams.
    pub accepts: Option<Vec<IpAddr>>,
    /// `connect-retry`: first wait and longest wait between rounds.
    pub connect_retry: (Duration, Duration),
    /// `connect-retry-max`: rounds before giving up; `None`: never.
    pub connect_retry_max: Option<u32>,
}

impl RemotePolicy {
    /// These, with stock's waits.
    pub fn new(remotes: Vec<Remote>) -> Self {
        Self {
            remotes,
            accepts: None,
            connect_retry: (Duration::from_secs(1), Duration::from_secs(300)),
            connect_retry_max: None,
        }
    }
}

/// `ifconfig` between two points.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ifconfig4 {
    /// `ifconfig LOCAL REMOTE`.
    Pair(Ipv4Addr, Ipv4Addr),
    /// `ifconfig ADDRESS NETMASK` with `topology subnet`.
    Net(Ipv4Net),
}

/// The addresses inside.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelAddrs {
    /// `ifconfig`.
    pub ipv4: Option<Ifconfig4>,
    /// `ifconfig-ipv6 LOCAL/BITS REMOTE`.
    pub ipv6: Option<(Ipv6Net, Option<Ipv6Addr>)>,
}

impl TunnelAddrs {
    /// A tunnel with these addresses and nothing else.
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

/// What a [`super::StaticEngine`] is built from.
#[derive(Clone, Debug)]
pub struct StaticConfig {
    /// Common settings; those of TLS have no effect.
    pub settings: Settings,
    /// `secret`.
    pub key: StaticKey,
    /// `key-direction`, or the second argument of `secret`; `None`: one key for both ways.
    pub direction: Option<Direction>,
    /// `cipher` and `auth`.
    pub suite: BlockSuite,
    /// Where the other end is.
    pub remote_policy: RemotePolicy,
    /// The addresses inside.
    pub tunnel_addrs: TunnelAddrs,
}

/// Which end of TLS we are, with its certificates.
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

/// What a [`super::PeerEngine`] is built from.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Common settings.
    pub settings: Settings,
    /// Certificates and verification, and with them the role.
    pub tls: PeerTls,
    /// `tls-crypt-v2 ... force-cookie`: refuse clients that cannot resend their key.
    pub force_cookie: bool,
    /// Where the other end is.
    pub remote_policy: RemotePolicy,
    /// The addresses inside.
    pub tunnel_addrs: TunnelAddrs,
}
