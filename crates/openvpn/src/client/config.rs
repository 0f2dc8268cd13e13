use std::time::Duration;

use adit_engine::{Target, command::Keepalive};
use zeroize::Zeroizing;

use crate::negotiate::PullFilters;
use crate::session::Settings;
use crate::tls::ClientTls;

/// One `remote` (or `<connection>` block).
#[derive(Clone, Debug)]
pub struct Remote {
    /// Where.
    pub target: Target,
}

/// `auth-user-pass`.
#[derive(Clone)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// Password.
    pub password: Zeroizing<String>,
}

// By hand: passwords never reach a log.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// What a client engine is built from.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Common settings.
    pub settings: Settings,
    /// Certificates and verification.
    pub tls: ClientTls,
    /// Servers in the order to try; already shuffled where `remote-random` says so.
    pub remotes: Vec<Remote>,
    /// `connect-retry`: first wait and longest wait between rounds.
    pub connect_retry: (Duration, Duration),
    /// `connect-retry-max`: rounds before giving up; `None`: never.
    pub connect_retry_max: Option<u32>,
    /// `server-poll-timeout`: how long to wait for a server's first answer.
    pub server_poll_timeout: Duration,
    /// `auth-user-pass`.
    pub credentials: Option<Credentials>,
    /// `auth-retry nointeract`: try again with the same credentials after AUTH_FAILED.
    pub retry_auth: bool,
    /// `pull-filter`, `route-nopull`.
    pub pull_filters: PullFilters,
    /// Used where `pull` brings no other.
    pub keepalive: Keepalive,
    /// End after the TLS handshake, before the key exchange, which would end another session of the same
    /// certificate; go on only where the server takes part in checks.
    pub check: bool,
}

impl ClientConfig {
    /// A client of these servers with nothing else configured: the defaults of the directives above.
    pub fn new(settings: Settings, tls: ClientTls, remotes: Vec<Remote>) -> Self {
        Self {
            settings,
            tls,
            remotes,
            connect_retry: (Duration::from_secs(1), Duration::from_secs(300)),
            connect_retry_max: None,
            server_poll_timeout: Duration::from_secs(120),
            credentials: None,
            retry_auth: false,
            pull_filters: PullFilters::default(),
            keepalive: Keepalive::default(),
            check: false,
        }
    }
}
