//! Proxies between a client and its servers, and a port shared with another service.

use std::path::Path;

use adit_engine::{Target, Transport};

use super::ConfigError;
use super::options::{HttpProxy, Proxy, ProxyScheme, Role, Socket, SocksProxy, Source, UserPass};
use super::raw_config::RawConfig;
use super::reader::Directive;

/// The default port of a SOCKS proxy (RFC 1928).
const SOCKS_PORT: u16 = 1080;

/// The proxies for all servers, or for a `<connection>` block. The directives may come in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Proxies {
    http: Option<HttpProxy>,
    socks: Option<SocksProxy>,
    /// `http-proxy-user-pass`, in a file or inline.
    login: Option<UserPass>,
    version: Option<String>,
    agent: Option<String>,
    headers: Vec<(String, String)>,
}

/// Handles `http-proxy`.
pub(super) fn http(
    proxies: &mut Proxies,
    base: Option<&Path>,
    d: &Directive,
) -> Result<(), ConfigError> {
    let login = match d.get(2) {
        None | Some("" | "auto" | "auto-nct" | "none" | "basic") => None,
        Some("stdin") => Some(UserPass::Prompt),
        Some(_) => Some(UserPass::Source(Source::File(d.path(2, base)))),
    };
    let scheme = match d.get(2) {
        Some("auto") => ProxyScheme::Auto,
        Some("auto-nct") => ProxyScheme::AutoNct,
        _ => ProxyScheme::Basic,
    };
    method(d)?;
    proxies.http = Some(HttpProxy {
        host: d.host(0)?,
        port: d.reachable_port(1)?,
        login,
        scheme,
        version: String::new(),
        agent: None,
        headers: Vec::new(),
    });
    Ok(())
}

/// Handles `http-proxy-user-pass`.
pub(super) fn login(
    proxies: &mut Proxies,
    base: Option<&Path>,
    d: &Directive,
) -> Result<(), ConfigError> {
    let source = d.source("http-proxy-user-pass", base).map(UserPass::Source);
    proxies.login = source.or(proxies.login.take());
    Ok(())
}

/// Handles `socks-proxy`.
pub(super) fn socks(
    proxies: &mut Proxies,
    base: Option<&Path>,
    d: &Directive,
) -> Result<(), ConfigError> {
    let port = d.get(1).map(|_| d.reachable_port(1)).transpose()?.unwrap_or(SOCKS_PORT);
    let login = d.get(2).map(|word| match word {
        "stdin" => UserPass::Prompt,
        _ => UserPass::Source(Source::File(d.path(2, base))),
    });
    proxies.socks = Some(SocksProxy { host: d.host(0)?, port, login });
    Ok(())
}

/// Sets the authentication method from the third or the fourth argument.
fn method(d: &Directive) -> Result<(), ConfigError> {
    match d.get(3) {
        None | Some("none" | "basic") => Ok(()),
        Some(other) => Err(d.error(
            format!("authentication \"{other}\" is not supported towards a proxy"),
            "write basic, or auto in the place before it, which takes Digest where the proxy has it, or put a \
             proxy on this machine that knows it (cntlm)",
        )),
    }
}

/// Handles `http-proxy-option`.
pub(super) fn option(proxies: &mut Proxies, d: &Directive) -> Result<(), ConfigError> {
    let plain = |text: &str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if !plain(d.arg(1)) || !d.get(2).is_none_or(plain) {
        return Err(d.error("it has characters that a header cannot", "write plain ASCII"));
    }
    match d.arg(0) {
        "VERSION" if matches!(d.arg(1), "1.0" | "1.1") => {
            proxies.version = Some(d.arg(1).to_owned());
        }
        "VERSION" => return Err(d.error("it is no version of HTTP/1", "write 1.0 or 1.1")),
        "AGENT" => proxies.agent = Some(d.arg(1).to_owned()),
        "CUSTOM-HEADER" => {
            // "Name: value" is one argument or two.
            let (name, value) = match d.get(2) {
                Some(value) => (d.arg(1).trim_end_matches(':'), value),
                None => d.arg(1).split_once(':').unwrap_or((d.arg(1), "")),
            };
            proxies.headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
        other => {
            return Err(d.error(
                format!("\"{other}\" is not known"),
                "write VERSION, AGENT or CUSTOM-HEADER",
            ));
        }
    }
    Ok(())
}

impl Proxies {
    /// Returns the block's HTTP proxy, or the common one if the block has none. Settings that the block lacks are taken
    /// from the common ones.
    fn http(&self, all: &Self) -> Option<HttpProxy> {
        let http = self.http.clone()?;
        let headers = if self.headers.is_empty() { &all.headers } else { &self.headers };
        let version = self.version.as_ref().or(all.version.as_ref());
        Some(HttpProxy {
            // As in openvpn, the block's own directive takes precedence.
            login: self.login.clone().or(http.login).or_else(|| all.login.clone()),
            version: version.cloned().unwrap_or_else(|| "1.0".into()),
            agent: self.agent.clone().or_else(|| all.agent.clone()),
            headers: headers.clone(),
            ..http
        })
    }
}

/// Returns the proxy of a server as an index into the list of all proxies. This is the proxy of the server's block, or
/// the common one if the block has none.
pub(super) fn before(
    raw: &RawConfig,
    own: &Proxies,
    target: &Target,
    list: &mut Vec<Proxy>,
) -> Result<Option<u8>, ConfigError> {
    let all = &raw.proxies;
    let chosen = if own.http.is_some() || own.socks.is_some() { own } else { all };
    let proxy = match (chosen.http(all), chosen.socks.clone()) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(raw.error(
                "socks-proxy",
                "there is an http-proxy already, and a chain of proxies is not supported",
                "remove one of the two",
            ));
        }
        (Some(http), None) => Proxy::Http(http),
        (None, Some(socks)) => Proxy::Socks(socks),
    };
    if target.transport == Transport::Udp && matches!(proxy, Proxy::Http(_)) {
        return Err(raw.error(
            "http-proxy",
            "it carries TCP only, and a remote is over UDP",
            "write proto tcp-client, or a remote with tcp; or use socks-proxy",
        ));
    }
    let at = list.iter().position(|known| *known == proxy).unwrap_or_else(|| {
        list.push(proxy);
        list.len().saturating_sub(1)
    });
    let many = |_| raw.error("http-proxy", "there are too many proxies", "name 256 at most");
    u8::try_from(at).map(Some).map_err(many)
}

/// Checks that `port-share` is used only with a listener for TCP.
pub(super) fn check_share(
    raw: &RawConfig,
    role: &Role,
    socket: &Socket,
) -> Result<(), ConfigError> {
    let accepts = socket.listen.iter().any(|listen| listen.transport == Transport::Tcp);
    match role {
        Role::Server(server) if server.port_share.is_some() && !accepts => Err(raw.error(
            "port-share",
            "there is no TCP port to share",
            "write proto tcp-server, or add local ADDRESS PORT tcp-server",
        )),
        _ => Ok(()),
    }
}
