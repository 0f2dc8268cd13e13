//! Authorization: whether an authenticated peer may have a session, asked asynchronously.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::command::Inactive;
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

// By hand: the derived one would print the password.
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
    /// Exactly these words behind `ifconfig` (`ifconfig-push`): the address and, by topology, its
    /// netmask or the far end. May lie outside of the server's network; wins over [`Self::ipv4`].
    pub ifconfig4: Option<(Ipv4Addr, Ipv4Addr)>,
    /// `ifconfig-ipv6-push`: address with prefix length, and the far end if it is not the server's
    /// own address. Wins over [`Self::ipv6`].
    pub ifconfig6: Option<(Ipv6Net, Option<Ipv6Addr>)>,
    /// Networks behind this peer (`iroute`, `iroute-ipv6`). The newest peer to name one has it.
    pub iroutes: Vec<IpNet>,
    /// `push-reset`: none of the options that all peers get, but those of [`Self::push`].
    pub push_reset: bool,
    /// `push-remove`: options for all peers that begin so are left out for this one.
    pub push_remove: Vec<String>,
    /// Further options to push.
    pub push: Vec<String>,
    /// `inactive`: another rule than the one for all; its time zero: none.
    pub inactive: Option<Inactive>,
    /// `session-timeout`: another time than the one for all; zero: none.
    pub session_timeout: Option<Duration>,
    /// The groups that a packet filter knows it by (`@group:NAME`).
    pub groups: Vec<String>,
    /// Warnings about what was written for this peer and has no effect.
    pub warnings: Box<[String]>,
}

/// Groups that one peer may be in at most.
pub const MAX_GROUPS: usize = 16;

/// Whether a name can be that of a group, or be written behind `@client:`: letters, digits and a few
/// signs, 1 to 64 bytes, no sign in front.
pub fn is_group_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    (1..=64).contains(&name.len())
        && name.chars().all(allowed)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}
