//! Authorization: whether an authenticated peer may have a session, asked asynchronously.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use zeroize::Zeroizing;

/// Identifies a request, so that its response can be matched to it.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct RequestId(pub u64);

/// A request whose answer may be slow: a registry look-up, a password check, a script.
#[derive(Debug)]
pub enum Request {
    /// May this authenticated peer have a session?
    Authorize(Identity),
}

/// The authenticated identity of a peer.
#[derive(Clone, Default)]
pub struct Identity {
    /// Common name of the certificate.
    pub common_name: String,
    /// Serial number of the certificate in lower-case hex, without separators.
    pub serial: String,
    /// SHA-256 of the certificate in lower-case hex, without separators.
    pub fingerprint: String,
    /// User name sent by the peer, if any.
    pub username: Option<String>,
    /// Password sent by the peer, if any.
    pub password: Option<Zeroizing<String>>,
    /// The peer's address outside the tunnel.
    pub address: Option<IpAddr>,
}

// Written by hand because a derived implementation would print the password.
impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("common_name", &self.common_name)
            .field("serial", &self.serial)
            .field("username", &self.username)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// The response to a [`Request`].
#[derive(Clone, Debug)]
pub enum Response {
    /// Accepted, with the client's parameters.
    Accept(ClientParams),
    /// Rejected. The text goes to the log; the peer gets "authentication failed" only.
    Reject(String),
    /// Rejected for now. The text goes to the log and to the peer, which tries again later.
    Later(String),
}

/// The parameters of an accepted client, in addition to the defaults.
#[derive(Clone, Debug, Default)]
pub struct ClientParams {
    /// A fixed tunnel address instead of one from the pool.
    pub ipv4: Option<Ipv4Addr>,
    /// A fixed IPv6 tunnel address.
    pub ipv6: Option<Ipv6Addr>,
    /// Exactly these words after `ifconfig` (`ifconfig-push`): the address and, depending on the topology, its netmask
    /// or the far end. It may be outside of the server's network; takes precedence over [`Self::ipv4`].
    pub ifconfig4: Option<(Ipv4Addr, Ipv4Addr)>,
    /// `ifconfig-ipv6-push`: address with prefix length, and the far end if it is not the server's own address. Takes
    /// precedence over [`Self::ipv6`].
    pub ifconfig6: Option<(Ipv6Net, Option<Ipv6Addr>)>,
    /// Networks behind this peer (`iroute`, `iroute-ipv6`). If several peers name one, the newest peer has it.
    pub iroutes: Vec<IpNet>,
    /// `push-reset`: the peer gets only the options of [`Self::push`], and none of those for all peers.
    pub push_reset: bool,
    /// `push-remove`: options for all peers that begin with one of these are not pushed to this peer.
    pub push_remove: Vec<String>,
    /// Further options to push.
    pub push: Vec<String>,
    /// `inactive`: a rule that replaces the one for all peers; with a time of zero, none applies.
    pub inactive: Option<Inactive>,
    /// `session-timeout`: a time that replaces the one for all peers; zero: none.
    pub session_timeout: Option<Duration>,
    /// The groups that a packet filter knows it by (`@group:NAME`).
    pub groups: Vec<String>,
    /// Warnings about settings for this peer that have no effect.
    pub warnings: Box<[String]>,
}

/// `inactive`: ends a session with little traffic.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Inactive {
    /// The time in which there must be enough traffic.
    pub after: Duration,
    /// Bytes of inner packets that are enough, both directions together. 0: any packet.
    pub bytes: u64,
}

/// The most groups that one peer may be in.
pub const MAX_GROUPS: usize = 16;

/// Returns whether a name is valid for a group, or after `@client:`: 1 to 64 bytes of letters, digits and a few signs,
/// with no sign at the start.
pub fn is_group_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    (1..=64).contains(&name.len())
        && name.chars().all(allowed)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}
