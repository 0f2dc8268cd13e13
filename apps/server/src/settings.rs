use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use adit_engine::Transport;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::event_settings::EventSettings;
use super::oidc_settings::OidcSettings;
use super::settings_keys;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::helper::files;
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::paths::shell_word;
use adit_runtime::settings::checked_device;

/// The maximum number of `listen` entries. Each needs a socket.
pub(crate) const MAX_LISTEN: usize = 16;
/// The maximum number of `routes`. Each is a pushed option.
pub(crate) const MAX_ROUTES: usize = 256;
/// The maximum number of `dns` addresses.
pub(crate) const MAX_DNS: usize = 8;
/// The maximum length of a user name, as in useradd.
const MAX_USER_NAME: usize = 32;

/// `server.toml`, read and checked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct Settings {
    /// The addresses to listen on. Profiles contain all of them, UDP first.
    pub listen: Vec<Listen>,
    /// The name or address that clients dial.
    pub host: String,
    /// The network inside the tunnel, in which the server has the first address.
    pub network: Ipv4Net,
    /// The IPv6 network inside the tunnel, if any.
    pub network6: Option<Ipv6Net>,
    /// The name of the TUN device.
    pub device: String,
    /// The traffic that clients send through the tunnel in addition to the network itself.
    pub reach: Reach,
    /// The name servers that are pushed to clients.
    pub dns: Vec<IpAddr>,
    /// Whether clients share this host's address for outside traffic.
    pub nat: Nat,
    /// Whether clients may communicate with each other.
    pub client_to_client: bool,
    /// The factors that a client needs.
    pub login: Login,
    /// The maximum number of connected clients.
    pub max_clients: u32,
    /// The size of the largest IP packet inside the tunnel, or `None` for 1500.
    pub mtu: Option<u16>,
    /// The number of threads that move packets; `None`: depends on the number of cores.
    pub workers: Option<u16>,
    /// The user that the serving process runs as; `None`: `adit` if it exists, else `nobody`.
    pub user: Option<String>,
    /// The file with the rules for packets in the tunnel. A relative path is relative to
    /// `server.toml`.
    pub filter: Option<PathBuf>,
    /// The name of PAM's service.
    pub pam_service: String,
    /// The program that is run for each event. A relative path is relative to `server.toml`.
    pub on_event: Option<PathBuf>,
    /// The webhook that gets each event.
    pub events: Option<EventSettings>,
    /// The provider with which users log in in a browser.
    pub oidc: Option<OidcSettings>,
    /// Where metrics are served.
    pub metrics: Option<MetricsConfig>,
}

/// The traffic that clients send through the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All traffic.
    Full,
    /// The traffic to the tunnel's own network and to these networks.
    Networks(Vec<IpNet>),
}

/// `nat`: the treatment of clients' traffic to the outside.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Nat {
    /// Masquerade packets that leave on a device other than the tunnel's.
    #[default]
    Auto,
    /// Do not masquerade. The network behind this host has a route to the clients.
    Off,
}

/// `login`: the factors that a client needs.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum Login {
    /// The certificate in its profile.
    #[default]
    #[serde(rename = "certificate")]
    Certificate,
    /// Also a user's name and password, and a one-time code if the user has codes.
    #[serde(rename = "certificate+password")]
    CertificatePassword,
    /// Also a user's name, password and one-time code.
    #[serde(rename = "certificate+password+code")]
    CertificatePasswordCode,
    /// A user's name and password, and a one-time code if the user has codes, without a certificate.
    #[serde(rename = "password")]
    Password,
    /// A user's name, password and one-time code, without a certificate.
    #[serde(rename = "password+code")]
    PasswordCode,
    /// The certificate, and a login in the browser with the provider of [`Settings::oidc`].
    #[serde(rename = "certificate+oidc")]
    CertificateOidc,
    /// A user's name and a password that PAM checks, without a certificate.
    #[serde(rename = "pam")]
    Pam,
    /// The certificate, and a user's name and a password that PAM checks.
    #[serde(rename = "certificate+pam")]
    CertificatePam,
}

impl Login {
    /// Returns the value in `server.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::CertificatePassword => "certificate+password",
            Self::CertificatePasswordCode => "certificate+password+code",
            Self::Password => "password",
            Self::PasswordCode => "password+code",
            Self::CertificateOidc => "certificate+oidc",
            Self::Pam => "pam",
            Self::CertificatePam => "certificate+pam",
        }
    }

    /// Returns whether a client needs the certificate in its profile. Otherwise sessions have the names of their users.
    pub fn uses_certificate(self) -> bool {
        !matches!(self, Self::Password | Self::PasswordCode | Self::Pam)
    }

    /// Returns whether users log in.
    pub fn has_users(self) -> bool {
        self != Self::Certificate
    }

    /// Returns whether users log in with a password.
    pub fn asks_password(self) -> bool {
        self.has_users() && self != Self::CertificateOidc
    }

    /// Returns whether PAM checks the passwords.
    pub fn uses_pam(self) -> bool {
        matches!(self, Self::Pam | Self::CertificatePam)
    }

    /// Returns whether every user needs a one-time code.
    pub fn requires_code(self) -> bool {
        matches!(self, Self::CertificatePasswordCode | Self::PasswordCode)
    }
}

/// An endpoint to listen on, such as `udp/1194`, `tcp/443`, `udp/192.0.2.1:1194` or `tcp/[2001:db8::1]:443`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Listen {
    /// The address, or `None` for all addresses of both families.
    pub address: Option<IpAddr>,
    /// The UDP or TCP port.
    pub port: u16,
    /// UDP or TCP.
    pub transport: Transport,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((protocol, place)) = text.split_once('/') else {
            return Err(format!("{text:?} is not PROTOCOL/PORT; write udp/1194"));
        };
        let transport = match protocol {
            "udp" => Transport::Udp,
            "tcp" => Transport::Tcp,
            _ => return Err(format!("{protocol:?} is not a protocol; write udp/1194 or tcp/443")),
        };
        let listen = if let Ok(socket) = place.parse::<SocketAddr>() {
            Self { address: Some(socket.ip()), port: socket.port(), transport }
        } else if let Ok(port) = place.parse() {
            Self { address: None, port, transport }
        } else {
            return Err(format!(
                "{place:?} is neither a port nor ADDRESS:PORT; write udp/1194 or udp/192.0.2.1:1194"
            ));
        };
        if listen.port == 0 {
            return Err("port 0 cannot be dialled; write udp/1194".into());
        }
        Ok(listen)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol();
        match self.address {
            Some(address) => write!(f, "{protocol}/{}", SocketAddr::new(address, self.port)),
            None => write!(f, "{protocol}/{}", self.port),
        }
    }
}

impl Listen {
    /// Returns a UDP port on every address.
    pub const fn udp(port: u16) -> Self {
        Self { address: None, port, transport: Transport::Udp }
    }

    /// Returns `udp` or `tcp`.
    pub fn protocol(&self) -> &'static str {
        match self.transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}

/// The file before it is checked. All keys except two are optional.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Raw {
    #[serde(default = "default_listen")]
    listen: Vec<Listen>,
    host: String,
    network: Ipv4Net,
    #[serde(default)]
    network6: Option<Ipv6Net>,
    #[serde(default = "default_device")]
    device: String,
    #[serde(default)]
    full_tunnel: bool,
    #[serde(default)]
    routes: Vec<IpNet>,
    #[serde(default)]
    dns: Vec<IpAddr>,
    #[serde(default)]
    nat: Nat,
    #[serde(default)]
    client_to_client: bool,
    #[serde(default)]
    login: Login,
    #[serde(default = "default_max_clients")]
    max_clients: u32,
    #[serde(default)]
    mtu: Option<u16>,
    #[serde(default)]
    workers: Option<u16>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    filter: Option<String>,
    #[serde(default = "default_pam_service")]
    pam_service: String,
    #[serde(default)]
    metrics: Option<MetricsConfig>,
    #[serde(default)]
    on_event: Option<String>,
    // Tables come after all other keys.
    #[serde(default)]
    events: Option<EventSettings>,
    #[serde(default)]
    oidc: Option<OidcSettings>,
}

fn default_listen() -> Vec<Listen> {
    vec![Listen::udp(1194)]
}

fn default_device() -> String {
    "adit0".into()
}

fn default_pam_service() -> String {
    "adit".into()
}

fn default_max_clients() -> u32 {
    250
}

impl TryFrom<Raw> for Settings {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        bounded("listen", raw.listen.len(), 1, MAX_LISTEN)?;
        bounded("routes", raw.routes.len(), 0, MAX_ROUTES)?;
        bounded("dns", raw.dns.len(), 0, MAX_DNS)?;
        if raw.full_tunnel && !raw.routes.is_empty() {
            return Err("full-tunnel = true already covers every network: remove routes, or set \
                        full-tunnel = false"
                .into());
        }
        if raw.max_clients == 0 {
            return Err("max-clients = 0 admits no client; write a number from 1".into());
        }
        check_routes(&raw)?;
        if raw.login == Login::CertificateOidc && raw.oidc.is_none() {
            return Err("login = \"certificate+oidc\" needs a provider: add a section [oidc] with issuer and client-id"
                .into());
        }
        let reach = if raw.full_tunnel {
            Reach::Full
        } else {
            Reach::Networks(raw.routes.iter().map(IpNet::trunc).collect())
        };
        Ok(Self {
            listen: raw.listen,
            host: checked_host(&raw.host)?,
            network: checked_network(raw.network)?,
            network6: raw.network6.map(checked_network6).transpose()?,
            device: checked_device(&raw.device)?,
            reach,
            dns: raw.dns,
            nat: raw.nat,
            client_to_client: raw.client_to_client,
            login: raw.login,
            max_clients: raw.max_clients,
            mtu: raw.mtu.map(checked_mtu).transpose()?,
            workers: raw.workers.map(adit_runtime::worker_count::checked).transpose()?,
            user: raw.user.as_deref().map(checked_user).transpose()?,
            filter: raw.filter.as_deref().map(checked_filter).transpose()?,
            pam_service: checked_service(raw.pam_service)?,
            on_event: raw.on_event.as_deref().map(checked_program).transpose()?,
            events: raw.events.map(EventSettings::checked).transpose()?,
            oidc: raw.oidc.map(OidcSettings::checked).transpose()?,
            metrics: raw.metrics,
        })
    }
}

impl From<Settings> for Raw {
    fn from(settings: Settings) -> Self {
        let (full_tunnel, routes) = match settings.reach {
            Reach::Full => (true, Vec::new()),
            Reach::Networks(routes) => (false, routes),
        };
        Self {
            listen: settings.listen,
            host: settings.host,
            network: settings.network,
            network6: settings.network6,
            device: settings.device,
            full_tunnel,
            routes,
            dns: settings.dns,
            nat: settings.nat,
            client_to_client: settings.client_to_client,
            login: settings.login,
            max_clients: settings.max_clients,
            mtu: settings.mtu,
            workers: settings.workers,
            user: settings.user,
            filter: settings.filter.map(|path| path.to_string_lossy().into_owned()),
            pam_service: settings.pam_service,
            on_event: settings.on_event.map(|path| path.to_string_lossy().into_owned()),
            events: settings.events,
            oidc: settings.oidc,
            metrics: settings.metrics,
        }
    }
}

/// Returns the command that creates this file.
fn init_for(path: &Path) -> String {
    match path.parent().filter(|folder| *folder != Path::new("/etc/adit")) {
        Some(folder) => format!("adit server init --dir {}", shell_word(folder)),
        None => "adit server init".to_owned(),
    }
}

/// Checks an MTU. Every link carries 1280 bytes of IPv6, and paths cannot be relied on to carry
/// more than 1500.
fn checked_mtu(mtu: u16) -> Result<u16, String> {
    match mtu {
        1280..=1500 => Ok(mtu),
        _ => {
            Err(format!("mtu {mtu}: write a number between 1280 and 1500, for example mtu = 1400"))
        }
    }
}

/// Checks the routes. A network behind the server cannot be the one inside the tunnel.
fn check_routes(raw: &Raw) -> Result<(), String> {
    let inside: Vec<(&str, IpNet)> = [
        Some(("network", IpNet::V4(raw.network))),
        raw.network6.map(|network| ("network6", IpNet::V6(network))),
    ]
    .into_iter()
    .flatten()
    .collect();
    for route in &raw.routes {
        if let Some((key, network)) =
            inside.iter().find(|(_, network)| network.contains(route) || route.contains(network))
        {
            return Err(format!(
                "routes: {route} overlaps {key} {network}, the tunnel's own: clients could not tell \
                 them apart; choose another {key}"
            ));
        }
    }
    Ok(())
}

fn bounded(key: &str, len: usize, least: usize, most: usize) -> Result<(), String> {
    if (least..=most).contains(&len) {
        Ok(())
    } else {
        Err(format!("{key} has {len} entries; write {least} to {most}"))
    }
}

/// Checks the host, which profiles contain as a word of OpenVPN's config language.
pub(super) fn checked_host(host: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-:_".contains(c);
    if host.is_empty() || host.len() > 253 || !host.chars().all(allowed) {
        return Err(format!(
            "host {host:?} is not a name or address; write host = \"vpn.example.net\""
        ));
    }
    Ok(host.to_owned())
}

/// Checks the user name, which is quoted in the file.
fn checked_user(name: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > MAX_USER_NAME || !name.chars().all(allowed) {
        return Err(format!("user {name:?} is not a user's name; write user = \"adit\""));
    }
    if matches!(name, "root" | "0") {
        return Err("user = \"root\" would give this machine to a client that breaks in; write user = \"adit\""
            .into());
    }
    Ok(name.to_owned())
}

/// Checks the name of PAM's service, which is that of a file in /etc/pam.d.
fn checked_service(name: String) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || name.len() > MAX_USER_NAME || !name.chars().all(allowed) {
        return Err(format!(
            "pam-service {name:?} is not the name of a file in /etc/pam.d; write pam-service = \"adit\""
        ));
    }
    Ok(name)
}

/// Checks the path of the program for events.
fn checked_program(path: &str) -> Result<PathBuf, String> {
    if path.contains("://") {
        return Err(format!(
            "on-event = {path:?} is not a program: for a webhook, write a section [events] with url = {path:?}"
        ));
    }
    checked_path("on-event", path)
}

/// Checks the path, which is quoted in the file.
pub(super) fn checked_filter(path: &str) -> Result<PathBuf, String> {
    checked_path("filter", path)
        .map_err(|why| format!("{why}; write filter = \"/etc/adit/rules.nft\""))
}

/// Checks a path that is quoted in the file.
pub(super) fn checked_path(key: &str, path: &str) -> Result<PathBuf, String> {
    if path.is_empty() || path.chars().any(|c| c.is_control() || "\"\\".contains(c)) {
        return Err(format!("{key} {path:?} is not a path to a file"));
    }
    Ok(path.into())
}

pub(super) fn checked_network(network: Ipv4Net) -> Result<Ipv4Net, String> {
    if !(8..=29).contains(&network.prefix_len()) {
        return Err(format!(
            "network {network}: the prefix length must be between 8 and 29; write for example \
             network = \"10.87.31.0/24\""
        ));
    }
    Ok(network.trunc())
}

pub(super) fn checked_network6(network: Ipv6Net) -> Result<Ipv6Net, String> {
    if !(48..=112).contains(&network.prefix_len()) {
        return Err(format!(
            "network6 {network}: the prefix length must be between 48 and 112; write for example \
             network6 = \"fd12:3456:789a::/64\""
        ));
    }
    Ok(network.trunc())
}

impl Settings {
    /// Reads and checks the file.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let text =
            files::open(path).and_then(std::io::read_to_string).map_err(|error| {
                match error.kind() {
                    std::io::ErrorKind::NotFound => Fault::operator(format!(
                        "there is no {}; create it with: {}",
                        path.display(),
                        init_for(path)
                    )),
                    _ => file_fault("cannot read", path, &error),
                }
            })?;
        Self::parse(&text, path)
    }

    /// Parses and checks the text of a file. `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Fault> {
        toml::from_str(text).map_err(|error| Fault::in_toml(path, text, &error))
    }

    /// Returns the files that requests to the provider and the webhook need.
    pub(super) fn request_files(&self) -> impl Iterator<Item = &PathBuf> {
        let oidc = self.oidc.as_ref().map(|oidc| [&oidc.client_secret_file, &oidc.ca_file]);
        let events = self.events.as_ref().map(|events| [&events.header_file, &events.ca_file]);
        oidc.into_iter().chain(events).flatten().flatten()
    }

    /// Formats the file, with a comment for every key.
    pub fn to_toml(&self) -> String {
        settings_keys::render(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Settings {
        Settings {
            listen: default_listen(),
            host: "vpn.example.net".into(),
            network: "10.87.31.0/24".parse().unwrap(),
            network6: Some("fd12:3456:789a::/64".parse().unwrap()),
            device: "adit0".into(),
            reach: Reach::Networks(vec!["192.168.7.0/24".parse().unwrap()]),
            dns: vec!["9.9.9.9".parse().unwrap()],
            nat: Nat::Auto,
            client_to_client: false,
            login: Login::Certificate,
            max_clients: 250,
            mtu: None,
            workers: None,
            user: None,
            filter: None,
            pam_service: default_pam_service(),
            on_event: None,
            events: None,
            oidc: None,
            metrics: None,
        }
    }

    fn parse(text: &str) -> Result<Settings, Fault> {
        Settings::parse(text, Path::new("server.toml"))
    }

    #[test]
    fn what_is_written_reads_back_equal() {
        let mut full = sample();
        full.reach = Reach::Full;
        full.network6 = None;
        full.nat = Nat::Off;
        full.dns.clear();
        full.workers = Some(4);
        full.user = Some("vpn-user".into());
        full.mtu = Some(1400);
        full.login = Login::CertificatePasswordCode;
        full.metrics = Some("127.0.0.1:9190".parse().unwrap());
        full.filter = Some("/etc/adit/rules of mine.nft".into());
        full.listen.push("udp/[2001:db8::1]:443".parse().unwrap());
        full.listen.push("tcp/443".parse().unwrap());
        full.listen.push("tcp/192.0.2.1:443".parse().unwrap());
        for settings in [sample(), full] {
            assert_eq!(parse(&settings.to_toml()).unwrap(), settings);
        }
    }

    #[test]
    fn a_minimal_file_is_enough() {
        let settings = parse("host = \"h\"\nnetwork = \"10.9.9.0/24\"\n").unwrap();
        assert_eq!(settings.listen, default_listen());
        assert_eq!(settings.reach, Reach::Networks(Vec::new()));
        assert_eq!(settings.nat, Nat::Auto);
    }

    #[test]
    fn a_mistake_names_file_line_and_what_to_write() {
        let base = "host = \"h\"\nnetwork = \"10.9.9.0/24\"\n";
        for (line, said) in [
            ("listen = [\"sctp/443\"]", "write udp/1194 or tcp/443"),
            ("listen = [\"1194\"]", "write udp/1194"),
            ("listen = [\"udp/0\"]", "port 0"),
            ("device = \"a b\"", "device = \"adit0\""),
            ("device = \"../../x\"", "device = \"adit0\""),
            ("nat = \"yes\"", "auto"),
            ("login = \"passwd\"", "certificate+password"),
            ("ntework = 1", "unknown field"),
            ("network6 = \"fd00::/128\"", "between 48 and 112"),
            ("full-tunnel = true\nroutes = [\"10.0.0.0/8\"]", "remove routes"),
            ("max-clients = 0", "from 1"),
            ("workers = 0", "choose 1 to 64"),
            ("mtu = 1200", "between 1280 and 1500"),
            ("routes = [\"10.9.9.0/25\"]", "overlaps network 10.9.9.0/24"),
            ("filter = \"\"", "not a path"),
            ("user = \"\"", "write user = \"adit\""),
            ("user = \"a b\"", "write user = \"adit\""),
            ("pam-service = \"../x\"", "/etc/pam.d"),
            ("on-event = \"https://hooks.example.net\"", "a section [events]"),
            ("pam-service = \"\"", "pam-service = \"adit\""),
            ("user = \"root\"", "write user = \"adit\""),
            ("filter = 'a\"b'", "not a path"),
        ] {
            let failure = parse(&format!("{base}{line}\n")).unwrap_err();
            assert_eq!(failure.blame(), adit_runtime::fault::Blame::Operator);
            assert!(failure.to_string().starts_with("server.toml line "), "{}", failure);
            assert!(failure.to_string().contains(said), "{line}: {}", failure);
        }
        let failure = parse(&format!("{base}listen = [\"tcp/0\"]\n")).unwrap_err();
        assert!(failure.to_string().contains("line 3"), "{}", failure);
    }

    #[test]
    fn a_missing_file_is_told_with_the_command_that_writes_it() {
        let missing = |path: &str| Settings::read(Path::new(path)).unwrap_err().to_string();
        let text = missing("/nonexistent folder/server.toml");
        assert!(text.ends_with("adit server init --dir '/nonexistent folder'"), "{text}");
        assert_eq!(init_for(Path::new("/etc/adit/server.toml")), "adit server init");
    }

    #[test]
    fn a_host_cannot_smuggle_directives_into_profiles() {
        for host in ["", "a b", "a\nup evil", "\"x\"", "x;y", "x#y"] {
            assert!(checked_host(host).is_err(), "{host:?}");
        }
        for host in ["vpn.example.net", "192.0.2.1", "2001:db8::1", "my_host-1"] {
            assert!(checked_host(host).is_ok(), "{host:?}");
        }
    }
}
