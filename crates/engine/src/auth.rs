//! Authorization: whether an authenticated peer may have a session, asked asynchronously.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use zeroize::Zeroizing;

/// Identifies a request, so that its response can be matched to it.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct RequestId(pub u64);

/// A request whose answer may be slow: a registry lookup, a password check, a script.
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
    /// Rejected. The text goes to the log; the peer receives only "authentication failed".
    Reject(String),
    /// Rejected for now. The text goes to the log and to the peer, which retries later.
    Later(String),
}

/// The parameters of an accepted client, in addition to the defaults.
#[derive(Clone, Debug, Default)]
pub struct ClientParams {
    /// A fixed tunnel address instead of one from the pool.
    pub ipv4: Option<Ipv4Addr>,
    /// A fixed IPv6 tunnel address.
    pub ipv6: Option<Ipv6Addr>,
    /// The exact arguments of `ifconfig` (`ifconfig-push`): the address and, depending on the topology, its netmask or
    /// the far end. The address may be outside the server's network; takes precedence over [`Self::ipv4`].
    pub ifconfig4: Option<(Ipv4Addr, Ipv4Addr)>,
    /// `ifconfig-ipv6-push`: address with prefix length, and the far end if it is not the server's own address. Takes
    /// precedence over [`Self::ipv6`].
    pub ifconfig6: Option<(Ipv6Net, Option<Ipv6Addr>)>,
    /// Networks behind this peer (`iroute`, `iroute-ipv6`). If several peers have the same network, the newest peer
    /// gets it.
    pub iroutes: Vec<IpNet>,
    /// `push-reset`: the peer gets only the options of [`Self::push`], and none of the options for all peers.
    pub push_reset: bool,
    /// `push-remove`: options for all peers that begin with one of these are not pushed to this peer.
    pub push_remove: Vec<String>,
    /// Further options to push.
    pub push: Vec<String>,
    /// `inactive`: a rule that replaces the rule for all peers; a time of zero disables it.
    pub inactive: Option<Inactive>,
    /// `session-timeout`: a time that replaces the time for all peers; zero disables it.
    pub session_timeout: Option<Duration>,
    /// The groups that contain it in packet filters (`@group:NAME`).
    pub groups: Vec<String>,
    /// Warnings about settings for this peer that have no effect.
    pub warnings: Box<[String]>,
}

/// `inactive`: ends a session with little traffic.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Inactive {
    /// The time within which there must be enough traffic.
    pub after: Duration,
    /// Bytes of inner packets, in both directions together, that count as enough. 0: any packet suffices.
    pub bytes: u64,
}

/// The maximum number of groups for one peer.
pub const MAX_GROUPS: usize = 16;

/// Returns whether a name is valid for a group, or after `@client:`: 1 to 64 bytes of letters, digits and a few
/// punctuation characters, which may not come first.
pub fn is_group_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    (1..=64).contains(&name.len())
        && name.chars().all(allowed)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}
