use std::time::Duration;

use adit_engine::auth::Challenge;
use adit_engine::{Target, command::Keepalive};
use zeroize::Zeroizing;

use crate::config::AuthRetry;
use crate::negotiate::PullFilters;
use crate::session::Settings;
use crate::tls::ClientTls;

/// One `remote` (or `<connection>` block).
#[derive(Clone, Debug)]
pub struct Remote {
    /// The address and transport to connect to.
    pub target: Target,
}

/// `auth-user-pass`.
#[derive(Clone)]
pub struct Credentials {
    /// The user name.
    pub username: String,
    /// The password.
    pub password: Zeroizing<String>,
}

// Implemented by hand to keep passwords out of the logs.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// How a client authenticates its server and itself, in addition to TLS.
#[derive(Clone, Debug, Default)]
pub struct ClientAuth {
    /// Whether [`adit_engine::auth::Request::Credentials`] asks for a user name and password if there are none.
    pub ask: bool,
    /// Whether [`adit_engine::auth::Request::VerifyServer`] must accept the server before the password is sent.
    pub verify_server: bool,
    /// `auth-retry`.
    pub retry: AuthRetry,
    /// `auth-nocache`: forget the password as soon as it has been sent, and ask for it again.
    pub forget: bool,
    /// `static-challenge`: the question asked with the password.
    pub static_challenge: Option<Challenge>,
}

/// The configuration of a client engine.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The common settings.
    pub settings: Settings,
    /// The certificates and their verification.
    pub tls: ClientTls,
    /// The servers, in the order in which to try them; already shuffled if `remote-random` is
    /// configured.
    pub remotes: Vec<Remote>,
    /// `connect-retry`: the first and the longest wait between rounds.
    pub connect_retry: (Duration, Duration),
    /// `connect-retry-max`: the number of rounds before the client gives up, or `None` for no
    /// limit.
    pub connect_retry_max: Option<u32>,
    /// `server-poll-timeout`: the time to wait for a server's first answer.
    pub server_poll_timeout: Duration,
    /// `auth-user-pass`.
    pub credentials: Option<Credentials>,
    /// How this end authenticates the server and itself.
    pub auth: ClientAuth,
    /// `pull-filter`, `route-nopull`.
    pub pull_filters: PullFilters,
    /// The keepalive to use unless the server pushes another one.
    pub keepalive: Keepalive,
    /// Whether this is only a check. The client stops after the TLS handshake, because a key
    /// exchange would end another session with the same certificate, and goes further only if the
    /// server supports checks.
    pub check: bool,
}

impl ClientConfig {
    /// Creates a configuration for these servers, with the default values of the directives above.
    pub fn new(settings: Settings, tls: ClientTls, remotes: Vec<Remote>) -> Self {
        Self {
            settings,
            tls,
            remotes,
            connect_retry: (Duration::from_secs(1), Duration::from_secs(300)),
            connect_retry_max: None,
            server_poll_timeout: Duration::from_secs(120),
            credentials: None,
            auth: ClientAuth::default(),
            pull_filters: PullFilters::default(),
            keepalive: Keepalive::default(),
            check: false,
        }
    }
}
