//! Authorization: whether an authenticated peer may have a session, asked asynchronously.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::VlanId;
use crate::command::PeerRates;

/// Identifies a request, so that its response can be matched to it.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct RequestId(pub u64);

/// A request whose answer may be slow: a registry lookup, a password check, a script, a person.
#[derive(Debug)]
pub enum Request {
    /// May a peer begin a handshake with this tls-crypt-v2 key ([`Identity::tls_crypt_v2_metadata`])? It has proved its
    /// address, but is not authenticated yet.
    VerifyKey(Box<Identity>),
    /// May this authenticated peer have a session, or keep it ([`Identity::renegotiation`])?
    Authorize(Box<Identity>),
    /// The peer is authorized and its addresses are reserved. May it connect, and with which parameters?
    Connect(Box<Connecting>),
    /// May a station behind a connected peer send frames?
    Learn(Station),
    /// A client asks, before it sends its password, whether this is the right server.
    VerifyServer(Box<Identity>),
    /// A client needs a user name and a password, and possibly the answer to a challenge.
    Credentials(CredentialsRequest),
}

/// The authenticated identity of a peer.
#[derive(Clone, Default)]
pub struct Identity {
    /// Common name of the certificate, or what replaces it (`x509-username-field`); empty without a certificate. In
    /// [`Connecting`], the name of the session: the user name with `username-as-common-name`.
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
    /// The verified certificates: the peer's first, then its issuers. Empty without a certificate, or if the engine is
    /// not configured to describe them.
    pub certificates: Vec<CertificateFacts>,
    /// The peer info (`IV_VER`, `UV_ID`, ...). Names consist of letters, digits and underscores; values have no control
    /// characters.
    pub peer_info: Vec<(String, String)>,
    /// The number of the session, which no other session of the engine has. Renegotiations keep it.
    pub session: u64,
    /// The key id of the negotiation. Several negotiations of one session differ in it.
    pub key_id: u8,
    /// Whether the peer has a session already and renegotiates its keys.
    pub renegotiation: bool,
    /// Whether this is a connection check, which may exist in addition to a session with the same name.
    pub check: bool,
    /// The local address outside the tunnel, where the socket reports it.
    pub local: Option<IpAddr>,
    /// The peer's address and port outside the tunnel.
    pub remote: Option<SocketAddr>,
    /// Whether the peer is connected over a stream (TCP).
    pub stream: bool,
    /// The metadata of the peer's tls-crypt-v2 key.
    pub tls_crypt_v2_metadata: Option<KeyMetadata>,
    /// The result of checking the peer's token, if the server issues tokens (`auth-gen-token`).
    pub token: Option<TokenFacts>,
    /// The TLS version and suite, for logs.
    pub tls: String,
    /// A secret of the session for other protocols, which both ends can derive (`keying-material-exporter`).
    pub exported_key: Option<Zeroizing<Vec<u8>>>,
}

impl Identity {
    /// Returns whether a valid token replaces the check of the password.
    pub fn has_valid_token(&self) -> bool {
        let valid = |token: &TokenFacts| token.state == TokenState::Authenticated;
        self.token.as_ref().is_some_and(|token| valid(token) && !token.external)
    }
}

// Written by hand because a derived implementation would print the password.
impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("common_name", &self.common_name)
            .field("serial", &self.serial)
            .field("username", &self.username)
            .field("address", &self.address)
            .field("session", &self.session)
            .field("renegotiation", &self.renegotiation)
            .finish_non_exhaustive()
    }
}

/// The contents of a verified certificate as plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The certificate as DER.
    pub der: Arc<[u8]>,
    /// The subject in OpenVPN's form, `C=..., O=..., CN=...`.
    pub subject: String,
    /// The attributes of the subject in order, with OpenSSL's short names: `CN`, `O`, `emailAddress`, ...
    pub attributes: Vec<(String, String)>,
    /// The serial number as a decimal number.
    pub serial_decimal: String,
    /// The serial number in lower-case hex with colons: `0a:1b`.
    pub serial_hex: String,
    /// The SHA-1 of the DER in lower-case hex with colons.
    pub sha1: String,
    /// The SHA-256 of the DER in lower-case hex with colons.
    pub sha256: String,
    /// The last mail address among the subject's alternative names.
    pub email: Option<String>,
}

/// The metadata of a tls-crypt-v2 key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMetadata {
    /// Its type: 0 for bytes that the operator chose, 1 for the time when the key was made.
    pub kind: u8,
    /// Its content without the type. A time is eight bytes in network order.
    pub content: Vec<u8>,
}

/// The result of checking a token that a peer sent instead of its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFacts {
    /// The id of the token's session in base64: the same in all tokens that replace each other.
    pub session_id: String,
    /// The result.
    pub state: TokenState,
    /// Whether other checks decide nevertheless (`auth-gen-token ... external-auth`).
    pub external: bool,
}

/// The state of a peer's token, with OpenVPN's names in `session_state`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TokenState {
    /// The peer sent a password and no token.
    Initial,
    /// The token is valid.
    Authenticated,
    /// The token is authentic, but too old.
    Expired,
    /// The token is not authentic, or belongs to another user or session.
    Invalid,
    /// The token is valid for an empty user name, and the peer sent another one.
    AuthenticatedEmptyUser,
    /// Such a token that is too old.
    ExpiredEmptyUser,
}

impl TokenState {
    /// Returns OpenVPN's name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initial => "Initial",
            Self::Authenticated => "Authenticated",
            Self::Expired => "Expired",
            Self::Invalid => "Invalid",
            Self::AuthenticatedEmptyUser => "AuthenticatedEmptyUser",
            Self::ExpiredEmptyUser => "ExpiredEmptyUser",
        }
    }
}

/// A peer that is authorized and has its addresses, but no session yet.
#[derive(Clone, Debug)]
pub struct Connecting {
    /// The peer. The password is not repeated.
    pub identity: Identity,
    /// The parameters so far.
    pub params: ClientParams,
    /// The IPv4 address reserved for it.
    pub ipv4: Option<Ipv4Addr>,
    /// The IPv6 address reserved for it, with the prefix length that will be pushed.
    pub ipv6: Option<Ipv6Net>,
    /// The second argument of the `ifconfig` that will be pushed: a netmask or the far end's address.
    pub netmask_or_far_end: Option<Ipv4Addr>,
}

/// A station behind a connected peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Station {
    /// The number of the peer's session ([`Identity::session`]).
    pub session: u64,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// The VLAN of the peer's frames.
    pub vlan: Option<VlanId>,
}

/// A client's request for its user name and password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialsRequest {
    /// The question that the server or the configuration adds.
    pub challenge: Option<Challenge>,
    /// The server's text of the refusal of the last attempt; empty if it gave none.
    pub rejected: Option<String>,
    /// Whether the client has a session, whose renegotiation waits for the password.
    pub renegotiation: bool,
}

/// A question to the user in addition to the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The text for the user.
    pub text: String,
    /// Whether the user's input may be shown.
    pub echo: bool,
    /// The kind of challenge, which defines how the answer is sent.
    pub kind: ChallengeKind,
}

/// The kind of a [`Challenge`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChallengeKind {
    /// `static-challenge`: the answer is sent together with the password.
    Static {
        /// Whether the answer is appended to the password as it is (`concat`) instead of in the form `SCRV1:...`.
        concatenate: bool,
    },
    /// A challenge that the server sent with AUTH_FAILED. The answer is sent instead of the password.
    Dynamic {
        /// The server's name for the state of this authentication.
        state: String,
        /// The user name to send with the answer.
        username: String,
        /// Whether an answer is expected.
        wants_response: bool,
    },
}

/// The response to a [`Request`].
#[derive(Clone)]
pub enum Response {
    /// Accepted, with the client's parameters, which are ignored in a renegotiation.
    Accept(ClientParams),
    /// Rejected.
    Reject(Rejection),
    /// Rejected for now. The text goes to the log and to the peer, which retries later.
    Later(String),
    /// Not the final answer: the decision takes up to `timeout` longer.
    Pending {
        /// The time from now.
        timeout: Duration,
        /// A text for the client (INFO_PRE), such as `WEB_AUTH::https://...`.
        info: Option<String>,
    },
    /// The answer to [`Request::Credentials`].
    Credentials {
        /// The user name.
        username: String,
        /// The password, in the form in which it is sent.
        password: Zeroizing<String>,
    },
}

// Written by hand because a derived implementation would print the password.
impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Accept(params) => f.debug_tuple("Accept").field(params).finish(),
            Self::Reject(rejection) => f.debug_tuple("Reject").field(rejection).finish(),
            Self::Later(text) => f.debug_tuple("Later").field(text).finish(),
            Self::Pending { timeout, info } => {
                f.debug_struct("Pending").field("timeout", timeout).field("info", info).finish()
            }
            Self::Credentials { username, .. } => {
                f.debug_struct("Credentials").field("username", username).finish_non_exhaustive()
            }
        }
    }
}

/// The reason of a rejection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    /// The text for the log.
    pub log: String,
    /// The text for the peer after `AUTH_FAILED,`; without it, the peer learns only that it was rejected.
    pub peer: Option<String>,
}

impl Rejection {
    /// Creates a rejection with a text for the peer, such as a dynamic challenge (`CRV1:...`).
    pub fn with_text(log: impl Into<String>, peer: impl Into<String>) -> Self {
        Self { log: log.into(), peer: Some(peer.into()) }
    }
}

impl From<String> for Rejection {
    fn from(log: String) -> Self {
        Self { log, peer: None }
    }
}

impl From<&str> for Rejection {
    fn from(log: &str) -> Self {
        log.to_owned().into()
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.log)
    }
}

/// The parameters of an accepted client, in addition to the defaults.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// `vlan-pvid`: the VLAN of its frames, in place of the server's.
    pub vlan: Option<VlanId>,
    /// `disable`: the peer gets no session. It is refused once its addresses are reserved, and after
    /// [`Request::Connect`], so that the end of its attempt is reported as that of any other peer.
    pub disabled: bool,
    /// The names and the limits of its session, if it has particular ones.
    pub session: Option<Box<SessionParams>>,
    /// Warnings about settings for this peer that have no effect.
    pub warnings: Box<[String]>,
}

/// The parameters of a session that most clients do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionParams {
    /// The name of the session instead of the common name in the certificate. Only the answer to [`Request::Authorize`] about a new session
    /// can set it.
    pub name: Option<String>,
    /// The name of the user whom the authorization has found, instead of the name that the peer sent. In renegotiations
    /// the peer may send either.
    pub username: Option<String>,
    /// The limits on the client's speed.
    pub rates: PeerRates,
}

/// `inactive`: ends a session with little traffic.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
