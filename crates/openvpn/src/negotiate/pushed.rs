use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::{DataCipher, DnsOptions};
use adit_engine::auth::Inactive;
use base64::Engine as _;
use ipnet::{Ipv4Net, Ipv6Net};
use zeroize::Zeroizing;

use super::{
    FilterAction, PullFilters, PushedOption, REDIRECT_FLAGS, ReplyItem, RouteContext, RouteSpec,
    is_host_name, parse_route4, parse_route6,
};
use crate::data_format::Framing;

/// The maximum number of pushed routes to names.
const MAX_NAMED_ROUTES: usize = 16;

/// The note on an option that would compress packets.
const DECOMPRESSED: &str = "packets of the other end are decompressed; our own are never compressed, because that \
     gives away their content (VORACLE)";

/// The maximum number of variables that a server may push, and the maximum length of their names.
const MAX_VARIABLES: usize = 64;
const MAX_VARIABLE_NAME: usize = 64;

/// Returns the framing that `comp-lzo` or `compress` with this word requests, and whether its
/// packets would be compressed.
pub(crate) fn compression(name: &str, word: &str) -> Option<(Framing, bool)> {
    Some(match (name, word) {
        ("comp-lzo", "no") => (Framing::LzoStub, false),
        ("comp-lzo", "" | "yes" | "adaptive") | ("compress", "lzo") => (Framing::LzoStub, true),
        ("compress", "" | "stub") => (Framing::SwapStub, false),
        ("compress", "lz4") => (Framing::SwapStub, true),
        ("compress", "stub-v2") => (Framing::StubV2, false),
        ("compress", "lz4-v2") => (Framing::StubV2, true),
        _ => return None,
    })
}

/// The options that a server pushed, parsed. Fields are `None` or empty if they were not pushed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PushedOptions {
    /// `ifconfig`: our address and network.
    pub ipv4: Option<Ipv4Net>,
    /// The far end if there is no network. In this case [`Self::ipv4`] is a /32.
    pub far4: Option<Ipv4Addr>,
    /// `ifconfig-ipv6`: our address and network.
    pub ipv6: Option<Ipv6Net>,
    /// `route-gateway`, or the far end of a `net30` pair.
    pub gateway4: Option<Ipv4Addr>,
    /// The far end in `ifconfig-ipv6`, or `route-ipv6-gateway`.
    pub gateway6: Option<Ipv6Addr>,
    /// `route`.
    pub routes4: Vec<RouteSpec<Ipv4Net, Ipv4Addr>>,
    /// `route-ipv6`.
    pub routes6: Vec<RouteSpec<Ipv6Net, Ipv6Addr>>,
    /// `route` with a host's name as its destination, as words. Only a client that allows it looks them up.
    pub named_routes: Vec<Vec<String>>,
    /// `route-metric`.
    pub route_metric: Option<u32>,
    /// `redirect-gateway` flags, combined from all such options.
    pub redirect_gateway: Option<Vec<String>>,
    /// `redirect-private` flags.
    pub redirect_private: Option<Vec<String>>,
    /// `block-ipv6`.
    pub block_ipv6: bool,
    /// `ping`.
    pub ping: Option<Duration>,
    /// `ping-restart` or `ping-exit`.
    pub ping_timeout: Option<Duration>,
    /// Whether [`Self::ping_timeout`] comes from `ping-exit`.
    pub exit_on_timeout: bool,
    /// `dhcp-option` and `dns`.
    pub dns: DnsOptions,
    /// `peer-id`, 24 bits; also `None` if it is 0xFFFFFF.
    pub peer_id: Option<u32>,
    /// `cipher`.
    pub cipher: Option<DataCipher>,
    /// `key-derivation tls-ekm` or `protocol-flags tls-ekm`.
    pub tls_ekm: bool,
    /// `protocol-flags cc-exit`.
    pub cc_exit: bool,
    /// `protocol-flags dyn-tls-crypt`.
    pub dyn_tls_crypt: bool,
    /// `protocol-flags aead-epoch`: the data format of 2.7.
    pub epoch: bool,
    /// `tun-mtu`.
    pub tun_mtu: Option<u16>,
    /// `auth-token`: replaces the password from now on, also in rekeys.
    pub auth_token: Option<Zeroizing<String>>,
    /// `auth-token-user`, decoded from base64: replaces the user name.
    pub auth_token_user: Option<String>,
    /// `explicit-exit-notify`: the number of attempts.
    pub exit_notify: Option<u8>,
    /// `reneg-sec`.
    pub reneg_sec: Option<Duration>,
    /// `sndbuf`: bytes.
    pub send_buffer: Option<u32>,
    /// `rcvbuf`: bytes.
    pub receive_buffer: Option<u32>,
    /// `comp-lzo no`, `compress stub|stub-v2`: replaces the configured framing.
    pub framing: Option<Framing>,
    /// `fragment` with its arguments. A server cannot push it, so it is only reported.
    pub fragment: Option<String>,
    /// `session-timeout`: the session ends after this time.
    pub session_timeout: Option<Duration>,
    /// `inactive`: the session ends when there is too little traffic.
    pub inactive: Option<Inactive>,
    /// `setenv-safe`: variables for programs, with `OPENVPN_` before their names.
    pub environment: Vec<(String, String)>,
    /// Harmless options that were left out, one line each for the log.
    pub notes: Vec<String>,
}

// Implemented by hand to keep the token, which is equivalent to a password, out of the logs.
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

/// The reason why a session cannot continue with the pushed options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushRefused {
    /// The option changes the packets on the wire and is not supported, so each end would discard
    /// the other's packets. The client ends for good.
    Unsupported {
        /// The option.
        option: String,
        /// The reason, and what the server's operator can do.
        reason: String,
    },
    /// The option cannot be parsed; restart the session.
    Malformed {
        /// The option.
        option: String,
        /// The option's defect.
        reason: String,
    },
    /// A PUSH_UPDATE requests a change that is impossible within a session; restart it, as OpenVPN
    /// does.
    NotUpdatable(String),
    /// A configured `pull-filter reject` matches; restart the session, as OpenVPN does.
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
            Self::NotUpdatable(option) => {
                write!(
                    f,
                    "the server wants to change \"{option}\", which cannot change in a session"
                )
            }
            Self::Filtered(option) => {
                write!(f, "the server pushes \"{option}\", which a pull-filter rejects")
            }
        }
    }
}

impl std::error::Error for PushRefused {}

impl PushedOptions {
    /// Parses the items of a PUSH_REPLY after applying `filters`. Also returns the lexed options,
    /// for later updates.
    ///
    /// # Errors
    /// [`PushRefused`]
    pub fn from_reply(
        items: Vec<ReplyItem>,
        filters: &PullFilters,
    ) -> Result<(Self, Vec<PushedOption>), PushRefused> {
        let mut notes = Vec::new();
        let mut options = Vec::with_capacity(items.len());
        for item in items {
            match item.0 {
                Ok(option) => options.push(option),
                Err(refused) => notes.push(format!("left out, cannot be parsed: {refused}")),
            }
        }
        let mut pushed = Self::parse(&options, filters)?;
        pushed.notes.append(&mut notes);
        // A token is never part of an update, and must not be kept longer than needed.
        options.retain(|option| !option.is_secret());
        Ok((pushed, options))
    }

    /// Parses options after applying `filters`.
    ///
    /// # Errors
    /// [`PushRefused`]
    pub fn parse(options: &[PushedOption], filters: &PullFilters) -> Result<Self, PushRefused> {
        let mut reader = Reader::default();
        for option in options {
            match filters.decide(option) {
                FilterAction::Accept => reader.option(option)?,
                FilterAction::Ignore => {
                    reader.out.notes.push(format!("left out as configured: {}", option.shown()));
                }
                FilterAction::Reject => return Err(PushRefused::Filtered(option.shown())),
            }
        }
        reader.finish()
    }

    /// Returns the addresses for the words in routes, such as `vpn_gateway`, with the server's
    /// address `remote`.
    pub fn route_context(&self, remote: Option<IpAddr>) -> RouteContext {
        RouteContext {
            remote,
            gateway4: self.gateway4,
            gateway6: self.gateway6,
            metric: self.route_metric,
        }
    }
}

/// An option whose arguments are being read.
struct OptionReader<'a> {
    option: &'a PushedOption,
}

impl OptionReader<'_> {
    fn arg(&self, index: usize) -> &str {
        self.option.args().get(index).map(String::as_str).unwrap_or_default()
    }

    fn args(&self) -> Vec<&str> {
        self.option.args().iter().map(String::as_str).collect()
    }

    fn malformed(&self, reason: impl Into<String>) -> PushRefused {
        PushRefused::Malformed { option: self.option.shown(), reason: reason.into() }
    }

    fn unsupported(&self, reason: impl Into<String>) -> PushRefused {
        PushRefused::Unsupported { option: self.option.shown(), reason: reason.into() }
    }

    fn parse<T: std::str::FromStr>(&self, index: usize, what: &str) -> Result<T, PushRefused> {
        self.arg(index).parse().map_err(|_| self.malformed(format!("it needs {what}")))
    }

    fn seconds(&self) -> Result<Duration, PushRefused> {
        self.parse::<u32>(0, "a number of seconds").map(|n| Duration::from_secs(n.into()))
    }
}

#[derive(Default)]
struct Reader {
    out: PushedOptions,
    /// `ifconfig` as pushed: its second argument is a netmask or the far end, depending on
    /// `topology`.
    ifconfig: Option<(Ipv4Addr, Ipv4Addr)>,
    subnet: bool,
}

impl Reader {
    fn option(&mut self, option: &PushedOption) -> Result<(), PushRefused> {
        let words = OptionReader { option };
        let name = option.name();
        let taken = self.addresses(name, &words)?
            || self.routes(name, &words)
            || self.channel(name, &words)?
            || self.timers(name, &words)?
            || self.rest(name, &words)?;
        if !taken {
            self.out.notes.push(format!("left out, not supported: {}", option.shown()));
        }
        Ok(())
    }

    fn addresses(&mut self, name: &str, w: &OptionReader<'_>) -> Result<bool, PushRefused> {
        match name {
            "ifconfig" => {
                let local: Ipv4Addr = w.parse(0, "an address and a netmask")?;
                let unusable = local.is_unspecified() || local.is_loopback();
                if unusable || local.is_multicast() || local.is_broadcast() {
                    return Err(w.malformed("no end of a tunnel can have this address"));
                }
                self.ifconfig = Some((local, w.parse(1, "an address and a netmask")?));
            }
            "ifconfig-ipv6" => {
                let net: Ipv6Net = match w.arg(0).parse() {
                    Ok(net) => net,
                    // Without a length it is a /64, as in OpenVPN.
                    Err(_) => Ipv6Net::new(w.parse(0, "an address with its prefix length")?, 64)
                        .map_err(|_| w.malformed("it needs an address with its prefix length"))?,
                };
                let local = net.addr();
                if local.is_unspecified() || local.is_loopback() || local.is_multicast() {
                    return Err(w.malformed("no end of a tunnel can have this address"));
                }
                self.out.ipv6 = Some(net);
                if !w.arg(1).is_empty() {
                    self.out.gateway6 = Some(w.parse(1, "the far end's address")?);
                }
            }
            "topology" => match w.arg(0) {
                "subnet" => self.subnet = true,
                "net30" | "p2p" => self.subnet = false,
                _ => return Err(w.malformed("there is no such topology")),
            },
            "route-gateway" if w.arg(0) == "dhcp" => return Ok(false),
            "route-gateway" => self.out.gateway4 = Some(w.parse(0, "an address")?),
            "route-ipv6-gateway" => self.out.gateway6 = Some(w.parse(0, "an address")?),
            "tun-mtu" => {
                let mtu: u16 = w.parse(0, "a size in bytes")?;
                // A smaller MTU cannot carry IPv4.
                if mtu < 576 {
                    return Err(w.malformed("it is below 576"));
                }
                self.out.tun_mtu = Some(mtu);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses a route. A malformed route is left out and does not end the session.
    fn routes(&mut self, name: &str, w: &OptionReader<'_>) -> bool {
        match name {
            "route" => match parse_route4(&w.args()) {
                Ok(route) => self.out.routes4.push(route),
                Err(_) if is_host_name(w.arg(0)) => self.named_route(w),
                Err(why) => self.note(w, &why),
            },
            "route-ipv6" => match parse_route6(&w.args()) {
                Ok(route) => self.out.routes6.push(route),
                Err(why) => self.note(w, &why),
            },
            "route-metric" => match w.arg(0).parse() {
                Ok(metric) => self.out.route_metric = Some(metric),
                Err(_) => self.note(w, "it needs a number"),
            },
            "redirect-gateway" | "redirect-private" => {
                let (known, unknown): (Vec<_>, Vec<_>) = w
                    .args()
                    .iter()
                    .map(|flag| flag.to_ascii_lowercase())
                    .partition(|flag| REDIRECT_FLAGS.contains(&flag.as_str()));
                let flags = if name == "redirect-gateway" {
                    &mut self.out.redirect_gateway
                } else {
                    &mut self.out.redirect_private
                };
                flags.get_or_insert_default().extend(known);
                if !unknown.is_empty() {
                    self.note(w, "unknown flags are left out");
                }
            }
            "block-ipv6" => self.out.block_ipv6 = true,
            "dhcp-option" | "dns" => {
                if let Err(why) = self.out.dns.add(name, &w.args(), true) {
                    self.note(w, &why.to_string());
                }
            }
            _ => return false,
        }
        true
    }

    /// Keeps a route to a name, if it would be a route with an address in the name's place.
    fn named_route(&mut self, w: &OptionReader<'_>) {
        let words = w.args();
        let rest = words.get(1..).unwrap_or_default();
        let probe: Vec<&str> = std::iter::once("0.0.0.0").chain(rest.iter().copied()).collect();
        if let Err(why) = parse_route4(&probe) {
            return self.note(w, &why);
        }
        if self.out.named_routes.len() >= MAX_NAMED_ROUTES {
            return self.note(w, "there are too many names");
        }
        self.out.named_routes.push(words.into_iter().map(str::to_owned).collect());
    }

    fn channel(&mut self, name: &str, w: &OptionReader<'_>) -> Result<bool, PushRefused> {
        match name {
            "peer-id" => {
                let id: u32 = w.parse(0, "a number")?;
                if id > 0xff_ffff {
                    return Err(w.malformed("it has more than 24 bits"));
                }
                self.out.peer_id = (id != 0xff_ffff).then_some(id);
            }
            "cipher" => {
                let cipher = DataCipher::from_name(&w.arg(0).to_ascii_uppercase());
                self.out.cipher = Some(cipher.ok_or_else(|| {
                    w.unsupported("this cipher is not supported; the server's data-ciphers should have AES-256-GCM")
                })?);
            }
            "key-derivation" => match w.arg(0) {
                "tls-ekm" => self.out.tls_ekm = true,
                _ => return Err(w.unsupported("this way to derive keys is not supported")),
            },
            "protocol-flags" => {
                for flag in w.args() {
                    match flag {
                        "tls-ekm" => self.out.tls_ekm = true,
                        "cc-exit" => self.out.cc_exit = true,
                        "dyn-tls-crypt" => self.out.dyn_tls_crypt = true,
                        "aead-epoch" => self.out.epoch = true,
                        other => {
                            return Err(
                                w.unsupported(format!("protocol flag {other} is not supported"))
                            );
                        }
                    }
                }
            }
            "comp-lzo" | "compress" => {
                let Some((framing, compresses)) = compression(name, w.arg(0)) else {
                    return Err(w.unsupported("this compression is not known"));
                };
                self.out.framing = Some(framing);
                if compresses {
                    self.out.notes.push(format!("{}: {DECOMPRESSED}", w.option.shown()));
                }
            }
            "fragment" => self.out.fragment = Some(w.option.shown()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn timers(&mut self, name: &str, w: &OptionReader<'_>) -> Result<bool, PushRefused> {
        match name {
            "ping" => self.out.ping = Some(w.seconds()?),
            // Servers push `ping` and `ping-restart` instead; only an update may contain
            // `keepalive`. OpenVPN ignores it in a reply, so a malformed one must not end the
            // session.
            "keepalive" => {
                let timeout = w.parse::<u32>(1, "two numbers of seconds");
                if let (Ok(ping), Ok(timeout)) = (w.seconds(), timeout) {
                    self.out.ping = Some(ping);
                    self.out.ping_timeout = Some(Duration::from_secs(timeout.into()));
                } else {
                    self.note(w, "it needs two numbers of seconds");
                }
            }
            "ping-restart" | "ping-exit" => {
                self.out.ping_timeout = Some(w.seconds()?);
                self.out.exit_on_timeout = name == "ping-exit";
            }
            // OpenVPN ignores a malformed value here too.
            "reneg-sec" => match w.seconds() {
                Ok(after) => self.out.reneg_sec = Some(after),
                Err(_) => self.note(w, "it needs a number of seconds"),
            },
            "session-timeout" => self.out.session_timeout = Some(w.seconds()?),
            "inactive" => {
                let bytes = match w.arg(1) {
                    "" => 0,
                    _ => w.parse::<i64>(1, "a number of bytes")?.try_into().unwrap_or(0),
                };
                self.out.inactive = Some(Inactive { after: w.seconds()?, bytes });
            }
            "explicit-exit-notify" => {
                self.out.exit_notify =
                    Some(if w.arg(0).is_empty() { 1 } else { w.parse(0, "a number of attempts")? });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn rest(&mut self, name: &str, w: &OptionReader<'_>) -> Result<bool, PushRefused> {
        match name {
            "auth-token" => {
                if w.arg(0).is_empty() {
                    return Err(w.malformed("it is empty"));
                }
                self.out.auth_token = Some(Zeroizing::new(w.arg(0).to_owned()));
            }
            "auth-token-user" => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(w.arg(0)).ok();
                let user = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                let user = user.filter(|user| !user.chars().any(char::is_control));
                self.out.auth_token_user =
                    Some(user.ok_or_else(|| w.malformed("it is not a name in base64"))?);
            }
            "setenv-safe" => self.variable(w),
            "sndbuf" => self.out.send_buffer = Some(w.parse(0, "a size in bytes")?),
            "rcvbuf" => self.out.receive_buffer = Some(w.parse(0, "a size in bytes")?),
            // These options have no effect here and do not need a note.
            "tun-ipv6" | "persist-key" | "persist-tun" | "verb" | "mute" | "echo"
            | "socket-flags" | "tcp-nodelay" | "block-outside-dns" | "register-dns"
            | "ip-win32" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes over a variable for programs. An unusable one is left out.
    fn variable(&mut self, w: &OptionReader<'_>) {
        let name = w.arg(0);
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if name.is_empty() || name.len() > MAX_VARIABLE_NAME || !plain {
            return self.note(w, "it is not a variable's name");
        }
        let name = format!("OPENVPN_{name}");
        self.out.environment.retain(|(other, _)| *other != name);
        if self.out.environment.len() >= MAX_VARIABLES {
            return self.note(w, "there are too many variables");
        }
        self.out.environment.push((name, w.arg(1).to_owned()));
    }

    fn note(&mut self, w: &OptionReader<'_>, why: &str) {
        self.out.notes.push(format!("left out: {}: {why}", w.option.shown()));
    }

    fn finish(mut self) -> Result<PushedOptions, PushRefused> {
        let Some((local, other)) = self.ifconfig else { return Ok(self.out) };
        let mask = Ipv4Net::with_netmask(local, other).ok().filter(|net| net.prefix_len() > 0);
        match mask {
            // Old servers do not push `topology subnet`. A far end's address never looks like a
            // netmask.
            Some(net) => self.out.ipv4 = Some(net),
            None if !self.subnet => {
                self.out.ipv4 = Some(Ipv4Net::from(local));
                self.out.far4 = Some(other);
                self.out.gateway4 = self.out.gateway4.or(Some(other));
            }
            _ => {
                return Err(PushRefused::Malformed {
                    option: format!("ifconfig {local} {other}"),
                    reason: format!("{other} is no netmask"),
                });
            }
        }
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests;
