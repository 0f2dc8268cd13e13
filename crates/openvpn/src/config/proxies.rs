//! Proxies between a client and its servers, and a port shared with another service.

use std::path::Path;

use adit_engine::{Target, Transport};

use super::ConfigError;
use super::options::{
    HttpProxy, PortShare, Proxy, ProxyScheme, Role, Socket, SocksProxy, Source, UserPass,
};
use super::raw_config::RawConfig;
use super::reader::Directive;

/// Where a SOCKS proxy listens if nothing else is said (RFC 1928).
const SOCKS_PORT: u16 = 1080;

/// What stands in a draft; the directives may come in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Proxies {
    http: Option<HttpProxy>,
    socks: Option<SocksProxy>,
    /// `http-proxy-user-pass`, in a file or inline.
    login: Option<UserPass>,
    version: Option<String>,
    agent: Option<String>,
    headers: Vec<(String, String)>,
    pub(super) port_share: Option<PortShare>,
}

pub(super) fn apply(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    if d.name == "port-share" {
        d.shape("port-share HOST PORT", 2..=3)?;
        if d.get(2).is_some() {
            return Err(d.error(
                "a directory with the addresses of foreign clients is not supported",
                "write the host and the port only",
            ));
        }
        raw.proxies.port_share = Some(PortShare { host: host(d)?, port: port(d, 1)? });
        return Ok(true);
    }
    take(&mut raw.proxies, raw.base.as_deref(), d)
}

/// What concerns the proxy of all servers, or of the one of a `<connection>` block.
pub(super) fn take(
    proxies: &mut Proxies,
    base: Option<&Path>,
    d: &Directive,
) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "http-proxy" => {
            d.shape("http-proxy HOST PORT [FILE|stdin|auto|auto-nct] [none|basic]", 2..=4)?;
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
                host: host(d)?,
                port: port(d, 1)?,
                login,
                scheme,
                version: String::new(),
                agent: None,
                headers: Vec::new(),
            });
        }
        "http-proxy-user-pass" => {
            d.shape("http-proxy-user-pass FILE <inline>", 1..=1)?;
            let source = d.source("http-proxy-user-pass", base).map(UserPass::Source);
            proxies.login = source.or(proxies.login.take());
        }
        "http-proxy-option" => option(proxies, d)?,
        "socks-proxy" => {
            d.shape("socks-proxy HOST [PORT] [FILE]", 1..=3)?;
            let port = d.get(1).map(|_| port(d, 1)).transpose()?;
            let login = d.get(2).map(|word| match word {
                "stdin" => UserPass::Prompt,
                _ => UserPass::Source(Source::File(d.path(2, base))),
            });
            let port = port.unwrap_or(SOCKS_PORT);
            proxies.socks = Some(SocksProxy { host: host(d)?, port, login });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn host(d: &Directive) -> Result<String, ConfigError> {
    let host = d.arg(0);
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() || host.len() > 253 || host.contains(|c: char| c.is_whitespace()) {
        return Err(d.error(format!("\"{host}\" is not a host"), "write a name or an address"));
    }
    Ok(host.to_owned())
}

fn port(d: &Directive, at: usize) -> Result<u16, ConfigError> {
    match d.port(at)? {
        0 => Err(d.error("port 0 cannot be reached", "write the port on which it listens")),
        port => Ok(port),
    }
}

/// The kind of authentication, in the third place or the fourth.
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

fn option(proxies: &mut Proxies, d: &Directive) -> Result<(), ConfigError> {
    d.shape("http-proxy-option VERSION|AGENT|CUSTOM-HEADER ...", 2..=3)?;
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
            // "Name: value" in one argument, or both.
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
    /// The proxy for HTTP of a block or of all, with what is said of all where the block says nothing.
    fn http(&self, all: &Proxies) -> Option<HttpProxy> {
        let http = self.http.clone()?;
        let headers = if self.headers.is_empty() { &all.headers } else { &self.headers };
        let version = self.version.as_ref().or(all.version.as_ref());
        Some(HttpProxy {
            // As stock has it, the directive of its own wins.
            login: self.login.clone().or(http.login).or_else(|| all.login.clone()),
            version: version.cloned().unwrap_or_else(|| "1.0".into()),
            agent: self.agent.clone().or_else(|| all.agent.clone()),
            headers: headers.clone(),
            ..http
        })
    }
}

/// The proxy before one server, as its place in the list of all proxies: that of its own block, or the
/// one of all.
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

/// A port can be shared only where connections are accepted.
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
