use super::UserPass;

/// The proxy of a client's streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// `http-proxy`.
    Http(HttpProxy),
    /// `socks-proxy`.
    Socks(SocksProxy),
}

/// `http-proxy`, `http-proxy-option`, `http-proxy-user-pass`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProxy {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// User name and password, one line each, or from the terminal.
    pub login: Option<UserPass>,
    /// The authentication scheme.
    pub scheme: ProxyScheme,
    /// The version of HTTP: 1.0 or 1.1.
    pub version: String,
    /// User agent.
    pub agent: Option<String>,
    /// Further headers.
    pub headers: Vec<(String, String)>,
}

/// `socks-proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocksProxy {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// User name and password, one line each, or from the terminal.
    pub login: Option<UserPass>,
}

/// The authentication method for an HTTP proxy.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyScheme {
    /// Basic.
    #[default]
    Basic,
    /// `auto`: as the proxy wants it, Digest rather than Basic.
    Auto,
    /// `auto-nct`: as the proxy wants it, but not Basic.
    AutoNct,
}
