use crate::session::PathReport;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::negotiate::{DataCipher, DnsOptions};
use adit_engine::{Link, PeerId};
use ipnet::{Ipv4Net, Ipv6Net};

use crate::packet::SessionId;
use crate::tls::PeerIdentity;

/// What the client's driver must know.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// Dialling `host:port`.
    Connecting(String),
    /// The server answered, with this session id of its own: `TLS: Initial packet from ...`.
    ServerAnswered(Link, SessionId),
    /// The server's host, or a router before it, says that what we sent cannot arrive (ICMP): the
    /// errno. Anybody on the path can claim so; the session goes on.
    Unreachable(Link, i32),
    /// TLS is up and keys are exchanged; options are being requested.
    Authenticated {
        /// The server's certificate.
        server: PeerIdentity,
        /// TLS version and suite, for the log.
        tls: String,
    },
    /// A part of the server's PUSH_REPLY or PUSH_UPDATE, as it came but for its secrets.
    Pushed(String),
    /// Apply this to the TUN and the routes, then traffic may flow. Sent again after a reconnect;
    /// equal to the former one if nothing changed.
    Up(Box<TunnelConfig>),
    /// The server has changed the options of the session that is up: apply this in place of the former.
    Updated(Box<TunnelConfig>),
    /// A renegotiation has found the server's certificate good; a new key follows.
    Reverified {
        /// The server's certificate.
        server: PeerIdentity,
        /// TLS version and suite, for the log.
        tls: String,
    },
    /// A new key is in use.
    Rekeyed {
        /// Its 3-bit id.
        key_id: u8,
        /// Its cipher.
        cipher: DataCipher,
    },
    /// The session ended; the engine goes on to the next server after a wait.
    Restarting(String),
    /// The engine ended.
    Stopped(Stop),
    /// Worth a line in the log, harmless.
    Note(String),
    /// Worth a warning.
    Warning(String),
    /// What is known of the path to the server, and what was made of it.
    Path(PathReport),
}

/// Why a client ended for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Asked to.
    Requested,
    /// A check went as far as it may without ending another session of the same certificate.
    Checked,
    /// AUTH_FAILED, with the server's words.
    AuthFailed(String),
    /// The server said HALT.
    Halted(String),
    /// `connect-retry-max` rounds passed.
    RetriesExhausted,
    /// `session-timeout` is over.
    SessionTimeout,
    /// Nothing came from the other end for `ping-exit`.
    Silent,
    /// Too little passed through the tunnel for `inactive`.
    Inactive,
    /// A handshake failed, and `tls-exit` says that it is the only one; how.
    HandshakeFailed(String),
    /// The server demands what we do not support.
    Incompatible(String),
}

/// The tunnel as negotiated and pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelConfig {
    /// The data plane's peer.
    pub peer: Option<PeerId>,
    /// Our address and network. A /32 with [`Self::far4`] where there is no network.
    pub ipv4: Option<Ipv4Net>,
    /// The other end of a link with two addresses and no network (`topology p2p`): to be reached by the
    /// tunnel.
    pub far4: Option<Ipv4Addr>,
    /// Our IPv6 address and network.
    pub ipv6: Option<Ipv6Net>,
    /// The far end's address (`route-gateway`), gateway of pushed routes.
    pub gateway4: Option<Ipv4Addr>,
    /// The far end's IPv6 address.
    pub gateway6: Option<Ipv6Addr>,
    /// Pushed `route`s: network, gateway where not the tunnel's, metric.
    pub routes4: Vec<Route<Ipv4Net, Ipv4Addr>>,
    /// Pushed `route-ipv6`s.
    pub routes6: Vec<Route<Ipv6Net, Ipv6Addr>>,
    /// `redirect-gateway` flags, lower case, as pushed (`def1`, `bypass-dhcp`, `ipv6`, `!ipv4`, ...);
    /// `None` when not pushed.
    pub redirect_gateway: Option<Vec<String>>,
    /// `block-ipv6`.
    pub block_ipv6: bool,
    /// `dhcp-option` and `dns`, as pushed.
    pub dns: DnsOptions,
    /// `tun-mtu`.
    pub mtu: Option<u16>,
    /// Cipher of the data channel.
    pub cipher: Option<DataCipher>,
    /// The server's address, to keep reachable outside the tunnel.
    pub remote: Option<std::net::SocketAddr>,
}

/// One pushed route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<N, G> {
    /// Destination.
    pub net: N,
    /// Gateway if not the tunnel's.
    pub via: Option<G>,
    /// `net_gateway`: by the gateway outside the tunnel.
    pub outside: bool,
    /// Metric.
    pub metric: Option<u32>,
}
