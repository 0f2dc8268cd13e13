use crate::session::PathReport;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::negotiate::DataCipher;
use adit_engine::command::Counters;
use adit_engine::{Link, PeerId, UnixTime};

use ipnet::IpNet;

use crate::packet::SessionId;
use crate::tls::PeerIdentity;

/// What the server's driver must know.
#[derive(Clone, Debug)]
pub enum ServerEvent {
    /// A stream was accepted; its first packet is awaited. Of many, a few in a second are named.
    Accepted(Link),
    /// A peer, by this session id of its own, proved its address; a handshake begins.
    HandshakeStarted(Link, SessionId),
    /// A control message is on its way to a peer.
    Told {
        /// The peer; it is no client yet, or no more, where it is being refused.
        peer: PeerId,
        /// Where it is.
        link: Link,
        /// Its common name.
        name: String,
        /// The message.
        message: String,
    },
    /// What a client has inside the tunnel, from the next output on: said before the data plane hears of
    /// it, so that a table of addresses by name has them before the first packet.
    Addresses(Box<Addresses>),
    /// A client is authenticated and has its options.
    ClientUp(Box<ClientInfo>),
    /// A client's session ended; why, and the traffic of both channels.
    ClientDown(PeerId, String, Counters),
    /// A handshake ended without a session; the reason names whose fault it is.
    HandshakeFailed(Link, String),
    /// A client that proved who it is was told that it may not in, and has left; why.
    Refused(Link, Box<PeerIdentity>, String),
    /// A stranger's packet is not authentic. Of many, a few in a second are named; the address may be
    /// forged.
    Unauthentic(Link),
    /// A device whose session was replaced is still there: two devices use one profile.
    UsedElsewhere(Box<UsedElsewhere>),
    /// A client moved.
    Floated(PeerId, Link),
    /// A renegotiation has found a client's certificate good: the certificate, TLS version and suite. A
    /// new key follows.
    Reverified(PeerId, Box<PeerIdentity>, String),
    /// What is known of the path to a client, and what was made of it.
    Path(PeerId, PathReport),
    /// A client has a new key.
    Rekeyed(PeerId, u8),
    /// Worth a line in the log.
    Note(Option<PeerId>, String),
    /// Worth a warning.
    Warning(Option<PeerId>, String),
}

/// A profile that two devices use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedElsewhere {
    /// The common name in the certificate of both.
    pub name: String,
    /// The device whose session was replaced.
    pub former: SocketAddr,
    /// The device that has the session now.
    pub newer: SocketAddr,
    /// How often this has happened.
    pub count: u32,
}

/// What belongs to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Its id in the data plane.
    pub peer: PeerId,
    /// Its common name.
    pub name: String,
    /// The groups it is in: those that the authorization named, and its certificate's units.
    pub groups: Vec<String>,
    /// Tunnel addresses, and networks behind it.
    pub prefixes: Vec<IpNet>,
}

/// A connected client.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// Its id in the data plane.
    pub peer: PeerId,
    /// Certificate.
    pub identity: PeerIdentity,
    /// User name, if it sent one.
    pub username: Option<String>,
    /// Where it connects from.
    pub link: Link,
    /// Tunnel address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 tunnel address.
    pub ipv6: Option<Ipv6Addr>,
    /// Networks behind it (`iroute`), as it got them when it connected.
    pub networks: Vec<IpNet>,
    /// Cipher of the data channel.
    pub cipher: DataCipher,
    /// `IV_VER` and the like, filtered.
    pub peer_info: Vec<(String, String)>,
    /// TLS version and suite.
    pub tls: String,
    /// Since when.
    pub since: UnixTime,
    /// A check, beside the session of its name if there is one.
    pub check: bool,
}
