use std::path::PathBuf;

/// `management` and the directives that begin with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management {
    /// The address of the interface.
    pub place: ManagementPlace,
    /// The password that a client of the interface must send first.
    pub password: Option<ManagementPassword>,
    /// `management-client`: connect to the address instead of listening there.
    pub connects: bool,
    /// `management-client-user`: the user that may connect to the unix socket.
    pub client_user: Option<String>,
    /// `management-client-group`: the primary group that may connect to the unix socket.
    pub client_group: Option<String>,
    /// `management-hold`: wait for `hold release` before the start and before each restart.
    pub hold: bool,
    /// `management-query-passwords`: ask the interface instead of the terminal.
    pub query_passwords: bool,
    /// `management-query-remote`: ask before each attempt to connect.
    pub query_remote: bool,
    /// `management-query-proxy`: ask for the proxy before each attempt to connect.
    pub query_proxy: bool,
    /// `management-client-auth`: the interface decides which clients may connect.
    pub client_auth: bool,
    /// `management-up-down`: report when the tunnel comes up and goes down.
    pub up_down: bool,
    /// `management-forget-disconnect`: forget passwords when the client of the interface disconnects.
    pub forget_disconnect: bool,
    /// `management-signal`: restart when the client of the interface disconnects.
    pub signal: bool,
    /// `management-log-cache`: the number of log lines that are kept for the interface.
    pub log_cache: usize,
}

/// The address of the management interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagementPlace {
    /// `management PATH unix`.
    Unix(PathBuf),
    /// `management ADDRESS PORT`.
    Tcp(String, u16),
    /// `management tunnel PORT`: the address of this end in the tunnel.
    Tunnel(u16),
}

/// The source of the password of the management interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagementPassword {
    /// The first line of a file.
    File(PathBuf),
    /// `stdin`: the terminal.
    Prompt,
}
