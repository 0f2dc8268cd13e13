//! Typed access to a directive's arguments.

use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};

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

    /// Checks the number of arguments; `usage` is what to write instead.
    pub(super) fn shape(
        &self,
        usage: &str,
        count: RangeInclusive<usize>,
    ) -> Result<(), ConfigError> {
        if self.inline.is_some() && !usage.contains("<inline>") {
            return Err(self.error(
                "it cannot be a block",
                format!("write: {}", usage.trim_end_matches(" <inline>")),
            ));
        }
        if self.inline.is_some() || count.contains(&self.args.len()) {
            return Ok(());
        }
        let problem = match self.args.len() {
            0 => "an argument is missing".to_owned(),
            n if n < *count.start() => {
                format!("it takes at least {} arguments, and has {n}", count.start())
            }
            n if *count.end() == 0 => format!("it takes no argument, and has {n}"),
            n => format!("{n} arguments are too many"),
        };
        Err(self.error(problem, format!("write: {}", usage.trim_end_matches(" <inline>"))))
    }

    /// The argument, or the empty string.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.get(index).unwrap_or_default()
    }

    pub(super) fn get(&self, index: usize) -> Option<&str> {
        self.args.get(index).map(String::as_str)
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

    /// A port, or the one service name that is common in such files.
    pub(super) fn port(&self, index: usize) -> Result<u16, ConfigError> {
        match self.arg(index) {
            "openvpn" => Ok(1194),
            _ => self.number(index, 0..=u16::MAX),
        }
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

    /// An address and a netmask, the address kept as it is.
    pub(super) fn net4(&self, address: usize, mask: usize) -> Result<Ipv4Net, ConfigError> {
        let ip = self.ipv4(address)?;
        let mask = self.ipv4(mask)?;
        Ipv4Net::with_netmask(ip, mask).map_err(|_| {
            self.error(format!("{mask} is not a netmask"), "write it as 255.255.255.0")
        })
    }

    /// `ADDRESS/BITS`, the address kept as it is.
    pub(super) fn net6(&self, index: usize) -> Result<Ipv6Net, ConfigError> {
        let text = self.arg(index);
        text.parse().map_err(|_| {
            self.error(
                format!("\"{text}\" is not an IPv6 address with its prefix length"),
                "write it as 2001:db8::/64",
            )
        })
    }

    pub(super) fn path(&self, index: usize, base: Option<&Path>) -> PathBuf {
        match base {
            Some(base) => base.join(self.arg(index)),
            None => PathBuf::from(self.arg(index)),
        }
    }

    /// The block, or the file named first. `None` for `[inline]`, which only says that a block follows.
    pub(super) fn source(&self, name: &'static str, base: Option<&Path>) -> Option<Source> {
        if let Some(text) = &self.inline {
            return Some(Source::Inline { directive: name, text: text.clone() });
        }
        (self.arg(0) != "[inline]").then(|| Source::File(self.path(0, base)))
    }
}
