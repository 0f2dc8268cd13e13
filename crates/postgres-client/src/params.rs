//! An operator's description of a database, from a URL, words (`host=... dbname=...`), a service, or the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use percent::{decode, encode};
use zeroize::Zeroizing;

use super::service;
use adit_runtime::fault::Fault;

/// The supported parameters, with the environment variable of each (`-`: none).
const KNOWN: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("service", "PGSERVICE"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("application_name", "PGAPPNAME"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("options", "PGOPTIONS"),
    ("keepalives", "-"),
    ("keepalives_idle", "-"),
    ("keepalives_interval", "-"),
    ("keepalives_count", "-"),
    ("tcp_user_timeout", "-"),
];

/// The environment variables and the home directory. The caller passes them, so that tests can have their own.
#[derive(Clone, Default)]
pub struct Environment {
    vars: BTreeMap<String, Zeroizing<String>>,
    /// The home directory, for `.pgpass`, `.pg_service.conf` and `.postgresql`.
    pub(super) home: Option<PathBuf>,
    /// The user who runs the program: the default role.
    pub(super) user: Option<String>,
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment(..)")
    }
}

impl Environment {
    /// Reads the environment of this process.
    pub fn of_process() -> Self {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, value)| name.starts_with("PG") && !value.is_empty())
            .map(|(name, value)| (name, Zeroizing::new(value)));
        Self {
            vars: vars.collect(),
            home: std::env::home_dir().or_else(|| user.as_ref().map(|user| user.dir.clone())),
            user: user.map(|user| user.name),
        }
    }

    /// Creates an environment with only a user name.
    pub(super) fn of_nobody(user: &str) -> Self {
        Self { user: Some(user.to_owned()), ..Self::default() }
    }

    /// Creates an environment with only these variables.
    #[cfg(test)]
    pub(super) fn with(vars: &[(&str, &str)], home: Option<PathBuf>) -> Self {
        let vars = vars.iter().map(|(k, v)| ((*k).to_owned(), Zeroizing::new((*v).to_owned())));
        Self { vars: vars.collect(), home, user: Some("somebody".into()) }
    }

    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(|value| value.as_str())
    }
}

/// Parameters by name. Each name is known and occurs once.
#[derive(Clone, Default)]
pub(super) struct Params(BTreeMap<&'static str, Zeroizing<String>>);

impl Params {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.as_str())
    }

    /// Resolves parameters from `text`, then from the service in `text` or the environment, then from the environment.
    pub(super) fn resolve(text: &str, env: &Environment) -> Result<Self, Fault> {
        let mut params = Self::parse(text)?;
        let named = params.get("service").or(env.var("PGSERVICE")).map(str::to_owned);
        if let Some(name) = named {
            for (key, value) in service::find(&name, env)? {
                let at = format!("service {name:?}");
                if let std::collections::btree_map::Entry::Vacant(free) =
                    params.0.entry(canonical_name(&key, &at)?)
                {
                    free.insert(value);
                }
            }
        }
        for (name, var) in KNOWN {
            if let (false, Some(value)) = (params.0.contains_key(name), env.var(var)) {
                params.0.insert(name, Zeroizing::new(value.to_owned()));
            }
        }
        Ok(params)
    }

    /// Parses a URL, or keywords and values.
    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        if text.contains("#adit1-") {
            return Err(Fault::operator(
                "that is an invitation for another machine: adit postgres join",
            ));
        }
        let rest = text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"));
        match rest {
            Some(rest) => Self::from_url(rest),
            None if text.contains("://") => {
                Err(Fault::operator("the database's URL must begin with postgres://HOST/DATABASE"))
            }
            None => Self::from_words(text),
        }
    }

    fn set(&mut self, name: &str, value: Zeroizing<String>) -> Result<(), Fault> {
        let name = canonical_name(name, "the database's URL")?;
        if self.0.insert(name, value).is_some() {
            return Err(Fault::operator(format!("the database's URL has {name} twice")));
        }
        Ok(())
    }

    /// Parses `[USER[:PASSWORD]@][HOST[:PORT]][,...][/DATABASE][?NAME=VALUE[&...]]`.
    fn from_url(rest: &str) -> Result<Self, Fault> {
        let mut params = Self::default();
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(a, b)| (a, b));
        let (authority, database) = rest.split_once('/').map_or((rest, ""), |(a, b)| (a, b));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(a, b)| (a, b));
        let (user, password) = user.split_once(':').map_or((user, ""), |(a, b)| (a, b));
        for (name, value) in [("user", user), ("password", password), ("dbname", database)] {
            if !value.is_empty() {
                params.set(name, decode(value, name)?)?;
            }
        }
        let (mut names, mut ports) = (Vec::new(), Vec::new());
        for host in hosts.split(',') {
            let (name, port) = split_port(host)?;
            names.push(decode(name, "host")?.to_string());
            ports.push(port);
        }
        if names.iter().any(|name| !name.is_empty()) {
            params.set("host", Zeroizing::new(names.join(",")))?;
        }
        if ports.iter().any(|port| !port.is_empty()) {
            params.set("port", Zeroizing::new(ports.join(",")))?;
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(Fault::operator(
                    "the database's URL has a parameter without a value after the question mark",
                ));
            };
            params.set(&decode(name, "a parameter's name")?, decode(value, name)?)?;
        }
        Ok(params)
    }

    /// Parses `NAME = VALUE ...`. A value with spaces is in '...', which may contain \' and \\.
    fn from_words(text: &str) -> Result<Self, Fault> {
        let mut params = Self::default();
        let mut chars = text.chars().peekable();
        loop {
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            let mut name = String::new();
            while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
                name.push(c);
            }
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            if name.is_empty() && chars.peek().is_none() {
                return Ok(params);
            }
            if chars.next() != Some('=') {
                // The text here may be a misplaced password, so do not repeat it.
                return Err(Fault::operator(
                    "that is not a database; write postgres://HOST/DATABASE, or words like host=HOST dbname=DATABASE",
                ));
            }
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            let quoted = chars.next_if_eq(&'\'').is_some();
            let mut value = Zeroizing::new(String::new());
            loop {
                match chars.next() {
                    Some('\\') => value.extend(chars.next()),
                    Some('\'') if quoted => break,
                    Some(c) if !quoted && c.is_whitespace() => break,
                    Some(c) => value.push(c),
                    None if quoted => {
                        return Err(Fault::operator("a ' in the database's words is not closed"));
                    }
                    None => break,
                }
            }
            params.set(&name, value)?;
        }
    }
}

/// Returns the canonical name of a parameter.
fn canonical_name(name: &str, at: &str) -> Result<&'static str, Fault> {
    let found = KNOWN.iter().find(|(known, _)| *known == name);
    found.map(|(known, _)| *known).ok_or_else(|| {
        let all: Vec<&str> = KNOWN.iter().map(|(known, _)| *known).collect();
        let name: String = name.chars().take(32).collect();
        Fault::operator(format!(
            "{at} has the parameter {name:?}, which is not supported; supported are {}",
            all.join(", ")
        ))
    })
}

/// Splits a host from its port. Both may be empty. An IPv6 address is in brackets.
fn split_port(host: &str) -> Result<(&str, &str), Fault> {
    let wrong = || {
        Fault::operator(
            "a host in the database's URL is not valid; write HOST, HOST:PORT, [IPV6]:PORT, or the folder of a socket \
             with %2F for each slash",
        )
    };
    let (name, rest) = match host.strip_prefix('[') {
        Some(inner) => inner.split_once(']').ok_or_else(wrong)?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    if rest.is_empty() {
        return Ok((name, ""));
    }
    let port = rest.strip_prefix(':').ok_or_else(wrong)?;
    if port.contains(':') { Err(wrong()) } else { Ok((name, port)) }
}

pub(super) mod percent {
    //! Percent-encoding (RFC 3986, 2.1).

    use zeroize::Zeroizing;

    use adit_runtime::fault::Fault;

    pub(in super::super) fn decode(text: &str, what: &str) -> Result<Zeroizing<String>, Fault> {
        let wrong = || {
            Fault::operator(format!(
                "{what} in the database's URL has a % without two hexadecimal digits after it; write %25 for a %"
            ))
        };
        let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'%' {
                bytes.push(byte);
                continue;
            }
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit().ok_or_else(wrong)?, digit().ok_or_else(wrong)?);
            let value = high.wrapping_shl(4) | low;
            bytes.push(u8::try_from(value).ok().filter(|b| *b != 0).ok_or_else(wrong)?);
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong())?;
        Ok(Zeroizing::new(text.to_owned()))
    }

    pub(in super::super) fn encode(text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        out
    }
}

/// Builds a URL from hosts with ports, a database, and parameters in this order.
pub(super) fn url(hosts: &[(String, u16)], database: &str, params: &[(&str, String)]) -> String {
    let hosts: Vec<String> = hosts
        .iter()
        .map(|(host, port)| {
            if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{}:{port}", encode(host))
            }
        })
        .collect();
    let params: Vec<String> =
        params.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    let query = if params.is_empty() { String::new() } else { format!("?{}", params.join("&")) };
    format!("postgres://{}/{}{query}", hosts.join(","), encode(database))
}
