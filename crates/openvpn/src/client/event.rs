use crate::client::Credentials;
use crate::reason::Reason;
use crate::session::PathReport;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::negotiate::{DataCipher, DnsOptions, RouteContext, parse_route4};
use adit_engine::{CertificateFacts, Link, PeerId};
use ipnet::{Ipv4Net, Ipv6Net};

use crate::packet::SessionId;
use crate::tls::PeerIdentity;

/// An event that the client reports to its driver.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// The server answered with this session id (logged as `TLS: Initial packet from ...`).
    Connecting(String),
    /// The server answered with this session id: `TLS: Initial packet from ...`.
    ServerAnswered(Link, SessionId),
    /// The server's host, or a router before it, reports by ICMP, with this errno, that our packets
    /// cannot be delivered. The session continues, because anyone on the path can forge such a
    /// report.
    Unreachable(Link, i32),
    /// TLS is complete and keys are exchanged; options are being requested.
    Authenticated {
        /// The server's certificate.
        server: PeerIdentity,
        /// The TLS version and suite, for the log.
        tls: String,
        /// The contents of the server's verified certificates, for programs; its own first, then its issuers'. Empty
        /// unless [`Settings::describe_certificates`](crate::session::Settings::describe_certificates).
        certificates: Vec<CertificateFacts>,
    },
    /// A part of the server's PUSH_REPLY or PUSH_UPDATE, as it arrived but without its secrets.
    Pushed(String),
    /// The tunnel is up: the driver applies this configuration to the TUN device and the routes,
    /// and traffic may flow. The event is repeated after a reconnect, with the same configuration
    /// if nothing changed.
    Up(Box<TunnelConfig>),
    /// The server has changed the options of the current session: the driver replaces the previous
    /// configuration with this one.
    Updated(Box<TunnelConfig>),
    /// A renegotiation has verified the server's certificate; a new key follows.
    Reverified {
        /// The server's certificate.
        server: PeerIdentity,
        /// The TLS version and suite, for the log.
        tls: String,
    },
    /// A new key is in use.
    Rekeyed {
        /// Its 3-bit id.
        key_id: u8,
        /// Its cipher.
        cipher: DataCipher,
    },
    /// The session ended; the engine continues with the next server after a wait.
    Restarting(Reason),
    /// The engine ended.
    Stopped(Reason),
    /// An `echo` of the server's options, for the user's front end.
    Echo(String),
    /// The server waits for an external authentication, for at most this time.
    AuthPending(Duration),
    /// The server's text for the user (INFO, INFO_PRE). A [`ClientEvent::Note`] for the log precedes it.
    ServerInfo(String),
    /// The server has pushed a token that replaces the password (`auth-token`).
    Token(Credentials),
    /// A harmless note for the log.
    Note(String),
    /// A warning for the log.
    Warning(String),
    /// The findings about the path to the server, and the sizes derived from them.
    Path(PathReport),
}

/// The negotiated and pushed configuration of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelConfig {
    /// The data plane's peer.
    pub peer: Option<PeerId>,
    /// Our address and network; a /32 if there is no network but [`Self::far4`].
    pub ipv4: Option<Ipv4Net>,
    /// The other end of a link with two addresses and no network (`topology p2p`). It is reached through the tunnel.
    pub far4: Option<Ipv4Addr>,
    /// Our IPv6 address and network.
    pub ipv6: Option<Ipv6Net>,
    /// The far end's address (`route-gateway`): the gateway of pushed routes.
    pub gateway4: Option<Ipv4Addr>,
    /// The far end's IPv6 address.
    pub gateway6: Option<Ipv6Addr>,
    /// The pushed `route`s: network, gateway if not the tunnel's, metric.
    pub routes4: Vec<Route<Ipv4Net, Ipv4Addr>>,
    /// The pushed `route`s to hosts' names, as words: name, netmask, gateway, metric.
    pub named_routes: Vec<Vec<String>>,
    /// The pushed `route-ipv6`s.
    pub routes6: Vec<Route<Ipv6Net, Ipv6Addr>>,
    /// The `redirect-gateway` flags in lower case, as pushed (`def1`, `bypass-dhcp`, `ipv6`,
    /// `!ipv4`, ...); `None` if not pushed.
    pub redirect_gateway: Option<Vec<String>>,
    /// `block-ipv6`.
    pub block_ipv6: bool,
    /// `dhcp-option` and `dns`, as pushed.
    pub dns: DnsOptions,
    /// `setenv-safe`, as pushed: variables for programs.
    pub environment: Vec<(String, String)>,
    /// `tun-mtu`.
    pub mtu: Option<u16>,
    /// The cipher of the data channel.
    pub cipher: Option<DataCipher>,
    /// The server's address. It must stay reachable outside the tunnel.
    pub remote: Option<std::net::SocketAddr>,
}

impl TunnelConfig {
    /// Adds the routes of a name in [`Self::named_routes`] (its first word) to these addresses. `metric` is that of routes
    /// that name none.
    pub fn add_routes_to(&mut self, name: &str, addresses: &[Ipv4Addr]) {
        let context = RouteContext {
            remote: self.remote.map(|remote| remote.ip()),
            gateway4: self.gateway4,
            gateway6: self.gateway6,
            metric: None,
        };
        for words in &self.named_routes {
            let Some((_, rest)) = words.split_first().filter(|(first, _)| *first == name) else {
                continue;
            };
            for address in addresses {
                let address = address.to_string();
                let rest = rest.iter().map(String::as_str);
                let words: Vec<&str> = std::iter::once(address.as_str()).chain(rest).collect();
                let route = parse_route4(&words).ok().and_then(|spec| spec.resolve(&context));
                self.routes4.extend(route);
            }
        }
    }
}

/// A pushed route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<N, G> {
    /// The destination.
    pub net: N,
    /// The gateway if it is not the tunnel's.
    pub via: Option<G>,
    /// `net_gateway`: whether it uses the gateway outside the tunnel.
    pub outside: bool,
    /// The metric.
    pub metric: Option<u32>,
}
