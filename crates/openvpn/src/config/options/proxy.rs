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
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user name and password from a file with one line for each, or from the terminal.
    pub login: Option<UserPass>,
    /// The authentication scheme.
    pub scheme: ProxyScheme,
    /// The version of HTTP: 1.0 or 1.1.
    pub version: String,
    /// The user agent.
    pub agent: Option<String>,
    /// Further headers.
    pub headers: Vec<(String, String)>,
}

/// `socks-proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocksProxy {
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user name and password from a file with one line for each, or from the terminal.
    pub login: Option<UserPass>,
}

/// The authentication method for an HTTP proxy.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyScheme {
    /// Basic.
    #[default]
    Basic,
    /// `auto`: the method that the proxy offers; Digest is preferred to Basic.
    Auto,
    /// `auto-nct`: the method that the proxy offers, except Basic.
    AutoNct,
}
