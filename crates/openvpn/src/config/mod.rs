//! Parses OpenVPN's command line and config files into types.
//!
//! [`parse`] takes the arguments of `openvpn` and returns [`Options`], or a [`ConfigError`] with the file, the line,
//! the directive and the remedy. It reads config files only through [`Files`]. A key file that is named by its path
//! becomes a [`Source::File`], which the caller reads.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

mod args;
mod bridge;
mod ciphers;
mod client_file;
mod directives;
mod error;
mod finish;
mod finish_management;
mod finish_peer;
mod finish_pkcs11;
mod finish_server;
mod lexer;
mod mtu;
mod options;
mod proxies;
mod push_filter;
mod raw_config;
mod reader;
mod route_names;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use lexer::{is_space, words};

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

pub use client_file::{ClientFile, ClientRules, client_file_name};
pub use error::ConfigError;
pub use options::{
    AskPass, AuthRetry, ClientOptions, Device, DeviceKind, DialOptions, ExternalCert, ExternalKey,
    Hooks, HttpProxy, Identity, Listen, Log, LogTo, Management, ManagementPassword,
    ManagementPlace, Metrics, MtuDiscovery, NameKind, Options, Padding, PasswordProgram, PeerKeys,
    PeerOptions, Pkcs11, Pkcs11Provider, Pkcs12, Plugin, PoolPersist, PortShare, Process, Program,
    Proxy, ProxyScheme, Remap, Role, Routes, ServerOptions, Socket, SocksProxy, Source, Status,
    Tls, TlsVersion, TokenOptions, Usage, UserPass, VerifyName, Wrap, X509Track,
};

pub use push_filter::PushRules;

/// Reads config files.
pub trait Files {
    /// Reads a config file.
    ///
    /// # Errors
    /// Returns the file system's error.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Looks up the IPv4 addresses of a name in `route`.
    ///
    /// # Errors
    /// The name has no address, or none can be looked up, as by default.
    fn look_up(&self, name: &str) -> io::Result<Vec<Ipv4Addr>> {
        let _ = name;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The file system.
#[derive(Copy, Clone, Debug, Default)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }
}

/// Parses the arguments of `openvpn`, without the program's name.
///
/// ```
/// use std::io;
/// use std::path::Path;
///
/// use adit_openvpn::config::{Files, Role, parse};
///
/// struct OneFile(&'static str);
///
/// impl Files for OneFile {
///     fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
///         Ok(self.0.into())
///     }
/// }
///
/// let profile = OneFile("client\ndev tun\nremote vpn.example.org 1194\nca ca.crt\ncert c.crt\nkey c.key\n");
/// let options = parse(&["client.ovpn".into()], &profile)?;
/// let Role::Client(client) = options.role else { panic!("not a client") };
/// assert_eq!(client.dial.remotes[0].host, "vpn.example.org");
///
/// let error = parse(&["client.ovpn".into()], &OneFile("client\nremot vpn.example.org\n")).unwrap_err();
/// assert_eq!((error.line, error.directive.as_str()), (2, "remot"));
/// # Ok::<(), adit_openvpn::config::ConfigError>(())
/// ```
///
/// # Errors
/// Returns the first error.
pub fn parse(args: &[String], files: &dyn Files) -> Result<Options, ConfigError> {
    let directives = reader::read(args, files)?;
    let base = directives.last().and_then(|last| last.directory.clone());
    let mut raw = raw_config::RawConfig::new(base);
    raw.options.config_file = config_file(args).cloned();
    let mut names = route_names::RouteNames::new(files);
    for directive in &directives {
        match names.replace(directive) {
            Ok(Some(routes)) => routes.iter().try_for_each(|route| raw.take(route))?,
            Ok(None) => raw.take(directive)?,
            Err(problem) => raw.warn(directive, &problem),
        }
        raw.options.directives.push(directive.shown());
    }
    finish::finish(raw)
}

/// Returns the first config file that the command line names.
fn config_file(args: &[String]) -> Option<&String> {
    match args {
        [only] if !only.starts_with("--") => Some(only),
        _ => args.iter().skip_while(|arg| *arg != "--config").nth(1),
    }
}

/// Returns the supported directives with their arguments and effects, for `--help`.
pub fn help() -> String {
    directives::help()
}

/// Splits a line into words by the quoting rules of config files, which the management interface uses too.
///
/// # Errors
/// Says why the line cannot be split.
pub fn split_words(line: &str) -> Result<Vec<String>, String> {
    words(line).map_err(lexer::LexError::problem)
}

/// Returns the log target of a configuration that is refused, as far as it can be determined.
pub fn log_target(args: &[String], files: &dyn Files) -> Option<LogTo> {
    let mut target = None;
    for d in reader::read_leniently(args, files) {
        target = match (d.name.as_str(), d.args.as_slice()) {
            ("log", [_]) => Some(LogTo::File(d.path(0, d.directory.as_deref()))),
            ("log-append", [_]) => Some(LogTo::Append(d.path(0, d.directory.as_deref()))),
            ("syslog" | "daemon", rest) if target.is_none() => {
                Some(LogTo::Syslog(rest.first().map_or("openvpn", String::as_str).to_owned()))
            }
            _ => target,
        };
    }
    target
}

/// Parses a config file that may include itself, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    struct One<'a>(&'a [u8]);
    impl Files for One<'_> {
        fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
            Ok(self.0.to_vec())
        }
    }
    if let Err(error) = ClientFile::parse("client", bytes, &ClientRules::default()) {
        assert!(!error.problem.is_empty());
    }
    if let Err(error) = parse(&["fuzz.conf".to_owned()], &One(bytes)) {
        assert!(!error.problem.is_empty());
        let _ = error.to_string();
    }
}
