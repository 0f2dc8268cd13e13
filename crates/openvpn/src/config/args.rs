//! Typed access to a directive's arguments.

use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use adit_engine::auth::Inactive;
use ipnet::{Ipv4Net, Ipv6Net};

use super::directives::Spec;
use super::reader::Directive;
use super::{ConfigError, Source};

impl Directive {
    pub(super) fn error(
        &self,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ConfigError {
        self.location.error(&self.name, problem, remedy)
    }

    /// Checks the number of arguments, and refuses a block if the directive cannot have one.
    pub(super) fn check_shape(&self, spec: &Spec) -> Result<(), ConfigError> {
        let count = &spec.arity;
        let problem = match (self.inline.is_some(), self.args.len()) {
            (true, _) if spec.block => return Ok(()),
            (true, _) => "it cannot be a block".to_owned(),
            (false, n) if count.contains(&n) => return Ok(()),
            (false, 0) => "an argument is missing".to_owned(),
            (false, n) if n < *count.start() => {
                format!("it takes at least {} arguments, and has {n}", count.start())
            }
            (false, n) if *count.end() == 0 => format!("it takes no argument, and has {n}"),
            (false, n) => format!("{n} arguments are too many"),
        };
        Err(self.error(problem, format!("write: {}", spec.usage())))
    }

    /// Returns the argument, or the empty string.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.get(index).unwrap_or_default()
    }

    pub(super) fn get(&self, index: usize) -> Option<&str> {
        self.args.get(index).map(String::as_str)
    }

    pub(super) fn words(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }

    /// Parses a host name or an address. Some tools write IPv6 addresses in brackets.
    pub(super) fn host(&self, index: usize) -> Result<String, ConfigError> {
        let host = unbracketed(self.arg(index));
        if host.is_empty() || host.len() > 253 || host.contains(|c: char| c.is_whitespace()) {
            return Err(
                self.error(format!("\"{host}\" is not a host"), "write a name or an address")
            );
        }
        Ok(host.to_owned())
    }

    pub(super) fn number<T>(&self, index: usize, range: RangeInclusive<T>) -> Result<T, ConfigError>
    where
        T: FromStr + PartialOrd + Display,
    {
        let text = self.arg(index);
        match text.parse::<T>() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(self.error(
                format!("\"{text}\" is not a number from {} to {}", range.start(), range.end()),
                "",
            )),
        }
    }

    pub(super) fn seconds(&self, index: usize) -> Result<Duration, ConfigError> {
        self.number(index, 0..=i32::MAX.cast_unsigned())
            .map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Parses a port, or the one service name that is common in such files.
    pub(super) fn port(&self, index: usize) -> Result<u16, ConfigError> {
        match self.arg(index) {
            "openvpn" => Ok(1194),
            _ => self.number(index, 0..=u16::MAX),
        }
    }

    /// Parses a port that a socket can listen on.
    pub(super) fn reachable_port(&self, index: usize) -> Result<u16, ConfigError> {
        match self.port(index)? {
            0 => Err(self.error("port 0 cannot be reached", "write the port on which it listens")),
            port => Ok(port),
        }
    }

    /// Parses `SECONDS [BYTES]`; `None` for zero seconds.
    pub(super) fn inactive(&self) -> Result<Option<Inactive>, ConfigError> {
        let after = self.seconds(0)?;
        // As in openvpn, a negative number means 0.
        let bytes = match self.get(1) {
            Some(_) => self.number::<i64>(1, i64::MIN..=i64::MAX)?.try_into().unwrap_or(0),
            None => 0,
        };
        Ok((!after.is_zero()).then_some(Inactive { after, bytes }))
    }

    pub(super) fn ipv4(&self, index: usize) -> Result<Ipv4Addr, ConfigError> {
        let text = self.arg(index);
        text.parse().map_err(|_| {
            self.error(format!("\"{text}\" is not an IPv4 address"), "write it as 192.0.2.1")
        })
    }

    pub(super) fn ipv6(&self, index: usize) -> Result<Ipv6Addr, ConfigError> {
        let text = self.arg(index);
        text.parse().map_err(|_| {
            self.error(format!("\"{text}\" is not an IPv6 address"), "write it as 2001:db8::1")
        })
    }

    /// Parses an address and a netmask; the address is kept unchanged.
    pub(super) fn net4(&self, address: usize, mask: usize) -> Result<Ipv4Net, ConfigError> {
        let ip = self.ipv4(address)?;
        let mask = self.ipv4(mask)?;
        Ipv4Net::with_netmask(ip, mask).map_err(|_| {
            self.error(format!("{mask} is not a netmask"), "write it as 255.255.255.0")
        })
    }

    /// Parses `ADDRESS/BITS`; the address is kept unchanged.
    pub(super) fn net6(&self, index: usize) -> Result<Ipv6Net, ConfigError> {
        let text = self.arg(index);
        text.parse().map_err(|_| {
            self.error(
                format!("\"{text}\" is not an IPv6 address with its prefix length"),
                "write it as 2001:db8::/64",
            )
        })
    }

    /// Parses `ADDRESS[/BITS]`; without a length it is a /64.
    pub(super) fn net6_or_64(&self, index: usize) -> Result<Ipv6Net, ConfigError> {
        match self.arg(index).parse().ok().map(|address| Ipv6Net::new(address, 64)) {
            Some(Ok(net)) => Ok(net),
            _ => self.net6(index),
        }
    }

    pub(super) fn path(&self, index: usize, base: Option<&Path>) -> PathBuf {
        match base {
            Some(base) => base.join(self.arg(index)),
            None => PathBuf::from(self.arg(index)),
        }
    }

    /// Returns the block, or the file in the first argument. Returns `None` for `[inline]`, which
    /// only announces a block.
    pub(super) fn source(&self, name: &'static str, base: Option<&Path>) -> Option<Source> {
        if let Some(text) = &self.inline {
            return Some(Source::Inline { directive: name, text: text.clone() });
        }
        (self.arg(0) != "[inline]").then(|| Source::File(self.path(0, base)))
    }
}

/// Removes the brackets that some tools write around an IPv6 address.
pub(super) fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}
