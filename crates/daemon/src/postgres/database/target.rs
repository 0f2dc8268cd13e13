//! Where the database is, who we are there, and how the line is protected.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, SslMode as Wire, TargetSessionAttrs};
use zeroize::Zeroizing;

use super::params::{self, Environment, Params};
use super::service::Passwords;
use crate::fault::Fault;
use crate::managed::Outcome;
use crate::postgres::settings::{Secrets, Settings};

/// Most hosts of one database.
const MAX_HOSTS: usize = 16;
/// How long one host may take, where nothing is said. (libpq waits for ever.)
const PATIENCE: Duration = Duration::from_secs(10);
/// Where Debian and PostgreSQL itself put their sockets.
const SOCKETS: &[&str] = &["/var/run/postgresql", "/tmp"];

/// A database, resolved.
#[derive(Clone)]
pub struct Target {
    pub(super) hosts: Vec<Host>,
    pub(super) database: String,
    pub(super) user: String,
    pub(super) ssl: Ssl,
    pub(super) binding: Option<ChannelBinding>,
    pub(super) patience: Duration,
    pub(super) attrs: TargetSessionAttrs,
    options: Option<String>,
    application_name: Option<String>,
    keep: Keep,
    /// What the operator should know, in words.
    warnings: Vec<String>,
}

/// One place where the database may be.
#[derive(Clone)]
pub(super) struct Host {
    /// Its name, address, or a socket's folder.
    pub(super) name: String,
    /// Where to dial instead of looking the name up.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) password: Option<Zeroizing<String>>,
}

/// `sslmode`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl FromStr for SslMode {
    type Err = Fault;

    fn from_str(word: &str) -> Outcome<Self> {
        Ok(match word {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                return Err(Fault::operator(format!(
                    "sslmode={word:?} is none of: disable, prefer, require, verify-ca, verify-full"
                )));
            }
        })
    }
}

impl SslMode {
    fn word(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// How the line is protected.
#[derive(Clone, Debug, Default)]
pub(super) struct Ssl {
    /// As said; otherwise by the host.
    pub(super) mode: Option<SslMode>,
    /// Authorities; `system` for the machine's.
    pub(super) root: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

/// Keepalives, as said.
#[derive(Clone, Debug, Default)]
struct Keep {
    off: bool,
    idle: Option<Duration>,
    interval: Option<Duration>,
    count: Option<u32>,
    user_timeout: Option<Duration>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({} as {})", self.to_url(), self.user)
    }
}

impl Host {
    pub(super) fn is_socket(&self) -> bool {
        self.name.starts_with('/')
    }

    /// Whether what is sent there stays on this machine.
    pub(super) fn is_local(&self) -> bool {
        let address = self.address.or_else(|| self.name.parse().ok());
        self.is_socket()
            || address.map_or(self.name == "localhost", |address| address.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

impl Target {
    /// The database that an operator names: a URL, words, or nothing where a service or the environment says it all.
    ///
    /// # Errors
    /// Something in it is wrong or not known. No password is ever repeated.
    pub fn of_operator(text: &str, env: &Environment) -> Outcome<Self> {
        let params = Params::resolve(text, env)?;
        let mut target = Self::build(&params, env)?;
        if params.get("password").is_none() {
            target.read_passwords(&params, env);
        }
        Ok(target)
    }

    /// The database of a node, under the node's role. The environment has no say.
    ///
    /// # Errors
    /// The URL is wrong.
    pub fn of_node(settings: &Settings, secrets: &Secrets) -> Outcome<Self> {
        let env = Environment::of_nobody(&settings.role);
        let target = Self::build(&Params::parse(&settings.database)?, &env)
            .map_err(|fault| Fault::operator(format!("in node.toml: {fault}")))?;
        Ok(target.with_role(&settings.role, &secrets.password))
    }

    /// The same database under another role.
    #[must_use]
    pub fn with_role(mut self, role: &str, password: &Zeroizing<String>) -> Self {
        role.clone_into(&mut self.user);
        for host in &mut self.hosts {
            host.password = Some(password.clone());
        }
        self
    }

    /// The same database, asking for a password that the operator has typed.
    pub(crate) fn with_password(mut self, password: &Zeroizing<String>) -> Self {
        for host in &mut self.hosts {
            host.password = Some(password.clone());
        }
        self
    }

    fn build(params: &Params, env: &Environment) -> Outcome<Self> {
        let user = params.get("user").map(str::to_owned).or_else(|| env.user.clone());
        let user = user.ok_or_else(|| {
            Fault::operator("the database's URL names no user; write postgres://USER@HOST/DATABASE")
        })?;
        let attrs = match params.get("target_session_attrs") {
            None | Some("read-write" | "primary") => TargetSessionAttrs::ReadWrite,
            Some(word) => {
                return Err(Fault::operator(format!(
                    "target_session_attrs={word:?}: everything here writes; leave it away, or write read-write"
                )));
            }
        };
        let binding = params.get("channel_binding").map(|word| match word {
            "disable" => Ok(ChannelBinding::Disable),
            "prefer" => Ok(ChannelBinding::Prefer),
            "require" => Ok(ChannelBinding::Require),
            _ => Err(Fault::operator(format!(
                "channel_binding={word:?} is none of: disable, prefer, require"
            ))),
        });
        let seconds = number(params, "connect_timeout")?;
        let mut target = Self {
            hosts: hosts(params)?,
            database: params.get("dbname").unwrap_or(&user).to_owned(),
            user,
            ssl: ssl(params, env)?,
            binding: binding.transpose()?,
            patience: seconds
                .filter(|seconds| *seconds > 0)
                .map_or(PATIENCE, |seconds| Duration::from_secs(seconds.into())),
            attrs,
            options: params.get("options").map(str::to_owned),
            application_name: params.get("application_name").map(str::to_owned),
            keep: keep(params)?,
            warnings: Vec::new(),
        };
        if let Some(password) = params.get("password") {
            target = target.with_password(&Zeroizing::new(password.to_owned()));
        }
        target.warn_of_open_lines();
        Ok(target)
    }

    fn read_passwords(&mut self, params: &Params, env: &Environment) {
        let named = params.get("passfile").map(PathBuf::from);
        let Some(file) = named.or_else(|| env.home.as_ref().map(|home| home.join(".pgpass")))
        else {
            return;
        };
        let (passwords, warning) = Passwords::read(&file);
        self.warnings.extend(warning);
        for host in &mut self.hosts {
            let default = SOCKETS.contains(&host.name.as_str());
            let name = if host.is_socket() && default { "localhost" } else { &host.name };
            host.password = passwords.find(name, host.port, &self.database, &self.user);
        }
    }

    fn warn_of_open_lines(&mut self) {
        let open = |host: &&Host| {
            !host.is_local() && matches!(self.mode(host), SslMode::Disable | SslMode::Prefer)
        };
        let Some(host) = self.hosts.iter().find(open) else { return };
        let warning = format!(
            "sslmode={} to {host}: whoever is on the way can read what is not sealed, and change all of it; write \
             sslmode=verify-full with sslrootcert=FILE, or leave sslmode away",
            self.mode(host).word()
        );
        self.warnings.push(warning);
    }

    /// How the line to that host is protected. Nothing said: what stays on the machine as libpq does it, and everything
    /// else under TLS.
    pub(super) fn mode(&self, host: &Host) -> SslMode {
        match self.ssl.mode {
            _ if host.is_socket() => SslMode::Disable,
            Some(mode) => mode,
            None if host.is_local() => SslMode::Prefer,
            None => SslMode::Require,
        }
    }

    /// Whether the server must prove by the password itself that it holds the certificate which the line ends at: where
    /// the certificate is not checked otherwise.
    pub(super) fn channel_binding(&self, host: &Host) -> ChannelBinding {
        let unchecked = self.mode(host) == SslMode::Require && self.ssl.root.is_none();
        self.binding.unwrap_or(match unchecked && !host.is_local() {
            true => ChannelBinding::Require,
            false => ChannelBinding::Prefer,
        })
    }

    /// What the operator should know.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The role that connects.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Whether other machines cannot use this target as it is: all its hosts are this machine itself.
    pub fn is_local(&self) -> bool {
        self.hosts.iter().all(Host::is_local)
    }

    /// Files that the URL names, which another machine needs too.
    pub fn files(&self) -> Vec<&Path> {
        let files = [&self.ssl.root, &self.ssl.certificate, &self.ssl.key];
        let files = files.into_iter().flatten().map(PathBuf::as_path);
        files.filter(|file| *file != Path::new("system")).collect()
    }

    /// The URL, without user and password.
    pub fn to_url(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(|host| (host.name.clone(), host.port)).collect();
        let mut params = Vec::new();
        if self.hosts.iter().any(|host| host.address.is_some()) {
            let addresses = self.hosts.iter().map(|host| host.address);
            let addresses: Vec<String> =
                addresses.map(|a| a.map_or(String::new(), |a| a.to_string())).collect();
            params.push(("hostaddr", addresses.join(",")));
        }
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let more = [
            ("sslmode", self.ssl.mode.map(|mode| mode.word().to_owned())),
            ("sslrootcert", self.ssl.root.as_ref().map(path)),
            ("sslcert", self.ssl.certificate.as_ref().map(path)),
            ("sslkey", self.ssl.key.as_ref().map(path)),
            ("channel_binding", self.binding.map(binding_word)),
            ("options", self.options.clone()),
            (
                "connect_timeout",
                (self.patience != PATIENCE).then(|| self.patience.as_secs().to_string()),
            ),
        ];
        params.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?))));
        params.extend(self.keep.params());
        params::url(&hosts, &self.database, &params)
    }

    /// What the client library is told about one host.
    pub(super) fn config(&self, host: &Host, purpose: &str) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.user(&self.user).dbname(&self.database).host(&host.name).port(host.port);
        config.connect_timeout(self.patience).target_session_attrs(self.attrs);
        config.channel_binding(self.channel_binding(host));
        config.ssl_mode(match self.mode(host) {
            SslMode::Disable => Wire::Disable,
            SslMode::Prefer => Wire::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Wire::Require,
        });
        if let Some(address) = host.address {
            config.hostaddr(address);
        }
        if let Some(password) = &host.password {
            config.password(password.as_bytes());
        }
        if let Some(options) = &self.options {
            config.options(options);
        }
        let name = self.application_name.clone().unwrap_or_else(|| format!("adit {purpose}"));
        config.application_name(name);
        self.keep.apply(&mut config);
        config
    }
}

fn binding_word(binding: ChannelBinding) -> String {
    match binding {
        ChannelBinding::Disable => "disable",
        ChannelBinding::Require => "require",
        _ => "prefer",
    }
    .to_owned()
}

fn hosts(params: &Params) -> Outcome<Vec<Host>> {
    let list = |name: &str| -> Vec<String> {
        params.get(name).map_or(Vec::new(), |all| all.split(',').map(str::to_owned).collect())
    };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = names.len().max(addresses.len()).max(1);
    if count > MAX_HOSTS {
        return Err(Fault::operator(format!(
            "{count} hosts are too many; name {MAX_HOSTS} at most"
        )));
    }
    for (what, len) in [("host", names.len()), ("hostaddr", addresses.len()), ("port", ports.len())]
    {
        if len > 1 && len != count || (len == 1 && count > 1 && what != "port") {
            return Err(Fault::operator(format!("{len} of {what} do not fit to {count} hosts")));
        }
    }
    let text = |list: &[String], at: usize| {
        let one = list.get(at).or(if list.len() == 1 { list.first() } else { None });
        one.filter(|text| !text.is_empty()).cloned()
    };
    (0..count)
        .map(|at| {
            let address = text(&addresses, at).map(|address| {
                address.parse::<IpAddr>().map_err(|_| {
                    Fault::operator(format!(
                        "hostaddr {address:?} is no address; names go into host"
                    ))
                })
            });
            let address = address.transpose()?;
            let name = text(&names, at)
                .or_else(|| address.map(|address| address.to_string()))
                .unwrap_or_else(default_socket);
            let port = text(&ports, at).map(|port| {
                port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| {
                    Fault::operator(format!(
                        "port {port:?} is none; write a number from 1 to 65535"
                    ))
                })
            });
            Ok(Host { name, address, port: port.transpose()?.unwrap_or(5432), password: None })
        })
        .collect()
}

/// The first folder that is there.
fn default_socket() -> String {
    let found = SOCKETS.iter().find(|folder| Path::new(folder).is_dir());
    (*found.unwrap_or(&"/var/run/postgresql")).to_owned()
}

fn ssl(params: &Params, env: &Environment) -> Outcome<Ssl> {
    let file = |name: &str, default: &str| -> Outcome<Option<PathBuf>> {
        if let Some(path) = params.get(name) {
            if path == "system" && name == "sslrootcert" {
                return Ok(Some(path.into()));
            }
            let path = std::path::absolute(path)
                .map_err(|error| Fault::operator(format!("{name}: {error}")))?;
            return Ok(Some(path));
        }
        let usual = env.home.as_ref().map(|home| home.join(".postgresql").join(default));
        Ok(usual.filter(|path| path.exists()))
    };
    let ssl = Ssl {
        mode: params.get("sslmode").map(str::parse).transpose()?,
        root: file("sslrootcert", "root.crt")?,
        certificate: file("sslcert", "postgresql.crt")?,
        key: file("sslkey", "postgresql.key")?,
    };
    if ssl.root.as_deref() == Some(Path::new("system"))
        && ssl.mode.is_some_and(|mode| mode != SslMode::VerifyFull)
    {
        return Err(Fault::operator(
            "sslrootcert=system believes in everybody's authorities, so the name must be checked: write \
             sslmode=verify-full",
        ));
    }
    Ok(ssl)
}

fn number(params: &Params, name: &str) -> Outcome<Option<u32>> {
    let parse = |text: &str| {
        text.parse().map_err(|_| Fault::operator(format!("{name}={text:?} is no number")))
    };
    params.get(name).map(parse).transpose()
}

fn keep(params: &Params) -> Outcome<Keep> {
    let seconds = |name| -> Outcome<Option<Duration>> {
        let value = number(params, name)?.filter(|value| *value > 0);
        Ok(value.map(|value| Duration::from_secs(value.into())))
    };
    Ok(Keep {
        off: number(params, "keepalives")? == Some(0),
        idle: seconds("keepalives_idle")?,
        interval: seconds("keepalives_interval")?,
        count: number(params, "keepalives_count")?.filter(|count| *count > 0),
        user_timeout: number(params, "tcp_user_timeout")?
            .filter(|value| *value > 0)
            .map(|value| Duration::from_millis(value.into())),
    })
}

impl Keep {
    /// A tunnel notices a host that is gone within seconds, where nothing else is said.
    fn apply(&self, config: &mut tokio_postgres::Config) {
        config.keepalives(!self.off);
        config.keepalives_idle(self.idle.unwrap_or(Duration::from_secs(5)));
        config.keepalives_interval(self.interval.unwrap_or(Duration::from_secs(1)));
        config.keepalives_retries(self.count.unwrap_or(3));
        config.tcp_user_timeout(self.user_timeout.unwrap_or(Duration::from_secs(10)));
    }

    fn params(&self) -> Vec<(&'static str, String)> {
        let seconds = |value: Option<Duration>| value.map(|value| value.as_secs().to_string());
        let all = [
            ("keepalives", self.off.then(|| "0".to_owned())),
            ("keepalives_idle", seconds(self.idle)),
            ("keepalives_interval", seconds(self.interval)),
            ("keepalives_count", self.count.map(|count| count.to_string())),
            ("tcp_user_timeout", self.user_timeout.map(|value| value.as_millis().to_string())),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}
