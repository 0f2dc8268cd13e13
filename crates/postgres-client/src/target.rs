//! The address of the database, our role in it, and the protection of the connection.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, SslMode as Wire};
use zeroize::Zeroizing;

use super::params::{self, Environment, Params};
use super::service::Passwords;
use adit_runtime::fault::Fault;

/// The maximum number of hosts of one database.
const MAX_HOSTS: usize = 16;
/// The default time limit for one host. libpq waits forever.
const PATIENCE: Duration = Duration::from_secs(10);
/// The directories in which Debian and PostgreSQL itself create their sockets.
const SOCKETS: &[&str] = &["/var/run/postgresql", "/tmp"];

/// The resolved description of a database.
#[derive(Clone)]
pub struct Target {
    pub(super) hosts: Vec<Host>,
    pub(super) database: String,
    pub(super) user: String,
    pub(super) ssl: Ssl,
    pub(super) binding: Option<ChannelBinding>,
    pub(super) patience: Duration,
    pub(super) session: Session,
    options: Option<String>,
    application_name: Option<String>,
    keepalive: Keepalive,
    /// Warnings for the operator.
    warnings: Vec<String>,
}

/// A host where the database may be.
#[derive(Clone)]
pub(super) struct Host {
    /// The host's name, its address, or the directory of a socket.
    pub(super) name: String,
    /// The address to dial without looking up the name.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) password: Option<Zeroizing<String>>,
}

/// `target_session_attrs`: the kind of server that is acceptable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Session {
    ReadWrite,
    ReadOnly,
    Standby,
    PreferStandby,
    Any,
}

impl Session {
    /// Parses the kind of session. By default, commands that do not write accept any server.
    fn parse(word: Option<&str>, reads_only: bool) -> Result<Self, Fault> {
        match word {
            Some("read-write" | "primary") => Ok(Self::ReadWrite),
            None if !reads_only => Ok(Self::ReadWrite),
            Some(word) if !reads_only => Err(Fault::operator(format!(
                "target_session_attrs={word:?}: all commands here write; omit it, or write read-write"
            ))),
            None | Some("any") => Ok(Self::Any),
            Some("read-only") => Ok(Self::ReadOnly),
            Some("standby") => Ok(Self::Standby),
            Some("prefer-standby") => Ok(Self::PreferStandby),
            Some(word) => Err(Fault::operator(format!(
                "target_session_attrs={word:?} is none of: any, read-write, read-only, primary, standby, prefer-standby"
            ))),
        }
    }
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

    fn from_str(word: &str) -> Result<Self, Fault> {
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
    fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// The protection of the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Ssl {
    /// The configured mode; if `None`, it depends on the host.
    pub(super) mode: Option<SslMode>,
    /// The file with the authorities, or `system` for those of the host.
    pub(super) root: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    /// Whether the certificate and key were not configured but found in the operator's home directory, and only the
    /// operator can read them.
    own: bool,
}

/// The configured keepalives.
#[derive(Clone, Debug, Default)]
struct Keepalive {
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

    /// Returns whether the connection to this host stays on the local host.
    pub(super) fn is_local(&self) -> bool {
        let address = self.address.or_else(|| self.name.parse().ok());
        self.is_socket()
            || address.map_or(self.name == "localhost", |address| address.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl Target {
    /// Parses an operator's description of a database. It is a URL, keywords and values, or empty if a service file or
    /// the environment defines everything.
    ///
    /// # Errors
    /// Fails if a part of it is wrong or unknown. The error never contains a password.
    pub fn of_operator(text: &str, env: &Environment) -> Result<Self, Fault> {
        Self::resolve(text, env, false)
    }

    /// Does the same as [`Self::of_operator`], for commands that do not write. For them a standby is sufficient.
    ///
    /// # Errors
    /// See [`Self::of_operator`].
    pub fn of_reader(text: &str, env: &Environment) -> Result<Self, Fault> {
        Self::resolve(text, env, true)
    }

    fn resolve(text: &str, env: &Environment, reads_only: bool) -> Result<Self, Fault> {
        let params = Params::resolve(text, env)?;
        let mut target = Self::build_for(&params, env, reads_only)?;
        if params.get("password").is_none() {
            target.read_passwords(&params, env);
        }
        Ok(target)
    }

    /// Parses the database of a node, with the node's role. The environment is ignored.
    ///
    /// # Errors
    /// Fails if the URL is wrong.
    pub fn of_node(url: &str, role: &str, password: &Zeroizing<String>) -> Result<Self, Fault> {
        let env = Environment::of_nobody(role);
        Ok(Self::build(&Params::parse(url)?, &env)?.with_role(role, password))
    }

    /// Returns the files that a node reads at each connection.
    ///
    /// # Errors
    /// Fails if the URL is wrong.
    pub fn files_of_node(url: &str, role: &str) -> Result<Vec<PathBuf>, Fault> {
        let env = Environment::of_nobody(role);
        let ssl = Self::build(&Params::parse(url)?, &env)?.ssl;
        let files = [ssl.root, ssl.certificate, ssl.key].into_iter().flatten();
        Ok(files.filter(|file| file != Path::new("system")).collect())
    }

    /// Returns the same database with another role.
    #[must_use]
    pub fn with_role(mut self, role: &str, password: &Zeroizing<String>) -> Self {
        role.clone_into(&mut self.user);
        for host in &mut self.hosts {
            host.password = Some(password.clone());
        }
        self
    }

    /// Returns the same database with a password that the operator has typed.
    pub(crate) fn with_password(mut self, password: &Zeroizing<String>) -> Self {
        for host in &mut self.hosts {
            host.password = Some(password.clone());
        }
        self
    }

    fn build(params: &Params, env: &Environment) -> Result<Self, Fault> {
        Self::build_for(params, env, false)
    }

    fn build_for(params: &Params, env: &Environment, reads_only: bool) -> Result<Self, Fault> {
        let user = params.get("user").map(str::to_owned).or_else(|| env.user.clone());
        let user = user.ok_or_else(|| {
            Fault::operator("the database's URL names no user; write postgres://USER@HOST/DATABASE")
        })?;
        let session = Session::parse(params.get("target_session_attrs"), reads_only)?;
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
            session,
            options: params.get("options").map(str::to_owned),
            application_name: params.get("application_name").map(str::to_owned),
            keepalive: keepalive(params)?,
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
            "sslmode={} to {host}: an attacker on the path can read what is not sealed, and change everything; write \
             sslmode=verify-full with sslrootcert=FILE, or omit sslmode",
            self.mode(host).as_str()
        );
        self.warnings.push(warning);
    }

    /// Returns the protection of the connection to this host. Without a configured mode, local connections are
    /// protected as in libpq, and all others use TLS.
    pub(super) fn mode(&self, host: &Host) -> SslMode {
        match self.ssl.mode {
            _ if host.is_socket() => SslMode::Disable,
            Some(mode) => mode,
            None if host.is_local() => SslMode::Prefer,
            None => SslMode::Require,
        }
    }

    /// Returns whether channel binding is required. With it, the server proves through the password exchange that it
    /// owns the certificate of the TLS connection. It is required if nothing else checks the certificate.
    pub(super) fn channel_binding(&self, host: &Host) -> ChannelBinding {
        let unchecked = self.mode(host) == SslMode::Require && self.ssl.root.is_none();
        self.binding.unwrap_or(if unchecked && !host.is_local() {
            ChannelBinding::Require
        } else {
            ChannelBinding::Prefer
        })
    }

    /// Returns warnings for the operator.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the database's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Returns the password for the first host.
    pub fn password(&self) -> Option<&Zeroizing<String>> {
        self.hosts.first()?.password.as_ref()
    }

    /// Returns the role that connects.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns whether other hosts cannot use this target unchanged, because all its hosts are the local host.
    pub fn is_local(&self) -> bool {
        self.hosts.iter().all(Host::is_local)
    }

    /// Returns the files in the URL, which another host needs too.
    pub fn files(&self) -> Vec<&Path> {
        let (certificate, key) = self.named_identity();
        let files = [self.ssl.root.as_ref(), certificate, key];
        let files = files.into_iter().flatten().map(PathBuf::as_path);
        files.filter(|file| *file != Path::new("system")).collect()
    }

    fn named_identity(&self) -> (Option<&PathBuf>, Option<&PathBuf>) {
        if self.ssl.own {
            (None, None)
        } else {
            (self.ssl.certificate.as_ref(), self.ssl.key.as_ref())
        }
    }

    /// Returns the URL without user and password, for nodes.
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
        let (certificate, key) = self.named_identity();
        let more = [
            ("sslmode", self.ssl.mode.map(|mode| mode.as_str().to_owned())),
            ("sslrootcert", self.ssl.root.as_ref().map(path)),
            ("sslcert", certificate.map(path)),
            ("sslkey", key.map(path)),
            ("channel_binding", self.binding.map(binding_word)),
            ("options", self.options.clone()),
            (
                "connect_timeout",
                (self.patience != PATIENCE).then(|| self.patience.as_secs().to_string()),
            ),
        ];
        params.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?))));
        params.extend(self.keepalive.params());
        params::url(&hosts, &self.database, &params)
    }

    /// Returns the client library's settings for one host.
    pub(super) fn config(&self, host: &Host, purpose: &str) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.user(&self.user).dbname(&self.database).host(&host.name).port(host.port);
        config.connect_timeout(self.patience);
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
        self.keepalive.apply(&mut config);
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

fn hosts(params: &Params) -> Result<Vec<Host>, Fault> {
    let list = |name: &str| -> Vec<String> {
        params.get(name).map_or(Vec::new(), |all| all.split(',').map(str::to_owned).collect())
    };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = names.len().max(addresses.len()).max(1);
    if count > MAX_HOSTS {
        return Err(Fault::operator(format!(
            "{count} hosts are too many; at most {MAX_HOSTS} are allowed"
        )));
    }
    for (what, len) in [("host", names.len()), ("hostaddr", addresses.len()), ("port", ports.len())]
    {
        if len > 1 && len != count || (len == 1 && count > 1 && what != "port") {
            return Err(Fault::operator(format!("{len} of {what} do not match {count} hosts")));
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
                        "hostaddr {address:?} is not an address; put names into host"
                    ))
                })
            });
            let address = address.transpose()?;
            let name = text(&names, at)
                .or_else(|| address.map(|address| address.to_string()))
                .unwrap_or_else(default_socket);
            // The text here may be a password before a missing @, so do not repeat it.
            let port = text(&ports, at).map(|port| {
                port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| {
                    Fault::operator(
                        "a port in the database's URL is not valid; write a number from 1 to 65535, and USER:PASSWORD@ \
                         before the host",
                    )
                })
            });
            Ok(Host { name, address, port: port.transpose()?.unwrap_or(5432), password: None })
        })
        .collect()
}

/// Returns the first directory that exists.
fn default_socket() -> String {
    let found = SOCKETS.iter().find(|folder| Path::new(folder).is_dir());
    (*found.unwrap_or(&"/var/run/postgresql")).to_owned()
}

fn ssl(params: &Params, env: &Environment) -> Result<Ssl, Fault> {
    let file = |name: &str, default: &str| -> Result<Option<PathBuf>, Fault> {
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
        own: params.get("sslcert").is_none() && params.get("sslkey").is_none(),
    };
    if ssl.root.as_deref() == Some(Path::new("system"))
        && ssl.mode.is_some_and(|mode| mode != SslMode::VerifyFull)
    {
        return Err(Fault::operator(
            "sslrootcert=system trusts public authorities, so the name must be checked: write sslmode=verify-full",
        ));
    }
    Ok(ssl)
}

fn number(params: &Params, name: &str) -> Result<Option<u32>, Fault> {
    let parse = |text: &str| {
        text.parse().map_err(|_| Fault::operator(format!("{name}={text:?} is no number")))
    };
    params.get(name).map(parse).transpose()
}

fn keepalive(params: &Params) -> Result<Keepalive, Fault> {
    let seconds = |name| -> Result<Option<Duration>, Fault> {
        let value = number(params, name)?.filter(|value| *value > 0);
        Ok(value.map(|value| Duration::from_secs(value.into())))
    };
    Ok(Keepalive {
        off: number(params, "keepalives")? == Some(0),
        idle: seconds("keepalives_idle")?,
        interval: seconds("keepalives_interval")?,
        count: number(params, "keepalives_count")?.filter(|count| *count > 0),
        user_timeout: number(params, "tcp_user_timeout")?
            .filter(|value| *value > 0)
            .map(|value| Duration::from_millis(value.into())),
    })
}

impl Keepalive {
    /// Applies the settings. By default, a tunnel notices within seconds that a host is gone.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Environment {
        Environment::with(&[], None)
    }

    fn target(text: &str) -> Target {
        Target::of_operator(text, &nothing()).unwrap()
    }

    fn fault(text: &str) -> String {
        Target::of_operator(text, &nothing()).unwrap_err().to_string()
    }

    fn places(target: &Target) -> Vec<String> {
        target.hosts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn who_only_reads_may_name_a_standby() {
        let session = |word: &str| {
            let text = format!("postgres://me@h/d{word}");
            Target::of_reader(&text, &nothing()).map(|target| target.session)
        };
        for (word, expected) in [
            ("", Session::Any),
            ("?target_session_attrs=any", Session::Any),
            ("?target_session_attrs=standby", Session::Standby),
            ("?target_session_attrs=prefer-standby", Session::PreferStandby),
            ("?target_session_attrs=read-only", Session::ReadOnly),
            ("?target_session_attrs=read-write", Session::ReadWrite),
            ("?target_session_attrs=primary", Session::ReadWrite),
        ] {
            assert_eq!(session(word).unwrap(), expected, "{word}");
        }
        let fault = session("?target_session_attrs=slave").unwrap_err().to_string();
        assert!(fault.contains("prefer-standby"), "{fault}");
        let writes = Target::of_operator("postgres://me@h/d", &nothing()).unwrap();
        assert_eq!(writes.session, Session::ReadWrite);
    }

    #[test]
    fn urls_and_words_say_the_same() {
        for text in [
            "postgres://me:p%40ss@db.example:5433/vpn?sslmode=verify-full",
            "postgresql://me:p@ss@db.example:5433/vpn?sslmode=verify-full",
            "postgres:///vpn?host=db.example&port=5433&user=me&password=p@ss&sslmode=verify-full",
            "host=db.example port = 5433 dbname='vpn' user=me password='p@ss' sslmode=verify-full",
            "host=db.example port=5433 dbname=v\\pn user=me password=p\\@ss sslmode=verify-full ",
        ] {
            let target = target(text);
            assert_eq!(
                target.to_url(),
                "postgres://db.example:5433/vpn?sslmode=verify-full",
                "{text}"
            );
            assert_eq!((target.user(), target.database()), ("me", "vpn"));
            assert_eq!(**target.hosts[0].password.as_ref().unwrap(), *"p@ss");
            assert_eq!(
                format!("{target:?}"),
                "Target(postgres://db.example:5433/vpn?sslmode=verify-full as me)"
            );
        }
    }

    #[test]
    fn a_url_comes_back_equal_through_the_file_of_a_node() {
        for url in [
            "postgres://db.example:5432/vpn",
            "postgres://%2Ftmp%2Fa%20b:5432/vpn",
            "postgres://one:1,[fd00::2]:2,%2Ftmp:3/v%2Fpn?sslmode=require&channel_binding=prefer&keepalives_idle=7",
            "postgres://one:5432/vpn?hostaddr=192.0.2.1&sslmode=verify-ca&sslrootcert=%2Fca.crt&connect_timeout=3",
            "postgres://h:5432/d?options=-c%20geqo%3Doff&keepalives=0&tcp_user_timeout=4000",
        ] {
            assert_eq!(target(url).to_url(), url);
        }
        assert_eq!(
            places(&target("postgres://a,[fd00::2]:7,b:8/d")),
            ["a:5432", "[fd00::2]:7", "b:8"]
        );
    }

    #[test]
    fn what_is_not_said_is_as_with_libpq() {
        let target = target("");
        assert_eq!((target.user(), target.database()), ("somebody", "somebody"));
        assert!(target.hosts[0].is_socket() && target.is_local());
        let vars = [
            ("PGHOST", "h"),
            ("PGPORT", "7"),
            ("PGUSER", "u"),
            ("PGDATABASE", "d"),
            ("PGSSLMODE", "verify-ca"),
        ];
        let env = Environment::with(&vars, None);
        let from = |text| {
            let target = Target::of_operator(text, &env).unwrap();
            format!("{target:?}")
        };
        assert_eq!(from(""), "Target(postgres://h:7/d?sslmode=verify-ca as u)");
        assert_eq!(
            from("postgres://me@x:8/y?sslmode=require"),
            "Target(postgres://x:8/y?sslmode=require as me)"
        );
    }

    #[test]
    fn a_service_stands_between_the_url_and_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("services");
        std::fs::write(&file, "[vpn]\nhost=service\nport=7\ndbname=d\n[bad]\nhots=x\n").unwrap();
        let vars =
            [("PGSERVICEFILE", file.to_str().unwrap()), ("PGHOST", "env"), ("PGUSER", "env")];
        let env = Environment::with(&vars, None);
        let target = Target::of_operator("service=vpn port=8", &env).unwrap();
        assert_eq!(format!("{target:?}"), "Target(postgres://service:8/d as env)");
        let named = [("PGSERVICE", "vpn"), vars[0]];
        let target =
            Target::of_operator("postgres://me@/x", &Environment::with(&named, None)).unwrap();
        assert_eq!(format!("{target:?}"), "Target(postgres://service:7/x as me)");
        let fault = Target::of_operator("service=bad", &env).unwrap_err().to_string();
        assert!(fault.contains("\"hots\"") && fault.contains("host, hostaddr"), "{fault}");
    }

    #[test]
    fn passwords_come_from_the_url_then_the_environment_then_the_file_by_host() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".pgpass");
        std::fs::write(
            &file,
            "one:*:*:*:first\n[x]:*:*:*:no\nfd00\\:\\:2:*:*:*:six\nlocalhost:*:*:*:socket\n",
        )
        .unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let env = |vars: &[(&str, &str)]| Environment::with(vars, Some(home.path().into()));
        let passwords = |text: &str, vars: &[(&str, &str)]| -> Vec<Option<String>> {
            let target = Target::of_operator(text, &env(vars)).unwrap();
            target.hosts.iter().map(|host| host.password.as_ref().map(|p| p.to_string())).collect()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            passwords("postgres://one,two,[fd00::2]/d", &[]),
            [some("first"), None, some("six")]
        );
        assert_eq!(passwords("postgres://%2Fvar%2Frun%2Fpostgresql/d", &[]), [some("socket")]);
        assert_eq!(
            passwords("postgres://one,two/d", &[("PGPASSWORD", "env")]),
            [some("env"), some("env")]
        );
        assert_eq!(passwords("postgres://u:url@one/d", &[("PGPASSWORD", "env")]), [some("url")]);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let target = Target::of_operator("postgres://one/d", &env(&[])).unwrap();
        assert!(target.hosts[0].password.is_none() && target.warnings()[0].contains("chmod 600"));
    }

    #[test]
    fn other_machines_are_spoken_to_under_tls_and_prove_themselves() {
        let of = |text: &str| {
            let target = target(text);
            let host = target.hosts[0].clone();
            (target.mode(&host), target.channel_binding(&host), target.warnings().len())
        };
        use ChannelBinding::{Prefer, Require};
        assert_eq!(of("postgres://db.example/d"), (SslMode::Require, Require, 0));
        assert_eq!(of("postgres://192.0.2.1/d"), (SslMode::Require, Require, 0));
        assert_eq!(of("postgres://db.example/d?sslmode=require"), (SslMode::Require, Require, 0));
        assert_eq!(
            of("postgres://db.example/d?channel_binding=prefer"),
            (SslMode::Require, Prefer, 0)
        );
        assert_eq!(
            of("postgres://db.example/d?sslmode=verify-full"),
            (SslMode::VerifyFull, Prefer, 0)
        );
        assert_eq!(of("postgres://db.example/d?sslrootcert=/x"), (SslMode::Require, Prefer, 0));
        for local in [
            "postgres://localhost/d",
            "postgres://127.0.0.1/d",
            "postgres://[::1]/d",
            "postgres://x/d?hostaddr=127.0.0.2",
        ] {
            assert_eq!(of(local), (SslMode::Prefer, Prefer, 0), "{local}");
        }
        assert_eq!(of("postgres://%2Ftmp/d?sslmode=verify-full"), (SslMode::Disable, Prefer, 0));
        // A name that only resembles the local host, or leads elsewhere.
        assert_eq!(of("postgres://localhost.example/d").0, SslMode::Require);
        assert_eq!(of("postgres://localhost/d?hostaddr=192.0.2.1").0, SslMode::Require);
        for open in ["disable", "prefer"] {
            assert_eq!(of(&format!("postgres://db.example/d?sslmode={open}")).2, 1);
        }
    }

    #[test]
    fn an_operators_own_certificate_stays_the_operators() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".postgresql");
        std::fs::create_dir(&folder).unwrap();
        for name in ["root.crt", "postgresql.crt", "postgresql.key"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let env = Environment::with(&[], Some(home.path().into()));
        let target = Target::of_operator("postgres://h/d", &env).unwrap();
        assert!(target.ssl.certificate.is_some() && target.ssl.key.is_some());
        let url = target.to_url();
        assert!(url.contains("sslrootcert") && !url.contains("postgresql.key"), "{url}");
        assert_eq!(target.files(), [folder.join("root.crt")]);
        let target = Target::of_operator("postgres://h/d?sslcert=/c&sslkey=/k", &env).unwrap();
        assert!(target.to_url().ends_with("&sslcert=%2Fc&sslkey=%2Fk"), "{target:?}");
        assert_eq!(target.files().len(), 3);
    }

    #[test]
    fn a_node_uses_its_files_and_nothing_else() {
        let password = Zeroizing::new("geheim".into());
        let target = Target::of_node("postgres://one,two/vpn", "r", &password).unwrap();
        assert_eq!(format!("{target:?}"), "Target(postgres://one:5432,two:5432/vpn as r)");
        assert!(
            target
                .hosts
                .iter()
                .all(|host| host.password.as_ref().is_some_and(|p| p.as_str() == "geheim"))
        );
    }

    #[test]
    fn a_mistake_is_named_with_what_to_write() {
        for (text, said) in [
            ("mysql://h/d", "postgres://HOST/DATABASE"),
            ("postgres://h/d#adit1-geheim", "adit postgres join"),
            ("h", "postgres://HOST/DATABASE"),
            ("postgres://h/d?sslmod=require", "\"sslmod\", which is not supported"),
            ("postgres://h/d?host=x", "host twice"),
            ("postgres://h/d?sslmode", "without a value"),
            ("postgres://h/d?sslmode=allow", "disable, prefer, require, verify-ca, verify-full"),
            ("postgres://h:0/d", "1 to 65535"),
            ("postgres://me:geheim", "USER:PASSWORD@"),
            ("postgres://h:1:2/d", "[IPV6]:PORT"),
            ("postgres://[::1/d", "[IPV6]:PORT"),
            ("postgres://u:%4@h/d", "%25"),
            ("postgres://u:%00@h/d", "%25"),
            ("host='h", "not closed"),
            ("postgres://h/d?hostaddr=h", "put names into host"),
            ("postgres://a,b,c/d?port=1,2", "2 of port do not match 3 hosts"),
            ("postgres://a,b/d?hostaddr=192.0.2.1", "1 of hostaddr do not match 2 hosts"),
            ("postgres://h/d?target_session_attrs=standby", "all commands here write"),
            ("postgres://h/d?channel_binding=yes", "disable, prefer, require"),
            ("postgres://h/d?connect_timeout=soon", "no number"),
            ("postgres://h/d?sslrootcert=system&sslmode=require", "sslmode=verify-full"),
        ] {
            let fault = fault(text);
            assert!(fault.contains(said) && !fault.contains("geheim"), "{text}: {fault}");
        }
        let many = vec!["h"; MAX_HOSTS + 1].join(",");
        assert!(fault(&format!("postgres://{many}/d")).contains("too many"));
    }
}
