use crate::reason::Reason;
use crate::session::PathReport;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::negotiate::DataCipher;
use adit_engine::auth::Station;
use adit_engine::command::Counters;
use adit_engine::{Link, PeerAddresses, PeerId, UnixTime};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::packet::SessionId;
use crate::tls::PeerIdentity;

/// An event that the server reports to its driver.
#[derive(Clone, Debug)]
pub enum ServerEvent {
    /// A stream was accepted; its first packet is pending. At most a few such events a second are
    /// reported.
    Accepted(Link),
    /// A peer with this session id proved its address, and a handshake begins.
    HandshakeStarted(Link, SessionId),
    /// A control message was sent to a peer.
    Told {
        /// The peer. While it is being refused, it is not a client.
        peer: PeerId,
        /// The link to it.
        link: Link,
        /// Its common name.
        name: String,
        /// The message.
        message: String,
    },
    /// The tunnel addresses that a client has starting with the next output. The event precedes the
    /// data plane's configuration, so a table of addresses by name can be updated before the first
    /// packet.
    Addresses(Box<PeerAddresses>),
    /// A client is authenticated and has its options.
    ClientUp(Box<ClientInfo>),
    /// A client's session continues in this process, with its traffic so far ([`super::SavedServer`]).
    Resumed(Box<ClientInfo>, Counters),
    /// A session ends, or an attempt to begin one that was in a request, with its number. [`Self::ClientDown`] with the
    /// traffic follows if it was a client's. Only reported if clients need a response to
    /// [`adit_engine::auth::Request::Connect`].
    Ending(u64),
    /// A client's session ended, with the reason and the traffic of both channels.
    ClientDown(PeerId, Reason, Counters),
    /// A handshake ended without a session.
    HandshakeFailed(Link, Reason),
    /// An authenticated client was refused for this reason and has disconnected.
    Refused(Link, Box<PeerIdentity>, Reason),
    /// An unauthenticated packet arrived. At most a few a second are reported; the address may be
    /// forged.
    Unauthentic(Link),
    /// A device whose session was replaced is still present, so two devices use the same profile.
    UsedElsewhere(Box<UsedElsewhere>),
    /// A station behind a client has been silent for too long, and is forgotten.
    StationForgotten(Station),
    /// A client moved to another address.
    Floated(PeerId, Link),
    /// A renegotiation has verified a client's certificate. Contains the certificate and the TLS
    /// version and suite. A new key follows.
    Reverified(PeerId, Box<PeerIdentity>, String),
    /// The findings about the path to a client, and the sizes derived from them.
    Path(PeerId, PathReport),
    /// A client has a new key.
    Rekeyed(PeerId, u8),
    /// A client answers a challenge that it got while its authorization was pending (CR_RESPONSE). The text may contain
    /// anything but control characters.
    ChallengeResponse {
        /// The number of the client's session or handshake.
        session: u64,
        /// The response.
        text: String,
    },
    /// A note for the log.
    Note(Option<PeerId>, String),
    /// A warning for the log.
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
    /// The number of times that this has happened.
    pub count: u32,
}

/// A connected client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its id in the data plane.
    pub peer: PeerId,
    /// The number of its session, which no other session of the server has.
    pub session: u64,
    /// Its certificate.
    pub identity: PeerIdentity,
    /// Its user name, if it sent one.
    pub username: Option<String>,
    /// The link over which it is connected.
    pub link: Link,
    /// Its IPv4 tunnel address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 tunnel address.
    pub ipv6: Option<Ipv6Addr>,
    /// The networks behind it (`iroute`), as assigned when it connected.
    pub networks: Vec<IpNet>,
    /// The cipher of the data channel.
    pub cipher: DataCipher,
    /// The filtered variables of the peer info, such as `IV_VER`.
    pub peer_info: Vec<(String, String)>,
    /// The TLS version and suite.
    pub tls: String,
    /// The time when it connected.
    pub since: UnixTime,
    /// The duration of its handshake.
    pub handshake: Duration,
    /// Whether this is a check, which may exist in addition to a session with the same name.
    pub check: bool,
}
