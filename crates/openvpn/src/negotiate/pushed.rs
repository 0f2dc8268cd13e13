use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use adit_crypto::Cipher;
use adit_engine::verbs::Framing;
use ipnet::{Ipv4Net, Ipv6Net};
use zeroize::Zeroizing;

use super::{PullFilters, RouteSpec};

/// What a server pushed, parsed. Fields are `None` or empty where nothing was pushed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PushedOptions {
    /// `ifconfig`: our address and network. A `net30` pair is given as its /30.
    pub ipv4: Option<Ipv4Net>,
    /// `ifconfig-ipv6`: our address and network.
    pub ipv6: Option<Ipv6Net>,
    /// `route-gateway`, or the far end of a `net30` pair.
    pub gateway4: Option<Ipv4Addr>,
    /// The far end in `ifconfig-ipv6`, or `route-ipv6-gateway`.
    pub gateway6: Option<Ipv6Addr>,
    /// `route`
    pub routes4: Vec<RouteSpec<Ipv4Net, Ipv4Addr>>,
    /// `route-ipv6`
    pub routes6: Vec<RouteSpec<Ipv6Net, Ipv6Addr>>,
    /// `route-metric`
    pub route_metric: Option<u32>,
    /// `redirect-gateway` flags, of all such lines.
    pub redirect_gateway: Option<Vec<String>>,
    /// `redirect-private` flags.
    pub redirect_private: Option<Vec<String>>,
    /// `block-ipv6`
    pub block_ipv6: bool,
    /// `ping`
    pub ping: Option<Duration>,
    /// `ping-restart` or `ping-exit`
    pub ping_timeout: Option<Duration>,
    /// It was `ping-exit`.
    pub exit_on_timeout: bool,
    /// `dhcp-option` and `dns` lines, whole.
    pub dns: Vec<String>,
    /// `peer-id`, 24 bits; `None` also for 0xFFFFFF.
    pub peer_id: Option<u32>,
    /// `cipher`
    pub cipher: Option<Cipher>,
    /// `key-derivation tls-ekm` or `protocol-flags tls-ekm`
    pub tls_ekm: bool,
    /// `protocol-flags cc-exit`
    pub cc_exit: bool,
    /// `protocol-flags dyn-tls-crypt`
    pub dyn_tls_crypt: bool,
    /// `tun-mtu`
    pub tun_mtu: Option<u16>,
    /// `auth-token`: to be sent instead of the password from now on, also in rekeys.
    pub auth_token: Option<Zeroizing<String>>,
    /// `auth-token-user`, decoded from base64: to be sent instead of the user name.
    pub auth_token_user: Option<String>,
    /// `explicit-exit-notify`: attempts.
    pub exit_notify: Option<u8>,
    /// `reneg-sec`
    pub reneg_sec: Option<Duration>,
    /// `sndbuf`, `rcvbuf`: bytes.
    pub send_buffer: Option<u32>,
    /// `rcvbuf`: bytes.
    pub receive_buffer: Option<u32>,
    /// `comp-lzo no`, `compress stub|stub-v2`: replaces the configured framing.
    pub framing: Option<Framing>,
    /// `session-timeout`: end after this long.
    pub session_timeout: Option<Duration>,
    /// What was left out, harmless: a line each for the log.
    pub notes: Vec<String>,
}

// By hand: the token is as good as a password.
impl fmt::Debug for PushedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushedOptions")
            .field("ipv4", &self.ipv4)
            .field("ipv6", &self.ipv6)
            .field("peer_id", &self.peer_id)
            .field("cipher", &self.cipher)
            .field("auth_token", &self.auth_token.is_some())
            .finish_non_exhaustive()
    }
}

/// Why a session cannot go on with what was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushRefused {
    /// It changes the packets on the wire, and we do not have it: the session would only exchange
    /// garbage. Ends the client for good.
    Unsupported {
        /// The option.
        option: String,
        /// Why, and what the server's operator may do.
        reason: String,
    },
    /// The option cannot be parsed; restart the session.
    Malformed {
        /// The option.
        option: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A `pull-filter reject` of ours matches; restart the session, as stock does.
    Filtered(String),
}

impl fmt::Display for PushRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { option, reason } => {
                write!(f, "the server pushes \"{option}\": {reason}")
            }
            Self::Malformed { option, reason } => {
                write!(f, "the server pushes \"{option}\", which is malformed: {reason}")
            }
            Self::Filtered(option) => {
                write!(f, "the server pushes \"{option}\", which a pull-filter rejects")
            }
        }
    }
}

impl std::error::Error for PushRefused {}

impl PushedOptions {
    /// Parses what a [`super::PushAssembler`] gave, `filters` first.
    ///
    /// # Errors
    /// [`PushRefused`]
    pub fn parse(options: &[String], filters: &PullFilters) -> Result<Self, PushRefused> {
        let _ = (options, filters);
        Ok(Self::default())
    }
}
